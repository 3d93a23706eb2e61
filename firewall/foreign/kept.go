package foreign

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"mesh/firewall/internal/nfnetlink"
)

// Signature is equal for two moments between which nothing of what Read reads has changed that can be told
// without reading it: the kernel's generation, the names of legacy tables, links with their XDP programs and
// virtual functions, addresses and routes, the first 2,000 of each family. Rules that come into legacy tables, and
// programs of traffic control, change without it. It costs a tenth of a millisecond on a machine with few links.
func Signature() (string, error) {
	s, err := nfnetlink.Open()
	if err != nil {
		return "", err
	}
	defer s.Close()
	generation, err := s.Generation()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprint(&b, generation)
	for _, part := range legacyParts {
		names, err := os.ReadFile(part.names)
		if err == nil {
			fmt.Fprintf(&b, " %s %q", part.family, names)
		}
	}
	now, err := moment()
	if err != nil {
		return "", err
	}
	fmt.Fprintf(&b, " %x", now)
	return b.String(), nil
}

// Bases are the base chains of nftables, as "ip nat PREROUTING": what hangs on them is in force.
func Bases(ctx context.Context) ([]string, error) {
	s, err := nfnetlink.Open()
	if err != nil {
		return nil, err
	}
	defer s.Close()
	var d decoder
	if err := s.List(unix.NFT_MSG_GETTABLE, unix.NFPROTO_UNSPEC, d.table); err != nil {
		return nil, err
	}
	if err := s.List(unix.NFT_MSG_GETCHAIN, unix.NFPROTO_UNSPEC, d.chain); err != nil {
		return nil, err
	}
	var all []string
	for _, t := range d.rs.Tables {
		for _, c := range t.Chains {
			if c.Base {
				all = append(all, t.Family+" "+t.Name+" "+c.Name)
			}
		}
	}
	return all, ctx.Err()
}

// ReadWith is Read for a caller that may not run iptables-legacy-save itself: save runs it, found at path,
// and returns what it printed.
func ReadWith(ctx context.Context, save func(ctx context.Context, path string) ([]byte, error)) (Ruleset, error) {
	return read(ctx, save, false)
}

// stays says whether what owner writes is left alone when a machine is converged.
func stays(owner string) bool { return owner != "" && fateOf(kindOf(owner)) == fateLeave }

// Stays is the tool whose named chain this is, when a converge leaves its chains alone (a container
// runtime's, bans, a tunnel's), or empty.
func Stays(chain string) string {
	if owner := ownerIn(chainNames, chain); stays(owner) {
		return owner
	}
	return ""
}

// StaysSet is the tool whose named set of addresses this is, or empty.
func StaysSet(set string) string {
	if owner := ownerIn(setNames, set); stays(owner) {
		return owner
	}
	return ""
}

// StaysComment is the tool that writes this comment into each of its rules, or empty.
func StaysComment(text string) string {
	if owner := ownerIn(comments, text); stays(owner) {
		return owner
	}
	return ""
}

// StaysLink is the tool that makes links of this name, or empty.
func StaysLink(link string) string {
	if owner := ownerIn(linkNames, link); stays(owner) {
		return owner
	}
	return ""
}

// Kept is one thing that a converge leaves alone: a chain with rules, or the jumps from a chain to one.
type Kept struct {
	Family, Table, Chain string
	// To is where the jumps lead; empty: the chain itself.
	To string
	// Owner is whose it is.
	Owner string
}

// String is k in words.
func (k Kept) String() string {
	what := k.Family + " " + k.Table + " " + k.Chain
	if k.To != "" {
		what = fmt.Sprintf("the jump from %s to %s", what, k.To)
	}
	return what + " of " + k.Owner
}

// Keeps lists what a converge leaves alone, in the kernel's order. Chains without rules do nothing and are
// not among them.
func Keeps(rs Ruleset) []Kept {
	var all []Kept
	for i := range rs.Tables {
		t := &rs.Tables[i]
		whole := ownerIn(tableNames, t.Name)
		for _, c := range t.Chains {
			owner := whole
			if owner == "" {
				owner = ownerIn(chainNames, c.Name)
			}
			if stays(owner) {
				if c.Rules > 0 {
					all = append(all, Kept{t.Family, t.Name, c.Name, "", owner})
				}
				continue
			}
			for _, a := range c.Acts {
				k := Kept{t.Family, t.Name, c.Name, a.Chain, Stays(a.Chain)}
				if k.Owner != "" && !slices.Contains(all, k) {
					all = append(all, k)
				}
			}
		}
	}
	return all
}
