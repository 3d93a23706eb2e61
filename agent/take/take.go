// Package take makes things that somebody else put on a machine mesh's, on a person's word, and puts them back as they
// were found (APP-9, APP-10, APP-18): containers, files and systemd units that a module declares.
//
// Look says what a held thing is beside what is declared of it. Take carries out a word once: it looks again,
// refuses what is another than was compared, an older image and other content that nobody allowed, and what could
// not come back; it writes everything down; it sets containers aside, stopped, under another name; and it enters
// the things into the ledger, so that the plan brings them to what is declared, with the volumes they have. GiveBack
// undoes that, once the module's own things are gone.
//
// What is written down is synced before the first act. Killed at any instant, the next call goes on where this one
// was: each act may be repeated. A word that is refused changes nothing and is not tried again.
//
// Comparing is a function of values. The package starts no goroutine; a Desk is for one goroutine.
package take

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"mesh/agent/host/engine"
	"mesh/agent/host/file"
	"mesh/agent/host/systemd"
	"mesh/agent/host/user"
	"mesh/agent/resource"
	"mesh/agent/state"
	"mesh/shared/clock"
	"mesh/shared/declaration"
	"mesh/shared/order"
	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/subject"
)

// store is what *state.Store does.
type store interface {
	Meta(ctx context.Context, key string) (value []byte, ok bool, err error)
	SetMeta(ctx context.Context, key string, value []byte) error
	SetMetaSynced(ctx context.Context, key string, value []byte) error
	Intend(ctx context.Context, rows []state.Row) error
}

// Units is what *systemd.Conn does.
type Units interface {
	States(ctx context.Context, units []string) (map[string]systemd.UnitState, error)
	Reload(ctx context.Context) error
	Enable(ctx context.Context, units []string) (changed bool, err error)
	Disable(ctx context.Context, units []string) (changed bool, err error)
	ResetFailed(ctx context.Context, unit string) error
	Start(ctx context.Context, unit string) (systemd.JobResult, error)
	Stop(ctx context.Context, unit string) (systemd.JobResult, error)
}

// Config is what a Desk works with.
type Config struct {
	Store store
	Files *file.Root
	// Units is systemd; nil for none.
	Units Units
	// Engine is the machine's container engine; nil when it has none.
	Engine func() *engine.Engine
	// Accounts are the machine's users and groups.
	Accounts func() user.Accounts
	// Mask takes out what is a secret by its look.
	Mask  Mask
	Clock clock.Clock
	Log   *slog.Logger
	// FailPoint is called at each of FailPoints; a test dies there. nil on a machine.
	FailPoint func(name string)
}

// FailPoints are the instants at which a test kills the agent.
var FailPoints = []string{contentNoted, noted, ownerStopped, stopped, movedAside, entered, tookAll,
	backNoted, fileBack, unitBack, namedBack, containerBack, backAll}

const (
	contentNoted  = "take: the content of a file written down"
	noted         = "take: all written down"
	ownerStopped  = "take: a container's unit stopped"
	stopped       = "take: a container stopped"
	movedAside    = "take: a container set aside"
	entered       = "take: the ledger has them"
	tookAll       = "take: over"
	backNoted     = "give back: begun"
	fileBack      = "give back: a file is back"
	unitBack      = "give back: a unit is back"
	namedBack     = "give back: a container has its name"
	containerBack = "give back: a container is back"
	backAll       = "give back: over"
)

// Desk takes and gives back. Make it with New.
type Desk struct {
	cfg      Config
	receipts map[subject.Module]receipt // nil: not read yet
	boxes    map[string]boxed           // what was seen of held containers, by id
}

// New returns a Desk that has done nothing yet.
func New(cfg Config) *Desk {
	if cfg.FailPoint == nil {
		cfg.FailPoint = func(string) {}
	}
	return &Desk{cfg: cfg, boxes: map[string]boxed{}}
}

// Due are the words that are not carried out yet, nor refused. It costs one query of the store's in all.
func (d *Desk) Due(ctx context.Context, words []declaration.Take) (due []declaration.Take, err error) {
	if err := d.recall(ctx); err != nil {
		return nil, err
	}
	for _, w := range words {
		r := d.receipts[w.Module]
		switch {
		case w.ID <= r.Closed, r.Refused != nil && r.Refused.ID >= w.ID:
		case w.Back, r.Stage != taken || r.ID < w.ID:
			due = append(due, w)
		}
	}
	return due, nil
}

