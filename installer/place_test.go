package installer

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mesh/shared/refusal"
)

func TestPlace(t *testing.T) {
	b := newBed(t)
	before := b.tree()

	fresh := b.Machine.place("/etc/mesh/deep/file", 0o600)
	for _, text := range []string{"one", "two", "two"} {
		changed, err := fresh.put([]byte(text))
		if err != nil || !changed { // a place that was changed once is written again: what it held before is known, what it holds now is not
			t.Fatalf("put %s: %v, %v", text, changed, err)
		}
	}
	if b.read("/etc/mesh/deep/file") != "two" {
		t.Error("not written")
	}
	if st, err := os.Stat(b.at("/etc/mesh")); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("the folder of a secret: %v, %v", st.Mode(), err)
	}
	must(t, fresh.undo())
	must(t, fresh.undo())
	if diff := cmp.Diff(before, b.tree()); diff != "" {
		t.Errorf("undo left %s", diff)
	}

	b.writeAt(b.at("/etc/there"), "old", 0o640)
	before = b.tree()
	same := b.Machine.place("/etc/there", 0o640)
	if changed, err := same.put([]byte("old")); changed || err != nil {
		t.Errorf("equal content: %v, %v", changed, err)
	}
	other := b.Machine.place("/etc/there", 0o600)
	if changed, err := other.put([]byte("old")); !changed || err != nil {
		t.Errorf("another mode: %v, %v", changed, err)
	}
	if _, err := other.put([]byte("new")); err != nil {
		t.Error(err)
	}
	must(t, other.undo())
	if diff := cmp.Diff(before, b.tree()); diff != "" {
		t.Errorf("undo left %s", diff)
	}

	must(t, os.Symlink("/dev/null", b.at("/etc/masked")))
	if _, err := b.Machine.place("/etc/masked", 0o644).put(nil); err == nil || !strings.Contains(err.Error(), "a link to /dev/null") {
		t.Errorf("a link: %v", err)
	}
}

// TestPlaceThatCannotBeWritten: what was there stays, and is not written again to be undone.
func TestPlaceThatCannotBeWritten(t *testing.T) {
	b := newBed(t)
	b.write("/etc/there", "old")
	b.write("/etc/.mesh-installer-there/in-the-way", "x")
	b.write("/etc/new/.mesh-installer-file/in-the-way", "x")
	before := b.tree()
	there := b.Machine.place("/etc/there", 0o644)
	if _, err := there.put([]byte("new")); err == nil {
		t.Fatal("it was written")
	}
	must(t, there.undo())
	fresh := b.Machine.place("/etc/new/file", 0o644)
	if _, err := fresh.put([]byte("new")); err == nil {
		t.Fatal("it was written")
	}
	must(t, fresh.undo())
	if diff := cmp.Diff(before, b.tree()); diff != "" {
		t.Errorf("changed %s", diff)
	}
}

func TestASecondInstallerIsRefused(t *testing.T) {
	b := newBed(t)
	release, err := b.alone()
	must(t, err)
	for name, run := range map[string]func() error{
		"genesis": func() error {
			_, err := b.Genesis(t.Context(), GenesisOptions{Addresses: []string{"192.0.2.1"}})
			return err
		},
		"leave": func() error { _, err := b.Leave(t.Context(), LeaveOptions{}); return err },
	} {
		if err := run(); refusal.Of(err) == nil || !strings.Contains(err.Error(), "another mesh-installer") {
			t.Errorf("%s beside another: %v", name, err)
		}
	}
	must(t, release())
	if _, err := b.Leave(t.Context(), LeaveOptions{}); err != nil {
		t.Error(err)
	}
}

// TestPlaceOverAnAgentThatChangedItself: its link is mesh's own; the same program stays as it is, another takes
// its place, and undo brings the link back.
func TestPlaceOverAnAgentThatChangedItself(t *testing.T) {
	b := newBed(t)
	const program, at = "/usr/local/bin/mesh-agent", "/var/lib/mesh-agent/agent/abc/mesh-agent"
	for _, folder := range []string{"/usr/local/bin", "/var/lib/mesh-agent/agent/abc"} {
		must(t, os.MkdirAll(b.at(folder), 0o755))
	}
	b.writeAt(b.at(at), "new", 0o755)
	must(t, os.Symlink(at, b.at(program)))
	before := b.tree()
	p := b.Machine.place(program, 0o755)
	if changed, err := p.put([]byte("new")); changed || err != nil {
		t.Errorf("the same program: %v, %v", changed, err)
	}
	p = b.Machine.place(program, 0o755)
	if changed, err := p.put([]byte("placed by hand")); !changed || err != nil || b.read(program) != "placed by hand" {
		t.Errorf("another program: %v, %v, %q", changed, err, b.read(program))
	}
	must(t, p.undo())
	if diff := cmp.Diff(before, b.tree()); diff != "" {
		t.Errorf("undo left %s", diff)
	}
	must(t, os.RemoveAll(b.at("/var/lib/mesh-agent/agent")))
	p = b.Machine.place(program, 0o755)
	if changed, err := p.put([]byte("placed by hand")); !changed || err != nil || b.read(program) != "placed by hand" {
		t.Errorf("a link to nothing: %v, %v, %q", changed, err, b.read(program))
	}
}
