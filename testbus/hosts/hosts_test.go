package hosts

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"mesh/shared/clock"
	"mesh/shared/refusal"
)

// TestBed goes through what a bed of two hosts can do, one boot for all of it.
func TestBed(t *testing.T) {
	bed := New(t, 2)
	h1, h2 := bed.Host(1), bed.Host(2)
	t.Run("systemd is up and every unit is well", func(t *testing.T) {
		for _, h := range []*Host{h1, h2} {
			if got := h.Run(t, "systemctl", "is-system-running"); got != "running\n" {
				t.Errorf("%s is %q: %s", h.Name, got, h.Run(t, "systemctl", "--failed"))
			}
			if got := h.Run(t, "hostname"); got != h.Name+"\n" {
				t.Errorf("%s calls itself %q", h.Name, got)
			}
		}
		if h1.Run(t, "cat", "/etc/machine-id") == h2.Run(t, "cat", "/etc/machine-id") {
			t.Error("two hosts share a machine id")
		}
	})
	t.Run("hosts reach each other and the internet", func(t *testing.T) {
		for _, to := range []string{h2.IPv4(), h2.IPv6(), InternetIPv4, InternetIPv6, FarIPv4} {
			h1.Run(t, "ping", "-c1", "-W5", to)
		}
		reach(t, bed, h2)
	})
	t.Run("commands", func(t *testing.T) { testCommands(t, h1) })
	t.Run("files", func(t *testing.T) { testFiles(t, h1) })
	t.Run("connections", func(t *testing.T) { testConnections(t, bed) })
	t.Run("the link", func(t *testing.T) { testLink(t, h1, h2) })
	t.Run("a service may use the packet filter", func(t *testing.T) {
		h1.Run(t, "systemd-run", "--pipe", "--wait", "--quiet", "nft", "add table inet probe")
		if got := h1.Run(t, "nft", "list", "tables"); !strings.Contains(got, "probe") {
			t.Errorf("tables: %q", got)
		}
		if got := h2.Run(t, "nft", "list", "tables"); got != "" {
			t.Errorf("the other host has tables too: %q", got)
		}
	})
}

func testCommands(t *testing.T, h *Host) {
	out, err := h.RunErr(t.Context(), "sh", "-c", "echo out; echo err >&2; exit 7")
	if err != nil || out.Stdout != "out\n" || out.Stderr != "err\n" || out.Exit != 7 {
		t.Errorf("RunErr = %+v, %v", out, err)
	}
	if out.Failed() == nil || !strings.Contains(out.Failed().Error(), "exit 7: err") {
		t.Errorf("Failed = %v", out.Failed())
	}
	if out, err := h.RunErr(t.Context(), "no-such-program"); err != nil || out.Exit != 127 {
		t.Errorf("a missing program: %+v, %v; want exit 127", out, err)
	}
	if got := h.RunIn(t, "told\n", "cat"); got != "told\n" {
		t.Errorf("stdin came back as %q", got)
	}
	t.Setenv("OF_THE_TEST", "1")
	if got := h.Run(t, "env"); strings.Contains(got, "OF_THE_TEST") {
		t.Errorf("the test's environment leaks in: %q", got)
	}

	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	go func() { // ends with the first line, or with the pipe
		bufio.NewScanner(r).Scan()
		cancel()
		io.Copy(io.Discard, r)
	}()
	_, err = h.Exec(ctx, Command{Args: []string{"sh", "-c", "echo started; exec sleep 1001"}, Stdout: w})
	w.Close()
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled command: %v", err)
	}
	h.WaitFor(t, "the cancelled command to end", func(ctx context.Context) (bool, string) {
		out, err := h.RunErr(ctx, "pgrep", "-f", "sleep 1001")
		return out.Exit == 1, fmt.Sprint(out, err)
	}, 10*time.Second)
}

