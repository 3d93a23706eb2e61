package manifest

import (
	"fmt"
	"maps"
	"path"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"mesh/shared/subject"
)

// MaxText is the longest content, value or description in bytes. A whole manifest travels in one
// message of the bus.
const MaxText = 256 << 10

// Check returns every problem of m, as Problems, or nil. It judges the decoded form, so an agent
// holds what it is sent against the same rules as the one who registered it.
func (m *Manifest) Check() error {
	c := &checker{m: m}
	c.shape(reflect.ValueOf(*m), "")
	c.names()
	c.bundle()
	c.images()
	c.seats()
	c.bus()
	for _, name := range slices.Sorted(maps.Keys(m.Run.Processes)) {
		c.process(name, m.Run.Processes[name])
	}
	c.containers()
	c.cycle()
	for _, name := range slices.Sorted(maps.Keys(m.Run.Timers)) {
		c.timer(name, m.Run.Timers[name])
	}
	for _, name := range slices.Sorted(maps.Keys(m.Run.Units)) {
		c.unit(name, m.Run.Units[name])
	}
	c.files()
	c.users()
	c.kernel()
	c.firewall()
	c.needs()
	c.placeholders()
	return c.found.Err()
}

// late makes a rule when it is asked for first: every program that knows a manifest starts the faster, and
// few ask.
func late(rule string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(rule) })
}

type checker struct {
	m     *Manifest
	found Problems
}

func (c *checker) say(path, want string, args ...any) {
	c.found = append(c.found, Problem{Path: path, Want: fmt.Sprintf(want, args...)})
}

// Key is the key of a field in YAML and in JSON.
func Key(f reflect.StructField) string {
	key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return key
}

// shape holds v against the tags of its type: what is required is there, a word is one of its type's
// words, and a text is text.
func (c *checker) shape(v reflect.Value, at string) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			c.shape(v.Elem(), at)
		}
	case reflect.Struct:
		for _, f := range fieldsOf(v.Type()) {
			if v.Field(f.index).IsZero() { // most are: naming each of them is most of the work
				if f.required {
					c.say(Join(at, f.key), "is missing: it has to be there and not empty")
				}
				continue
			}
			c.shape(v.Field(f.index), Join(at, f.key))
		}
	case reflect.Map:
		for _, k := range slices.SortedFunc(maps.Keys(toMap(v)), strings.Compare) {
			c.shape(v.MapIndex(reflect.ValueOf(k)), Join(at, k))
		}
	case reflect.Slice:
		for i := range v.Len() {
			c.shape(v.Index(i), Index(at, i))
		}
	case reflect.String:
		c.text(v, at)
	}
}

// keyed is a field with a key.
type keyed struct {
	index    int
	key      string
	required bool
}

var keyedFields sync.Map // reflect.Type -> []keyed; grows with the number of types only

// fieldsOf are the fields of t that a manifest can give; a type of another package, which reads itself
// from text, has none.
func fieldsOf(t reflect.Type) []keyed {
	if all, ok := keyedFields.Load(t); ok {
		return all.([]keyed)
	}
	var all []keyed
	for i := range t.NumField() {
		f := t.Field(i)
		if key := Key(f); key != "" && f.IsExported() {
			all = append(all, keyed{i, key, f.Tag.Get("mesh") == "required"})
		}
	}
	keyedFields.Store(t, all)
	return all
}

func toMap(v reflect.Value) map[string]struct{} {
	keys := make(map[string]struct{}, v.Len())
	for _, k := range v.MapKeys() {
		keys[k.String()] = struct{}{}
	}
	return keys
}

func (c *checker) text(v reflect.Value, at string) {
	s := v.String()
	if w, ok := v.Interface().(interface{ Words() []string }); ok && s != "" && !slices.Contains(w.Words(), s) {
		c.say(at, "%q is not known here; expected one of %s%s", clip(s), strings.Join(w.Words(), ", "), didYouMean(s, w.Words()))
	}
	switch {
	case len(s) > MaxText:
		c.say(at, "has %d bytes; at most %d are taken", len(s), MaxText)
	case !utf8.ValidString(s):
		c.say(at, "is no valid UTF-8 text")
	case strings.ContainsRune(s, 0):
		c.say(at, "holds a zero byte, which no text of a machine can")
	}
}

