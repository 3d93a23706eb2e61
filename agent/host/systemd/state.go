package systemd

import (
	"context"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	sdbus "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
)

// UnitState is what systemd says of a unit. List fills the first four fields, States all of them; what
// a unit's type does not have stays zero.
type UnitState struct {
	Name string
	// Load is "loaded", "not-found", "bad-setting", "error" or "masked".
	Load string
	// Active is "active", "reloading", "inactive", "failed", "activating" or "deactivating".
	Active string
	// Sub is the finer state of the unit's type, such as "running", "exited", "auto-restart".
	Sub string

	// File is "enabled", "disabled", "static", "linked" and so on; empty for a unit without a file.
	File string
	// Fragment is the path of the file the unit was read from.
	Fragment string
	// Invocation tells two lives of a unit apart; the journal keeps it with each line.
	Invocation string
	// DropIns are the files beside Fragment that change the unit, one a line (systemd.unit(5)).
	DropIns string
	// Job: systemd has something to do with the unit that is not over, such as a start that waits.
	Job bool
	// NeedReload: the file changed since it was read, so a restart would start the old definition.
	NeedReload bool
	// ConditionFailed: the last start was skipped because a Condition…= of the unit did not hold.
	ConditionFailed bool
	// ActiveSince is when the unit last became active, Unix milliseconds, or 0.
	ActiveSince int64
	// Type is a service's Type=.
	Type string
	// Restarts counts the automatic ones since the unit was last started by hand.
	Restarts int
	// Result is a service's last one: "success", "exit-code", "signal", "timeout", "start-limit-hit" …; reset
	// by each start, so a restart loop shows "success" for a moment.
	Result string
	// ExitCode is 1 if the main process exited, 2 if a signal ended it, 3 with a core dump (CLD_* of
	// sigaction(2)); ExitStatus the exit status or the signal.
	ExitCode, ExitStatus int
	MainPID              int
}

// Running reports whether the unit is up.
func (u UnitState) Running() bool { return u.Active == "active" || u.Active == "reloading" }

// Stopped reports whether nothing of the unit runs; a unit that failed has stopped as well.
func (u UnitState) Stopped() bool { return u.Active == "inactive" || u.Active == "failed" }

// List looks at all units in one call (200 in 5 ms) and returns them by name, each of them: one that
// does not exist has Load "not-found".
func (c *Conn) List(ctx context.Context, units []string) (map[string]UnitState, error) {
	if len(units) == 0 {
		return map[string]UnitState{}, nil
	}
	var out map[string]UnitState
	err := c.do(ctx, "list units", callTimeout, func(ctx context.Context, s *session) (err error) {
		out, err = s.list(ctx, units)
		return err
	})
	return out, err
}

// Matching lists the loaded units whose name fits one of the patterns (glob(7)).
func (c *Conn) Matching(ctx context.Context, patterns ...string) (map[string]UnitState, error) {
	var out map[string]UnitState
	err := c.do(ctx, "list units "+strings.Join(patterns, " "), callTimeout, func(ctx context.Context, s *session) error {
		found, err := s.ListUnitsByPatternsContext(ctx, nil, patterns)
		out = byName(found)
		return err
	})
	return out, err
}

// States is List with all fields filled. It costs some 17 small questions a unit (2 ms): ask it of the
// units that List shows changed, not of all.
func (c *Conn) States(ctx context.Context, units []string) (map[string]UnitState, error) {
	out := map[string]UnitState{}
	if len(units) == 0 {
		return out, nil
	}
	err := c.do(ctx, "states of units", callTimeout, func(ctx context.Context, s *session) error {
		listed, err := s.list(ctx, units)
		if err != nil {
			return err
		}
		for name, u := range listed {
			if err := c.fill(ctx, s, &u); err != nil {
				return err
			}
			out[name] = u
		}
		return nil
	})
	return out, err
}

// state is States of one unit.
func (c *Conn) state(ctx context.Context, unit string) (UnitState, error) {
	all, err := c.States(ctx, []string{unit})
	return all[unit], err
}

