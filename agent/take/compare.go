package take

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"mesh/agent/host/engine"
	"mesh/agent/host/file"
	"mesh/agent/resource"
	"mesh/shared/report"
)

// FileSeen is a file that is there.
type FileSeen struct {
	State file.State
	// Content is what is in it; nil when it is too large to be kept.
	Content []byte
	// Owner and Group are the names.
	Owner, Group string
	// Attributes are the names of its extended attributes.
	Attributes []string
}

// UnitSeen is a systemd unit that is there.
type UnitSeen struct {
	// File is its file in mesh's folder for units; State.Exists is false when it is read from elsewhere.
	File FileSeen
	// Text is what systemd reads, Fragment where from, Enabled and Active are systemd's words.
	Text                      []byte
	Fragment, Enabled, Active string
	DropIns                   []string
}

// ContainerSeen is a container that is there.
type ContainerSeen struct {
	engine.Container
	// Made is when its image was made, DeclaredMade when the declared one was, DeclaredID the declared one's ID; zero
	// for an image that is not on the machine.
	Made, DeclaredMade time.Time
	DeclaredID         string
	// Beside are the other containers on each of its networks.
	Beside map[string][]string
	// Again: the engine could make it once more, would it be gone.
	Again bool
	// Docker: the engine can change its restart policy.
	Docker bool
	// Owned: systemd has the unit that it is of; Generated: without a file that could be disabled.
	Owned, Generated bool
}

// Mask takes secrets out of a line.
type Mask func(string) string

// held begins what is said of r, found as the texts tell apart.
func held(r *resource.Resource, found ...string) report.Held {
	h := sha256.New()
	for _, f := range found {
		fmt.Fprintf(h, "%d:%s", len(f), f)
	}
	return report.Held{Module: r.Module, Thing: r.ID, Seen: hex.EncodeToString(h.Sum(nil)[:12]), Facts: []report.HeldFact{}}
}

func fact(h *report.Held, what, have, want string) {
	if have != "" || want != "" {
		h.Facts = append(h.Facts, report.HeldFact{What: what, Have: have, Want: want})
	}
}

// CompareFile puts a file that is there beside the one declared. A secret in either is not shown.
func CompareFile(r *resource.Resource, s FileSeen, mask Mask) report.Held {
	f := r.File
	h := held(r, sumOf(s.State), octal(s.State.Mode), s.Owner, s.Group)
	fact(&h, "size", fmt.Sprintf("%d bytes", s.State.Size), fmt.Sprintf("%d bytes", len(f.Content)))
	fileFacts(&h, s, f.Mode, f.Owner, f.Group)
	if sumOf(s.State) != f.Sum {
		h.Needs = report.NeedsReplace
	}
	if s.Content == nil {
		h.Cannot = tooLarge
	}
	texts(&h, s.Content, f.Content, f.Private, mask)
	return h
}

const tooLarge = "it is larger than what is kept of a thing that is taken (8 MiB): move it away by hand"

// fileFacts adds what files have besides their content.
func fileFacts(h *report.Held, s FileSeen, mode fs.FileMode, owner, group string) {
	fact(h, "mode", octal(s.State.Mode), octal(mode))
	fact(h, "owner", s.Owner+":"+s.Group, owner+":"+group)
	fact(h, "changed", day(time.Unix(0, s.State.Mtime)), "")
	fact(h, "attributes", strings.Join(s.Attributes, ", "), "")
}

// texts adds how two texts differ.
func texts(h *report.Held, have, want []byte, private bool, mask Mask) {
	switch {
	case private:
		h.Notes = append(h.Notes, "a secret is declared in it, so its content is not shown")
	case have == nil:
	case !isText(have) || !isText(want):
		h.Notes = append(h.Notes, "it is no text, or a long one, and is not compared line by line")
	default:
		h.Difference = difference([]byte(mask(string(have))), []byte(mask(string(want))))
	}
}

// CompareUnit puts a unit that is there beside the one declared.
func CompareUnit(r *resource.Resource, s UnitSeen, mask Mask) report.Held {
	u := r.Unit
	h := held(r, string(s.Text), s.Fragment, s.Enabled)
	fact(&h, "read from", s.Fragment, u.Path())
	fact(&h, "at boot", s.Enabled, map[bool]string{true: "enabled", false: "not started"}[u.Enabled])
	fact(&h, "state", s.Active, map[bool]string{true: "active", false: "as it is"}[u.Started])
	if s.File.State.Exists {
		fileFacts(&h, s.File, 0o644, "root", "root")
	}
	for _, d := range s.DropIns {
		h.Notes = append(h.Notes, "a drop-in changes it, and stays: "+d)
	}
	if s.File.State.Exists && s.File.Content == nil {
		h.Cannot = tooLarge
	}
	if u.Started && s.Active == "active" {
		h.Notes = append(h.Notes, "it is restarted with the declared text")
	}
	texts(&h, s.Text, u.Content, false, mask)
	return h
}

