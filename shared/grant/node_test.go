package grant

import (
	"slices"
	"strings"
	"testing"

	"mesh/shared/subject"
)

// The quick way to a node's rights gives what the plain one does.
func TestANodesFormIsItsDerivation(t *testing.T) {
	for _, name := range []string{"n1", "a", "web-01", strings.Repeat("x", 40)} {
		got, err := For(Principal{Kind: Node, Name: name})
		want := node(subject.Node(name))
		slices.Sort(want.Publish)
		slices.Sort(want.Subscribe)
		if err != nil || !slices.Equal(got.Publish, want.Publish) || !slices.Equal(got.Subscribe, want.Subscribe) {
			t.Errorf("%s: %+v, want %+v (%v)", name, got, want, err)
		}
	}
}
