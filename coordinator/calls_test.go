package coordinator_test

import (
	"strings"
	"testing"

	"mesh/coordinator/client"
	"mesh/shared/controller"
	"mesh/shared/subject"
)

// CAL-0, CAL-1: each call is kept under who asked it, as the bus says; refused ones too; and is read by its id after
// a restart.
func TestCallsAreKept(t *testing.T) {
	m := startMesh(t)
	c := m.client(t, m.operator)
	ask[controller.StatusAnswer](t, c, controller.Status, controller.Nothing{})
	if _, err := client.Ask[controller.AssignAnswer](t.Context(), c, controller.Assign, controller.AssignAsk{Node: "n1", Module: "none"}); err == nil {
		t.Fatal("a module that is not there was assigned")
	}
	ask[controller.InviteAnswer](t, c, controller.NodeInvite, controller.InviteAsk{Node: "n1"})
	m.stop()
	m.serve(t)
	c = m.client(t, m.operator)
	all := ask[controller.CallsAnswer](t, c, controller.Calls, controller.CallsAsk{Caller: "operator-ada"})
	states := map[subject.Verb]controller.Call{}
	for _, x := range all.Calls {
		states[x.Verb] = ask[controller.Call](t, c, controller.CallShow, controller.CallShowAsk{ID: x.ID})
	}
	if x := states[controller.Status]; x.State != controller.CallAnswered || !strings.Contains(string(x.Answer), `"counts"`) {
		t.Errorf("status: %+v", x)
	}
	if x := states[controller.Assign]; x.State != controller.CallRefused || !strings.Contains(string(x.Answer), "not registered") || !strings.Contains(string(x.Args), `"none"`) {
		t.Errorf("assign: %+v", x)
	}
	if x := states[controller.NodeInvite]; x.State != controller.CallAnswered || len(x.Answer) > 0 || x.Bytes != 0 {
		t.Errorf("the line of an invitation is kept: %+v", x)
	}
	// A viewer sees that an admin asked, and not what the answer was.
	f, err := c.Issue(t.Context(), "eve", controller.Viewer, "")
	if err != nil {
		t.Fatal(err)
	}
	eve := m.client(t, f)
	if _, err := client.Ask[controller.Call](t.Context(), eve, controller.CallShow, controller.CallShowAsk{ID: states[controller.Assign].ID}); err == nil || !strings.Contains(err.Error(), "it takes operator") {
		t.Errorf("a viewer reads an operator's answer: %v", err)
	}
}
