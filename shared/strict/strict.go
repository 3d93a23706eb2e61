// Package strict decodes JSON that crosses a trust boundary (declarations, reports, verbs, tokens).
// What is not understood whole is refused whole: an unknown field, a name in the wrong case, a
// duplicate, a wrong type or trailing data, each named with its path (APP-1).
package strict

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"sync"
	"unicode/utf8"
)

// MaxDepth bounds nesting, so that a hostile text cannot exhaust the stack.
const MaxDepth = 64

// ErrUnknownField is met by errors.Is when a field is not known to this program; an older program is
// the likely cause.
var ErrUnknownField = errors.New("unknown field")

// Error names the place in the text that was refused.
type Error struct {
	Path string // "modules[2].manifest.run", "" for the whole
	Why  string
	Kind error // ErrUnknownField or nil
}

// Error reads "modules[2].colour: unknown field".
func (e *Error) Error() string {
	if e.Path == "" {
		return e.Why
	}
	return e.Path + ": " + e.Why
}

// Unwrap gives the kind.
func (e *Error) Unwrap() error { return e.Kind }

// Decode reads exactly one JSON value from data into v, a pointer. After an error v holds nothing of use.
func Decode(data []byte, v any) error {
	if !utf8.Valid(data) {
		return &Error{Why: "not JSON: it is no UTF-8"} // encoding/json would put other letters in its place
	}
	t, err := reflect.TypeOf(v).Elem(), json.Unmarshal(data, v)
	if err != nil && !json.Valid(data) {
		return where(data, t, err)
	}
	w := walker{data: data}
	if refused := w.value(t, nil, 0); refused != nil {
		return refused // it says more than what Unmarshal stumbled over
	}
	var te *json.UnmarshalTypeError
	if errors.As(err, &te) {
		return &Error{Path: te.Field, Why: fmt.Sprintf("is a JSON %s, expected %s", te.Value, te.Type)}
	}
	return err
}

// where says at which place data is no JSON: it is walked with encoding/json's reader, which is slow.
func where(data []byte, t reflect.Type, err error) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if err := walk(dec, t, nil, 0); err != nil {
		return err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return &Error{Why: "more text after the end of the JSON value"}
	}
	return &Error{Why: "not JSON: " + err.Error()}
}

func tooDeep(at *path) error {
	return &Error{Path: at.String(), Why: fmt.Sprintf("nested deeper than %d", MaxDepth)}
}

// path is the way from the root to a value, kept as a list to cost nothing when all is well.
type path struct {
	up    *path
	field string
	index int
}

func (p *path) String() string {
	if p == nil {
		return ""
	}
	up := p.up.String()
	if p.field == "" {
		return fmt.Sprintf("%s[%d]", up, p.index)
	}
	if up == "" {
		return p.field
	}
	return up + "." + p.field
}

var (
	jsonUnmarshaler = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshaler = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// walk checks the next value against t and consumes it.
func walk(dec *json.Decoder, t reflect.Type, at *path, depth int) error {
	if depth > MaxDepth {
		return tooDeep(at)
	}
	tok, err := dec.Token()
	if err != nil {
		return syntax(at, err)
	}
	delim, ok := tok.(json.Delim)
	if !ok {
		return nil // a scalar: its type is checked by Unmarshal
	}
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t != nil && opaque(t) {
		t = nil
	}
	if delim == '[' {
		var elem reflect.Type
		if t != nil && (t.Kind() == reflect.Slice || t.Kind() == reflect.Array) {
			elem = t.Elem()
		}
		for i := 0; dec.More(); i++ {
			if err := walk(dec, elem, &path{up: at, index: i}, depth+1); err != nil {
				return err
			}
		}
	} else if err := object(dec, t, at, depth); err != nil {
		return err
	}
	_, err = dec.Token() // the closing bracket
	return syntax(at, err)
}

func object(dec *json.Decoder, t reflect.Type, at *path, depth int) error {
	var known map[string]reflect.Type
	var elem reflect.Type
	if t != nil {
		switch t.Kind() {
		case reflect.Struct:
			known = fields(t)
		case reflect.Map:
			elem = t.Elem()
		}
	}
	seen := make(map[string]struct{}, 8)
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			return syntax(at, err)
		}
		name, _ := tok.(string)
		here := &path{up: at, field: name}
		if _, twice := seen[name]; twice {
			return &Error{Path: here.String(), Why: "given twice"}
		}
		seen[name] = struct{}{}
		next := elem
		if known != nil {
			ft, ok := known[name]
			if !ok {
				return unknown(known, name, here)
			}
			next = ft
		}
		if err := walk(dec, next, here, depth+1); err != nil {
			return err
		}
	}
	return nil
}

func unknown(known map[string]reflect.Type, name string, at *path) error {
	e := &Error{Path: at.String(), Why: "unknown field", Kind: ErrUnknownField}
	for k := range known {
		if strings.EqualFold(k, name) {
			e.Why = fmt.Sprintf("unknown field, the known one is written %q", k)
		}
	}
	return e
}

// opaque types decode themselves: what is inside is theirs to refuse.
func opaque(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return t.Kind() == reflect.Interface || p.Implements(jsonUnmarshaler) || p.Implements(textUnmarshaler)
}

var fieldCache sync.Map // reflect.Type -> map[string]reflect.Type; grows with the number of types only

func fields(t reflect.Type) map[string]reflect.Type {
	if m, ok := fieldCache.Load(t); ok {
		return m.(map[string]reflect.Type)
	}
	m := make(map[string]reflect.Type, t.NumField())
	for i := range t.NumField() { // before the others: a field of t itself hides one of the same name
		if e, ok := embedded(t.Field(i)); ok {
			for k, v := range fields(e) {
				m[k] = v
			}
		}
	}
	for i := range t.NumField() {
		f := t.Field(i)
		tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		_, in := embedded(f)
		switch {
		case in || f.Tag.Get("json") == "-" || !f.IsExported():
		case tag != "":
			m[tag] = f.Type
		default:
			m[f.Name] = f.Type
		}
	}
	fieldCache.Store(t, m)
	return m
}

// embedded is the struct whose fields encoding/json takes for those of the one f is in.
func embedded(f reflect.StructField) (reflect.Type, bool) {
	tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	t := f.Type
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t, f.Anonymous && tag == "" && t.Kind() == reflect.Struct
}

func syntax(at *path, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return &Error{Path: at.String(), Why: "not JSON: " + err.Error()}
}
