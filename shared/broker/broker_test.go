package broker_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"mesh/shared/broker"
	"mesh/shared/bus"
	"mesh/shared/clock"
	"mesh/shared/credential"
	"mesh/shared/grant"
	"mesh/shared/subject"
	"mesh/shared/waitfor"
)

// people are principals with their seeds.
type people struct {
	all   []grant.Principal
	seeds map[string]credential.Seed
}

func (p *people) add(t testing.TB, one grant.Principal) grant.Principal {
	t.Helper()
	seed, err := credential.NewUser(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if one.Key, err = seed.Public(); err != nil {
		t.Fatal(err)
	}
	if p.seeds == nil {
		p.seeds = map[string]credential.Seed{}
	}
	p.seeds[one.Label()] = seed
	p.all = append(p.all, one)
	return one
}

func (p *people) list(t testing.TB) grant.List {
	t.Helper()
	l, left, err := grant.Compose(p.all)
	if err != nil || len(left) > 0 {
		t.Fatalf("compose: %v, left out %v", err, left)
	}
	return l
}

func mesh(t testing.TB, nodes ...string) *people {
	t.Helper()
	p := &people{}
	p.add(t, grant.Principal{Kind: grant.Coordinator})
	for _, n := range nodes {
		p.add(t, grant.Principal{Kind: grant.Node, Name: n})
	}
	return p
}

// run starts a broker without TLS and stops it with the test.
func run(t testing.TB, cfg broker.Config, l grant.List) *broker.Broker {
	t.Helper()
	b, err := broker.Start(t.Context(), cfg, l)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, b) })
	return b
}

func stop(t testing.TB, b *broker.Broker) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := b.Stop(ctx); err != nil {
		t.Error(err)
	}
}

// client counts what happened to one connection.
type client struct {
	*bus.Conn
	mu    sync.Mutex // guards downs
	downs int
}

func (c *client) lost() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.downs
}

func (p *people) connect(t testing.TB, b *broker.Broker, label string) *client {
	t.Helper()
	conn, err := bus.Connect(t.Context(), bus.Options{Bus: credential.Bus{Addresses: []string{b.Address()}}, Plain: true, Seed: p.seeds[label], Principal: label, Name: label})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	c := &client{Conn: conn}
	waitfor.True(t, label+" connected", 10*time.Second, func() (bool, any) {
		up, _, err := conn.State()
		return up, err
	})
	conn.OnState(func(up bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !up {
			c.downs++
		}
	})
	return c
}

func refused(t *testing.T, c *client, sub string) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := c.Ask(ctx, nats.NewMsg(sub))
	if !errors.Is(err, bus.ErrRefused) && !errors.Is(err, nats.ErrNoResponders) && err != nil {
		t.Fatalf("ask %s: %v", sub, err)
	}
	return errors.Is(err, bus.ErrRefused)
}

func apply(t *testing.T, b *broker.Broker, l grant.List, want bool) {
	t.Helper()
	changed, err := b.Apply(l)
	if err != nil || changed != want {
		t.Fatalf("Apply = %v, %v, want %v", changed, err, want)
	}
}

// MEM-3: an unchanged list causes no reload. The server says each reload in its log.
func TestAnUnchangedListCausesNoReload(t *testing.T) {
	p := mesh(t, "n1")
	var log logged
	b := run(t, broker.Config{Listen: "127.0.0.1:0", Store: t.TempDir(), Log: log.logger()}, p.list(t))
	p.all[0], p.all[1] = p.all[1], p.all[0]
	apply(t, b, p.list(t), false)
	if n := log.count("Reloaded server configuration"); n != 0 {
		t.Errorf("an unchanged list was reloaded %d times", n)
	}
	p.add(t, grant.Principal{Kind: grant.Node, Name: "n2"})
	apply(t, b, p.list(t), true)
	if n := log.count("Reloaded server configuration"); n != 1 {
		t.Errorf("a changed list was reloaded %d times: this test is blind", n)
	}
	if b.Digest() != p.list(t).Digest() {
		t.Error("the digest is not that of the list in force")
	}
}

