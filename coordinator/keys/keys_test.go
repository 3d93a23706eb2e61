package keys_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mesh/coordinator/keys"
	"mesh/coordinator/records"
	"mesh/shared/clock"
	"mesh/shared/credential"
	"mesh/shared/refusal"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func options() keys.InitOptions {
	return keys.InitOptions{Mesh: "home", Addresses: []string{"192.0.2.1:4222"}, Operator: "anna", Clock: clock.NewFake(start), Rand: rand.Reader}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func refused(t *testing.T, err error, words ...string) {
	t.Helper()
	r := refusal.Of(err)
	if r == nil || r.Do == "" {
		t.Fatalf("got %v, want a refusal that says what to do", err)
	}
	for _, w := range words {
		if !strings.Contains(r.Error(), w) {
			t.Errorf("the refusal %q does not say %q", r.Error(), w)
		}
	}
}

// content is every file of dir with its mode.
func content(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st := must(d.Info())
		all[path] = st.Mode().String()
		if st.Mode().IsRegular() {
			all[path] += " " + string(must(os.ReadFile(path)))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestInitAndLoad(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state", "coordinator")
	made := must(keys.Init(t.Context(), dir, options()))
	for path, what := range content(t, dir) {
		if mode := strings.Fields(what)[0]; mode != "-rw-------" && mode != "drwx------" {
			t.Errorf("%s has mode %s", path, mode)
		}
	}
	k := must(keys.Load(dir, start, rand.Reader))
	if k.Renewed || k.Coordinator.Mesh != made.MeshID || k.Coordinator.Principal() != "coordinator" {
		t.Errorf("loaded %+v", k.Coordinator)
	}
	store := must(records.Open(t.Context(), filepath.Join(dir, keys.RecordsFile), records.Options{Clock: clock.NewFake(start), Rand: rand.Reader}))
	defer func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}()
	m := must(store.Mesh(t.Context()))
	want := records.Mesh{ID: made.MeshID, Name: "home", Signer: k.Signer.Verifier(), Created: start,
		Bus: credential.Bus{Addresses: []string{"192.0.2.1:4222"}, CA: k.Authority.PEM(), Pin: k.Authority.Pin()}}
	if d := cmp.Diff(want, m); d != "" {
		t.Errorf("the records hold another mesh (-want +got):\n%s", d)
	}
	ops := must(store.Operators(t.Context()))
	if len(ops) != 1 || ops[0].Key != must(made.Operator.Seed.Public()) || ops[0].Role != records.RoleAdmin || ops[0].Name != "anna" {
		t.Errorf("the operators are %+v", ops)
	}
	if f := must(credential.Load(filepath.Join(dir, keys.OperatorFile))); !cmp.Equal(f, made.Operator) || f.Principal() != "operator-anna" {
		t.Errorf("the operator's file holds %+v", f)
	}
}

// TestInitAgain changes nothing and gives the same answer.
func TestInitAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "coordinator")
	first := must(keys.Init(t.Context(), dir, options()))
	before := content(t, dir)
	again := must(keys.Init(t.Context(), dir+"/", options()))
	if first.Already || !again.Already || again.MeshID != first.MeshID || !cmp.Equal(again.Operator, first.Operator) {
		t.Errorf("first %+v, again %+v", first, again)
	}
	if d := cmp.Diff(before, content(t, dir)); d != "" {
		t.Errorf("files changed:\n%s", d)
	}
	o := options()
	o.Mesh = "work"
	_, err := keys.Init(t.Context(), dir, o)
	refused(t, err, "the mesh home", "is in it")
	if err := os.Remove(filepath.Join(dir, keys.OperatorFile)); err != nil {
		t.Fatal(err)
	}
	if gone := must(keys.Init(t.Context(), dir, options())); !gone.Already || gone.Operator.Seed != "" {
		t.Errorf("with the operator's file taken away: %+v", gone)
	}
}

func TestInitFolder(t *testing.T) {
	t.Run("empty, as systemd makes it", func(t *testing.T) {
		dir := t.TempDir()
		must(keys.Init(t.Context(), dir, options()))
		must(keys.Load(dir, start, rand.Reader))
	})
	t.Run("with other things in it", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "letter"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		before := content(t, dir)
		_, err := keys.Init(t.Context(), dir, options())
		refused(t, err, "letter")
		if d := cmp.Diff(before, content(t, dir)); d != "" {
			t.Errorf("files changed:\n%s", d)
		}
	})
	t.Run("after a killed one", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "coordinator")
		if err := os.MkdirAll(dir+".new/bus", 0o700); err != nil {
			t.Fatal(err)
		}
		must(keys.Init(t.Context(), dir, options()))
		if _, err := os.Stat(dir + ".new"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the folder beside is there: %v", err)
		}
	})
}

