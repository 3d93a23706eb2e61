package records_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mesh/coordinator/records"
	"mesh/shared/refusal"
	"mesh/shared/subject"
)

// TestADiskThatIsFull: what an act could not keep whole it did not do, and it says so; with room it goes on.
func TestADiskThatIsFull(t *testing.T) {
	m := newMesh(t)
	var names []subject.Node
	for i := range 50 {
		names = append(names, subject.Node(fmt.Sprintf("db%d", i)))
	}
	m.node(names...)
	m.module(`{"module":"notes","settings":{"text":{"default":""}}}`)
	m.ok(m.store.Limit(t.Context(), 3))
	set := records.AssignSet{Set: map[string]string{"text": strings.Repeat("x", 3000)}}
	err := m.assign("notes", set, names...)
	m.refused(records.Told(err), "is full", "nothing was changed", "df -h")
	if all := must(m.store.AssignmentsOf(t.Context(), "notes")); len(all) != 0 {
		t.Errorf("half was done: %d assignments", len(all))
	}
	for _, line := range m.journal() {
		if strings.HasPrefix(line, "assign") {
			t.Errorf("the journal says %q", line)
		}
	}
	m.ok(m.store.QuickCheck(t.Context()))
	m.ok(m.store.Limit(t.Context(), 100_000))
	m.ok(m.assign("notes", set, names...))
}

// TestAFileThatIsNoStore: each is said in words, and none of them is written to.
func TestAFileThatIsNoStore(t *testing.T) {
	m := newMesh(t)
	m.ok(m.store.Close())
	good := must(os.ReadFile(m.path))
	m.open()
	for _, tt := range []struct {
		name   string
		damage func(path string) error
		says   string
	}{
		{"other bytes", func(p string) error { return os.WriteFile(p, []byte(strings.Repeat("no store. ", 1000)), 0o600) }, "damaged"},
		{"a header that was overwritten", func(p string) error { return os.WriteFile(p, append(make([]byte, 100), good[100:]...), 0o600) }, "damaged"},
		{"cut in the middle", func(p string) error { return os.WriteFile(p, good[:len(good)/2], 0o600) }, "damaged"},
		{"a newer program's", func(p string) error { return edit(p, good, "PRAGMA user_version = 99") }, "newer program"},
		{"another program's", func(p string) error { return edit(p, good, "PRAGMA application_id = 7") }, "another program"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "records.db")
			m.ok(tt.damage(path))
			before := must(os.ReadFile(path))
			s, err := records.Open(t.Context(), path, records.Options{Clock: m.clk, Rand: rand.Reader})
			if err == nil {
				err = records.Told(s.QuickCheck(t.Context()))
				m.ok(s.Close())
			}
			r := refusal.Of(err)
			if r == nil || !strings.Contains(r.Error(), tt.says) || r.Do == "" {
				t.Errorf("it is opened with %v, want a refusal that says %q", err, tt.says)
			}
			if after := must(os.ReadFile(path)); string(after) != string(before) {
				t.Error("the file was written to")
			}
		})
	}
}

func edit(path string, text []byte, pragma string) error {
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return err
	}
	db, err := sql.Open("sqlite", "file:"+path)
	if err != nil {
		return err
	}
	defer db.Close()
	_, err = db.ExecContext(context.Background(), pragma)
	return err
}
