package state_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"mesh/agent/state"
	"mesh/shared/report"
)

// frame is a page in the log, with its head.
const frame = 4096 + 24

// TestACommitWritesFewPages: each page that a commit touches is written, and on the way of a declaration synced.
// A declaration of 8 KiB takes three, and its ledger one; an outcome one for each of ledger, modules, history
// and outbox.
func TestACommitWritesFewPages(t *testing.T) {
	ctx, b := t.Context(), newBed(t)
	s := b.open()
	row := state.Row{ID: "file:/etc/notes.conf", Module: "notes", Kind: "file", Made: true, Sum: fmt.Sprintf("%064d", 0)}
	for i := range 3 * state.Kept {
		before := walSize(t, b.path)
		text := append(bytes.Repeat([]byte{byte(i)}, 8300), fmt.Sprint(i*37)...)
		row.Phase, row.Want = state.Intended, fmt.Sprintf("%064d", i)
		if _, err := s.Accept(ctx, uint64(i+1), row.Want, text, []state.Row{row}); err != nil {
			t.Fatal(err)
		}
		accepted := walSize(t, b.path)
		row.Phase, row.Sum, row.Want = state.Done, row.Want, ""
		s.Stage(state.Batch{Put: []state.Row{row}, Modules: []report.Module{{Name: "notes", Build: fmt.Sprint(i), State: report.Running}},
			Past: &state.Past{Seq: uint64(i + 1), Outcome: report.Applied}})
		if walSize(t, b.path) != accepted {
			t.Error("what is staged was written")
		}
		o := ok(s.Put(ctx, state.Out{Subject: "s", Kind: state.KindReport, Body: bytes.Repeat([]byte("y"), 1500)}))(t)
		if err := s.Acked(ctx, o); err != nil {
			t.Fatal(err)
		}
		said := walSize(t, b.path)
		if i < 2*state.Kept { // the file still grows
			continue
		}
		if n := (accepted - before) / frame; n > 4 {
			t.Errorf("accepting %d wrote %d pages", i+1, n)
		}
		if n := (said - accepted) / frame; n > 4 {
			t.Errorf("the outcome of %d and its report wrote %d pages", i+1, n)
		}
	}
	all := ok(s.Accepted(ctx))(t)
	if len(all) != state.Kept || all[0].Seq != 3*state.Kept || all[len(all)-1].Seq != 2*state.Kept+1 || len(all[0].Signed) != 8300+len(fmt.Sprint(37*(3*state.Kept-1))) {
		t.Errorf("%d are kept, from %d to %d", len(all), all[len(all)-1].Seq, all[0].Seq)
	}
	// A process that died after the outcome was staged finds it again by looking; one that ended wrote it.
	row.Phase = state.Intended
	s.Stage(state.Batch{Put: []state.Row{row}})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if rows := ok(b.open().Ledger(ctx))(t); len(rows) != 1 || rows[0].Phase != state.Intended {
		t.Errorf("after an orderly end the ledger is %+v", rows)
	}
}

// TestAnOutcomeIsWrittenOnceItLasts: what a ledger calls done survived a power cut if the ledger did. On the way
// of a declaration nothing is made last, and what it is about to change is not called done behind it.
func TestAnOutcomeIsWrittenOnceItLasts(t *testing.T) {
	ctx, b := t.Context(), newBed(t)
	s := b.open()
	lasting, fails := 0, error(nil)
	s.Before(func() error { lasting++; return fails })
	done := state.Row{ID: "file:/etc/a", Module: "m", Kind: "file", Phase: state.Done, Sum: "1"}
	s.Stage(state.Batch{Put: []state.Row{done}})
	ok(s.Offer(ctx, state.Out{Subject: "s", Kind: state.KindReport}))(t)
	intended := done
	intended.Phase, intended.Want = state.Intended, "2"
	if _, err := s.Accept(ctx, 2, "d2", []byte("two"), []state.Row{intended}); err != nil || lasting != 0 {
		t.Fatalf("accepting made %d things last, %v", lasting, err)
	}
	if err := s.Flush(ctx); err != nil || lasting != 0 {
		t.Errorf("with nothing done %d things were made last, %v", lasting, err)
	}
	done.Sum = "2"
	s.Stage(state.Batch{Put: []state.Row{done}})
	fails = errors.New("the disk fails")
	if err := s.Flush(ctx); err == nil || !strings.Contains(err.Error(), "the disk fails") {
		t.Errorf("what does not last was written: %v", err)
	}
	fails = nil
	if err := s.Part(); err != nil || lasting != 2 {
		t.Errorf("%d times, %v", lasting, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if rows := ok(b.open().Ledger(ctx))(t); len(rows) != 1 || rows[0].Phase != state.Done || rows[0].Sum != "2" {
		t.Errorf("the ledger is %+v", rows)
	}
}
