package compose_test

import (
	"crypto/rand"
	"database/sql"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mesh/coordinator/compose"
	"mesh/coordinator/records"
	"mesh/shared/clock"
	"mesh/shared/credential"
	"mesh/shared/subject"

	_ "modernc.org/sqlite" // fleets of thousands are put in place without the methods' transactions
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// fleet is a mesh in a folder of the test.
type fleet struct {
	testing.TB
	path   string
	clk    *clock.Fake
	store  *records.Store
	signer *credential.Signer
}

var by = records.By{Who: "operator-anna", Why: "test"}

// newFleet makes a mesh without nodes.
func newFleet(t testing.TB) *fleet {
	f := &fleet{TB: t, path: filepath.Join(t.TempDir(), "records.db"), clk: clock.NewFake(start)}
	ca := must(credential.NewAuthority(rand.Reader, "m1", start))
	f.signer = must(credential.NewSigner(rand.Reader))
	f.open()
	bus := credential.Bus{Addresses: []string{"192.0.2.1:4222"}, CA: ca.PEM(), Pin: ca.Pin()}
	f.ok(f.store.CreateMesh(t.Context(), by, records.Mesh{ID: "m1", Name: "home", Bus: bus, Signer: f.signer.Verifier()},
		records.Operator{Name: "anna", Key: userKey(), Role: records.RoleAdmin}))
	t.Cleanup(func() { f.ok(f.store.Close()) })
	return f
}

func (f *fleet) open() {
	f.Helper()
	f.store = must(records.Open(f.Context(), f.path, records.Options{Clock: f.clk, Rand: rand.Reader}))
}

func (f *fleet) ok(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
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

func (f *fleet) composer() *compose.Composer {
	return compose.New(f.store, compose.Options{Signer: f.signer, Coordinator: coordinatorKey, Clock: f.clk,
		Rights: func(records.Role) ([]subject.Verb, bool) { return []subject.Verb{"status"}, true }})
}

var coordinatorKey = userKey()

// node enrols a machine.
func (f *fleet) node(name subject.Node) {
	f.Helper()
	id := fmt.Sprintf("%032x", hashName(name))
	_, err := f.store.AddNode(f.Context(), by, name, records.EnrolAsk{Key: userKey(), Curve: curveKey(), MachineID: id})
	f.ok(err)
}

func hashName(n subject.Node) (h uint64) {
	for _, r := range n {
		h = h*1099511628211 + uint64(r)
	}
	return h
}

// module registers a manifest given as JSON.
func (f *fleet) module(manifest string) *records.Build {
	f.Helper()
	f.clk.Advance(time.Millisecond)
	b, _, err := f.store.Register(f.Context(), by, records.Registration{Manifest: json.RawMessage(manifest)})
	f.ok(err)
	return b
}

func (f *fleet) assign(m subject.Module, set map[string]string, names ...subject.Node) {
	f.Helper()
	_, err := f.store.Assign(f.Context(), by, names, m, records.AssignSet{Set: set})
	f.ok(err)
}

// bulk puts nodes with modules of kinds in place, as the floor program of the benchmarks does.
func bulk(t testing.TB, nodes, modules, kinds int) *fleet {
	f := newFleet(t)
	content := strings.Repeat("setting = value\n", 11)
	for i := range kinds {
		f.module(string(must(json.Marshal(map[string]any{
			"module":   fmt.Sprintf("module-%03d", i),
			"run":      map[string]any{"files": []map[string]string{{"path": fmt.Sprintf("/etc/fleet/module-%03d.conf", i), "mode": "0644", "content": content}}},
			"settings": map[string]any{"address": map[string]any{}, "port": map[string]any{}, "zone": map[string]any{}},
		}))))
	}
	f.ok(f.store.Close())
	db := must(sql.Open("sqlite", "file:"+f.path))
	defer func() { f.ok(db.Close()) }()
	tx := must(db.Begin())
	node := must(tx.Prepare(`INSERT INTO node VALUES (?, ?, ?, 'X', ?, 0, NULL, 'repair', '', '[]', ?, 0)`))
	report := must(tx.Prepare(`INSERT INTO report VALUES (?, 1, 0, 0, 'none', '', 0, 0, 0, 'debian', 'amd64', '', 1, '', '{}')`))
	place := must(tx.Prepare(`INSERT INTO assignment VALUES (?, ?, ?, '{}')`))
	for n := range nodes {
		must(node.Exec(n+1, fmt.Sprintf("node-%d", n), userKey(), fmt.Sprint(n), `[{"owner":"admin","port":"22/tcp","from":"anywhere"}]`))
		must(report.Exec(n + 1))
		for m := range modules {
			must(place.Exec(n+1, fmt.Sprintf("module-%03d", (n+m*7)%kinds),
				fmt.Sprintf(`{"address":"10.0.%d.%d","port":"%d","zone":"a"}`, n>>8&255, n&255, 8000+m)))
		}
	}
	f.ok(tx.Commit())
	f.open()
	return f
}
