// Package hosts boots real Debian hosts on one machine, for tests and for the demo (BUS-3): systemd
// as PID 1 of each through systemd-nspawn, a network namespace each, an overlay each over one
// read-only image, joined by a bridge in a namespace that plays the internet.
//
// A Bed is a set of such hosts. It lives in the machine and in a state folder, not in the process
// that started it: a later process finds it with Open. Down leaves nothing behind. Beds carry an id
// in the names of their namespaces and cgroups, so several stand side by side; each has an internet
// of its own, so all use the same addresses.
//
// Every act comes twice. The one that takes a testing.TB is for a test and ends it on failure; the
// one whose name ends in Err takes a context, returns the error and is for programs. New(t, n) is
// where a test starts, Start and Open where a program does.
//
// The package starts no goroutine that outlives a call. It needs root and the programs of Programs;
// it never touches the machine's own addresses, routes or packet filter. DESIGN.md says why each odd
// part is there.
package hosts

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"sync"

	"mesh/shared/refusal"
)

// MaxHosts is how many hosts a bed may have; more than this share one small machine badly.
const MaxHosts = 9

// stateFile stands in the state folder from before the first act until after the last.
const stateFile = "bed.json"

// Bed is a set of hosts and the internet between them.
type Bed struct {
	dir   string
	state state
	log   *slog.Logger
	hosts []*Host
	inet  *Namespace
}

// state is what a later process needs to find a bed again.
type state struct {
	ID    string `json:"id"`
	Hosts int    `json:"hosts"`
	Image string `json:"image"`
	// Flavour is what is on the hosts besides the plain system.
	Flavour Flavour `json:"flavour,omitempty"`
	// Cgroup is the bed's own cgroup2 directory, all processes of its hosts are below it.
	Cgroup string `json:"cgroup"`
}

// Host is one machine of a bed.
type Host struct {
	// Namespace is the host's network: Dial and Listen through it act from the host's addresses.
	// Its link is there while the host is up.
	Namespace
	// Name is host1, host2 and so on: the machine's hostname.
	Name string

	bed    *Bed
	n      int
	dir    string // everything of this host on the machine's disk
	cgroup string
}

// Start builds the image if it is missing, then boots n hosts whose state is kept in dir, which has
// to be absent or empty and must not lie on an overlay file system. It returns when systemd has
// finished booting on all of them; when that fails it leaves nothing behind.
func Start(ctx context.Context, dir string, n int, log *slog.Logger) (*Bed, error) {
	return StartWith(ctx, dir, n, Plain, log)
}

// StartWith is Start of hosts with something more on them. Each flavour has an image of its own, built when it
// is asked for first.
func StartWith(ctx context.Context, dir string, n int, f Flavour, log *slog.Logger) (*Bed, error) {
	if n < 1 || n > MaxHosts {
		return nil, refusal.New(fmt.Sprintf("a bed of %d hosts", n), fmt.Sprintf("a bed has 1 to %d", MaxHosts), "ask for fewer")
	}
	if err := Check(); err != nil {
		return nil, err
	}
	image, err := EnsureImage(ctx, f, log)
	if err != nil {
		return nil, err
	}
	dir, err = prepareDir(dir)
	if err != nil {
		return nil, err
	}
	id := make([]byte, 4)
	rand.Read(id) // never fails (crypto/rand)
	b := newBed(dir, state{ID: hex.EncodeToString(id), Hosts: n, Image: image, Flavour: f}, log)
	if err := b.raise(ctx); err != nil {
		err = fmt.Errorf("start bed %s: %w", dir, err)
		return nil, errors.Join(err, b.Down(context.WithoutCancel(ctx)))
	}
	return b, nil
}

// Open finds the bed whose state is kept in dir. Its hosts may be up or down. fs.ErrNotExist is in
// the error when there is no bed.
func Open(dir string) (*Bed, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	raw, err := os.ReadFile(filepath.Join(dir, stateFile))
	if err != nil {
		return nil, fmt.Errorf("open bed: %w", err)
	}
	var s state
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, fmt.Errorf("open bed %s: %w", dir, err)
	}
	if !bedID.MatchString(s.ID) || s.Hosts < 1 || s.Hosts > MaxHosts {
		return nil, fmt.Errorf("open bed %s: %s holds no bed", dir, stateFile)
	}
	return newBed(dir, s, slog.New(slog.DiscardHandler)), nil
}

