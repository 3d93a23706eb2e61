package verbs

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"mesh/coordinator/calls"
	"mesh/coordinator/hear"
	"mesh/coordinator/records"
	"mesh/shared/clock"
	"mesh/shared/controller"
	"mesh/shared/credential"
	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/subject"
	"mesh/shared/verb"
)

func TestEveryVerbHasASchemaThatItsMessagesMeet(t *testing.T) {
	s := &Server{}
	handlers := s.handlers() // panics when a handler's types are not the protocol's
	for _, v := range controller.Table() {
		if handlers[v.Name] == nil {
			t.Errorf("%s has no handler", v.Name)
		}
		tool, err := Tool(v)
		if err != nil {
			t.Fatal(err)
		}
		for kind, x := range map[string]struct {
			schema json.RawMessage
			value  any
		}{"argument": {tool.Schema, v.Ask}, "answer": {tool.Answer, v.Answer}} {
			doc, err := jsonschema.UnmarshalJSON(strings.NewReader(string(x.schema)))
			if err != nil {
				t.Fatal(err)
			}
			c := jsonschema.NewCompiler()
			if err := c.AddResource("mem:///x.json", doc); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Compile("mem:///x.json"); err != nil {
				t.Errorf("the schema of the %s of %s is none: %v", kind, v.Name, err)
			}
		}
	}
	tool, err := Tool(mustFind(t, controller.OperatorIssue))
	if err != nil || !strings.Contains(string(tool.Schema), `"enum":["viewer","operator","admin"]`) || !strings.Contains(string(tool.Schema), `"required":["name","role","key"]`) {
		t.Errorf("the schema of operator-issue is %s, %v", tool.Schema, err)
	}
}

func mustFind(t *testing.T, name subject.Verb) controller.Verb {
	t.Helper()
	v, ok := controller.Find(name)
	if !ok {
		t.Fatalf("no verb %s", name)
	}
	return v
}

