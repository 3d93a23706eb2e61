package firewall

import (
	"encoding/hex"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"mesh/firewall/internal/nfnetlink"
)

// Drift is how the kernel's table is not the one wanted.
type Drift struct {
	// What says it in a few words; empty: it is the one wanted.
	What string
	// Added says that all that is wanted is there, and something of others besides.
	Added bool
}

// mostNotes bounds how many differences are told.
const mostNotes = 4

// note adds a difference.
func (d *Drift) note(what string, added bool) {
	if d.What == "" {
		d.What, d.Added = what, added
		return
	}
	if n := strings.Count(d.What, "; ") + 1; n < mostNotes {
		d.What += "; " + what
	} else if n == mostNotes {
		d.What += "; and more"
	}
	d.Added = d.Added && added
}

// foreignRules names rules in a chain of mesh's that others put there, so that a person can tell whose
// they are.
func foreignRules(rules []foundRule) string {
	words := "has the rule \"" + rules[0].words() + "\", which is not mesh's"
	if n := len(rules) - 1; n > 0 {
		words += fmt.Sprintf(", and %d more", n)
	}
	return words
}

// metaNames are the keys of packets that rules of others compare mostly.
var metaNames = map[uint32]string{unix.NFT_META_IIFNAME: "iifname", unix.NFT_META_OIFNAME: "oifname", unix.NFT_META_MARK: "mark", unix.NFT_META_L4PROTO: "l4proto"}

// mostWords bounds the words of one rule.
const mostWords = 100

// words is the gist of a rule: what it compares, its verdict, and its comment.
func (r foundRule) words() string {
	var out []string
	for typ, e := range nfnetlink.Attributes(r.expressions) {
		if typ != unix.NFTA_LIST_ELEM {
			continue
		}
		name, data := expression(e)
		switch name {
		case "counter", "objref": // objref names a counter mostly
		case "meta":
			out = append(out, metaWord(data))
		case "cmp":
			out = append(out, valueWord(data, unix.NFTA_CMP_DATA))
		case "immediate":
			out = append(out, verdictWord(data))
		default:
			out = append(out, name)
		}
	}
	if c := comment(r.userData); c != "" {
		out = append(out, "comment "+c)
	}
	words := strings.Join(out, " ")
	return words[:min(len(words), mostWords)]
}

func metaWord(data []byte) string {
	for typ, v := range nfnetlink.Attributes(data) {
		if typ == unix.NFTA_META_KEY {
			if name, ok := metaNames[nfnetlink.Number(v)]; ok {
				return name
			}
		}
	}
	return "meta"
}

// valueWord is the value below the attribute at: a name where it is one, else in hexadecimal.
func valueWord(data []byte, at uint16) string {
	for typ, v := range nfnetlink.Attributes(data) {
		if typ != at {
			continue
		}
		for typ, v := range nfnetlink.Attributes(v) {
			if typ == unix.NFTA_DATA_VALUE {
				if text := strings.TrimRight(string(v), "\x00"); text != "" && printable(text) {
					return text
				}
				return hex.EncodeToString(v)
			}
		}
	}
	return "?"
}

func printable(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r >= 0x7f })
}

// verdicts are the codes of linux/netfilter/nf_tables.h and linux/netfilter.h.
var verdicts = map[int32]string{0: "drop", 1: "accept", 3: "queue", unix.NFT_CONTINUE: "continue", unix.NFT_JUMP: "jump", unix.NFT_GOTO: "goto", unix.NFT_RETURN: "return"}

func verdictWord(data []byte) string {
	for typ, v := range nfnetlink.Attributes(data) {
		if typ != unix.NFTA_IMMEDIATE_DATA {
			continue
		}
		for typ, v := range nfnetlink.Attributes(v) {
			if typ != unix.NFTA_DATA_VERDICT {
				continue
			}
			word := ""
			for typ, v := range nfnetlink.Attributes(v) {
				switch typ {
				case unix.NFTA_VERDICT_CODE:
					word = verdicts[int32(nfnetlink.Number(v))] + word
				case unix.NFTA_VERDICT_CHAIN:
					word += " " + nfnetlink.Text(v)
				}
			}
			return word
		}
	}
	return "sets a register"
}

// comment is the comment in the user data of a rule (libnftnl: type 0).
func comment(userData []byte) string {
	if len(userData) < 3 || userData[0] != 0 || int(userData[1])+2 > len(userData) {
		return ""
	}
	return strings.TrimRight(string(userData[2:2+int(userData[1])]), "\x00")
}
