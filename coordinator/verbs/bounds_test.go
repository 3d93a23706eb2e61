package verbs

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"mesh/coordinator/records"
	"mesh/shared/broker"
	"mesh/shared/controller"
	"mesh/shared/credential"
	"mesh/shared/refusal"
	"mesh/shared/subject"
	"mesh/shared/verb"

	"crypto/rand"
)

// asks runs a verb's handler as the admin, past the bus.
func asks(t *testing.T, s *Server, key string, v subject.Verb, args string) (any, error) {
	t.Helper()
	return s.handlers()[v](t.Context(), verb.Caller{Key: key}, []byte(args))
}

// enrolled is a server whose records have a node.
func enrolled(t *testing.T, name subject.Node) (*Server, string) {
	t.Helper()
	s, keys := server(t)
	user, err := credential.NewUser(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	curve, err := credential.NewCurve(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ask := records.EnrolAsk{MachineID: strings.Repeat("0", 32)}
	if ask.Key, err = user.Public(); err != nil {
		t.Fatal(err)
	}
	if ask.Curve, err = curve.Public(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.cfg.Records.AddNode(t.Context(), records.By{Who: "test"}, name, ask); err != nil {
		t.Fatal(err)
	}
	return s, keys[records.RoleAdmin]
}

// TestSSHIsNotLockedOutInPassing: nobody loses the way in by naming another one (NET-7).
func TestSSHIsNotLockedOutInPassing(t *testing.T) {
	s, admin := enrolled(t, "db1")
	set := func(value, more string) ([]string, error) {
		t.Helper()
		a, err := asks(t, s, admin, controller.NodeSet, fmt.Sprintf(`{"node":"db1","set":{"admin":%q}%s}`, value, more))
		if err != nil {
			return nil, err
		}
		return a.(controller.NodeSetAnswer).Settings.Admin, nil
	}
	for _, value := range []string{"", "2222/tcp from anywhere", "22/udp from anywhere", "23-80/tcp from anywhere"} {
		if now, err := set(value, ""); refusal.Of(err) == nil {
			t.Errorf("admin=%q was taken in passing: %v, %v", value, now, err)
		}
	}
	for _, tt := range []struct{ value, more string }{
		{"20-30/tcp from 192.0.2.0/24", ""},
		{"2222/tcp from anywhere", `,"lock_ssh":true`},
		{"2223/tcp from anywhere", ""}, // it is locked out already
		{"none", ""},
		{"22/tcp from tunnel", ""},
		{"none", ""},
	} {
		if _, err := set(tt.value, tt.more); err != nil {
			t.Errorf("admin=%q%s: %v", tt.value, tt.more, err)
		}
	}
	many := strings.Repeat("22/tcp from anywhere; ", 5000) + "22/tcp from anywhere"
	if _, err := set(many, ""); refusal.Of(err) == nil || len(err.Error()) > 500 {
		t.Errorf("five thousand openings: %.100v", err)
	}
}

// TestArgumentsThatSlipThrough: what JSON lets pass for something else.
func TestArgumentsThatSlipThrough(t *testing.T) {
	s, admin := enrolled(t, "db1")
	for _, tt := range []struct {
		name string
		verb subject.Verb
		args string
		says string
	}{
		{"null for a name", controller.NodeRemove, `{"node":null}`, "node: is missing"},
		{"null for a role", controller.OperatorIssue, `{"name":"x","key":"y","role":null}`, "role: is missing"},
		{"null for all", controller.NodeRemove, `null`, "node: is missing"},
		{"a list for an object", controller.NodeRemove, `["db1"]`, ""},
		{"the field twice", controller.NodeRemove, `{"node":"db2","node":"db1"}`, ""},
		{"another case", controller.NodeRemove, `{"Node":"db1"}`, ""},
		{"more after the end", controller.NodeRemove, `{"node":"db1"} {"node":"db1"}`, ""},
		{"no UTF-8", controller.NodeRemove, "{\"node\":\"db1\",\"why\":\"\xff\"}", "UTF-8"},
		{"a name of SQL", controller.NodeRemove, `{"node":"db1' OR 1=1 --"}`, ""},
		{"a name of letters that look like others", controller.NodeRemove, `{"node":"dЬ1"}`, ""},
		{"41 letters", controller.NodeInvite, `{"node":"` + strings.Repeat("a", 41) + `"}`, ""},
		{"an operator of SQL", controller.OperatorRevoke, `{"name":"'; DROP TABLE operator; --"}`, "there is none of this name"},
		{"a reason without end", controller.NodeRemove, `{"node":"db1","why":"` + strings.Repeat("x", 2000) + `"}`, "why: it has 2000 bytes"},
		{"seconds that come round to an hour", controller.NodeInvite, `{"node":"db2","valid_s":18446747673}`, "between"},
		{"seconds below nothing", controller.NodeInvite, `{"node":"db2","valid_s":-3600}`, "between"},
		{"nobody for all", controller.Plan, `{"nodes":[]}`, "never means all"},
		{"deep nesting", controller.ModuleRegister, `{"manifest":` + strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000) + `}`, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := asks(t, s, admin, tt.verb, tt.args)
			if refusal.Of(err) == nil || !strings.Contains(err.Error(), tt.says) || len(err.Error()) > 2000 {
				t.Errorf("%.500v, expected a refusal that says %q", err, tt.says)
			}
		})
	}
	if all, err := s.cfg.Records.Nodes(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("the nodes are %v, %v", all, err)
	}
}

// TestAnswersFitAMessage: lists that only grow are cut where the bus would take no more.
func TestAnswersFitAMessage(t *testing.T) {
	s, admin := enrolled(t, "db1")
	fits := func(what string, answer any) {
		t.Helper()
		b, err := json.Marshal(answer)
		if err != nil || len(b) > broker.MaxPayload {
			t.Errorf("%s: %d bytes, %v", what, len(b), err)
		}
	}
	by := records.By{Who: "test", Why: strings.Repeat("<", mostWhy)}
	for range 1000 {
		if err := s.cfg.Records.Note(t.Context(), by, "note", strings.Repeat("&", 10_000), "", ""); err != nil {
			t.Fatal(err)
		}
	}
	got, err := asks(t, s, admin, controller.Changes, `{"limit":1000}`)
	if err != nil || len(got.(controller.ChangesAnswer).Changes) < 40 {
		t.Fatalf("changes: %v", err)
	}
	fits("the journal", got)
	all := make([]controller.Module, 100)
	nodes := make([]subject.Node, 10_000)
	for i := range nodes {
		nodes[i] = subject.Node(strings.Repeat("n", 40))
	}
	for i := range all {
		all[i].Nodes = nodes
	}
	shortenNodes(all)
	if len(all[3].Nodes)+all[3].More != len(nodes) || all[3].More == 0 {
		t.Errorf("%d are named, %d more", len(all[3].Nodes), all[3].More)
	}
	fits("the modules", all)
}
