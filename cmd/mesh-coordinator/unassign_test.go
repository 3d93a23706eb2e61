package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"mesh/shared/engine"
	"mesh/shared/refusal"
)

// TestDataAreNamedBeforeTheyGo: with where they are, how much it is, and what stays and why (APP-11).
func TestDataAreNamedBeforeTheyGo(t *testing.T) {
	var b bytes.Buffer
	if err := writeData(&b, []engine.DataThing{{Thing: "dir:/srv/notes", Path: "/srv/notes", Bytes: 3 << 20, Files: 12},
		{Thing: "volume:mesh-notes-data", Path: "/var/lib/containers/storage/volumes/mesh-notes-data/_data", Bytes: 5, Files: 1, More: true},
		{Thing: "dir:/srv/old", Path: "/srv/old", Stays: "it was there before mesh"}}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"3.0 MiB in 12 files", "more than 5 B in 1 files", "is deleted", "it was there before mesh"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("it lacks %q:\n%s", want, b.String())
		}
	}
}

// TestADeletionIsConfirmed: by the module's name at a terminal, or by --yes, and by nothing else.
func TestADeletionIsConfirmed(t *testing.T) {
	var said bytes.Buffer
	a := &app{err: &said}
	for answer, ok := range map[string]bool{"notes\n": true, " notes ": true, "": false, "y\n": false, "note\n": false} {
		cmd := &cobra.Command{}
		cmd.SetIn(strings.NewReader(answer))
		err := a.confirmed(cmd, "Delete? ", "notes")
		if (err == nil) != ok || err != nil && refusal.Of(err) == nil {
			t.Errorf("%q: %v", answer, err)
		}
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	cmd := &cobra.Command{}
	cmd.SetIn(null)
	if err := a.confirmed(cmd, "Delete? ", "notes"); err == nil || !strings.Contains(err.Error(), "no terminal") {
		t.Errorf("without a terminal: %v", err)
	}
}

// TestDeletingTakesAReason, before anybody is asked.
func TestDeletingTakesAReason(t *testing.T) {
	if _, said, code := try(t, &app{}, "unassign", "db1", "notes", "--delete-data", "--yes"); code != exitNotWell || !strings.Contains(said, "without a reason") {
		t.Errorf("exit %d, %s", code, said)
	}
}