// Took are the ids of what is, or is being, taken for a module.
func (d *Desk) Took(m subject.Module) (ids []string) {
	for _, f := range d.receipts[m].Things {
		ids = append(ids, f.ID)
	}
	return ids
}

// Take carries out w, of whose module held are the held things. An error that is a refusal ended the word; any other
// is tried again with the next call.
func (d *Desk) Take(ctx context.Context, w declaration.Take, held []*resource.Resource) error {
	if err := d.recall(ctx); err != nil {
		return err
	}
	r := d.receipts[w.Module]
	if r.Stage == giving {
		if err := d.GiveBack(ctx, w.Module, r.ID); err != nil { // the word was changed meanwhile: that is finished first
			return err
		}
	}
	if r.Stage != taking || r.ID != w.ID {
		found, err := d.find(ctx, w, held)
		if no := (*denied)(nil); errors.As(err, &no) {
			return d.refuse(ctx, w, err)
		}
		if err != nil {
			return err
		}
		if err := d.note(ctx, w, found); err != nil {
			return err
		}
	}
	d.cfg.FailPoint(noted)
	r = d.receipts[w.Module]
	rows := make([]state.Row, len(r.Things))
	for i, f := range r.Things {
		if f.Container != nil {
			if err := d.setAside(ctx, f); err != nil {
				return fmt.Errorf("set %s aside: %w", f.ID, err)
			}
		}
		rows[i] = f.row(w.Module)
	}
	if err := d.cfg.Store.Intend(ctx, d.fresh(w, rows)); err != nil {
		return err
	}
	d.cfg.FailPoint(entered)
	if err := d.keep(ctx, w.Module, func(r *receipt) { r.Stage = taken }); err != nil {
		return err
	}
	d.cfg.Log.Info("things are mesh's on a person's word", "module", w.Module, "what", d.Took(w.Module))
	d.cfg.FailPoint(tookAll)
	return nil
}

// fresh are the rows of what this word takes: those of an earlier one have moved on.
func (d *Desk) fresh(w declaration.Take, rows []state.Row) []state.Row {
	return slices.DeleteFunc(rows, func(r state.Row) bool { _, named := w.Things[r.ID]; return !named })
}

// refuse ends w.
func (d *Desk) refuse(ctx context.Context, w declaration.Take, why error) error {
	d.cfg.Log.Warn("a take was refused", "module", w.Module, "err", why)
	err := d.keep(ctx, w.Module, func(r *receipt) {
		r.Refused = &refused{ID: w.ID, At: d.cfg.Clock.Now().UnixMilli(), Refusal: *refusal.Of(why)}
	})
	if err != nil {
		return err
	}
	return why
}

// denied is why a word is not carried out at all. What the engine or the disk says is no such reason.
type denied struct{ error }

func (e *denied) Unwrap() error { return e.error }

func deny(what, why, do string) error { return &denied{refusal.New(what, why, do)} }

// kept is a thing with the content that is kept of it.
type kept struct {
	Found
	content []byte
}

// find looks at all that w names, and refuses it unless each can be taken.
func (d *Desk) find(ctx context.Context, w declaration.Take, held []*resource.Resource) ([]kept, error) {
	what := "the take of " + string(w.Module)
	const again = "compare again: mesh-coordinator take <node> "
	var all []kept
	for _, r := range held {
		seen, named := w.Things[r.ID]
		if !named {
			return nil, deny(what, r.ID+" is held too, and was not when it was compared", again+string(w.Module))
		}
		h, k, err := d.look(ctx, r)
		if err != nil {
			return nil, err
		}
		switch {
		case h.Seen != seen:
			return nil, deny(what, r.ID+" is another than when it was compared", again+string(w.Module))
		case h.Cannot != "":
			return nil, deny(what, r.ID+": "+h.Cannot, "do that, then "+again+string(w.Module))
		case h.Needs == report.NeedsDowngrade && !w.Downgrade:
			return nil, deny(what, r.ID+": the declared image is older than the one that runs", "register a newer image, or allow it: --downgrade")
		case h.Needs == report.NeedsReplace && !slices.Contains(w.Replace, r.File.Path):
			return nil, deny(what, r.ID+": its content differs from the declared one", "declare what is there, or allow it: --replace "+r.File.Path)
		}
		all = append(all, k)
	}
	if len(all) == 0 {
		return nil, deny(what, "nothing of it is held here", "nothing: see how it is with mesh-coordinator node show")
	}
	return all, nil
}