func testFiles(t *testing.T, h *Host) {
	// A running program is replaced, although it may not be written to.
	h.Run(t, "cp", "/usr/bin/sleep", "/usr/local/bin/prog")
	h.Run(t, "systemd-run", "--quiet", "--unit=prog", "/usr/local/bin/prog", "1002")
	script := filepath.Join(t.TempDir(), "script")
	must(t, os.WriteFile(script, []byte("#!/bin/sh\necho replaced\n"), 0o600))
	h.Copy(t, script, "/usr/local/bin/prog", 0o755)
	if got := h.Run(t, "prog"); got != "replaced\n" {
		t.Errorf("the copied program says %q", got)
	}
	h.Run(t, "systemctl", "stop", "prog")

	// What systemd mounts inside is reached, and folders are made.
	h.WriteFile(t, "/run/a/b/c", "in run", 0o640)
	if got := h.Run(t, "stat", "-c", "%a %U", "/run/a/b/c"); got != "640 root\n" {
		t.Errorf("/run/a/b/c: %q", got)
	}
	if got := h.ReadFile(t, "/run/a/b/c"); got != "in run" {
		t.Errorf("ReadFile = %q", got)
	}

	// An absolute symlink of the host means the host's file.
	name := fmt.Sprintf("/var/tmp/escape-%d", os.Getpid())
	h.Run(t, "ln", "-s", "/var/tmp", "/opt/link")
	h.WriteFile(t, "/opt/link/"+filepath.Base(name), "inside", 0o600)
	if exists(name) {
		t.Errorf("the copy left the host: %s is on this machine", name)
	}
	if got := h.Run(t, "cat", name); got != "inside" {
		t.Errorf("the host's file holds %q", got)
	}

	tree := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(tree, "sub"), 0o750))
	must(t, os.WriteFile(filepath.Join(tree, "sub", "f"), []byte("x"), 0o640))
	must(t, os.Symlink("sub/f", filepath.Join(tree, "l")))
	h.CopyDir(t, tree, "/srv/tree")
	if got := h.Run(t, "sh", "-c", "cd /srv/tree; stat -c '%a %n' sub sub/f; readlink l; cat l"); got != "750 sub\n640 sub/f\nsub/f\nx" {
		t.Errorf("the tree arrived as %q", got)
	}
	if _, err := h.ReadFileErr("/no/such"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}

func testConnections(t *testing.T, bed *Bed) {
	h1, h2 := bed.Host(1), bed.Host(2)
	h1.WriteFile(t, "/etc/systemd/system/hi.socket", "[Socket]\nListenStream=8080\nAccept=yes\n", 0o644)
	h1.WriteFile(t, "/etc/systemd/system/hi@.service", "[Service]\nExecStart=/bin/echo hi from %H\nStandardOutput=socket\n", 0o644)
	h1.Run(t, "systemctl", "start", "hi.socket")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for from, ns := range map[string]*Namespace{"the internet": bed.Internet(), "host2": &h2.Namespace} {
		for _, ip := range []string{h1.IPv4(), h1.IPv6()} {
			conn, err := ns.Dial(ctx, "tcp", net.JoinHostPort(ip, "8080"))
			if err != nil {
				t.Fatalf("dial from %s: %v", from, err)
			}
			raw, err := io.ReadAll(conn)
			conn.Close()
			if string(raw) != "hi from host1\n" {
				t.Errorf("from %s: %q, %v", from, raw, err)
			}
		}
	}
	if conn, err := bed.Internet().Dial(ctx, "tcp", h1.IPv4()+":8081"); err == nil {
		conn.Close()
		t.Error("a port that nobody listens on answers")
	}
	if got := bed.Internet().Run(t, "ip", "-brief", "link", "show", "br0"); !strings.HasPrefix(got, "br0 ") {
		t.Errorf("a command in the internet sees %q", got)
	}

	l, err := bed.Internet().Listen(ctx, "tcp", FarIPv4+":80")
	must(t, err)
	defer l.Close()
	go func() { // ends with the listener
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			io.WriteString(conn, "far away\n")
			conn.Close()
		}
	}()
	if got := h2.Run(t, "nc", "-d", "-w", "5", FarIPv4, "80"); got != "far away\n" {
		t.Errorf("from the internet: %q", got)
	}
}

