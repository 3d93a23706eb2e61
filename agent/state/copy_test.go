package state_test

import (
	"path/filepath"
	"testing"
	"time"

	"mesh/agent/state"
	"mesh/shared/clock"
)

// A copy is a store like the one it was made of, and the one in use goes on.
func TestCopyTo(t *testing.T) {
	s := newBed(t).open()
	if _, err := s.Accept(t.Context(), 7, "digest", []byte("signed"), nil); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), "copy.db")
	if err := s.CopyTo(t.Context(), to); err != nil {
		t.Fatal(err)
	}
	if err := s.CopyTo(t.Context(), to); err == nil {
		t.Error("a copy was written over another")
	}
	if _, err := s.Accept(t.Context(), 8, "next", []byte("signed"), nil); err != nil {
		t.Fatal(err)
	}
	c, err := state.OpenReadOnly(t.Context(), to, clock.NewFake(time.Unix(0, 0)))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if seq, digest := c.Newest(); seq != 7 || digest != "digest" {
		t.Errorf("the copy holds %d %s", seq, digest)
	}
}
