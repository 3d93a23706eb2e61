package compose

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"mesh/coordinator/records"
	"mesh/shared/clock"
	"mesh/shared/credential"
	"mesh/shared/declaration"
	"mesh/shared/grant"
	"mesh/shared/refusal"
	"mesh/shared/subject"
)

// batch is how many nodes are composed, committed and emitted at once: large enough that a commit's
// sync costs little a node, small enough that the first nodes are sent early.
const batch = 1024

// Options are what a Composer needs beside the records.
type Options struct {
	Signer *credential.Signer
	// Coordinator is the coordinator's own public key on the bus.
	Coordinator string
	// Host is the machine it runs on.
	Host   Host
	Rights Rights
	// OnNodes says what a role may ask of every machine; nil for nothing.
	OnNodes func(role records.Role) []grant.OnNode
	Clock   clock.Clock
	// Workers bounds the goroutines; 0: one a core.
	Workers int
}

// Composed is what composing a node came to.
type Composed struct {
	Node subject.Node
	// Seq is its declaration's number.
	Seq  uint64
	Hash [32]byte
	// Changed: the content is new, and so is the seq. Otherwise seq and signed text are those of the last.
	Changed bool
	// Builds are the builds it carries, by module, for the record of the send (PSH-3).
	Builds map[subject.Module]string
	Left   []Left
	// Err says why there is no declaration for this node; the others stand.
	Err error

	content   []byte
	artifacts []string
	signed    declaration.Signed
	packed    records.Packed
	// of is what it was composed from, when that had changed since times.
	of    *state
	since int
}

// Composer composes from a store.
type Composer struct {
	store *records.Store
	o     Options

	// turn has capacity 1: who holds it gives seqs.
	turn chan struct{}

	mu     sync.Mutex // guards what follows; held while the records are read, for they are read into it
	loaded bool
	mark   uint64
	mesh   records.Mesh
	nodes  map[subject.Node]*state
	on     map[subject.Module]map[subject.Node]struct{}
	builds map[subject.Module]*records.Build
	stale  map[subject.Node]struct{} // whose memberships may be others

	users   []grant.Principal
	dirty   bool      // users is to be made again
	made    time.Time // when users was made
	until   time.Time // when users changes by itself
	version uint64    // of users
}

// state is what is kept of a node.
type state struct {
	in records.Inputs
	// fetch is what it may fetch.
	fetch []string
	// since counts how often what it is composed from changed in place.
	since int
	// clean: composing it would give in.Declared again, with this left out.
	clean bool
	left  []Left
	// members are its instances on the bus as they would be declared now, inForce those of its last declaration.
	members, inForce []member
}

// New makes a Composer; it reads the records when it is asked first.
func New(store *records.Store, o Options) *Composer {
	if o.Workers == 0 {
		o.Workers = runtime.GOMAXPROCS(0)
	}
	return &Composer{store: store, o: o, turn: make(chan struct{}, 1)}
}

// Node composes one node, with a new seq when its content is new; that is kept when it returns, and on disk
// with the next synced write of the records (records.Store.KeepDeclared).
func (c *Composer) Node(ctx context.Context, name subject.Node) (Composed, error) {
	var one Composed
	err := c.Nodes(ctx, []subject.Node{name}, func(all []Composed) error { one = all[0]; return nil })
	if err != nil {
		return Composed{}, err
	}
	return one, one.Err
}

// Nodes composes the nodes named and hands them to emit in batches, each once it is kept, as Node does. An unknown
// name refuses the whole before anything is composed; so does an empty selection (PSH-11). Nothing else
// gives seqs until it returns: emit must not compose.
func (c *Composer) Nodes(ctx context.Context, names []subject.Node, emit func([]Composed) error) error {
	if len(names) == 0 {
		return refusal.New("an empty selection of nodes", "nothing is named, and nothing never means all", "name the nodes")
	}
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := c.know(ctx, names); err != nil {
		return err
	}
	var done []Composed
	for part := range slices.Chunk(names, batch) {
		next, err := c.step(ctx, done, part)
		if err == nil && len(done) > 0 {
			err = emit(done)
		}
		if err != nil {
			return err
		}
		done = next
	}
	if _, err := c.step(ctx, done, nil); err != nil {
		return err
	}
	return emit(done)
}

// All composes every node, as Nodes does. A mesh without nodes emits nothing.
func (c *Composer) All(ctx context.Context, emit func([]Composed) error) error {
	names, err := c.Names(ctx)
	if err != nil || len(names) == 0 {
		return err
	}
	return c.Nodes(ctx, names, emit)
}

// Names are the nodes of the mesh, sorted.
func (c *Composer) Names(ctx context.Context) ([]subject.Node, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.refresh(ctx); err != nil {
		return nil, err
	}
	names := make([]subject.Node, 0, len(c.nodes))
	for n := range c.nodes {
		names = append(names, n)
	}
	slices.Sort(names)
	return names, nil
}

