package apply

import (
	"context"
	"os"
	"slices"

	"mesh/agent/host/file"
	"mesh/agent/resource"
)

// settled is what has to be unchanged for a look to be over at once: a stat for each path, one call to
// systemd for all units.
type settled struct {
	files   []printed
	dirs    []madeDir
	bundles []madeBundle
	units   []unitLook
	names   []string // of the units
	things  []watched
	left    int // how many looks may still be quick
}

type printed struct {
	path string
	file.Fingerprint
}

type madeDir struct {
	path     string
	mode     os.FileMode
	uid, gid int
}

type madeBundle struct {
	path  string
	mtime int64
}

type unitLook struct{ name, load, active, sub string }

// quickLooks is how many quick looks at units and bundles stand between two thorough ones, which also find
// what one call to systemd does not show.
const quickLooks = 10

// wantsFolders change when a unit is enabled or disabled; the folder of units when one is added.
var wantsFolders = []string{resource.UnitFolder, resource.UnitFolder + "/multi-user.target.wants", resource.UnitFolder + "/timers.target.wants",
	resource.UnitFolder + "/sockets.target.wants"}

// remember notes what was seen in a pass that found everything in order.
func (e *Engine) remember(w *work) {
	s := &settled{left: quickLooks}
	now := w.start
	add := func(p string) bool {
		st, ok := w.see.Paths[p]
		if !ok {
			var err error
			if st, err = e.root.Observe(p); err != nil {
				return false
			}
		}
		if !st.Exists {
			return true // a folder that is not there yet; one that comes is found by the next thorough look
		}
		if !st.Settled(now) {
			return false
		}
		s.files = append(s.files, printed{p, st.Fingerprint})
		return true
	}
	for _, r := range w.resources {
		ok := true
		switch r.Kind {
		case resource.KindFile:
			ok = add(r.File.Path)
		case resource.KindDir:
			st := w.see.Paths[r.Dir.Path]
			s.dirs = append(s.dirs, madeDir{r.Dir.Path, st.Mode, st.UID, st.GID})
		case resource.KindBundle:
			st, err := os.Lstat(r.Bundle.Folder)
			if ok = err == nil; ok {
				s.bundles = append(s.bundles, madeBundle{r.Bundle.Folder, st.ModTime().UnixNano()})
			}
		case resource.KindUnit:
			u := w.see.Units[r.Unit.Name]
			s.units = append(s.units, unitLook{r.Unit.Name, u.Load, u.Active, u.Sub})
			s.names = append(s.names, r.Unit.Name)
			ok = add(r.Unit.Path())
		case resource.KindLink:
			ok = add(r.Link.Path)
		case resource.KindUser:
		default:
			ok = e.rememberThing(s, w, &r)
		}
		if !ok {
			return
		}
	}
	if len(s.units) > 0 {
		for _, p := range wantsFolders {
			if !add(p) {
				return
			}
		}
	}
	s.files, s.dirs = slices.Clip(s.files), slices.Clip(s.dirs)
	e.fast = s
}

// unchanged reports whether everything is as a pass left it that found nothing to do. Nothing is read but
// by stat, nothing written.
func (e *Engine) unchanged(ctx context.Context) bool {
	s := e.fast
	if s == nil || e.prober.News() != e.health.heard || e.cfg.Filter != nil && !e.filterOK || !e.accountsUnchanged() {
		return false
	}
	if len(s.units)+len(s.bundles) > 0 {
		if s.left--; s.left < 0 {
			return false
		}
	}
	for i := range s.files {
		if !e.root.Unchanged(s.files[i].path, s.files[i].Fingerprint) {
			return false
		}
	}
	if !e.thingsUnchanged(s) {
		return false
	}
	for _, d := range s.dirs {
		st, err := e.root.Observe(d.path)
		if err != nil || !st.Exists || st.Mode != d.mode || st.UID != d.uid || st.GID != d.gid || st.Kind == file.File {
			return false
		}
	}
	for _, b := range s.bundles {
		st, err := os.Lstat(b.path)
		if err != nil || st.ModTime().UnixNano() != b.mtime || !e.bundleUnchanged(b.path) {
			return false
		}
	}
	return e.unitsUnchanged(ctx, s)
}

// largeBundle is from how many entries on the content of a bundle is looked at in thorough looks only.
const largeBundle = 2000

func (e *Engine) bundleUnchanged(folder string) bool {
	ix := e.indexes[folder]
	if ix == nil {
		return false
	}
	if len(ix.Entries) >= largeBundle {
		return true
	}
	at, _, err := ix.differing(folder)
	return err == nil && len(at) == 0
}

func (e *Engine) unitsUnchanged(ctx context.Context, s *settled) bool {
	if len(s.units) == 0 {
		return true
	}
	now, err := e.cfg.Host.Units.List(ctx, s.names)
	if err != nil {
		return false
	}
	for _, u := range s.units {
		if n := now[u.name]; n.Load != u.load || n.Active != u.active || n.Sub != u.sub {
			return false
		}
	}
	return true
}
