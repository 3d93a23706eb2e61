package yamlfile

import (
	"encoding"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"mesh/shared/manifest"
	"mesh/shared/refusal"
)

// walker turns nodes into values. It goes on after a problem, so that all are found.
type walker struct {
	found   manifest.Problems
	at      map[string]place // where each path stands, for what is found later
	bad     map[string]bool  // paths that a problem was said of
	unread  map[string]bool  // paths whose value is missing from the result for it
	guessed map[string]bool  // paths that a mistyped key was probably meant for
	nodes   int
	depth   int
	spent   bool // the budget is, and the walk is over
}

func (w *walker) say(n *yaml.Node, path, want string, args ...any) {
	w.bad[path] = true
	w.found = append(w.found, manifest.Problem{Line: n.Line, Col: n.Column, Path: path, Want: fmt.Sprintf(want, args...)})
}

// unreadable is say for a value that was passed over.
func (w *walker) unreadable(n *yaml.Node, path, want string, args ...any) {
	w.unread[path] = true
	w.say(n, path, want, args...)
}

// value reads n into v.
func (w *walker) value(v reflect.Value, n *yaml.Node, path string) {
	w.depth++
	defer func() { w.depth-- }()
	if !w.affordable(n, path) {
		return
	}
	if n.Kind == yaml.AliasNode {
		w.unreadable(n, path, "*%s repeats another place of the file; expected the value itself, written out", clip(n.Value))
		return
	}
	if n.Anchor != "" {
		w.say(n, path, "&%s names this place for repeating; expected the value alone", clip(n.Anchor))
	}
	if n.Style&yaml.TaggedStyle != 0 {
		w.say(n, path, "%s is a tag; expected the value alone, its type is known", clip(n.Tag))
	}
	if s, ok := v.Addr().Interface().(*manifest.Schema); ok {
		w.schema(s, n, path)
		return
	}
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		w.word(u, n, path)
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		p := reflect.New(v.Type().Elem())
		w.value(p.Elem(), n, path)
		v.Set(p)
	case reflect.Struct:
		w.fields(v, n, path)
	case reflect.Map:
		w.entries(v, n, path)
	case reflect.Slice:
		w.list(v, n, path)
	case reflect.String:
		if s, ok := w.text(n, path); ok {
			v.SetString(s)
		}
	case reflect.Bool:
		w.boolean(v, n, path)
	case reflect.Int:
		w.number(v, n, path)
	default:
		panic("yamlfile: a manifest type holds a " + v.Kind().String() + ", which nothing here reads")
	}
}

func (w *walker) affordable(n *yaml.Node, path string) bool {
	w.nodes++
	switch {
	case w.spent:
	case w.nodes > MaxNodes:
		w.spent = true
		w.unreadable(n, path, "the file has too many values; at most %d are read", MaxNodes)
	case w.depth > MaxDepth:
		w.unreadable(n, path, "is nested too deep; at most %d levels are read", MaxDepth)
	default:
		return true
	}
	return false
}

// fields reads a mapping whose keys are the fields of v.
func (w *walker) fields(v reflect.Value, n *yaml.Node, path string) {
	index, keys := map[string]int{}, []string{}
	for i, f := range reflect.VisibleFields(v.Type()) {
		index[manifest.Key(f)] = i
		keys = append(keys, manifest.Key(f))
	}
	w.pairs(n, path, "the keys "+strings.Join(keys, ", "), func(key *yaml.Node, name string, value *yaml.Node) {
		if i, ok := index[name]; ok {
			w.value(v.Field(i), value, manifest.Join(path, name))
			return
		}
		w.unknown(v.Type(), keys, key, name, path)
	})
}

// unknown says what a key that no field has may have meant.
func (w *walker) unknown(t reflect.Type, keys []string, key *yaml.Node, name, path string) {
	at := manifest.Join(path, name)
	guess := manifest.Suggest(name, keys)
	switch {
	case name == "<<":
		w.say(key, at, "merges another place of the file; expected the keys themselves, written out")
	case isLater(t, name):
		w.say(key, at, "is not in this version of mesh; leave it out, or use a version that has it")
	case guess != "" && strings.EqualFold(guess, name):
		w.say(key, at, "is unknown: keys are written in lower case; did you mean %q?", guess)
	case guess != "":
		w.say(key, at, "is unknown; did you mean %q?", guess)
	default:
		w.say(key, at, "is unknown; expected one of %s", strings.Join(keys, ", "))
	}
	if guess != "" {
		w.guessed[manifest.Join(path, guess)] = true // so that it is not called missing too
	}
}

