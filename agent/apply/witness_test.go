package apply_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"mesh/agent/apply"
	"mesh/shared/declaration"
)

// APP-19: a change by hand is said with who may have made it, once, and only then is anybody asked.
func TestWhoChangedIt(t *testing.T) {
	b, err := makeBed(t.TempDir())
	must(t, err)
	asked := 0
	b.witness = func(time.Time) []string { asked++; return []string{"anna is logged in", "bert used sudo"} }
	b.open(t)
	applied(t, b.accept(t, 1, module("notes", files(file("/etc/a", "x"), file("/etc/b", "x")))))
	b.clock.Advance(time.Minute)
	applied(t, b.pass(t, apply.Reconcile))
	if asked > 0 {
		t.Errorf("asked %d times with nothing changed", asked)
	}
	must(t, os.WriteFile(b.root("/etc/a"), []byte("by hand"), 0o644))
	must(t, os.WriteFile(b.root("/etc/b"), []byte("by hand"), 0o644))
	r := b.pass(t, apply.Reconcile)
	if len(r.Drift) != 2 || r.Drift[0].Who != "anna is logged in; bert used sudo" || r.Drift[1].Who != r.Drift[0].Who || asked != 1 {
		t.Errorf("asked %d times, the drift is %+v", asked, r.Drift)
	}
	b.restart(t)
	kept, err := b.store.Drift(t.Context(), 1)
	if must(t, err); len(kept) != 1 || kept[0].Who != r.Drift[0].Who {
		t.Errorf("after a restart it is %+v", kept)
	}
}

// APP-19: what is to be kept is said, not repaired, and repaired once the time is over, by the machine itself.
func TestKeptUntil(t *testing.T) {
	b := newBed(t)
	m := module("notes", files(file("/etc/a", "x"), file("/etc/b", "x")))
	applied(t, b.accept(t, 1, m))
	must(t, os.WriteFile(b.root("/etc/a"), []byte("by hand"), 0o644))
	must(t, os.WriteFile(b.root("/etc/b"), []byte("by hand"), 0o644))
	c := b.content(t, m)
	c.Keeps = []declaration.Keep{{Thing: "file:/etc/a", Until: b.clock.Now().Add(10 * time.Minute).UnixMilli()}}
	r := b.acceptContent(t, 2, c)
	if b.read(t, "/etc/a") != "by hand" || b.read(t, "/etc/b") != "x" || len(r.Left) != 1 || !strings.Contains(r.Left[0].What, "kept until 20") {
		t.Errorf("a is %q, b is %q, left %+v", b.read(t, "/etc/a"), b.read(t, "/etc/b"), r.Left)
	}
	b.restart(t)
	b.clock.Advance(9 * time.Minute)
	if b.pass(t, apply.Boot); b.read(t, "/etc/a") != "by hand" {
		t.Error("it was repaired too early")
	}
	b.clock.Advance(2 * time.Minute)
	if r := applied(t, b.pass(t, apply.Reconcile)); b.read(t, "/etc/a") != "x" || len(r.Left) > 0 {
		t.Errorf("after its time a is %q, left %+v", b.read(t, "/etc/a"), r.Left)
	}
}
