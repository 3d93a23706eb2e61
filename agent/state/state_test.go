package state_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mesh/agent/state"
	"mesh/shared/clock"
	"mesh/shared/refusal"
	"mesh/shared/report"

	_ "modernc.org/sqlite"
)

type bed struct {
	t     *testing.T
	path  string
	clock *clock.Fake
}

func newBed(t *testing.T) *bed {
	return &bed{t, filepath.Join(t.TempDir(), "agent", "state.db"), clock.NewFake(time.UnixMilli(1_700_000_000_000))}
}

func (b *bed) open() *state.Store {
	b.t.Helper()
	s, err := state.Open(context.Background(), state.Config{Path: b.path, Clock: b.clock, Rand: rand.Reader, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { _ = s.Close() })
	return s
}

func ok[T any](v T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestAcceptKeepsSeqGrowing(t *testing.T) {
	ctx := t.Context()
	s := newBed(t).open()
	if _, held, err := s.Current(ctx); held || err != nil {
		t.Fatalf("a fresh store holds %v, %v", held, err)
	}
	accept := func(seq uint64, digest string) (bool, error) {
		return s.Accept(ctx, seq, digest, []byte("text "+digest), []state.Row{{ID: "file:/" + digest, Module: "notes", Kind: "file", Phase: state.Intended, Made: true}})
	}
	for _, tt := range []struct {
		name    string
		seq     uint64
		digest  string
		news    bool
		refused string
	}{
		{"the first", 5, "a", true, ""},
		{"the same again", 5, "a", false, ""},
		{"another text under the newest seq", 5, "b", false, "another text"},
		{"an older one", 4, "c", false, "this node holds 5"},
		{"the next", 9, "d", true, ""},
		{"the first again", 5, "a", false, "this node holds 9"},
	} {
		news, err := accept(tt.seq, tt.digest)
		if news != tt.news || (err != nil) != (tt.refused != "") {
			t.Errorf("%s: news %v, err %v", tt.name, news, err)
		}
		if tt.refused != "" && (refusal.Of(err) == nil || !strings.Contains(err.Error(), tt.refused)) {
			t.Errorf("%s: %v, want a refusal with %q", tt.name, err, tt.refused)
		}
	}
	cur, held, err := s.Current(ctx)
	if err != nil || !held || cur.Seq != 9 || string(cur.Signed) != "text d" {
		t.Errorf("Current = %+v, %v, %v", cur, held, err)
	}
	ids := []string{}
	for _, r := range ok(s.Ledger(ctx))(t) {
		ids = append(ids, r.ID)
	}
	if !slices.Equal(ids, []string{"file:/a", "file:/d"}) {
		t.Errorf("the ledger holds %v: a refused declaration left its intents", ids)
	}
	for seq := uint64(10); seq < 30; seq++ {
		if _, err := accept(seq, fmt.Sprint(seq)); err != nil {
			t.Fatal(err)
		}
	}
	if all := ok(s.Accepted(ctx))(t); len(all) != state.Kept || all[0].Seq != 29 {
		t.Errorf("%d declarations kept, newest %d", len(all), all[0].Seq)
	}
}

func TestSurvivesReopen(t *testing.T) {
	ctx := t.Context()
	b := newBed(t)
	s := b.open()
	if _, err := s.Accept(ctx, 3, "d", []byte("text"), nil); err != nil {
		t.Fatal(err)
	}
	row := state.Row{ID: "unit:x.service", Module: "notes", Kind: "unit", Phase: state.Done, Made: true, Keep: true, Sum: "s", Want: "w", Trigger: "t", WantTrigger: "v"}
	if err := s.Done(ctx, state.Batch{Put: []state.Row{row}}); err != nil {
		t.Fatal(err)
	}
	must(t, s.Done(ctx, state.Batch{Modules: []report.Module{{Name: "notes", Build: "b", State: report.Running}}}))
	out := ok(s.Put(ctx, state.Out{Subject: "mesh.control.n1.report", Kind: state.KindReport, Body: []byte("r")}))(t)
	number := ok(s.NextReportNumber(ctx))(t)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	ro, err := state.OpenReadOnly(ctx, b.path, b.clock)
	if err != nil {
		t.Fatal(err)
	}
	if seq, digest := ro.Newest(); seq != 3 || digest != "d" || len(ro.Modules()) != 1 || ro.Depth() != 1 {
		t.Errorf("read-only: %d %s %v %d", seq, digest, ro.Modules(), ro.Depth())
	}
	if err := ro.AddProblem(ctx, "x"); err == nil {
		t.Error("a read-only store took a write")
	}
	if err := ro.Close(); err != nil {
		t.Fatal(err)
	}

	s = b.open()
	if len(s.Notes()) != 0 {
		t.Errorf("notes of a store in order: %q", s.Notes())
	}
	got := ok(s.Ledger(ctx))(t)
	row.At = b.clock.Now().UTC()
	if len(got) != 1 || got[0] != row {
		t.Errorf("ledger %+v, want %+v", got, row)
	}
	next := ok(s.Next(ctx, 10))(t)
	if len(next) != 1 || next[0].ID != out.ID || len(out.ID) != 32 || string(next[0].Body) != "r" {
		t.Errorf("outbox %+v, want %+v", next, out)
	}
	if n := ok(s.NextReportNumber(ctx))(t); n <= number {
		t.Errorf("report number %d after %d", n, number)
	}
}

func TestReportNumbersAreReservedInBlocks(t *testing.T) {
	s := newBed(t).open()
	var last uint64
	for range 2500 {
		n := ok(s.NextReportNumber(t.Context()))(t)
		if n <= last {
			t.Fatalf("%d after %d", n, last)
		}
		last = n
	}
}

func TestOutboxIsBoundedAndOrdered(t *testing.T) {
	ctx := t.Context()
	s := newBed(t).open()
	event := ok(s.Put(ctx, state.Out{Subject: "e", Kind: "event", Body: []byte("first")}))(t)
	for i := range state.MaxOutRows + 50 {
		ok(s.Put(ctx, state.Out{Subject: "r", Kind: state.KindReport, Body: fmt.Append(nil, i)}))(t)
	}
	all := ok(s.Next(ctx, 5000))(t)
	if len(all) != state.MaxOutRows || s.Depth() != state.MaxOutRows {
		t.Fatalf("%d messages, depth %d", len(all), s.Depth())
	}
	if all[0].ID != event.ID {
		t.Error("an event left before superseded reports")
	}
	if !slices.IsSortedFunc(all, func(a, b state.Out) int { return int(a.N - b.N) }) {
		t.Error("out of order")
	}
	if string(all[len(all)-1].Body) != fmt.Sprint(state.MaxOutRows+49) {
		t.Error("the newest report is gone")
	}
	if n := ok(s.Dropped(ctx))(t); n != 51 {
		t.Errorf("%d dropped, want 51", n)
	}
	if err := s.Acked(ctx, all[0], all[1], state.Out{N: all[2].N, ID: "unknown"}); err != nil {
		t.Fatal(err)
	}
	if s.Depth() != state.MaxOutRows-2 {
		t.Errorf("depth %d after two acknowledgements", s.Depth())
	}
	big := bytes.Repeat([]byte("x"), 3<<20)
	for range 4 {
		ok(s.Put(ctx, state.Out{Subject: "e", Kind: "event", Body: big}))(t)
	}
	var size int
	for _, o := range ok(s.Next(ctx, 5000))(t) {
		size += len(o.Body)
	}
	if size > state.MaxOutBytes {
		t.Errorf("%d bytes wait, the bound is %d", size, state.MaxOutBytes)
	}
}

func TestModulesKeepSince(t *testing.T) {
	ctx := t.Context()
	b := newBed(t)
	s := b.open()
	set := func(st report.State, detail string) {
		t.Helper()
		must(t, s.Done(ctx, state.Batch{Modules: []report.Module{{Name: "notes", Build: "b", State: st, Detail: detail}}}))
	}
	first := b.clock.Now().UnixMilli()
	set(report.Running, "")
	b.clock.Advance(time.Minute)
	before := walSize(t, b.path)
	set(report.Running, "")
	if walSize(t, b.path) != before {
		t.Error("the same state was written")
	}
	if got := s.Modules()[0].Since; got != first {
		t.Errorf("since %d, want %d", got, first)
	}
	if set(report.Broken, "exit 1"); s.Modules()[0].Since != b.clock.Now().UnixMilli() {
		t.Errorf("a new state: %+v", s.Modules())
	}
	if must(t, s.Done(ctx, state.Batch{})); len(s.Modules()) != 1 {
		t.Error("a batch that says nothing of modules forgot one")
	}
	if must(t, s.Done(ctx, state.Batch{Modules: []report.Module{}})); len(s.Modules()) != 0 {
		t.Error("a module that is gone stayed")
	}
}

func TestRingsAreBounded(t *testing.T) {
	ctx := t.Context()
	s := newBed(t).open()
	for i := range 250 {
		for _, err := range []error{
			s.AddProblem(ctx, fmt.Sprint("p", i)), s.AddProblem(ctx, fmt.Sprint("p", i)),
			s.Done(ctx, state.Batch{Past: &state.Past{Seq: uint64(i), Outcome: report.Applied, Took: time.Second},
				Drift: []report.Drift{{Module: "m", Thing: fmt.Sprint(i), At: int64(i)}}}),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	p, h, d := ok(s.Problems(ctx, 1000))(t), ok(s.History(ctx, 1000))(t), ok(s.Drift(ctx, 1000))(t)
	near := func(n, bound int) bool { return n >= bound && n < bound+10 }
	if !near(len(p), state.MaxProblems) || !near(len(h), state.MaxHistory) || !near(len(d), state.MaxDrift) {
		t.Errorf("%d problems, %d applies, %d drifts", len(p), len(h), len(d))
	}
	if p[0].Text != "p249" || p[1].Text != "p248" || h[0].Seq != 249 || h[0].Took != time.Second || d[0].Thing != "249" {
		t.Errorf("newest: %v %v %v", p[0], h[0], d[0])
	}
}

func TestDamage(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func(t *testing.T, path string)
		note  string
	}{
		{"the file is gone", func(t *testing.T, p string) { must(t, os.Remove(p)) }, "was lost"},
		{"the file is empty", func(t *testing.T, p string) { must(t, os.Truncate(p, 0)) }, "was lost"},
		{"the header is random", func(t *testing.T, p string) { scribble(t, p, 0, 100) }, "was damaged"},
		{"the file is cut off", func(t *testing.T, p string) { must(t, os.Truncate(p, 9000)) }, "was damaged"},
		{"pages are random", func(t *testing.T, p string) { scribble(t, p, 4096, 20000) }, "was damaged"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx := t.Context()
			b := newBed(t)
			s := b.open()
			if _, err := s.Accept(ctx, 3, "d", bytes.Repeat([]byte("x"), 40000), nil); err != nil {
				t.Fatal(err)
			}
			must(t, s.Close())
			tt.spoil(t, b.path)
			s = b.open()
			if len(s.Notes()) != 1 || !strings.Contains(s.Notes()[0], tt.note) {
				t.Fatalf("notes %q, want one with %q", s.Notes(), tt.note)
			}
			if p := ok(s.Problems(ctx, 1))(t); len(p) != 1 || !strings.Contains(p[0].Text, tt.note) {
				t.Errorf("problems %v", p)
			}
			if _, err := s.Accept(ctx, 1, "e", []byte("y"), nil); err != nil {
				t.Errorf("the fresh store takes nothing: %v", err)
			}
			aside, _ := filepath.Glob(b.path + ".damaged-*")
			if (len(aside) > 0) != (tt.note == "was damaged") {
				t.Errorf("set aside: %v", aside)
			}
		})
	}
}

func TestNewerStoreIsRefused(t *testing.T) {
	b := newBed(t)
	must(t, b.open().Close())
	db, err := sql.Open("sqlite", b.path)
	must(t, err)
	_, err = db.Exec(`PRAGMA user_version = 99`)
	must(t, errors.Join(err, db.Close()))
	_, err = state.Open(t.Context(), state.Config{Path: b.path, Clock: b.clock, Log: slog.New(slog.DiscardHandler)})
	if refusal.Of(err) == nil {
		t.Errorf("err %v, want a refusal", err)
	}
}

func TestRottenLedgerRowAllowsNoRemoval(t *testing.T) {
	ctx := t.Context()
	b := newBed(t)
	s := b.open()
	must(t, s.Done(ctx, state.Batch{Put: []state.Row{{ID: "file:/etc/notes", Module: "notes", Kind: "file", Phase: state.Done, Made: true}}}))
	must(t, s.Close())
	db, err := sql.Open("sqlite", b.path)
	must(t, err)
	_, err = db.Exec(`UPDATE ledger SET id = 'file:/etc/fstab'`)
	must(t, errors.Join(err, db.Close()))
	if rows := ok(b.open().Ledger(ctx))(t); rows[0].Made {
		t.Errorf("%+v may be removed", rows[0])
	}
}

func TestMeta(t *testing.T) {
	ctx := t.Context()
	s := newBed(t).open()
	if _, has, err := s.Meta(ctx, "k"); has || err != nil {
		t.Fatal(has, err)
	}
	must(t, s.SetMeta(ctx, "k", []byte("v")))
	must(t, s.SetMetaSynced(ctx, "k", []byte("w")))
	if v, has, err := s.Meta(ctx, "k"); string(v) != "w" || !has || err != nil {
		t.Fatal(string(v), has, err)
	}
	must(t, s.SetMeta(ctx, "k", nil))
	if _, has, _ := s.Meta(ctx, "k"); has {
		t.Error("forgotten value is there")
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func scribble(t *testing.T, path string, at int64, n int) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteAt(bytes.Repeat([]byte{0xa5, 0x5a, 0xff}, n/3), at)
	must(t, errors.Join(err, f.Close()))
}

func walSize(t *testing.T, path string) int64 {
	t.Helper()
	st, err := os.Stat(path + "-wal")
	must(t, err)
	return st.Size()
}