// entries reads a mapping whose keys are names.
func (w *walker) entries(v reflect.Value, n *yaml.Node, path string) {
	all := reflect.MakeMap(v.Type())
	w.pairs(n, path, "a mapping of names", func(_ *yaml.Node, name string, value *yaml.Node) {
		e := reflect.New(v.Type().Elem()).Elem()
		w.value(e, value, manifest.Join(path, name))
		all.SetMapIndex(reflect.ValueOf(name), e)
	})
	if all.Len() > 0 { // empty and absent are one, as in the JSON form
		v.Set(all)
	}
}

// pairs calls do for each key of n, once.
func (w *walker) pairs(n *yaml.Node, path, want string, do func(key *yaml.Node, name string, value *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		w.unreadable(n, path, "%s; expected %s", kindOf(n), want)
		return
	}
	first := map[string]*yaml.Node{}
	for i := 0; i+1 < len(n.Content) && !w.spent; i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode || key.Anchor != "" || key.Style&yaml.TaggedStyle != 0 && key.Value != "<<" || key.Value == "" {
			w.say(key, path, "a key that is no plain name; expected %s", want)
			continue
		}
		at := manifest.Join(path, key.Value)
		if before, twice := first[key.Value]; twice {
			w.say(key, at, "stands here twice, first in line %d; expected one", before.Line)
			continue
		}
		first[key.Value] = key
		w.at[at] = place{key.Line, key.Column}
		if value.Kind == yaml.ScalarNode {
			w.at[at] = place{value.Line, value.Column}
		}
		do(key, key.Value, value)
	}
}

func (w *walker) list(v reflect.Value, n *yaml.Node, path string) {
	if n.Kind != yaml.SequenceNode {
		w.unreadable(n, path, "%s; expected a list, such as [a, b]", kindOf(n))
		return
	}
	if len(n.Content) == 0 {
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
	for i, e := range n.Content {
		at := manifest.Index(path, i)
		w.at[at] = place{e.Line, e.Column}
		w.value(v.Index(i), e, at)
		if w.spent {
			return
		}
	}
}

// text is what n says, as it is written: 1.10, 0640 and no are text where text belongs.
func (w *walker) text(n *yaml.Node, path string) (string, bool) {
	switch {
	case n.Kind != yaml.ScalarNode:
		w.unreadable(n, path, "%s; expected text", kindOf(n))
		return "", false
	case plain(n) && n.Value == "":
		w.unreadable(n, path, `has no value; expected text, or "" for the empty one`)
		return "", false
	case plain(n) && n.Tag == "!!null":
		w.unreadable(n, path, "%s means nothing in YAML; expected text, or %q in quotes", n.Value, n.Value)
		return "", false
	}
	return n.Value, true
}

// word reads a value that has its own form, such as a port.
func (w *walker) word(u encoding.TextUnmarshaler, n *yaml.Node, path string) {
	s, ok := w.text(n, path)
	if !ok {
		return
	}
	if err := u.UnmarshalText([]byte(s)); err != nil {
		want := err.Error()
		if r := refusal.Of(err); r != nil {
			want = r.Why + "; " + r.Do
		}
		w.unreadable(n, path, "%q: %s", clip(s), want)
	}
}

func (w *walker) boolean(v reflect.Value, n *yaml.Node, path string) {
	if n.Kind != yaml.ScalarNode || !plain(n) || n.Value != "true" && n.Value != "false" {
		w.unreadable(n, path, "%s; expected true or false", kindOf(n))
		return
	}
	v.SetBool(n.Value == "true")
}

var wholeNumber = regexp.MustCompile(`^(0|[1-9][0-9]{0,8})$`)

func (w *walker) number(v reflect.Value, n *yaml.Node, path string) {
	if n.Kind != yaml.ScalarNode || !plain(n) || !wholeNumber.MatchString(n.Value) {
		w.unreadable(n, path, "%s; expected a whole number without a leading zero", kindOf(n))
		return
	}
	if i, err := strconv.Atoi(n.Value); err == nil { // nine digits fit
		v.SetInt(int64(i))
	}
}

func plain(n *yaml.Node) bool {
	return n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) == 0
}

// kindOf says what n is, as the beginning of a message.
func kindOf(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Kind == yaml.ScalarNode && plain(n) && n.Value == "":
		return "has no value"
	case n.Kind == yaml.ScalarNode && !plain(n):
		return fmt.Sprintf("the text %q", clip(n.Value))
	}
	return fmt.Sprintf("%q", clip(n.Value))
}

func clip(s string) string {
	if r := []rune(s); len(r) > 60 {
		return string(r[:60]) + "…"
	}
	return s
}
