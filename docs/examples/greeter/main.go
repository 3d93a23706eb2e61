// Command greeter is a module on the bus, with the two files mesh lays down for it and nothing of mesh's code:
// it answers the verb greet, and says the event greeted for each answer.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
)

// credential is what this program needs of credential.json.
type credential struct {
	Seed string `json:"seed"`
	Bus  struct {
		Addresses []string `json:"addresses"`
		CA        string   `json:"ca"`
	} `json:"bus"`
}

// membership is what this program needs of membership.json.
type membership struct {
	Node   string `json:"node"`
	Inbox  string `json:"inbox"`
	Self   string `json:"self"`
	Serves []struct {
		Name, At, Plain, Queue string
	} `json:"serves"`
	Says []struct{ Name, At string } `json:"says"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "greeter:", err)
		os.Exit(1)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	folder := os.Getenv("MESH_INSTANCE")
	var c credential
	var m membership
	if err := errors.Join(read(filepath.Join(folder, "credential.json"), &c), read(filepath.Join(folder, "membership.json"), &m)); err != nil {
		return err
	}
	nc, err := connect(c, m)
	if err != nil {
		return err
	}
	defer nc.Close()
	g := &greeter{nc: nc, m: m, held: map[string]*nats.Subscription{}}
	if err := g.serve(m); err != nil {
		return err
	}
	// What an instance is changes: another machine may get the module too. The bus says so.
	if _, err := nc.Subscribe(m.Self, func(msg *nats.Msg) {
		var now membership
		err := json.Unmarshal(msg.Data, &now)
		if err == nil {
			err = g.serve(now)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "greeter: the new membership:", err)
		}
	}); err != nil {
		return err
	}
	<-ctx.Done()
	return nc.Drain()
}

func read(file string, v any) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

// connect never gives up: a new instance is let in a moment after its machine has said its key.
func connect(c credential, m membership) (*nats.Conn, error) {
	key, err := nkeys.FromSeed([]byte(c.Seed))
	if err != nil {
		return nil, err
	}
	public, err := key.PublicKey()
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(c.Bus.CA)) {
		return nil, errors.New("credential.json holds no certificate authority")
	}
	return nats.Connect("tls://"+strings.Join(c.Bus.Addresses, ",tls://"),
		nats.Nkey(public, key.Sign),
		nats.Secure(&tls.Config{RootCAs: roots, ServerName: "bus.mesh.internal", MinVersion: tls.VersionTLS13}),
		nats.CustomInboxPrefix(m.Inbox),
		nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.IgnoreAuthErrorAbort())
}

type greeter struct {
	nc   *nats.Conn
	m    membership
	held map[string]*nats.Subscription
}

// serve subscribes what m says and lets go of what it says no more.
func (g *greeter) serve(m membership) error {
	want := map[string]string{}
	for _, v := range m.Serves {
		if v.Name != "greet" {
			continue
		}
		if v.At != "" {
			want[v.At] = ""
		}
		if v.Plain != "" {
			want[v.Plain] = v.Queue
		}
	}
	for at, sub := range g.held {
		if _, still := want[at]; !still {
			_ = sub.Unsubscribe() // the bus has ended it already
			delete(g.held, at)
		}
	}
	for at, queue := range want {
		if g.held[at] != nil {
			continue
		}
		sub, err := g.nc.QueueSubscribe(at, queue, g.greet)
		if err != nil {
			return err
		}
		g.held[at] = sub
	}
	return nil
}

// reply is how a verb answers: with one of the two.
type reply struct {
	Answer any    `json:"answer,omitempty"`
	Failed string `json:"failed,omitempty"`
}

func (g *greeter) greet(msg *nats.Msg) {
	if !strings.HasPrefix(msg.Reply, "_R_.") {
		return // no ask: an answer that somebody aimed here
	}
	var ask struct {
		Name string `json:"name"`
	}
	r := reply{}
	if err := json.Unmarshal(msg.Data, &ask); err != nil || ask.Name == "" {
		r.Failed = "name: is missing"
	} else {
		r.Answer = map[string]string{"greeting": "Hello, " + ask.Name + ", from " + g.m.Node}
		g.say("greeted", map[string]string{"name": ask.Name})
	}
	b, err := json.Marshal(r)
	if err == nil {
		err = msg.Respond(b)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "greeter: answer:", err)
	}
}

// say keeps an event in the mesh's stream; the answer is the stream's acknowledgement.
func (g *greeter) say(name string, payload any) {
	for _, e := range g.m.Says {
		if e.Name != name {
			continue
		}
		b, err := json.Marshal(payload)
		if err == nil {
			_, err = g.nc.Request(e.At, b, 10*time.Second)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "greeter: event:", err)
		}
	}
}
