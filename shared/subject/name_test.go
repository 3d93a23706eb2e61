package subject

import (
	"regexp"
	"testing"
)

// FuzzWellFormed holds the rule that is written out against the one that can be read.
func FuzzWellFormed(f *testing.F) {
	rule := regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)
	for _, s := range []string{"", "a", "-", "a-", "-a", "a-b", "a--b", "A", "a.b", "a\n", "ä", "0", "a_b", "a b", "9-9"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if got, want := wellFormed(s), rule.MatchString(s); got != want {
			t.Errorf("%q: %v, the rule says %v", s, got, want)
		}
	})
}
