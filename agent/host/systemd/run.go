package systemd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	sdbus "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"
)

const (
	// outputLimit is how much of the end of a program's output Run returns.
	outputLimit = 64 << 10
	// runStop bounds how long a program that Run gave up may take to end before it is killed.
	runStop = 5 * time.Second
)

// Run runs a short program of the distribution (useradd, sysctl, …) as the transient unit name.service,
// outside the agent's sandbox, and waits for it. It returns the exit status, 128 and the signal if one
// ended it, as shells do, and the end of what it printed. When ctx ends first the program is stopped, its
// whole cgroup. A program of an earlier run of that name is waited for.
func (c *Conn) Run(ctx context.Context, name string, argv []string) (exit int, output string, err error) {
	return c.run(ctx, name, argv)
}

// Program is what RunAs runs; "" and nil are root, / and nothing.
type Program struct {
	Argv            []string
	User, Directory string
	// Env are variables as "NAME=value", EnvFile a file of more (systemd.exec(5)).
	Env     []string
	EnvFile string
}

// RunAs is Run for a program that runs as somebody and somewhere, and again and again: that it began, ended
// or failed is not in the journal.
func (c *Conn) RunAs(ctx context.Context, name string, p Program) (exit int, output string, err error) {
	property := func(name string, v any) sdbus.Property {
		return sdbus.Property{Name: name, Value: dbus.MakeVariant(v)}
	}
	more := []sdbus.Property{property("LogLevelMax", int32(critical))}
	if p.User != "" {
		more = append(more, property("User", p.User))
	}
	if p.Directory != "" {
		more = append(more, property("WorkingDirectory", p.Directory))
	}
	if len(p.Env) > 0 {
		more = append(more, property("Environment", p.Env))
	}
	if p.EnvFile != "" {
		more = append(more, property("EnvironmentFiles", []envFile{{p.EnvFile, false}}))
	}
	return c.run(ctx, name, p.Argv, more...)
}

// critical is LOG_CRIT of syslog(3): that a program ended with another status than 0 is an error to systemd.
const critical = 2

// envFile is a value of EnvironmentFiles (org.freedesktop.systemd1(5)).
type envFile struct {
	Path     string
	Optional bool
}

func (c *Conn) run(ctx context.Context, name string, argv []string, more ...sdbus.Property) (exit int, output string, err error) {
	what, unit := "run "+strings.Join(argv, " "), name+".service"
	path, err := lookPath(argv)
	if err != nil {
		return 0, "", fmt.Errorf("%s: %w", what, err)
	}
	out, err := memory(name)
	if err != nil {
		return 0, "", fmt.Errorf("%s: %w", what, err)
	}
	defer out.Close() // it was only memory
	props := append(runProperties(what, path, argv[1:], out), more...)
	start := func() error {
		_, err := c.await(ctx, what, unit, func(ctx context.Context, s *session, done chan<- string) error {
			_, err := s.StartTransientUnitContext(ctx, unit, "fail", props, done)
			return err
		})
		return err
	}
	waitErr := start()
	if exists(waitErr) {
		if waitErr = c.clear(ctx, unit); waitErr == nil {
			waitErr = start()
		}
	}
	// Whatever happened, nothing of the unit stays: neither a running program nor its record.
	look, cancel := context.WithTimeout(context.WithoutCancel(ctx), runStop+lastLook)
	defer cancel()
	state, stateErr := c.state(look, unit)
	_, stopErr := c.Stop(look, unit)
	if errors.Is(stopErr, ErrNoUnit) {
		stopErr = nil
	}
	text, readErr := tail(out)
	if err := errors.Join(waitErr, stateErr, stopErr, c.ResetFailed(look, unit), readErr); err != nil {
		return 0, text, fmt.Errorf("%s: %w", what, err)
	}
	switch {
	case state.ExitCode == 0: // it never ran: a dependency, a broken unit
		return 0, text, fmt.Errorf("%s: it was not started: %s", what, Judge(JobResult{State: state}, state).Why)
	case state.ExitCode >= 2:
		return 128 + state.ExitStatus, text, nil
	}
	return state.ExitStatus, text, nil
}

// runProperties describe the unit. RemainAfterExit keeps it, with its exit status, until it was read.
func runProperties(what, path string, args []string, out *os.File) []sdbus.Property {
	property := func(name string, v any) sdbus.Property {
		return sdbus.Property{Name: name, Value: dbus.MakeVariant(v)}
	}
	argv := []string{path}
	for _, a := range args {
		argv = append(argv, strings.ReplaceAll(a, "$", "$$")) // systemd would fill in variables
	}
	fd := dbus.UnixFD(out.Fd())
	return []sdbus.Property{
		sdbus.PropDescription("mesh: " + what), sdbus.PropType("oneshot"), sdbus.PropRemainAfterExit(true),
		sdbus.PropExecStart(argv, false),
		property("Environment", []string{"LC_ALL=C.UTF-8"}),
		property("StandardOutputFileDescriptor", fd), property("StandardErrorFileDescriptor", fd),
		property("TimeoutStopUSec", uint64(runStop/time.Microsecond)),
	}
}

func exists(err error) bool {
	var remote dbus.Error
	return errors.As(err, &remote) && remote.Name == busName+".UnitExists"
}

// clear makes room for a unit of a name that an earlier agent used: it waits for a program that still
// runs (stopping useradd half way leaves its locks), then drops the record.
func (c *Conn) clear(ctx context.Context, unit string) error {
	if err := c.untilIdle(ctx, unit); err != nil {
		return fmt.Errorf("wait for an earlier run: %w", err)
	}
	if _, err := c.Stop(ctx, unit); err != nil && !errors.Is(err, ErrNoUnit) {
		return fmt.Errorf("clear an earlier run: %w", err)
	}
	return c.ResetFailed(ctx, unit)
}

// programDirs is where programs of the distribution are; the agent's own PATH is not trusted.
var programDirs = [...]string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

func lookPath(argv []string) (string, error) {
	if len(argv) == 0 {
		return "", errors.New("no program was named")
	}
	if filepath.IsAbs(argv[0]) {
		return argv[0], nil
	}
	for _, dir := range programDirs {
		path := filepath.Join(dir, argv[0])
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("%w: %s is not in %s", os.ErrNotExist, argv[0], strings.Join(programDirs[:], ", "))
}

// memory is a file that is nowhere: systemd hands it to the program as its output, and no pipe has to be
// read meanwhile.
func memory(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate("mesh-"+name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

func tail(out *os.File) (string, error) {
	info, err := out.Stat()
	if err != nil {
		return "", err
	}
	from := max(0, info.Size()-outputLimit)
	buf := make([]byte, info.Size()-from)
	if len(buf) == 0 {
		return "", nil
	}
	_, err = out.ReadAt(buf, from)
	return string(buf), err
}
