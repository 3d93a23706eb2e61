package plan

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"mesh/agent/host/file"
	"mesh/agent/host/user"
	"mesh/agent/resource"
	"mesh/agent/state"
	"mesh/shared/refusal"
	"mesh/shared/subject"
)

func join(errs ...error) error { return errors.Join(errs...) }

func (p *planner) user(r *resource.Resource) {
	u := r.User
	old, held := p.ledger[r.ID]
	differs := p.in.Observed.Accounts.Differs(user.Spec{Name: u.Name, Home: u.Home, Shell: u.Shell, Groups: u.Groups})
	_, exists := p.in.Observed.Accounts.Users[u.Name]
	switch {
	case len(differs) == 0:
		p.inOrder(r, held && old.Made)
	case exists && !held:
		p.fail(r.Module, refusal.New(p.what(r), "it is there and mesh did not make it: "+strings.Join(differs, ", "),
			"declare it as it is, or choose another name"))
	default:
		p.act(MakeUser, r, strings.Join(differs, ", "), !exists || old.Made)
	}
}

func (p *planner) dir(r *resource.Resource) {
	d := r.Dir
	old, held := p.ledger[r.ID]
	st := p.in.Observed.Paths[d.Path]
	switch {
	case !st.Exists:
		p.act(MakeDir, r, missing(p.drifted(r)), true)
	case d.Implied && (st.Kind == file.Dir || st.Kind == file.Symlink):
		if held {
			p.inOrder(r, old.Made)
		}
	case st.Kind == file.File && p.leaves(resource.ID(resource.KindFile, d.Path)):
		before := len(p.out.Steps)
		p.act(MakeDir, r, "declared, and mesh's own file stands there, which is not declared any more", true)
		for i := range p.out.Steps[before:] {
			p.out.Steps[before+i].OverFile = true
			p.over[resource.ID(resource.KindFile, d.Path)] = true
		}
	case st.Kind != file.Dir:
		p.fail(r.Module, p.held(r, st))
	default:
		made := held && old.Made
		if what := p.attributes(st, d.Mode, d.Owner, d.Group); what != "" {
			p.act(ChangeDir, r, what, made)
			return
		}
		p.inOrder(r, made)
	}
}

// leaves reports whether a thing is mesh's own and not declared any more.
func (p *planner) leaves(id string) bool {
	row, ok := p.ledger[id]
	_, unreadable := p.in.Unreadable[subject.Module(row.Module)]
	return ok && row.Made && row.Sum != "" && !row.Keep && !p.wanted[id] && !unreadable
}

func (p *planner) bundle(r *resource.Resource) {
	what := p.in.Observed.Altered[r.Bundle.Folder]
	switch there := p.in.Observed.Bundles[r.Bundle.Folder]; {
	case there && what == "":
		p.inOrder(r, true)
	case there && p.in.Observed.Fought[r.Bundle.Folder]:
		p.out.Found = append(p.out.Found, Finding{Module: r.Module, ID: r.ID, What: what + ", again: something on the machine writes there"})
	case there:
		before := len(p.out.Steps)
		p.act(Fetch, r, what, true)
		p.altered[r.Module] = len(p.out.Steps) > before
	default:
		p.changed[r.Module] = true
		p.act(Fetch, r, missing(p.drifted(r)), true)
	}
}

func missing(drifted bool) string {
	if drifted {
		return "it is gone"
	}
	return "declared, not there"
}

func (p *planner) file(r *resource.Resource) {
	f := r.File
	old, held := p.ledger[r.ID]
	st := p.in.Observed.Paths[f.Path]
	if !st.Exists {
		p.changed[r.Module] = true
		before := len(p.out.Steps)
		p.act(WriteFile, r, missing(p.drifted(r)), true)
		p.markNew(before)
		return
	}
	if st.Kind == file.Symlink && held && old.Made && old.Sum != "" {
		// Somebody put it where mesh's file was. It is not followed, it is replaced.
		p.changed[r.Module] = true
		before := len(p.out.Steps)
		p.act(WriteFile, r, "a symlink to "+st.Target+" stands there", true)
		for i := range p.out.Steps[before:] {
			p.out.Steps[before+i].OverLink = true
		}
		return
	}
	if st.Kind != file.File {
		p.fail(r.Module, p.held(r, st))
		return
	}
	made := held && old.Made
	sum := sumOf(st)
	what := ""
	if sum != f.Sum {
		if !p.ours(old, held, sum) {
			p.hold(r, p.held(r, st))
			return
		}
		what = "content differs"
	}
	if attr := p.attributes(st, f.Mode, f.Owner, f.Group); attr != "" {
		what = strings.TrimPrefix(what+", "+attr, ", ")
	}
	if what == "" {
		p.inOrder(r, made)
		return
	}
	p.changed[r.Module] = p.changed[r.Module] || sum != f.Sum
	p.act(WriteFile, r, what, made)
}

