// Package bus is the link of one principal to the bus: connecting for ever, publishing what is kept,
// asking, following a subject, and noticing at once what the bus refuses (BUS-8, BUS-9, BUS-11). It
// also derives every stream and consumer of the mesh (BUS-4). It owns its connection's goroutines;
// Close ends them.
package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"mesh/shared/clock"
	"mesh/shared/credential"
	"mesh/shared/refusal"
	"mesh/shared/subject"
)

const (
	// PublishBound is how long a publish to a stream may wait: the server never acknowledges one it
	// refuses (BUS-8).
	PublishBound = 10 * time.Second
	// reconnectMin and reconnectMax bound the pauses between tries; each is jittered (BUS-11).
	reconnectMin = 250 * time.Millisecond
	reconnectMax = 30 * time.Second
	// pingEvery keeps mappings of carrier NAT alive, which last some 25 s (facts/practice.md §10).
	pingEvery = 20 * time.Second
	// connectBound is for one try, TLS included; a storm of thousands takes seconds a handshake.
	connectBound = 20 * time.Second
)

// Options say who connects to what.
type Options struct {
	Bus  credential.Bus
	Seed credential.Seed
	// Principal is the label of the inbox prefix (credential.File.Principal).
	Principal string
	// Name is shown in the server's lists of connections.
	Name string
	// InProcess connects without a socket; Bus is not used then.
	InProcess nats.InProcessConnProvider
	// Plain connects without TLS; for floors in benchmarks only.
	Plain bool
	// Once gives up after the first try that fails and never reconnects: for commands.
	Once bool
	// Lazy has Connect return before the first try: for who must not wait while the bus cannot be reached.
	Lazy  bool
	Clock clock.Clock
	Log   *slog.Logger

	bound time.Duration // of one try to connect; 0 means connectBound
}

// Conn is one principal's connection.
type Conn struct {
	nc        *nats.Conn
	dialer    *dialer
	principal string
	log       *slog.Logger

	clk   clock.Clock
	once  bool
	bound time.Duration // PublishBound

	// turn is held while the functions of OnState are called, so that each hears the changes in their
	// order. It is taken before mu.
	turn sync.Mutex

	mu      sync.Mutex // guards the fields below
	waiters map[string]map[*waiter]struct{}
	follows map[*follow]struct{}
	onState map[int]func(up bool)
	nextUp  int
	since   time.Time
	up      bool
	told    bool // setUp was called
	lastErr error
	heard   error // the last refusal asyncError was given
	deaf    error // why no answer can reach this connection, until the next one
	deafAt  time.Time
	said    map[string]struct{} // what asyncError logged since the last connect, saidMax at most
}

// saidMax bounds the different errors that are logged in one connection's life; the same one is logged once.
const saidMax = 64

type waiter struct{ cancel context.CancelCauseFunc }

// ErrRefused is met by errors.Is when the bus refused a publish, subscription or request.
var ErrRefused = errors.New("the bus refused")

// ErrAway is met by errors.Is when there is no connection now.
var ErrAway = errors.New("the bus is away")

// Connect connects. Without Once it returns at once and goes on trying for ever, also after an
// authorization violation: the user list that lets a new principal in may still be on its way.
func Connect(ctx context.Context, o Options) (*Conn, error) {
	if o.Clock == nil {
		o.Clock = clock.Real()
	}
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	c := &Conn{principal: o.Principal, log: o.Log, clk: o.Clock, once: o.Once, bound: PublishBound, since: o.Clock.Now(),
		waiters: map[string]map[*waiter]struct{}{}, follows: map[*follow]struct{}{}, onState: map[int]func(bool){}, said: map[string]struct{}{}}
	c.dialer = newDialer(ctx, cmp.Or(o.bound, connectBound), o.Lazy && !o.Once && o.InProcess == nil)
	if c.dialer.lazy {
		c.lastErr = errLater
	}
	opts, err := c.options(o)
	if err != nil {
		return nil, fmt.Errorf("connect to the bus: %w", err)
	}
	leave := context.AfterFunc(ctx, c.dialer.end) // who asked does not wait for a silent peer any more
	c.nc, err = nats.Connect(urls(o), opts...)
	if !leave() {
		if err == nil {
			c.nc.Close()
		}
		err = ctx.Err()
	}
	if err != nil {
		c.dialer.end()
		return nil, connectError(o, err)
	}
	if c.dialer.lazy {
		return c, nil // to ask the client waits for the try that has just begun
	}
	if c.nc.IsConnected() {
		c.firstUp()
	}
	return c, nil
}

