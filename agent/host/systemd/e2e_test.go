package systemd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mesh/shared/clock"
	"mesh/shared/waitfor"
	"mesh/testbus/hosts"
)

// TestOnABootedHost copies this test's own binary into a real Debian host with systemd as PID 1 and runs
// it there; in there it runs the cases.
func TestOnABootedHost(t *testing.T) {
	if onHost() {
		for _, c := range []struct {
			name string
			test func(*testing.T, *Conn)
		}{
			{"jobs and states", testJobs}, {"errors", testErrors}, {"settle", testSettle}, {"enable", testEnable},
			{"run", testRun}, {"events", testEvents}, {"bus names", testBusNames}, {"deadline", testDeadline},
			{"redial", testRedial}, {"no bus", testNoBus},
		} {
			t.Run(c.name, func(t *testing.T) {
				conn := New(clock.Real())
				defer conn.Close()
				c.test(t, conn)
			})
		}
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	host := hosts.New(t, 1).Host(1)
	host.Copy(t, self, "/root/systemd.test", 0o755)
	out, err := host.Exec(t.Context(), hosts.Command{
		Args: []string{"/root/systemd.test", "-test.run=^TestOnABootedHost$", "-test.v", "-test.timeout=3m"},
		Env:  []string{"MESH_TEST_ON_HOST=1"},
	})
	t.Logf("in the host:\n%s%s", out.Stdout, out.Stderr)
	if err != nil || out.Exit != 0 {
		t.Fatalf("in the host: exit %d, %v", out.Exit, err)
	}
}

// unit writes a unit file; reload is the caller's.
func unit(t *testing.T, name, body string) string {
	t.Helper()
	path := filepath.Join("/run/systemd/system", name)
	if strings.Contains(body, "[Install]") {
		path = filepath.Join("/etc/systemd/system", name)
	}
	if err := os.WriteFile(path, []byte(body), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func service(t *testing.T, name, lines string) {
	t.Helper()
	unit(t, name, "[Service]\n"+lines+"\n")
}

func ok[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func reload(t *testing.T, c *Conn) {
	t.Helper()
	if err := c.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func testJobs(t *testing.T, c *Conn) {
	service(t, "t-run.service", "ExecStart=/bin/sleep 1000")
	service(t, "t-false.service", "Type=oneshot\nExecStart=/bin/sh -c 'exit 3'")
	reload(t, c)
	r := ok[JobResult](t)(c.Start(t.Context(), "t-run.service"))
	if r.Result != "done" || !r.State.Running() || r.State.MainPID == 0 || len(r.State.Invocation) != 32 || r.State.Type != "simple" || r.State.ActiveSince == 0 {
		t.Errorf("Start: %+v", r)
	}
	again := ok[JobResult](t)(c.Start(t.Context(), "t-run.service"))
	if again.State.Invocation != r.State.Invocation {
		t.Errorf("a second Start began another life: %+v", again)
	}
	restarted := ok[JobResult](t)(c.Restart(t.Context(), "t-run.service"))
	if restarted.Result != "done" || restarted.State.Invocation == r.State.Invocation {
		t.Errorf("Restart: %+v", restarted)
	}
	service(t, "t-run.service", "ExecStart=/bin/sleep 2000")
	if s := ok[UnitState](t)(c.state(t.Context(), "t-run.service")); !s.NeedReload {
		t.Errorf("after a rewrite of the file: %+v", s)
	}
	if r = ok[JobResult](t)(c.Stop(t.Context(), "t-run.service")); r.Result != "done" || !r.State.Stopped() {
		t.Errorf("Stop: %+v", r)
	}
	if r = ok[JobResult](t)(c.Start(t.Context(), "t-false.service")); r.Result != "failed" || r.State.Active != "failed" || r.State.ExitStatus != 3 {
		t.Errorf("Start of what fails: %+v", r)
	}
	for range 2 { // a second time there is nothing to forget
		if err := c.ResetFailed(t.Context(), "t-false.service"); err != nil {
			t.Error(err)
		}
	}
	all := ok[map[string]UnitState](t)(c.List(t.Context(), []string{"t-run.service", "t-none.service", "dbus.socket", "/"}))
	if all["t-run.service"].Load != "loaded" || all["t-none.service"].Load != "not-found" || all["dbus.socket"].Active != "active" || all["/"].Load != "not-found" {
		t.Errorf("List: %+v", all)
	}
	full := ok[map[string]UnitState](t)(c.States(t.Context(), []string{"dbus.socket", "basic.target", "t-none.service"}))
	if full["dbus.socket"].ActiveSince == 0 || full["basic.target"].Active != "active" {
		t.Errorf("States of units that are no services: %+v", full)
	}
	if found := ok[map[string]UnitState](t)(c.Matching(t.Context(), "dbus.s*")); len(found) != 2 {
		t.Errorf("Matching: %+v", found)
	}
}

func testErrors(t *testing.T, c *Conn) {
	service(t, "t-bad.service", "Type=nonsense")
	unit(t, "t-masked.service", "[Service]\nExecStart=/bin/true\n")
	os.Remove("/run/systemd/system/t-masked.service")
	os.Symlink("/dev/null", "/run/systemd/system/t-masked.service")
	reload(t, c)
	for name, want := range map[string]error{"t-none.service": ErrNoUnit, "t-bad.service": ErrBadUnit, "t-masked.service": ErrMasked} {
		if _, err := c.Start(t.Context(), name); !errors.Is(err, want) {
			t.Errorf("Start %s: %v, want %v", name, err, want)
		}
	}
	if _, err := c.Stop(t.Context(), "t-none.service"); !errors.Is(err, ErrNoUnit) {
		t.Errorf("Stop: %v", err)
	}
}

func testSettle(t *testing.T, c *Conn) {
	service(t, "t-dies2.service", "Type=oneshot\nExecStart=/bin/false")
	for _, tt := range []struct{ name, body, why string }{
		{"good", "ExecStart=/bin/sleep 1000", ""},
		{"once", "Type=oneshot\nExecStart=/bin/true", ""},
		{"dies", "ExecStart=/bin/false", "it failed: exit-code, status 1"},
		{"gone", "ExecStart=/no/such/program", "it failed: exit-code, status 203"},
		{"loop", "ExecStart=/bin/sh -c 'sleep 0.3; exit 4'\nRestart=always\nRestartSec=100ms", "it "},
		{"cond", "ExecStart=/bin/true\n[Unit]\nConditionPathExists=/no/such/file", "a condition of the unit does not hold"},
		{"late", "Type=notify\nExecStart=/bin/sleep 1000\nTimeoutStartSec=1", "it failed: timeout"},
		{"ends", "ExecStart=/bin/sleep 0.2", "it ended by itself: success"},
		{"dep", "ExecStart=/bin/sleep 1000\n[Unit]\nRequires=t-dies2.service\nAfter=t-dies2.service", "it was not started: the job ended with dependency"},
	} {
		name := "t-" + tt.name + ".service"
		service(t, name, tt.body)
		reload(t, c)
		r, err := c.Start(t.Context(), name)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		v := ok[Verdict](t)(c.Settle(t.Context(), r, time.Second))
		if v.OK != (tt.why == "") || !strings.Contains(v.Why, tt.why) {
			t.Errorf("%s: %+v, want %q", tt.name, v, tt.why)
		}
		if _, err := c.Stop(t.Context(), name); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

func testEnable(t *testing.T, c *Conn) {
	names := []string{"t-e1.service", "t-e2.service"}
	for _, name := range names {
		unit(t, name, "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n")
	}
	reload(t, c)
	for i, want := range []bool{true, false} {
		if changed := ok[bool](t)(c.Enable(t.Context(), names)); changed != want {
			t.Errorf("Enable %d: changed %v", i, changed)
		}
	}
	reload(t, c)
	if s := ok[UnitState](t)(c.state(t.Context(), names[0])); s.File != "enabled" {
		t.Errorf("after Enable: %+v", s)
	}
	for i, want := range []bool{true, false} {
		if changed := ok[bool](t)(c.Disable(t.Context(), names)); changed != want {
			t.Errorf("Disable %d: changed %v", i, changed)
		}
	}
}

func testRun(t *testing.T, c *Conn) {
	for _, tt := range []struct {
		argv   []string
		exit   int
		output string
	}{
		{[]string{"true"}, 0, ""},
		{[]string{"sh", "-c", "echo out; echo err >&2; exit 7"}, 7, "out\nerr\n"},
		{[]string{"sh", "-c", "kill -9 $$"}, 137, ""},
		{[]string{"echo", "${HOME}", "$PATH", "100%", "%n"}, 0, "${HOME} $PATH 100% %n\n"},
		{[]string{"groupadd", "--system", "t-group"}, 0, ""},
	} {
		exit, output, err := c.Run(t.Context(), "mesh-t-run", tt.argv)
		if err != nil || exit != tt.exit || output != tt.output {
			t.Errorf("Run %v = %d, %q, %v", tt.argv, exit, output, err)
		}
	}
	if _, _, err := c.Run(t.Context(), "mesh-t-run", []string{"no-such-program"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no such program: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, _, err := c.Run(ctx, "mesh-t-run", []string{"sh", "-c", "trap '' TERM; sleep 1000 & wait"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("past its time: %v", err)
	}
	if out, _ := exec.Command("pgrep", "-f", "sleep 1000").Output(); len(out) > 0 {
		t.Errorf("left running: %s", out)
	}
	// As somebody, somewhere, with an environment.
	if err := os.WriteFile("/run/mesh-t.env", []byte("B=\"from a file\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	exit, output, err := c.RunAs(t.Context(), "mesh-t-run", Program{Argv: []string{"sh", "-c", `id -un; pwd; echo "$A, $B"; exit 3`}, User: "nobody", Directory: "/usr/lib", Env: []string{"A=a b"}, EnvFile: "/run/mesh-t.env"})
	if exit != 3 || output != "nobody\n/usr/lib\na b, from a file\n" || err != nil {
		t.Errorf("as nobody: %d, %q, %v", exit, output, err)
	}
	if out, err := exec.Command("journalctl", "--no-pager", "--quiet", "--output=cat", "--grep=id -un").Output(); len(out) > 0 {
		t.Errorf("it is in the journal: %s, %v", out, err)
	}
	// An agent that was killed left its run behind.
	left := exec.Command("systemd-run", "--unit=mesh-t-run", "--property=Type=oneshot", "--remain-after-exit", "--no-block", "sleep", "0.5")
	if out, err := left.CombinedOutput(); err != nil {
		t.Fatalf("systemd-run: %v: %s", err, out)
	}
	if exit, output, err := c.Run(t.Context(), "mesh-t-run", []string{"echo", "after"}); exit != 0 || output != "after\n" || err != nil {
		t.Errorf("after one that was left: %d, %q, %v", exit, output, err)
	}
	if found := ok[map[string]UnitState](t)(c.Matching(t.Context(), "mesh-t-run*")); len(found) != 0 {
		t.Errorf("left behind: %+v", found)
	}
}

// next waits for an event about name, or about all.
func next(t *testing.T, events <-chan Event, name string) {
	t.Helper()
	for deadline := time.After(soon); ; {
		select {
		case e, open := <-events:
			if !open {
				t.Fatal("the events ended")
			}
			if e.Unit == name {
				return
			}
		case <-deadline:
			t.Fatalf("no event for %q", name)
		}
	}
}

func testEvents(t *testing.T, c *Conn) {
	service(t, "t-event.service", "ExecStart=/bin/sleep 1000")
	reload(t, c)
	ctx, cancel := context.WithCancel(t.Context())
	events := c.Events(ctx)
	next(t, events, "") // watching began
	r := ok[JobResult](t)(c.Start(t.Context(), "t-event.service"))
	next(t, events, "t-event.service")
	if err := exec.Command("kill", "-9", fmt.Sprint(r.State.MainPID)).Run(); err != nil {
		t.Fatal(err)
	}
	waitfor.True(t, "the death is known", soon, func() (bool, any) {
		next(t, events, "t-event.service")
		s, err := c.state(t.Context(), "t-event.service")
		return err == nil && s.Active == "failed", s
	})
	// A second watch on the same session, and nobody reading: neither may block the other.
	other := c.Events(ctx)
	next(t, other, "")
	ok[JobResult](t)(c.Start(t.Context(), "t-event.service"))
	next(t, other, "t-event.service")
	ok[JobResult](t)(c.Stop(t.Context(), "t-event.service"))
	cancel()
	for _, ch := range []<-chan Event{events, other} {
		for range ch { // until closed
		}
	}
}

func testBusNames(t *testing.T, c *Conn) {
	if names := ok[[]string](t)(c.BusNames(t.Context())); !slices.Contains(names, busName) {
		t.Errorf("BusNames = %v", names)
	}
}

func testDeadline(t *testing.T, c *Conn) {
	service(t, "t-slow.service", "Type=oneshot\nExecStart=/bin/sleep 1000")
	reload(t, c)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	r, err := c.Start(ctx, "t-slow.service")
	if !errors.Is(err, context.DeadlineExceeded) || r.Result != unknown || r.State.Active != "activating" {
		t.Errorf("Start = %+v, %v", r, err)
	}
	ok[JobResult](t)(c.Stop(t.Context(), "t-slow.service"))
}

// testRedial takes the bus and systemd itself away under a living Conn.
func testRedial(t *testing.T, c *Conn) {
	service(t, "t-redial.service", "Type=oneshot\nRemainAfterExit=yes\nExecStart=/bin/sleep 2")
	reload(t, c)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events := c.Events(ctx)
	next(t, events, "")
	for _, shock := range [][]string{
		{"systemctl", "restart", "dbus.service"},
		{"systemctl", "daemon-reexec"},
		{"systemctl", "kill", "--signal=KILL", "dbus.service"},
	} {
		started := make(chan error, 1)
		go func() {
			r, err := c.Start(t.Context(), "t-redial.service")
			if err == nil && !r.State.Running() {
				err = fmt.Errorf("%+v", r)
			}
			started <- err
		}()
		waitfor.True(t, "the start is under way", soon, func() (bool, any) {
			out, _ := exec.Command("systemctl", "show", "--value", "-p", "ActiveState", "t-redial.service").Output()
			return strings.TrimSpace(string(out)) == "activating", string(out)
		})
		if out, err := exec.Command(shock[0], shock[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", shock, err, out)
		}
		if err := waitfor.Value(t, "the start over "+strings.Join(shock, " "), soon, started); err != nil {
			t.Errorf("%v: %v", shock, err)
		}
		if shock[1] != "daemon-reexec" { // that one the bus outlives
			next(t, events, "")
		}
		ok[JobResult](t)(c.Stop(t.Context(), "t-redial.service"))
		next(t, events, "t-redial.service")
	}
	cancel()
	for range events { // until closed
	}
}

// testNoBus stops the bus for good: systemd's private socket carries on.
func testNoBus(t *testing.T, c *Conn) {
	service(t, "t-nobus.service", "ExecStart=/bin/sleep 1000")
	if out, err := exec.Command("systemctl", "stop", "dbus.socket", "dbus.service").CombinedOutput(); err != nil {
		t.Fatalf("stop the bus: %v: %s", err, out)
	}
	defer exec.Command("systemctl", "start", "dbus.socket").Run()
	reload(t, c)
	ctx, cancel := context.WithCancel(t.Context())
	events := c.Events(ctx)
	next(t, events, "")
	r := ok[JobResult](t)(c.Start(t.Context(), "t-nobus.service"))
	if r.Result != "done" || !r.State.Running() {
		t.Errorf("Start: %+v", r)
	}
	next(t, events, "t-nobus.service")
	if exit, output, err := c.Run(t.Context(), "mesh-t-nobus", []string{"echo", "hi"}); exit != 0 || output != "hi\n" || err != nil {
		t.Errorf("Run: %d, %q, %v", exit, output, err)
	}
	if _, err := c.BusNames(t.Context()); !errors.Is(err, ErrUnavailable) {
		t.Errorf("BusNames: %v", err)
	}
	if err := exec.Command("systemctl", "daemon-reexec").Run(); err != nil {
		t.Fatal(err)
	}
	r = ok[JobResult](t)(c.Stop(t.Context(), "t-nobus.service"))
	if !r.State.Stopped() {
		t.Errorf("Stop after a re-execution: %+v", r)
	}
	cancel()
	for range events { // until closed
	}
}
