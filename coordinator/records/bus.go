package records

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/google/jsonschema-go/jsonschema"

	"mesh/shared/controller"
	"mesh/shared/manifest"
	"mesh/shared/membership"
	"mesh/shared/refusal"
	"mesh/shared/subject"
)

// checkBus refuses schemas that are none, and asks of the coordinator that it could not answer. Whether other
// modules and seats are there is not asked: they may come later.
func checkBus(m *manifest.Manifest) error {
	for _, name := range slices.Sorted(maps.Keys(m.Tools)) {
		t := m.Tools[name]
		if t.Schema.IsZero() {
			continue
		}
		what := "the schema of the tool " + name + " of " + string(m.Module)
		var s jsonschema.Schema
		err := json.Unmarshal([]byte(t.Schema.String()), &s)
		if err == nil {
			_, err = s.Resolve(nil)
		}
		if err != nil {
			return refusal.New(what, err.Error(), "write a JSON Schema of an object: https://json-schema.org/understanding-json-schema")
		}
	}
	var known []string
	for _, v := range controller.Table() {
		known = append(known, string(v.Name))
	}
	for _, r := range m.Invokes {
		seat, _, verb, err := r.Split()
		if err != nil || seat != subject.Controller || verb == membership.Every {
			continue
		}
		what := "what " + string(m.Module) + " invokes: " + string(r)
		v, ok := controller.Find(subject.Verb(verb))
		if !ok {
			return refusal.New(what, "the coordinator has no such verb", didYouMean(verb, known, "list them: mesh-coordinator tool list"))
		}
		if v.Least == controller.Admin {
			return refusal.Newf(what, "have a person ask it", "it takes the role %s, and no module has it", v.Least)
		}
	}
	return nil
}
