package apply_test

import (
	"os"
	"testing"
	"time"

	"mesh/agent/apply"
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