func TestWhoIsNotConcernedStaysConnected(t *testing.T) {
	p := mesh(t, "n1", "n2", "n3")
	b := run(t, broker.Config{Listen: "127.0.0.1:0", Store: t.TempDir()}, p.list(t))
	core, n1, n2 := p.connect(t, b, "coordinator"), p.connect(t, b, "node-n1"), p.connect(t, b, "node-n2")
	address := b.Address()

	p.add(t, grant.Principal{Kind: grant.Node, Name: "n4"})
	apply(t, b, p.list(t), true)
	n4 := p.connect(t, b, "node-n4") // added: it gets in

	digest := strings.Repeat("ab", 32)
	chunk := subject.DirectGet(subject.Artifacts, subject.Chunk(digest, 0))
	if !refused(t, n1, chunk) {
		t.Fatal("n1 may fetch what is not its")
	}
	p.all[1].Artifacts = []string{digest}
	apply(t, b, p.list(t), true)
	if refused(t, n1, chunk) {
		t.Error("widened rights are not in force at once")
	}
	p.all[1].Artifacts = nil
	apply(t, b, p.list(t), true)
	if !refused(t, n1, chunk) {
		t.Error("narrowed rights are not in force at once")
	}

	p.all = append(p.all[:2], p.all[3:]...) // n2 leaves
	apply(t, b, p.list(t), true)
	waitfor.True(t, "n2 cut", 5*time.Second, func() (bool, any) { up, _, err := n2.State(); return !up, err })
	for name, c := range map[string]*client{"the coordinator": core, "n1": n1, "n4": n4} {
		if err := c.NATS().FlushTimeout(5 * time.Second); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if n := c.lost(); n != 0 {
			t.Errorf("%s was disconnected %d times by reloads that did not concern it", name, n)
		}
	}
	if b.Address() != address {
		t.Errorf("a reload moved the bus from %s to %s", address, b.Address())
	}
	if c, err := net.Dial("tcp", address); err != nil {
		t.Errorf("after reloads: %v", err)
	} else {
		_ = c.Close()
	}
}

func TestARefusedListLeavesTheRunningOne(t *testing.T) {
	p := mesh(t, "n1")
	b := run(t, broker.Config{Listen: "127.0.0.1:0", Store: t.TempDir()}, p.list(t))
	n1 := p.connect(t, b, "node-n1")
	before := b.Digest()
	for name, spoil := range map[string]func(*grant.List){
		"nobody on it":            func(l *grant.List) { l.Users = nil },
		"no right to publish":     func(l *grant.List) { l.Users[1].Publish = nil },
		"no right to subscribe":   func(l *grant.List) { l.Users[1].Subscribe = []string{} },
		"a subject that is none":  func(l *grant.List) { l.Users[1].Publish = []string{"a..b"} },
		"an empty subject":        func(l *grant.List) { l.Users[1].Subscribe = []string{""} },
		"a queue with a space":    func(l *grant.List) { l.Users[1].Subscribe = []string{"a b c"} },
		"a key that is none":      func(l *grant.List) { l.Users[1].Key = "rubbish" },
		"one key twice":           func(l *grant.List) { l.Users[1].Key = l.Users[0].Key },
		"an account nobody knows": func(l *grant.List) { l.Users[1].Account = "" },
	} {
		l := p.list(t)
		spoil(&l)
		if changed, err := b.Apply(l); err == nil || changed {
			t.Errorf("%s: Apply = %v, %v", name, changed, err)
		}
		if b.Digest() != before {
			t.Errorf("%s: the digest is that of the refused list", name)
		}
		if _, err := broker.Start(t.Context(), broker.Config{Store: t.TempDir()}, l); err == nil {
			t.Errorf("%s: a bus started with it", name)
		}
	}
	if err := n1.NATS().FlushTimeout(5 * time.Second); err != nil || n1.lost() != 0 {
		t.Errorf("a refused list cut n1: %v, %d times", err, n1.lost())
	}
}

func TestStreamsSurviveARestart(t *testing.T) {
	p := mesh(t)
	cfg := broker.Config{Listen: "127.0.0.1:0", Store: t.TempDir()}
	b, err := broker.Start(t.Context(), cfg, p.list(t))
	if err != nil {
		t.Fatal(err)
	}
	streams := func(c *client) {
		t.Helper()
		js, err := jetstream.New(c.NATS())
		if err != nil {
			t.Fatal(err)
		}
		if err := bus.Assert(t.Context(), js, bus.Streams(1)); err != nil {
			t.Fatal(err)
		}
	}
	core := p.connect(t, b, "coordinator")
	streams(core)
	if err := core.Publish(t.Context(), subject.Declaration("n1"), []byte("kept"), ""); err != nil {
		t.Fatal(err)
	}
	stop(t, b)
	b = run(t, cfg, p.list(t))
	core = p.connect(t, b, "coordinator")
	if d, err := core.Last(t.Context(), subject.Declarations, subject.Declaration("n1")); err != nil || string(d) != "kept" {
		t.Errorf("after a restart: %q, %v", d, err)
	}
	streams(core) // again: nothing is lost by it (BUS-4)
	if d, err := core.Last(t.Context(), subject.Declarations, subject.Declaration("n1")); err != nil || string(d) != "kept" {
		t.Errorf("after asserting again: %q, %v", d, err)
	}
}

