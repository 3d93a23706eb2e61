// Command demo shows mesh's main job on three real Debian hosts booted on this machine, with nothing but
// what a user has. "make demo" runs "demo up", "make demo-shell HOST=host2" a shell on a host, and "make
// demo-down" takes everything away.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"mesh/cmd/e2e/story"
	"mesh/shared/clock"
	"mesh/testbus/hosts"
)

// place is where the demo's hosts keep their disks; it must not lie on an overlay file system.
const place = "/var/tmp/mesh-demo"

// machines is how many hosts the demo boots.
const machines = 3

// refusedBound is how long a request to a closed port is waited for: a refusing filter drops it.
const refusedBound = 2 * time.Second

// stepWidth is as long as the longest step's words.
const stepWidth = 79

const usage = "usage: demo up | demo down | demo shell [host1|host2|host3] [command…]"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		os.Exit(exit.ExitCode())
	}
	var code exitCode
	if errors.As(err, &code) {
		os.Exit(int(code))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New(usage)
	}
	switch args[0] {
	case "up":
		return up(ctx)
	case "down":
		return down(ctx)
	case "shell":
		return shell(ctx, args[1:])
	}
	return errors.New(usage)
}

func down(ctx context.Context) error {
	bed, err := hosts.Open(place)
	if errors.Is(err, os.ErrNotExist) {
		fmt.Println("there is no demo")
		return nil
	}
	if err != nil {
		return err
	}
	if err := bed.Down(ctx); err != nil {
		return err
	}
	fmt.Println("✓ the demo is gone: hosts, network and disks")
	return nil
}

func shell(ctx context.Context, args []string) error {
	bed, err := hosts.Open(place)
	if errors.Is(err, os.ErrNotExist) {
		return errors.New("there is no demo\ndo: make demo")
	}
	if err != nil {
		return err
	}
	name := "host1"
	if len(args) > 0 && args[0] != "" {
		name, args = args[0], args[1:]
	}
	for i := 1; i <= bed.Len(); i++ {
		if h := bed.Host(i); h.Name == name {
			if len(args) > 0 && !terminal() {
				return runOn(ctx, h, args)
			}
			cmd, err := h.Shell(ctx, args...)
			if err != nil {
				return err
			}
			cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
			return cmd.Run()
		}
	}
	return fmt.Errorf("the demo has no %s\ndo: make demo-shell HOST=host1 (up to host%d)", name, bed.Len())
}

// terminal reports whether a person sits at both ends: a shell's terminal would make a mess of a file.
func terminal() bool {
	for _, f := range []*os.File{os.Stdin, os.Stdout} {
		if st, err := f.Stat(); err != nil || st.Mode()&os.ModeCharDevice == 0 {
			return false
		}
	}
	return true
}

// runOn runs one command on h and ends with its exit code.
func runOn(ctx context.Context, h *hosts.Host, args []string) error {
	out, err := h.Exec(ctx, hosts.Command{Args: args, Stdout: os.Stdout, Stderr: os.Stderr})
	if err == nil && out.Exit != 0 {
		err = exitCode(out.Exit)
	}
	return err
}

// exitCode is a command's, which has said what there was to say.
type exitCode int

func (e exitCode) Error() string { return fmt.Sprintf("exit %d", int(e)) }

// teller prints a line a step, with a tick and how long it took.
type teller struct {
	clk   clock.Clock
	start time.Time
}

func (t *teller) step(text string, do func() error) error {
	began := t.clk.Now()
	if err := do(); err != nil {
		fmt.Printf("✗ %s\n", text)
		return err
	}
	fmt.Printf("✓ %-*s %5.1fs\n", stepWidth, text, t.clk.Now().Sub(began).Seconds())
	return nil
}

func up(ctx context.Context) error {
	if bed, err := hosts.Open(place); err == nil {
		return fmt.Errorf("a demo of %d hosts is there already\ndo: make demo-down, or look around with make demo-shell HOST=host2", bed.Len())
	}
	source, err := os.Getwd()
	if err != nil {
		return err
	}
	t := &teller{clk: clock.Real()}
	t.start = t.clk.Now()
	s := &story.Story{Source: source, Bin: source + "/bin"}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if err := prepare(ctx, t, s, log); err != nil {
		return err
	}
	if err := tell(ctx, t, s); err != nil {
		return fmt.Errorf("%w\ndo: look around with \"make demo-shell HOST=host1\" (journalctl -u mesh-agent -u mesh-coordinator), then \"make demo-down\"", err)
	}
	fmt.Printf("\na mesh of three machines in %.0f s. Look around:\n", t.clk.Now().Sub(t.start).Seconds())
	fmt.Println("  make demo-shell HOST=host1     mesh-coordinator status; mesh-coordinator node show host2")
	fmt.Println("  make demo-shell HOST=host2     mesh-agent show; mesh-agent show firewall")
	fmt.Println("  make demo-down                 takes everything away")
	return nil
}

