package main

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mesh/agent"
	"mesh/agent/show"
	"mesh/agent/state"
	"mesh/shared/clock"
	"mesh/shared/report"
)

// lived gives the machine a history: two hours ago hello ran, an hour ago notes came and failed.
func (h host) lived() (began time.Time) {
	h.t.Helper()
	ctx := h.t.Context()
	began = clock.Real().Now().Add(-2 * time.Hour)
	clk := clock.NewFake(began)
	s, err := state.Open(ctx, state.Config{Path: filepath.Join(h.state, agent.StateFile), Clock: clk, Rand: rand.Reader, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		h.t.Fatal(err)
	}
	var last *show.Document
	say := func(edit func(*show.Document)) {
		d := &show.Document{Daemon: show.Daemon{Up: true}, Agent: report.Agent{Version: "0.1.0"}, Profile: &report.Profile{Kernel: "6.1"}}
		edit(d)
		parts, err := show.Parts(last, d, "b")
		if err == nil {
			err = s.Remember(ctx, clk.Now(), parts, last == nil)
		}
		if err != nil {
			h.t.Fatal(err)
		}
		last = d
	}
	accept := func(seq uint64, text string) {
		if _, err := s.Accept(ctx, seq, text, []byte("head\n"+text), nil); err != nil {
			h.t.Fatal(err)
		}
	}
	accept(8, `{"seq":8,"drift":"repair"}`)
	hello := report.Module{Name: "hello", Build: "build-1", State: report.Running, Since: began.UnixMilli()}
	say(func(d *show.Document) {
		d.Declaration = show.Declaration{Seq: 8, Outcome: report.Applied, Accepted: began.UnixMilli()}
		d.Modules = []report.Module{hello}
	})
	clk.Advance(time.Hour)
	accept(9, `{"seq":9,"drift":"report"}`)
	say(func(d *show.Document) {
		d.Declaration = show.Declaration{Seq: 9, Outcome: report.Failed}
		d.Modules = []report.Module{hello, {Name: "notes", Build: "build-2", State: report.Broken, Detail: "it ended", Since: clk.Now().UnixMilli()}}
		d.Filter = &report.Filter{Loaded: true, Rules: []string{"admin: 22/tcp from anywhere"}}
	})
	if err := s.Close(); err != nil {
		h.t.Fatal(err)
	}
	return began
}

// diff runs "mesh-agent diff".
func (h host) diff(args ...string) (out, said string, code int) {
	h.t.Helper()
	var stdout, stderr bytes.Buffer
	code = run(h.t.Context(), append([]string{"diff", "--state-dir", h.state, "--run-dir", h.run}, args...), &stdout, &stderr)
	return stdout.String(), stderr.String(), code
}

// TestTimeMachine: with the daemon down and no bus, the machine says how it was and what changed (NOD-15).
func TestTimeMachine(t *testing.T) {
	h := newHost(t)
	h.store()
	began := h.lived()
	for _, tt := range []struct {
		name string
		args []string
		code int
		has  []string
		not  string
	}{
		{"well then", []string{"--at", "90m"}, 0, []string{"90m ago: well", "0.1.0, running, for 30m", "declaration  8", "none was declared, for 30m", "hello   running  30m"}, "notes"},
		{"not well then", []string{"--at", began.Add(61 * time.Minute).UTC().Format(time.RFC3339)}, 1, []string{"NOT WELL", "notes: failed: it ended", "22/tcp from anywhere"}, ""},
		{"a module then", []string{"notes", "--at", "30m"}, 1, []string{"notes on db1: FAILED", "since        30m ago"}, ""},
		{"a module that was not there yet", []string{"notes", "--at", "90m"}, 1, nil, ""},
		{"the filter then", []string{"firewall", "--at", "30m"}, 0, []string{"for 30m", "admin: 22/tcp"}, ""},
		{"the declaration then", []string{"declaration", "--at", "90m"}, 0, []string{`"seq": 8`}, ""},
		{"as JSON", []string{"--at", "90m", "--json"}, 0, []string{`"well": true`, `"history_from"`}, "notes"},
	} {
		out, said, code := h.show(tt.args...)
		if code != tt.code || tt.not != "" && strings.Contains(out, tt.not) {
			t.Errorf("%s: exit %d\n%s%s", tt.name, code, out, said)
		}
		for _, want := range tt.has {
			if want = strings.Replace(want, "90m ago", "1h ago", 1); !strings.Contains(out, want) {
				t.Errorf("%s lacks %q:\n%s%s", tt.name, want, out, said)
			}
		}
	}
	for _, tt := range []struct {
		args []string
		code int
		said string
	}{
		{[]string{"--at", "3h"}, 2, "its history begins at"},
		{[]string{"--at", "soon"}, 1, "it is not understood"},
		{[]string{"--at", "10m", "--watch"}, 2, "what was does not change"},
		{[]string{"history", "--at", "10m"}, 2, "nothing is kept for a time"},
	} {
		if _, said, code := h.show(tt.args...); code != tt.code || !strings.Contains(said, tt.said) || !strings.Contains(said, "\ndo: ") {
			t.Errorf("%q: exit %d, %s", tt.args, code, said)
		}
	}
	for _, args := range [][]string{{"90m"}, {"90m", "30m"}, {"30m", "90m"}} {
		out, said, code := h.diff(args...)
		for _, want := range []string{"~ drift: repair -> report", "+ module notes state: failed", "+ filter rules: admin: 22/tcp from anywhere", "~ seq: 8 -> 9"} {
			if code != 0 || !strings.Contains(out, want) {
				t.Errorf("%q lacks %q: exit %d\n%s%s", args, want, code, out, said)
			}
		}
	}
	out, said, code := h.diff("90m", "--json")
	var d struct {
		Changes []show.Change
		Between struct{ Drift []any }
	}
	if err := json.Unmarshal([]byte(out), &d); err != nil || code != 0 || len(d.Changes) < 5 || len(d.Between.Drift) != 1 {
		t.Errorf("exit %d, %v\n%s%s", code, err, out, said)
	}
	if out, said, code := h.diff("40m", "30m"); code != 0 || !strings.Contains(out, "nothing is other than it was") {
		t.Errorf("exit %d\n%s%s", code, out, said)
	}
	// What the running daemon says counts as now.
	h.daemon(func(d *show.Document) {
		d.At = clock.Real().Now().UnixMilli()
		d.Modules = []report.Module{{Name: "hello", Build: "build-7", State: report.Running}}
	})
	if out, said, code := h.diff("30m"); code != 0 || !strings.Contains(out, "~ module hello build: build-1 -> build-7") {
		t.Errorf("exit %d\n%s%s", code, out, said)
	}
}
