package yamlfile

import (
	"encoding/json"
	"strconv"

	"go.yaml.in/yaml/v3"

	"mesh/shared/manifest"
)

// schema reads a JSON Schema written in YAML. Here alone a value's type is read off the value: that is what a
// schema speaks of.
func (w *walker) schema(s *manifest.Schema, n *yaml.Node, path string) {
	if n.Kind != yaml.MappingNode {
		w.unreadable(n, path, "%s; expected a JSON Schema, such as {type: object, properties: {days: {type: integer}}}", kindOf(n))
		return
	}
	b, err := json.Marshal(w.any(n, path))
	if err == nil {
		*s, err = manifest.MakeSchema(b)
	}
	if err != nil {
		w.unreadable(n, path, "%v", err)
	}
}

// any is n as JSON has it.
func (w *walker) any(n *yaml.Node, path string) any {
	w.depth++
	defer func() { w.depth-- }()
	if !w.affordable(n, path) {
		return nil
	}
	if n.Kind == yaml.AliasNode || n.Anchor != "" || n.Style&yaml.TaggedStyle != 0 {
		w.unreadable(n, path, "expected the value alone, written out")
		return nil
	}
	switch n.Kind {
	case yaml.MappingNode:
		all := map[string]any{}
		w.pairs(n, path, "a mapping of names", func(_ *yaml.Node, name string, value *yaml.Node) {
			all[name] = w.any(value, manifest.Join(path, name))
		})
		return all
	case yaml.SequenceNode:
		all := []any{}
		for i, e := range n.Content {
			all = append(all, w.any(e, manifest.Index(path, i)))
		}
		return all
	}
	if !plain(n) {
		return n.Value
	}
	switch n.Value {
	case "true", "false":
		return n.Value == "true"
	case "null":
		return nil
	}
	if _, err := strconv.ParseFloat(n.Value, 64); err == nil && json.Valid([]byte(n.Value)) {
		return json.Number(n.Value) // as it is written, so that no digit is lost
	}
	return n.Value
}