// A disk that others have filled must not keep the bus from starting with what it holds.
func TestAFullerDiskDoesNotStopARestart(t *testing.T) {
	p := mesh(t)
	cfg := broker.Config{Listen: "127.0.0.1:0", Store: t.TempDir()}
	for i, room := range []int64{300 << 20, 60 << 20} {
		cfg.Room = room
		b, err := broker.Start(t.Context(), cfg, p.list(t))
		if err != nil {
			t.Fatal(err)
		}
		core := p.connect(t, b, "coordinator")
		js, err := jetstream.New(core.NATS())
		if err != nil {
			t.Fatal(err)
		}
		if err := bus.Assert(t.Context(), js, bus.Streams(1, b.Room())); err != nil {
			t.Fatalf("with room for %d MiB: %v", room>>20, err)
		}
		if d, err := core.Last(t.Context(), subject.Declarations, subject.Declaration("n1")); i > 0 && (err != nil || string(d) != "kept") {
			t.Errorf("on a fuller disk: %q, %v", d, err)
		}
		if err := core.Publish(t.Context(), subject.Declaration("n1"), []byte("kept"), ""); err != nil {
			t.Errorf("with room for %d MiB: %v", room>>20, err)
		}
		core.Close()
		stop(t, b)
	}
}

// A port in use and a folder that cannot be written are said at once, not after a bound.
func TestAStartThatCannotWorkSaysWhy(t *testing.T) {
	p := mesh(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	for name, tt := range map[string]struct {
		cfg  broker.Config
		says string
	}{
		"a port in use":            {broker.Config{Listen: l.Addr().String(), Store: t.TempDir()}, "in use"},
		"no folder":                {broker.Config{Listen: "127.0.0.1:0", Store: "/proc/nowhere"}, "JetStream"},
		"no address":               {broker.Config{Listen: "4222", Store: t.TempDir()}, "4222"},
		"a port that is no number": {broker.Config{Listen: "127.0.0.1:bus", Store: t.TempDir()}, "bus"},
	} {
		b, err := broker.Start(ctx, tt.cfg, p.list(t))
		if err == nil {
			stop(t, b)
		}
		if err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v, want it to say %q", name, err, tt.says)
		}
	}
	if ctx.Err() != nil {
		t.Error("it waited for its bound")
	}
}

func TestStopIsBounded(t *testing.T) {
	p := mesh(t)
	b, err := broker.Start(t.Context(), broker.Config{Store: t.TempDir()}, p.list(t))
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Stop(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("a stop whose time was up: %v", err)
	}
	stop(t, b) // a second stop waits for the same end
}

func TestWithoutAPortOnlyThisProcessConnects(t *testing.T) {
	p := mesh(t)
	b := run(t, broker.Config{Store: t.TempDir()}, p.list(t))
	if b.Address() != "" {
		t.Errorf("it listens on %s", b.Address())
	}
	connect := func() *bus.Conn {
		t.Helper()
		c, err := bus.Connect(t.Context(), bus.Options{InProcess: b.InProcess(), Seed: p.seeds["coordinator"], Principal: "coordinator", Once: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		return c
	}
	c := connect()
	p.add(t, grant.Principal{Kind: grant.Node, Name: "n1"})
	apply(t, b, p.list(t), true)
	if err := c.NATS().FlushTimeout(5 * time.Second); err != nil {
		t.Errorf("a reload cut the coordinator: %v", err)
	}
	connect()
	if n := b.Connections(); n != 2 {
		t.Errorf("%d connections, want 2", n)
	}
}

func TestAddressIsWhereItListens(t *testing.T) {
	p := mesh(t)
	for listen, want := range map[string]string{"127.0.0.2:0": "127.0.0.2:", "0.0.0.0:0": "127.0.0.1:", "[::]:0": "127.0.0.1:", ":0": "127.0.0.1:"} {
		b := run(t, broker.Config{Listen: listen, Store: t.TempDir()}, p.list(t))
		if a := b.Address(); !strings.HasPrefix(a, want) {
			t.Errorf("listening on %s it says %s", listen, a)
			continue
		}
		c, err := net.Dial("tcp", b.Address())
		if err != nil {
			t.Errorf("listening on %s: %v", listen, err)
			continue
		}
		_ = c.Close()
	}
}

// Whoever reaches the port can make the server warn: the log takes a bounded number a minute.
func TestStrangersCannotFloodTheLog(t *testing.T) {
	p := mesh(t)
	var log logged
	clk := clock.NewFake(time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC))
	b := run(t, broker.Config{Listen: "127.0.0.1:0", Store: t.TempDir(), Log: log.logger(), Clock: clk}, p.list(t))
	stranger, err := credential.NewUser(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	knock := func(times int) {
		t.Helper()
		for range times {
			_, err := bus.Connect(t.Context(), bus.Options{Bus: credential.Bus{Addresses: []string{b.Address()}}, Plain: true, Seed: stranger, Principal: "node-x", Once: true})
			if !errors.Is(err, bus.ErrRefused) {
				t.Fatalf("a stranger: %v", err)
			}
		}
	}
	knock(60)
	if n := log.count("level=WARN"); n == 0 || n > 20 {
		t.Errorf("%d warnings from 60 strangers, want 1 to 20", n)
	}
	clk.Advance(time.Minute)
	knock(1)
	waitfor.True(t, "what was left out", 5*time.Second, func() (bool, any) { n := log.count("left out"); return n == 1, log.text() })
}

// logged is a log that a test can read.
type logged struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *logged) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func (l *logged) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *logged) count(what string) int { return strings.Count(l.text(), what) }