func (s *session) list(ctx context.Context, units []string) (map[string]UnitState, error) {
	found, err := s.ListUnitsByNamesContext(ctx, units)
	if err != nil {
		return nil, err
	}
	out := byName(found)
	for _, name := range units {
		if _, ok := out[name]; !ok { // an alias: systemd answers with the unit's own name
			one, err := s.ListUnitsByNamesContext(ctx, []string{name})
			if err != nil {
				return nil, err
			}
			out[name] = UnitState{Name: name, Load: "not-found", Active: "inactive", Sub: "dead"} // not even a valid name
			for _, u := range byName(one) {
				out[name] = u
			}
		}
	}
	return out, nil
}

func byName(found []sdbus.UnitStatus) map[string]UnitState {
	out := make(map[string]UnitState, len(found))
	for _, u := range found {
		out[u.Name] = UnitState{Name: u.Name, Load: u.LoadState, Active: u.ActiveState, Sub: u.SubState}
	}
	return out
}

// job is what a unit's property of that name holds; without a job the ID is 0.
type job struct {
	ID   uint32
	Path dbus.ObjectPath
}

// property names one property and where its value goes.
type property struct {
	name string
	into any
}

// fill is the session's, for a few units at once.
func (c *Conn) fill(ctx context.Context, s *session, u *UnitState) error {
	select {
	case c.asking <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-c.asking }()
	return s.fill(ctx, u)
}

// fill asks for the single properties, all at once over the one socket: fetching all of a unit's
// properties takes 50 times as long.
func (s *session) fill(ctx context.Context, u *UnitState) error {
	if u.Load != "loaded" {
		return nil
	}
	var invocation []byte
	var condition bool
	var since, tested uint64
	var job job
	var dropIns []string
	ask := map[string][]property{"Unit": {
		{"UnitFileState", &u.File}, {"FragmentPath", &u.Fragment}, {"InvocationID", &invocation}, {"NeedDaemonReload", &u.NeedReload},
		{"ConditionResult", &condition},
		{"ConditionTimestamp", &tested}, {"ActiveEnterTimestamp", &since}, {"DropInPaths", &dropIns}, {"Job", &job},
	}}
	var restarts, pid uint32
	var code, status int32
	if strings.HasSuffix(u.Name, ".service") {
		ask["Service"] = []property{
			{"Type", &u.Type}, {"NRestarts", &restarts}, {"Result", &u.Result},
			{"ExecMainCode", &code}, {"ExecMainStatus", &status}, {"MainPID", &pid},
		}
	}
	if err := s.get(ctx, u.Name, ask); err != nil {
		return fmt.Errorf("properties of %s: %w", u.Name, err)
	}
	u.DropIns = strings.Join(dropIns, "\n")
	u.Invocation, u.Job = hex.EncodeToString(invocation), job.ID != 0
	u.ActiveSince = int64(since / 1000) // microseconds since 1970
	u.Restarts, u.MainPID, u.ExitCode, u.ExitStatus = int(restarts), int(pid), int(code), int(status)
	// Before the first start ConditionResult is false without having been tested.
	u.ConditionFailed = !condition && tested > 0 && u.Active == "inactive"
	return nil
}

func (s *session) get(ctx context.Context, unit string, ask map[string][]property) error {
	object := s.calls.Object(busName, unitPath(unit))
	type answer struct {
		call *dbus.Call
		into any
	}
	var answers []answer
	for kind, list := range ask {
		for _, p := range list {
			call := object.GoWithContext(ctx, properties+".Get", 0, make(chan *dbus.Call, 1), busName+"."+kind, p.name)
			answers = append(answers, answer{call, p.into})
		}
	}
	for _, a := range answers {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case done := <-a.call.Done:
			var v dbus.Variant
			if err := done.Store(&v); err != nil {
				return err
			}
			if err := v.Store(a.into); err != nil {
				return err
			}
		}
	}
	return nil
}

