package declaration_test

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mesh/shared/credential"
	"mesh/shared/declaration"
	"mesh/shared/refusal"
	"mesh/shared/rule"
	"mesh/shared/strict"
)

var update = flag.Bool("update", false, "rewrite golden files")

func content() *declaration.Content {
	port, err := rule.ParsePort("80/tcp")
	if err != nil {
		panic(err)
	}
	return &declaration.Content{
		Bus:    credential.Bus{Addresses: []string{"198.18.0.11:4222"}, CA: "-----BEGIN CERTIFICATE-----\n", Pin: strings.Repeat("ab", 32)},
		Drift:  declaration.Repair,
		Filter: &declaration.Filter{Allow: []rule.Allow{{Owner: "notes", Port: port, From: rule.Anywhere()}}, Tunnel: "wg0"},
		Modules: []declaration.Module{{Name: "notes", Build: "build-1", Artifact: &declaration.Artifact{Digest: strings.Repeat("0a", 32), Size: 9, Chunks: 1},
			Images:   []declaration.Image{image("web")},
			Manifest: json.RawMessage(`{"module":"notes"}`), Settings: map[string]string{"b": "é\"<", "a": "1"}, Secrets: map[string]credential.Sealed{"p": "X.y"}}},
	}
}

func image(name string) declaration.Image {
	blob := func(b string, size int64) declaration.Artifact {
		return declaration.Artifact{Digest: strings.Repeat(b, 32), Size: size, Chunks: 1}
	}
	return declaration.Image{Name: name, Arch: "amd64", ID: strings.Repeat("0c", 32), Type: declaration.OCIManifest,
		Blobs: []declaration.Artifact{blob("0b", 400), blob("0c", 500), blob("0d", 600)}}
}

