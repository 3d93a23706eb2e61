package main

import (
	"bytes"
	"crypto/rand"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"mesh/agent"
	"mesh/agent/state"
	"mesh/shared/clock"
)

// try runs one command line and returns what it printed.
func try(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := root(new(places))
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestAWrongWordIsNoCallForHelp(t *testing.T) {
	if out, err := try(t, "shwo"); err == nil || out != "" {
		t.Errorf("%v, %q", err, out)
	}
	if code := run(t.Context(), []string{"shwo"}, io.Discard, io.Discard); code != 2 {
		t.Errorf("exit %d", code)
	}
}

// TestLedger: the installer asks for it, by these words, when a machine leaves (NOD-9).
func TestLedger(t *testing.T) {
	dir := t.TempDir()
	if _, err := try(t, "ledger", "--state-dir", dir); err == nil || !strings.Contains(err.Error(), "in no mesh") {
		t.Errorf("on a machine without mesh: %v", err)
	}
	store, err := state.Open(t.Context(), state.Config{Path: filepath.Join(dir, agent.StateFile), Clock: clock.Real(), Rand: rand.Reader, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	rows := []state.Row{
		{ID: "file:/etc/notes.conf", Module: "notes", Kind: "file", Phase: state.Done},
		{ID: "user:notes", Module: "notes", Kind: "user", Phase: state.Done, Keep: true},
	}
	if err := store.Done(t.Context(), state.Batch{Put: rows}); err != nil {
		t.Fatal(err)
	}
	if err := store.Intend(t.Context(), []state.Row{{ID: "dir:/srv/notes", Module: "notes", Kind: "dir", Phase: state.Intended}}); err != nil {
		t.Fatal(err)
	}
	if out, err := try(t, "ledger", "--state-dir", dir); err != nil || out != "dir:/srv/notes\nfile:/etc/notes.conf\nuser:notes\n" {
		t.Errorf("%q, %v", out, err)
	}
}