// note writes down what was found.
func (d *Desk) note(ctx context.Context, w declaration.Take, found []kept) error {
	for _, k := range found {
		if k.content == nil {
			continue
		}
		if err := d.cfg.Store.SetMetaSynced(ctx, contentOf(w.Module, k.ID), k.content); err != nil {
			return err
		}
		d.cfg.FailPoint(contentNoted)
	}
	return d.keep(ctx, w.Module, func(r *receipt) {
		if r.Stage == given {
			*r = receipt{Closed: r.Closed}
		}
		r.ID, r.Stage, r.Refused = w.ID, taking, nil
		for _, k := range found {
			r.Things = slices.DeleteFunc(r.Things, func(f Found) bool { return f.ID == k.ID })
			r.Things = append(r.Things, k.Found)
		}
		order.Sort(r.Things, func(a, b Found) int { return strings.Compare(a.ID, b.ID) })
	})
}

// lookAgain is how long what was seen of a held container stands: to look starts programs.
const lookAgain = 10 * time.Minute

// boxed is what was seen of a container, beside what.
type boxed struct {
	held  report.Held
	at    time.Time
	about string
}

// Look says what a held thing is, beside what is declared of it (APP-9).
func (d *Desk) Look(ctx context.Context, r *resource.Resource) (report.Held, error) {
	if r.Kind != resource.KindContainer {
		h, _, err := d.look(ctx, r)
		return h, err
	}
	c := r.Container
	about := fmt.Sprint(c.Name, c.Image.Word(), c.Networks, c.Ports, c.Mounts)
	if box := d.cfg.Engine(); box != nil {
		for _, f := range box.Files() {
			if st, err := d.cfg.Files.Stat(f); err == nil {
				about += fmt.Sprintf(" %+v", st.Fingerprint)
			}
		}
	}
	now := d.cfg.Clock.Now()
	if s, ok := d.boxes[r.ID]; ok && s.about == about && now.Sub(s.at) < lookAgain && !now.Before(s.at) {
		return s.held, nil
	}
	h, _, err := d.look(ctx, r)
	if err == nil {
		d.boxes[r.ID] = boxed{h, now, about}
	}
	return h, err
}

// Forget drops what was seen of containers that are not held any more.
func (d *Desk) Forget(held []*resource.Resource) {
	maps.DeleteFunc(d.boxes, func(id string, _ boxed) bool {
		return !slices.ContainsFunc(held, func(r *resource.Resource) bool { return r.ID == id })
	})
}

func (d *Desk) look(ctx context.Context, r *resource.Resource) (report.Held, kept, error) {
	k := kept{Found: Found{ID: r.ID}}
	switch r.Kind {
	case resource.KindFile:
		seen, found, err := d.seeFile(r.File.Path)
		if err != nil {
			return report.Held{}, k, err
		}
		k.File, k.content = found, seen.Content
		return CompareFile(r, seen, d.cfg.Mask), k, nil
	case resource.KindUnit:
		seen, found, err := d.seeUnit(ctx, r.Unit.Name)
		if err != nil {
			return report.Held{}, k, err
		}
		k.Unit, k.content = found, seen.File.Content
		return CompareUnit(r, seen, d.cfg.Mask), k, nil
	case resource.KindContainer:
		seen, owner, err := d.seeContainer(ctx, r.Container)
		if err != nil {
			return report.Held{}, k, err
		}
		k.Container, k.Docker, k.Owner = &seen.Container, seen.Docker, owner
		return CompareContainer(r, seen), k, nil
	}
	return report.Held{}, k, fmt.Errorf("%s is nothing that is taken", r.ID)
}

func (d *Desk) seeFile(p string) (FileSeen, *FoundFile, error) {
	st, err := d.cfg.Files.Observe(p)
	if err != nil {
		return FileSeen{}, nil, err
	}
	s := FileSeen{State: st}
	if !st.Exists || st.Kind != file.File {
		return s, nil, nil
	}
	s.Owner, s.Group = names(d.cfg.Accounts(), st)
	attributes, err := d.cfg.Files.Attributes(p)
	if err != nil {
		return s, nil, err
	}
	s.Attributes = slices.Sorted(maps.Keys(attributes))
	f := &FoundFile{Path: p, Sum: sumOf(st), Mode: st.Mode, UID: st.UID, GID: st.GID, Attributes: attributes}
	if st.Size > maxContent {
		return s, f, nil
	}
	content, err := d.cfg.Files.Read(p, maxContent)
	if err != nil {
		return s, f, err
	}
	if s.Content = content; len(content) == 0 {
		s.Content = []byte{}
	}
	if resource.Sum(content) != f.Sum {
		return s, f, fmt.Errorf("%s changes while it is looked at", p)
	}
	return s, f, nil
}

