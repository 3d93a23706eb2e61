package apply_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"mesh/agent/apply"
	"mesh/agent/host/systemd"
	"mesh/agent/resource"
	"mesh/agent/state"
	"mesh/shared/bundle"
	"mesh/shared/clock"
	"mesh/shared/credential"
	"mesh/shared/declaration"
	"mesh/shared/manifest"
	"mesh/shared/subject"
	"mesh/shared/waitfor"
)

// bed is a machine in a folder: real files, bundles and store, and a systemd that is one on paper but
// outlives the agent as the real one does.
type bed struct {
	dir     string
	paper   string // where what is no file of the machine is kept; empty: in dir
	real    bool   // the machine this runs on: its own files and its own systemd
	clock   *clock.Fake
	keys    keys
	store   *state.Store
	engine  *apply.Engine
	units   *paperUnits
	systemd *systemd.Conn // when real
	filter  apply.Filter
	reserve int64
	workers int
	point   func(string)
	fetched func(a declaration.Artifact, from int) error // before a fetch; nil: all is well
	witness func(at time.Time) []string                  // who may have changed something; nil for nobody
	podman  sync.Mutex                                   // one of its commands at a time
	chunk   func()                                       // before each chunk that comes; nil for nothing
	journal []string                                     // the last lines of every unit
	ran     paperPrograms
}

// keys are what a node was enrolled with.
type keys struct{ Signer, Curve credential.Seed }

func (b *bed) path(p string) string { return filepath.Join(b.dir, p) }
func (b *bed) memory(p string) string {
	if b.paper != "" {
		return filepath.Join(b.paper, p)
	}
	return b.path(p)
}
func (b *bed) root(p string) string {
	if b.real {
		return filepath.Join("/", p)
	}
	return filepath.Join(b.dir, "root", p)
}

// newBed makes a machine.
func newBed(t testing.TB) *bed {
	t.Helper()
	b, err := makeBed(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	b.open(t)
	return b
}

func makeBed(dir string) (*bed, error) {
	signer, err := credential.NewSigner(rand.Reader)
	if err != nil {
		return nil, err
	}
	curve, err := credential.NewCurve(rand.Reader)
	if err != nil {
		return nil, err
	}
	b := &bed{dir: dir, keys: keys{signer.Seed(), curve}}
	me := fmt.Sprint(os.Geteuid())
	for p, text := range map[string]string{
		"root/etc/passwd": "root:x:" + me + ":" + fmt.Sprint(os.Getegid()) + "::/root:/bin/sh\n", "root/etc/group": "root:x:" + fmt.Sprint(os.Getegid()) + ":\n",
		"root/etc/systemd/system/multi-user.target.wants/.keep": "", "root/etc/systemd/system/timers.target.wants/.keep": "", "artifacts/.keep": "",
		"keys": string(signer.Seed()) + "\n" + string(curve),
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(b.path(p)), 0o755), os.WriteFile(b.path(p), []byte(text), 0o644)); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// bedAt finds a machine that was made before.
func bedAt(dir string) (*bed, error) {
	b := &bed{dir: dir}
	text, err := os.ReadFile(b.path("keys"))
	signer, curve, _ := strings.Cut(string(text), "\n")
	b.keys = keys{credential.Seed(signer), credential.Seed(curve)}
	return b, err
}

// start is the agent coming up.
func (b *bed) start() error {
	if b.clock == nil {
		b.clock = clock.NewFake(clock.Real().Now())
	}
	var clk clock.Clock = b.clock
	if b.real {
		clk = clock.Real()
	}
	log := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	var err error
	b.store, err = state.Open(context.Background(), state.Config{Path: b.path("state/state.db"), Clock: clk, Rand: rand.Reader, Log: log})
	if err != nil {
		return err
	}
	signer, err := credential.ParseSigner(b.keys.Signer)
	if err != nil {
		return err
	}
	b.units = &paperUnits{bed: b}
	c := apply.Config{
		Store: b.store, Node: "n1", Mesh: "m1", Verifier: signer.Verifier(), Curve: b.keys.Curve, Root: b.root("/"), BundleDir: b.path("state/bundles"),
		Host: apply.Host{Units: b.units, Witness: b.witness, Runner: paperRunner{b}, Programs: &b.ran, Machine: resource.Machine{Arch: "amd64", OS: "debian"}}, Fetch: b.fetch, Filter: b.filter,
		Clock: clk, Rand: rand.Reader, Log: log, Workers: b.workers, Settle: time.Millisecond, Reserve: b.reserve, FailPoint: b.point,
	}
	c.Journal = func(context.Context, []string, time.Time, int) ([]string, error) { return slices.Clone(b.journal), nil }
	if b.real {
		b.systemd = systemd.New(clk)
		c.Host.Units, c.Host.Runner, c.Settle = b.systemd, b.systemd, 0
	}
	b.engine, err = apply.New(c)
	return err
}

func (b *bed) stop() error {
	if b.systemd != nil {
		b.systemd.Close()
	}
	return errors.Join(b.engine.Close(), b.store.Close())
}

func (b *bed) open(t testing.TB) {
	t.Helper()
	if err := b.start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.stop() })
}

