package records_test

import (
	"errors"
	"testing"

	"mesh/coordinator/records"
)

// TestACallThatBeganIsInTheCommitOfItsAct: with it or with the next, and never lost to one that failed (CAL-1).
func TestACallThatBeganIsInTheCommitOfItsAct(t *testing.T) {
	m := newMesh(t)
	ctx := t.Context()
	there := func() bool {
		t.Helper()
		c, err := m.store.Call(ctx, "call-1")
		if err != nil && !errors.Is(err, records.ErrUnknown) {
			t.Fatal(err)
		}
		return err == nil && c.State == records.CallRunning
	}
	m.store.BeginCall(records.Call{ID: "call-1", Caller: "operator-anna", Verb: "operator-issue", Began: m.clk.Now(), State: records.CallRunning})
	m.refused(m.store.RevokeOperator(ctx, by, "anna"), "last admin")
	if there() {
		t.Error("it is there with nothing done")
	}
	m.ok(m.store.AddOperator(ctx, by, records.Operator{Name: "bert", Key: userKey(), Role: records.RoleRead}))
	if !there() {
		t.Error("it is not in the commit of the act")
	}
	m.store.BeginCall(records.Call{ID: "call-2", Caller: "operator-anna", Verb: "push", Began: m.clk.Now(), State: records.CallRunning})
	m.ok(m.store.KeepCalls(ctx, nil))
	if c := must(m.store.Call(ctx, "call-2")); c.State != records.CallRunning {
		t.Errorf("%+v", c)
	}
}
