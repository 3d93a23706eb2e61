// Package registry offers a container image to the engine of this machine: a registry of the OCI
// distribution specification (v1.1, what a pull needs of it) on loopback, whose blobs come chunk by chunk
// from the stream ARTIFACTS, so that only the layers the engine lacks travel (design §5, Artifacts).
//
// It keeps nothing on the disk and little in memory. A blob's last chunk is let out only when the bytes
// before it and it have the blob's digest: what was damaged or exchanged on the way is never whole at the
// engine, which checks again by itself. A link that breaks makes an answer wait; an engine that broke off
// goes on where it was (Range).
//
// An offer listens on a port of its own only as long as one pull takes, serves the blobs of that one image
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
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"mesh/shared/clock"
	"mesh/shared/declaration"
)

const (
	// together bounds the blobs under way at once, and with it the memory: each takes some five chunks.
	together = 4
	// headerBound is for the head of a request; a body has none.
	headerBound = 10 * time.Second
	// mostHead bounds the head of a request in bytes.
	mostHead = 16 << 10
)

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
	server *http.Server
	at     string
	room   chan struct{} // capacity together: the blobs under way
	served chan struct{} // closed when the listener is gone
	cancel context.CancelFunc
	moved  atomic.Int64

	mu    sync.Mutex // guards the fields below
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
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("offer %s: %w", name, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	o := &Offer{r: r, image: image, name: name, at: l.Addr().String(), blobs: make(map[string]declaration.Artifact, len(image.Blobs)),
		room: make(chan struct{}, together), served: make(chan struct{}), cancel: cancel, marks: map[string][]mark{}}
	for _, b := range image.Blobs {
		o.blobs[b.Digest] = b
	}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	o.server = &http.Server{Handler: o, ReadHeaderTimeout: headerBound, MaxHeaderBytes: mostHead, Protocols: protocols,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    log.New(io.Discard, "", 0), // who speaks no HTTP, as an engine that tries TLS first, is no news
	}
	go func() { // ends with Close
		defer close(o.served)
		if err := o.server.Serve(&guarded{l, r.uid}); !errors.Is(err, http.ErrServerClosed) {
			o.failed(fmt.Errorf("serve %s: %w", name, err))
		}
	}()
	return o, nil
}

// Reference is by what an engine pulls the image: "127.0.0.1:41234/mesh/notes-web@sha256:…". The engine has
// to be told that the registry speaks no TLS ("podman pull --tls-verify=false"; docker takes it of loopback).
func (o *Offer) Reference() string { return o.at + "/" + o.name + "@sha256:" + o.image.Digest() }

// Address is the registry's host:port.
func (o *Offer) Address() string { return o.at }

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
	err := o.server.Close()
	<-o.served
	return err
}
