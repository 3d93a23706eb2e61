package show

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// Socket is the name of the daemon's socket below the run directory. Whoever connects is given the Document as it
// is then, and the daemon hangs up: it writes nothing that nobody reads.
const Socket = "show.sock"

// askBound bounds one answer on either side.
const askBound = 2 * time.Second

// maxDocument bounds in bytes what is read of an answer.
const maxDocument = 64 << 20

// Listen opens the socket at path, in the place of one that a daemon before left behind: the caller sees to it
// that none lives. Everybody at the machine may look.
func Listen(path string) (net.Listener, error) {
	l, err := listen(path)
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", path, err)
	}
	return l, nil
}

func listen(path string) (l net.Listener, err error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	err = beside(path, func(short string) error {
		u, err := net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
		if err == nil {
			u.SetUnlinkOnClose(false) // it is another name by then
			l = u
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o666); err != nil { // whatever the umask
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// beside runs fn with another name for path: that of a socket holds 107 bytes only (unix(7)), and a folder may lie
// deep.
func beside(path string, fn func(short string) error) error {
	dir, err := os.OpenFile(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	err = fn("/proc/self/fd/" + strconv.Itoa(int(dir.Fd())) + "/" + filepath.Base(path))
	return errors.Join(err, dir.Close())
}

// Answer gives the Document to the one who connected, and hangs up.
func Answer(ctx context.Context, conn net.Conn, d *Document) error {
	b, err := json.Marshal(d)
	if err == nil {
		err = bounded(ctx, conn, func() error {
			_, err := conn.Write(b)
			return err
		})
	}
	if err = errors.Join(err, conn.Close()); err != nil {
		return fmt.Errorf("answer show: %w", err)
	}
	return nil
}

// Ask is the Document of the daemon that listens at path. ErrDown is met when none does.
func Ask(ctx context.Context, path string) (d *Document, err error) {
	ctx, cancel := context.WithTimeout(ctx, askBound)
	defer cancel()
	var conn net.Conn
	err = beside(path, func(short string) (err error) {
		conn, err = new(net.Dialer).DialContext(ctx, "unix", short)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED) {
		return nil, ErrDown
	}
	if err != nil {
		return nil, fmt.Errorf("ask the agent: %w", err)
	}
	var b []byte
	err = bounded(ctx, conn, func() (err error) {
		b, err = io.ReadAll(io.LimitReader(conn, maxDocument))
		return err
	})
	if err = errors.Join(err, conn.Close()); err != nil {
		return nil, fmt.Errorf("ask the agent: %w", err)
	}
	if len(b) == 0 {
		return nil, ErrDown // it was about to end
	}
	d = new(Document)
	if err := json.Unmarshal(b, d); err != nil {
		return nil, fmt.Errorf("what the agent answers at %s is not understood: %w", path, err)
	}
	return d, nil
}

// bounded runs fn, which waits for the other side, and has it fail when ctx ends or it takes too long.
func bounded(ctx context.Context, conn net.Conn, fn func() error) error {
	ctx, cancel := context.WithTimeout(ctx, askBound)
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })() // a connection that is gone has failed already
	return fn()
}