func unitPath(unit string) dbus.ObjectPath {
	return managerPath + "/unit/" + dbus.ObjectPath(sdbus.PathBusEscape(unit))
}

// Verdict is how a unit did after it was started.
type Verdict struct {
	OK bool
	// Why says in words what is wrong.
	Why string
	// State is the last one seen.
	State UnitState
}

// settleLook is how often Settle looks, so that a failure is known at once.
const settleLook = 200 * time.Millisecond

// Settle judges a start by the unit's state: it must stay up, in the same life, for d, or have run to its
// end if that is its nature (Type=oneshot). A failure that is final ends the wait early.
func (c *Conn) Settle(ctx context.Context, start JobResult, d time.Duration) (Verdict, error) {
	unit, seen := start.State.Name, start.State
	over := c.clock.After(d)
	ticks, stop := c.clock.Every(settleLook)
	defer stop()
	for last := false; ; {
		if v := Judge(start, seen); last || final(v) {
			return v, nil
		}
		select {
		case <-ctx.Done():
			return Judge(start, seen), fmt.Errorf("settle %s: %w", unit, ctx.Err())
		case <-over:
			last = true
		case <-ticks:
		}
		now, err := c.List(ctx, []string{unit}) // one question; all of them where it shows a change, and at the end
		if n := now[unit]; err == nil && (last || n.Load != seen.Load || n.Active != seen.Active || n.Sub != seen.Sub) {
			seen, err = c.state(ctx, unit)
		}
		if err != nil {
			return Judge(start, seen), fmt.Errorf("settle %s: %w", unit, err)
		}
	}
}

// final reports whether waiting on could not turn the verdict to the better.
func final(v Verdict) bool { return !v.OK && v.State.Active != "activating" }

// Judge compares how a start went with the unit's state some time later. It reads nothing.
//
// systemd forgets a unit that ended well as soon as nobody refers to it: then it looks as if it had never
// been started. So what the start saw counts as well.
func Judge(start JobResult, later UnitState) Verdict {
	no := func(format string, args ...any) Verdict {
		return Verdict{Why: fmt.Sprintf(format, args...), State: later}
	}
	first := start.State
	forgotten := later.Active == "inactive" && later.Invocation == ""
	switch {
	case later.Load != "loaded":
		return no("the unit is %s", later.Load)
	case later.Active == "failed":
		return no("it failed: %s", ending(later))
	case first.ConditionFailed || later.ConditionFailed:
		return no("it was not started: a condition of the unit does not hold")
	case later.Sub == "auto-restart":
		return no("it ended (%s) and is about to be started again, restart %d", ending(later), later.Restarts+1)
	case later.Restarts > first.Restarts:
		return no("it was started again %d times", later.Restarts-first.Restarts)
	case later.Active == "activating" || later.Active == "deactivating":
		return no("it is still %s (%s)", later.Active, later.Sub)
	case first.Invocation != "" && !forgotten && later.Invocation != first.Invocation:
		return no("it was started anew meanwhile")
	case later.Running():
		return Verdict{OK: true, State: later}
	case forgotten && first.Invocation == "" && start.Result != "done":
		return no("it was not started: the job ended with %s", start.Result)
	case later.Type == "oneshot" && later.Result == "success":
		return Verdict{OK: true, State: later}
	}
	return no("it ended by itself: %s", ending(later))
}

// ending says how the main process ended.
func ending(u UnitState) string {
	switch {
	case u.ExitCode >= 2:
		return fmt.Sprintf("%s, signal %d", u.Result, u.ExitStatus)
	case u.ExitCode == 1 && u.ExitStatus >= 200 && u.ExitStatus < 250:
		return fmt.Sprintf("%s, status %d: systemd could not start the program (systemd.exec(5))", u.Result, u.ExitStatus)
	case u.ExitCode == 1:
		return fmt.Sprintf("%s, status %d", u.Result, u.ExitStatus)
	case u.Result != "":
		return u.Result
	}
	return u.Sub
}
