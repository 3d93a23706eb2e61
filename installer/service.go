package installer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"mesh/installer/unit"
)

// service is one of mesh's daemons on the machine: its program, its unit, and how both were before.
type service struct {
	i       *Installer
	program string
	unit    string
	text    string

	file *place // the unit's
	// before: whether it ran and was enabled when the run began.
	ran, enabled bool
	known        bool
	// changed: it has to be restarted to be what is installed.
	changed bool
	acted   bool
}

func (i *Installer) agent() *service {
	return &service{i: i, program: agentProgram, unit: unit.AgentName, text: unit.Agent(), file: i.Machine.place(filepath.Join(unit.Folder, unit.AgentName), 0o644)}
}

func (i *Installer) coordinator() *service {
	return &service{i: i, program: coordinatorProgram, unit: unit.CoordinatorName, text: unit.Coordinator(), file: i.Machine.place(filepath.Join(unit.Folder, unit.CoordinatorName), 0o644)}
}

// remember notes how the service is. As the first step of its service it is the last to be undone, when
// all files are again what they were.
func (s *service) remember() Step {
	return Step{What: "look at " + s.unit, Reads: true,
		Do: func(ctx context.Context) (string, error) {
			state, err := s.show(ctx)
			if err != nil {
				return "", err
			}
			s.ran, s.enabled, s.known = running(state["ActiveState"]), state["UnitFileState"] == "enabled", true
			if !exists(s.i.Machine.at(s.file.path)) {
				return s.unit + " is not there yet", nil
			}
			return s.unit + " is " + state["ActiveState"], nil
		},
		Undo: func(ctx context.Context) error {
			if !s.known || !s.acted {
				return nil
			}
			_, err := s.i.Machine.Run(ctx, "systemctl", "daemon-reload")
			if s.ran {
				_, e := s.i.Machine.Run(ctx, "systemctl", "restart", s.unit)
				err = errors.Join(err, e)
			}
			return err
		}}
}

// running also counts a unit that systemd is about to start again.
func running(active string) bool {
	return active == "active" || active == "activating" || active == "reloading"
}

func (s *service) show(ctx context.Context) (map[string]string, error) {
	out, err := s.i.Machine.Run(ctx, "systemctl", "show", "--property=ActiveState,UnitFileState,NeedDaemonReload", s.unit)
	if err != nil {
		return nil, err
	}
	state := map[string]string{}
	for line := range strings.Lines(out) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			state[k] = v
		}
	}
	return state, nil
}

// install puts the program into its folder.
func (s *service) install() Step {
	step := s.i.install(s.program)
	do := step.Do
	step.Do = func(ctx context.Context) (string, error) {
		said, err := do(ctx)
		s.changed = s.changed || err == nil && said == ""
		return said, err
	}
	return step
}

// install puts a program into its folder, whole by rename: one that runs may be replaced.
func (i *Installer) install(program string) Step {
	p := i.Machine.place(filepath.Join(programFolder, program), 0o755)
	return Step{What: "install " + p.path,
		Do: func(context.Context) (string, error) {
			content, err := os.ReadFile(filepath.Join(i.From, program))
			if err != nil {
				return "", err
			}
			changed, err := p.put(content)
			if err != nil || changed {
				return "", err
			}
			return p.path + " is installed already", nil
		},
		Undo: func(context.Context) error { return p.undo() }}
}

// write writes the unit.
func (s *service) write() Step {
	return Step{What: "write " + s.file.path,
		Do: func(ctx context.Context) (string, error) {
			changed, err := s.file.put([]byte(s.text))
			if err != nil {
				return "", err
			}
			state, err := s.show(ctx)
			if err != nil {
				return "", err
			}
			if changed || state["NeedDaemonReload"] == "yes" {
				s.changed, s.acted = true, true
				_, err := s.i.Machine.Run(ctx, "systemctl", "daemon-reload")
				return "", err
			}
			return s.file.path + " is as it should be", nil
		},
		Undo: func(context.Context) error { return s.file.undo() }}
}

// start enables and starts the service and returns when it says that it is ready. One that runs is
// restarted only when something of it changed.
func (s *service) start() Step {
	return Step{What: "start " + s.unit, Hint: `see why: "journalctl -u ` + strings.TrimSuffix(s.unit, ".service") + ` -n 20"`,
		Do: func(ctx context.Context) (string, error) {
			if !s.enabled {
				s.acted = true
				if _, err := s.i.Machine.Run(ctx, "systemctl", "enable", "--quiet", s.unit); err != nil {
					return "", err
				}
			}
			state, err := s.show(ctx)
			if err != nil {
				return "", err
			}
			verb, said := "start", s.unit+" runs"
			switch {
			case state["ActiveState"] == "active" && !s.changed:
				return s.unit + " runs already", nil
			case running(state["ActiveState"]):
				verb, said = "restart", s.unit+" runs, restarted with what changed"
			}
			s.acted = true
			if _, err := s.i.Machine.Run(ctx, "systemctl", verb, s.unit); err != nil {
				return "", s.lastWords(ctx, err)
			}
			return said, nil
		},
		Undo: func(ctx context.Context) error {
			if !s.acted {
				return nil
			}
			var errs []error
			if !s.ran {
				_, err := s.i.Machine.Run(ctx, "systemctl", "stop", s.unit)
				errs = append(errs, err)
				_, err = s.i.Machine.Run(ctx, "systemctl", "reset-failed", s.unit)
				_ = err // it had not failed
			}
			if !s.enabled {
				_, err := s.i.Machine.Run(ctx, "systemctl", "disable", "--quiet", s.unit)
				errs = append(errs, err)
			}
			return errors.Join(errs...)
		}}
}

// lastWords adds to err what the daemon said last: systemd only says that it failed.
func (s *service) lastWords(ctx context.Context, err error) error {
	out, e := s.i.Machine.Run(ctx, "journalctl", "--unit="+s.unit, "--lines=30", "--output=cat", "--no-pager", "_COMM="+s.program[:min(15, len(s.program))]) // as much as the kernel keeps
	if e != nil || strings.TrimSpace(out) == "" {
		return err
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return fmt.Errorf("%w; it said: %s", err, lines[len(lines)-1])
}
