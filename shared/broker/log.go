package broker

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"mesh/shared/clock"
)

const (
	// logLines is how many warnings of the server are logged in logEvery. Whoever reaches the port can
	// make it warn as often as they like.
	logLines = 20
	logEvery = time.Minute
)

// adapter gives the server's words to slog, a bounded number at a time.
type adapter struct {
	log *slog.Logger
	clk clock.Clock
	// fatal takes the first thing the server calls fatal; to judge it is the caller's.
	fatal chan string // capacity 1: the first is the cause

	mu    sync.Mutex // guards the fields below
	since time.Time
	lines int
	left  int
}

func newAdapter(log *slog.Logger, clk clock.Clock) *adapter {
	return &adapter{log: log, clk: clk, fatal: make(chan string, 1), since: clk.Now()}
}

// Noticef is for what the server does in the course of things.
func (a *adapter) Noticef(f string, v ...any) { a.log.Debug("bus", "says", words{f, v}) }

// Warnf is for what somebody may want to know.
func (a *adapter) Warnf(f string, v ...any) { a.warn(f, v) }

// Errorf is, in the server's use, mostly a client's mistake.
func (a *adapter) Errorf(f string, v ...any) { a.warn(f, v) }

// Fatalf is for what ends the start; the server expects the process to end with it.
func (a *adapter) Fatalf(f string, v ...any) {
	text := fmt.Sprintf(f, v...)
	select {
	case a.fatal <- text:
	default:
	}
	a.log.Error("bus", "says", text)
}

// Debugf is not logged.
func (a *adapter) Debugf(string, ...any) {}

// Tracef is not logged.
func (a *adapter) Tracef(string, ...any) {}

func (a *adapter) warn(f string, v []any) {
	left, ok := a.room()
	if !ok {
		return
	}
	if left > 0 {
		a.log.Warn("bus: warnings left out", "count", left)
	}
	a.log.Warn("bus", "says", fmt.Sprintf(f, v...))
}

// room says whether a line more may be logged, and how many were left out before it.
func (a *adapter) room() (left int, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now := a.clk.Now(); now.Sub(a.since) >= logEvery || now.Before(a.since) {
		left, a.left = a.left, 0
		a.since, a.lines = now, 0
	}
	if a.lines >= logLines {
		a.left++
		return 0, false
	}
	a.lines++
	return left, true
}

// words are put together only when the line is logged.
type words struct {
	f string
	v []any
}

// LogValue is the text.
func (w words) LogValue() slog.Value { return slog.StringValue(fmt.Sprintf(w.f, w.v...)) }
