package manifest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"mesh/shared/refusal"
	"mesh/shared/subject"
)

// The kinds of placeholder that are filled in this version.
const (
	SettingKind = "setting" // ${setting:key}: what the assignment set, or the manifest's default
	SecretKind  = "secret"  // ${secret:key}: a secret of the assignment
	NodeKind    = "node"    // ${node:name}: the machine's name
)

var (
	kinds      = []string{SettingKind, SecretKind, NodeKind}
	laterKinds = []string{"provision"}
	nodeKeys   = []string{"name"}
	laterNode  = []string{"address"}
)

// Lookup gives the value of a placeholder, or an error that says why there is none.
type Lookup func(kind, key string) (string, error)

// Expand returns text with every placeholder replaced by what lookup says and every "$${" by "${".
// What was filled in is not read again. Any other "${" is refused: in a text that is filled, nothing
// may look like a placeholder and be none.
func Expand(text string, lookup Lookup) (string, error) {
	if !strings.Contains(text, "${") {
		return text, nil
	}
	var b strings.Builder
	b.Grow(len(text))
	err := scan(text, func(plain string) { b.WriteString(plain) }, func(kind, key string) error {
		value, err := lookup(kind, key)
		b.WriteString(value)
		return err
	})
	if err != nil {
		return "", err
	}
	return b.String(), nil
}

// scan hands text over piece by piece: what is plain, unless plain is nil, and each placeholder.
func scan(text string, plain func(string), found func(kind, key string) error) error {
	if plain == nil {
		plain = func(string) {}
	}
	for {
		at := strings.Index(text, "${")
		if at < 0 {
			plain(text)
			return nil
		}
		if at > 0 && text[at-1] == '$' {
			plain(text[:at-1])
			plain("${")
			text = text[at+2:]
			continue
		}
		plain(text[:at])
		kind, key, rest, err := placeholder(text[at:])
		if err != nil {
			return err
		}
		if err := found(kind, key); err != nil {
			return fmt.Errorf("${%s:%s}: %w", kind, key, err)
		}
		text = rest
	}
}

// placeholder reads the placeholder that text begins with.
func placeholder(text string) (kind, key, rest string, err error) {
	end := strings.IndexByte(text, '}')
	if end < 0 || strings.ContainsAny(text[:end], "\n") {
		line, _, _ := strings.Cut(text, "\n")
		return "", "", "", fmt.Errorf("%q is not closed with }; write $${ for a plain ${", clip(line))
	}
	inner, rest := text[2:end], text[end+1:]
	kind, key, ok := strings.Cut(inner, ":")
	whole := clip("${" + inner + "}")
	switch {
	case !ok:
		return "", "", "", fmt.Errorf("%s is no placeholder: write ${setting:…}, ${secret:…} or ${node:name}, or $%s for the plain text", whole, whole)
	case slices.Contains(laterKinds, kind) || kind == NodeKind && slices.Contains(laterNode, key):
		return "", "", "", fmt.Errorf("%s is not in this version of mesh", whole)
	case !slices.Contains(kinds, kind):
		return "", "", "", fmt.Errorf("%s: %q is no kind of placeholder; the kinds are setting, secret and node, and $%s is the plain text%s", whole, clip(kind), whole, didYouMean(kind, kinds))
	case kind == NodeKind && !slices.Contains(nodeKeys, key):
		return "", "", "", fmt.Errorf("%s: a node has a name and nothing else here; write ${node:name}", whole)
	}
	if err := subject.Check(kind, key); err != nil {
		return "", "", "", fmt.Errorf("%s: "+nameWant, whole)
	}
	return kind, key, rest, nil
}

// clip bounds what a message repeats of its input.
func clip(s string) string {
	if r := []rune(s); len(r) > 60 {
		return string(r[:60]) + "…"
	}
	return s
}

// oneLine is a refusal as the end of a problem's line.
func oneLine(err error) string {
	if r := refusal.Of(err); r != nil {
		return r.Why + "; " + r.Do
	}
	return err.Error()
}

// Use is one place where a placeholder stands.
type Use struct {
	Kind string `json:"kind"`
	Key  string `json:"key"`
	// Path is the place in the manifest, Where the same for people: "file /etc/hello/hello.conf".
	Path  string `json:"path"`
	Where string `json:"where"`
}

// Placeholders lists where placeholders stand, in the order of Path within each group. Texts with a
// broken placeholder, which Check refuses, are left out.
func (m *Manifest) Placeholders() []Use {
	var uses []Use
	m.texts(func(t text) (string, error) {
		var here []Use
		err := scan(t.value, nil, func(kind, key string) error {
			here = append(here, Use{kind, key, t.path, t.where})
			return nil
		})
		if err == nil {
			uses = append(uses, here...)
		}
		return t.value, nil
	})
	return uses
}

