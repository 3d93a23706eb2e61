package take

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"mesh/agent/host/engine"
	"mesh/agent/host/file"
	"mesh/agent/host/systemd"
	"mesh/agent/resource"
	"mesh/shared/refusal"
)

// setAside stops a container, and what starts it, and gives it another name, so that the declared one can have its
// own. What the engine would start again at boot is removed instead; its volumes stay.
func (d *Desk) setAside(ctx context.Context, f Found) error {
	box := d.cfg.Engine()
	if box == nil {
		return engine.Missing(f.ID)
	}
	if err := d.stopOwner(ctx, f.Owner); err != nil {
		return err
	}
	d.cfg.FailPoint(ownerStopped)
	c := *f.Container
	if is, err := isContainer(ctx, box, aside(c.Name), c.ID); is || err != nil {
		return err
	}
	if is, err := isContainer(ctx, box, c.ID, c.ID); !is || err != nil {
		return err // it went with its end
	}
	if err := box.Stop(ctx, c.ID); err != nil {
		return err
	}
	d.cfg.FailPoint(stopped)
	if err := d.outOfTheWay(ctx, box, f); err != nil {
		return err
	}
	d.cfg.FailPoint(movedAside)
	return nil
}

func (d *Desk) outOfTheWay(ctx context.Context, box *engine.Engine, f Found) error {
	c := *f.Container
	if !stays(ContainerSeen{Container: c, Docker: f.Docker}) {
		return box.RemoveKeepingData(ctx, c.ID)
	}
	if c.StartsAtBoot() {
		if err := box.SetRestart(ctx, c.ID, "no"); err != nil {
			return err
		}
	}
	return box.Rename(ctx, c.ID, aside(c.Name))
}

// isContainer reports whether the container called name, or with that ID, is the one with the ID.
func isContainer(ctx context.Context, box *engine.Engine, name, id string) (bool, error) {
	c, err := box.Inspect(ctx, name)
	if engine.IsNoContainer(err) {
		return false, nil
	}
	return err == nil && c.ID == id, err
}

func maskOf(unit string) string { return resource.UnitFolder + "/" + unit }

// stopOwner stops the unit that a container is of, for good.
func (d *Desk) stopOwner(ctx context.Context, u *FoundUnit) error {
	if u == nil {
		return nil
	}
	if d.cfg.Units == nil {
		return errNoUnits
	}
	switch {
	case generated(u.Enabled): // it has no file to disable; what systemd calls masked has this link
		if _, err := d.cfg.Files.Link(maskOf(u.Name), "/dev/null"); err != nil {
			return err
		}
	case u.Enabled == "enabled":
		if _, err := d.cfg.Units.Disable(ctx, []string{u.Name}); err != nil {
			return err
		}
	}
	if _, err := d.cfg.Units.Stop(ctx, u.Name); err != nil && !errors.Is(err, systemd.ErrNoUnit) {
		return err
	}
	if err := d.cfg.Units.ResetFailed(ctx, u.Name); err != nil {
		return err
	}
	return d.cfg.Units.Reload(ctx)
}

// free refuses to put anything where somebody else has put something since.
func (d *Desk) free(ctx context.Context, r receipt) error {
	const do = "move it away, then give it back again"
	for _, f := range r.Things {
		files := []*FoundFile{f.File}
		if f.Unit != nil {
			files = append(files, f.Unit.File)
		}
		for _, want := range files {
			if want == nil {
				continue
			}
			st, err := d.cfg.Files.Observe(want.Path)
			if err != nil {
				return err
			}
			if st.Exists && (st.Kind != file.File || sumOf(st) != want.Sum) {
				return deny("giving "+f.ID+" back", "something else stands there now", do)
			}
		}
		if f.Container == nil {
			continue
		}
		box := d.cfg.Engine()
		if box == nil {
			return engine.Missing(f.ID)
		}
		now, err := box.Inspect(ctx, f.Container.Name)
		switch {
		case engine.IsNoContainer(err):
		case err != nil:
			return err
		case now.Labels[engine.ModuleLabel] != "":
			return fmt.Errorf("%s is still mesh's: it is tried again", f.ID)
		case now.ID != f.Container.ID:
			return deny("giving "+f.ID+" back", "another container has its name now", do)
		}
	}
	return nil
}

// restore puts one thing back.
func (d *Desk) restore(ctx context.Context, at string, f Found) error {
	switch {
	case f.File != nil:
		if err := d.restoreFile(ctx, at, f.File); err != nil {
			return err
		}
		d.cfg.FailPoint(fileBack)
		return nil
	case f.Unit != nil:
		return d.restoreUnit(ctx, at, f.Unit)
	}
	return d.restoreContainer(ctx, f)
}

