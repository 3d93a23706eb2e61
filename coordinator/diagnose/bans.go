package diagnose

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"mesh/shared/controller"
	"mesh/shared/engine"
	"mesh/shared/report"
	"mesh/shared/subject"
)

const (
	// sideBySide is how many machines are asked at a time.
	sideBySide = 16
	// machineBound is how long one machine has for an answer: two of them fit into a part of a diagnosis.
	machineBound = 4 * time.Second
	// mostWhy bounds what is kept of why a machine could not be asked, in bytes.
	mostWhy = 300
)

// Machines asks the machines of the mesh themselves.
type Machines interface {
	// Exposure is what of the machine can be reached; its addresses stand in it.
	Exposure(ctx context.Context, n subject.Node) (report.Exposure, error)
	// Banned is who of the addresses the machine bans.
	Banned(ctx context.Context, n subject.Node, addresses []string) (engine.BannedAnswer, error)
}

// Bans is whether machines of the mesh ban each other (NET-11).
type Bans struct {
	// Found are the bans by which one machine keeps another out, sorted by name.
	Found []NodeBan `json:"found"`
	// Unknown are the machines that could not be asked, and why: they are no pass.
	Unknown []Unasked `json:"unknown,omitempty"`
	// Asked counts the machines that answered.
	Asked int `json:"asked"`
}

// NodeBan is a ban of one machine by another.
type NodeBan struct {
	// By bans Node.
	By   subject.Node `json:"by"`
	Node subject.Node `json:"node"`
	engine.Ban
	// Do is what a person does about it.
	Do string `json:"do"`
}

// Unasked is a machine that could not be asked.
type Unasked struct {
	Node subject.Node `json:"node"`
	Why  string       `json:"why"`
}

// AskBans asks every machine for its addresses, and then every machine whether it bans one of the others'. Both
// happen side by side, within a bound for each. What could not be asked is named.
func AskBans(ctx context.Context, m Machines, nodes []subject.Node) Bans {
	out := Bans{Found: []NodeBan{}}
	why := map[subject.Node]string{}
	of := map[netip.Addr]subject.Node{}
	var mu sync.Mutex // guards the three
	unknown := func(n subject.Node, what string, err error) {
		mu.Lock()
		defer mu.Unlock()
		if why[n] != "" {
			what = why[n] + "; " + what
		}
		why[n] = report.Cut(what+": "+strings.Join(strings.Fields(err.Error()), " "), mostWhy)
	}
	each(ctx, nodes, func(ctx context.Context, n subject.Node) {
		x, err := m.Exposure(ctx, n)
		if err != nil {
			unknown(n, "its addresses are not known", err)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		for _, l := range x.Links {
			for _, text := range l.Addresses {
				if a, err := netip.ParseAddr(text); err == nil {
					of[a.Unmap()] = n
				}
			}
		}
	})
	addresses := make([]netip.Addr, 0, len(of))
	for a := range of {
		addresses = append(addresses, a)
	}
	slices.SortFunc(addresses, netip.Addr.Compare)
	each(ctx, nodes, func(ctx context.Context, n subject.Node) {
		var theirs []string
		for _, a := range addresses {
			if of[a] != n {
				theirs = append(theirs, a.String())
			}
		}
		if len(theirs) == 0 {
			return // there is nobody it could ban
		}
		for some := range slices.Chunk(theirs, engine.MostAddresses) {
			answer, err := m.Banned(ctx, n, some)
			if err != nil {
				unknown(n, "whom it bans is not known", err)
				return
			}
			report.Clean(&answer) // the machine may be in somebody else's hands
			found := match(n, answer, addresses, of)
			mu.Lock()
			out.Found = append(out.Found, found...)
			mu.Unlock()
		}
		mu.Lock()
		out.Asked++
		mu.Unlock()
	})
	for _, n := range nodes {
		if why[n] != "" {
			out.Unknown = append(out.Unknown, Unasked{n, why[n]})
		}
	}
	slices.SortFunc(out.Found, func(a, b NodeBan) int {
		return strings.Compare(string(a.By)+" "+string(a.Node)+" "+a.Address+" "+a.Where, string(b.By)+" "+string(b.Node)+" "+b.Address+" "+b.Where)
	})
	return out
}

// each calls do for every machine, some at a time, and returns when all have ended.
func each(ctx context.Context, nodes []subject.Node, do func(context.Context, subject.Node)) {
	turn := make(chan struct{}, sideBySide)
	var wg sync.WaitGroup
	for _, n := range nodes {
		turn <- struct{}{}
		wg.Go(func() {
			defer func() { <-turn }()
			bound, cancel := context.WithTimeout(ctx, machineBound)
			defer cancel()
			do(bound, n)
		})
	}
	wg.Wait()
}

// match are the bans of others' addresses in an answer. One that refuses nobody is none.
func match(by subject.Node, answer engine.BannedAnswer, addresses []netip.Addr, of map[netip.Addr]subject.Node) (found []NodeBan) {
	for _, b := range answer.Bans {
		if b.Idle != "" {
			continue
		}
		for _, a := range addresses {
			if n := of[a]; n != by && covers(b.Address, a) && !slices.ContainsFunc(found, func(f NodeBan) bool { return f.Node == n && f.Ban == b }) {
				found = append(found, NodeBan{By: by, Node: n, Ban: b, Do: lift(by, b, a)})
			}
		}
	}
	return found
}

// covers says whether a is the banned address, or in the prefix or range of addresses.
func covers(banned string, a netip.Addr) bool {
	if p, err := netip.ParsePrefix(banned); err == nil {
		return p.Contains(a)
	}
	first, last, ranged := strings.Cut(banned, "-")
	from, err := netip.ParseAddr(strings.TrimSpace(first))
	if err != nil {
		return false
	}
	if !ranged {
		return from.Unmap() == a
	}
	to, err := netip.ParseAddr(strings.TrimSpace(last))
	return err == nil && from.BitLen() == a.BitLen() && from.Compare(a) <= 0 && a.Compare(to) <= 0
}

// lift is how a person ends a ban.
func lift(by subject.Node, b engine.Ban, a netip.Addr) string {
	switch b.Tool {
	case "fail2ban":
		return fmt.Sprintf("on %s: fail2ban-client unban %s, and put it into ignoreip", by, a)
	case "crowdsec":
		return fmt.Sprintf("on %s: cscli decisions delete --ip %s, and put it into a whitelist", by, a)
	case "route":
		return fmt.Sprintf("on %s: ip route del %s %s, once it is known who made it", by, strings.TrimSuffix(b.Where, " route"), a)
	}
	return fmt.Sprintf("on %s: end the ban in %s; mesh-coordinator bans %s says more", by, b.Where, by)
}

// askBans asks the machines that mesh-controller names.
func (c Config) askBans(ctx context.Context) (any, error) {
	if c.Ask == nil || c.Machines == nil {
		return nil, c.Alone
	}
	said, err := c.Ask(ctx, controller.Nodes, controller.Nothing{})
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(said)
	if err != nil {
		return nil, err
	}
	var answer controller.NodesAnswer
	if err := json.Unmarshal(b, &answer); err != nil {
		return nil, err
	}
	var nodes []subject.Node
	for _, n := range answer.Nodes {
		nodes = append(nodes, n.Name)
	}
	return AskBans(ctx, c.Machines, nodes), nil
}
