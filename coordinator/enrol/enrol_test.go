package enrol

import (
	"bytes"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"mesh/shared/clock"
	words "mesh/shared/enrol"
)

// TestSparing: a flood of refusals is a few lines, and says how many it was.
func TestSparing(t *testing.T) {
	var out bytes.Buffer
	clk := clock.NewFake(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	log := newSparing(slog.New(slog.NewTextHandler(&out, nil)), clk)
	for range 5000 {
		log.With("a", 1).Info("verb", "err", "no")
	}
	if n := strings.Count(out.String(), "msg=verb"); n != spareMost {
		t.Errorf("%d lines, want %d", n, spareMost)
	}
	out.Reset()
	clk.Advance(spareWindow)
	log.Info("verb", "err", "no")
	if !strings.Contains(out.String(), "left_out_before=4980") {
		t.Errorf("a minute later it says %q", out.String())
	}
	out.Reset()
	log.Info("verb", "err", "no")
	if strings.Contains(out.String(), "left_out") {
		t.Errorf("then it says %q", out.String())
	}
}

func TestClock(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	d := New(Config{Clock: clock.NewFake(now)})
	for _, tt := range []struct {
		name string
		at   int64
		says string // "": it is taken
	}{
		{"right", now.UnixMilli(), ""},
		{"5 min ahead", now.Add(5 * time.Minute).UnixMilli(), ""},
		{"5 min and a second ahead", now.Add(5*time.Minute + time.Second).UnixMilli(), "5m1s ahead of"},
		{"10 min behind", now.Add(-10 * time.Minute).UnixMilli(), "10m0s behind"},
		{"not said", 0, "behind"},
		{"before all time", math.MinInt64, "behind"},
		{"after all time", math.MaxInt64, "ahead of"},
	} {
		err := d.clock(words.Ask{Node: "db1", At: tt.at})
		if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
