// Package testbus starts a real NATS server with JetStream for one test, linked in at the release go.mod
// pins, with TLS and a composed user list, on a free loopback port and a store of its own. It stops with
// the test (BUS-1, BUS-2).
//
//	b := testbus.Start(t, testbus.Node("db1"), testbus.Operator("ada", "status"))
//	db1 := b.Connect(t, "node-db1")
//	core := b.Connect(t, "coordinator")
package testbus

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"mesh/shared/broker"
	"mesh/shared/bus"
	"mesh/shared/clock"
	"mesh/shared/credential"
	"mesh/shared/grant"
	"mesh/shared/membership"
	"mesh/shared/subject"
)

// Bus is a running server and the seeds of everybody on its list.
type Bus struct {
	Broker *broker.Broker
	// Authority is the CA the server's certificate is from.
	Authority *credential.Authority

	people []grant.Principal
	seats  []grant.Seat
	seeds  map[string]credential.Seed
}

// Node is a machine that may fetch these artifacts.
func Node(name string, artifacts ...string) grant.Principal {
	return grant.Principal{Kind: grant.Node, Name: name, Artifacts: artifacts}
}

// Operator is a person who may ask these verbs of mesh-controller and upload artifacts.
func Operator(name string, verbs ...subject.Verb) grant.Principal {
	return grant.Principal{Kind: grant.Operator, Name: name, Verbs: verbs, Upload: true}
}

// NodeAsker is an Operator who may ask these verbs of node-engine on every machine.
func NodeAsker(name string, verbs ...subject.Verb) grant.Principal {
	p := Operator(name)
	for _, v := range verbs {
		p.OnNodes = append(p.OnNodes, grant.OnNode{Seat: subject.NodeEngine, Verb: v})
	}
	return p
}

// Invitation is a machine that is not let in yet.
func Invitation(id string) grant.Principal {
	return grant.Principal{Kind: grant.Invitation, Name: id}
}

// Instance is a module on a machine, with what m says it is on the bus.
func Instance(m *membership.Membership) grant.Principal {
	return grant.Principal{Kind: grant.Instance, Name: string(m.Module), Membership: m}
}

// Serve has these seats' verbs served by instances, from the next change of the list on.
func (b *Bus) Serve(seats ...grant.Seat) { b.seats = seats }

// Start starts a server that knows the coordinator and people, and asserts the mesh's streams.
// A principal without a key gets one.
func Start(t testing.TB, people ...grant.Principal) *Bus {
	t.Helper()
	b := Bare(t, people...)
	js, err := jetstream.New(b.Connect(t, "coordinator").NATS())
	if err != nil {
		t.Fatal(err)
	}
	if err := bus.Assert(t.Context(), js, bus.Streams(1)); err != nil {
		t.Fatal(err)
	}
	return b
}

// Bare is Start without the streams.
func Bare(t testing.TB, people ...grant.Principal) *Bus {
	t.Helper()
	return Bounded(t, 0, people...)
}

// Bounded is Bare with so many bytes of room for streams.
func Bounded(t testing.TB, room int64, people ...grant.Principal) *Bus {
	t.Helper()
	now := clock.Real().Now()
	ca, err := credential.NewAuthority(rand.Reader, "test", now)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := ca.Issue(rand.Reader, now)
	if err != nil {
		t.Fatal(err)
	}
	b := &Bus{Authority: ca, seeds: map[string]credential.Seed{}}
	b.take(t, grant.Principal{Kind: grant.Coordinator})
	for _, p := range people {
		b.take(t, p)
	}
	b.start(t, cert, room)
	return b
}

func (b *Bus) start(t testing.TB, cert tls.Certificate, room int64) {
	t.Helper()
	var err error
	b.Broker, err = broker.Start(t.Context(), broker.Config{Listen: "127.0.0.1:0", Store: t.TempDir(), Certificate: &cert, Room: room}, b.list(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := b.Broker.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
}

func (b *Bus) take(t testing.TB, p grant.Principal) {
	t.Helper()
	if p.Key == "" {
		seed, err := credential.NewUser(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if p.Key, err = seed.Public(); err != nil {
			t.Fatal(err)
		}
		b.seeds[p.Label()] = seed
	}
	b.people = append(b.people, p)
}

func (b *Bus) list(t testing.TB) grant.List {
	t.Helper()
	l, left, err := grant.Compose(b.people)
	if err != nil || len(left) > 0 {
		t.Fatalf("compose the user list: %v, left out %v", err, left)
	}
	l.Seats = b.seats
	return l
}

// Add puts more principals on the list and reloads it.
func (b *Bus) Add(t testing.TB, people ...grant.Principal) {
	t.Helper()
	for _, p := range people {
		b.take(t, p)
	}
	b.reload(t)
}

// Remove takes the principal with this label off the list and reloads it.
func (b *Bus) Remove(t testing.TB, label string) {
	t.Helper()
	b.Replace(t, label)
}

// Replace takes the principal with this label off the list, puts people on it, and reloads it.
func (b *Bus) Replace(t testing.TB, label string, people ...grant.Principal) {
	t.Helper()
	b.people = slices.DeleteFunc(b.people, func(p grant.Principal) bool { return p.Label() == label })
	b.Add(t, people...)
}

// Edit puts the composed list in force as edit changes it: what no composition would give. The next change
// of the list undoes it.
func (b *Bus) Edit(t testing.TB, edit func(u *grant.User)) {
	t.Helper()
	l := b.list(t)
	for i := range l.Users {
		edit(&l.Users[i])
	}
	if _, err := b.Broker.Apply(l); err != nil {
		t.Fatal(err)
	}
}

func (b *Bus) reload(t testing.TB) {
	t.Helper()
	if _, err := b.Broker.Apply(b.list(t)); err != nil {
		t.Fatal(err)
	}
}

// Where is the address and CA of the server, as a credential holds it.
func (b *Bus) Where() credential.Bus {
	return credential.Bus{Addresses: []string{b.Broker.Address()}, CA: b.Authority.PEM(), Pin: b.Authority.Pin()}
}

// Seed is the private key of the principal with this label ("node-db1").
func (b *Bus) Seed(label string) credential.Seed { return b.seeds[label] }

// Options connect as the principal with this label.
func (b *Bus) Options(label string) bus.Options {
	return bus.Options{Bus: b.Where(), Seed: b.seeds[label], Principal: label, Name: label, Log: slog.New(slog.DiscardHandler)}
}

// Connect connects as the principal with this label and fails the test when that does not work at once.
func (b *Bus) Connect(t testing.TB, label string) *bus.Conn {
	t.Helper()
	o := b.Options(label)
	o.Once = true
	c, err := bus.Connect(t.Context(), o)
	if err != nil {
		t.Fatalf("connect as %s: %v", label, err)
	}
	t.Cleanup(c.Close)
	return c
}
