package compose

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"mesh/coordinator/records"
	"mesh/shared/subject"
)

func compareNodes(a, b subject.Node) int { return cmp.Compare(a, b) }

// refresh brings what is kept up to the records. It holds mu. After an error the next call loads
// everything again.
func (c *Composer) refresh(ctx context.Context) error {
	if !c.loaded {
		return c.load(ctx)
	}
	t, mark := c.store.Touched(c.mark)
	many := len(t.Nodes) > 1000 && len(t.Nodes) > len(c.nodes)/4
	if t.All || many { // reading everything is cheaper than many nodes one by one
		return c.load(ctx)
	}
	c.loaded = false
	for _, m := range t.Modules {
		if err := c.rebuild(ctx, m); err != nil {
			return fmt.Errorf("compose: %w", err)
		}
	}
	for _, n := range t.Nodes {
		if err := c.reload(ctx, n); err != nil {
			return fmt.Errorf("compose: %w", err)
		}
	}
	if err := c.remember(); err != nil {
		return fmt.Errorf("compose: %w", err)
	}
	c.dirty = c.dirty || t.Users
	c.mark, c.loaded = mark, true
	return nil
}

// load reads everything.
func (c *Composer) load(ctx context.Context) error {
	c.loaded = false
	mark := c.store.Mark() // before reading: what changes meanwhile is told again
	mesh, err := c.store.Mesh(ctx)
	if err != nil {
		return fmt.Errorf("compose: %w", err)
	}
	builds, err := c.store.Modules(ctx)
	if err != nil {
		return fmt.Errorf("compose: %w", err)
	}
	all, err := c.store.AllInputs(ctx)
	if err != nil {
		return fmt.Errorf("compose: %w", err)
	}
	c.mesh = mesh
	c.builds = make(map[subject.Module]*records.Build, len(builds))
	for _, b := range builds {
		c.builds[b.Module] = b
	}
	c.nodes = make(map[subject.Node]*state, len(all))
	c.on = make(map[subject.Module]map[subject.Node]struct{}, len(builds))
	c.stale = make(map[subject.Node]struct{})
	c.dirty = true
	for _, in := range all {
		if err := c.put(ctx, in); err != nil {
			return fmt.Errorf("compose: %w", err)
		}
	}
	if err := c.remember(); err != nil {
		return fmt.Errorf("compose: %w", err)
	}
	for _, s := range c.nodes { // what was declared last is not read again for this
		if len(s.members) > 0 && s.in.Declared.Seq > 0 {
			c.inForce(s, s.members)
		}
	}
	c.mark, c.loaded = mark, true
	return nil
}

// put keeps a node's inputs; whatever was composed from older ones is not clean any more.
func (c *Composer) put(ctx context.Context, in records.Inputs) error {
	s := &state{in: in}
	for _, p := range in.Placed {
		if c.builds[p.Module] == nil { // registered after the modules were read
			b, err := c.store.Module(ctx, p.Module)
			if err != nil {
				return err
			}
			c.builds[p.Module] = b
		}
		c.join(p.Module, in.Node.Name)
	}
	if old := c.nodes[in.Node.Name]; old != nil {
		s.fetch, s.members, s.inForce = old.fetch, old.members, old.inForce
		if len(s.members)+len(s.inForce) > 0 {
			c.stale[in.Node.Name] = struct{}{}
		}
	}
	c.nodes[in.Node.Name] = s
	c.refetch(s)
	return nil
}

// reload reads one node again.
func (c *Composer) reload(ctx context.Context, name subject.Node) error {
	if old := c.nodes[name]; old != nil {
		for _, p := range old.in.Placed {
			c.leave(p.Module, name)
		}
	}
	in, err := c.store.Inputs(ctx, name)
	if errors.Is(err, records.ErrUnknown) {
		delete(c.nodes, name)
		c.dirty = true
		return nil
	}
	if err != nil {
		return err
	}
	return c.put(ctx, in)
}

// rebuild takes in another current build of a module.
func (c *Composer) rebuild(ctx context.Context, m subject.Module) error {
	b, err := c.store.Module(ctx, m)
	if err != nil {
		return err
	}
	was := c.onBus(m)
	c.builds[m] = b
	c.dirty = c.dirty || was || c.onBus(m) // its verbs are rights of people
	for name := range c.on[m] {
		s := c.nodes[name]
		if was || c.onBus(m) {
			c.stale[name] = struct{}{}
		}
		s.clean = false
		s.since++
		c.refetch(s)
	}
	return nil
}

// refetch derives what the node may fetch; another list is another user list.
func (c *Composer) refetch(s *state) {
	var now []string
	for _, p := range s.in.Placed {
		b := c.builds[p.Module]
		now = addDigests(now, b.Artifact, b.Images, s.in.Facts.Arch)
	}
	all := fetchable(now, s.in.Declared.Artifacts, s.in.Declared.Before)
	if !slices.Equal(all, s.fetch) {
		s.fetch = all
		c.dirty = true
	}
}
