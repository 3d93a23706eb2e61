package apply_test

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"mesh/agent/apply"
	"mesh/shared/manifest"
)

// A look costs in proportion to what is declared: ten times the files, and the units that depend on them, cost
// some ten times as much, whether they are in one module or in many.
func TestALookGrowsWithWhatIsDeclared(t *testing.T) {
	for _, tt := range []struct {
		name string
		mods func(n int) []mod
	}{
		{"in modules of ten", func(n int) []mod {
			mods := many(n)
			for i := range mods {
				for j := range mods[i].Run.Files {
					mods[i].Run.Files[j].Content = fmt.Sprint(i, j)
				}
				mods[i].Run.Processes = map[string]manifest.Process{"p": {Exec: []string{"/bin/p"}}}
			}
			return mods
		}},
		{"in one module", func(n int) []mod {
			m := module("one", manifest.Run{Processes: map[string]manifest.Process{}})
			for i := range n {
				m.Run.Files = append(m.Run.Files, file(fmt.Sprintf("/etc/one/%d/%d", i%10, i), "x"))
				if i%10 == 0 {
					m.Run.Processes[fmt.Sprint("p", i)] = manifest.Process{Exec: []string{"/bin/p"}}
				}
			}
			return []mod{m}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			cost := func(n int) time.Duration {
				b := newBed(t)
				applied(t, b.accept(t, 1, tt.mods(n)...))
				b.clock.Advance(time.Minute)
				applied(t, b.pass(t, apply.Reconcile))
				best := time.Hour
				for range 5 {
					b.clock.Advance(time.Minute)
					before := used(t)
					for range 11 { // with a thorough one among them
						if r := applied(t, b.pass(t, apply.Reconcile)); r.Steps > 0 {
							t.Fatal(r.Steps)
						}
					}
					best = min(best, used(t)-before)
				}
				return best
			}
			few, much := cost(100), cost(1000)
			t.Logf("100: %v, 1000: %v", few, much)
			if much > 25*few {
				t.Errorf("100 files cost %v and 1000 cost %v", few, much)
			}
		})
	}
}

func used(t *testing.T) time.Duration {
	var u syscall.Rusage
	must(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
