package bus

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"
)

// dialer makes a connection's sockets. The client keeps its lock from the first packet of a try to the last
// of its handshake, so a peer that is silent holds up whoever asks it anything, Close too: end has the try
// that is under way fail at once.
type dialer struct {
	dial func(network, address string) (net.Conn, error)
	end  context.CancelFunc
	lazy bool
	// later lets the tries fail that the client makes before it returns, until it is to try in earnest.
	later atomic.Bool
}

var errLater = errors.New("the first try is under way")

// newDialer makes sockets until end is called, also after ctx.
func newDialer(ctx context.Context, bound time.Duration, lazy bool) *dialer {
	own, end := context.WithCancel(context.WithoutCancel(ctx))
	d := &dialer{end: end, lazy: lazy}
	d.later.Store(lazy)
	d.dial = func(network, address string) (net.Conn, error) {
		c, err := (&net.Dialer{Timeout: bound}).DialContext(own, network, address)
		if err != nil {
			return nil, err
		}
		return &socket{Conn: c, forget: context.AfterFunc(own, func() { _ = c.Close() })}, nil
	}
	return d
}

// Dial is what the client calls.
func (d *dialer) Dial(network, address string) (net.Conn, error) {
	if d.later.Load() {
		return nil, errLater
	}
	return d.dial(network, address)
}

// pause is Pause; the first try that was put off comes at once.
func (d *dialer) pause(attempts int) time.Duration {
	if d.later.CompareAndSwap(true, false) {
		return 0
	}
	return Pause(attempts)
}

// socket is closed when its dialer ends.
type socket struct {
	net.Conn
	forget func() bool
}

// Close ends it.
func (s *socket) Close() error {
	s.forget()
	return s.Conn.Close()
}
