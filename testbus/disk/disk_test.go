package disk_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"mesh/testbus/disk"
)

// What was synced is there after every cut, what was not is gone when nothing unflushed survives, and no file that
// was made in the right order is ever half.
func TestWhatASyncIsWorth(t *testing.T) {
	image, err := disk.Make(t.TempDir(), 24<<20)
	must(t, err)
	r, err := disk.Note(image, t.TempDir(), "")
	must(t, err)
	for i := range 8 {
		name := filepath.Join(r.Dir, fmt.Sprint("synced", i))
		write(t, name, fmt.Sprint("content ", i), true)
		r.Mark(fmt.Sprint(i))
		write(t, filepath.Join(r.Dir, fmt.Sprint("lazy", i)), fmt.Sprint("content ", i), false)
	}
	log, err := r.Stop()
	must(t, err)
	cuts, lost := log.Cuts(), 0
	for at := 0; at <= len(log.Records); at += 3 {
		for _, keep := range []disk.Keep{disk.Nothing, disk.Pieces, disk.Everything} {
			m, err := disk.Mount(cuts.Image(disk.Cut{At: at, Keep: keep, Seed: rand.Uint64()}), filepath.Join(t.TempDir(), "m"), "")
			must(t, err)
			marked := 0
			for _, rec := range log.Records[:at] {
				if rec.Kind == disk.Mark {
					marked++
				}
			}
			for i := range marked {
				if b, err := os.ReadFile(filepath.Join(m.Dir, fmt.Sprint("synced", i))); err != nil || string(b) != fmt.Sprint("content ", i) {
					t.Errorf("cut at %d, %s survives: file %d is %q, %v", at, keep, i, b, err)
				}
			}
			if _, err := os.Stat(filepath.Join(m.Dir, fmt.Sprint("lazy", marked-1))); marked > 0 && err != nil {
				lost++
			}
			must(t, m.Close())
		}
	}
	if lost == 0 {
		t.Error("nothing unsynced was ever lost: this disk has no volatile cache")
	}
}

func write(t *testing.T, name, content string, sync bool) {
	t.Helper()
	f, err := os.Create(name)
	must(t, err)
	_, err = f.WriteString(content)
	must(t, err)
	if sync {
		must(t, f.Sync())
		dir, err := os.Open(filepath.Dir(name))
		must(t, err)
		must(t, dir.Sync())
		must(t, dir.Close())
	}
	must(t, f.Close())
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
