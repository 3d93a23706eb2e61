package state_test

import (
	"errors"
	"testing"

	"mesh/agent/state"
)

// APP-7: what is known of good builds is in the file with the next write, with a declaration at the latest, and
// with going back at once.
func TestGoodBuilds(t *testing.T) {
	ctx := t.Context()
	b := newBed(t)
	s := b.open()
	holds := func(what string, known, body string) {
		t.Helper()
		all, err := s.Goods(ctx)
		got, ok, err2 := s.GoodBody(ctx, "notes")
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		if string(all["notes"]) != known || string(got) != body || ok != (body != "") {
			t.Errorf("%s: known %q, body %q", what, all["notes"], got)
		}
	}
	reopen := func() {
		t.Helper()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = b.open()
	}
	holds("at first", "", "")
	s.Stage(state.Batch{Good: []state.Good{{Module: "notes", Known: []byte("one"), Body: []byte("body one")}, {Module: "other", Known: []byte("x"), Body: []byte("y")}}})
	holds("staged", "one", "body one")
	if _, err := s.Accept(ctx, 1, "d1", []byte("signed"), nil); err != nil {
		t.Fatal(err)
	}
	// Another process that looks now sees what Accept committed.
	other, err := state.OpenReadOnly(ctx, b.path, b.clock)
	if err != nil {
		t.Fatal(err)
	}
	if all, err := other.Goods(ctx); err != nil || string(all["notes"]) != "one" || len(all) != 2 {
		t.Errorf("beside it: %q, %v", all, err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	reopen()
	holds("opened anew", "one", "body one")
	// What failed is added, the body stays; with it goes what was done before, and what is about to be.
	s.Stage(state.Batch{Put: []state.Row{{ID: "file:/a", Module: "notes", Kind: "file", Phase: state.Done, Sum: "1"}}})
	if err := s.RollBack(ctx, []state.Good{{Module: "notes", Known: []byte("one, two failed")}}, []state.Row{{ID: "file:/b", Module: "notes", Kind: "file", Phase: state.Intended}}); err != nil {
		t.Fatal(err)
	}
	holds("gone back", "one, two failed", "body one")
	reopen()
	holds("gone back, opened anew", "one, two failed", "body one")
	rows, err := s.Ledger(ctx)
	if err != nil || len(rows) != 2 || rows[0].Phase != state.Done || rows[1].Phase != state.Intended {
		t.Errorf("the ledger is %+v, %v", rows, err)
	}
	// Staged in two steps, and forgotten.
	s.Stage(state.Batch{Good: []state.Good{{Module: "notes", Known: []byte("three"), Body: []byte("body three")}}})
	s.Stage(state.Batch{Good: []state.Good{{Module: "notes", Known: []byte("three, four failed")}}})
	holds("staged twice", "three, four failed", "body three")
	reopen()
	holds("staged twice, opened anew", "three, four failed", "body three")
	s.Stage(state.Batch{Good: []state.Good{{Module: "notes"}}})
	holds("forgotten", "", "")
	reopen()
	holds("forgotten, opened anew", "", "")
	if all, err := s.Goods(ctx); err != nil || len(all) != 1 {
		t.Errorf("of the others there is %q, %v", all, err)
	}
}