// TestInitAllOrNothing lets the randomness end after each number of bytes: whatever was reached, nothing
// is left, and the next Init works.
func TestInitAllOrNothing(t *testing.T) {
	parent := t.TempDir()
	dir := filepath.Join(parent, "coordinator")
	failed := 0
	for n := int64(0); ; n += 16 {
		o := options()
		o.Rand = io.LimitReader(rand.Reader, n)
		_, err := keys.Init(t.Context(), dir, o)
		if err == nil {
			break
		}
		failed++
		if left := must(os.ReadDir(parent)); len(left) != 0 {
			t.Fatalf("after %d bytes there is %v (%v)", n, left, err)
		}
		if n > 1<<16 {
			t.Fatalf("no Init came through: %v", err)
		}
	}
	if failed < 3 {
		t.Errorf("only %d places failed", failed)
	}
	must(keys.Load(dir, start, rand.Reader))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := keys.Init(ctx, filepath.Join(parent, "other"), options()); err == nil {
		t.Error("cancelled, it made a mesh")
	}
	if left := must(os.ReadDir(parent)); len(left) != 1 {
		t.Errorf("cancelled, it left %v", left)
	}
}

func TestInitOptions(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*keys.InitOptions)
		say    string
	}{
		{"mesh", func(o *keys.InitOptions) { o.Mesh = "My Mesh" }, "My Mesh"},
		{"operator", func(o *keys.InitOptions) { o.Operator = "" }, "operator"},
		{"no address", func(o *keys.InitOptions) { o.Addresses = nil }, "without an address"},
		{"address", func(o *keys.InitOptions) { o.Addresses = []string{"192.0.2.1"} }, "host:port"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "coordinator")
			o := options()
			tt.change(&o)
			_, err := keys.Init(t.Context(), dir, o)
			refused(t, err, tt.say)
			if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the folder is there: %v", err)
			}
		})
	}
}

// TestCertificateIsRenewed near its end, when it is missing, does not fit its key, or is another authority's.
func TestCertificateIsRenewed(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	must(keys.Init(t.Context(), dir, options()))
	must(keys.Init(t.Context(), other, options()))
	write := func(from, name string) error {
		return os.WriteFile(filepath.Join(dir, name), must(os.ReadFile(filepath.Join(from, name))), 0o600)
	}
	const year = 365 * 24 * time.Hour
	for _, tt := range []struct {
		name    string
		at      time.Time
		setup   func() error
		renewed bool
	}{
		{"at the start", start, nil, false},
		{"before its time came", start.Add(-year), nil, false},
		{"four years on", start.Add(4 * year), nil, false},
		{"near its end", start.Add(5*year - 30*24*time.Hour), nil, true},
		{"just renewed", start.Add(5*year - 30*24*time.Hour), nil, false},
		{"after its end", start.Add(11 * year), nil, true},
		{"missing", start.Add(11 * year), func() error { return os.Remove(filepath.Join(dir, "bus.pem")) }, true},
		{"a key that does not fit", start.Add(11 * year), func() error { return write(other, "bus.key") }, true},
		{"another authority's", start.Add(year), func() error { return errors.Join(write(other, "bus.key"), write(other, "bus.pem")) }, true},
		{"damaged", start.Add(year), func() error { return os.WriteFile(filepath.Join(dir, "bus.pem"), []byte("x"), 0o600) }, true},
	} {
		if tt.setup != nil {
			if err := tt.setup(); err != nil {
				t.Fatal(err)
			}
		}
		k := must(keys.Load(dir, tt.at, rand.Reader))
		if k.Renewed != tt.renewed {
			t.Errorf("%s: renewed is %v", tt.name, k.Renewed)
		}
		leaf := must(x509.ParseCertificate(k.Certificate.Certificate[0]))
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM([]byte(k.Authority.PEM()))
		at := tt.at
		if at.Before(leaf.NotBefore) {
			at = leaf.NotBefore
		}
		if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: credential.ServerName, CurrentTime: at}); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}

func TestLoadIsRefused(t *testing.T) {
	dir := t.TempDir()
	_, err := keys.Load(dir, start, rand.Reader)
	refused(t, err, "does not hold them", "genesis")
	must(keys.Init(t.Context(), dir, options()))
	for _, tt := range []struct{ name, file, text, say string }{
		{"a signer that is none", "signer.key", "x", "signing key"},
		{"a CA that is none", "ca.pem", "x", "not PEM"},
		{"another kind of credential", "coordinator.json", string(must(os.ReadFile(filepath.Join(dir, keys.OperatorFile)))), "of the kind operator"},
		{"half a credential", "coordinator.json", "{", "credential file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(dir, tt.file)
			before := must(os.ReadFile(path))
			defer func() { _ = os.WriteFile(path, before, 0o600) }()
			if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := keys.Load(dir, start, rand.Reader)
			if err == nil || !strings.Contains(err.Error(), tt.say) {
				t.Errorf("got %v, want %q", err, tt.say)
			}
			if bytes.Contains([]byte(err.Error()), before) {
				t.Error("the error tells the secret")
			}
		})
	}
	if err := os.Chmod(filepath.Join(dir, "signer.key"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err = keys.Load(dir, start, rand.Reader)
	refused(t, err, "others may read it", "chmod 600")
}