func testLink(t *testing.T, h1, h2 *Host) {
	ping := func(ctx context.Context) (bool, string) {
		out, err := h1.RunErr(ctx, "ping", "-c1", "-W1", h2.IPv4())
		return out.Exit == 0, fmt.Sprint(out, err)
	}
	carrier := func() string { return h1.Run(t, "cat", "/sys/class/net/"+Link+"/carrier") }

	h1.CutLink(t)
	if ok, state := ping(t.Context()); ok {
		t.Errorf("a cut link carries packets: %s", state)
	}
	if got := carrier(); got != "1\n" {
		t.Errorf("CutLink is to be silent, but the carrier is %q", got)
	}
	h1.RestoreLink(t)
	h1.WaitFor(t, "the link to carry packets", ping, 20*time.Second)

	h1.DropCarrier(t)
	if ok, state := ping(t.Context()); ok {
		t.Errorf("a link without carrier carries packets: %s", state)
	}
	if got := carrier(); got != "0\n" {
		t.Errorf("after DropCarrier the carrier is %q", got)
	}
	h1.RestoreLink(t)
	h1.WaitFor(t, "the link to carry packets", ping, 20*time.Second)
}

// TestLives kills, boots, reboots and stops one host. A kill leaves the page cache alone, so this says
// nothing of writes that were not synced.
func TestLives(t *testing.T) {
	bed := New(t, 1)
	h := bed.Host(1)
	life := func() string {
		return h.Run(t, "cat", "/proc/sys/kernel/random/boot_id") // nspawn gives each boot its own
	}
	first := life()
	h.Run(t, "sh", "-c", "echo kept > /var/lib/kept; sync /var/lib/kept; echo gone > /run/gone")

	h.Kill(t)
	if up, err := h.UpErr(); up || err != nil {
		t.Errorf("after the kill: up %v, %v", up, err)
	}
	var refused *refusal.Refusal
	if _, err := h.RunErr(t.Context(), "true"); !errors.As(err, &refused) {
		t.Errorf("a command in a dead host: %v; want a refusal", err)
	}
	if got := h.ReadFile(t, "/var/lib/kept"); got != "kept\n" {
		t.Errorf("the dead host's file holds %q", got)
	}
	h.WriteFile(t, "/etc/while-down", "written while down", 0o644)
	if _, err := h.Dial(t.Context(), "tcp", InternetIPv4+":1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the dead host's network: %v; want that it is gone", err)
	}

	h.Boot(t)
	second := life()
	if second == first {
		t.Error("the second life has the boot id of the first")
	}
	if got := h.Run(t, "cat", "/var/lib/kept", "/etc/while-down"); got != "kept\nwritten while down" {
		t.Errorf("the files of before: %q", got)
	}
	h.Run(t, "test", "!", "-e", "/run/gone")
	reach(t, bed, h)
	h.Run(t, "journalctl", "--boot=-1", "--lines=1") // fails unless the journal of the first life is there

	h.Reboot(t)
	third := life()
	if third == second {
		t.Error("the reboot changed no boot id")
	}
	reach(t, bed, h)

	h.Stop(t)
	h.Stop(t) // down already
	h.Boot(t)
	h.Boot(t) // up already
	if got := h.Run(t, "systemctl", "is-system-running"); got != "running\n" {
		t.Errorf("after stop and boot the host is %q", got)
	}

	h.Run(t, "systemctl", "poweroff", "--no-block")
	h.WaitFor(t, "the host to switch itself off", func(context.Context) (bool, string) {
		up, err := h.UpErr()
		return err == nil && !up, fmt.Sprint(up, err)
	}, 30*time.Second)
	h.Boot(t)
}

