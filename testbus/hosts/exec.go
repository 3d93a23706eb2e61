package hosts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Command is what to run in a host or in a namespace.
type Command struct {
	Args  []string
	Stdin io.Reader // nil: empty
	Env   []string  // besides PATH and HOME
	// Stdout and Stderr take the output as it comes instead of Output.
	Stdout, Stderr io.Writer
}

// Output is what a command left.
type Output struct {
	Stdout, Stderr string
	Exit           int
}

// Failed returns an error that quotes the command's words unless it exited 0.
func (o Output) Failed() error {
	if o.Exit == 0 {
		return nil
	}
	return fmt.Errorf("exit %d: %s", o.Exit, tail(o.Stderr+o.Stdout, 20))
}

// hostEnv is all the environment a command in a host starts from: nothing of ours leaks in.
var hostEnv = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "TERM=dumb", "LANG=C.UTF-8"}

// RunErr runs a command in the host as root. An exit code is no error; a host that is down, or the end
// of ctx, is. The command is outside the seccomp filter and the capability bounds of the host's
// services: to test what a service may do, run "systemd-run --pipe --wait" in here.
func (h *Host) RunErr(ctx context.Context, args ...string) (Output, error) {
	return h.Exec(ctx, Command{Args: args})
}

// Exec is RunErr with all there is to say.
func (h *Host) Exec(ctx context.Context, c Command) (Output, error) {
	prefix, err := h.enter()
	if err != nil {
		return Output{}, err
	}
	out, err := run(ctx, c, prefix...)
	if err != nil {
		return out, fmt.Errorf("%s: %w", h.Name, err)
	}
	return out, nil
}

// Shell is a login shell in the host, or the command given, on a terminal of its own. The caller connects
// it to a terminal and runs it.
func (h *Host) Shell(ctx context.Context, args ...string) (*exec.Cmd, error) {
	prefix, err := h.enter()
	if err != nil {
		return nil, err
	}
	if len(args) == 0 {
		args = []string{"/bin/bash", "-l"}
	}
	line := append(prefix, hostEnv...)
	// systemd-run makes the terminal inside: a shell across the border of a PID namespace has no job control.
	line = append(line, "TERM=xterm", "systemd-run", "--quiet", "--pty", "--collect", "--wait", "--setenv=TERM=xterm", "--setenv=HOME=/root",
		"--working-directory=/root", "--")
	line = append(line, args...)
	return exec.CommandContext(ctx, line[0], line[1:]...), nil
}

// enter is the command line that leads into the host, up to where its environment starts.
func (h *Host) enter() ([]string, error) {
	pid, err := h.leader()
	if err != nil {
		return nil, err
	}
	return []string{"nsenter", "-t", strconv.Itoa(pid), "-m", "-u", "-i", "-n", "-p", "-C", "--", "env", "-C", "/", "-i"}, nil
}

// RunErr runs a program of the machine in the namespace. An exit code is no error.
func (n *Namespace) RunErr(ctx context.Context, args ...string) (Output, error) {
	return n.Exec(ctx, Command{Args: args})
}

// Exec is RunErr with all there is to say.
func (n *Namespace) Exec(ctx context.Context, c Command) (Output, error) {
	out, err := run(ctx, c, "nsenter", "--net="+n.Path(), "--", "env", "-i")
	if err != nil {
		return out, fmt.Errorf("namespace %s: %w", n.name, err)
	}
	return out, nil
}

// run runs c behind a prefix that ends in env(1). It has a process group of its own, because the end of
// nsenter does not end what it started in another PID namespace.
func run(ctx context.Context, c Command, prefix ...string) (Output, error) {
	if len(c.Args) == 0 {
		return Output{}, errors.New("no command to run")
	}
	args := append(append(append(prefix, hostEnv...), c.Env...), c.Args...)
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Stdin, &stdout, &stderr
	if c.Stdout != nil {
		cmd.Stdout = c.Stdout
	}
	if c.Stderr != nil {
		cmd.Stderr = c.Stderr
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 2 * time.Second // a daemon that kept the pipe does not keep us
	err := cmd.Run()
	out := Output{Stdout: stdout.String(), Stderr: stderr.String(), Exit: cmd.ProcessState.ExitCode()}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return out, fmt.Errorf("%s: %w: %s", strings.Join(c.Args, " "), context.Cause(ctx), tail(out.Stderr+out.Stdout, 20))
	case err == nil, errors.Is(err, exec.ErrWaitDelay):
		return out, nil
	case errors.As(err, &exit) && exit.Exited():
		return out, nil
	}
	return out, fmt.Errorf("%s: %w: %s", strings.Join(c.Args, " "), err, tail(out.Stderr, 20))
}