// restoreFile writes a file as it was; its content is under the key at.
func (d *Desk) restoreFile(ctx context.Context, at string, f *FoundFile) error {
	content, _, err := d.cfg.Store.Meta(ctx, at)
	if err != nil {
		return err
	}
	if resource.Sum(content) != f.Sum {
		return fmt.Errorf("the content that was written down of %s is gone or damaged", f.Path)
	}
	if _, err := d.cfg.Files.Write(file.Spec{Path: f.Path, Content: content, Mode: f.Mode, UID: f.UID, GID: f.GID}); err != nil {
		return err
	}
	return d.cfg.Files.SetAttributes(f.Path, f.Attributes)
}

func (d *Desk) restoreUnit(ctx context.Context, at string, u *FoundUnit) error {
	if d.cfg.Units == nil {
		return errNoUnits
	}
	if u.File != nil {
		if err := d.restoreFile(ctx, at, u.File); err != nil {
			return err
		}
	}
	d.cfg.FailPoint(unitBack)
	return d.startUnit(ctx, u)
}

// startUnit has systemd read its files, and a unit be as it was.
func (d *Desk) startUnit(ctx context.Context, u *FoundUnit) error {
	if err := d.cfg.Units.Reload(ctx); err != nil {
		return err
	}
	if u.Enabled == "enabled" {
		changed, err := d.cfg.Units.Enable(ctx, []string{u.Name})
		if err != nil {
			return err
		}
		if changed {
			if err := d.cfg.Units.Reload(ctx); err != nil {
				return err
			}
		}
	}
	if !u.Active {
		return nil
	}
	states, err := d.cfg.Units.States(ctx, []string{u.Name})
	if err != nil {
		return err
	}
	if s := states[u.Name]; s.Running() || s.Active == "activating" {
		return nil
	}
	job, err := d.cfg.Units.Start(ctx, u.Name)
	if err == nil && job.State.Active == "failed" { // it is as it was; the rest comes back all the same
		d.cfg.Log.Warn("a unit that was given back does not start", "unit", u.Name)
	}
	return err
}

func (d *Desk) restoreContainer(ctx context.Context, f Found) error {
	box := d.cfg.Engine()
	if box == nil {
		return engine.Missing(f.ID)
	}
	c := *f.Container
	now, err := box.Inspect(ctx, c.Name)
	switch {
	case err == nil && now.Labels[engine.ModuleLabel] != "":
		return fmt.Errorf("%s is still mesh's: it is tried again", f.ID)
	case err == nil && now.ID != c.ID && !(now.Image == c.Image && slices.Equal(now.Mounts, c.Mounts)):
		return refusal.New("giving "+f.ID+" back", "another container has its name now", "move it away; it is tried again by itself")
	case err != nil && !engine.IsNoContainer(err):
		return err
	case err != nil:
		if err := d.nameBack(ctx, box, f); err != nil {
			return err
		}
	}
	d.cfg.FailPoint(namedBack)
	err = nil
	switch {
	case f.Owner != nil:
		err = d.startOwner(ctx, f.Owner)
	case c.Status == "running":
		err = box.Start(ctx, c.Name)
	}
	if err != nil {
		return err
	}
	d.cfg.FailPoint(containerBack)
	return nil
}

// nameBack gives a container that was set aside its name again, or has one made as that was.
func (d *Desk) nameBack(ctx context.Context, box *engine.Engine, f Found) error {
	c := *f.Container
	is, err := isContainer(ctx, box, aside(c.Name), c.ID)
	switch {
	case err != nil:
		return err
	case is && f.Docker && c.StartsAtBoot():
		if err := box.SetRestart(ctx, c.ID, c.Restart); err != nil {
			return err
		}
		return box.Rename(ctx, c.ID, c.Name)
	case is:
		return box.Rename(ctx, c.ID, c.Name)
	case f.Owner != nil && f.Owner.Active:
		return nil // its unit makes it
	}
	return box.MakeAgain(ctx, c)
}

func (d *Desk) startOwner(ctx context.Context, u *FoundUnit) error {
	if d.cfg.Units == nil {
		return errNoUnits
	}
	if generated(u.Enabled) {
		st, err := d.cfg.Files.Observe(maskOf(u.Name))
		if err != nil {
			return err
		}
		if st.Kind == file.Symlink && st.Target == "/dev/null" {
			if _, err := d.cfg.Files.Remove(maskOf(u.Name)); err != nil {
				return err
			}
		}
	}
	return d.startUnit(ctx, u)
}
