package state_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"mesh/agent/state"
)

// TestMoments: what changed is kept with its time, in order, and survives; what is as it was writes nothing
// (NOD-15).
func TestMoments(t *testing.T) {
	ctx, b := t.Context(), newBed(t)
	s := b.open()
	remember := func(whole bool, parts ...string) {
		t.Helper()
		m := map[string][]byte{}
		for _, p := range parts {
			name, body, _ := strings.Cut(p, "=")
			m[name] = []byte(body)
		}
		if err := s.Remember(ctx, b.clock.Now(), m, whole); err != nil {
			t.Fatal(err)
		}
	}
	said := func() (out []string) {
		t.Helper()
		all, _, err := s.Moments(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range all {
			out = append(out, fmt.Sprintf("%d %s=%s", m.At.UnixMilli()%1_000_000, m.Part, m.Body))
		}
		return out
	}
	remember(true, "filter=1", "module/a=x")
	b.clock.Advance(time.Second)
	before := walSize(t, b.path)
	if want, got := "0 filter=1, 0 module/a=x", strings.Join(said(), ", "); got != want {
		t.Fatalf("remembered %s, not %s", got, want)
	}
	after := walSize(t, b.path)
	if after == before {
		t.Error("nothing was written")
	}
	remember(false, "filter=1")
	remember(true, "filter=1", "module/a=x")
	if err := s.Flush(ctx); err != nil || walSize(t, b.path) != after {
		t.Errorf("what is as it was was written, %v", err)
	}
	remember(false, "module/a=")
	if since := s.Since(); len(since) != 1 || since["filter"] != 1_700_000_000_000 {
		t.Errorf("since %v", since)
	}
	if err := s.Close(); err != nil { // orderly: what is staged is written
		t.Fatal(err)
	}
	s = b.open()
	b.clock.Advance(-time.Hour) // a clock set back breaks no order (NOD-14)
	remember(true, "filter=2")
	if want, got := "0 filter=1, 0 module/a=x, 1000 module/a=, 401000 filter=2", strings.Join(said(), ", "); got != want {
		t.Errorf("remembered %s, not %s", got, want)
	}
	reader := ok(state.OpenReadOnly(ctx, b.path, b.clock))(t)
	defer reader.Close()
	if all, _, err := reader.Moments(ctx); len(all) != 4 || err != nil {
		t.Errorf("a reader sees %d, %v", len(all), err)
	}
}

// TestMomentsAreBounded: in rows and bytes, and whatever is forgotten, from the first on that is told of
// everything is known.
func TestMomentsAreBounded(t *testing.T) {
	ctx, b := t.Context(), newBed(t)
	s := b.open()
	if err := s.Remember(ctx, b.clock.Now(), map[string][]byte{"old": []byte("stays")}, false); err != nil {
		t.Fatal(err)
	}
	large := strings.Repeat("x", 2000)
	for i := range 2 * state.MaxMoments {
		b.clock.Advance(4 * time.Minute)
		body := fmt.Sprint(i)
		if i > state.MaxMoments+1000 {
			body += large
		}
		if err := s.Remember(ctx, b.clock.Now(), map[string][]byte{fmt.Sprint("module/", i%10): []byte(body)}, false); err != nil {
			t.Fatal(err)
		}
		if i%50 == 0 {
			if err := s.Flush(ctx); err != nil {
				t.Fatal(err)
			}
		}
		if i == state.MaxMoments+900 {
			all, from, err := s.Moments(ctx)
			if err != nil || len(all) > state.MaxMoments+200 || len(all) < state.MaxMoments-200 || all[0].Part != "old" || from < 800 {
				t.Fatalf("%d rows from %d, the first of %s, %v", len(all), from, all[0].Part, err)
			}
		}
	}
	all, from, err := s.Moments(ctx)
	if err != nil {
		t.Fatal(err)
	}
	bytes, known := 0, map[string]bool{}
	for _, m := range all {
		bytes += len(m.Body)
		if m.N <= from {
			known[m.Part] = true
		}
	}
	if bytes > state.MaxMomentBytes+200*len(large) || len(known) != 11 || all[0].Part != "old" {
		t.Errorf("%d bytes in %d rows, and %d parts known at the first", bytes, len(all), len(known))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestAPartThatChangesAllTheTime: it pushes nothing else out, and its last word is kept in the end.
func TestAPartThatChangesAllTheTime(t *testing.T) {
	ctx, b := t.Context(), newBed(t)
	s := b.open()
	for i := range 600 { // ten minutes
		b.clock.Advance(time.Second)
		if err := s.Remember(ctx, b.clock.Now(), map[string][]byte{"module/loops": []byte(fmt.Sprint(i))}, false); err != nil {
			t.Fatal(err)
		}
	}
	all := ok2(s.Moments(ctx))(t)
	if len(all) > 24 {
		t.Errorf("%d moments of ten minutes", len(all))
	}
	b.clock.Advance(3 * time.Minute)
	all = ok2(s.Moments(ctx))(t)
	if last := string(all[len(all)-1].Body); last != "599" {
		t.Errorf("the last word is %s", last)
	}
	n := len(all)
	if all = ok2(s.Moments(ctx))(t); len(all) != n {
		t.Error("it was written twice")
	}
}

func ok2[T any](v T, _ int64, err error) func(t *testing.T) T { return ok(v, err) }
