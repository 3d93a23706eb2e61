package systemd

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"mesh/shared/clock"
	"mesh/shared/waitfor"
)

// login is a logind on a bus of the test's own: it hands out inhibitors and notes that they are let go.
type login struct {
	conn *dbus.Conn
	held chan string   // what was asked for
	gone chan struct{} // an inhibitor was let go
}

// Inhibit is org.freedesktop.login1.Manager.Inhibit.
func (l *login) Inhibit(what, who, _, mode string) (dbus.UnixFD, *dbus.Error) {
	var ends [2]int
	if err := syscall.Pipe2(ends[:], syscall.O_CLOEXEC); err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	read, write := os.NewFile(uintptr(ends[0]), "read"), os.NewFile(uintptr(ends[1]), "write")
	go func() { // ends when the other side lets go
		_, _ = read.Read(make([]byte, 1))
		_ = read.Close()
		l.gone <- struct{}{}
	}()
	l.held <- what + " " + who + " " + mode
	fd, err := syscall.Dup(int(write.Fd()))
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	time.AfterFunc(time.Second, func() { _ = syscall.Close(fd) }) // sent by then
	return dbus.UnixFD(fd), closed(write)
}

// closed lets the message be sent with a descriptor of its own.
func closed(f *os.File) *dbus.Error {
	if err := f.Close(); err != nil {
		return dbus.MakeFailedError(err)
	}
	return nil
}

func (l *login) say(t *testing.T, member string, begins bool) {
	t.Helper()
	if err := l.conn.Emit(loginPath, loginManager+"."+member, begins); err != nil {
		t.Fatal(err)
	}
}

// privateBus starts a message bus for one test and returns its address.
func privateBus(t *testing.T) string {
	t.Helper()
	cmd := exec.Command("dbus-daemon", "--session", "--nofork", "--nopidfile", "--nosyslog", "--print-address", "--address=unix:path="+t.TempDir()+"/bus")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatalf("a message bus (Debian: dbus-daemon): %v", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	})
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(address)
}

// The machine waits for the good-bye before it rests, and is back with a word (NOD-11).
func TestRests(t *testing.T) {
	address := privateBus(t)
	theirs, err := dbus.Connect(address)
	if err != nil {
		t.Fatal(err)
	}
	defer theirs.Close()
	l := &login{conn: theirs, held: make(chan string, 8), gone: make(chan struct{}, 8)}
	if err := theirs.Export(l, loginPath, loginManager); err != nil {
		t.Fatal(err)
	}
	if _, err := theirs.RequestName(loginName, dbus.NameFlagDoNotQueue); err != nil {
		t.Fatal(err)
	}
	c := New(clock.Real())
	c.busAddress = address
	ctx, cancel := context.WithCancel(t.Context())
	told, ended := make(chan string, 8), make(chan error, 1)
	go func() {
		ended <- c.Rests(ctx, func(why string, begins bool) {
			if begins && len(l.gone) > 0 {
				t.Error("the machine was let rest before the good-bye")
			}
			told <- fmt.Sprint(why, " ", begins)
		})
	}()
	const soon = 10 * time.Second
	if got := waitfor.Value(t, "an inhibitor", soon, l.held); got != "sleep:shutdown mesh-agent delay" {
		t.Errorf("asked for %q", got)
	}
	l.say(t, "PrepareForSleep", true)
	if got := waitfor.Value(t, "word of the rest", soon, told); got != "suspend true" {
		t.Errorf("told %q", got)
	}
	waitfor.Value(t, "the inhibitor let go", soon, l.gone)
	l.say(t, "PrepareForSleep", false)
	if got := waitfor.Value(t, "word of the return", soon, told); got != "suspend false" {
		t.Errorf("told %q", got)
	}
	waitfor.Value(t, "another inhibitor", soon, l.held)
	l.say(t, "PrepareForShutdown", true)
	if got := waitfor.Value(t, "word of the end", soon, told); got != "shutdown true" {
		t.Errorf("told %q", got)
	}
	waitfor.Value(t, "the inhibitor let go", soon, l.gone)
	cancel()
	if err := waitfor.Value(t, "the end", soon, ended); err != nil {
		t.Error(err)
	}
}

func TestResting(t *testing.T) {
	for _, s := range []*dbus.Signal{
		{Path: loginPath, Name: loginManager + ".PrepareForSleep"}, {Path: loginPath, Name: loginManager + ".PrepareForSleep", Body: []any{"true"}},
		{Path: "/other", Name: loginManager + ".PrepareForSleep", Body: []any{true}}, {Path: loginPath, Name: loginManager + ".SessionNew", Body: []any{true}},
	} {
		if why, begins := resting(s); why != "" || begins {
			t.Errorf("%+v: %q, %v", s, why, begins)
		}
	}
}