// bedID guards the names that Down deletes by.
var bedID = regexp.MustCompile(`^[0-9a-f]{8}$`)

func newBed(dir string, s state, log *slog.Logger) *Bed {
	b := &Bed{dir: dir, state: s, log: log, inet: &Namespace{name: "mesh-" + s.ID + "-inet"}}
	for i := 1; i <= s.Hosts; i++ {
		name := fmt.Sprintf("host%d", i)
		b.hosts = append(b.hosts, &Host{
			Namespace: Namespace{name: "mesh-" + s.ID + "-" + name},
			Name:      name,
			bed:       b,
			n:         i,
			dir:       filepath.Join(dir, name),
			cgroup:    filepath.Join(s.Cgroup, name),
		})
	}
	return b
}

// Dir is the state folder, for Open.
func (b *Bed) Dir() string { return b.dir }

// Len is how many hosts the bed has.
func (b *Bed) Len() int { return len(b.hosts) }

// Host is the i-th host, counted from 1.
func (b *Bed) Host(i int) *Host {
	if i < 1 || i > len(b.hosts) {
		panic(fmt.Sprintf("hosts: the bed has hosts 1 to %d, asked for %d", len(b.hosts), i))
	}
	return b.hosts[i-1]
}

// Internet is the namespace that stands for everything outside the hosts. It answers at InternetIPv4
// and InternetIPv6 on the hosts' own link and at FarIPv4 behind it.
func (b *Bed) Internet() *Namespace { return b.inet }

// Down takes the bed away: processes, namespaces, mounts, cgroups, links and files. It may be repeated
// and works from any half-made state.
func (b *Bed) Down(ctx context.Context) error {
	var errs []error
	errs = append(errs, b.killAll(ctx))
	for _, h := range b.hosts {
		errs = append(errs, h.forget(), deleteNamespace(ctx, h.name))
	}
	errs = append(errs, deleteNamespace(ctx, b.inet.name), unmountBelow(b.dir))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("take bed %s down: %w", b.dir, err)
	}
	for _, h := range b.hosts {
		errs = append(errs, os.RemoveAll(h.dir))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("take bed %s down: %w", b.dir, err)
	}
	// The state goes last: as long as something may be left, Open finds the bed.
	for _, name := range []string{cgroupMount, stateFile, ""} {
		if err := os.Remove(filepath.Join(b.dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("take bed %s down: %w", b.dir, err)
		}
	}
	return nil
}

// raise makes the bed that b.state describes, and writes that down before the first act.
func (b *Bed) raise(ctx context.Context) error {
	root, mounted, err := cgroupRoot()
	if err != nil {
		return err
	}
	if !mounted {
		root = filepath.Join(b.dir, cgroupMount)
	}
	b.state.Cgroup = filepath.Join(root, "mesh-"+b.state.ID)
	for _, h := range b.hosts {
		h.cgroup = filepath.Join(b.state.Cgroup, h.Name)
	}
	raw, err := json.Marshal(b.state)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(b.dir, stateFile), raw, 0o600); err != nil {
		return err
	}
	if err := shareMount(b.dir); err != nil {
		return err
	}
	if !mounted {
		if err := mountCgroup(root); err != nil {
			return err
		}
	}
	if err := makeCgroup(b.state.Cgroup); err != nil {
		return err
	}
	if err := b.makeInternet(ctx); err != nil {
		return err
	}
	return b.each(func(h *Host) error {
		if err := h.makeRoot(); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
		return h.BootErr(ctx)
	})
}

// each runs do for all hosts at once and returns what failed.
func (b *Bed) each(do func(*Host) error) error {
	errs := make([]error, len(b.hosts))
	var wg sync.WaitGroup
	for i, h := range b.hosts {
		wg.Go(func() { errs[i] = do(h) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