// Fill returns a copy of m whose texts have their placeholders filled. Every place that could not be
// filled is named, with module, file and key (APP-12). The copy is for applying: it is not checked
// again, for a value may hold anything.
func (m *Manifest) Fill(lookup Lookup) (*Manifest, error) {
	var errs []error
	filled := m.texts(func(t text) (string, error) {
		var errThis error
		s, err := Expand(t.value, func(kind, key string) (string, error) {
			v, err := lookup(kind, key)
			if err != nil {
				errThis = errors.Join(errThis, m.unfilled(kind, key, t.where, err))
			}
			return v, nil
		})
		if err = errors.Join(err, errThis); err != nil {
			errs = append(errs, err)
		}
		return s, err
	})
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return filled, nil
}

func (m *Manifest) unfilled(kind, key, where string, err error) error {
	what := fmt.Sprintf("${%s:%s} in %s of module %s", kind, key, where, m.Module)
	if r := refusal.Of(err); r != nil {
		return refusal.New(what, r.Why, r.Do)
	}
	return refusal.New(what, err.Error(), "")
}

// Values is the usual Lookup: the machine's name, the assignment's settings with the manifest's
// defaults behind them, and its secrets.
func (m *Manifest) Values(node subject.Node, settings, secrets map[string]string) Lookup {
	return func(kind, key string) (string, error) {
		switch kind {
		case NodeKind:
			return string(node), nil
		case SecretKind:
			if v, ok := secrets[key]; ok {
				return v, nil
			}
		case SettingKind:
			if v, ok := settings[key]; ok {
				return v, nil
			}
			if s := m.Settings[key]; s.Default != nil {
				return *s.Default, nil
			}
		}
		return "", refusal.New(fmt.Sprintf("the %s %s of module %s on %s", kind, key, m.Module, node),
			"nothing set it and the manifest has no default", fmt.Sprintf("set %s in the assignment of %s to %s", key, m.Module, node))
	}
}

// KnowsSetting refuses a setting that the module does not have.
func (m *Manifest) KnowsSetting(key string) error {
	return known(m.Module, SettingKind, key, slices.Sorted(maps.Keys(m.Settings)))
}

// KnowsSecret refuses a secret that the module does not have.
func (m *Manifest) KnowsSecret(key string) error {
	return known(m.Module, SecretKind, key, slices.Sorted(maps.Keys(m.Secrets)))
}

func known(module subject.Module, kind, key string, all []string) error {
	if slices.Contains(all, key) {
		return nil
	}
	do := "it has: " + strings.Join(all, ", ")
	if len(all) == 0 {
		do = fmt.Sprintf("it has none: name %s in the manifest under %ss first", key, kind)
	} else if s := Suggest(key, all); s != "" {
		do = fmt.Sprintf("did you mean %q?", s)
	}
	return refusal.New(fmt.Sprintf("the %s %q", kind, key), fmt.Sprintf("module %s has no such %s", module, kind), do)
}

// text is one text whose placeholders are filled.
type text struct{ path, where, value string }

// texts returns a copy of m with each filled text replaced by what do returns, in a fixed order; on
// an error the old text stays. It is the one list of places where placeholders work.
func (m *Manifest) texts(do func(text) (string, error)) *Manifest {
	out := *m
	put := func(path, where, value string) string {
		if s, err := do(text{path, where, value}); err == nil {
			return s
		}
		return value
	}
	env := func(of map[string]string, path, where string) map[string]string {
		filled := maps.Clone(of)
		for _, k := range slices.Sorted(maps.Keys(of)) {
			filled[k] = put(Join(path+".env", k), "env "+k+" of "+where, of[k])
		}
		return filled
	}
	out.Run.Processes = maps.Clone(m.Run.Processes)
	for _, name := range slices.Sorted(maps.Keys(m.Run.Processes)) {
		p := m.Run.Processes[name]
		p.Env = env(p.Env, Join("run.processes", name), "process "+name)
		out.Run.Processes[name] = p
	}
	out.Run.Containers = maps.Clone(m.Run.Containers)
	for _, name := range slices.Sorted(maps.Keys(m.Run.Containers)) {
		c := m.Run.Containers[name]
		c.Env = env(c.Env, Join("run.containers", name), "container "+name)
		out.Run.Containers[name] = c
	}
	out.Run.Timers = maps.Clone(m.Run.Timers)
	for _, name := range slices.Sorted(maps.Keys(m.Run.Timers)) {
		t := m.Run.Timers[name]
		t.Env = env(t.Env, Join("run.timers", name), "timer "+name)
		out.Run.Timers[name] = t
	}
	out.Run.Units = maps.Clone(m.Run.Units)
	for _, name := range slices.Sorted(maps.Keys(m.Run.Units)) {
		u := m.Run.Units[name]
		u.Content = put(Join("run.units", name)+".content", "unit "+name, u.Content)
		out.Run.Units[name] = u
	}
	out.Run.Files = slices.Clone(m.Run.Files)
	for i, f := range m.Run.Files {
		out.Run.Files[i].Content = put(Index("run.files", i)+".content", "file "+f.Path, f.Content)
	}
	return &out
}
