// Package installer brings mesh to a machine and takes it away again: genesis makes a mesh on one
// machine (NOD-3), enrol joins an invited one (NOD-2), leave removes mesh (NOD-13). Each is a list of
// steps that is said as it is done. A step looks before it acts, so a second run repairs and changes
// nothing that is in order; a failure undoes, last first, what the run did, and says how to go on.
//
// A machine's keys are made on it and written down before they are first used: an answer that was lost
// is asked for again with the same keys, and the coordinator gives it again (NOD-1).
//
// The package knows neither the agent nor the coordinator but as programs: it runs them and asks them
// over the bus. All it touches goes through Machine. It starts no goroutines and prompts for nothing.
package installer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"mesh/firewall"
	"mesh/shared/clock"
	"mesh/shared/refusal"
)

// Where mesh is on a machine.
const (
	programFolder  = "/usr/local/bin"
	agentFolder    = "/var/lib/mesh-agent"
	agentRun       = "/run/mesh-agent" // outlives a stop of the unit
	credentialFile = agentFolder + "/credential.json"
	meshFolder     = "/etc/mesh"
	operatorFile   = meshFolder + "/operator.json"
)

// The programs.
const (
	agentProgram       = "mesh-agent"
	coordinatorProgram = "mesh-coordinator"
	installerProgram   = "mesh-installer"
)

// Machine is what the installer touches.
type Machine struct {
	// Root is where the machine's paths begin: "/".
	Root string
	// UID is who runs the installer.
	UID int
	// Run runs a program of the machine and returns its standard output. A program that ran and failed
	// is a *RunError.
	Run func(ctx context.Context, args ...string) (string, error)
	// Filter says why the kernel cannot filter packets for mesh, or nil.
	Filter func() error
	// DropFilter removes mesh's table from the kernel, and nothing else.
	DropFilter func(ctx context.Context) error
	// Listen says why the bus could not listen at an address, or nil.
	Listen func(address string) error
	// Writable says why nothing can be written in a folder, or below the nearest one there is above it.
	Writable func(folder string) error
	// Free is how many bytes may still be written to the file system of a folder.
	Free  func(folder string) (int64, error)
	Clock clock.Clock
	Rand  io.Reader
}

// This is the machine that the process runs on.
func This(rand io.Reader) Machine {
	return Machine{Root: "/", UID: os.Geteuid(), Run: run, Filter: canFilter, DropFilter: dropFilter, Listen: canListen, Writable: writable, Free: free, Clock: clock.Real(), Rand: rand}
}

// Installer is one run of the installer.
type Installer struct {
	Machine Machine
	// From is the folder that the programs to install are in.
	From string
	// DryRun says the steps and changes nothing. Checks of the machine are made all the same.
	DryRun bool
	// Say takes the progress: a line for each step.
	Say io.Writer
}

// RunError is how a program that ran failed.
type RunError struct {
	Args   []string
	Stderr string
	Err    error
}

// Error names the program and its last words.
func (e *RunError) Error() string {
	words := strings.Split(strings.TrimSpace(e.Stderr), "\n")
	return strings.TrimSuffix(fmt.Sprintf("%s: %v: %s", strings.Join(e.Args, " "), e.Err, words[len(words)-1]), ": ")
}

// Unwrap is the end of the process.
func (e *RunError) Unwrap() error { return e.Err }

// refused is the refusal that the program printed, or nil: programs of mesh refuse in two lines.
func (e *RunError) refused() error {
	var what, do string
	for line := range strings.Lines(e.Stderr) {
		if s, ok := strings.CutPrefix(line, "refused: "); ok {
			what = strings.TrimSpace(s)
		}
		if s, ok := strings.CutPrefix(line, "do: "); ok {
			do = strings.TrimSpace(s)
		}
	}
	if what == "" {
		return nil
	}
	return refusal.New(what, "", do)
}

func run(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "SYSTEMD_PAGER=", "SYSTEMD_COLORS=0")
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return stdout.String(), &RunError{args, stderr.String(), err}
	}
	if err != nil {
		return "", fmt.Errorf("run %s: %w", args[0], err)
	}
	return stdout.String(), nil
}

func canFilter() error {
	d, err := firewall.Open()
	if err != nil {
		return err
	}
	return d.Close()
}

func dropFilter(ctx context.Context) error {
	d, err := firewall.Open()
	if err != nil {
		return err
	}
	return errors.Join(d.Delete(ctx), d.Close())
}

func canListen(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	return l.Close()
}

func writable(folder string) error {
	for { // root is refused by a file system that is mounted read-only, and by nothing else
		err := unix.Access(folder, unix.W_OK)
		if errors.Is(err, unix.ENOENT) && folder != "/" {
			folder = filepath.Dir(folder)
			continue
		}
		return err
	}
}

// lockFolder is locked by an installer that changes the machine: a folder that is there leaves no file behind.
const lockFolder = "/run"

// alone refuses a second installer on the machine; release lets the next one in.
func (i *Installer) alone() (release func() error, err error) {
	if i.DryRun || i.Machine.UID != 0 { // who is not root is refused by the first step
		return func() error { return nil }, nil
	}
	f, err := os.Open(i.Machine.at(lockFolder))
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", lockFolder, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(refusal.New("to change this machine", "another mesh-installer is at work on it", "wait for its end and run the same command again"), f.Close())
	}
	return f.Close, nil
}

func free(folder string) (int64, error) {
	for { // the folder may not be there yet: its file system is that of the nearest one above
		var st unix.Statfs_t
		err := unix.Statfs(folder, &st)
		if errors.Is(err, unix.ENOENT) && folder != "/" {
			folder = filepath.Dir(folder)
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("statfs %s: %w", folder, err)
		}
		return int64(st.Bavail) * st.Bsize, nil
	}
}

// at is where path is while the machine's root is another folder.
func (m Machine) at(path string) string { return filepath.Join(m.Root, path) }
