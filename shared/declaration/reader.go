package declaration

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"

	"mesh/shared/credential"
	"mesh/shared/strict"
	"mesh/shared/subject"
)

// Reader opens the declarations of one node one after the other. From one to the next nearly every module
// is the same text: such a module is not decoded again. What it returns is as Signed.Open's, errors included,
// but modules of two declarations may share their maps and text: nobody may change them. It is for one
// goroutine; its zero value is ready.
type Reader struct {
	known map[[sha256.Size]byte]Module // by the SHA-256 of the module's text
}

// maxKnown bounds in bytes the text of the modules that are remembered.
const maxKnown = 256 << 10

// Open is Signed.Open.
func (r *Reader) Open(s Signed, v credential.Verifier, mesh string, node subject.Node) (*Declaration, error) {
	return s.open(v, mesh, node, r.decode)
}

// decode is strict.Decode for a declaration's JSON.
func (r *Reader) decode(body []byte, d *Declaration) error {
	rest, texts, ok := cutModules(body)
	if !ok {
		return strict.Decode(body, d) // it says what is wrong, or reads a spelling that is not looked for here
	}
	if err := strict.Decode(rest, d); err != nil {
		return err
	}
	known, size := make(map[[sha256.Size]byte]Module, len(texts)), 0
	d.Modules = make([]Module, len(texts))
	for i, text := range texts {
		sum := sha256.Sum256(text)
		m, seen := r.known[sum]
		if !seen {
			if err := strict.Decode(text, &m); err != nil {
				return within(fmt.Sprintf("modules[%d]", i), err)
			}
		}
		d.Modules[i] = m
		if size += len(text); size <= maxKnown {
			known[sum] = m
		}
	}
	r.known = known
	return nil
}

// within puts the path of a part before err's.
func within(at string, err error) error {
	var e *strict.Error
	if !errors.As(err, &e) {
		return &strict.Error{Path: at, Why: err.Error()}
	}
	inner := *e
	if inner.Path == "" {
		inner.Path = at
	} else {
		inner.Path = at + "." + inner.Path
	}
	return &inner
}

// cutModules takes the elements of the list "modules" out of a declaration's JSON, and returns the rest with
// an empty list. It only finds where they begin and end: each part is still to be decoded. ok is false where
// it does not find its way.
func cutModules(body []byte) (rest []byte, elements [][]byte, ok bool) {
	c := cursor{text: body}
	if !c.eat('{') {
		return nil, nil, false
	}
	for {
		name, ok := c.skip()
		if !ok || !c.eat(':') {
			return nil, nil, false
		}
		if string(name) == `"modules"` {
			break
		}
		if _, ok := c.skip(); !ok || !c.eat(',') {
			return nil, nil, false
		}
	}
	if !c.eat('[') {
		return nil, nil, false
	}
	from := c.at
	if !c.eat(']') {
		for {
			e, ok := c.skip()
			if !ok || len(e) == 0 || e[0] != '{' {
				return nil, nil, false
			}
			elements = append(elements, e)
			if c.eat(']') {
				break
			}
			if !c.eat(',') {
				return nil, nil, false
			}
		}
	}
	rest = make([]byte, 0, from+1+len(body)-c.at)
	rest = append(rest, body[:from]...)
	rest = append(rest, ']')
	return append(rest, body[c.at:]...), elements, true
}

// cursor moves over JSON that may be none.
type cursor struct {
	text []byte
	at   int
}

// eat moves over space and then over c, if that is what comes.
func (c *cursor) eat(want byte) bool {
	for c.at < len(c.text) && bytes.IndexByte([]byte(" \t\r\n"), c.text[c.at]) >= 0 {
		c.at++
	}
	if c.at == len(c.text) || c.text[c.at] != want {
		return false
	}
	c.at++
	return true
}

// skip moves over space and one value. What it takes for a value need not be one; it is decoded later.
func (c *cursor) skip() (value json.RawMessage, ok bool) {
	c.eat(0) // space only: no JSON has a zero byte
	from, depth := c.at, 0
	for c.at < len(c.text) {
		b := c.text[c.at]
		if depth == 0 && c.at > from && bytes.IndexByte([]byte(",]} \t\r\n:"), b) >= 0 {
			return c.text[from:c.at], true
		}
		c.at++
		switch b {
		case '"':
			if !c.string() {
				return nil, false
			}
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		default:
			continue
		}
		if depth < 0 || depth > strict.MaxDepth-4 { // parts are not deeper than the whole may be
			return nil, false
		}
		if depth == 0 {
			return c.text[from:c.at], true
		}
	}
	return nil, false
}

// string moves over the rest of a string.
func (c *cursor) string() bool {
	for {
		n := bytes.IndexByte(c.text[c.at:], '"')
		if n < 0 {
			return false
		}
		slashes := 0
		for i := c.at + n - 1; i >= c.at && c.text[i] == '\\'; i-- {
			slashes++
		}
		c.at += n + 1
		if slashes%2 == 0 {
			return true
		}
	}
}
