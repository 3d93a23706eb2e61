package enrol

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"mesh/shared/clock"
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
