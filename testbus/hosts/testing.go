package hosts

import (
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// StateEnv names the variable for the folder below which tests keep their beds; defaultState stands in
// for it. KeepEnv, when set, leaves the bed of a failed test standing, to be looked at.
const (
	StateEnv     = "MESH_HOSTS_STATE"
	KeepEnv      = "MESH_HOSTS_KEEP"
	defaultState = "/var/tmp/mesh-hosts"
)

// Bounds: runTimeout for one command of a test, downTimeout for taking down its bed.
const (
	runTimeout  = 2 * time.Minute
	downTimeout = 2 * time.Minute
	// askEvery is how often WaitFor asks: asking costs a process in the host.
	askEvery = 100 * time.Millisecond
)

// New boots n hosts for the test and takes them down after it. The test fails, and is not skipped, on a
// machine that cannot boot hosts. When the test fails, its log ends with the hosts' last words.
func New(t testing.TB, n int) *Bed {
	t.Helper()
	return NewWith(t, n, Plain)
}

// NewWith is New with hosts of a flavour.
func NewWith(t testing.TB, n int, f Flavour) *Bed {
	t.Helper()
	must(t, Check())
	dir, release := testDir(t)
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	bed, err := StartWith(t.Context(), filepath.Join(dir, "bed"), n, f, log)
	if err != nil {
		release() // the next test removes the folder
		t.Fatalf("boot %d hosts: %v", n, err)
	}
	// Not t.Context: that one has ended when this runs.
	clean := context.WithoutCancel(t.Context())
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(clean, downTimeout)
		defer cancel()
		if t.Failed() {
			bed.lastWords(ctx, t)
			if os.Getenv(KeepEnv) != "" {
				t.Logf("the bed stands in %s until the next test boots hosts; a shell: nsenter -a -t %s", bed.dir, bed.leaders())
				release()
				return
			}
		}
		if err := bed.Down(ctx); err != nil {
			t.Errorf("take the hosts down: %v", err)
			return
		}
		os.RemoveAll(dir) // an empty folder and a lock
		release()
	})
	return bed
}

// testDir makes the folder of one test's bed. Its lock is held as long as this process lives, so a later
// test can tell a bed whose test was killed, and takes it down.
func testDir(t testing.TB) (dir string, release func()) {
	t.Helper()
	all := os.Getenv(StateEnv)
	if all == "" {
		all = defaultState
	}
	if err := os.MkdirAll(all, 0o700); err != nil {
		t.Fatalf("state of the hosts: %v", err)
	}
	unlock, err := lockFile(t.Context(), filepath.Join(all, "lock"))
	if err != nil {
		t.Fatalf("state of the hosts: %v", err)
	}
	defer unlock()
	sweep(t, all)
	dir, err = os.MkdirTemp(all, "test-")
	if err != nil {
		t.Fatalf("state of the hosts: %v", err)
	}
	release, err = lockFile(t.Context(), filepath.Join(dir, "held"))
	if err != nil {
		t.Fatalf("state of the hosts: %v", err)
	}
	return dir, release
}

// sweep takes down the beds below all whose test is gone.
func sweep(t testing.TB, all string) {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(all, "test-*"))
	if err != nil {
		t.Fatalf("state of the hosts: %v", err)
	}
	for _, dir := range dirs {
		f, err := os.OpenFile(filepath.Join(dir, "held"), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			continue // it is being removed right now
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			sweep(t, dir) // a test of this package keeps beds below its own folder
			if bed, err := Open(filepath.Join(dir, "bed")); err == nil {
				t.Logf("taking down %s, whose test is gone", bed.dir)
				if err := bed.Down(t.Context()); err != nil {
					t.Logf("left behind by an earlier test: %v", err)
					f.Close()
					continue
				}
			}
			if err := unmountBelow(dir); err == nil {
				os.RemoveAll(dir)
			}
		}
		f.Close()
	}
}

// lastWords logs what explains most failures.
func (b *Bed) lastWords(ctx context.Context, t testing.TB) {
	for _, h := range b.hosts {
		out, err := h.RunErr(ctx, "sh", "-c", "systemctl list-units --failed --no-legend --plain; journalctl -b -o short-monotonic --no-pager -n 40")
		if err != nil {
			t.Logf("%s is not to be asked (%v); its console:\n%s", h.Name, err, tail(h.Console(), 20))
			continue
		}
		t.Logf("last words of %s:\n%s", h.Name, out.Stdout)
	}
}

