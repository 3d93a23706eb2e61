package show_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mesh/agent/show"
	"mesh/shared/report"
)

func listen(t *testing.T, path string) net.Listener {
	t.Helper()
	l, err := show.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// TestADaemonIsAsked: in a folder deeper than a socket's name may be long, in the place of one that a dead daemon
// left, by anybody, and also when what it says is much.
func TestADaemonIsAsked(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("deep", 30))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, show.Socket)
	if _, err := show.Ask(t.Context(), path); !errors.Is(err, show.ErrDown) {
		t.Errorf("nobody ever listened: %v", err)
	}
	if err := listen(t, path).Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := show.Ask(t.Context(), path); !errors.Is(err, show.ErrDown) {
		t.Errorf("the daemon died: %v", err)
	}
	l := listen(t, path)
	st, err := os.Stat(path)
	if err != nil || st.Mode().Perm() != 0o666 {
		t.Errorf("who may ask: %v, %v", st.Mode(), err)
	}
	d := well()
	d.Problems = []report.Problem{{Text: strings.Repeat("much ", 1<<18)}}
	said := make(chan error, 1)
	go func() { // ends with the answer
		conn, err := l.Accept()
		if err == nil {
			err = show.Answer(t.Context(), conn, d)
		}
		said <- err
	}()
	got, err := show.Ask(t.Context(), path)
	if err != nil || got.Node != d.Node || len(got.Problems) != 1 || got.Problems[0].Text != d.Problems[0].Text {
		t.Errorf("asked: %v", err)
	}
	if err := <-said; err != nil {
		t.Errorf("answered: %v", err)
	}
}

// TestAnAnswerIsBounded: neither side waits for ever for the other.
func TestAnAnswerIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), show.Socket)
	l := listen(t, path)
	ctx, cancel := context.WithCancel(t.Context())
	asked := make(chan error, 1)
	go func() { // ends with ctx
		_, err := show.Ask(ctx, path)
		asked <- err
	}()
	conn, err := l.Accept() // and says nothing
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-asked; err == nil || errors.Is(err, show.ErrDown) {
		t.Errorf("a daemon that says nothing: %v", err)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}

	go func() { // ends with the connection
		c, err := net.Dial("unix", path)
		if err == nil {
			t.Cleanup(func() { _ = c.Close() }) // and reads nothing
		}
		asked <- err
	}()
	if err := <-asked; err != nil {
		t.Fatal(err)
	}
	if conn, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	d := well()
	d.Problems = []report.Problem{{Text: strings.Repeat("much ", 1<<20)}}
	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	if err := show.Answer(ctx, conn, d); err == nil {
		t.Error("an answer that nobody reads was given")
	}

	go func() { // ends with the answer
		conn, err := l.Accept()
		if err == nil {
			_, err = conn.Write([]byte("{"))
			err = errors.Join(err, conn.Close())
		}
		asked <- err
	}()
	if _, err := show.Ask(t.Context(), path); err == nil || !strings.Contains(err.Error(), "not understood") {
		t.Errorf("half an answer: %v", err)
	}
	if err := <-asked; err != nil {
		t.Fatal(err)
	}
}
