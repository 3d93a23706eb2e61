package file

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestNamesAreSyncedAFolderAtATime: what is owed is one sync a folder, however many files; a folder that went
// meanwhile owes none, and one that cannot be reached is owed still.
func TestNamesAreSyncedAFolderAtATime(t *testing.T) {
	dir := t.TempDir()
	r := open(t, dir)
	for i := range 6 {
		folder := fmt.Sprintf("/etc/app%d", i%2)
		must[bool](t)(r.MakeDir(DirSpec{Path: folder, Mode: 0o755, Parents: true}))
		must[bool](t)(r.Write(Spec{Path: fmt.Sprintf("%s/f%d", folder, i), Content: []byte("x"), Mode: 0o644, LateFolder: true}))
	}
	if len(r.owing) != 2 {
		t.Errorf("%d folders are owed a sync, expected 2", len(r.owing))
	}
	if err := os.RemoveAll(filepath.Join(dir, "etc/app1")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "etc/app0"), filepath.Join(dir, "etc/aside")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "etc/app0"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := r.SyncFolders(); err == nil || len(r.owing) != 1 {
		t.Errorf("a file in the place of a folder: %v, %d owed", err, len(r.owing))
	}
	if err := os.Remove(filepath.Join(dir, "etc/app0")); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "etc/aside"), filepath.Join(dir, "etc/app0")); err != nil {
		t.Fatal(err)
	}
	if err := r.SyncFolders(); err != nil || len(r.owing) != 0 {
		t.Errorf("%v, %d owed", err, len(r.owing))
	}
	must[bool](t)(r.Write(Spec{Path: "/etc/app0/f0", Content: []byte("y"), Mode: 0o644}))
	if len(r.owing) != 0 {
		t.Error("a write that syncs its folder owes one")
	}
}
