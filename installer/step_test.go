package installer

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"mesh/shared/refusal"
)

func TestSteps(t *testing.T) {
	var ran []string
	do := func(name string, err error) func(context.Context) (string, error) {
		return func(context.Context) (string, error) { ran = append(ran, "do "+name); return "", err }
	}
	undo := func(name string, err error) func(context.Context) error {
		return func(ctx context.Context) error { ran = append(ran, "undo "+name); return errors.Join(err, ctx.Err()) }
	}
	boom := errors.New("boom")
	no := refusal.New("it", "because", "that")
	cut, cancel := context.WithCancel(t.Context())
	for _, tt := range []struct {
		name  string
		dry   bool
		steps []Step
		ran   []string
		says  []string // of the error; none: no error
		said  string
	}{
		{"in order", false, []Step{{What: "a", Do: do("a", nil)}, {What: "b", Do: do("b", nil)}}, []string{"do a", "do b"}, nil, "✓ a\n✓ b\n"},
		{"a failure undoes, the last first, itself included", false,
			[]Step{{What: "a", Do: do("a", nil), Undo: undo("a", nil)}, {What: "b", Do: do("b", nil)}, {What: "c", Do: do("c", boom), Undo: undo("c", nil), Hint: "look at c"}, {What: "d", Do: do("d", nil)}},
			[]string{"do a", "do b", "do c", "undo c", "undo a"}, []string{"failed: c: boom\ndo: look at c; what was done is undone; run the same"}, "✓ a\n✓ b\n✗ c\n✓ undid what was done\n"},
		{"a refusal stays one", false, []Step{{What: "a", Do: do("a", no), Undo: undo("a", nil)}}, []string{"do a", "undo a"}, []string{"refused: it: because\ndo: that"}, "✗ a\n✓ undid what was done\n"},
		{"what cannot be undone is named", false, []Step{{What: "a", Do: do("a", nil), Undo: undo("a", boom)}, {What: "b", Do: do("b", no)}},
			[]string{"do a", "do b", "undo a"}, []string{"refused: it", "could not be undone: a"}, "✓ a\n✗ b\n✗ could not undo: a: boom\n"},
		{"a dry run reads only", true, []Step{{What: "a", Reads: true, Do: do("a", nil)}, {What: "b", Do: do("b", nil), Undo: undo("b", nil)}}, []string{"do a"}, nil, "✓ a\n· would b\n"},
		{"a dry run says what is wrong", true, []Step{{What: "a", Reads: true, Do: do("a", no), Undo: undo("a", nil)}}, []string{"do a"}, []string{"refused: it"}, "✗ a\n"},
		{"an interrupt undoes", false, []Step{{What: "a", Do: func(context.Context) (string, error) { cancel(); return "", nil }, Undo: undo("a", nil)}, {What: "b", Do: do("b", nil)}},
			[]string{"undo a"}, []string{"failed: b: it was interrupted", "undone"}, "✓ a\n✗ b\n✓ undid what was done\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ran = nil
			var said bytes.Buffer
			i := Installer{DryRun: tt.dry, Say: &said}
			err := i.steps(cut, tt.steps)
			if (err != nil) != (tt.says != nil) || !slices.Equal(ran, tt.ran) || said.String() != tt.said {
				t.Errorf("err %v, ran %q, said %q; want %q and %q", err, ran, said.String(), tt.ran, tt.said)
			}
			for _, want := range tt.says {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q lacks %q", err, want)
				}
			}
		})
	}
}
