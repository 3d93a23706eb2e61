package apply

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"mesh/agent/host/file"
	"mesh/agent/host/systemd"
	"mesh/agent/host/user"
	"mesh/agent/plan"
	"mesh/agent/resource"
	"mesh/shared/credential"
	"mesh/shared/manifest"
	"mesh/shared/subject"
)

// accountFiles are what accounts are read from.
var accountFiles = [2]string{"/etc/passwd", "/etc/group"}

// look expands the declaration, observes the machine and makes the plan.
func (e *Engine) look(ctx context.Context, w *work, manifests []manifest.Manifest) error {
	var err error
	if w.ledger, err = e.cfg.Store.Ledger(ctx); err != nil {
		return err
	}
	if manifests, err = e.stand(ctx, w, manifests); err != nil {
		return err
	}
	machine, box := e.machine(manifests)
	w.resources, w.unreadable = resource.Expand(resource.Input{
		Declaration: w.d, Manifests: manifests, Machine: machine, Engine: box, BundleDir: e.cfg.BundleDir, Passed: e.passed, Expanded: e.expanded,
		Open: func(m subject.Module, key string, s credential.Sealed) (string, error) {
			return s.Open(e.cfg.Curve, e.cfg.Node, m, key)
		},
		Instance: e.cfg.Instance,
	})
	e.boxed = containerUnits(w.resources)
	if err := e.observe(ctx, w); err != nil {
		return err
	}
	w.plan = plan.New(e.input(w, w.cause == Boot && !e.booted && e.machineBooted(ctx)))
	return nil
}

const (
	bootIDPath = "/proc/sys/kernel/random/boot_id" // random(4)
	bootKey    = "boot"                            // of the store
)

// machineBooted reports whether the machine came up since the last pass of an earlier life of the agent. If not,
// only the agent did, and a unit that does not run was stopped by somebody meanwhile. It is true where it
// cannot be told.
func (e *Engine) machineBooted(ctx context.Context) bool {
	now, err := e.root.Read(bootIDPath, 100)
	last, known, err2 := e.cfg.Store.Meta(ctx, bootKey)
	return err != nil || err2 != nil || !known || !bytes.Equal(now, last)
}

// rememberBoot notes that everything was looked at since the machine came up.
func (e *Engine) rememberBoot(ctx context.Context) error {
	if now, err := e.root.Read(bootIDPath, 100); err == nil && e.machineBooted(ctx) {
		return e.cfg.Store.SetMeta(ctx, bootKey, now)
	}
	return nil
}

// observe looks at everything declared and everything in the ledger. What cannot be looked at makes its
// module unreadable: it is left alone.
func (e *Engine) observe(ctx context.Context, w *work) error {
	if err := e.readAccounts(); err != nil {
		return fmt.Errorf("read the users: %w", err)
	}
	w.see = plan.Observed{Paths: map[string]file.State{}, Accounts: e.accounts, Bundles: map[string]bool{}, Marked: map[string]bool{},
		Altered: map[string]string{}, Fought: map[string]bool{}}
	known := map[string]bool{}
	var units []string
	see := func(id string, module subject.Module, folder string) {
		kind, name, _ := strings.Cut(id, ":")
		known[id] = true
		var err error
		switch resource.Kind(kind) {
		case resource.KindDir, resource.KindFile, resource.KindLink:
			err = e.path(w, name)
		case resource.KindUnit:
			units = append(units, name)
			if err = e.path(w, resource.UnitFolder+"/"+name); err == nil {
				err = e.marked(w, resource.UnitFolder+"/"+name)
			}
		case resource.KindBundle:
			if folder != "" {
				err = e.bundle(w, folder)
			}
		}
		if err != nil {
			w.unreadable[module] = errors.Join(w.unreadable[module], err)
		}
	}
	for _, r := range w.resources {
		folder := ""
		if r.Kind == resource.KindBundle {
			folder = r.Bundle.Folder
		}
		see(r.ID, r.Module, folder)
	}
	for _, row := range w.ledger {
		if !known[row.ID] {
			see(row.ID, subject.Module(row.Module), "")
		}
	}
	if err := e.things(ctx, w); err != nil {
		return err
	}
	if r := w.d.Remove; r != nil && len(r.Strays) > 0 {
		w.see.Strays = map[string]bool{}
		for _, id := range e.strays(w) {
			w.see.Strays[id] = true
		}
	}
	w.resources = slices.DeleteFunc(w.resources, func(r resource.Resource) bool { return w.unreadable[r.Module] != nil })
	maps.DeleteFunc(e.seen, func(p string, _ file.State) bool { // nobody asks for it any more
		_, asked := w.see.Paths[p]
		return !asked
	})
	w.see.Units, w.see.UnitsError = e.units(ctx, units)
	return ctx.Err()
}

// path looks at one path; what can be told unchanged is not read again.
func (e *Engine) path(w *work, p string) error {
	if _, done := w.see.Paths[p]; done {
		return nil
	}
	if st, ok := e.seen[p]; ok && e.root.Unchanged(p, st.Fingerprint) {
		w.see.Paths[p] = st
		return nil
	}
	delete(e.seen, p)
	now := e.cfg.Clock.Now() // before the look: what changes meanwhile must not pass for settled
	st, err := e.root.Observe(p)
	if err != nil {
		return err
	}
	w.see.Paths[p] = st
	if st.Kind == file.File && st.Settled(now) {
		e.seen[p] = st
	}
	return nil
}