// names checks the names that become tokens and parts of unit names.
func (c *checker) names() {
	if err := subject.Check("module", string(c.m.Module)); err != nil && c.m.Module != "" {
		c.say("module", "%s", oneLine(err))
	}
	if strings.ContainsAny(c.m.Description, "\n\r") {
		c.say("description", "expected one line")
	}
	named(c, "run.processes", "process", c.m.Run.Processes)
	named(c, "run.timers", "timer", c.m.Run.Timers)
	named(c, "run.containers", "container", c.m.Run.Containers)
	named(c, "run.networks", "network", c.m.Run.Networks)
	named(c, "run.volumes", "volume", c.m.Run.Volumes)
	named(c, "build.images", "image", c.m.Build.Images)
	named(c, "settings", "setting", c.m.Settings)
	named(c, "secrets", "secret", c.m.Secrets)
	for name := range c.m.Run.Timers {
		if _, both := c.m.Run.Processes[name]; both {
			c.say(Join("run.timers", name), "a process has this name too, and both would be the unit %s; rename one", UnitName(c.m.Module, name, ".service"))
		}
	}
	for name := range c.m.Run.Containers {
		_, process := c.m.Run.Processes[name]
		_, timer := c.m.Run.Timers[name]
		if process || timer {
			c.say(Join("run.containers", name), "a process or timer has this name too, and both would be the unit %s; rename one", UnitName(c.m.Module, name, ".service"))
		}
	}
	for name := range c.m.Secrets {
		if _, both := c.m.Settings[name]; both {
			c.say(Join("secrets", name), "a setting has this name too; rename one")
		}
	}
}

func named[T any](c *checker, at, kind string, all map[string]T) {
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if err := subject.Check(kind, name); err != nil {
			c.say(Join(at, name), nameWant)
		}
	}
}

const nameWant = "expected a name of a-z, 0-9 and inner hyphens, at most 40 characters"

func (c *checker) bundle() {
	b := c.m.Build.Bundle
	if b == nil || b.Output == "" {
		return
	}
	if b.Output == "." || !inside(b.Output) {
		c.say("build.bundle.output", "%q: expected a folder below the one of module.yaml, such as dist", clip(b.Output))
	}
}

func (c *checker) images() {
	if len(c.m.Build.Images) > maxImages {
		c.say("build.images", "has %d images; at most %d are taken", len(c.m.Build.Images), maxImages)
	}
	for _, name := range slices.Sorted(maps.Keys(c.m.Build.Images)) {
		if from := c.m.Build.Images[name].From; from != "" && !inside(from) {
			c.say(Join(Join("build.images", name), "from"), "%q: expected a file or folder below the one of module.yaml, such as dist/image.tar", clip(from))
		}
	}
}

func (c *checker) seats() {
	seen := map[Claim]bool{}
	for i, seat := range c.m.Seats.Claims {
		if seen[seat] {
			c.say(Index("seats.claims", i), "%s is claimed twice", seat)
		}
		seen[seat] = true
	}
	if c.m.Holds(NodeEngine) && c.m.Build.Bundle == nil {
		c.say("seats.claims", "%s takes a bundle with %s in it; add build.bundle", NodeEngine, AgentProgram)
	}
}

// maxImages bounds the images of one module: a node's rights on the bus name every blob of them.
const maxImages = 16

// inside says whether p is a clean relative path that does not climb.
func inside(p string) bool {
	return p != "" && !path.IsAbs(p) && path.Clean(p) == p && p != ".." && !strings.HasPrefix(p, "../") && !control(p)
}

// control says whether s holds a control character.
func control(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r == 0x7f })
}

// placeholders checks each placeholder and what it refers to.
func (c *checker) placeholders() {
	c.m.texts(func(t text) (string, error) {
		err := scan(t.value, nil, func(kind, key string) error {
			c.refers(t, kind, key)
			return nil
		})
		if err != nil {
			c.say(t.path, "%v", err)
		}
		return t.value, nil
	})
	for _, u := range c.m.Placeholders() {
		if u.Kind != SecretKind {
			continue
		}
		if strings.HasPrefix(u.Where, "unit ") {
			c.say(u.Path, "${secret:%s} in a unit: everybody on the machine can read its units; put the secret into a file", u.Key)
		}
	}
	for i, f := range c.m.Run.Files {
		if f.Mode.Bits(0o644)&0o007 != 0 && c.secretIn(f.Content) {
			c.say(Index("run.files", i)+".mode", "the file holds a secret and everybody could read it; expected a mode that ends in 0, such as 0640")
		}
	}
}

func (c *checker) secretIn(content string) (found bool) {
	err := scan(content, nil, func(kind, _ string) error {
		found = found || kind == SecretKind
		return nil
	})
	return found && err == nil
}

// refers checks that the manifest names the setting or secret that a placeholder asks for.
func (c *checker) refers(t text, kind, key string) {
	var known []string
	switch kind {
	case SettingKind:
		known = slices.Sorted(maps.Keys(c.m.Settings))
	case SecretKind:
		known = slices.Sorted(maps.Keys(c.m.Secrets))
	default:
		return
	}
	if !slices.Contains(known, key) {
		c.say(t.path, "${%s:%s}: the manifest has no such %s; name it under %ss%s", kind, key, kind, kind, didYouMean(key, known))
	}
}
