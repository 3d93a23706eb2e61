package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"mesh/shared/membership"
	"mesh/shared/subject"
)

// MaxSchema bounds a schema in bytes.
const MaxSchema = 16 << 10

// Schema is a JSON Schema, kept as compact JSON text. Its zero value is none.
type Schema struct{ text string }

// MakeSchema takes any JSON object for a schema; the coordinator checks whether it is one.
func MakeSchema(b []byte) (Schema, error) {
	var s Schema
	return s, s.UnmarshalJSON(b)
}

// String is the JSON text, "" for none.
func (s Schema) String() string { return s.text }

// IsZero reports whether there is no schema.
func (s Schema) IsZero() bool { return s.text == "" }

// MarshalJSON is the text itself.
func (s Schema) MarshalJSON() ([]byte, error) {
	if s.text == "" {
		return []byte("{}"), nil
	}
	return []byte(s.text), nil
}

// UnmarshalJSON keeps b when it is an object of a sensible size.
func (s *Schema) UnmarshalJSON(b []byte) error {
	var out bytes.Buffer
	if err := json.Compact(&out, b); err != nil {
		return err
	}
	if out.Len() > MaxSchema {
		return fmt.Errorf("a schema of %d bytes; at most %d are taken", out.Len(), MaxSchema)
	}
	if out.Bytes()[0] != '{' {
		return fmt.Errorf("a schema is an object")
	}
	s.text = out.String()
	return nil
}

// Asking is the level that holds.
func (t Tool) Asking() Level {
	if t.Level == "" {
		return LevelDisruptive
	}
	return t.Level
}

// OnBus reports whether an instance of the module has something to do on the bus, and so is let in.
func (m *Manifest) OnBus() bool {
	return len(m.Tools)+len(m.Events)+len(m.Invokes) > 0
}

// Verbs are the names of the module's tools, sorted.
func (m *Manifest) Verbs() []subject.Verb {
	all := make([]subject.Verb, 0, len(m.Tools))
	for name := range m.Tools {
		all = append(all, subject.Verb(name))
	}
	slices.Sort(all)
	return all
}

// The bounds of what a module is on the bus: each stands in a right that the bus keeps in memory.
const (
	maxTools   = 64
	maxEvents  = 64
	maxInvokes = 64
)

// bus checks what the module says of itself on the bus.
func (c *checker) bus() {
	m := c.m
	named(c, "tools", "verb", m.Tools)
	for _, n := range []struct {
		key        string
		have, most int
	}{{"tools", len(m.Tools), maxTools}, {"events", len(m.Events), maxEvents}, {"invokes", len(m.Invokes), maxInvokes}} {
		if n.have > n.most {
			c.say(n.key, "has %d entries; at most %d are taken", n.have, n.most)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.Tools)) {
		if d := m.Tools[name].Description; len(d) > 300 || bytes.ContainsAny([]byte(d), "\n\r") {
			c.say(Join(Join("tools", name), "description"), "expected one line of at most 300 bytes")
		}
	}
	seen := map[string]bool{}
	for i, e := range m.Events {
		if err := subject.Check("event", string(e)); err != nil {
			c.say(Index("events", i), nameWant)
		}
		if seen["event "+string(e)] {
			c.say(Index("events", i), "%s is named twice", e)
		}
		seen["event "+string(e)] = true
	}
	for i, r := range m.Invokes {
		seat, module, _, err := r.Split()
		switch {
		case err != nil:
			c.say(Index("invokes", i), `%q: expected "seat:<seat>.<verb>" or "module:<module>.<verb>", with * for every verb`, clip(string(r)))
		case module != "" && module == m.Module:
			c.say(Index("invokes", i), "a module need not ask itself")
		case seat == subject.NodeEngine || seat == subject.NodePrevention:
			c.say(Index("invokes", i), "%s is the agent's, which people ask and no module", seat)
		case seen[string(r)]:
			c.say(Index("invokes", i), "%s is named twice", r)
		}
		seen[string(r)] = true
	}
}

// Membership is what the instance of m on a node is on the bus; nil when it has nothing to do there. plain:
// it is alone, or the module's instances are interchangeable.
func (m *Manifest) Membership(mesh string, n subject.Node, plain bool) *membership.Membership {
	if !m.OnBus() {
		return nil
	}
	return membership.Make(membership.Of{Mesh: mesh, Node: n, Module: m.Module, Tools: m.Verbs(), Events: m.Events, Invokes: m.Invokes,
		Plain: plain || m.Instances == Interchangeable})
}
