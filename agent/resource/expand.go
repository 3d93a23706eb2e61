package resource

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"mesh/shared/credential"
	"mesh/shared/declaration"
	"mesh/shared/manifest"
	"mesh/shared/order"
	"mesh/shared/refusal"
	"mesh/shared/strict"
	"mesh/shared/subject"
)

// Decode reads the manifest of every module of d strictly. An error refuses d whole, with the field's
// path: this agent would do something else than what was meant (APP-1).
func Decode(d *declaration.Declaration) ([]manifest.Manifest, error) { return new(Decoder).Decode(d) }

// Decoder is Decode for declarations that follow each other: a manifest that is the same text as in the one
// before is not read again. Nobody may change what it returned. It is for one goroutine; its zero value is
// ready.
type Decoder struct {
	known map[[sha256.Size]byte]manifest.Manifest // by the SHA-256 of the text
}

// maxKnown bounds in bytes the text of the manifests that are remembered.
const maxKnown = 256 << 10

// Decode is the function of that name.
func (k *Decoder) Decode(d *declaration.Declaration) ([]manifest.Manifest, error) {
	out := make([]manifest.Manifest, len(d.Modules))
	known, size := make(map[[sha256.Size]byte]manifest.Manifest, len(d.Modules)), 0
	for i, m := range d.Modules {
		var err error
		sum := sha256.Sum256(m.Manifest)
		if before, ok := k.known[sum]; ok {
			out[i] = before
		} else {
			err = strict.Decode(m.Manifest, &out[i])
		}
		if err == nil && len(m.Membership) > 0 {
			if err := checkMembership(d, m); err != nil {
				return nil, refusal.Because(err, "a declaration", fmt.Sprintf("modules[%d].membership (module %s): %v", i, m.Name, err), "push again from the coordinator, or upgrade the agent on this machine")
			}
		}
		if err == nil {
			if size += len(m.Manifest); size <= maxKnown {
				known[sum] = out[i]
			}
			continue
		}
		at := fmt.Sprintf("modules[%d].manifest", i)
		if e := (*strict.Error)(nil); errors.As(err, &e) {
			at = strings.TrimSuffix(at+"."+e.Path, ".")
			err = errors.New(e.Why)
			if e.Kind != nil {
				err = e.Kind
			}
		}
		do := "push again from the coordinator"
		if errors.Is(err, strict.ErrUnknownField) {
			do = "upgrade the agent on this machine: the coordinator is newer"
		}
		return nil, refusal.Because(err, "a declaration", fmt.Sprintf("%s (module %s): %v", at, m.Name, err), do)
	}
	k.known = known
	return out, nil
}

// Machine is what modules may need of it; its zero value is not held against any need.
type Machine struct {
	Arch, OS string
	Engine   bool
}

// Input is what Expand is a function of.
type Input struct {
	Declaration *declaration.Declaration
	// Manifests are Decode's, in the order of the modules.
	Manifests []manifest.Manifest
	// Open opens a secret sealed to this node.
	Open    func(module subject.Module, key string, sealed credential.Sealed) (string, error)
	Machine Machine
	// Engine is how units name the container engine.
	Engine Engine
	// Instance is the key of this machine's instance of a module; it may be asked often. nil when no module has
	// anything to do on the bus.
	Instance func(module subject.Module) (credential.Seed, error)
	// BundleDir is where bundles are unpacked, each in a folder named by its digest.
	BundleDir string
	// Passed are manifests that need not be held against the rules again; nil for none.
	Passed Passed
	// Expanded are modules that need not be expanded again; nil for none.
	Expanded Expanded
}

// Expanded are the resources of the modules of the declaration before: a declaration.Reader gives a module
// whose text is the same the very same manifest. Those with secrets and containers are not remembered. Expand
// replaces what is there; nobody may change what it returned.
type Expanded map[subject.Module]expanded

type expanded struct {
	manifest  *byte // where its text is
	machine   Machine
	resources []Resource
}

// of expands m, unless it did.
func (x Expanded) of(in Input, m *declaration.Module, plain *manifest.Manifest) ([]Resource, error) {
	if x == nil || len(m.Manifest) == 0 || len(m.Secrets) > 0 || len(m.Membership) > 0 || len(plain.Run.Containers) > 0 {
		delete(x, m.Name)
		return expandModule(in, m, plain)
	}
	at := &m.Manifest[0]
	if before, ok := x[m.Name]; ok && before.manifest == at && before.machine == in.Machine {
		return before.resources, nil
	}
	delete(x, m.Name)
	all, err := expandModule(in, m, plain)
	if err == nil {
		x[m.Name] = expanded{at, in.Machine, all}
	}
	return all, err
}