// leaders are the hosts' PIDs, for a person with nsenter.
func (b *Bed) leaders() string {
	var s []string
	for _, h := range b.hosts {
		pid, _ := h.leader() // 0 stands for down
		s = append(s, fmt.Sprintf("%d (%s)", pid, h.Name))
	}
	return strings.Join(s, " or ")
}

// Run runs a command in the host and returns its standard output; another exit code than 0 ends the test.
func (h *Host) Run(t testing.TB, args ...string) string {
	t.Helper()
	return h.RunIn(t, "", args...)
}

// RunIn is Run with standard input.
func (h *Host) RunIn(t testing.TB, stdin string, args ...string) string {
	t.Helper()
	return mustRun(t, h.Name, h.Exec, stdin, args)
}

// Run runs a program of the machine in the namespace; another exit code than 0 ends the test.
func (n *Namespace) Run(t testing.TB, args ...string) string {
	t.Helper()
	return mustRun(t, n.name, n.Exec, "", args)
}

func mustRun(t testing.TB, where string, exec func(context.Context, Command) (Output, error), stdin string, args []string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), runTimeout)
	defer cancel()
	out, err := exec(ctx, Command{Args: args, Stdin: strings.NewReader(stdin)})
	if err == nil {
		err = out.Failed()
	}
	if err != nil {
		t.Fatalf("%s: %s: %v", where, strings.Join(args, " "), err)
	}
	return out.Stdout
}

// Copy puts a file of this machine into the host and renames it into place.
func (h *Host) Copy(t testing.TB, from, to string, mode fs.FileMode) {
	t.Helper()
	must(t, h.CopyErr(t.Context(), from, to, mode))
}

// CopyDir copies a tree of this machine into the host.
func (h *Host) CopyDir(t testing.TB, from, to string) {
	t.Helper()
	must(t, h.CopyDirErr(t.Context(), from, to))
}

// WriteFile puts content into the host and renames it into place.
func (h *Host) WriteFile(t testing.TB, to, content string, mode fs.FileMode) {
	t.Helper()
	must(t, h.WriteFileErr(t.Context(), to, strings.NewReader(content), mode))
}

// ReadFile reads a file of the host, up or down.
func (h *Host) ReadFile(t testing.TB, name string) string {
	t.Helper()
	raw, err := h.ReadFileErr(name)
	must(t, err)
	return string(raw)
}

// CutLink unplugs the host silently: see CutLinkErr.
func (h *Host) CutLink(t testing.TB) { t.Helper(); must(t, h.CutLinkErr(t.Context())) }

// DropCarrier takes the carrier away: see DropCarrierErr.
func (h *Host) DropCarrier(t testing.TB) { t.Helper(); must(t, h.DropCarrierErr(t.Context())) }

// RestoreLink plugs the host in again.
func (h *Host) RestoreLink(t testing.TB) { t.Helper(); must(t, h.RestoreLinkErr(t.Context())) }

// Kill switches the host off as a power cut would: see KillErr for what that leaves out.
func (h *Host) Kill(t testing.TB) { t.Helper(); must(t, h.KillErr(t.Context())) }

// Boot switches the host on and returns when it has booted.
func (h *Host) Boot(t testing.TB) { t.Helper(); must(t, h.BootErr(t.Context())) }

// Stop shuts the host down in order.
func (h *Host) Stop(t testing.TB) { t.Helper(); must(t, h.StopErr(t.Context())) }

// Reboot restarts the host in order and returns when it has booted.
func (h *Host) Reboot(t testing.TB) { t.Helper(); must(t, h.RebootErr(t.Context())) }

// WaitFor asks until the answer is yes. On the deadline the test ends with the last state seen.
func (h *Host) WaitFor(t testing.TB, what string, ask func(ctx context.Context) (ok bool, state string), within time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	last := "nothing yet"
	err := poll(ctx, askEvery, func() (bool, error) {
		ok, state := ask(ctx)
		if ctx.Err() == nil { // else the answer is about the deadline
			last = state
		}
		return ok, nil
	})
	if err != nil {
		t.Fatalf("waited %v for %s on %s; last seen: %s", within, what, h.Name, last)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