// Text is the signed declaration: the new one, or the last one as the records keep it.
func (c *Composer) Text(ctx context.Context, d Composed) (declaration.Signed, error) {
	if d.Err != nil {
		return nil, d.Err
	}
	if d.signed != nil {
		return d.signed, nil
	}
	text, seq, err := c.store.DeclaredText(ctx, d.Node)
	if err != nil {
		return nil, err
	}
	if seq != d.Seq {
		return nil, fmt.Errorf("the declaration of %s is %d by now, not %d: %w", d.Node, seq, d.Seq, records.ErrStale)
	}
	return text, nil
}

// know refuses unknown names.
func (c *Composer) know(ctx context.Context, names []subject.Node) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.refresh(ctx); err != nil {
		return err
	}
	for _, n := range names {
		if c.nodes[n] == nil {
			_, err := c.store.Node(ctx, n) // refuses with the one probably meant
			if err == nil {
				err = fmt.Errorf("node %s: %w", n, records.ErrUnknown)
			}
			return err
		}
	}
	return nil
}

// step keeps what was composed, and composes the next nodes meanwhile. A node removed meanwhile is left
// out. Its caller has the turn.
func (c *Composer) step(ctx context.Context, done []Composed, names []subject.Node) ([]Composed, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.refresh(ctx); err != nil {
		return nil, err
	}
	var fresh []records.NewDeclared
	for i := range done {
		if d := &done[i]; d.Changed {
			fresh = append(fresh, records.NewDeclared{Node: d.of.in.Node, Seq: d.Seq, Hash: d.Hash, Artifacts: d.artifacts, Text: d.packed})
		}
	}
	kept := make(chan error, 1)
	go func() { kept <- c.store.KeepDeclared(ctx, fresh) }() // awaited below
	next := c.work(names, toSend)
	if err := <-kept; err != nil {
		c.loaded = false
		return nil, err
	}
	now := c.o.Clock.Now()
	for i := range done {
		c.settle(&done[i], now)
	}
	return next, nil
}

// settle notes what became of a node. Its inputs may be other ones since it was composed.
func (c *Composer) settle(d *Composed, now time.Time) {
	s := c.nodes[d.Node]
	if d.Err != nil || s == nil || s.in.Node.Key != d.of.in.Node.Key {
		return
	}
	if s == d.of && s.since == d.since {
		s.clean, s.left = true, d.Left
		if len(s.members)+len(s.inForce) > 0 {
			c.inForce(s, s.members)
		}
	}
	if !d.Changed {
		return
	}
	last := s.in.Declared
	s.in.Declared = records.Declared{Seq: d.Seq, Hash: d.Hash, Composed: now, Sent: last.Sent, Artifacts: d.artifacts, Before: last.Before}
	if !slices.Equal(d.artifacts, last.Artifacts) {
		s.in.Declared.Before = last.Artifacts
	}
	s.in.Base = max(s.in.Base, d.Seq)
	c.refetch(s)
}

// purpose is what composing is for.
type purpose int

const (
	toCompare purpose = iota // only whether the content is new
	toShow                   // new contents are kept to be looked at
	toSend                   // new contents are signed with their seq
)

// work composes names side by side.
func (c *Composer) work(names []subject.Node, p purpose) []Composed {
	out := make([]Composed, 0, len(names))
	for _, n := range names {
		if c.nodes[n] != nil {
			out = append(out, Composed{Node: n})
		}
	}
	const stride = 16 // nodes a worker takes at once
	var next atomic.Int64
	worker := func() {
		var buf []byte
		for {
			end := int(next.Add(stride))
			for i := end - stride; i < min(end, len(out)); i++ {
				buf = c.one(&out[i], buf[:0], p)
			}
			if end >= len(out) {
				return
			}
		}
	}
	workers := min(c.o.Workers, (len(out)+stride-1)/stride)
	if workers <= 1 {
		worker()
		return out
	}
	var wg sync.WaitGroup
	for range workers {
		wg.Go(worker) // ends when out is used up
	}
	wg.Wait()
	return out
}

// one composes d, with buf for its content, and returns buf for the next. It reads c only.
func (c *Composer) one(d *Composed, buf []byte, p purpose) []byte {
	s := c.nodes[d.Node]
	d.of, d.since = s, s.since
	d.Seq, d.Hash = s.in.Declared.Seq, s.in.Declared.Hash
	if s.clean {
		d.Left = s.left
		d.Builds = c.buildsOf(s)
		return buf
	}
	v, err := c.view(s)
	if err != nil {
		d.Err = err
		return buf
	}
	content, left := Content(v)
	d.Left = left
	if buf, d.Err = declaration.AppendContent(buf, content); d.Err != nil {
		return buf
	}
	d.Builds = make(map[subject.Module]string, len(content.Modules))
	for _, m := range content.Modules {
		d.Builds[m.Name] = m.Build
	}
	d.artifacts = Artifacts(content)
	d.Hash = c.hash(buf)
	if d.Changed = s.in.Declared.Seq == 0 || d.Hash != s.in.Declared.Hash || s.in.Base > s.in.Declared.Seq; !d.Changed {
		return buf
	}
	d.Seq = s.in.Base + 1
	switch p {
	case toCompare:
	case toShow:
		d.content = slices.Clone(buf)
	case toSend:
		if d.Err = c.sign(d, buf); d.Err != nil {
			d.Changed, d.Seq = false, s.in.Declared.Seq
		}
	}
	return buf
}

