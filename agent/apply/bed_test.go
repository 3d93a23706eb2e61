package apply_test

import (
	"bytes"
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
	clock   *clock.Fake
	keys    keys
	store   *state.Store
	engine  *apply.Engine
	units   *paperUnits
	filter  apply.Filter
	reserve int64
	workers int
	point   func(string)
	fetched func(a declaration.Artifact, from int) error // before a fetch; nil: all is well
}

// keys are what a node was enrolled with.
type keys struct{ Signer, Curve credential.Seed }

func (b *bed) path(p string) string { return filepath.Join(b.dir, p) }
func (b *bed) root(p string) string { return filepath.Join(b.dir, "root", p) }

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
	log := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	var err error
	b.store, err = state.Open(context.Background(), state.Config{Path: b.path("state/state.db"), Clock: b.clock, Rand: rand.Reader, Log: log})
	if err != nil {
		return err
	}
	signer, err := credential.ParseSigner(b.keys.Signer)
	if err != nil {
		return err
	}
	b.units = &paperUnits{bed: b}
	b.engine, err = apply.New(apply.Config{
		Store: b.store, Node: "n1", Mesh: "m1", Verifier: signer.Verifier(), Curve: b.keys.Curve, Root: b.path("root"), BundleDir: b.path("state/bundles"),
		Host: apply.Host{Units: b.units, Runner: paperRunner{b}, Machine: resource.Machine{Arch: "amd64", OS: "debian"}}, Fetch: b.fetch, Filter: b.filter,
		Clock: b.clock, Rand: rand.Reader, Log: log, Workers: b.workers, Settle: time.Millisecond, Reserve: b.reserve, FailPoint: b.point,
	})
	return err
}

func (b *bed) stop() error { return errors.Join(b.engine.Close(), b.store.Close()) }

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
		d := declaration.Module{Name: m.Module, Build: "build-1", Artifact: m.artifact, Manifest: text, Settings: m.settings}
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
	body, err := declaration.Join(declaration.Head{Format: declaration.Format, Mesh: "m1", Node: "n1", Seq: seq}, content)
	must(t, err)
	signer, err := credential.ParseSigner(b.keys.Signer)
	must(t, err)
	signed, err := declaration.Sign(signer, body)
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

// paperRunner is useradd and groupadd.
type paperRunner struct{ *bed }

func (r paperRunner) Run(_ context.Context, _ string, argv []string) (int, string, error) {
	name := argv[len(argv)-1]
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
	return 0, "", errors.Join(err, f.Close())
}

// paperUnits is a systemd whose memory is a file, so that it outlives the agent. A unit with "fails" in
// its text fails.
type paperUnits struct {
	*bed
	mu   sync.Mutex
	gone error // what every call gets, when set
}

// paperUnit is what systemd knows of one unit.
type paperUnit struct {
	Text                        string // as it was last read
	Active, Sub, Result         string
	Running                     string // the sum of the text it was started with
	Invocation, Starts, Restart int
}

func (u *paperUnits) with(call string, change func(map[string]*paperUnit) error) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.gone != nil {
		return u.gone
	}
	all := map[string]*paperUnit{}
	text, err := os.ReadFile(u.path("systemd.json"))
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err = change(all)
	text, err2 := json.Marshal(all)
	err3 := errors.Join(err2, os.WriteFile(u.path("systemd.new"), text, 0o644), os.Rename(u.path("systemd.new"), u.path("systemd.json")))
	f, err4 := os.OpenFile(u.path("calls"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err4 == nil {
		_, err4 = f.WriteString(call + "\n")
		err4 = errors.Join(err4, f.Close())
	}
	return errors.Join(err, err3, err4)
}

// calls are what was asked since the last time, but not the looks.
func (u *paperUnits) calls(t testing.TB) []string {
	t.Helper()
	text, err := os.ReadFile(u.path("calls"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	must(t, os.WriteFile(u.path("calls"), nil, 0o644))
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
	s.Active, s.Sub, s.Result, s.Restarts = p.Active, p.Sub, p.Result, p.Restart
	s.NeedReload = p.Text != text
	if p.Text != "" {
		s.Load, s.Fragment = "loaded", resource.UnitFolder+"/"+name
	}
	s.Invocation = fmt.Sprint(p.Invocation)
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

func (u *paperUnits) Start(_ context.Context, name string) (systemd.JobResult, error) {
	return u.job("start", name)
}

func (u *paperUnits) Restart(_ context.Context, name string) (systemd.JobResult, error) {
	return u.job("restart", name)
}

func (u *paperUnits) job(op, name string) (job systemd.JobResult, err error) {
	err = u.with(op+" "+name, func(all map[string]*paperUnit) error {
		u.state(all, name) // loads it
		p := all[name]
		if p == nil || p.Text == "" {
			return systemd.ErrNoUnit
		}
		if op == "restart" || p.Active != "active" {
			p.Active, p.Sub, p.Result, p.Running = "active", "running", "success", resource.Sum([]byte(p.Text))
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

func (u *paperUnits) Stop(_ context.Context, name string) (job systemd.JobResult, err error) {
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
