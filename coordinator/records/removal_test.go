package records_test

import (
	"encoding/json"
	"strings"
	"testing"

	"mesh/coordinator/records"
	"mesh/shared/subject"
)

// APP-11: the word to delete data is kept with who and why, names them one by one, and is taken back by assigning
// the module again.
func TestUnassignWithData(t *testing.T) {
	m := newMesh(t)
	m.node("db1", "db2")
	m.module(`{"module":"notes"}`)
	ctx := t.Context()
	m.ok(m.assign("notes", records.AssignSet{}, "db1", "db2"))
	things := []string{"volume:mesh-notes-data", "dir:/srv/notes"}
	for name, err := range map[string]error{
		"without a reason": m.store.UnassignWithData(ctx, records.By{Who: "operator-anna"}, "db1", "notes", things),
		"no data":          m.store.UnassignWithData(ctx, by, "db1", "notes", nil),
		"neither":          m.store.UnassignWithData(ctx, by, "db1", "notes", []string{"file:/etc/passwd"}),
		"the root":         m.store.UnassignWithData(ctx, by, "db1", "notes", []string{"dir:/"}),
		"no such node":     m.store.UnassignWithData(ctx, by, "db9", "notes", things),
	} {
		if err == nil {
			t.Errorf("%s: it was taken", name)
		}
		m.refused(err)
	}
	remove := func(n subject.Node) string {
		t.Helper()
		one, err := m.store.Inputs(ctx, n)
		m.ok(err)
		all, err := m.store.AllInputs(ctx)
		m.ok(err)
		a, b := must(json.Marshal(one.Remove)), ""
		for _, in := range all {
			if in.Node.Name == n {
				b = string(must(json.Marshal(in.Remove)))
			}
		}
		if string(a) != b {
			t.Errorf("%s alone %s, among all %s", n, a, b)
		}
		return b
	}
	if got := remove("db1"); got != "null" {
		t.Errorf("after refusals %s", got)
	}
	m.ok(m.store.UnassignWithData(ctx, by, "db1", "notes", things))
	if got := remove("db1"); got != `{"data":[{"module":"notes","things":["dir:/srv/notes","volume:mesh-notes-data"]}]}` {
		t.Errorf("kept %s", got)
	}
	if left, err := m.store.Assignments(ctx, "db1"); err != nil || len(left) != 0 {
		t.Errorf("it is assigned: %v, %v", left, err)
	}
	if got := remove("db2"); got != "null" {
		t.Errorf("the neighbour: %s", got)
	}
	if log := strings.Join(m.journal(), "\n"); !strings.Contains(log, "delete data of module notes on db1: dir:/srv/notes, volume:mesh-notes-data") {
		t.Errorf("the journal says\n%s", log)
	}
	m.ok(m.store.Prune(ctx, by, "db1", []string{"unit:mesh-old-web.service"}))
	m.ok(m.store.Prune(ctx, by, "db1", []string{"network:mesh-old-net"})) // takes the place of those before
	if got := remove("db1"); !strings.Contains(got, `"strays":["network:mesh-old-net"]`) || !strings.Contains(got, "/srv/notes") {
		t.Errorf("kept %s", got)
	}
	m.refused(m.store.Prune(ctx, by, "db1", []string{"volume:mesh-old-data"}), "no unit, network or container")
	m.ok(m.assign("notes", records.AssignSet{}, "db1"))
	if got := remove("db1"); strings.Contains(got, "/srv/notes") {
		t.Errorf("assigned again, its data are still to go: %s", got)
	}
	m.ok(m.store.Unassign(ctx, by, []subject.Node{"db1"}, "notes"))
	m.ok(m.store.UnassignWithData(ctx, by, "db1", "notes", things)) // of what ended before
	if got := remove("db1"); !strings.Contains(got, "/srv/notes") {
		t.Errorf("kept %s", got)
	}
}