// marked notes whether a unit's file bears mesh's mark.
func (e *Engine) marked(w *work, p string) error {
	st := w.see.Paths[p]
	if !st.Exists || st.Kind != file.File {
		return nil
	}
	ok, err := e.hasMark(p)
	w.see.Marked[p] = ok
	return err
}

// maxUnit bounds what is read of a unit's file.
const maxUnit = 1 << 20

func (e *Engine) hasMark(p string) (bool, error) {
	b, err := e.root.Read(p, maxUnit)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return bytes.HasPrefix(b, []byte(resource.Mark)), err
}

// bundle looks at the folder of a bundle and at what is in it.
func (e *Engine) bundle(w *work, folder string) error {
	there, err := isFolder(folder)
	if w.see.Bundles[folder] = there; err != nil || !there {
		return err
	}
	ix, err := e.indexOf(folder)
	if err != nil {
		return err
	}
	if _, w.see.Altered[folder], err = ix.differing(folder); err != nil {
		return err
	}
	at, mended := e.mended[folder]
	w.see.Fought[folder] = mended && e.cfg.Clock.Now().Sub(at) < mendEvery
	return nil
}

func isFolder(p string) (bool, error) {
	st, err := os.Lstat(p)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && st.IsDir(), err
}

// readAccounts reads the users and groups anew if their files changed.
func (e *Engine) readAccounts() error {
	if e.accounts.Users != nil && e.accountsUnchanged() {
		return nil
	}
	now := e.cfg.Clock.Now()
	var prints [2]file.Fingerprint
	for i, p := range accountFiles {
		st, err := e.root.Observe(p)
		if err != nil {
			return err
		}
		if st.Settled(now) {
			prints[i] = st.Fingerprint
		}
	}
	accounts, err := user.Observe(e.root)
	if err != nil {
		return err
	}
	e.accounts, e.passwd = accounts, prints
	return nil
}

func (e *Engine) accountsUnchanged() bool {
	return e.root.Unchanged(accountFiles[0], e.passwd[0]) && e.root.Unchanged(accountFiles[1], e.passwd[1])
}

// units asks systemd.
func (e *Engine) units(ctx context.Context, names []string) (map[string]plan.Unit, error) {
	if len(names) == 0 {
		return nil, nil
	}
	if e.cfg.Host.Units == nil {
		return nil, errNoUnits
	}
	states, err := e.cfg.Host.Units.States(ctx, names)
	if err != nil {
		return nil, err
	}
	out := make(map[string]plan.Unit, len(states))
	for name, s := range states {
		u := planUnit(s)
		u.Container = e.boxed[name]
		out[name] = u
	}
	return out, nil
}

func planUnit(s systemd.UnitState) plan.Unit {
	return plan.Unit{Load: s.Load, Fragment: s.Fragment, Enabled: s.File, Active: s.Active, Sub: s.Sub, Result: s.Result, NeedReload: s.NeedReload,
		Invocation: s.Invocation, Restarts: s.Restarts, Status: s.ExitStatus, Job: s.Job, DropIns: strings.FieldsFunc(s.DropIns, func(r rune) bool { return r == '\n' })}
}

// sweep removes what a kill may have left behind: temporary files and folders beside what is declared, was, or is
// being given back.
func (e *Engine) sweep(ctx context.Context, w *work) {
	folders := map[string]bool{resource.UnitFolder: true, filepath.Join(filepath.Dir(e.cfg.BundleDir), "env"): true}
	note := func(id string) {
		switch kind, at, _ := strings.Cut(id, ":"); resource.Kind(kind) {
		case resource.KindFile, resource.KindLink, resource.KindDir:
			folders[path.Dir(at)] = true
		}
	}
	for _, r := range w.resources {
		note(r.ID)
	}
	for _, row := range w.ledger {
		note(row.ID)
	}
	if _, err := e.hand.desk.Due(ctx, nil); err != nil {
		e.cfg.Log.Warn("temporary files of what is given back could not be looked for", "err", err)
	}
	for _, t := range e.hand.desk.Status() {
		for _, id := range t.Things {
			note(id)
		}
	}
	for folder := range folders {
		n, err := e.root.SweepTemp(folder)
		if err != nil {
			e.cfg.Log.Warn("temporary files could not be swept", "folder", folder, "err", err)
		} else if n > 0 {
			e.cfg.Log.Info("swept temporary files", "folder", folder, "n", n)
		}
	}
}

// strays are unit files and networks with mesh's mark, and containers with its name, that neither the
// declaration nor the ledger knows.
func (e *Engine) strays(w *work) []string {
	entries, err := os.ReadDir(filepath.Join(e.root.Path(), resource.UnitFolder))
	if err != nil {
		return nil // no folder, no strays
	}
	known := map[string]bool{}
	for _, r := range w.resources {
		known[r.ID] = true
	}
	for _, row := range w.ledger {
		known[row.ID] = true
	}
	var out []string
	for _, entry := range entries {
		id := resource.ID(resource.KindUnit, entry.Name())
		kind := path.Ext(entry.Name())
		if kind != ".service" && kind != ".timer" && kind != ".socket" || !entry.Type().IsRegular() || known[id] {
			continue
		}
		if ok, err := e.hasMark(resource.UnitFolder + "/" + entry.Name()); err == nil && ok {
			out = append(out, id)
		}
	}
	return append(out, e.strayThings(known)...)
}
