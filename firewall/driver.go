package firewall

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"mesh/firewall/internal/nfnetlink"
	"mesh/shared/clock"
	"mesh/shared/refusal"
)

const (
	// handoverTable holds the same rules while TableName itself has to be made anew, so that there
	// is no instant without one of them.
	handoverTable = TableName + "-handover"
	// warmUpTable makes the kernel track connections before the first load.
	warmUpTable = TableName + "-warmup"
	// warmUp is how long it does: a flow that only receives is known after its next packet.
	warmUp = 2 * time.Second
)

// Driver writes and reads mesh's table in the network namespace it was opened in. One method works
// at a time, the others wait.
type Driver struct {
	clock  clock.Clock
	kernel kernel
	turn   chan struct{} // holds one token: whoever has it uses the fields below
	flags  uint32        // those to give the table: owner and persist, or none
	trial  uint32        // those to give the table of a trial: owner, or none
	loaded bool          // this Driver has loaded a table before
	tidy   bool          // no table of a load that was cut short is left
	last   memory
	batch  []byte // of the transaction before, to write the next one over
}

// mostKept is the longest transaction whose bytes are kept for the next one: some 2,000 rules.
const mostKept = 2 << 20

// memory is the table as this Driver wrote or read it last: true for one generation of the rule set, since
// each commit of anybody makes another.
type memory struct {
	generation uint32 // 0: nothing is known
	layout     *found
	table      Table  // what the kernel held exactly; without chains it is not known
	print      uint64 // of the kernel's listing of it, 0: not read yet
}

// Option changes what Open makes.
type Option func(*Driver)

// WithClock sets the clock for the warm-up of a first load; without it that is the machine's.
func WithClock(c clock.Clock) Option { return func(d *Driver) { d.clock = c } }

// WithoutOwner leaves the table open to everybody, as kernels before 6.9 do.
func WithoutOwner() Option { return func(d *Driver) { d.flags, d.trial = 0, 0 } }

// Open returns a Driver for the network namespace of the calling thread. Where the kernel knows it
// (6.9), tables it loads belong to it alone until Close, and outlive it (NET-6).
func Open(options ...Option) (*Driver, error) {
	s, err := nfnetlink.Open()
	if err != nil {
		return nil, fmt.Errorf("open netfilter: %w", err)
	}
	d := &Driver{clock: clock.Real(), kernel: kernel{s}, turn: make(chan struct{}, 1)}
	d.turn <- struct{}{}
	for flags, give := range map[uint32]*uint32{tableOwner | tablePersist: &d.flags, tableOwner: &d.trial} {
		if *give, err = d.kernel.knows(flags); err != nil {
			return nil, errors.Join(fmt.Errorf("open netfilter: %w", err), s.Close())
		}
	}
	for _, o := range options {
		o(d)
	}
	return d, nil
}

// knows asks the kernel whether it knows tables with these flags, by a transaction that fails in any
// case. It returns flags, or 0.
func (k kernel) knows(flags uint32) (uint32, error) {
	const probe = TableName + "-probe"
	var w wire
	w.BeginBatch(0)
	w.newTable(probe, flags)
	w.simple(unix.NFT_MSG_DELCHAIN, probe, "never")
	w.EndBatch()
	err := k.Commit(w.B)
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return 0, nil
	case errors.Is(err, unix.ENOENT):
		return flags, nil
	}
	return 0, fmt.Errorf("ask for owned tables: %w", err)
}

// Close gives the table up: it stays in force, and the next Driver takes it over.
func (d *Driver) Close() error {
	<-d.turn
	defer func() { d.turn <- struct{}{} }()
	return d.kernel.Close()
}

