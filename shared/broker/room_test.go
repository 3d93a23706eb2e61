package broker

import (
	"os"
	"path/filepath"
	"testing"
)

func TestRoomDoesNotShrinkByWhatIsHeld(t *testing.T) {
	const gib = 1 << 30
	for _, tt := range []struct{ free, held, want int64 }{
		{20 * gib, 0, 15 * gib},
		{10 * gib, 10 * gib, 15 * gib}, // the same disk, half full of streams
		{5 * gib, 15 * gib, 15*gib + 16<<20},
		{0, 4 * gib, 4 * gib},
		{0, 0, 0},
	} {
		if got := room(tt.free, tt.held); got != tt.want {
			t.Errorf("room(%d free, %d held) = %d, want %d", tt.free, tt.held, got, tt.want)
		}
	}
	dir := t.TempDir()
	before, err := roomIn(filepath.Join(dir, "new"))
	if err != nil || before <= 0 {
		t.Fatalf("room in a new folder: %d, %v", before, err)
	}
	sparse := filepath.Join(dir, "new", "a", "1.blk")
	if err := os.MkdirAll(filepath.Dir(sparse), 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(sparse)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(before * 8); err != nil { // it takes no space, so it counts in full
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if after, err := roomIn(filepath.Join(dir, "new")); err != nil || after < before*5 {
		t.Errorf("room with %d held = %d, %v, before %d", before*8, after, err, before)
	}
}
