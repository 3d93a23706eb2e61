package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"mesh/shared/controller"
	"mesh/shared/report"
)

// TestTakeTables: what is compared before a take, and how one ended (APP-9, APP-10, APP-18).
func TestTakeTables(t *testing.T) {
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	var b bytes.Buffer
	show := func(title string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", title, err)
		}
		fmt.Fprintf(&b, "---- %s\n", title)
	}
	held := []report.Held{
		{Module: "shop", Thing: "container:shop", Needs: report.NeedsDowngrade, Facts: []report.HeldFact{{What: "image", Have: "nginx:1.27 (f00)", Want: "nginx@abc (d11)"},
			{What: "image made", Have: "2026-01-01", Want: "2025-01-01"}, {What: "networks", Have: "podman (with db)"}}, Notes: []string{"it stays on the machine, stopped, as shop.before-mesh"}},
		{Module: "shop", Thing: "file:/etc/shop.conf", Needs: report.NeedsReplace, Facts: []report.HeldFact{{What: "mode", Have: "0640", Want: "0644"}}, Difference: []string{"- name = \x1b[31mold", "+ name = new"}},
		{Module: "shop", Thing: "unit:shop.service", Facts: []report.HeldFact{{What: "state", Have: "active", Want: "active"}}, Cannot: "it is larger than what is kept"},
	}
	r := controller.HeldAnswer{Node: "db1", Module: "shop", Assigned: true, ReportedAt: now.Add(-time.Minute), Held: held, Other: 1}
	show("take, a preview", writeHeld(&b, r, now, true))
	show("take, nothing is held", writeHeld(&b, controller.HeldAnswer{Node: "db1", Module: "shop", Assigned: true}, now, true))
	at := now.Add(-time.Second)
	r.Held, r.Word = nil, &controller.TakeWord{ID: 7, At: at, By: "operator-anna", Why: "mesh runs it", Things: []string{"container:shop"}}
	r.Outcome = &report.Take{Module: "shop", ID: 7, State: report.Taken, At: at.UnixMilli(), Things: []string{"container:shop"}}
	show("take, done", writeHeld(&b, r, now, false))
	r.Outcome = &report.Take{Module: "shop", ID: 7, State: report.TakeNot, At: at.UnixMilli(), Why: "refused: the take of shop: container:shop is another\ndo: compare again"}
	show("take, refused", writeHeld(&b, r, now, false))
	r.Assigned, r.Word.Back, r.Outcome = false, true, &report.Take{Module: "shop", ID: 8, State: report.GivenBack, At: at.UnixMilli()}
	show("give-back, done", writeHeld(&b, r, now, false))
	show("node show", heldOn(&b, &report.Report{Node: "db1", Held: held, MoreHeld: 2}))
	golden(t, "take.txt", b.Bytes())
}

// TestTakeTakesAReason: what reaches a machine is written down with why (CAL-2).
func TestTakeTakesAReason(t *testing.T) {
	if _, said, code := try(t, &app{}, "take", "db1", "shop", "--yes"); code != exitNotWell || !strings.Contains(said, "do: say why") {
		t.Errorf("a take without a reason: exit %d, %q", code, said)
	}
}