func (d *Desk) seeUnit(ctx context.Context, name string) (s UnitSeen, f *FoundUnit, err error) {
	if d.cfg.Units == nil {
		return s, nil, errNoUnits
	}
	states, err := d.cfg.Units.States(ctx, []string{name})
	if err != nil {
		return s, nil, err
	}
	u := states[name]
	f = &FoundUnit{Name: name, Enabled: u.File, Active: u.Running() || u.Active == "activating"}
	s = UnitSeen{Fragment: u.Fragment, Enabled: u.File, Active: u.Active, DropIns: strings.Fields(u.DropIns)}
	if s.File, f.File, err = d.seeFile(resource.UnitFolder + "/" + name); err != nil {
		return s, f, err
	}
	s.Text = s.File.Content
	if !s.File.State.Exists && u.Fragment != "" {
		s.Text, err = d.cfg.Files.Read(u.Fragment, maxContent)
	}
	return s, f, err
}

func (d *Desk) seeContainer(ctx context.Context, c *resource.Container) (s ContainerSeen, owner *FoundUnit, err error) {
	box := d.cfg.Engine()
	if box == nil {
		return s, nil, engine.Missing("container " + c.Name)
	}
	if s.Container, err = box.Inspect(ctx, c.Name); err != nil {
		return s, nil, err
	}
	s.Docker, s.Again = box.Kind() == engine.Docker, box.CanMakeAgain(s.Container)
	if s.Made, _, err = box.ImageMade(ctx, s.Image); err != nil {
		d.cfg.Log.Debug("the image of a held container cannot be looked at", "thing", c.Name, "err", err)
	}
	if c.Image != nil {
		if there, known, err := box.HasImage(engine.Image{Name: c.Image.Name, Digest: c.Image.Digest, ID: c.Image.ID}); err == nil && (there || !known) {
			if s.DeclaredMade, s.DeclaredID, err = box.ImageMade(ctx, c.Image.Word()); err != nil {
				d.cfg.Log.Debug("the declared image cannot be looked at", "thing", c.Name, "err", err)
			}
		}
	}
	s.Beside = map[string][]string{}
	for _, n := range s.Networks {
		on, err := box.OnNetwork(ctx, n)
		if err != nil {
			return s, nil, err
		}
		s.Beside[n] = slices.DeleteFunc(on, func(name string) bool { return name == c.Name })
	}
	if s.Unit == "" || d.cfg.Units == nil {
		return s, nil, nil
	}
	states, err := d.cfg.Units.States(ctx, []string{s.Unit})
	if err != nil {
		return s, nil, err
	}
	u := states[s.Unit]
	if u.Load != "loaded" {
		return s, nil, nil
	}
	s.Owned, s.Generated = true, generated(u.File)
	return s, &FoundUnit{Name: s.Unit, Enabled: u.File, Active: u.Running() || u.Active == "activating"}, nil
}

// generated units have no file that could be disabled: quadlets.
func generated(state string) bool { return state == "generated" || state == "transient" }

// names are of the owner and the group of a file.
func names(all user.Accounts, st file.State) (owner, group string) {
	owner, group = fmt.Sprint(st.UID), fmt.Sprint(st.GID)
	for _, n := range slices.Sorted(maps.Keys(all.Users)) {
		if all.Users[n].UID == st.UID {
			owner = n
			break
		}
	}
	for _, n := range slices.Sorted(maps.Keys(all.Groups)) {
		if all.Groups[n].GID == st.GID {
			group = n
			break
		}
	}
	return owner, group
}

// aside is what a container is called while it is not the one of its name.
func aside(name string) string { return name + ".before-mesh" }

var errNoUnits = errors.New("there is no systemd to ask")

// Refused reports whether err ended a word, which is not tried again.
func Refused(err error) bool {
	no := (*denied)(nil)
	return errors.As(err, &no)
}