// only forgets the modules that are not of d.
func (x Expanded) only(d *declaration.Declaration) {
	if len(x) > len(d.Modules) {
		maps.DeleteFunc(x, func(name subject.Module, _ expanded) bool {
			return !slices.ContainsFunc(d.Modules, func(m declaration.Module) bool { return m.Name == name })
		})
	}
}

// Passed are the manifests, by the SHA-256 of their text, that were held against the rules and kept them:
// of the modules of a declaration, nearly all are as they were in the one before. Expand adds to it.
type Passed map[[sha256.Size]byte]struct{}

// maxPassed bounds what is remembered; past it all is forgotten.
const maxPassed = 4096

func (p Passed) check(text []byte, m *manifest.Manifest) error {
	if p == nil {
		return m.Check()
	}
	sum := sha256.Sum256(text)
	if _, ok := p[sum]; ok {
		return nil
	}
	if err := m.Check(); err != nil {
		return err
	}
	if len(p) >= maxPassed {
		clear(p)
	}
	p[sum] = struct{}{}
	return nil
}

// Expand gives the resources of every module, sorted by module and in an order they can be made in, and
// an error for each module that could not be expanded; such a module has no resources, and what it has
// on the machine is to be left alone.
func Expand(in Input) ([]Resource, map[subject.Module]error) {
	modules := in.Declaration.Modules
	found, failed := make([][]Resource, len(modules)), map[subject.Module]error{}
	claims := claims{}
	for i := range modules {
		var err error
		if found[i], err = in.Expanded.of(in, &modules[i], &in.Manifests[i]); err != nil {
			failed[modules[i].Name] = err
			claims.note(modules[i].Name, &in.Manifests[i])
		}
	}
	in.Expanded.only(in.Declaration)
	size := 0
	for _, f := range found {
		size += len(f)
	}
	all := make([]Resource, 0, size)
	for i, m := range modules {
		if failed[m.Name] != nil {
			continue
		}
		if err := claims.take(found[i], m.Name); err != nil {
			failed[m.Name] = err
			claims.note(m.Name, &in.Manifests[i])
			continue
		}
		all = append(all, found[i]...)
	}
	return merge(all), failed
}

func implied(r Resource) bool { return r.Kind == KindDir && r.Dir.Implied }

// merge keeps one resource an id: the declared one, else the first.
func merge(all []Resource) []Resource {
	declared := map[string]bool{}
	for _, r := range all {
		declared[r.ID] = declared[r.ID] || !implied(r)
	}
	seen := map[string]bool{}
	return slices.DeleteFunc(all, func(r Resource) bool {
		if implied(r) && (declared[r.ID] || seen[r.ID]) {
			return true
		}
		seen[r.ID] = true
		return false
	})
}

type expander struct {
	in     Input
	module *declaration.Module
	plain  *manifest.Manifest // with placeholders
	filled *manifest.Manifest
	out    []Resource
	base   []string // ids that every unit needs
	common []byte   // dependsOn, once it was asked for
}

func expandModule(in Input, m *declaration.Module, plain *manifest.Manifest) ([]Resource, error) {
	if plain.Module != m.Name {
		return nil, refusal.New("module "+string(m.Name), "its manifest is of module "+string(plain.Module), "register the module again")
	}
	if err := in.Passed.check(m.Manifest, plain); err != nil {
		return nil, refusal.Because(err, "the manifest of module "+string(m.Name), err.Error(), "correct it and register the module again")
	}
	if err := errors.Join(meets(in.Machine, plain), needsEngine(in.Machine, plain)); err != nil {
		return nil, err
	}
	filled, err := plain.Fill(lookup(in, m, plain))
	if err != nil {
		return nil, err
	}
	if err := sayable(filled); err != nil {
		return nil, err
	}
	if plain.Build.Bundle != nil && m.Artifact == nil {
		return nil, refusal.New("module "+string(m.Name), "it has a bundle, and the declaration names no artifact", "register the module again and push")
	}
	e := &expander{in: in, module: m, plain: plain, filled: filled}
	e.groups()
	e.users()
	e.dirs()
	e.bundle()
	e.files()
	e.links()
	e.kernel()
	if err := e.instance(); err != nil {
		return nil, err
	}
	if err := e.engine(); err != nil {
		return nil, err
	}
	return e.out, e.units()
}

