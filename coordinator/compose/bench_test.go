package compose_test

import (
	"fmt"
	"runtime"
	"testing"

	"mesh/coordinator/compose"
	"mesh/coordinator/records"
	"mesh/shared/subject"
)

// BenchmarkComposeAll is row 7 of the scoreboard: all nodes of 20 modules each are composed from what
// SQLite holds, compared with the last, signed and committed where they changed. "first" has nothing to
// compare with, as the floor's first pass; "changed" replaces all; "warm" is a second push of a
// coordinator that runs.
func BenchmarkComposeAll(b *testing.B) {
	for _, n := range []int{1000, 10000} {
		b.Run(fmt.Sprintf("first/%d", n), func(b *testing.B) {
			for range b.N {
				b.StopTimer()
				f := bulk(b, n, 20, 200)
				b.StartTimer()
				composeAll(b, f.composer(), n)
			}
		})
		b.Run(fmt.Sprintf("unchanged/%d", n), func(b *testing.B) {
			f := bulk(b, n, 20, 200)
			composeAll(b, f.composer(), n)
			for b.Loop() {
				c := f.composer() // knows nothing: it reads the records
				composeAll(b, c, 0)
			}
		})
		b.Run(fmt.Sprintf("changed/%d", n), func(b *testing.B) {
			f := bulk(b, n, 20, 200)
			composeAll(b, f.composer(), n)
			for i := range b.N {
				b.StopTimer()
				f.ok(f.store.SetAddresses(b.Context(), by, []string{fmt.Sprintf("192.0.2.%d:4222", i%250+2)}))
				b.StartTimer()
				composeAll(b, f.composer(), n)
			}
		})
		b.Run(fmt.Sprintf("warm/%d", n), func(b *testing.B) {
			f := bulk(b, n, 20, 200)
			c := f.composer()
			composeAll(b, c, n)
			for b.Loop() {
				composeAll(b, c, 0)
			}
		})
	}
}

func composeAll(b *testing.B, c *compose.Composer, want int) {
	b.Helper()
	changed := 0
	err := c.All(b.Context(), func(all []compose.Composed) error {
		for _, d := range all {
			if d.Err != nil {
				return d.Err
			}
			if d.Changed {
				changed++
			}
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	if changed != want {
		b.Fatalf("%d changed, want %d", changed, want)
	}
}

// BenchmarkOneSetting is row 8: one setting of one node is recorded and its declaration composed, signed
// and committed; the size of the fleet must not show.
func BenchmarkOneSetting(b *testing.B) {
	for _, n := range []int{100, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			f := bulk(b, n, 20, 200)
			c := f.composer()
			composeAll(b, c, n)
			must2(c.Principals(b.Context()))
			runtime.GC()
			i := 0
			for b.Loop() {
				i++
				f.ok(second(f.store.Assign(b.Context(), by, []subject.Node{"node-17"}, "module-017",
					records.AssignSet{Set: map[string]string{"port": fmt.Sprint(9000 + i)}})))
				d, err := c.Node(b.Context(), "node-17")
				if err != nil || !d.Changed {
					b.Fatalf("composed %+v, %v", d, err)
				}
				must2(c.Principals(b.Context()))
			}
		})
	}
}

func second[T any](_ T, err error) error { return err }

func must2[A, B any](a A, b B, err error) (A, B) {
	if err != nil {
		panic(err)
	}
	return a, b
}