func prepare(ctx context.Context, t *teller, s *story.Story, log *slog.Logger) error {
	if err := t.step("the sample module is built", func() error { return story.BuildHello(ctx, s.Source) }); err != nil {
		return err
	}
	if err := t.step("a Debian image is there (the first time it is made)", func() error {
		_, err := hosts.EnsureImage(ctx, hosts.Plain, log)
		return err
	}); err != nil {
		return err
	}
	return t.step("three Debian hosts have booted, joined by a bridge that plays the internet", func() (err error) {
		if s.Bed, err = hosts.Start(ctx, place, machines, log); err != nil {
			return err
		}
		return s.Deliver(ctx)
	})
}

// tell is the main job, in the commands a user types.
func tell(ctx context.Context, t *teller, s *story.Story) error {
	command := func(words string, do func() (string, error)) error {
		return t.step(words, func() error { _, err := do(); return err })
	}
	if err := command("host1: mesh-installer genesis --address 198.18.0.11", func() (string, error) { return s.Genesis(ctx) }); err != nil {
		return err
	}
	for i := 2; i <= s.Bed.Len(); i++ {
		name := s.Bed.Host(i).Name
		if err := command(fmt.Sprintf("host1: mesh-coordinator node invite %s; %s: mesh-installer enrol", name, name), func() (string, error) {
			line, err := s.Invite(ctx, i)
			if err != nil {
				return "", err
			}
			return s.Enrol(ctx, i, line)
		}); err != nil {
			return err
		}
	}
	for _, args := range [][]string{
		{"module", "check", story.Hello}, {"module", "register", story.Hello},
		{"assign", "host2", "hello", "--set", "greeting=Hello from host two"}, {"assign", "host3", "hello"},
	} {
		if err := command("host1: mesh-coordinator "+typed(args), func() (string, error) { return s.Coordinator(ctx, args...) }); err != nil {
			return err
		}
	}
	if err := page(ctx, s, 1, "mesh-coordinator", "plan"); err != nil {
		return err
	}
	if err := command("host1: mesh-coordinator push --all --why 'the demo'", func() (string, error) {
		return s.Coordinator(ctx, "push", "--all", "--why", "the demo")
	}); err != nil {
		return err
	}
	if err := page(ctx, s, 2, "mesh-agent", "show"); err != nil {
		return err
	}
	return ask(ctx, t, s)
}

// typed is how args are typed at a shell.
func typed(args []string) string {
	words := make([]string, len(args))
	for i, a := range args {
		if words[i] = a; strings.Contains(a, " ") {
			words[i] = "'" + a + "'"
		}
	}
	return strings.Join(words, " ")
}

// page prints a command and what it says.
func page(ctx context.Context, s *story.Story, i int, args ...string) error {
	out, err := s.Run(ctx, i, args...)
	fmt.Printf("\n  %s# %s\n", s.Bed.Host(i).Name, strings.Join(args, " "))
	for line := range strings.Lines(out) {
		fmt.Printf("  %s", line)
	}
	fmt.Println()
	return err
}

// ask sends requests from the internet.
func ask(ctx context.Context, t *teller, s *story.Story) error {
	for i := 2; i <= s.Bed.Len(); i++ {
		text := ""
		err := t.step(fmt.Sprintf("from the internet: %s answers on the declared port %s", s.Bed.Host(i).Name, story.HelloPort), func() (err error) {
			text, err = s.Greeting(ctx, i)
			return err
		})
		if err != nil {
			return err
		}
		fmt.Printf("  it says: %s\n", text)
	}
	return t.step("from the internet: port "+story.ClosedPort+" of host2, where something listens, is closed", func() error {
		if err := s.ListenUndeclared(ctx, 2); err != nil {
			return err
		}
		if s.Reaches(ctx, s.Bed.Internet(), 2, story.ClosedPort, refusedBound) {
			return errors.New("a port that nothing declares was reached from outside")
		}
		return nil
	})
}
