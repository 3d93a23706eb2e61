package strict_test

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"

	"mesh/shared/strict"
)

type inner struct {
	Port int    `json:"port"`
	Kind string `json:"kind,omitempty"`
}

type outer struct {
	Name  string           `json:"name"`
	List  []inner          `json:"list,omitempty"`
	Named map[string]inner `json:"named,omitempty"`
	Raw   json.RawMessage  `json:"raw,omitempty"`
	Ptr   *inner           `json:"ptr,omitempty"`
}

func TestDecode(t *testing.T) {
	for _, tt := range []struct{ name, in, says string }{
		{"whole", `{"name":"a","list":[{"port":1}],"named":{"x":{"port":2}},"raw":{"any":[1]},"ptr":{"port":3}}`, ""},
		{"unknown at the root", `{"name":"a","color":1}`, "color: unknown field"},
		{"unknown in a list", `{"list":[{"port":1},{"prt":1}]}`, "list[1].prt: unknown field"},
		{"unknown in a map", `{"named":{"x":{"y":1}}}`, "named.x.y: unknown field"},
		{"unknown behind a pointer", `{"ptr":{"y":1}}`, "ptr.y: unknown field"},
		{"wrong case", `{"Name":"a"}`, `the known one is written "name"`},
		{"twice", `{"name":"a","name":"b"}`, "name: given twice"},
		{"twice in a free map", `{"raw":{"a":1,"a":2}}`, "raw.a: given twice"},
		{"wrong type", `{"list":[{"port":"x"}]}`, "list.port: is a JSON string"},
		{"trailing", `{"name":"a"} {}`, "more text after"},
		{"cut", `{"name":"a"`, "not JSON"},
		{"empty", ``, "not JSON"},
		{"no UTF-8", "{\"name\":\"\xff\"}", "no UTF-8"},
		{"not the expected shape", `["name"]`, "is a JSON array"},
		{"a fraction", `{"list":[{"port":1.5}]}`, "number 1.5"},
		{"too deep", `{"raw":` + strings.Repeat("[", 80) + strings.Repeat("]", 80) + `}`, "nested deeper"},
	} {
		var v outer
		err := strict.Decode([]byte(tt.in), &v)
		if tt.says == "" && err != nil || tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("%s: got %v, want %q", tt.name, err, tt.says)
		}
	}
	var v outer
	if err := strict.Decode([]byte(`{"x":1}`), &v); !errors.Is(err, strict.ErrUnknownField) {
		t.Errorf("an unknown field is not ErrUnknownField: %v", err)
	}
}

type Base struct {
	ID   int   `json:"id"`
	Name inner `json:"name"`
}

type Far struct {
	City string `json:"city"`
}

type derived struct {
	Base
	*Far
	Name   string `json:"name"` // hides Base's
	Hidden string `json:"-"`
	//lint:ignore SA5008 this is how encoding/json names a field "-"
	Dash   string `json:"-,"`
	secret string
}

func TestEmbeddedFieldsAreThoseOfEncodingJSON(t *testing.T) {
	var v derived
	if err := strict.Decode([]byte(`{"id":1,"name":"a","city":"b","-":"c"}`), &v); err != nil || v.ID != 1 || v.Name != "a" || v.Far == nil || v.City != "b" || v.Dash != "c" || v.secret != "" {
		t.Errorf("got %+v, %v", v, err)
	}
	for _, in := range []string{`{"Base":{}}`, `{"Far":{}}`, `{"Hidden":"x"}`, `{"secret":"x"}`, `{"name":{"kind":1}}`} {
		if err := strict.Decode([]byte(in), &v); err == nil {
			t.Errorf("%s was taken", in)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"name":"a","list":[{"port":1}]}`))
	f.Add([]byte(`{"raw":{"a":1,"a":2}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var v, again outer
		if strict.Decode(b, &v) != nil {
			return
		}
		out, err := json.Marshal(v)
		if err != nil {
			return // a RawMessage kept an invalid text: Unmarshal would have refused it
		}
		if err := strict.Decode(out, &again); err != nil {
			t.Fatalf("taken %q, refused its own encoding %q: %v", b, out, err)
		}
		if v.Name != again.Name || !reflect.DeepEqual(v.Named, again.Named) && len(v.Named) > 0 {
			t.Errorf("%+v is not %+v", v, again)
		}
	})
}
