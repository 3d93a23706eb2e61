// Package story is mesh's main job on booted hosts, told with what a user has: the three programs and
// their command lines. The demo prints it, the end-to-end tests build on it. It returns errors that hold
// the command and its words; it starts no goroutine.
package story

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"mesh/testbus/hosts"
)

const (
	// programs is where the programs lie on a host before they are installed, as after an unpacked download.
	programs = "/root/mesh"
	// Hello is where the sample module lies on the first host.
	Hello = "/root/hello"
	// HelloPort is the port the sample module declares open.
	HelloPort = "8080"
	// ClosedPort is a port something listens on and nothing declares.
	ClosedPort = "9999"

	requestBound = 5 * time.Second
)

// Programs are the three programs of mesh.
var Programs = []string{"mesh-agent", "mesh-coordinator", "mesh-installer"}

// Story is a mesh on a bed of hosts; the first is the coordinator's.
type Story struct {
	Bed *hosts.Bed
	// Source is the root of mesh's source tree, Bin the folder of the built programs.
	Source, Bin string
}

// BuildPrograms builds the three programs from the source tree into bin.
func BuildPrograms(ctx context.Context, source, bin string) error {
	for _, p := range Programs {
		if err := build(ctx, source, filepath.Join(bin, p), "./cmd/"+p); err != nil {
			return err
		}
	}
	return nil
}

// BuildHello builds the sample module where its manifest looks for it.
func BuildHello(ctx context.Context, source string) error {
	return build(ctx, source, filepath.Join(source, "docs/examples/hello/dist/bin/hello"), "./docs/examples/hello")
}

func build(ctx context.Context, source, to, what string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", to, what)
	cmd.Dir, cmd.Env = source, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s: %w\n%s", what, err, out)
	}
	return nil
}

// Deliver puts the programs on every host, and the sample module on the first.
func (s *Story) Deliver(ctx context.Context) error {
	for i := 1; i <= s.Bed.Len(); i++ {
		h := s.Bed.Host(i)
		for _, p := range Programs {
			if err := h.CopyErr(ctx, filepath.Join(s.Bin, p), programs+"/"+p, 0o755); err != nil {
				return err
			}
		}
	}
	hello := filepath.Join(s.Source, "docs/examples/hello")
	first := s.Bed.Host(1)
	if err := first.CopyErr(ctx, filepath.Join(hello, "module.yaml"), Hello+"/module.yaml", 0o644); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(hello, "dist/bin/hello")); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the sample module is not built: %w", err)
	}
	return first.CopyErr(ctx, filepath.Join(hello, "dist/bin/hello"), Hello+"/dist/bin/hello", 0o755)
}

// Run runs a command on host number i and returns its standard output; an exit code is an error.
func (s *Story) Run(ctx context.Context, i int, args ...string) (string, error) {
	out, err := s.Bed.Host(i).RunErr(ctx, args...)
	if err == nil {
		err = out.Failed()
	}
	if err != nil {
		return out.Stdout, fmt.Errorf("on %s: %s: %w", s.Bed.Host(i).Name, strings.Join(args, " "), err)
	}
	return out.Stdout, nil
}

// Genesis makes the mesh on the first host.
func (s *Story) Genesis(ctx context.Context) (string, error) {
	h := s.Bed.Host(1)
	return s.Run(ctx, 1, programs+"/mesh-installer", "genesis", "--address", h.IPv4(), "--name", h.Name)
}

// Invite makes an invitation for host number i and returns the line.
func (s *Story) Invite(ctx context.Context, i int) (string, error) {
	out, err := s.Run(ctx, 1, "mesh-coordinator", "node", "invite", s.Bed.Host(i).Name)
	for line := range strings.Lines(out) {
		for _, word := range strings.Fields(line) {
			if strings.HasPrefix(word, "mesh1-") {
				return word, err
			}
		}
	}
	if err == nil {
		err = fmt.Errorf("no invitation in %q", out)
	}
	return "", err
}

// Enrol pastes the line on host number i.
func (s *Story) Enrol(ctx context.Context, i int, line string) (string, error) {
	return s.Run(ctx, i, programs+"/mesh-installer", "enrol", line)
}

// Coordinator runs a command of mesh-coordinator on the first host.
func (s *Story) Coordinator(ctx context.Context, args ...string) (string, error) {
	return s.Run(ctx, 1, append([]string{"mesh-coordinator"}, args...)...)
}

// Greeting asks host number i for its greeting from the internet.
func (s *Story) Greeting(ctx context.Context, i int) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, requestBound)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: s.Bed.Internet().Dial}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(s.Bed.Host(i).IPv4(), HelloPort)+"/", nil)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b := make([]byte, 1<<10)
	n, err := resp.Body.Read(b)
	if n == 0 && err != nil {
		return "", err
	}
	return strings.TrimSpace(string(b[:n])), nil
}

// ListenUndeclared has something listen on ClosedPort of host number i.
func (s *Story) ListenUndeclared(ctx context.Context, i int) error {
	_, err := s.Run(ctx, i, "systemd-run", "--quiet", "--collect", "--unit=undeclared-listener", "nc", "-lk", "0.0.0.0", ClosedPort)
	if err != nil {
		return err
	}
	return s.until(ctx, "the listener", func() (bool, string) {
		out, err := s.Run(ctx, i, "ss", "-Hltn", "sport = :"+ClosedPort)
		return err == nil && strings.Contains(out, ClosedPort), out
	})
}

// Reaches reports whether a connection from `from` to port of host number i comes about within bound.
func (s *Story) Reaches(ctx context.Context, from *hosts.Namespace, i int, port string, bound time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	c, err := from.Dial(ctx, "tcp", net.JoinHostPort(s.Bed.Host(i).IPv4(), port))
	if err != nil {
		return false
	}
	c.Close()
	return true
}

// until polls a state until it holds or ctx ends.
func (s *Story) until(ctx context.Context, what string, cond func() (bool, string)) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, state := cond()
		if ok {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited for %s: %w; last seen: %s", what, ctx.Err(), state)
		case <-tick.C:
		}
	}
}
