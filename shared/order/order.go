// Package order sorts short lists where it does not matter how fast. slices.SortFunc is compiled anew for each
// type, some 10 KiB each time: for what is sorted rarely that is more of the agent's file, which travels to
// every machine, than it is worth.
package order

import "sort"

// Sort sorts all by compare, which is negative where a comes before b. Equal ones stay in the order they are in.
func Sort[T any](all []T, compare func(a, b T) int) {
	sort.SliceStable(all, func(i, j int) bool { return compare(all[i], all[j]) < 0 })
}
