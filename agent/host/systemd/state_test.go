package systemd

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	sdbus "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
	"go.uber.org/goleak"

	"mesh/shared/clock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestJudge(t *testing.T) {
	up := UnitState{Name: "a.service", Load: "loaded", Active: "active", Sub: "running", Type: "simple", Invocation: "1", Result: "success"}
	with := func(change func(*UnitState)) UnitState { u := up; change(&u); return u }
	for _, tt := range []struct {
		name         string
		first, later UnitState
		want         string // "" is well
	}{
		{"runs on", up, up, ""},
		{"reloads", up, with(func(u *UnitState) { u.Active = "reloading" }), ""},
		{"a timer", UnitState{Load: "loaded", Active: "active", Sub: "waiting"}, UnitState{Load: "loaded", Active: "active", Sub: "waiting"}, ""},
		{"oneshot that ran to its end", up, with(func(u *UnitState) { u.Type, u.Active, u.Sub = "oneshot", "inactive", "dead" }), ""},
		{"oneshot that was forgotten", up, UnitState{Load: "loaded", Active: "inactive", Sub: "dead", Type: "oneshot", Result: "success"}, ""},
		{"daemon that was forgotten", up, UnitState{Load: "loaded", Active: "inactive", Sub: "dead", Type: "simple", Result: "success"}, "it ended by itself: success"},
		{"condition, then forgotten", with(func(u *UnitState) { u.Active, u.ConditionFailed, u.Invocation = "inactive", true, "" }),
			UnitState{Load: "loaded", Active: "inactive", Sub: "dead", Type: "oneshot", Result: "success"}, "it was not started: a condition of the unit does not hold"},
		{"no file", up, UnitState{Load: "not-found", Active: "inactive"}, "the unit is not-found"},
		{"bad file", up, UnitState{Load: "bad-setting", Active: "inactive"}, "the unit is bad-setting"},
		{"failed with a status", up, with(func(u *UnitState) { u.Active, u.Result, u.ExitCode, u.ExitStatus = "failed", "exit-code", 1, 3 }), "it failed: exit-code, status 3"},
		{"no such program", up, with(func(u *UnitState) { u.Active, u.Result, u.ExitCode, u.ExitStatus = "failed", "exit-code", 1, 203 }), "it failed: exit-code, status 203: systemd could not start the program (systemd.exec(5))"},
		{"killed", up, with(func(u *UnitState) { u.Active, u.Result, u.ExitCode, u.ExitStatus = "failed", "signal", 2, 9 }), "it failed: signal, signal 9"},
		{"not ready in time", up, with(func(u *UnitState) { u.Active, u.Result = "failed", "timeout" }), "it failed: timeout"},
		{"condition", up, with(func(u *UnitState) { u.Active, u.ConditionFailed, u.Invocation = "inactive", true, "" }), "it was not started: a condition of the unit does not hold"},
		{"between two tries", up, with(func(u *UnitState) {
			u.Active, u.Sub, u.Result, u.ExitCode, u.ExitStatus, u.Restarts = "activating", "auto-restart", "exit-code", 1, 1, 2
		}), "it ended (exit-code, status 1) and is about to be started again, restart 3"},
		{"up again", up, with(func(u *UnitState) { u.Invocation, u.Restarts = "2", 4 }), "it was started again 4 times"},
		{"another life", up, with(func(u *UnitState) { u.Invocation = "2" }), "it was started anew meanwhile"},
		{"still starting", up, with(func(u *UnitState) { u.Active, u.Sub = "activating", "start" }), "it is still activating (start)"},
		{"ended by itself", up, with(func(u *UnitState) { u.Active, u.Sub, u.ExitCode = "inactive", "dead", 1 }), "it ended by itself: success, status 0"},
	} {
		v := Judge(JobResult{Result: "done", State: tt.first}, tt.later)
		if v.OK != (tt.want == "") || v.Why != tt.want || v.State != tt.later {
			t.Errorf("%s: %+v, want %q", tt.name, v, tt.want)
		}
	}
}

