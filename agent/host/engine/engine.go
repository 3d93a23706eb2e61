// Package engine drives the machine's container engine: podman first, docker by the same commands. It
// looks by reading the engine's own files, so a look starts no process, and acts by the engine's program,
// run as a transient unit outside the agent's sandbox (facts/host.md §3). It decides nothing, and starts no
// container: containers are systemd services, whose text mesh/agent/resource writes.
//
// Acts may be repeated: what is there already as it should be is left alone. What the engine says is turned
// into a refusal where a person can do something about it: no engine, an engine that cannot start, an image
// nobody has, a subnet in use.
//
// The package starts no goroutine and keeps nothing open. An Engine may be used by several goroutines.
package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"sync"
	"time"

	"mesh/agent/host/file"
	"mesh/shared/refusal"
)

// Kind is which engine it is.
type Kind string

// The engines.
const (
	Podman Kind = "podman"
	Docker Kind = "docker"
)

// ErrNone: the machine has no container engine.
var ErrNone = errors.New("this machine has no container engine")

// Runner runs a program outside the agent's sandbox and waits for it, as *systemd.Conn does: its exit
// status and the end of what it printed.
type Runner interface {
	Run(ctx context.Context, name string, argv []string) (exit int, output string, err error)
}

// The labels mesh puts on what it makes: the module, and what it was made from.
const (
	ModuleLabel = "mesh.module"
	DigestLabel = "mesh.digest"
)

// Engine is the engine of a machine.
type Engine struct {
	kind    Kind
	program string
	root    *file.Root
	run     Runner

	mu     sync.Mutex // guards the two below
	store  string     // podman's graph root, once it was found
	images imagesSeen
}

// programs are where the engines are, in the order they are chosen in.
var programs = [...]struct {
	kind Kind
	path string
}{{Podman, "/usr/bin/podman"}, {Podman, "/usr/local/bin/podman"}, {Docker, "/usr/bin/docker"}, {Docker, "/usr/local/bin/docker"}}

// Find is the engine of the machine whose files are below root; ErrNone when there is none. It looks at
// files only.
func Find(root *file.Root, run Runner) (*Engine, error) {
	for _, p := range programs {
		st, err := root.Observe(p.path)
		if err == nil && st.Exists && st.Kind != file.Dir {
			return &Engine{kind: p.kind, program: p.path, root: root, run: run}, nil
		}
	}
	return nil, ErrNone
}

// Kind is which engine it is.
func (e *Engine) Kind() Kind { return e.kind }

// Program is the path of its program.
func (e *Engine) Program() string { return e.program }

// Version asks the engine for its version, "4.3.1". It is the cheapest question that shows whether it works.
func (e *Engine) Version(ctx context.Context) (string, error) {
	format := "{{.Client.Version}}"
	if e.kind == Docker {
		format = "{{.Server.Version}}"
	}
	out, err := e.do(ctx, "version", "version", "--format", format)
	return strings.TrimSpace(out), err
}

// Image is what an image is and where it can be had.
type Image struct {
	// Name is the repository it is pulled from, "docker.io/library/nginx"; empty for one the mesh carries.
	Name string
	// Digest is the SHA-256 of its manifest or index, "sha256:…".
	Digest string
	// ID is the SHA-256 of its configuration, "sha256:…": the same on every machine, however it came there.
	// It is empty for an image that only a reference names.
	ID string
}

// Ref is how it is named to the engine when it is pulled by its own name.
func (i Image) Ref() string { return i.Name + "@" + i.Digest }

// Run is what a container is started from.
func (i Image) Run() string {
	if i.ID != "" {
		return i.ID
	}
	return i.Ref()
}

