// Package registry offers a container image to the engine of this machine: a registry of the OCI
// distribution specification (v1.1, what a pull needs of it) on loopback, whose blobs come chunk by chunk
// from the stream ARTIFACTS, so that only the layers the engine lacks travel (design §5, Artifacts).
//
// It keeps nothing on the disk and little in memory. A blob's last chunk is let out only when the bytes
// before it and it have the blob's digest: what was damaged or exchanged on the way is never whole at the
// engine, which checks again by itself. A link that breaks makes an answer wait; an engine that broke off
// goes on where it was (Range).
//
// An offer listens only as long as one pull takes, serves the blobs of that one image
// by digest and lists nothing. Whoever runs a program on the machine could connect to loopback, and an
// unguessable path would stand in the engine's command line for everybody to read: therefore the kernel is
// asked whose the connection is, and only root's (the engine's) are answered. An image is nobody's secret
// by itself, but what stands in a private one is for who runs it.
//
// Close ends an offer's goroutines and connections.
package registry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"

	"mesh/shared/clock"
	"mesh/shared/declaration"
)

// together bounds the blobs under way at once, and with it the memory: each takes some five chunks.
const together = 4

// Config is what a Registry works with.
type Config struct {
	// Fetch writes an artifact to w from chunk number from on, in order, a chunk a Write.
	Fetch func(ctx context.Context, a declaration.Artifact, from int, w io.Writer) error
	Clock clock.Clock
	Log   *slog.Logger
}

// Registry makes offers.
type Registry struct {
	cfg Config
	// uid is whose connections are answered besides root's: that of the agent.
	uid int
}

// New makes a Registry. It starts nothing.
func New(c Config) *Registry { return &Registry{cfg: c, uid: os.Geteuid()} }

// Offer is one image that can be pulled until Close.
type Offer struct {
	r      *Registry
	image  *declaration.Image
	name   string
	blobs  map[string]declaration.Artifact
	listen net.Listener
	room   chan struct{}  // capacity together: the blobs under way
	here   sync.WaitGroup // the listener's goroutine, and one for each connection
	cancel context.CancelFunc
	moved  atomic.Int64

	mu    sync.Mutex // guards the fields below
	conns map[net.Conn]struct{}
	ended bool
	marks map[string][]mark
	why   error
}

// Offer begins to serve an image under name, which has the form of a repository: "mesh/notes-web". ctx ends
// what is under way; the caller calls Close.
func (r *Registry) Offer(ctx context.Context, name string, image *declaration.Image) (*Offer, error) {
	if err := image.Check(); err != nil {
		return nil, fmt.Errorf("offer %s: %w", name, err)
	}
	if err := checkName(name); err != nil {
		return nil, fmt.Errorf("offer %s: %w", name, err)
	}
	l, err := listen(ctx)
	if err != nil {
		return nil, fmt.Errorf("offer %s: %w", name, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	o := &Offer{r: r, image: image, name: name, blobs: make(map[string]declaration.Artifact, len(image.Blobs)), listen: &guarded{l, r.uid},
		room: make(chan struct{}, together), cancel: cancel, conns: map[net.Conn]struct{}{}, marks: map[string][]mark{}}
	for _, b := range image.Blobs {
		o.blobs[b.Digest] = b
	}
	o.here.Go(func() { o.accept(ctx) }) // ends with Close
	return o, nil
}

// usual is where an offer listens when nobody else does: an image keeps one name in the engine's list, whose
// first part is the registry's address.
const usual = "127.0.0.1:41786"

func listen(ctx context.Context) (net.Listener, error) {
	var lc net.ListenConfig
	if l, err := lc.Listen(ctx, "tcp4", usual); err == nil {
		return l, nil
	}
	return lc.Listen(ctx, "tcp4", "127.0.0.1:0") // another offer stands, or somebody else is there
}

// accept takes connections until Close.
func (o *Offer) accept(ctx context.Context) {
	for {
		c, err := o.listen.Accept()
		if err != nil {
			if ctx.Err() == nil {
				o.failed(fmt.Errorf("serve %s: %w", o.name, err))
			}
			return
		}
		if !o.enter(c) {
			_ = c.Close() // it came too late
			return
		}
		o.here.Go(func() { // ends with the connection, which ends with Close
			defer o.leave(c)
			o.talk(ctx, c)
		})
	}
}

func (o *Offer) enter(c net.Conn) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.ended {
		o.conns[c] = struct{}{}
	}
	return !o.ended
}

func (o *Offer) leave(c net.Conn) {
	o.mu.Lock()
	delete(o.conns, c)
	o.mu.Unlock()
	_ = c.Close() // all was said, or who asked is gone
}

// Reference is by what an engine pulls the image: "127.0.0.1:41786/mesh/notes-web@sha256:…". The engine has
// to be told that the registry speaks no TLS ("podman pull --tls-verify=false"; docker takes it of loopback).
func (o *Offer) Reference() string { return o.Address() + "/" + o.name + "@sha256:" + o.image.Digest() }

// Address is the registry's host:port.
func (o *Offer) Address() string { return o.listen.Addr().String() }

// Bytes is how many of the image's bytes came over the bus so far.
func (o *Offer) Bytes() int64 { return o.moved.Load() }

// Err is why something of the image could not be served, the last reason, or nil. The engine only sees that
// an answer broke off.
func (o *Offer) Err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.why
}

func (o *Offer) failed(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.why = err
}

// Close ends the offer: what is under way is broken off, and nobody is listening any more.
func (o *Offer) Close() error {
	o.cancel()
	err := o.listen.Close()
	o.mu.Lock()
	o.ended = true
	for c := range o.conns {
		_ = c.Close() // what is under way is broken off
	}
	o.mu.Unlock()
	o.here.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