// server is a Server over records with an admin, an operator and a viewer, and no bus.
func server(t *testing.T) (*Server, map[records.Role]string) {
	t.Helper()
	store, err := records.Open(t.Context(), filepath.Join(t.TempDir(), "records.db"), records.Options{Clock: clock.Real(), Rand: rand.Reader})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	ca, err := credential.NewAuthority(rand.Reader, "m", clock.Real().Now())
	if err != nil {
		t.Fatal(err)
	}
	signer, err := credential.NewSigner(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	keys := map[records.Role]string{}
	for i, role := range records.Roles() {
		seed, err := credential.NewUser(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if keys[role], err = seed.Public(); err != nil {
			t.Fatal(err)
		}
		o := records.Operator{Name: string(role), Key: keys[role], Role: role}
		by := records.By{Who: "test"}
		if i == 0 {
			err = store.CreateMesh(t.Context(), by, records.Mesh{ID: "m", Name: "m", Signer: signer.Verifier(),
				Bus: credential.Bus{Addresses: []string{"192.0.2.1:4222"}, CA: ca.PEM(), Pin: ca.Pin()}}, o)
		} else {
			err = store.AddOperator(t.Context(), by, o)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	kept, err := calls.New(t.Context(), calls.Config{Records: store, Clock: clock.Real(), Rand: rand.Reader, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return &Server{turn: make(chan struct{}, 1), cfg: Config{Records: store, Calls: kept, Clock: clock.Real(), Users: noUsers{}}}, keys
}

type noUsers struct{}

func (noUsers) Kick()                     {}
func (noUsers) Now(context.Context) error { return nil }

// TestRoles: besides the bus, each handler holds the caller's role against the table (CAL-0).
func TestRoles(t *testing.T) {
	s, keys := server(t)
	for _, v := range controller.Table() {
		for role, key := range keys {
			_, err := s.authorize(t.Context(), key, v)
			if may := RoleOf(role).Covers(v.Least); may != (err == nil) {
				t.Errorf("%s asks %s: %v", role, v.Name, err)
			}
		}
		for what, key := range map[string]string{"nobody": "", "a stranger": "UAAA"} {
			if _, err := s.authorize(t.Context(), key, v); refusal.Of(err) == nil {
				t.Errorf("%s asks %s: %v", what, v.Name, err)
			}
		}
	}
	h := s.handlers()[controller.Operators]
	got, err := h(t.Context(), verb.Caller{Key: keys[records.RoleRead]}, nil)
	if err != nil || len(got.(controller.OperatorsAnswer).Operators) != 3 {
		t.Errorf("operators = %+v, %v", got, err)
	}
	viewer := s.handlers()[controller.OperatorRevoke]
	if _, err := viewer(t.Context(), verb.Caller{Key: keys[records.RoleRead]}, []byte(`{"name":"x"}`)); refusal.Of(err) == nil || !strings.Contains(err.Error(), "it takes admin") {
		t.Errorf("a viewer past the bus: %v", err)
	}
	if err := s.cfg.Records.RevokeOperator(t.Context(), records.By{Who: "test"}, string(records.RoleOperate)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.authorize(t.Context(), keys[records.RoleOperate], mustFind(t, controller.Status)); refusal.Of(err) == nil {
		t.Errorf("somebody revoked a moment ago asks: %v", err)
	}
}

func TestJudge(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	long := now.Add(-time.Hour)
	heard := func(ago time.Duration, o report.Outcome, seq uint64) records.Reported {
		return records.Reported{Report: report.Report{Number: 1}, Heard: now.Add(-ago), Account: records.Account{Seq: seq, Outcome: o}}
	}
	with := func(r records.Reported, change func(*records.Reported)) records.Reported { change(&r); return r }
	sent := records.Declared{Seq: 4, Sent: 4}
	for _, tt := range []struct {
		name     string
		k        known
		listened time.Time
		state    controller.NodeState
		says     string
	}{
		{"in order", known{declared: sent, reported: heard(time.Second, report.Applied, 4)}, long, controller.NodeWell, ""},
		{"never heard", known{}, long, controller.NodeUnknown, "not reported"},
		{"silent", known{declared: sent, reported: heard(5*time.Minute, report.Applied, 4)}, long, controller.NodeSilent, "5m0s"},
		{"silent for the coordinator that just started", known{declared: sent, reported: heard(5*time.Minute, report.Applied, 4)}, now.Add(-time.Second), controller.NodeUnknown, "just begun"},
		{"alive by its heartbeat", known{declared: sent, reported: heard(5*time.Minute, report.Applied, 4), beats: true, beat: hear.Beat{Seen: now}}, long, controller.NodeWell, ""},
		{"silent since before the clock was put back", known{declared: sent, reported: heard(-time.Hour, report.Applied, 4)}, long, controller.NodeSilent, "1h0m0s"},
		{"alive after the clock was put back", known{declared: sent, reported: heard(-time.Hour, report.Applied, 4), beats: true, beat: hear.Beat{Seen: now}}, long, controller.NodeWell, ""},
		{"a laptop", known{node: records.Node{AsleepOK: true}, declared: sent, reported: heard(5*time.Hour, report.Applied, 4)}, long, controller.NodeAsleep, ""},
		{"said good-bye", known{declared: sent, reported: heard(5*time.Hour, report.Applied, 4), beats: true, beat: hear.Beat{Seen: now.Add(-4 * time.Hour), Leaving: "shutdown"}}, long, controller.NodeAsleep, "shutdown"},
		{"was stopped there", known{declared: sent, reported: heard(5*time.Hour, report.Applied, 4), beats: true, beat: hear.Beat{Seen: now.Add(-4 * time.Hour), Leaving: "stopping"}}, long, controller.NodeSilent, "was stopped"},
		{"refused", known{declared: sent, reported: with(heard(time.Second, report.Refused, 4), func(r *records.Reported) { r.Refused = &refusal.Refusal{What: "a declaration", Why: "unknown field"} })}, long, controller.NodeRefused, "unknown field"},
		{"failed", known{declared: sent, reported: heard(time.Second, report.Failed, 4)}, long, controller.NodeFailed, "declaration 4"},
		{"a module that does not stay up", known{declared: sent, reported: with(heard(time.Second, report.Applied, 4), func(r *records.Reported) {
			r.Report.Modules = []report.Module{{Name: "notes", State: report.Broken, Detail: "exit 1"}}
		})}, long, controller.NodeFailed, "notes: exit 1"},
		{"behind", known{declared: sent, reported: heard(time.Second, report.Applied, 3), behind: "it has not spoken of declaration 4"}, long, controller.NodeBehind, "declaration 4"},
		{"let in a moment ago", known{reported: heard(time.Second, report.None, 0), behind: "nothing was ever pushed to it"}, long, controller.NodeNew, "filters no packets"},
		{"let in, and something assigned", known{modules: 1, reported: heard(time.Second, report.None, 0), behind: "nothing was ever pushed to it"}, long, controller.NodeBehind, "nothing was ever"},
		{"let in, and silent", known{reported: heard(time.Hour, report.None, 0)}, long, controller.NodeSilent, "1h0m0s"},
		{"a clock that is off", known{declared: sent, reported: heard(time.Second, report.Applied, 4), beats: true, beat: hear.Beat{Seen: now, Offset: 10 * time.Minute}}, long, controller.NodeWell, "clock is 10m0s off"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n := judge(tt.k, tt.listened, now)
			if n.State != tt.state || !strings.Contains(n.Why, tt.says) {
				t.Errorf("judge = %s %q, want %s that says %q", n.State, n.Why, tt.state, tt.says)
			}
			if all, _ := problems([]controller.Node{n}); (len(all) == 0) != (tt.state == controller.NodeWell && tt.says == "" || tt.state == controller.NodeAsleep || tt.state == controller.NodeNew) {
				t.Errorf("the problems are %+v", all)
			}
		})
	}
}

func TestAnOlderAgentIsNamed(t *testing.T) {
	all, newest := problems([]controller.Node{
		{Name: "a", State: controller.NodeWell, Agent: "0.9.0"}, {Name: "b", State: controller.NodeWell, Agent: "0.10.0"}, {Name: "c", State: controller.NodeWell},
	})
	if newest != "0.10.0" || len(all) != 1 || all[0].Node != "a" || !strings.Contains(all[0].What, "0.10.0") {
		t.Errorf("newest %s, problems %+v", newest, all)
	}
	for _, tt := range []struct {
		a, b string
		want bool
	}{{"0.9.0", "0.10.0", true}, {"0.10.0", "0.9.0", false}, {"1.0.0-rc1", "1.0.0", true}, {"abc", "abd", true}, {"abc", "0.1.0", false}} {
		if older(tt.a, tt.b) != tt.want {
			t.Errorf("older(%s, %s) = %v", tt.a, tt.b, !tt.want)
		}
	}
}

func TestParseSet(t *testing.T) {
	set, err := parseSet(map[string]string{"drift": "report", "asleep-ok": "yes", "tunnel": "wg0", "inside": "lan0,lan1", "admin": "22/tcp from anywhere; 2222/tcp from 192.0.2.0/24"})
	if err != nil || *set.Drift != "report" || !*set.AsleepOK || *set.Tunnel != "wg0" || len(*set.Inside) != 2 || len(*set.Admin) != 2 || (*set.Admin)[1].From.String() != "192.0.2.0/24" {
		t.Errorf("parseSet = %+v, %v", set, err)
	}
	if set, err := parseSet(map[string]string{"admin": "none"}); err != nil || len(*set.Admin) != 0 {
		t.Errorf("nobody in so many words: %+v, %v", set, err)
	}
	for key, value := range map[string]string{"admin": "", "asleep-ok": "maybe", "colour": "red"} {
		if _, err := parseSet(map[string]string{key: value}); refusal.Of(err) == nil {
			t.Errorf("%s=%q: %v", key, value, err)
		}
	}
	for _, value := range []string{"22/tcp", "22 from anywhere", "22/tcp from nowhere"} {
		if _, err := openings(value); refusal.Of(err) == nil {
			t.Errorf("admin=%q: %v", value, err)
		}
	}
}