func urls(o Options) string {
	if o.InProcess != nil {
		return nats.DefaultURL // not dialled
	}
	scheme := "tls://"
	if o.Plain {
		scheme = "nats://"
	}
	list := make([]string, len(o.Bus.Addresses))
	for i, a := range o.Bus.Addresses {
		list[i] = scheme + a
	}
	return strings.Join(list, ",")
}

func (c *Conn) options(o Options) ([]nats.Option, error) {
	public, err := o.Seed.Public()
	if err != nil {
		return nil, fmt.Errorf("the credential's seed: %w", err)
	}
	opts := []nats.Option{
		nats.Name(o.Name),
		nats.Nkey(public, o.Seed.Sign),
		nats.CustomInboxPrefix(subject.Inbox(o.Principal)),
		nats.Timeout(cmp.Or(o.bound, connectBound)),
		nats.PingInterval(pingEvery), nats.MaxPingsOutstanding(2),
		// What must not be lost waits in an outbox, not in the client: a publish without a connection
		// fails at once.
		nats.ReconnectBufSize(-1),
		nats.ErrorHandler(c.asyncError),
		nats.ConnectHandler(func(*nats.Conn) { c.setUp(true, nil) }),
		nats.ReconnectHandler(func(*nats.Conn) { c.setUp(true, nil) }),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { c.setUp(false, err) }),
		nats.ClosedHandler(func(nc *nats.Conn) { c.setUp(false, nc.LastError()); c.kickAll() }),
	}
	if o.Once {
		opts = append(opts, nats.NoReconnect())
	} else {
		opts = append(opts,
			nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort(),
			nats.CustomReconnectDelay(c.dialer.pause),
			nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { c.noteErr(err) }))
	}
	if o.InProcess == nil {
		opts = append(opts, nats.SetCustomDialer(c.dialer))
	}
	switch {
	case o.InProcess != nil:
		opts = append(opts, nats.InProcessServer(o.InProcess))
	case !o.Plain:
		t, err := o.Bus.ClientTLS(o.Clock.Now)
		if err != nil {
			return nil, err
		}
		opts = append(opts, nats.Secure(t))
	}
	return opts, nil
}

// Pause is how long to wait before try number attempts (from 1): growing, and random over its whole
// length, so that a fleet that lost the bus at one instant does not come back at one.
func Pause(attempts int) time.Duration {
	d := reconnectMax
	if attempts < 8 {
		d = min(reconnectMin<<max(attempts-1, 0), reconnectMax)
	}
	return d/2 + rand.N(d/2)
}

func connectError(o Options, err error) error {
	at := strings.Join(o.Bus.Addresses, ", ")
	switch {
	case errors.Is(err, credential.ErrImpostor):
		return refusal.New("the bus at "+at, "it is not the one this credential was made for: "+err.Error(), "check the address; if the mesh was made anew, ask for a new credential")
	case errors.Is(err, nats.ErrAuthorization):
		return fmt.Errorf("%w: %w", ErrRefused, refusal.New("this credential, by the bus at "+at, "the bus does not know its key: it was removed, has ended, or is of another mesh", "ask for a new one from whoever runs the mesh"))
	}
	return fmt.Errorf("%w: no connection to %s: %w", ErrAway, at, err)
}

