package state_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"mesh/agent/state"
)

// TestOutboxHandsOutWhatWaits holds the outbox, part of which is in memory only, against a plain list.
func TestOutboxHandsOutWhatWaits(t *testing.T) {
	ctx, b := t.Context(), newBed(t)
	s := b.open()
	r := rand.New(rand.NewPCG(1, 2))
	var want []state.Out
	for i := range 600 {
		switch k := r.IntN(20); {
		case k < 9:
			kind := []string{state.KindReport, state.KindReport, "event"}[r.IntN(3)]
			put := s.Put
			if r.IntN(2) == 0 {
				put = s.Offer
			}
			o := ok(put(ctx, state.Out{Subject: "s", Kind: kind, Body: fmt.Append(nil, i)}))(t)
			want = append(want, o)
		case k < 18 && len(want) > 0:
			n := min(1+r.IntN(3), len(want))
			if err := s.Acked(ctx, append([]state.Out{{N: 1, ID: "unknown"}}, want[:n]...)...); err != nil {
				t.Fatal(err)
			}
			want = slices.Delete(want, 0, n)
		case k == 18:
			if err := s.Flush(ctx); err != nil {
				t.Fatal(err)
			}
		case k == 19:
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = b.open()
		}
		got := ok(s.Next(ctx, 1000))(t)
		if !slices.EqualFunc(got, want, func(a, b state.Out) bool { return a.ID == b.ID }) || s.Depth() != len(want) {
			t.Fatalf("step %d: %d wait (%d by depth), want %d", i, len(got), s.Depth(), len(want))
		}
	}
}

// TestWhatIsOfferedIsWrittenOnlyWhereItHasToWait: the way of a report whose bus is there costs no write.
func TestWhatIsOfferedIsWrittenOnlyWhereItHasToWait(t *testing.T) {
	ctx, b := t.Context(), newBed(t)
	s := b.open()
	stage := func(name string) {
		s.Stage(state.Batch{Put: []state.Row{{ID: "file:/" + name, Module: "m", Kind: "file", Phase: state.Done}}})
	}
	inFile := func() (waiting, rows int) { // what a start after a kill sees
		t.Helper()
		killed, err := state.OpenReadOnly(ctx, b.path, b.clock)
		if err != nil {
			t.Fatal(err)
		}
		waiting, rows = len(ok(killed.Next(ctx, 9))(t)), len(ok(killed.Ledger(ctx))(t))
		if err := killed.Close(); err != nil {
			t.Fatal(err)
		}
		return waiting, rows
	}
	before := walSize(t, b.path)
	stage("a")
	o := ok(s.Offer(ctx, state.Out{Subject: "s", Kind: state.KindReport, Body: []byte("a")}))(t)
	if all := ok(s.Next(ctx, 9))(t); len(all) != 1 || all[0].ID != o.ID || s.Depth() != 1 {
		t.Errorf("%+v wait, %d by depth", all, s.Depth())
	}
	if err := s.Acked(ctx, o); err != nil || s.Depth() != 0 {
		t.Errorf("depth %d, %v", s.Depth(), err)
	}
	if n := walSize(t, b.path); n != before {
		t.Errorf("the log grew from %d to %d", before, n)
	}
	stage("b")
	ok(s.Offer(ctx, state.Out{Subject: "s", Kind: state.KindReport, Body: []byte("b")}))(t)
	if err := s.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	if waiting, rows := inFile(); waiting != 1 || rows != 2 {
		t.Errorf("once flushed %d messages and %d rows are in the file", waiting, rows)
	}
	ok(s.Offer(ctx, state.Out{Subject: "s", Kind: state.KindReport, Body: []byte("c")}))(t)
	if waiting, _ := inFile(); waiting != 2 || s.Depth() != 2 {
		t.Errorf("behind another %d are in the file, %d wait", waiting, s.Depth())
	}
}

func TestAnAcknowledgedReportIsSentAtMostOnceMore(t *testing.T) {
	ctx, b := t.Context(), newBed(t)
	s := b.open()
	before := walSize(t, b.path)
	first := ok(s.Put(ctx, state.Out{Subject: "s", Kind: state.KindReport, Body: []byte("a")}))(t)
	put := walSize(t, b.path)
	if err := s.Acked(ctx, first); err != nil || s.Depth() != 0 {
		t.Fatalf("depth %d, %v", s.Depth(), err)
	}
	if put == before || walSize(t, b.path) != put {
		t.Errorf("the log grew from %d to %d by the report and to %d by its acknowledgement, which should wait", before, put, walSize(t, b.path))
	}
	second := ok(s.Put(ctx, state.Out{Subject: "s", Kind: state.KindReport, Body: []byte("b")}))(t)
	// Another look at the file is what a start after a kill sees.
	killed, err := state.OpenReadOnly(ctx, b.path, b.clock)
	if err != nil {
		t.Fatal(err)
	}
	if all := ok(killed.Next(ctx, 9))(t); len(all) != 1 || all[0].ID != second.ID {
		t.Errorf("after a kill %+v would be sent, want the second only", all)
	}
	if err := killed.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Acked(ctx, second); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s = b.open(); s.Depth() != 0 {
		t.Errorf("%d wait after an orderly end", s.Depth())
	}
}
