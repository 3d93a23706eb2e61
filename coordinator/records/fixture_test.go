package records_test

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mesh/coordinator/records"
	"mesh/shared/clock"
	"mesh/shared/credential"
	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/subject"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

var by = records.By{Who: "operator-anna", Why: "a test"}

// mesh is a store with a mesh in it, in a folder of the test.
type mesh struct {
	testing.TB
	path  string
	own   string
	clk   *clock.Fake
	store *records.Store
	info  records.Mesh
}

func newMesh(t testing.TB) *mesh {
	m := &mesh{TB: t, path: filepath.Join(t.TempDir(), "records.db"), own: userKey(), clk: clock.NewFake(start)}
	m.open()
	t.Cleanup(func() { m.ok(m.store.Close()) })
	ca := must(credential.NewAuthority(rand.Reader, "m1", start))
	bus := credential.Bus{Addresses: []string{"192.0.2.1:4222"}, CA: ca.PEM(), Pin: ca.Pin()}
	signer := must(credential.NewSigner(rand.Reader))
	m.ok(m.store.CreateMesh(t.Context(), by, records.Mesh{ID: "m1", Name: "home", Bus: bus, Signer: signer.Verifier()},
		records.Operator{Name: "anna", Key: userKey(), Role: records.RoleAdmin}))
	m.info = must(m.store.Mesh(t.Context()))
	return m
}

func (m *mesh) open() {
	m.store = must(records.Open(m.Context(), m.path, records.Options{Clock: m.clk, Rand: rand.Reader, Own: m.own}))
}

func (m *mesh) ok(err error) {
	m.Helper()
	if err != nil {
		m.Fatal(err)
	}
}

// refused checks that err is a refusal that says all of words and what to do.
func (m *mesh) refused(err error, words ...string) {
	m.Helper()
	r := refusal.Of(err)
	if r == nil {
		m.Fatalf("got %v, want a refusal", err)
	}
	if r.Do == "" {
		m.Errorf("%v does not say what to do", err)
	}
	for _, w := range words {
		if !strings.Contains(r.Error(), w) {
			m.Errorf("the refusal %q does not say %q", r.Error(), w)
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func userKey() string { return must(must(credential.NewUser(rand.Reader)).Public()) }

func curveKey() string { return must(must(credential.NewCurve(rand.Reader)).Public()) }

var machines int

func ask() records.EnrolAsk {
	machines++
	return records.EnrolAsk{Key: userKey(), Curve: curveKey(), MachineID: fmt.Sprintf("%032x", machines),
		Profile: &report.Profile{OS: "debian", Arch: "amd64"}}
}

func (m *mesh) node(names ...subject.Node) {
	m.Helper()
	for _, n := range names {
		_, err := m.store.AddNode(m.Context(), by, n, ask())
		m.ok(err)
	}
}

func (m *mesh) register(manifest string) (*records.Build, error) {
	m.clk.Advance(time.Millisecond)
	b, _, err := m.store.Register(m.Context(), by, records.Registration{Manifest: json.RawMessage(manifest), Source: "a test"})
	return b, err
}

func (m *mesh) module(manifest string) *records.Build {
	m.Helper()
	b, err := m.register(manifest)
	m.ok(err)
	return b
}

func (m *mesh) assign(module subject.Module, set records.AssignSet, names ...subject.Node) error {
	_, err := m.store.Assign(m.Context(), by, names, module, set)
	return err
}

func (m *mesh) journal() []string {
	m.Helper()
	all, err := m.store.Changes(m.Context(), "", "", 1000)
	m.ok(err)
	lines := make([]string, len(all))
	for i, c := range all {
		lines[i] = c.What + " " + c.Object
	}
	return lines
}
