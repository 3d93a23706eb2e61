package apply_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"mesh/agent/host/systemd"
	"mesh/agent/resource"
)

// paperRunner is useradd and groupadd.
type paperRunner struct{ *bed }

func (r paperRunner) Run(_ context.Context, _ string, argv []string) (int, string, error) {
	name := argv[len(argv)-1]
	if filepath.Base(argv[0]) == "env" { // that takes a variable away
		argv = argv[3:]
	}
	switch filepath.Base(argv[0]) {
	case "podman":
		return paperEngine(r).run(argv)
	case "journalctl":
		return 0, "podman said something\nError: cannot listen on the TCP port: listen tcp4 :80: bind: address already in use\nand systemd went on\n", nil
	case "modprobe":
		return 0, "", os.MkdirAll(r.root("/sys/module/"+name), 0o755)
	case "sh": // of a kernel setting: value and file
		return 0, "", os.WriteFile(name, []byte(argv[len(argv)-2]+"\n"), 0o644)
	}
	me, my := os.Geteuid(), os.Getegid()
	line, file := fmt.Sprintf("%s:x:%d:\n", name, my), "/etc/group"
	if filepath.Base(argv[0]) == "useradd" {
		home := argv[slices.IndexFunc(argv, func(a string) bool { return strings.HasPrefix(a, "-d") || strings.HasPrefix(a, "--home") })+1]
		shell := argv[slices.IndexFunc(argv, func(a string) bool { return strings.HasPrefix(a, "-s") || strings.HasPrefix(a, "--shell") })+1]
		f, err := os.OpenFile(r.root("/etc/group"), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			return 1, err.Error(), nil
		}
		_, err = f.WriteString(line)
		if err := errors.Join(err, f.Close()); err != nil {
			return 1, err.Error(), nil
		}
		line, file = fmt.Sprintf("%s:x:%d:%d::%s:%s\n", name, me, my, home, shell), "/etc/passwd"
	}
	f, err := os.OpenFile(r.root(file), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return 1, err.Error(), nil
	}
	_, err = f.WriteString(line)
	return 0, "", errors.Join(err, f.Sync(), f.Close()) // as useradd does
}

// paperPrograms runs what is asked of health: all is well.
type paperPrograms struct {
	mu  sync.Mutex
	all []ranProgram
}

type ranProgram struct {
	name string
	systemd.Program
}

func (r *paperPrograms) RunAs(_ context.Context, name string, p systemd.Program) (int, string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, ranProgram{name, p})
	return 0, "", nil
}

// programs are what was run.
func (b *bed) programs() []ranProgram {
	b.ran.mu.Lock()
	defer b.ran.mu.Unlock()
	return slices.Clone(b.ran.all)
}

// paperUnits is a systemd whose memory is a file, so that it outlives the agent. A unit with "fails" in
// its text fails.
type paperUnits struct {
	*bed
	mu   sync.Mutex
	gone error // what every call gets, when set
	// waits says of a call, "start x.service", that its job is not over until ctx is; nil for none.
	waits func(call string) bool
	// refuses says of a call that it gets an error; nil for none.
	refuses func(call string) error
}

// paperUnit is what systemd knows of one unit.
type paperUnit struct {
	Load, DropIns               string
	Text                        string // as it was last read
	Active, Sub, Result         string
	Running                     string // the sum of the text it was started with
	Saw                         string // what it read when it started
	Invocation, Starts, Restart int
	Status                      int
}

