package hosts

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// netnsDir is where ip-netns(8) keeps named namespaces.
const netnsDir = "/run/netns"

// Namespace is a network namespace: the internet of a bed, or the network of one host.
type Namespace struct{ name string }

// Path is the file that stands for the namespace, for setns(2) and nsenter(1).
func (n *Namespace) Path() string { return filepath.Join(netnsDir, n.name) }

// batch runs ip(8) commands in the namespace, one a line, in one process.
func (n *Namespace) batch(ctx context.Context, lines ...string) error {
	return command(ctx, strings.Join(lines, "\n")+"\n", "ip", "-n", n.name, "-batch", "-")
}

// Dial connects from within the namespace. addr has to hold an IP address: a name would be looked up
// outside.
func (n *Namespace) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var conn net.Conn
	err := n.do(func() (err error) {
		var d net.Dialer
		conn, err = d.DialContext(ctx, network, addr)
		return err
	})
	return conn, err
}

// Listen listens within the namespace; what it accepts is in there too.
func (n *Namespace) Listen(ctx context.Context, network, addr string) (net.Listener, error) {
	var l net.Listener
	err := n.do(func() (err error) {
		var c net.ListenConfig
		l, err = c.Listen(ctx, network, addr)
		return err
	})
	return l, err
}

// do runs f on a thread that is in the namespace for as long. A socket belongs to the namespace it was
// made in, whoever uses it later. A thread that does not find the way back is never used again: its
// goroutine ends locked to it, so the runtime throws it away.
func (n *Namespace) do(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		back, err := n.enter()
		if err == nil {
			err = f()
		}
		if back() == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

// enter puts this thread into the namespace, back puts it where it was.
func (n *Namespace) enter() (back func() error, err error) {
	back = func() error { return nil }
	home, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return back, fmt.Errorf("open the namespace of this thread: %w", err)
	}
	fd, err := unix.Open(n.Path(), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		unix.Close(home)
		return back, fmt.Errorf("open namespace %s: %w", n.name, err)
	}
	defer unix.Close(fd)
	back = func() error {
		defer unix.Close(home)
		return unix.Setns(home, unix.CLONE_NEWNET)
	}
	if err := unix.Setns(fd, unix.CLONE_NEWNET); err != nil {
		return back, fmt.Errorf("enter namespace %s: %w", n.name, err)
	}
	return back, nil
}