// TestSideBySide has two beds with the same addresses at once, one found again through its folder, and
// looks for what they leave.
func TestSideBySide(t *testing.T) {
	clk := clock.Real()
	log := slog.New(slog.DiscardHandler)
	a := New(t, 1)
	dir := filepath.Join(stateFolder(t), "bed")
	start := clk.Now()
	b, err := Start(t.Context(), dir, 3, log)
	must(t, err)
	t.Cleanup(func() { must(t, b.Down(context.WithoutCancel(t.Context()))) })
	t.Logf("3 hosts were up after %v", clk.Now().Sub(start))

	again, err := Open(dir)
	must(t, err)
	if again.Len() != 3 {
		t.Fatalf("found again with %d hosts", again.Len())
	}
	again.Host(1).Run(t, "touch", "/etc/of-b")
	for _, bed := range []*Bed{a, again} {
		reach(t, bed, bed.Host(1))
	}
	a.Host(1).Run(t, "test", "!", "-e", "/etc/of-b")

	if _, err := Start(t.Context(), dir, 1, log); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("a second bed in the same folder: %v", err)
	}
	if left := traces(t, b); len(left) < 10 {
		t.Errorf("a standing bed shows only %q: the search for traces is blind", left)
	}
	start = clk.Now()
	must(t, again.Down(t.Context()))
	t.Logf("3 hosts were gone after %v", clk.Now().Sub(start))
	if left := traces(t, b); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	must(t, again.Down(t.Context()))
	if _, err := Open(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("open what was taken down: %v", err)
	}
	reach(t, a, a.Host(1))
	a.Host(1).Run(t, "systemctl", "is-system-running")
}

// TestKilledTest boots a bed in another process, kills that, and expects the next test to find the bed
// standing and to take it down.
func TestKilledTest(t *testing.T) {
	if os.Getenv("HOSTS_HELPER") != "" {
		bed := New(t, 1)
		fmt.Println("bed " + bed.Dir())
		io.Copy(io.Discard, os.Stdin) // until the kill
		return
	}
	all := stateFolder(t)
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKilledTest$")
	cmd.Env = append(os.Environ(), "HOSTS_HELPER=1", StateEnv+"="+all)
	stdin, err := cmd.StdinPipe()
	must(t, err)
	defer stdin.Close()
	stdout, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	var dir string
	for lines := bufio.NewScanner(stdout); dir == "" && lines.Scan(); {
		if at, ok := strings.CutPrefix(lines.Text(), "bed "); ok {
			dir = at
		}
	}
	sweep(t, all) // its test lives: the bed stays
	bed, err := Open(dir)
	must(t, err)
	must(t, cmd.Process.Kill())
	cmd.Wait() // "signal: killed"
	bed.Host(1).Run(t, "systemctl", "is-system-running")

	sweep(t, all)
	if left := traces(t, bed); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	if left, _ := filepath.Glob(filepath.Join(all, "test-*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// reach fails the test unless the host refuses a connection from the internet: only a host that is there does.
func reach(t *testing.T, bed *Bed, h *Host) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	conn, err := bed.Internet().Dial(ctx, "tcp", h.IPv4()+":1")
	if err == nil {
		conn.Close()
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("reach %s from the internet: %v", h.Name, err)
	}
}

// stateFolder is a folder of the test's own below where all beds of tests are kept: a bed cannot lie on an
// overlay, which t.TempDir may be.
func stateFolder(t *testing.T) string {
	t.Helper()
	dir, release := testDir(t)
	t.Cleanup(func() {
		os.RemoveAll(dir)
		release()
	})
	return dir
}

// traces lists what the machine shows of a bed: files, mounts, namespaces, cgroups, links and processes.
func traces(t *testing.T, b *Bed) []string {
	t.Helper()
	var found []string
	add := func(what, where string) {
		if strings.Contains(where, b.state.ID) || strings.Contains(where, b.dir+"/") {
			found = append(found, what+" "+where)
		}
	}
	if exists(b.dir) {
		add("folder", b.dir+"/")
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	for line := range strings.Lines(string(mounts)) {
		add("mount", line)
	}
	for _, pattern := range []string{
		netnsDir + "/*", "/run/systemd/nspawn/*/*", filepath.Dir(b.state.Cgroup) + "/*", "/sys/class/net/*",
	} {
		names, err := filepath.Glob(pattern)
		must(t, err)
		for _, n := range names {
			add("entry", n)
		}
	}
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must(t, err)
	for _, file := range lines {
		raw, _ := os.ReadFile(file) // it may have ended
		add("process", strings.ReplaceAll(string(raw), "\x00", " "))
	}
	return found
}
