package compose

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"mesh/coordinator/records"
	"mesh/shared/grant"
	"mesh/shared/manifest"
	"mesh/shared/membership"
	"mesh/shared/subject"
)

// member is one instance on the bus.
type member struct {
	module subject.Module
	key    string // "" while its machine has not said it
	of     *membership.Membership
	text   json.RawMessage // of
}

func sameMember(a, b member) bool {
	return a.module == b.module && a.key == b.key && string(a.text) == string(b.text)
}

// onBus reports whether the current build of m has something to do on the bus.
func (c *Composer) onBus(m subject.Module) bool {
	b := c.builds[m]
	return b != nil && b.Manifest.OnBus()
}

// join notes that m is on n, leave that it is not any more. Between one instance and two, what each of them is
// changes.
func (c *Composer) join(m subject.Module, n subject.Node) {
	where := c.on[m]
	if where == nil {
		where = make(map[subject.Node]struct{})
		c.on[m] = where
	}
	where[n] = struct{}{}
	c.counted(m, n, len(where) == 2)
}

func (c *Composer) leave(m subject.Module, n subject.Node) {
	delete(c.on[m], n)
	c.counted(m, n, len(c.on[m]) == 1)
}

func (c *Composer) counted(m subject.Module, n subject.Node, all bool) {
	if !c.onBus(m) {
		return
	}
	c.stale[n] = struct{}{}
	if all {
		for other := range c.on[m] {
			c.stale[other] = struct{}{}
		}
	}
}

// remember composes the memberships of the nodes that may have others now. It holds mu.
func (c *Composer) remember() error {
	for n := range c.stale {
		s := c.nodes[n]
		if s == nil {
			continue
		}
		now, err := c.membersOf(s)
		if err != nil {
			return fmt.Errorf("memberships of %s: %w", n, err)
		}
		if !slices.EqualFunc(now, s.members, sameMember) {
			s.members, s.clean = now, false
			s.since++
		}
		c.inForce(s, s.inForce)
	}
	clear(c.stale)
	return nil
}

func (c *Composer) membersOf(s *state) (all []member, err error) {
	for _, p := range s.in.Placed {
		if !c.onBus(p.Module) {
			continue
		}
		m := c.builds[p.Module].Manifest.Membership(c.mesh.ID, s.in.Node.Name, len(c.on[p.Module]) == 1)
		text, err := json.Marshal(m)
		if err != nil {
			return nil, err
		}
		all = append(all, member{p.Module, p.Key, m, text})
	}
	return all, nil
}

// inForce makes these the node's members on the user list, with the keys known now. They are those of the last
// declaration composed for it: a machine runs what it was sent, until it is sent something else.
func (c *Composer) inForce(s *state, members []member) {
	keyed := make([]member, 0, len(members))
	for _, m := range members {
		for _, p := range s.in.Placed {
			if p.Module == m.module && p.Key != "" {
				m.key = p.Key
			}
		}
		keyed = append(keyed, m)
	}
	if !slices.EqualFunc(keyed, s.inForce, sameMember) || len(keyed) != len(s.inForce) {
		c.dirty = true
	}
	s.inForce = keyed
}

// membership is the text of the instance's, nil for none.
func (s *state) membership(m subject.Module) json.RawMessage {
	for i := range s.members {
		if s.members[i].module == m {
			return s.members[i].text
		}
	}
	return nil
}

// instances are the principals of s.
func (s *state) instances(all []grant.Principal) []grant.Principal {
	for _, m := range s.inForce {
		all = append(all, grant.Principal{Kind: grant.Instance, Name: string(m.module), Key: m.key, Membership: m.of})
	}
	return all
}

// reads are the verbs of the modules that change nothing, sorted.
func (c *Composer) reads() (all []grant.OfModule) {
	for m, b := range c.builds {
		for _, v := range b.Manifest.Verbs() {
			if b.Manifest.Tools[string(v)].Asking() == manifest.LevelRead {
				all = append(all, grant.OfModule{Module: m, Verb: v})
			}
		}
	}
	slices.SortFunc(all, func(a, b grant.OfModule) int {
		return cmp.Or(cmp.Compare(a.Module, b.Module), cmp.Compare(a.Verb, b.Verb))
	})
	return all
}

// Membership is one instance's, to be put on the bus.
type Membership struct {
	Node   subject.Node
	Module subject.Module
	Text   []byte
}

// Memberships are those of the nodes' last declarations, by node and module; a node without any is in the map too.
func (c *Composer) Memberships(ctx context.Context, names []subject.Node) (map[subject.Node][]Membership, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.refresh(ctx); err != nil {
		return nil, err
	}
	all := make(map[subject.Node][]Membership, len(names))
	for _, n := range names {
		s := c.nodes[n]
		if s == nil {
			continue
		}
		var of []Membership
		for _, m := range s.inForce {
			of = append(of, Membership{n, m.module, m.text})
		}
		all[n] = of
	}
	return all, nil
}

// MembershipOf is the membership of an instance by its node and module, as its rights are derived from.
func (c *Composer) MembershipOf(ctx context.Context, i records.Instance) (*membership.Membership, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.refresh(ctx); err != nil {
		return nil, err
	}
	if s := c.nodes[i.Node]; s != nil {
		for _, m := range s.inForce {
			if m.module == i.Module {
				return m.of, nil
			}
		}
	}
	return nil, nil
}
