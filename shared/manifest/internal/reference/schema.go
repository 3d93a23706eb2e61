package reference

import (
	"bytes"
	"encoding/json"
	"reflect"

	"mesh/shared/manifest"
	"mesh/shared/rule"
)

// Schema is the JSON Schema of module.yaml, for editors.
func Schema(source []byte) ([]byte, error) {
	said, err := docs(source)
	if err != nil {
		return nil, err
	}
	root, err := object(reflect.TypeFor[manifest.Manifest](), said)
	if err != nil {
		return nil, err
	}
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = "module.yaml of mesh"
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err = enc.Encode(root) // maps are written sorted
	return out.Bytes(), err
}

type schema = map[string]any

// object is the schema of a struct: its keys and no others.
func object(t reflect.Type, said map[string]string) (schema, error) {
	all, err := fields(t, said)
	if err != nil {
		return nil, err
	}
	keys, required := schema{}, []string{}
	for _, f := range all {
		s, err := of(f.typ, said)
		if err != nil {
			return nil, err
		}
		s["description"] = f.doc
		if f.fallback != "" {
			s["default"] = f.fallback
			if f.typ.Kind() == reflect.Bool {
				s["default"] = f.fallback == "true"
			}
		}
		if p := patterns[t.Name()+"."+f.key]; p != "" {
			s["pattern"] = p
		}
		if f.required {
			required = append(required, f.key)
		}
		keys[f.key] = s
	}
	s := schema{"type": "object", "properties": keys, "additionalProperties": false}
	if len(required) > 0 {
		s["required"] = required
	}
	return s, nil
}

// of is the schema of any type.
func of(t reflect.Type, said map[string]string) (schema, error) {
	if words, is := leaf(t); is {
		switch {
		case t.Kind() == reflect.Bool:
			return schema{"type": "boolean"}, nil
		case t == reflect.TypeFor[manifest.Schema]():
			return schema{"type": "object"}, nil
		case words != nil:
			return schema{"enum": words}, nil
		case t == reflect.TypeFor[string](), t == reflect.TypeFor[manifest.Mode](), t == reflect.TypeFor[rule.Protocol]():
			// A number or a boolean in the place of a text is text as it is written.
			return schema{"type": []string{"string", "number", "boolean"}}, nil
		}
		return schema{"type": "string"}, nil
	}
	switch t.Kind() {
	case reflect.Pointer:
		return of(t.Elem(), said)
	case reflect.Slice:
		items, err := of(t.Elem(), said)
		return schema{"type": "array", "items": items}, err
	case reflect.Map:
		values, err := of(t.Elem(), said)
		return schema{"type": "object", "additionalProperties": values}, err
	}
	return object(t, said)
}
