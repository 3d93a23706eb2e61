package controller_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"mesh/shared/controller"
	"mesh/shared/refusal"
	"mesh/shared/subject"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestTable(t *testing.T) {
	seen := map[subject.Verb]bool{}
	for _, v := range controller.Table() {
		if seen[v.Name] {
			t.Errorf("%s is in the table twice", v.Name)
		}
		seen[v.Name] = true
		if err := subject.Check("verb", string(v.Name)); err != nil {
			t.Error(err)
		}
		if v.Description == "" || strings.HasSuffix(v.Description, ".") || strings.Contains(v.Description, "\n") {
			t.Errorf("%s: the description %q is no line", v.Name, v.Description)
		}
		if !strings.HasPrefix(v.Example, "mesh-coordinator ") {
			t.Errorf("%s: the example %q is no command", v.Name, v.Example)
		}
		if v.Level == controller.Read != (v.Least == controller.Viewer) {
			t.Errorf("%s: a viewer reads all and nothing else, this is %s for %s", v.Name, v.Level, v.Least)
		}
		if v.Ask == nil || v.Answer == nil || reflect.TypeOf(v.Ask).Kind() != reflect.Struct || reflect.TypeOf(v.Answer).Kind() != reflect.Struct {
			t.Errorf("%s: argument and answer are structs", v.Name)
		}
	}
}

func TestRoles(t *testing.T) {
	for _, tt := range []struct {
		role controller.Role
		may  []subject.Verb
		not  []subject.Verb
	}{
		{controller.Viewer, []subject.Verb{"status", "plan", "push-show", "changes"}, []subject.Verb{"push", "assign", "node-invite"}},
		{controller.Operator, []subject.Verb{"status", "push", "assign", "module-register"}, []subject.Verb{"node-invite", "node-remove", "operator-issue"}},
		{controller.Admin, []subject.Verb{"status", "push", "node-invite", "operator-revoke"}, nil},
		{"nobody", nil, []subject.Verb{"status"}},
	} {
		verbs := tt.role.Verbs()
		for _, v := range tt.may {
			if !slices.Contains(verbs, v) {
				t.Errorf("%s may not ask %s", tt.role, v)
			}
		}
		for _, v := range tt.not {
			if slices.Contains(verbs, v) {
				t.Errorf("%s may ask %s", tt.role, v)
			}
		}
	}
	if len(controller.Admin.Verbs()) != len(controller.Table()) {
		t.Error("an admin may not ask everything")
	}
	var r controller.Role
	if err := json.Unmarshal([]byte(`"root"`), &r); refusal.Of(err) == nil {
		t.Errorf("a role that does not exist: %v", err)
	}
}

// TestMessages holds each message to its golden file: a change there is a change of format.
func TestMessages(t *testing.T) {
	for _, v := range controller.Table() {
		for kind, m := range map[string]any{"ask": v.Ask, "answer": v.Answer} {
			name := string(v.Name) + "." + kind
			t.Run(name, func(t *testing.T) {
				full := reflect.New(reflect.TypeOf(m))
				fill(full.Elem(), 0)
				got, err := json.MarshalIndent(full.Interface(), "", " ")
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, '\n')
				path := filepath.Join("testdata", name+".json")
				if *update {
					if err := os.WriteFile(path, got, 0o644); err != nil {
						t.Fatal(err)
					}
				}
				want, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(got, want) {
					t.Errorf("%s changed; run with -update and review the diff:\n%s", path, got)
				}
			})
		}
	}
}

// fill gives every field a value, so that each name shows in the golden file.
func fill(v reflect.Value, depth int) {
	if v.Type() == reflect.TypeFor[time.Time]() {
		v.Set(reflect.ValueOf(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)))
		return
	}
	if v.Type() == reflect.TypeFor[json.RawMessage]() {
		v.SetBytes([]byte(`{}`))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), depth+1)
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				fill(v.Field(i), depth+1)
			}
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), depth+1)
	case reflect.Map:
		k, e := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(k, depth+1)
		fill(e, depth+1)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(k, e)
	case reflect.String:
		v.SetString("text")
	case reflect.Int, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint64, reflect.Uint16:
		v.SetUint(1)
	case reflect.Bool:
		v.SetBool(true)
	}
}
