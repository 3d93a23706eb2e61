package refusal_test

import (
	"errors"
	"fmt"
	"testing"

	"mesh/shared/refusal"
)

func TestReadsInTwoLines(t *testing.T) {
	err := fmt.Errorf("accept declaration 4: %w", refusal.New("an older seq", "this node holds 7", "push again"))
	want := "accept declaration 4: refused: an older seq: this node holds 7\ndo: push again"
	if err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
	if r := refusal.Of(err); r == nil || r.Do != "push again" {
		t.Errorf("Of lost the refusal: %+v", r)
	}
	if refusal.Of(errors.New("plain")) != nil {
		t.Error("Of found a refusal in a plain error")
	}
}
