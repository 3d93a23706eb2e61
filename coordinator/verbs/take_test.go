package verbs

import (
	"strings"
	"testing"

	"mesh/coordinator/records"
	"mesh/shared/controller"
	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/subject"
)

// TestMayTake: what a node would refuse is refused before it is told, and what is not held is said so (APP-10).
func TestMayTake(t *testing.T) {
	held := []report.Held{{Module: "shop", Thing: "container:shop", Seen: "c1", Needs: report.NeedsDowngrade}, {Module: "shop", Thing: "file:/etc/shop.conf", Seen: "f1", Needs: report.NeedsReplace}}
	right := func() controller.TakeAsk {
		return controller.TakeAsk{Node: "db1", Module: "shop", Things: map[string]string{"container:shop": "c1", "file:/etc/shop.conf": "f1"}, Downgrade: true, Replace: []string{"/etc/shop.conf"}}
	}
	for name, tt := range map[string]struct {
		held    []report.Held
		outcome *report.Take
		change  func(*controller.TakeAsk)
		says    string
	}{
		"all is allowed":          {held, nil, nil, ""},
		"nothing is held":         {nil, nil, nil, "nothing of it is held there"},
		"it was taken":            {nil, &report.Take{State: report.Taken, Things: []string{"container:shop"}}, nil, "are mesh's already"},
		"an older image":          {held, nil, func(a *controller.TakeAsk) { a.Downgrade = false }, "--downgrade"},
		"a file that differs":     {held, nil, func(a *controller.TakeAsk) { a.Replace = nil }, "--replace /etc/shop.conf"},
		"another file's name":     {held, nil, func(a *controller.TakeAsk) { a.Replace = append(a.Replace, "/etc/passwd") }, "no file /etc/passwd is held there"},
		"another than compared":   {held, nil, func(a *controller.TakeAsk) { a.Things["container:shop"] = "c0" }, "is another than when it was compared"},
		"one that was not there":  {held, nil, func(a *controller.TakeAsk) { delete(a.Things, "container:shop") }, "is held too"},
		"one that cannot be":      {[]report.Held{{Module: "shop", Thing: "container:shop", Seen: "c1", Cannot: "its data go"}}, nil, nil, "its data go"},
		"one is held, it says so": {held[:1], nil, nil, "no file /etc/shop.conf is held there"},
	} {
		ask := right()
		if tt.change != nil {
			tt.change(&ask)
		}
		err := mayTake(controller.HeldAnswer{Held: tt.held, Outcome: tt.outcome}, ask)
		if (err == nil) != (tt.says == "") || err != nil && (refusal.Of(err) == nil || !strings.Contains(err.Error(), tt.says)) {
			t.Errorf("%s: %v, want %q", name, err, tt.says)
		}
	}
}

// TestTakeOfNothing: what is not assigned, not held or not taken is said clearly.
func TestTakeOfNothing(t *testing.T) {
	s, admin := enrolled(t, "db1")
	for v, says := range map[string]string{"held": "shop is not assigned to db1", "take": "shop is not assigned to db1", "give-back": "nothing is taken for it there"} {
		args := `{"node":"db1","module":"shop"}`
		switch v {
		case "take":
			args = `{"node":"db1","module":"shop","things":{"file:/etc/x":"a"},"why":"x"}`
		case "give-back":
			args = `{"node":"db1","module":"shop","why":"x"}`
		}
		if _, err := asks(t, s, admin, subject.Verb(v), args); refusal.Of(err) == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", v, err, says)
		}
	}
	other, keys := server(t)
	if _, err := asks(t, other, keys[records.RoleRead], "take", `{"node":"db1","module":"shop","things":{},"why":"x"}`); refusal.Of(err) == nil || !strings.Contains(err.Error(), "it takes operator") {
		t.Errorf("a viewer: %v", err)
	}
}