// sayable refuses values that systemd would pass over in silence: the program would run without the variable,
// or without all those of its file. A file may hold any bytes.
func sayable(m *manifest.Manifest) error {
	check := func(what, text string) error {
		if utf8.ValidString(text) && !strings.ContainsRune(text, 0) {
			return nil
		}
		return refusal.New(what+" of module "+string(m.Module), "what is filled in holds a zero byte, or is no UTF-8 text",
			"set another value, or have it in a file")
	}
	var errs []error
	env := func(of string, vars map[string]string) {
		for _, k := range slices.Sorted(maps.Keys(vars)) {
			errs = append(errs, check("env "+k+" of "+of, vars[k]))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.Run.Processes)) {
		env("process "+name, m.Run.Processes[name].Env)
	}
	for _, name := range slices.Sorted(maps.Keys(m.Run.Containers)) {
		env("container "+name, m.Run.Containers[name].Env)
	}
	for _, name := range slices.Sorted(maps.Keys(m.Run.Timers)) {
		env("timer "+name, m.Run.Timers[name].Env)
	}
	for _, name := range slices.Sorted(maps.Keys(m.Run.Units)) {
		errs = append(errs, check("unit "+name, m.Run.Units[name].Content))
	}
	return errors.Join(errs...)
}

func lookup(in Input, m *declaration.Module, plain *manifest.Manifest) manifest.Lookup {
	others := plain.Values(in.Declaration.Node, m.Settings, nil)
	return func(kind, key string) (string, error) {
		if kind == manifest.SecretKind {
			if sealed, ok := m.Secrets[key]; ok {
				return in.Open(m.Name, key, sealed)
			}
		}
		return others(kind, key)
	}
}

// meets holds the machine against what the module needs (NOD-5).
func meets(have Machine, m *manifest.Manifest) error {
	const do = "unassign it here, or change what it needs"
	n, what := m.Needs, "module "+string(m.Module)
	switch {
	case have == Machine{}:
	case len(n.Arch) > 0 && !slices.Contains(n.Arch, manifest.Arch(have.Arch)):
		return refusal.Newf(what, do, "this machine is %s, and it needs one of %v", have.Arch, n.Arch)
	case len(n.OS) > 0 && !slices.Contains(n.OS, have.OS):
		return refusal.Newf(what, do, "this machine runs %s, and it needs one of %v", have.OS, n.OS)
	}
	return nil
}

func (e *expander) add(r Resource) {
	r.Module = e.module.Name
	e.out = append(e.out, r)
	if r.Kind != KindUnit {
		e.base = append(e.base, r.ID)
	}
}

func (e *expander) users() {
	for _, name := range slices.Sorted(maps.Keys(e.filled.Run.Users)) {
		u := e.filled.Run.Users[name]
		var needs []string
		for _, g := range u.Groups {
			if _, ours := e.filled.Run.Groups[g]; ours {
				needs = append(needs, ID(KindGroup, g))
			}
		}
		e.add(Resource{ID: ID(KindUser, name), Kind: KindUser, Needs: needs,
			User: &User{Name: name, Home: u.HomeDir(), Shell: u.LoginShell(), Groups: u.Groups}})
	}
}

// owners are the ids of the users and groups of this module among names.
func (e *expander) owners(names ...string) []string {
	var ids []string
	for _, n := range names {
		if _, ours := e.filled.Run.Users[n]; ours && !slices.Contains(ids, ID(KindUser, n)) {
			ids = append(ids, ID(KindUser, n))
		}
		if _, ours := e.filled.Run.Groups[n]; ours && !slices.Contains(ids, ID(KindGroup, n)) {
			ids = append(ids, ID(KindGroup, n))
		}
	}
	return ids
}

// dirs adds the declared folders and those above what is declared.
func (e *expander) dirs() {
	dirs := map[string]*Dir{}
	above := func(p string) {
		for up := path.Dir(p); up != "/" && dirs[up] == nil; up = path.Dir(up) {
			dirs[up] = &Dir{Path: up, Mode: 0o755, Owner: "root", Group: "root", Implied: true}
		}
	}
	for _, d := range e.filled.Run.Directories {
		owner, group := d.Owned()
		dirs[d.Path] = &Dir{Path: d.Path, Mode: mode(d.Mode, 0o755), Owner: owner, Group: group, Data: d.Data}
	}
	for _, d := range e.filled.Run.Directories {
		above(d.Path)
	}
	for _, f := range e.filled.Run.Files {
		above(f.Path)
	}
	for _, l := range e.filled.Run.Links {
		above(l.Path)
	}
	for _, p := range e.generatedFiles() {
		above(p)
	}
	for _, p := range slices.Sorted(maps.Keys(dirs)) {
		d := dirs[p]
		needs := e.owners(d.Owner, d.Group)
		if up := path.Dir(p); up != "/" {
			needs = append(needs, ID(KindDir, up))
		}
		e.add(Resource{ID: ID(KindDir, p), Kind: KindDir, Dir: d, Needs: needs})
	}
}

func (e *expander) bundle() {
	if a := e.module.Artifact; a != nil {
		e.add(Resource{ID: BundleID(e.module.Name, a.Digest), Kind: KindBundle, Bundle: &Bundle{Artifact: *a, Folder: e.bundleFolder()}})
	}
}