// Close ends the connection, or the try to make it.
func (c *Conn) Close() {
	if !c.isUp() {
		c.dialer.end()
	}
	c.nc.Close()
	c.dialer.end()
}

// isUp is what the client told last. To ask the client itself waits while it makes a connection.
func (c *Conn) isUp() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.up
}

// NATS is the connection beneath, for what this package does not wrap.
func (c *Conn) NATS() *nats.Conn { return c.nc }

// Principal is the label the connection was made with.
func (c *Conn) Principal() string { return c.principal }

// State says whether the bus is reached, since when, and the last error while it is not.
func (c *Conn) State() (up bool, since time.Time, last error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.up, c.since, c.lastErr
}

// OnUp calls fn at each connect and reconnect, and now when connected, until remove is called. fn must
// not block.
func (c *Conn) OnUp(fn func()) (remove func()) {
	return c.OnState(func(up bool) {
		if up {
			fn()
		}
	})
}

// OnState calls fn each time the bus comes or goes, and now, in that order, until remove is called. fn
// must not block, nor call OnState or OnUp; a call under way may end after remove.
func (c *Conn) OnState(fn func(up bool)) (remove func()) {
	c.turn.Lock()
	defer c.turn.Unlock()
	c.mu.Lock()
	id := c.nextUp
	c.nextUp++
	c.onState[id] = fn
	up := c.up
	c.mu.Unlock()
	fn(up)
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.onState, id)
	}
}

// firstUp makes the state known before Connect returns; the handlers come later, and may have come
// already with newer news.
func (c *Conn) firstUp() {
	c.turn.Lock()
	defer c.turn.Unlock()
	c.mu.Lock()
	told := c.told
	c.mu.Unlock()
	if !told {
		c.change(true, nil)
	}
}

func (c *Conn) setUp(up bool, err error) {
	c.turn.Lock()
	defer c.turn.Unlock()
	c.change(up, err)
}

// change notes the state and tells of it when it is another. It holds turn.
func (c *Conn) change(up bool, err error) {
	c.mu.Lock()
	changed := c.up != up
	c.up, c.told = up, true
	if changed {
		c.since = c.clk.Now()
	}
	if up {
		c.deaf, c.lastErr = nil, nil
		clear(c.said)
	} else {
		if err != nil {
			c.note(err)
		}
		// The answer would go to the connection that is gone.
		c.cancelWaiters("", fmt.Errorf("%w: the link went down before the answer came", ErrAway))
	}
	var fns []func(bool)
	if changed {
		for _, id := range slices.Sorted(maps.Keys(c.onState)) {
			fns = append(fns, c.onState[id])
		}
	}
	c.mu.Unlock()
	if changed {
		c.log.Info("bus link", "up", up, "err", err)
	}
	for _, fn := range fns {
		fn(up)
	}
}

func (c *Conn) noteErr(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.note(err)
}

// errStranger is why the bus is away for a key it does not know.
var errStranger = fmt.Errorf("%w this key: it was removed from the mesh, or is of another one", ErrRefused)

// note keeps why the bus is away. A bus that knows a key no longer says so and hangs up: that it hung up
// must not hide why. It holds mu.
func (c *Conn) note(err error) {
	switch {
	case errors.Is(err, nats.ErrAuthorization):
		c.lastErr = errStranger
	case !errors.Is(err, io.EOF) || !errors.Is(c.lastErr, errStranger):
		c.lastErr = err
	}
}

// Probe makes a connection of its own, sees it answer, and closes it: proof that new flows to the bus
// pass, which an established one is not (NET-7).
func Probe(ctx context.Context, o Options) error {
	ctx, cancel := context.WithTimeout(ctx, PublishBound) // the client refuses a context without a deadline
	defer cancel()
	at, _ := ctx.Deadline()
	o.Once, o.bound = true, at.Sub(clock.Real().Now()) // a deadline is real time, whatever the clock
	c, err := Connect(ctx, o)
	if err != nil {
		return err
	}
	defer c.Close()
	return c.nc.FlushWithContext(ctx)
}
