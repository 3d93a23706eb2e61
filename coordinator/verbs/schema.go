package verbs

import (
	"encoding/json"
	"fmt"
	"reflect"

	"github.com/google/jsonschema-go/jsonschema"

	"mesh/shared/controller"
	"mesh/shared/discovery"
	"mesh/shared/engine"
	"mesh/shared/refusal"
	"mesh/shared/rule"
	"mesh/shared/subject"
)

// Tool is a verb with the JSON schemas of its argument and answer, made from their Go types.
func Tool(v controller.Verb) (controller.Tool, error) {
	t := controller.Tool{Seat: subject.Controller, Verb: v.Name, Description: v.Description, Example: v.Example, Level: v.Level, Role: v.Least}
	var err error
	if t.Schema, err = schema(v.Ask); err != nil {
		return t, fmt.Errorf("schema of the argument of %s: %w", v.Name, err)
	}
	if t.Answer, err = schema(v.Answer); err != nil {
		return t, fmt.Errorf("schema of the answer of %s: %w", v.Name, err)
	}
	return t, nil
}

// spoken is what discovery says of the seat: its verbs with the schemas made for them.
func (s *Server) spoken() (*discovery.Service, error) {
	c := discovery.Config{Name: string(subject.Controller), ID: string(subject.Controller), Version: s.cfg.Version, Description: "the coordinator", Clock: s.cfg.Clock}
	for i, v := range controller.Table() {
		c.Endpoints = append(c.Endpoints, discovery.Endpoint{Seat: subject.Controller, Line: v, At: subject.Tool(subject.Controller, v.Name), Queue: string(subject.Controller), Schema: s.tools[i].Schema})
	}
	return discovery.New(c)
}

// nodeTools are the verbs of the node seats with their schemas.
func nodeTools() (out []controller.Tool, err error) {
	for _, p := range engine.Protocols() {
		for _, v := range p.Verbs {
			t, err := Tool(v)
			if err != nil {
				return nil, err
			}
			t.Seat, t.PerNode = p.Seat, true
			out = append(out, t)
		}
	}
	return out, nil
}

func schema(v any) (json.RawMessage, error) {
	s, err := jsonschema.ForType(reflect.TypeOf(v), &jsonschema.ForOptions{TypeSchemas: typeSchemas()})
	if err != nil {
		return nil, err
	}
	return json.Marshal(s)
}

// typeSchemas are the types that decode themselves.
func typeSchemas() map[reflect.Type]*jsonschema.Schema {
	name := func(what string) *jsonschema.Schema {
		most := subject.MaxName
		return &jsonschema.Schema{Type: "string", Description: "the name of a " + what, Pattern: `^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`, MaxLength: &most}
	}
	var roles []any
	for _, r := range controller.Roles() {
		roles = append(roles, string(r))
	}
	return map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[json.RawMessage](): {},
		reflect.TypeFor[subject.Node]():    name("node"),
		reflect.TypeFor[subject.Module]():  name("module"),
		reflect.TypeFor[subject.Seat]():    name("seat"),
		reflect.TypeFor[subject.Verb]():    name("verb"),
		reflect.TypeFor[controller.Role](): {Type: "string", Enum: roles},
		reflect.TypeFor[rule.Port]():       {Type: "string", Description: `such as "80/tcp"`},
		reflect.TypeFor[rule.From]():       {Type: "string", Description: `"anywhere", "tunnel" or prefixes`},
		reflect.TypeFor[refusal.Refusal](): {Type: "object", Properties: map[string]*jsonschema.Schema{"refused": {Type: "string"}, "why": {Type: "string"}, "do": {Type: "string"}}},
	}
}
