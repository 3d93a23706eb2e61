package journal

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"mesh/shared/clock"
	"mesh/shared/engine"
	"mesh/shared/refusal"
	"mesh/shared/waitfor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const soon = 10 * time.Second

// bed is a Reader over a stand-in of journalctl, a script that notes its pid and arguments.
type bed struct {
	*Reader
	t   *testing.T
	dir string
	clk *clock.Fake
	end func()
}

func newBed(t *testing.T, script string) *bed {
	t.Helper()
	dir := t.TempDir()
	b := &bed{t: t, dir: dir, clk: clock.NewFake(clock.Real().Now())}
	b.Reader = New(Config{Command: []string{"/bin/sh", "-c", "echo $$ >> " + dir + "/pids; echo \"$@\" > " + dir + "/args\n" + script, "journalctl"}, Clock: b.clk, Rand: rand.Reader, Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	b.end = func() {
		cancel()
		if err := waitfor.Value(t, "the end of the reads", soon, ended); err != nil {
			t.Error(err)
		}
	}
	return b
}

func (b *bed) file(name string) string {
	b.t.Helper()
	out, err := os.ReadFile(filepath.Join(b.dir, name))
	if err != nil {
		b.t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// alive reports whether any of the stand-ins that were started still runs.
func (b *bed) alive() bool {
	for _, pid := range strings.Fields(b.file("pids")) {
		n, err := strconv.Atoi(pid)
		if err != nil {
			b.t.Fatal(err)
		}
		if syscall.Kill(n, 0) == nil {
			return true
		}
	}
	return false
}

// within asks on a clock that the test moves meanwhile: what waits for time gets it.
func within[T any](b *bed, fn func() (T, error)) (T, error) {
	b.t.Helper()
	type result struct {
		v   T
		err error
	}
	got := make(chan result, 1)
	go func() { v, err := fn(); got <- result{v, err} }()
	var r result
	waitfor.True(b.t, "an answer", soon, func() (bool, any) {
		select {
		case r = <-got:
			return true, nil
		default:
			b.clk.Advance(linger)
			return false, nil
		}
	})
	return r.v, r.err
}

const line = `printf '{"__CURSOR":"s=1;i=%d","__REALTIME_TIMESTAMP":"1700000000123456","PRIORITY":"4","_SYSTEMD_UNIT":"mesh-notes-web.service","MESSAGE":"line %d"}\n' $i $i`

func TestAReadGivesEveryLineOnce(t *testing.T) {
	b := newBed(t, `i=0; while [ $i -lt 1234 ]; do i=$((i+1)); `+line+`; done`)
	defer b.end()
	got, err := within(b, func() (engine.LogsAnswer, error) {
		return b.Begin(t.Context(), Ask{Units: []string{"mesh-notes-web.service", "mesh-notes-worker.service"}, LogsAsk: engine.LogsAsk{SinceMS: 1_700_000_000_005}})
	})
	if err != nil {
		t.Fatal(err)
	}
	var lines []engine.LogLine
	for batch := 1; ; batch++ {
		if len(got.Lines) > engine.BatchLines {
			t.Errorf("a batch of %d lines", len(got.Lines))
		}
		lines = append(lines, got.Lines...)
		again, err := within(b, func() (engine.LogsAnswer, error) {
			return b.Next(t.Context(), engine.LogsNextAsk{Read: got.Read, Batch: got.Next - 1})
		})
		if err != nil || again.Cursor != got.Cursor || len(again.Lines) != len(got.Lines) {
			t.Fatalf("asked twice: %+v, %v", again, err)
		}
		if n := len(got.Lines); n > 0 && got.Cursor != fmt.Sprintf("s=1;i=%d", len(lines)) {
			t.Errorf("the cursor of line %d is %s", len(lines), got.Cursor)
		}
		if got.Done {
			break
		}
		if got, err = within(b, func() (engine.LogsAnswer, error) {
			return b.Next(t.Context(), engine.LogsNextAsk{Read: got.Read, Batch: got.Next, WaitMS: 5000})
		}); err != nil {
			t.Fatal(err)
		}
	}
	if len(lines) != 1234 || got.Why != "" {
		t.Fatalf("%d lines, %q", len(lines), got.Why)
	}
	for i, l := range lines {
		if want := (engine.LogLine{AtMS: 1_700_000_000_123, Unit: "mesh-notes-web.service", Priority: 4, Text: fmt.Sprintf("line %d", i+1)}); l != want {
			t.Fatalf("line %d is %+v", i, l)
		}
	}
	want := "--output=json --output-fields=MESSAGE,_SYSTEMD_UNIT,UNIT,PRIORITY --all --no-pager --quiet --since=@1700000000.005 --unit=mesh-notes-web.service --unit=mesh-notes-worker.service"
	if args := b.file("args"); args != want {
		t.Errorf("journalctl %s", args)
	}
	if _, err := b.Next(t.Context(), engine.LogsNextAsk{Read: got.Read, Batch: 99}); refusal.Of(err) == nil {
		t.Errorf("a batch out of turn: %v", err)
	}
}

// A reader that does not ask holds journalctl up, and nothing gathers here (APP-16).
func TestASlowReaderHoldsJournalctlUp(t *testing.T) {
	b := newBed(t, `i=0; while true; do i=$((i+1)); `+line+`; echo $i > $DIR/count; done`)
	t.Setenv("DIR", b.dir)
	defer b.end()
	got, err := within(b, func() (engine.LogsAnswer, error) {
		return b.Begin(t.Context(), Ask{Units: []string{"x.service"}, LogsAsk: engine.LogsAsk{Follow: true, Lines: 10}})
	})
	if err != nil || len(got.Lines) == 0 {
		t.Fatalf("%d lines, %v", len(got.Lines), err)
	}
	// It stands still once the pipe is full: 64 KiB, and what the scanner and the line hold.
	last, same := "", 0
	waitfor.True(t, "journalctl to be held up", soon, func() (bool, any) {
		now := b.file("count")
		if same++; now != last {
			last, same = now, 0
		}
		return same > 20, now
	})
	if n, _ := strconv.Atoi(last); n > 3000 {
		t.Errorf("journalctl wrote %d lines to a reader that took %d", n, len(got.Lines))
	}
	// A silent one ends within LogsIdle, and its program with it.
	b.clk.Advance(engine.LogsIdle + time.Second)
	waitfor.True(t, "the end of the read", soon, func() (bool, any) { b.clk.Advance(time.Second); return b.Open() == 0 && !b.alive(), b.Open() })
	if _, err := b.Next(t.Context(), engine.LogsNextAsk{Read: got.Read, Batch: got.Next}); !errors.Is(err, ErrEnded) {
		t.Errorf("after its end: %v", err)
	}
}

func TestReadsAreBoundedAndEndWithTheAgent(t *testing.T) {
	b := newBed(t, `exec sleep 1000`)
	begin := func() (engine.LogsAnswer, error) {
		return within(b, func() (engine.LogsAnswer, error) {
			return b.Begin(t.Context(), Ask{Units: []string{"x.service"}, LogsAsk: engine.LogsAsk{Follow: true, Lines: 1}})
		})
	}
	for range most {
		if got, err := begin(); err != nil || got.Done {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	if _, err := begin(); refusal.Of(err) == nil {
		t.Errorf("one too many: %v", err)
	}
	if args := b.file("args"); !strings.Contains(args, "--lines=1 --unit=x.service") {
		t.Errorf("journalctl %s", args)
	}
	b.end()
	if b.alive() {
		t.Error("a journalctl outlived the reads")
	}
	if _, err := b.Begin(t.Context(), Ask{Units: []string{"x.service"}}); refusal.Of(err) == nil {
		t.Errorf("after the end: %v", err)
	}
}

// A follow looks again and again, behind the last line it had: none twice, none lost.
func TestAFollowGoesOnBehindTheLastLine(t *testing.T) {
	// The journal is a file of numbers; the stand-in says those behind the cursor, or the last one.
	b := newBed(t, `after=0; for a in "$@"; do case "$a" in --after-cursor=*) after="${a##*i=}";; --lines=*) after=$(( $(wc -l < $DIR/journal) - ${a#--lines=} ));; esac; done
echo "$after" >> $DIR/asked
tail -n +$((after+1)) $DIR/journal | while read i; do `+line+`; done`)
	t.Setenv("DIR", b.dir)
	defer b.end()
	journal := filepath.Join(b.dir, "journal")
	write := func(from, to int) {
		t.Helper()
		f, err := os.OpenFile(journal, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		for i := from; i <= to; i++ {
			fmt.Fprintln(f, i)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	write(1, 5)
	got, err := within(b, func() (engine.LogsAnswer, error) {
		return b.Begin(t.Context(), Ask{Units: []string{"x.service"}, LogsAsk: engine.LogsAsk{Follow: true, Lines: 2}})
	})
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	wrote := 5
	for len(all) < 60 {
		for _, l := range got.Lines {
			all = append(all, l.Text)
		}
		if wrote < 63 && len(all) >= wrote-3 { // all that was written was had
			write(wrote+1, wrote+2)
			wrote += 2
		}
		if got, err = within(b, func() (engine.LogsAnswer, error) {
			return b.Next(t.Context(), engine.LogsNextAsk{Read: got.Read, Batch: got.Next, WaitMS: 1000})
		}); err != nil || got.Done {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	for i, text := range all {
		if text != fmt.Sprintf("line %d", i+4) {
			t.Fatalf("line %d of the follow is %q: %v", i, text, all)
		}
	}
}

func TestWhatJournalctlComplainsOfIsSaid(t *testing.T) {
	b := newBed(t, `echo "no journal files were found" >&2; exit 1`)
	defer b.end()
	got, err := within(b, func() (engine.LogsAnswer, error) {
		return b.Begin(t.Context(), Ask{Units: []string{"x.service"}, LogsAsk: engine.LogsAsk{After: "s=1;i=2"}})
	})
	if err != nil || !got.Done || !strings.Contains(got.Why, "no journal files were found") {
		t.Errorf("%+v, %v", got, err)
	}
	for _, a := range []engine.LogsAsk{{After: "x --directory=/"}, {Lines: -1}, {Lines: engine.MostLines + 1}} {
		if _, err := b.Begin(t.Context(), Ask{LogsAsk: a}); refusal.Of(err) == nil {
			t.Errorf("%+v: %v", a, err)
		}
	}
}

func TestParse(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       string
		unit       string
		ok         bool
	}{
		{"a unit's own", `{"__CURSOR":"c","MESSAGE":"hello","_SYSTEMD_UNIT":"a.service"}`, "hello", "a.service", true},
		{"systemd's about a unit", `{"__CURSOR":"c","MESSAGE":"Started.","_SYSTEMD_UNIT":"init.scope","UNIT":"a.service"}`, "Started.", "a.service", true},
		{"bytes that are no text", `{"__CURSOR":"c","MESSAGE":[104,105,255,33]}`, "hi\uFFFD!", "", true},
		{"nothing", `{"__CURSOR":"c","MESSAGE":null}`, "", "", true},
		{"a field twice", `{"__CURSOR":"c","MESSAGE":["one","two"]}`, "one", "", true},
		{"no entry", `-- No entries --`, "", "", false},
		{"no cursor", `{"MESSAGE":"x"}`, "", "", false},
	} {
		e, ok := parse([]byte(tt.text), false)
		if ok != tt.ok || e.Text != tt.want || e.Unit != tt.unit {
			t.Errorf("%s: %+v, %v", tt.name, e, ok)
		}
	}
	long := `{"__CURSOR":"s=1","__REALTIME_TIMESTAMP":"1","MESSAGE":"` + strings.Repeat("é", engine.MostText) + `"}` + "\n"
	s := newScanner(strings.NewReader(long + strings.Replace(long, "é", strings.Repeat("x", longest), 1) + `{"__CURSOR":"s=3","MESSAGE":"after"}` + "\n{\"__CUR"))
	var texts []int
	for {
		e, err := s.next()
		if err != nil {
			break
		}
		if e.cursor == "" {
			t.Errorf("no cursor: %+v", e)
		}
		texts = append(texts, len(e.Text))
	}
	if !slices.Equal(texts[:1], []int{engine.MostText}) || len(texts) != 3 || texts[2] != len("after") {
		t.Errorf("lengths %v", texts)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"__CURSOR":"c","MESSAGE":[104,105,255,33],"PRIORITY":"9"}`), false)
	f.Add([]byte(`{"__CURSOR":"c","MESS`), true)
	f.Fuzz(func(t *testing.T, b []byte, cut bool) {
		e, ok := parse(b, cut)
		if ok && (e.Priority < 0 || e.Priority > 7 || len(e.Text) > engine.MostText) {
			t.Errorf("%+v", e)
		}
	})
}