func (u *paperUnits) with(call string, change func(map[string]*paperUnit) error) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.gone != nil {
		return u.gone
	}
	if u.refuses != nil {
		if err := u.refuses(call); err != nil {
			return err
		}
	}
	all := map[string]*paperUnit{}
	text, err := os.ReadFile(u.memory("systemd.json"))
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err = change(all)
	text, err2 := json.Marshal(all)
	err3 := errors.Join(err2, os.WriteFile(u.memory("systemd.new"), text, 0o644), os.Rename(u.memory("systemd.new"), u.memory("systemd.json")))
	f, err4 := os.OpenFile(u.memory("calls"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err4 == nil {
		_, err4 = f.WriteString(call + "\n")
		err4 = errors.Join(err4, f.Close())
	}
	return errors.Join(err, err3, err4)
}

// calls are what was asked since the last time, but not the looks.
func (u *paperUnits) calls(t testing.TB) []string {
	t.Helper()
	text, err := os.ReadFile(u.memory("calls"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	must(t, os.WriteFile(u.memory("calls"), nil, 0o644))
	var out []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "list" && line != "states" {
			out = append(out, line)
		}
	}
	return out
}

func (u *paperUnits) file(name string) (string, bool) {
	text, err := os.ReadFile(u.root(resource.UnitFolder + "/" + name))
	return string(text), err == nil
}

func (u *paperUnits) wants(name string) string {
	target := "multi-user.target.wants/"
	if strings.HasSuffix(name, ".timer") {
		target = "timers.target.wants/"
	}
	return u.root(resource.UnitFolder + "/" + target + name)
}

// sees is the sum of what a module's program reads when it starts: its settings in /etc and its environment.
func (u *paperUnits) sees(name string) string {
	name, service := strings.CutSuffix(name, ".service")
	if !service {
		return ""
	}
	module, _, _ := strings.Cut(strings.TrimPrefix(name, "mesh-"), "-")
	var read []byte
	for _, p := range []string{"/etc/" + module + "/conf", "/etc/" + module + "/key", u.path("state/env/" + name + ".env")} {
		if text, err := os.ReadFile(u.root(p)); err == nil {
			read = append(append(append(read, p...), 0), text...)
		}
	}
	return resource.Sum(read)
}

// boot is the machine coming up: what is enabled is started, as its file says.
func (u *paperUnits) boot() error {
	return u.with("boot", func(all map[string]*paperUnit) error {
		clear(all)
		enabled, err := filepath.Glob(u.root(resource.UnitFolder + "/*.target.wants/[^.]*"))
		for _, p := range enabled {
			name := filepath.Base(p)
			if text, there := u.file(name); there {
				all[name] = &paperUnit{Text: text, Active: "active", Sub: "running", Result: "success", Running: resource.Sum([]byte(text)), Saw: u.sees(name), Invocation: 1}
			}
		}
		return err
	})
}

func (u *paperUnits) state(all map[string]*paperUnit, name string) systemd.UnitState {
	s := systemd.UnitState{Name: name, Load: "not-found", Active: "inactive", Sub: "dead"}
	text, there := u.file(name)
	p := all[name]
	if p == nil && there {
		p = &paperUnit{Text: text, Active: "inactive", Sub: "dead"}
		all[name] = p
	}
	if p == nil {
		return s
	}
	s.Active, s.Sub, s.Result, s.Restarts, s.ExitStatus = p.Active, p.Sub, p.Result, p.Restart, p.Status
	s.NeedReload = p.Text != text
	if p.Text != "" {
		s.Load, s.Fragment = "loaded", resource.UnitFolder+"/"+name
	}
	if p.Load != "" {
		s.Load = p.Load
	}
	s.Invocation, s.DropIns = fmt.Sprint(p.Invocation), p.DropIns
	s.File = "disabled"
	if _, err := os.Lstat(u.wants(name)); err == nil {
		s.File = "enabled"
	}
	return s
}

func (u *paperUnits) look(call string, names []string) (map[string]systemd.UnitState, error) {
	out := map[string]systemd.UnitState{}
	err := u.with(call, func(all map[string]*paperUnit) error {
		for _, n := range names {
			out[n] = u.state(all, n)
		}
		return nil
	})
	return out, err
}

func (u *paperUnits) List(_ context.Context, names []string) (map[string]systemd.UnitState, error) {
	return u.look("list", names)
}

func (u *paperUnits) States(_ context.Context, names []string) (map[string]systemd.UnitState, error) {
	return u.look("states", names)
}

func (u *paperUnits) Reload(context.Context) error {
	return u.with("reload", func(all map[string]*paperUnit) error {
		for name, p := range all {
			text, there := u.file(name)
			p.Text = text
			if !there && p.Active != "active" {
				delete(all, name)
			}
		}
		return nil
	})
}

func (u *paperUnits) Enable(_ context.Context, names []string) (changed bool, err error) {
	err = u.with("enable "+strings.Join(names, " "), func(map[string]*paperUnit) error {
		for _, n := range names {
			if _, there := u.file(n); !there {
				return systemd.ErrNoUnit
			}
			if err := os.Symlink(resource.UnitFolder+"/"+n, u.wants(n)); err == nil {
				changed = true
			}
		}
		return nil
	})
	return changed, err
}

func (u *paperUnits) Disable(_ context.Context, names []string) (changed bool, err error) {
	err = u.with("disable "+strings.Join(names, " "), func(map[string]*paperUnit) error {
		for _, n := range names {
			if err := os.Remove(u.wants(n)); err == nil {
				changed = true
			}
		}
		return nil
	})
	return changed, err
}

func (u *paperUnits) ResetFailed(_ context.Context, name string) error {
	return u.with("reset "+name, func(map[string]*paperUnit) error { return nil })
}

func (u *paperUnits) Start(ctx context.Context, name string) (systemd.JobResult, error) {
	return u.job(ctx, "start", name)
}

func (u *paperUnits) Restart(ctx context.Context, name string) (systemd.JobResult, error) {
	return u.job(ctx, "restart", name)
}

// late leaves a unit on its way, as a job does whose wait was ended.
func (u *paperUnits) late(ctx context.Context, call, name, active string) (job systemd.JobResult, err error) {
	err = u.with(call, func(all map[string]*paperUnit) error {
		u.state(all, name)
		all[name].Active, all[name].Sub = active, "start"
		return nil
	})
	<-ctx.Done()
	return systemd.JobResult{Result: "unknown"}, errors.Join(err, ctx.Err())
}

func (u *paperUnits) job(ctx context.Context, op, name string) (job systemd.JobResult, err error) {
	if u.waits != nil && u.waits(op+" "+name) {
		return u.late(ctx, op+" "+name, name, "activating")
	}
	err = u.with(op+" "+name, func(all map[string]*paperUnit) error {
		u.state(all, name) // loads it
		p := all[name]
		if p == nil || p.Text == "" {
			return systemd.ErrNoUnit
		}
		if op == "restart" || p.Active != "active" {
			p.Active, p.Sub, p.Result, p.Running, p.Saw = "active", "running", "success", resource.Sum([]byte(p.Text)), u.sees(name)
			p.Invocation++
			p.Starts++
			if strings.Contains(p.Text, "fails") {
				p.Active, p.Sub, p.Result = "failed", "failed", "exit-code"
			}
		}
		job = systemd.JobResult{Result: "done", State: u.state(all, name)}
		return nil
	})
	return job, err
}

func (u *paperUnits) Stop(ctx context.Context, name string) (job systemd.JobResult, err error) {
	if u.waits != nil && u.waits("stop "+name) {
		return u.late(ctx, "stop "+name, name, "deactivating")
	}
	err = u.with("stop "+name, func(all map[string]*paperUnit) error {
		p := all[name]
		if p == nil {
			return systemd.ErrNoUnit
		}
		p.Active, p.Sub, p.Running = "inactive", "dead", ""
		job = systemd.JobResult{Result: "done", State: u.state(all, name)}
		return nil
	})
	return job, err
}

func (u *paperUnits) Settle(_ context.Context, start systemd.JobResult, _ time.Duration) (systemd.Verdict, error) {
	all, err := u.look("states", []string{start.State.Name})
	return systemd.Judge(start, all[start.State.Name]), err
}

// by changes what systemd knows of a unit, as something else than mesh did.
func (u *paperUnits) by(t testing.TB, name string, change func(*paperUnit)) {
	t.Helper()
	must(t, u.with("states", func(all map[string]*paperUnit) error {
		change(all[name])
		return nil
	}))
}

func (u *paperUnits) get(t testing.TB, name string) (p paperUnit) {
	t.Helper()
	u.by(t, name, func(q *paperUnit) {
		if q != nil {
			p = *q
		}
	})
	return p
}