// EnsureImage brings the image to the machine unless it is there. ref is where an image that the mesh carries
// is offered on loopback for this pull, "127.0.0.1:41234/mesh/notes-web@sha256:…" (mesh/agent/registry);
// empty for one that is pulled by its own name. Podman's storage is synced before it returns: what it calls
// pulled is else gone after a power cut (facts/host.md §1.4).
func (e *Engine) EnsureImage(ctx context.Context, i Image, ref string) error {
	if there, known, err := e.HasImage(i); err == nil && known && there {
		return nil
	}
	args := []string{"pull", "--quiet"}
	if ref == "" {
		ref = i.Ref()
	} else if e.kind == Podman { // docker takes loopback without TLS by itself
		args = append(args, "--tls-verify=false")
	}
	if _, err := e.do(ctx, "pull-"+short(i.Digest), append(args, ref)...); err != nil {
		return err
	}
	if e.kind == Podman {
		if err := e.root.SyncFS(e.graphRoot()); err != nil {
			return fmt.Errorf("sync the images: %w", err)
		}
	}
	there, known, err := e.HasImage(i)
	if err == nil && known && !there {
		err = refusal.New("image "+ref, "the engine pulled it, and yet has no image "+i.Run(), "look at "+string(e.kind)+" images; it is tried again by itself")
	}
	return err
}

// RemoveImage removes it unless something uses it or it is not there.
func (e *Engine) RemoveImage(ctx context.Context, i Image) error {
	exit, out, err := e.try(ctx, "rmi-"+short(i.Digest), "rmi", i.Run())
	switch {
	case err != nil:
		return err
	case exit == 0 || absent(out) || inUse(exit, out):
		return nil
	}
	return e.failed([]string{"rmi", i.Run()}, exit, out)
}

// RemoveContainer ends and removes a container; nil when there is none. Its anonymous volumes go, named
// ones stay.
func (e *Engine) RemoveContainer(ctx context.Context, name string) error {
	args := []string{"rm", "-v", "-f", name}
	if e.kind == Podman { // docker waits for nothing here
		args = []string{"rm", "-v", "-f", "-t", "0", name}
	}
	exit, out, err := e.try(ctx, "rm-"+name, args...)
	if err != nil || exit == 0 || absent(out) {
		return err
	}
	return e.failed([]string{"rm", name}, exit, out)
}

// do runs the engine's program; another exit status than 0 is an error.
func (e *Engine) do(ctx context.Context, what string, args ...string) (string, error) {
	exit, out, err := e.try(ctx, what, args...)
	if err == nil && exit != 0 {
		err = e.failed(args, exit, out)
	}
	return out, err
}

// ExecWords is the command that runs a program in a running container, as what is asked of its health does. The
// program and all it starts have the variable ProbeVar with that value: what ends the command does not end them.
func (e *Engine) ExecWords(container, probe string, argv []string) []string {
	return append([]string{e.program, "exec", "--env=" + ProbeVar + "=" + probe, container}, argv...)
}

// ProbeVar marks what ExecWords started.
const ProbeVar = "MESH_PROBE"

// UnitPrefix begins the names of the transient units that the engine's program runs as. No module has a _ in its
// name, so no unit of one is called so.
const UnitPrefix = "mesh-engine_"

// actBound ends an act of the engine's that hangs; only a pull may take longer.
const actBound = time.Minute

// try runs the engine's program as the transient unit mesh-engine_<what>.service.
func (e *Engine) try(ctx context.Context, what string, args ...string) (exit int, out string, err error) {
	if args[0] != "pull" {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, actBound)
		defer cancel()
	}
	exit, out, err = e.run.Run(ctx, UnitPrefix+unitSafe(what), append([]string{e.program}, args...))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, "", e.gone()
	}
	return exit, out, err
}

func (e *Engine) gone() error {
	return refusal.Because(ErrNone, "the container engine", path.Base(e.program)+" is not on this machine any more", "install podman or docker, or unassign what needs it")
}

// Missing is the refusal for a thing that needs an engine where there is none.
func Missing(what string) error {
	return refusal.Because(ErrNone, what, "it needs a container engine, and this machine has none", "install podman or docker, or unassign it here")
}

// unitSafe makes s part of a unit's name.
func unitSafe(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_', r == '.':
			return r
		}
		return '_'
	}, s)
}

// short is enough of a digest to tell it from others on a machine.
func short(digest string) string {
	_, hex, ok := strings.Cut(digest, ":")
	if !ok {
		hex = digest
	}
	return hex[:min(12, len(hex))]
}