func TestJudgeKnowsAJobThatStartedNothing(t *testing.T) {
	idle := UnitState{Load: "loaded", Active: "inactive", Sub: "dead", Type: "oneshot", Result: "success"}
	if v := Judge(JobResult{Result: "dependency", State: idle}, idle); v.OK || v.Why != "it was not started: the job ended with dependency" {
		t.Errorf("dependency: %+v", v)
	}
	// Without a bus a oneshot is forgotten before it was looked at.
	if v := Judge(JobResult{Result: "done", State: idle}, idle); !v.OK {
		t.Errorf("done and forgotten: %+v", v)
	}
}

func TestQueueKeepsEachUnitOnce(t *testing.T) {
	var q queue
	for _, u := range []string{"a", "b", "a"} {
		q.add(u)
	}
	if !slices.Equal(q.units, []string{"a", "b"}) {
		t.Errorf("queue %v", q.units)
	}
	q.drop()
	for i := range pendingLimit + 5 {
		q.add(strconv.Itoa(i))
	}
	if e, ok := q.first(); !ok || e.Unit != "" || len(q.units) != 1 {
		t.Errorf("an overfull queue: %v", q.units)
	}
	q.drop()
	if _, ok := q.first(); ok {
		t.Error("an empty queue has a first")
	}
}

func TestUnitOf(t *testing.T) {
	for _, name := range []string{"a.service", "mesh-notes@1.timer", "weird-name_x.service", "9.mount"} {
		s := &dbus.Signal{Name: properties + ".PropertiesChanged", Path: unitPath(name), Body: []any{busName + ".Unit"}}
		if got := unitOf(s); got != name {
			t.Errorf("unitOf(%s) = %q (path %s)", name, got, s.Path)
		}
	}
	if sdbus.PathBusEscape("") != "_" || unescape("_") != "" {
		t.Error("an empty name")
	}
	for _, s := range []*dbus.Signal{
		{Name: "x"}, {Name: properties + ".PropertiesChanged"},
		{Name: properties + ".PropertiesChanged", Path: unitPath("a"), Body: []any{busName + ".Service"}},
		{Name: properties + ".PropertiesChanged", Path: "/other", Body: []any{busName + ".Unit"}},
	} {
		if got := unitOf(s); got != "" {
			t.Errorf("unitOf(%v) = %q", s, got)
		}
	}
}

func TestNobodyThere(t *testing.T) {
	c := New(clock.Real())
	c.busAddress, c.private = "unix:path="+t.TempDir()+"/bus", "unix:path="+t.TempDir()+"/private"
	defer c.Close()
	if _, err := c.List(t.Context(), []string{"a.service"}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("List: %v, want ErrUnavailable", err)
	}
	if _, err := c.Start(t.Context(), "a.service"); !errors.Is(err, ErrUnavailable) {
		t.Errorf("Start: %v, want ErrUnavailable", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	events := c.Events(ctx)
	cancel()
	for range events {
		t.Error("an event from nowhere")
	}
	if _, err := c.List(ctx, []string{"a.service"}); err == nil {
		t.Error("List after the end of ctx")
	}
}

func TestLookPath(t *testing.T) {
	if got, err := lookPath([]string{"sh"}); err != nil || !strings.HasSuffix(got, "bin/sh") {
		t.Errorf("sh: %q, %v", got, err)
	}
	for _, argv := range [][]string{nil, {"no-such-program"}} {
		if _, err := lookPath(argv); err == nil {
			t.Errorf("%v was found", argv)
		}
	}
}

func TestTailIsBounded(t *testing.T) {
	f, err := memory("t")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if s, err := tail(f); s != "" || err != nil {
		t.Errorf("empty: %q, %v", s, err)
	}
	f.WriteString(strings.Repeat("x", outputLimit) + "end")
	if s, err := tail(f); len(s) != outputLimit || !strings.HasSuffix(s, "xend") || err != nil {
		t.Errorf("%d bytes, %v", len(s), err)
	}
}

// onHost says that this process runs inside a booted host (see e2e_test.go).
func onHost() bool { return os.Getenv("MESH_TEST_ON_HOST") != "" }

const soon = 20 * time.Second
