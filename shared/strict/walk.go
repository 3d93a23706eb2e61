package strict

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
)

// walker checks names, doubles and depth of a text that is known to be JSON, so it needs to look at
// little: where values begin and end, and the names.
type walker struct {
	data []byte
	at   int
}

func (w *walker) space() {
	for w.at < len(w.data) {
		switch w.data[w.at] {
		case ' ', '\t', '\r', '\n':
			w.at++
		default:
			return
		}
	}
}

// value checks the next value against t and passes it.
func (w *walker) value(t reflect.Type, at *path, depth int) error {
	if depth > MaxDepth {
		return tooDeep(at)
	}
	w.space()
	switch w.data[w.at] {
	case '{':
		return w.object(shapeOf(t), at, depth)
	case '[':
		return w.array(shapeOf(t), at, depth)
	case '"':
		w.text()
	default: // a number or a word ends where something else begins
		for w.at < len(w.data) && !bytes.ContainsRune(ends, rune(w.data[w.at])) {
			w.at++
		}
	}
	return nil // a scalar: its type is checked by Unmarshal
}

var ends = []byte(",]} \t\r\n")

// shapeOf is t without pointers; nil for what decodes itself.
func shapeOf(t reflect.Type) reflect.Type {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t != nil && opaque(t) {
		return nil
	}
	return t
}

func (w *walker) array(t reflect.Type, at *path, depth int) error {
	var elem reflect.Type
	if t != nil && (t.Kind() == reflect.Slice || t.Kind() == reflect.Array) {
		elem = t.Elem()
	}
	w.at++ // [
	here := path{up: at}
	for w.space(); w.data[w.at] != ']'; w.space() {
		if w.data[w.at] == ',' {
			w.at++
		}
		if err := w.value(elem, &here, depth+1); err != nil {
			return err
		}
		here.index++
	}
	w.at++
	return nil
}

func (w *walker) object(t reflect.Type, at *path, depth int) error {
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
	var seen names
	w.at++ // {
	for w.space(); w.data[w.at] != '}'; w.space() {
		if w.data[w.at] == ',' {
			w.at++
			w.space()
		}
		name, err := w.name()
		if err != nil {
			return err
		}
		here := path{up: at, field: name}
		if !seen.add(name) {
			return &Error{Path: here.String(), Why: "given twice"}
		}
		next := elem
		if known != nil {
			ft, ok := known[name]
			if !ok {
				return unknown(known, name, &here)
			}
			next = ft
		}
		w.space()
		w.at++ // :
		if err := w.value(next, &here, depth+1); err != nil {
			return err
		}
	}
	w.at++
	return nil
}

// name is the string that begins here, decoded.
func (w *walker) name() (string, error) {
	raw, plain := w.text()
	if plain {
		return string(raw[1 : len(raw)-1]), nil
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return "", fmt.Errorf("a name: %w", err)
	}
	return s, nil
}

// text passes the string that begins here; plain says that it has no escapes.
func (w *walker) text() (raw []byte, plain bool) {
	from := w.at
	plain = true
	for w.at++; w.data[w.at] != '"'; w.at++ {
		if w.data[w.at] == '\\' {
			plain = false
			w.at++
		}
	}
	w.at++
	return w.data[from:w.at], plain
}

// names are those of one object; few are looked through, many looked up.
type names struct {
	few  [16]string
	n    int
	many map[string]struct{}
}

// add reports whether name is new.
func (s *names) add(name string) bool {
	if s.many != nil {
		before := len(s.many)
		s.many[name] = struct{}{}
		return len(s.many) > before
	}
	for _, had := range s.few[:s.n] {
		if had == name {
			return false
		}
	}
	if s.n < len(s.few) {
		s.few[s.n] = name
		s.n++
		return true
	}
	s.many = make(map[string]struct{}, 4*len(s.few))
	for _, had := range s.few {
		s.many[had] = struct{}{}
	}
	s.many[name] = struct{}{}
	return true
}