func (c *Composer) sign(d *Composed, content []byte) error {
	var err error
	head := declaration.Head{Format: declaration.Format, Mesh: c.mesh.ID, Node: d.Node, Seq: d.Seq}
	if d.signed, err = declaration.SignContent(c.o.Signer, head, content); err != nil {
		return fmt.Errorf("declare %s: %w", d.Node, err)
	}
	d.packed = records.Pack(d.signed)
	return nil
}

// hash is equal for equal contents of one mesh under one signer: another signer makes everything new.
func (c *Composer) hash(content []byte) (sum [32]byte) {
	h := sha256.New()
	h.Write([]byte(c.o.Signer.Verifier())) // a hash never fails
	h.Write([]byte{0, declaration.Format})
	h.Write([]byte(c.mesh.ID))
	h.Write([]byte{0})
	h.Write(content)
	h.Sum(sum[:0])
	return sum
}

// buildsOf are the builds in the node's last declaration, which is up to date.
func (c *Composer) buildsOf(s *state) map[subject.Module]string {
	all := make(map[subject.Module]string, len(s.in.Placed))
	for _, p := range s.in.Placed {
		all[p.Module] = c.builds[p.Module].ID
	}
	for _, l := range s.left {
		if l.What == moduleLeft {
			delete(all, l.Module)
		}
	}
	return all
}

// view decodes what is kept of a node.
func (c *Composer) view(s *state) (View, error) {
	n := &s.in.Node
	v := View{Node: n.Name, Bus: c.mesh.Bus, Drift: n.Drift, Tunnel: n.Tunnel, Admin: n.Admin, Inside: n.Inside, Converge: n.Converge, Takes: n.Takes, Keeps: n.Keeps, Facts: s.in.Facts, Remove: s.in.Remove,
		Modules: make([]Instance, len(s.in.Placed))}
	if n.MachineID != "" && n.MachineID == c.o.Host.MachineID {
		v.Served = c.o.Host.openings(c.mesh.Bus.Addresses)
	}
	for i, p := range s.in.Placed {
		settings, err := records.Texts[string](p.Settings)
		if err != nil {
			return v, fmt.Errorf("settings of %s on %s: %w", p.Module, n.Name, err)
		}
		secrets, err := records.Texts[credential.Sealed](p.Secrets)
		if err != nil {
			return v, fmt.Errorf("secrets of %s on %s: %w", p.Module, n.Name, err)
		}
		v.Modules[i] = Instance{c.builds[p.Module], settings, secrets, s.membership(p.Module)}
	}
	return v, nil
}

// Principals are all who shall be on the bus's user list, and a version that is equal while they are:
// who has applied that version has nothing to do. The slice is shared: do not write to it.
func (c *Composer) Principals(ctx context.Context) ([]grant.Principal, uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.refresh(ctx); err != nil {
		return nil, 0, err
	}
	now := c.o.Clock.Now()
	// A clock that was put back counts too: who left the list by a wrong hour is on it again.
	if !c.dirty && !now.Before(c.made) && (c.until.IsZero() || now.Before(c.until)) {
		return c.users, c.version, nil
	}
	operators, errO := c.store.Operators(ctx)
	invitations, errI := c.store.Invitations(ctx)
	if err := errors.Join(errO, errI); err != nil {
		return nil, 0, fmt.Errorf("compose the bus's users: %w", err)
	}
	u := Users{Coordinator: c.o.Coordinator, Operators: operators, Invitations: invitations, Now: now, Rights: c.o.Rights, OnNodes: c.o.OnNodes,
		Reads: c.reads(), Nodes: make([]NodeUser, 0, len(c.nodes))}
	for _, s := range c.nodes {
		u.Nodes = append(u.Nodes, NodeUser{s.in.Node.Name, s.in.Node.Key, s.fetch})
	}
	slices.SortFunc(u.Nodes, func(a, b NodeUser) int { return compareNodes(a.Name, b.Name) })
	c.users, c.made, c.until, c.dirty = c.withInstances(Principals(u)), now, nextLeave(invitations, now), false
	c.version++
	return c.users, c.version, nil
}

// withInstances adds the instances to all, by node and module.
func (c *Composer) withInstances(all []grant.Principal) []grant.Principal {
	var names []subject.Node
	for n, s := range c.nodes {
		if len(s.inForce) > 0 {
			names = append(names, n)
		}
	}
	slices.Sort(names)
	for _, n := range names {
		all = c.nodes[n].instances(all)
	}
	return all
}
