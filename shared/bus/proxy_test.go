package bus_test

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"mesh/shared/bus"
	"mesh/shared/clock"
	"mesh/shared/subject"
	"mesh/shared/waitfor"
	"mesh/testbus"
)

// proxy stands between a client and the bus, so that a test can cut the line.
type proxy struct {
	l  net.Listener
	to string
	wg sync.WaitGroup

	mu    sync.Mutex // guards the fields below
	cut   bool
	conns []net.Conn
	held  chan struct{} // closed when what comes is handed on again; nil when it is
}

func newProxy(t *testing.T, to string) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{l: l, to: to}
	p.wg.Add(1)
	go p.accept()
	t.Cleanup(func() {
		_ = l.Close()
		p.setCut(true)
		p.wg.Wait()
	})
	return p
}

func (p *proxy) address() string { return p.l.Addr().String() }

func (p *proxy) accept() {
	defer p.wg.Done()
	for {
		in, err := p.l.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", p.to)
		p.mu.Lock()
		if err != nil || p.cut {
			p.mu.Unlock()
			_ = in.Close()
			if err == nil {
				_ = out.Close()
			}
			continue
		}
		p.conns = append(p.conns, in, out)
		p.mu.Unlock()
		p.wg.Add(2)
		for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
			go func() {
				defer p.wg.Done()
				_, _ = io.Copy(pair[0], &heldReader{pair[1], p})
				_ = pair[0].Close()
			}()
		}
	}
}

// hold lets nothing through, as a peer that is too busy, until release is called.
func (p *proxy) hold() (release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	held := make(chan struct{})
	p.held = held
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.held == held {
			p.held = nil
			close(held)
		}
	}
}

// heldReader reads what the proxy does not hold.
type heldReader struct {
	net.Conn
	p *proxy
}

func (r *heldReader) Read(b []byte) (int, error) {
	n, err := r.Conn.Read(b)
	r.p.mu.Lock()
	held := r.p.held
	r.p.mu.Unlock()
	if held != nil {
		<-held
	}
	return n, err
}

// setCut closes every connection and takes no new ones, or takes them again.
func (p *proxy) setCut(cut bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cut = cut
	if cut {
		for _, c := range p.conns {
			_ = c.Close()
		}
		p.conns = nil
	}
}

// TestABusyBusIsAskedAgain: a subscription whose answer takes longer than the bound is in place all the same, once
// the bus comes to it; whoever follows is told, and fetches what was said before.
func TestABusyBusIsAskedAgain(t *testing.T) {
	b := testbus.Start(t, testbus.Node("n1"))
	p := newProxy(t, b.Broker.Address())
	n1 := long(t, b, "node-n1", func(o *bus.Options) { o.Bus.Addresses = []string{p.address()} })
	n1.SetPublishBound(50 * time.Millisecond)
	release := p.hold()
	t.Cleanup(release)
	inPlace := make(chan struct{}, 8)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- n1.Follow(ctx, subject.Declaration("n1"), "", func(*nats.Msg) {}, func() { inPlace <- struct{}{} })
	}()
	select {
	case <-inPlace:
		t.Error("in place, without a word of the bus")
	case <-clock.Real().After(200 * time.Millisecond): // several bounds
	}
	release()
	waitfor.Value(t, "the subscription to be in place", 30*time.Second, inPlace)
	cancel()
	if err := waitfor.Value(t, "the end", 30*time.Second, ended); err != nil {
		t.Error(err)
	}
}
