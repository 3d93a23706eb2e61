package declaration_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mesh/shared/credential"
	"mesh/shared/declaration"
	"mesh/shared/strict"
)

// body is a declaration's JSON with these modules.
func body(modules string) string {
	return `{"format":1,"mesh":"m","node":"db1","seq":3,"bus":{"addresses":["192.0.2.1:4222"],"pin":"` + strings.Repeat("ab", 32) + `"},"drift":"repair","modules":[` + modules + `]}`
}

func text(name, build string) string {
	return `{"name":"` + name + `","build":"` + build + `","manifest":{"module":"` + name + `","text":"a \"quoted\" ] } text \\"},"settings":{"a":"b"}}`
}

// TestAReaderReadsAsOpenDoes: whatever comes, and whatever came before.
func TestAReaderReadsAsOpenDoes(t *testing.T) {
	_, s := signed(t, nil)
	var r declaration.Reader
	for _, in := range []string{
		body(""), body(text("a", "1")), body(text("a", "1") + "," + text("b", "1")), body(text("a", "2") + " , " + text("b", "1")), body(text("b", "1")),
		body(text("b", "1") + "," + text("a", "1")), body(`{"name":"a","build":"1","manifest":{},"colour":1}`), body(`{"name":"a","name":"a","build":"1","manifest":{}}`),
		body(`null`), body(`1,2`), body(`{"name":7}`), body(text("a", "1") + ","), body(text("a", "1") + `]`), body(text("a", "1")) + " x",
		strings.Replace(body(text("a", "1")), `"modules"`, `"mod\u0075les"`, 1), strings.Replace(body(text("a", "1")), `}`, `,"modules":[]}`, 1),
		strings.Replace(body(""), `"seq":3`, `"seq":3,"colour":[1]`, 1), body(`{"name":"a","build":"1","manifest":` + strings.Repeat("[", 62) + strings.Repeat("]", 62) + `}`),
		`{"modules":[` + text("a", "1") + `],` + body("")[1:], `{"modules":`, `{`, ``, `[]`, "{\"modules\":[{\"name\":\"\xff\"}]}",
	} {
		sameAsOpen(t, &r, s, in)
	}
}

func sameAsOpen(t *testing.T, r *declaration.Reader, s *credential.Signer, in string) {
	t.Helper()
	d := sign(t, s, []byte(in))
	want, errWant := d.Open(s.Verifier(), "m", "db1")
	for range 2 {
		got, err := r.Open(d, s.Verifier(), "m", "db1")
		if (err == nil) != (errWant == nil) || cmp.Diff(want, got) != "" {
			t.Fatalf("%s\nis read as %+v, %v\nopens as %+v, %v", in, got, err, want, errWant)
		}
		if errors.Is(err, strict.ErrUnknownField) != errors.Is(errWant, strict.ErrUnknownField) {
			t.Fatalf("%s\nis refused with %q, not %q", in, err, errWant)
		}
	}
}

// TestAnUnchangedModuleIsNotReadAgain: it is the one from before.
func TestAnUnchangedModuleIsNotReadAgain(t *testing.T) {
	_, s := signed(t, nil)
	var r declaration.Reader
	open := func(modules string) []declaration.Module {
		t.Helper()
		d, err := r.Open(sign(t, s, []byte(body(modules))), s.Verifier(), "m", "db1")
		if err != nil {
			t.Fatal(err)
		}
		return d.Modules
	}
	one := open(text("a", "1") + "," + text("b", "1"))
	two := open(text("a", "1") + "," + text("b", "2"))
	if &one[0].Manifest[0] != &two[0].Manifest[0] {
		t.Error("the module that is the same was read again")
	}
	if &one[1].Manifest[0] == &two[1].Manifest[0] || two[1].Build != "2" {
		t.Error("the module that changed is the old one")
	}
}

func FuzzReader(f *testing.F) {
	_, s := signed(f, nil)
	f.Add(text("a", "1"), text("b", "1"))
	f.Add(text("a", "1")+`]`, `[`)
	f.Fuzz(func(t *testing.T, one, two string) {
		var r declaration.Reader
		for _, in := range []string{body(one), body(one + "," + two), body(two), one, two} {
			sameAsOpen(t, &r, s, in)
		}
	})
}

func BenchmarkReader(b *testing.B) {
	_, s := signed(b, nil)
	var r declaration.Reader
	big := strings.Repeat("setting = value\\n", 120)
	var all [2]declaration.Signed
	for i, build := range []string{"1", "2"} {
		var err error
		modules := strings.ReplaceAll(text("a", "1")+","+text("b", "1")+","+text("c", "1")+","+text("d", build), "] } text", big)
		if all[i], err = declaration.Sign(s, []byte(body(modules))); err != nil {
			b.Fatal(err)
		}
	}
	for name, open := range map[string]func(declaration.Signed) (*declaration.Declaration, error){
		"whole": func(d declaration.Signed) (*declaration.Declaration, error) { return d.Open(s.Verifier(), "m", "db1") },
		"again": func(d declaration.Signed) (*declaration.Declaration, error) {
			return r.Open(d, s.Verifier(), "m", "db1")
		},
	} {
		b.Run(name, func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				if _, err := open(all[i%2]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestSigningContentIsSigningTheWhole: one text, and one bound.
func TestSigningContentIsSigningTheWhole(t *testing.T) {
	_, s := signed(t, nil)
	head := declaration.Head{Format: declaration.Format, Mesh: "m", Node: "db1", Seq: 7}
	for _, content := range []string{`"drift":"repair"}`, `"text":"` + strings.Repeat("x", declaration.MaxSize) + `"}`} {
		want, errWant := declaration.Sign(s, []byte(`{"format":1,"mesh":"m","node":"db1","seq":7,`+content))
		got, err := declaration.SignContent(s, head, []byte("{"+content))
		if string(got) != string(want) || (err == nil) != (errWant == nil) || err != nil && err.Error() != errWant.Error() {
			t.Errorf("%d bytes, %v; expected %d, %v", len(got), err, len(want), errWant)
		}
	}
}
