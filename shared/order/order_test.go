package order_test

import (
	"slices"
	"testing"

	"mesh/shared/order"
)

func TestSort(t *testing.T) {
	all := []string{"b2", "a1", "b1", "a2", "c"}
	order.Sort(all, func(a, b string) int { return int(a[0]) - int(b[0]) })
	if !slices.Equal(all, []string{"a1", "a2", "b2", "b1", "c"}) {
		t.Errorf("%q", all)
	}
	order.Sort(nil, func(a, b int) int { return a - b })
}
