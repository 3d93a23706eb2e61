package foreign

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"mesh/firewall/internal/nfnetlink"
	"mesh/shared/refusal"
)

// attempts is how often a rule set that changes under the reading is read again.
const attempts = 10

// Read reads all rule sets of the network namespace that the calling thread is in, between two equal
// generations, once the commit under way has ended. One that never holds still is returned as it was last
// seen, with a note. It needs CAP_NET_ADMIN.
func Read(ctx context.Context) (Ruleset, error) { return read(ctx, runSave, false) }

func read(ctx context.Context, save saver, whole bool) (Ruleset, error) {
	rs, err := readTables(ctx, whole)
	switch {
	case errors.Is(err, unix.EPERM):
		return Ruleset{}, fmt.Errorf("%w: %w", refusal.New("reading the packet filter",
			"the kernel shows it to root only", "run it with sudo"), err)
	case err != nil && ctx.Err() != nil:
		return Ruleset{}, ctx.Err()
	case err != nil: // such as a kernel without nf_tables
		rs.note("nftables cannot be read: %v", err)
	}
	readLegacy(ctx, &rs, save, whole)
	readBypass(ctx, &rs)
	return rs, nil
}

func readTables(ctx context.Context, whole bool) (Ruleset, error) {
	s, err := nfnetlink.Open()
	if err != nil {
		return Ruleset{}, err
	}
	defer s.Close()
	var rs Ruleset
	generation, err := s.Steady(attempts, func() (err error) {
		rs, err = dump(ctx, s, whole)
		return err
	})
	rs.Generation = generation
	if errors.Is(err, nfnetlink.ErrInterrupted) {
		rs.note("the rule set changed each of the %d times it was read: this is a mix of several states", attempts)
		err = nil
	}
	return rs, err
}

// dump lists everything once: tables, then chains, sets, rules, flowtables, and what is in the verdict maps.
func dump(ctx context.Context, s *nfnetlink.Socket, whole bool) (Ruleset, error) {
	if err := ctx.Err(); err != nil {
		return Ruleset{}, err
	}
	d := decoder{whole: whole}
	d.facts.ipsets = ipsetNames()
	for _, part := range []struct {
		typ  uint16
		each func(nfnetlink.Message)
	}{
		{unix.NFT_MSG_GETTABLE, d.table}, {unix.NFT_MSG_GETCHAIN, d.chain},
		{unix.NFT_MSG_GETSET, d.set}, {unix.NFT_MSG_GETRULE, d.rule},
	} {
		if err := s.List(part.typ, unix.NFPROTO_UNSPEC, part.each); err != nil {
			return d.rs, err
		}
	}
	d.flowtables(s)
	for i := range d.rs.Tables {
		t := &d.rs.Tables[i]
		for j := range t.Maps {
			m := &t.Maps[j]
			if err := ctx.Err(); err != nil {
				return d.rs, err
			}
			var acts acts
			err := s.List(unix.NFT_MSG_GETSETELEM, d.families[i],
				func(msg nfnetlink.Message) { d.elements(t, m, &acts, msg) }, t.Name, m.Name)
			switch {
			case errors.Is(err, unix.ENOENT): // gone meanwhile: the generation tells
			case err != nil:
				return d.rs, err
			}
		}
	}
	return d.rs, d.fillSets(ctx, s)
}