func signed(t testing.TB, edit func(*declaration.Head, *declaration.Content)) (declaration.Signed, *credential.Signer) {
	t.Helper()
	s, err := credential.NewSigner(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	h, c := declaration.Head{Format: 1, Mesh: "m", Node: "db1", Seq: 7}, content()
	if edit != nil {
		edit(&h, c)
	}
	text, err := declaration.AppendContent(nil, c)
	if err != nil {
		t.Fatal(err)
	}
	out, err := declaration.SignContent(s, h, text)
	if err != nil {
		t.Fatal(err)
	}
	return out, s
}

func TestHandWrittenJSONIsWhatEncodingJSONReads(t *testing.T) {
	sig, s := signed(t, nil)
	d, err := sig.Open(s.Verifier(), "m", "db1")
	if err != nil {
		t.Fatal(err)
	}
	want, err := json.Marshal(content())
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(d.Content)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// A change of this file is a change of the format: agents of the last release must still read it, or
// Format grows.
func TestGolden(t *testing.T) {
	sig, _ := signed(t, nil)
	_, body, _ := bytes.Cut(sig, []byte{'\n'})
	path := filepath.Join("testdata", "declaration.json")
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, append(body, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(body)+"\n" != string(want) {
		t.Errorf("got  %s\nwant %s", body, want)
	}
}

func TestRefusals(t *testing.T) {
	good, s := signed(t, nil)
	resign := func(text string) declaration.Signed {
		_, body, _ := strings.Cut(string(good), "\n")
		out, err := declaration.Sign(s, []byte(strings.Replace(body, `{"format":1`, text, 1)))
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	stranger, _ := signed(t, nil)
	for _, tt := range []struct {
		name string
		in   declaration.Signed
		mesh string
		says string
		is   error
	}{
		{"a stranger's signature", stranger, "m", "signature is not by the key", declaration.ErrSignature},
		{"a changed byte", declaration.Signed(strings.Replace(string(good), "wg0", "wg1", 1)), "m", "signature", declaration.ErrSignature},
		{"no signature", declaration.Signed(`{"format":1}`), "m", "not a signed declaration", declaration.ErrSignature},
		{"empty", nil, "m", "not a signed declaration", declaration.ErrSignature},
		{"another mesh", good, "other", "for db1 of mesh m", nil},
		{"another spelling of the line", declaration.Signed(strings.Replace(string(good), " ", "  ", 1)), "m", "not a signed declaration", declaration.ErrSignature},
		{"another signer's name", renamed(good, stranger), "m", "signature is not by the key", declaration.ErrSignature},
		{"an unknown field", resign(`{"colour":3,"format":1`), "m", "colour: unknown field", strict.ErrUnknownField},
		{"a newer format", resign(`{"format":2`), "m", "format: is 2", strict.ErrUnknownField},
	} {
		_, err := tt.in.Open(s.Verifier(), tt.mesh, "db1")
		r := refusal.Of(err)
		if r == nil || !strings.Contains(err.Error(), tt.says) || r.Do == "" {
			t.Errorf("%s: %v", tt.name, err)
		}
		if tt.is != nil && !errors.Is(err, tt.is) {
			t.Errorf("%s is not %v", tt.name, tt.is)
		}
		if tt.is == strict.ErrUnknownField && !strings.Contains(r.Do, "upgrade the agent") {
			t.Errorf("%s: do %q does not say to upgrade the agent", tt.name, r.Do)
		}
	}
	if _, err := good.Open(s.Verifier(), "m", "db2"); err == nil || !strings.Contains(err.Error(), "for db1") {
		t.Errorf("another node's declaration: %v", err)
	}
}

// renamed gives in the signer that other names.
func renamed(in, other declaration.Signed) declaration.Signed {
	return declaration.Signed(strings.Replace(string(in), strings.Fields(string(in))[1], strings.Fields(string(other))[1], 1))
}

func TestAModuleWithoutAManifestIsNotEncoded(t *testing.T) {
	c := content()
	c.Modules[0].Manifest = nil
	if b, err := declaration.AppendContent(nil, c); err == nil {
		t.Errorf("got %s", b)
	}
}

func TestChecks(t *testing.T) {
	for name, edit := range map[string]func(*declaration.Head, *declaration.Content){
		"no seq":              func(h *declaration.Head, _ *declaration.Content) { h.Seq = 0 },
		"an image of nothing": func(_ *declaration.Head, c *declaration.Content) { c.Modules[0].Images[0].Blobs = nil },
		"an image twice": func(_ *declaration.Head, c *declaration.Content) {
			c.Modules[0].Images = []declaration.Image{image("web"), image("web")}
		},
		"a blob twice": func(_ *declaration.Head, c *declaration.Content) {
			c.Modules[0].Images[0].Blobs[2] = c.Modules[0].Images[0].Blobs[0]
		},
		"an id that is no blob": func(_ *declaration.Head, c *declaration.Content) {
			c.Modules[0].Images[0].ID = strings.Repeat("ff", 32)
		},
		"an architecture in a path": func(_ *declaration.Head, c *declaration.Content) { c.Modules[0].Images[0].Arch = "../x" },
		"an index for a manifest": func(_ *declaration.Head, c *declaration.Content) {
			c.Modules[0].Images[0].Type = "application/vnd.oci.image.index.v1+json"
		},
		"drift":            func(_ *declaration.Head, c *declaration.Content) { c.Drift = "maybe" },
		"no bus":           func(_ *declaration.Head, c *declaration.Content) { c.Bus.Addresses = nil },
		"a module twice":   func(_ *declaration.Head, c *declaration.Content) { c.Modules = append(c.Modules, c.Modules[0]) },
		"a bad digest":     func(_ *declaration.Head, c *declaration.Content) { c.Modules[0].Artifact.Digest = "x" },
		"an empty module":  func(_ *declaration.Head, c *declaration.Content) { c.Modules[0].Build = "" },
		"impossible chunk": func(_ *declaration.Head, c *declaration.Content) { c.Modules[0].Artifact.Chunks = 10 },
	} {
		sig, s := signed(t, edit)
		if _, err := sig.Open(s.Verifier(), "m", "db1"); refusal.Of(err) == nil {
			t.Errorf("%s was taken: %v", name, err)
		}
	}
}

func FuzzOpen(f *testing.F) {
	good, s := signed(f, nil)
	f.Add([]byte(good))
	f.Add([]byte("mesh-declaration/1 a b\n{}"))
	_, body, _ := strings.Cut(string(good), "\n")
	f.Add([]byte(body))
	f.Fuzz(func(t *testing.T, b []byte) {
		// As it comes, and behind a good signature: the decoder must hold either way.
		for _, in := range []declaration.Signed{b, sign(t, s, b)} {
			if d, err := in.Open(s.Verifier(), "m", "db1"); err == nil && (d.Node != "db1" || d.Seq == 0) {
				t.Errorf("took %+v", d)
			}
		}
	})
}

func sign(t *testing.T, s *credential.Signer, b []byte) declaration.Signed {
	out, err := declaration.Sign(s, b)
	if err != nil {
		t.Skip("too large")
	}
	return out
}

func BenchmarkOpen(b *testing.B) {
	sig, s := signed(b, func(_ *declaration.Head, c *declaration.Content) {
		c.Modules[0].Manifest = json.RawMessage(`{"text":"` + strings.Repeat("x", 8000) + `"}`)
	})
	for b.Loop() {
		if _, err := sig.Open(s.Verifier(), "m", "db1"); err != nil {
			b.Fatal(err)
		}
	}
}