// CompareContainer puts a container that is there beside the one declared.
func CompareContainer(r *resource.Resource, s ContainerSeen) report.Held {
	c := r.Container
	h := held(r, s.ID, s.Image, s.Unit)
	fact(&h, "image", imageWords(s.ImageName, s.Image), declaredImage(c.Image, s.DeclaredID))
	fact(&h, "image made", day(s.Made), cmp.Or(day(s.DeclaredMade), "not known until it is on the machine"))
	fact(&h, "state", s.Status+", made "+day(s.Created), "started by "+c.Unit)
	fact(&h, "networks", networks(s), strings.Join(c.Networks, ", "))
	fact(&h, "ports", strings.Join(s.Ports, ", "), strings.Join(c.Ports, ", "))
	fact(&h, "mounts", strings.Join(s.Mounts, ", "), strings.Join(c.Mounts, ", "))
	fact(&h, "restarts", s.Restart, "")
	fact(&h, "unit", s.Unit, c.Unit)
	if !s.Made.IsZero() && !s.DeclaredMade.IsZero() && s.DeclaredMade.Before(s.Made) && s.Image != s.DeclaredID {
		h.Needs = report.NeedsDowngrade
	}
	h.Cannot = cmp.Or(otherData(c, s), whyNot(s))
	h.Notes = append(h.Notes, notes(s)...)
	return h
}

// otherData says which data of the container that runs the declared one would not have, or "": after a take it has the
// very same.
func otherData(c *resource.Container, s ContainerSeen) string {
	for _, m := range s.Data {
		switch have := c.Sources[path.Clean(m.At)]; {
		case have == m.Source:
		case have == "" && m.Volume:
			return fmt.Sprintf("its data at %s are in the volume %s, and nothing is declared there: declare the volume by that name (run.volumes.<volume>.name) and mount it there", m.At, m.Source)
		case have == "":
			return fmt.Sprintf("its data at %s are in %s, and nothing is declared there: declare that folder as a mount", m.At, m.Source)
		default:
			return fmt.Sprintf("its data at %s are in %s, and declared there is %s: declare the one that has the data", m.At, m.Source, have)
		}
	}
	return ""
}

// whyNot says why the container could not come back as it was, or "".
func whyNot(s ContainerSeen) string {
	switch {
	case s.AutoRemove && len(s.Anonymous()) > 0:
		return "it was started with --rm and has volumes without a name, whose data go when it ends: copy the data, or start it with named volumes"
	case s.AutoRemove && !s.Again && !s.Owned:
		return "it was started with --rm, and the engine does not know by what it was made: nobody could give it back"
	case s.StartsAtBoot() && !s.Docker && !s.Again && !s.Owned:
		return "the engine would start it again at boot, and does not know by what it was made: make it without --restart"
	}
	return ""
}

// stays reports whether the container stays on the machine, stopped and under another name.
func stays(s ContainerSeen) bool { return !s.AutoRemove && (!s.StartsAtBoot() || s.Docker) }

func notes(s ContainerSeen) (all []string) {
	if s.Owned {
		all = append(all, "its unit "+s.Unit+" is stopped, and started no more at boot, until it is given back")
	}
	if stays(s) {
		return append(all, "it stays on the machine, stopped, as "+aside(s.Name))
	}
	return append(all, "what it wrote outside of its volumes and mounts goes with it; a give-back makes it anew")
}

func networks(s ContainerSeen) string {
	all := slices.Clone(s.Networks)
	for i, n := range all {
		if others := s.Beside[n]; len(others) > 0 {
			all[i] = n + " (with " + strings.Join(others, ", ") + ")"
		}
	}
	return strings.Join(all, ", ")
}

func declaredImage(i *resource.Image, id string) string {
	if i == nil {
		return ""
	}
	if i.Name == "" {
		return imageWords("the module's own", i.ID)
	}
	return imageWords(i.Name+"@"+shortID(i.Digest), id)
}

func imageWords(name, id string) string {
	if id == "" {
		return name
	}
	return name + " (" + shortID(id) + ")"
}

func shortID(id string) string {
	id = strings.TrimPrefix(id, "sha256:")
	return id[:min(12, len(id))]
}

func day(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04 UTC")
}

func sumOf(st file.State) string { return hex.EncodeToString(st.Sum[:]) }

// octal is a mode as chmod takes it.
func octal(m fs.FileMode) string {
	n := uint32(m.Perm())
	for _, bit := range slices.Sorted(maps.Keys(special)) {
		if m&bit != 0 {
			n |= special[bit]
		}
	}
	return fmt.Sprintf("%04o", n)
}

var special = map[fs.FileMode]uint32{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000}