// markNew says of a step planned since before that nothing stood there.
func (p *planner) markNew(before int) {
	for i := before; i < len(p.out.Steps); i++ {
		p.out.Steps[i].New = true
	}
}

// ours reports whether a file with this content is mesh's to overwrite. An intent that was never
// settled makes it so only when the content is what was intended: else somebody was there first.
func (p *planner) ours(row state.Row, held bool, sum string) bool {
	if !held {
		return false
	}
	want, _, _ := strings.Cut(row.Want, " ")
	return row.Sum != "" || want == sum
}

// attributes says how mode and owner differ.
func (p *planner) attributes(st file.State, mode fs.FileMode, owner, group string) string {
	var all []string
	if st.Mode != mode {
		all = append(all, fmt.Sprintf("mode is %s, declared %s", octal(st.Mode), octal(mode)))
	}
	if u, ok := p.in.Observed.Accounts.Users[owner]; !ok || u.UID != st.UID {
		all = append(all, fmt.Sprintf("owner is %s, declared %s", p.userName(st.UID), owner))
	}
	if g, ok := p.in.Observed.Accounts.Groups[group]; !ok || g.GID != st.GID {
		all = append(all, fmt.Sprintf("group is %s, declared %s", p.groupName(st.GID), group))
	}
	return strings.Join(all, ", ")
}

func (p *planner) userName(uid int) string {
	best := ""
	for n, u := range p.in.Observed.Accounts.Users {
		if u.UID == uid && (best == "" || n < best) { // several names may share a uid
			best = n
		}
	}
	if best == "" {
		return fmt.Sprint(uid)
	}
	return best
}

func (p *planner) groupName(gid int) string {
	best := ""
	for n, g := range p.in.Observed.Accounts.Groups {
		if g.GID == gid && (best == "" || n < best) {
			best = n
		}
	}
	if best == "" {
		return fmt.Sprint(gid)
	}
	return best
}

// octal is a mode as chmod takes it.
func octal(m fs.FileMode) string {
	n := uint32(m.Perm())
	for bit, v := range map[fs.FileMode]uint32{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
		if m&bit != 0 {
			n |= v
		}
	}
	return fmt.Sprintf("%04o", n)
}

// what names a resource for a person: "file /etc/passwd of module notes on db1".
func (p *planner) what(r *resource.Resource) string {
	kind := string(r.Kind)
	if r.Kind == resource.KindDir {
		kind = "folder"
	}
	return fmt.Sprintf("%s %s of module %s on %s", kind, name(r.ID), r.Module, p.in.Node)
}

// held is the refusal for what stands at a path and is not mesh's. The date, not the age, stands in it:
// the same thing is said in the same words tomorrow.
func (p *planner) held(r *resource.Resource, st file.State) error {
	facts := fmt.Sprintf("%s, %s, changed %s", p.userName(st.UID), octal(st.Mode), time.Unix(0, st.Mtime).UTC().Format("2006-01-02 15:04 UTC"))
	like := file.File
	switch r.Kind {
	case resource.KindDir:
		like = file.Dir
	case resource.KindLink:
		like = file.Symlink
	}
	if id := resource.ID(resource.KindDir, name(r.ID)); st.Kind == file.Dir && r.Kind == resource.KindFile && p.leaves(id) {
		return refusal.New(p.what(r), "the folder that was declared there is not gone yet", "push the module without both once, so that the folder goes; then declare the file")
	}
	if st.Kind != like {
		return refusal.Newf(p.what(r), "move it away, or declare another path", "a %s stands there (%s)", st.Kind, facts)
	}
	do := "move it away, or declare another path"
	if r.Kind == resource.KindFile || r.Kind == resource.KindUnit {
		do = p.takeIt(r) + ", " + do
	}
	return refusal.New(p.what(r), "it is there and mesh did not put it there ("+facts+")", do)
}

// takeIt is the command by which a held thing becomes mesh's.
func (p *planner) takeIt(r *resource.Resource) string {
	return fmt.Sprintf("compare, then take it: mesh-coordinator take %s %s", p.in.Node, r.Module)
}