func (e *expander) bundleFolder() string {
	if e.module.Artifact == nil {
		return ""
	}
	return e.in.BundleDir + "/" + e.module.Artifact.Digest
}

func (e *expander) files() {
	for i, f := range e.filled.Run.Files {
		owner, group := f.Owned()
		content := []byte(f.Content)
		e.add(Resource{ID: ID(KindFile, f.Path), Kind: KindFile, Needs: append(e.owners(owner, group), e.folder(f.Path)...),
			File: &File{Path: f.Path, Content: content, Sum: Sum(content), Mode: mode(f.Mode, 0o644), Owner: owner, Group: group,
				Private: hasSecret(e.plain.Run.Files[i].Content)}})
	}
}

func (e *expander) folder(p string) []string {
	if up := path.Dir(p); up != "/" {
		return []string{ID(KindDir, up)}
	}
	return nil
}

func hasSecret(text string) bool { return strings.Contains(text, "${"+manifest.SecretKind+":") }

// mode translates four octal digits into Go's bits.
func mode(m manifest.Mode, fallback uint32) fs.FileMode {
	bits := m.Bits(fallback)
	out := fs.FileMode(bits & 0o777)
	if bits&0o4000 != 0 {
		out |= fs.ModeSetuid
	}
	if bits&0o2000 != 0 {
		out |= fs.ModeSetgid
	}
	if bits&0o1000 != 0 {
		out |= fs.ModeSticky
	}
	return out
}

// trigger is what the module's running programs depend on besides their unit's text.
func (e *expander) trigger(unit []byte) string {
	if e.common == nil {
		e.common = e.dependsOn()
	}
	h := sha256.New()
	put(h, string(unit), string(e.common))
	return hex.EncodeToString(h.Sum(nil))
}

// dependsOn is what all programs of the module depend on; it is made once, for it holds every file.
func (e *expander) dependsOn() []byte {
	h := sha256.New()
	if a := e.module.Artifact; a != nil {
		put(h, "bundle", a.Digest)
	}
	for _, f := range e.plain.Run.Files {
		put(h, "file", f.Path, f.Content)
	}
	for _, name := range slices.Sorted(maps.Keys(e.plain.Run.Processes)) {
		env := e.plain.Run.Processes[name].Env
		for _, k := range slices.Sorted(maps.Keys(env)) {
			if hasSecret(env[k]) { // it stands in no unit's text
				put(h, "env", name, k, env[k])
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(e.plain.Run.Containers)) {
		env := e.plain.Run.Containers[name].Env
		for _, k := range privateVars(env, env) {
			put(h, "env", name, k, env[k])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(e.filled.Run.Networks)) {
		put(h, "network", spec(e.filled, name))
	}
	for _, k := range slices.Sorted(maps.Keys(e.filled.Settings)) {
		v, set := e.module.Settings[k]
		if d := e.filled.Settings[k].Default; !set && d != nil {
			v = *d
		}
		put(h, "setting", k, v)
	}
	for _, k := range slices.Sorted(maps.Keys(e.module.Secrets)) {
		put(h, "secret", k, string(e.module.Secrets[k]))
	}
	return h.Sum(nil)
}

// put writes parts so that no other parts give the same bytes.
func put(h hash.Hash, parts ...string) {
	for _, p := range parts {
		_, _ = io.WriteString(h, strconv.Itoa(len(p))+":") // a hash takes all
		_, _ = io.WriteString(h, p)
	}
}

// Sort orders resources by module, and within one by what they need, then by kind and id: the same
// order whatever order they came in.
func Sort(all []Resource) []Resource {
	rank := map[Kind]int{KindGroup: 0, KindUser: 1, KindDir: 2, KindBundle: 3, KindFile: 4, KindLink: 5, KindModule: 6, KindSysctl: 7,
		KindNetwork: 8, KindVolume: 9, KindImage: 10, KindContainer: 11, KindUnit: 12}
	sorted := slices.Clone(all)
	order.Sort(sorted, func(a, b Resource) int {
		return cmp.Or(cmp.Compare(a.Module, b.Module), cmp.Compare(rank[a.Kind], rank[b.Kind]), cmp.Compare(a.ID, b.ID))
	})
	at := make(map[string]int, len(sorted))
	for i, r := range sorted {
		at[r.ID] = i
	}
	out, placed := make([]Resource, 0, len(sorted)), make([]bool, len(sorted))
	var place func(i int)
	place = func(i int) {
		if placed[i] {
			return
		}
		placed[i] = true // before the needs: a cycle, which manifests refuse, ends here too
		needs := slices.Sorted(slices.Values(sorted[i].Needs))
		for _, n := range needs {
			if j, ok := at[n]; ok && sorted[j].Module == sorted[i].Module {
				place(j)
			}
		}
		out = append(out, sorted[i])
	}
	for i := range sorted {
		place(i)
	}
	return out
}