// restart is the agent's end and its next life.
func (b *bed) restart(t testing.TB) {
	t.Helper()
	if err := errors.Join(b.stop(), b.start()); err != nil {
		t.Fatal(err)
	}
}

// fetch serves the artifacts folder in chunks.
func (b *bed) fetch(_ context.Context, a declaration.Artifact, from int, w io.Writer) error {
	if b.fetched != nil {
		if err := b.fetched(a, from); err != nil {
			return err
		}
	}
	content, err := os.ReadFile(b.path("artifacts/" + a.Digest))
	if err != nil {
		return err
	}
	for n := from; n < a.Chunks; n++ {
		at, size := bundle.Span(n, a.Size)
		if b.chunk != nil {
			b.chunk()
		}
		if _, err := w.Write(content[at : at+size]); err != nil {
			return err
		}
	}
	return nil
}

// artifact packs files and registers them.
func (b *bed) artifact(t testing.TB, files map[string]string) *declaration.Artifact {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755))
	}
	var out bytes.Buffer
	digest, size, err := bundle.Pack(&out, dir)
	must(t, err)
	must(t, os.WriteFile(b.path("artifacts/"+digest), out.Bytes(), 0o644))
	return &declaration.Artifact{Digest: digest, Size: size, Chunks: bundle.Chunks(size)}
}

// mod is a module as it is declared.
type mod struct {
	manifest.Manifest
	artifact *declaration.Artifact
	build    string // "" for build-1
	settings map[string]string
	secrets  map[string]string
}

func module(name string, run manifest.Run) mod {
	return mod{Manifest: manifest.Manifest{Module: subject.Module(name), Run: run}}
}

func (m mod) with(a *declaration.Artifact) mod {
	m.artifact, m.Build.Bundle = a, &manifest.Bundle{Output: "dist"}
	return m
}

func (b *bed) content(t testing.TB, mods ...mod) declaration.Content {
	t.Helper()
	c := declaration.Content{Bus: credential.Bus{Addresses: []string{"192.0.2.1:4222"}, Pin: strings.Repeat("ab", 32)}, Drift: declaration.Repair}
	public, err := b.keys.Curve.Public()
	must(t, err)
	for _, m := range mods {
		text, err := json.Marshal(m.Manifest)
		must(t, err)
		d := declaration.Module{Name: m.Module, Build: cmp.Or(m.build, "build-1"), Artifact: m.artifact, Manifest: text, Settings: m.settings}
		for k, v := range m.secrets {
			sealed, err := credential.Seal(rand.Reader, public, "n1", m.Module, k, v)
			must(t, err)
			if d.Secrets == nil {
				d.Secrets = map[string]credential.Sealed{}
			}
			d.Secrets[k] = sealed
		}
		c.Modules = append(c.Modules, d)
	}
	slices.SortFunc(c.Modules, func(a, b declaration.Module) int { return strings.Compare(string(a.Name), string(b.Name)) })
	return c
}

func (b *bed) sign(t testing.TB, seq uint64, c declaration.Content) declaration.Signed {
	t.Helper()
	content, err := declaration.AppendContent(nil, &c)
	must(t, err)
	signer, err := credential.ParseSigner(b.keys.Signer)
	must(t, err)
	signed, err := declaration.SignContent(signer, declaration.Head{Format: declaration.Format, Mesh: "m1", Node: "n1", Seq: seq}, content)
	must(t, err)
	return signed
}

func (b *bed) accept(t testing.TB, seq uint64, mods ...mod) apply.Result {
	t.Helper()
	return b.acceptContent(t, seq, b.content(t, mods...))
}

func (b *bed) acceptContent(t testing.TB, seq uint64, c declaration.Content) apply.Result {
	t.Helper()
	r, err := b.engine.Accept(t.Context(), b.sign(t, seq, c))
	must(t, err)
	return r
}

func (b *bed) pass(t testing.TB, cause apply.Cause) apply.Result {
	t.Helper()
	r, err := b.engine.Pass(t.Context(), cause)
	must(t, err)
	return r
}

func (b *bed) read(t testing.TB, p string) string {
	t.Helper()
	text, err := os.ReadFile(b.root(p))
	if errors.Is(err, fs.ErrNotExist) {
		return "(absent)"
	}
	must(t, err)
	return string(text)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tree is every file below a folder with its mode and the sum of its content.
func tree(t testing.TB, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	must(t, filepath.WalkDir(dir, func(p string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := entry.Info()
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		text := st.Mode().String()
		if st.Mode().IsRegular() {
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			sum := sha256.Sum256(b)
			text += " " + hex.EncodeToString(sum[:6])
		}
		out[rel] = text
		return nil
	}))
	return out
}

// stamps is every file's modification time, inode and change time in words.
func stamps(t testing.TB, dir string) string {
	t.Helper()
	var out strings.Builder
	must(t, filepath.WalkDir(dir, func(p string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := entry.Info()
		if err != nil {
			return err
		}
		sys := st.Sys().(*syscall.Stat_t)
		fmt.Fprintf(&out, "%s %v %v %d\n", p, sys.Mtim, sys.Ctim, sys.Ino)
		return nil
	}))
	return out.String()
}

func waitUntil(t testing.TB, what string, cond func() bool) {
	t.Helper()
	waitfor.True(t, what, 10*time.Second, func() (bool, any) { return cond(), nil })
}