// take waits for the turn.
func (d *Driver) take(ctx context.Context) (give func(), err error) {
	select {
	case <-d.turn:
		return func() { d.turn <- struct{}{} }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Load puts t in force in one transaction, in place. A first load on a machine that tracks no
// connections waits two seconds, so that flows under way are known (NET-6).
func (d *Driver) Load(ctx context.Context, t Table) error {
	return d.put(ctx, "load", t, d.load)
}

// put takes the turn and has do put t in force.
func (d *Driver) put(ctx context.Context, what string, t Table, do func(context.Context, Table) error) error {
	if len(t.chains) == 0 {
		return fmt.Errorf("%s packet filter: an empty table", what)
	}
	give, err := d.take(ctx)
	if err != nil {
		return err
	}
	defer give()
	if err := do(ctx, t); err != nil {
		return fmt.Errorf("%s packet filter: %w", what, err)
	}
	d.loaded = true
	return nil
}

// load has the turn.
func (d *Driver) load(ctx context.Context, t Table) error {
	have, err := d.known()
	if err != nil {
		return err
	}
	if d.last.table.chains != nil && d.last.table.digest == t.digest && d.owns(have) {
		return d.tidyUp()
	}
	if have != nil && have.owner != 0 && have.owner != d.kernel.Port() {
		return refusal.New("the table inet "+TableName, fmt.Sprintf("it belongs to another process (netlink port %d)", have.owner),
			"stop the other mesh-agent of this network namespace")
	}
	if have == nil {
		if err := d.warmOnce(ctx); err != nil {
			return err
		}
	}
	if d.mustRemake(have, t) {
		err = d.handover(t)
	} else {
		err = d.replace(TableName, d.flags, t)
	}
	if err != nil {
		return err
	}
	return d.tidyUp()
}

// tidyUp removes what a load, of this or of an earlier process, needed on its way.
func (d *Driver) tidyUp() error {
	if d.tidy {
		return nil
	}
	if err := errors.Join(d.drop(warmUpTable), d.drop(handoverTable)); err != nil {
		return err
	}
	d.tidy = true
	return nil
}

// known is the layout of the table there is, from memory where that still holds.
func (d *Driver) known() (*found, error) {
	generation, err := d.kernel.Generation()
	if err != nil {
		return nil, err
	}
	// An owner that goes leaves the generation as it is.
	others := d.last.layout != nil && d.last.layout.owner != 0 && d.last.layout.owner != d.kernel.Port()
	if d.last.generation == 0 || generation != d.last.generation || others {
		d.last = memory{}
		if d.last.layout, d.last.generation, err = d.steadyLayout(TableName); err != nil {
			d.last = memory{}
			return nil, err
		}
	}
	return d.last.layout, nil
}

// owns reports whether the table is this Driver's, as far as the kernel knows owners.
func (d *Driver) owns(have *found) bool {
	return have != nil && (d.flags == 0 || have.owner == d.kernel.Port())
}

// mustRemake reports whether have cannot become t in place: the hook of a chain is fixed, and a
// table without an owner cannot get one, but for an orphan.
func (d *Driver) mustRemake(have *found, t Table) bool {
	if have == nil {
		return false
	}
	if d.flags != 0 && have.flags&tablePersist == 0 || d.flags == 0 && have.flags&(tableOwner|tablePersist) != 0 {
		return true
	}
	for _, c := range t.chains {
		if got := have.chain(c.name); got != nil && !c.sameHook(got) {
			return true
		}
	}
	return false
}

// handover makes the table anew while a second one with the same rules is in force: only what both
// let in passes, and what neither does never did.
func (d *Driver) handover(t Table) error {
	d.tidy = false
	if err := d.replace(handoverTable, 0, t); err != nil {
		return fmt.Errorf("hand over: %w", err)
	}
	if err := d.drop(TableName); err != nil {
		return fmt.Errorf("hand over: %w", err)
	}
	return d.replace(TableName, d.flags, t)
}

// replace is the transaction: the table and its chains stay, rules and elements that are others are
// exchanged. It names the generation it was made for, so that nobody's change in between is missed.
func (d *Driver) replace(name string, flags uint32, t Table) error {
	for range 10 {
		at, err := d.recall(name)
		if err != nil {
			return err
		}
		d.last = memory{}
		batch := exchange(d.batch, name, flags, at, t)
		if d.batch = nil; cap(batch) <= mostKept {
			d.batch = batch
		}
		err = d.kernel.Commit(batch)
		if errors.Is(err, unix.ERESTART) {
			continue
		}
		if errors.Is(err, unix.ENOBUFS) { // the answer is lost, not the transaction
			return d.judge(name, t)
		}
		if err != nil {
			return err
		}
		if name == TableName {
			d.last = memory{generation: at.generation + 1, layout: t.layout(flags, d.kernel.Port()), table: t}
		}
		return nil
	}
	return nfnetlink.ErrInterrupted
}

// recall is what is known of a table, read where it has to be.
func (d *Driver) recall(name string) (memory, error) {
	if m := d.last; name == TableName && m.generation != 0 {
		if m.layout == nil || m.layout.counted {
			return m, nil
		}
		return m, d.kernel.count(name, m.layout)
	}
	layout, generation, err := d.steadyLayout(name)
	return memory{generation: generation, layout: layout}, err
}

// judge reads back what became of a transaction whose answer was lost.
func (d *Driver) judge(name string, t Table) error {
	have, _, err := d.kernel.read(name, true)
	if err != nil {
		return err
	}
	if why := t.differs(have); why != "" {
		return errors.New("the kernel's answer was lost, and " + why)
	}
	return nil
}

func (d *Driver) steadyLayout(name string) (have *found, generation uint32, err error) {
	generation, err = d.kernel.steady(func() (err error) {
		have, err = d.kernel.layout(name)
		return err
	})
	return have, generation, err
}

// Differs says in a few words where the kernel's table is not exactly want, and "" where it is. When
// nobody has committed anything since the last look, that costs one question (a few microseconds).
func (d *Driver) Differs(ctx context.Context, want Table) (string, error) {
	drift, err := d.Drift(ctx, want)
	return drift.What, err
}

// Drift is Differs that also says of what kind the difference is.
func (d *Driver) Drift(ctx context.Context, want Table) (Drift, error) {
	give, err := d.take(ctx)
	if err != nil {
		return Drift{}, err
	}
	defer give()
	generation, err := d.kernel.Generation()
	if err != nil {
		return Drift{}, fmt.Errorf("read packet filter: %w", err)
	}
	// What was known of the table, if it is what is wanted.
	was := d.last
	if was.table.chains == nil || was.table.digest != want.digest {
		was = memory{}
	}
	if was.generation == generation && d.owns(was.layout) {
		return Drift{}, nil
	}
	drift, err := d.readBack(want, was)
	if err != nil {
		return Drift{}, fmt.Errorf("read packet filter: %w", err)
	}
	return drift, nil
}

// readBack compares the kernel's table with want. A listing that is byte for byte the one that was want
// before is it again, and is not looked into.
func (d *Driver) readBack(want Table, was memory) (Drift, error) {
	var have *found
	var print uint64
	read := func(decode bool) (uint32, error) {
		return d.kernel.steady(func() (err error) {
			have, print, err = d.kernel.read(TableName, decode)
			return err
		})
	}
	if was.print != 0 {
		generation, err := read(false)
		if err != nil {
			return Drift{}, err
		}
		if print == was.print {
			was.generation = generation
			d.last = was
			return Drift{}, nil
		}
	}
	generation, err := read(true)
	if err != nil {
		return Drift{}, err
	}
	if drift := want.drift(have); drift.What != "" {
		return drift, nil
	}
	if !d.owns(have) {
		return Drift{What: "nobody owns the table"}, nil
	}
	d.last = memory{generation: generation, layout: have.outline(), table: want, print: print}
	return Drift{}, nil
}

// Delete removes mesh's table and whatever a load that was cut short left behind.
func (d *Driver) Delete(ctx context.Context) error {
	give, err := d.take(ctx)
	if err != nil {
		return err
	}
	defer give()
	d.last = memory{}
	if err := errors.Join(d.drop(TableName), d.drop(handoverTable), d.drop(warmUpTable), d.drop(trialTable), d.drop(BootTable)); err != nil {
		return fmt.Errorf("delete packet filter: %w", err)
	}
	return nil
}

// drop deletes a table if it is there.
func (d *Driver) drop(name string) error {
	if there, err := d.kernel.has(name); !there || err != nil {
		return err
	}
	var w wire
	w.BeginBatch(0)
	w.simple(unix.NFT_MSG_DELTABLE, name, "")
	w.EndBatch()
	d.last = memory{}
	if err := d.kernel.Commit(w.B); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

// trackingConnections reports whether the kernel knows connections of this network namespace: then
// some rule already uses conntrack.
func trackingConnections() bool {
	b, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")
	if err != nil {
		return false
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	return err == nil && n > 0
}

// warmOnce is warm where nothing tracks connections yet: no table of mesh's, and none of anybody else.
func (d *Driver) warmOnce(ctx context.Context) error {
	if d.loaded || trackingConnections() {
		return nil
	}
	if boot, err := d.kernel.has(BootTable); boot || err != nil {
		return err
	}
	return d.warm(ctx)
}

// warm makes the kernel track connections for two seconds by rules that accept everything. Without
// it the next packet of a download under way looks like a new connection from outside.
func (d *Driver) warm(ctx context.Context) error {
	match := []term{ctState("established,related", ctEstablished|ctRelated)}
	t := Table{chains: []chain{
		{name: "input", hook: hookInput, lines: []line{{match: match, verdict: accept}}},
		{name: "forward", hook: hookForward, lines: []line{{match: match, verdict: accept}}},
	}}
	d.tidy = false
	if err := d.replace(warmUpTable, 0, t); err != nil {
		return fmt.Errorf("warm up: %w", err)
	}
	select {
	case <-d.clock.After(warmUp):
		return nil
	case <-ctx.Done():
		return errors.Join(ctx.Err(), d.drop(warmUpTable))
	}
}
