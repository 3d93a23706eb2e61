package apply_test

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"mesh/testbus/disk"
)

// soak is how many ends the harness makes at least; 0 for a sample of a hundred. SEED in the environment repeats
// a run.
var soak = flag.Int("soak", 0, "`how many` kills and power cuts TestCrashes makes at least; make soak sets it")

// tally counts what became of ends.
type tally struct {
	mu     sync.Mutex
	kinds  map[string]int // by how it ended and what became of it
	points map[string]int // by life
	broken int
}

func (c *tally) add(life, how, kind string, broken bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kinds[how+": "+kind]++
	c.points[life]++
	if broken {
		c.broken++
	}
}

func (c *tally) all() (n int) {
	for _, k := range c.points {
		n += k
	}
	return n
}

func (c *tally) String() string {
	var out strings.Builder
	fmt.Fprintf(&out, "%d ends, %d violations\n", c.all(), c.broken)
	for _, m := range []map[string]int{c.kinds, c.points} {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			fmt.Fprintf(&out, "  %6d  %s\n", m[k], k)
		}
	}
	return out.String()
}

// death is one way to end.
type death struct {
	how  string
	die  func(t *testing.T) (kind string)
	says func() string
}

// APP-5: killed with SIGKILL at every step of the file system's and at every journalled step, or cut off from its power
// at any write, and started again, a machine is as the declaration asks for or as it was before: nothing lost, and
// no third state.
func TestCrashes(t *testing.T) {
	seed := rand.Uint64()
	if s := os.Getenv("SEED"); s != "" {
		var err error
		seed, err = strconv.ParseUint(s, 10, 64)
		must(t, err)
	}
	c := &tally{kinds: map[string]int{}, points: map[string]int{}}
	all := allLives()
	share := (cmp.Or(*soak, 100) + len(all) - 3) / (len(all) - 2) // two are only killed
	t.Cleanup(func() {
		out := fmt.Sprintf("seed %d (SEED=%d repeats it): %v", seed, seed, c)
		if *soak > 0 {
			fmt.Print(out)
		}
		t.Log(out)
		if n := c.all(); !t.Failed() && n < cmp.Or(*soak, 100) {
			t.Errorf("only %d ends", n)
		}
	})
	for i, l := range all {
		t.Run(l.name, func(t *testing.T) {
			t.Parallel()
			rnd := rand.New(rand.NewPCG(seed, uint64(i)))
			one := func(d death) {
				ok := t.Run(d.how, func(t *testing.T) {
					kind := d.die(t)
					c.add(l.name, d.how, kind, t.Failed())
				})
				if !ok {
					t.Logf("%s; SEED=%d", d.says(), seed)
				}
			}
			n := kills(t, l, rnd, share, one)
			if l.kills {
				return
			}
			powerCuts(t, l, rnd, max(share-n, share/2), one)
		})
	}
}

// kills are those at each fail point and each file step in a soak, else a few of them.
func kills(t *testing.T, l lives, rnd *rand.Rand, share int, one func(death)) (n int) {
	m := newMachine(t, l, memoryFolder(t))
	m.again(t)
	steps, _ := m.liveBySteps(t, 0, false)
	atPoint := func(i int) {
		one(death{"kill at a journalled step", func(t *testing.T) string { return m.killAt(t, i+1) }, func() string { return l.name + ", killed " + m.points[i] }})
	}
	atStep := func(i int) {
		pcg := rand.New(rand.NewPCG(rnd.Uint64(), 0))
		one(death{"kill at a file step", func(t *testing.T) string { return m.killAtStep(t, i+1, pcg) }, func() string {
			return fmt.Sprintf("%s, killed at file step %d of %d: %s %s", l.name, i+1, len(steps), steps[i].Call, strings.TrimPrefix(steps[i].Path, m.dir))
		}})
	}
	if *soak == 0 {
		for range (share + 3) / 4 {
			atPoint(rnd.IntN(len(m.points)))
			atStep(rnd.IntN(len(steps)))
		}
		return 2 * ((share + 3) / 4)
	}
	for i := range m.points {
		atPoint(i)
	}
	for i := range steps {
		atStep(i)
	}
	return len(m.points) + len(steps)
}

// powerCuts are spread over the whole change, on each kind of disk, each with all that may survive.
func powerCuts(t *testing.T, l lives, rnd *rand.Rand, want int, one func(death)) {
	keeps := []disk.Keep{disk.Nothing, disk.Pieces, disk.Pieces, disk.Everything}
	for _, o := range options {
		c := newCuts(t, l, o)
		instants := len(c.log.Records) + 1
		at := make([]int, (want+len(options)*len(keeps)-1)/(len(options)*len(keeps)))
		for i := range at {
			if at[i] = i % instants; len(at) < instants {
				at[i] = rnd.IntN(instants)
			}
		}
		slices.Sort(at)
		for _, at := range at {
			for _, keep := range keeps {
				cut := disk.Cut{At: at, Keep: keep, Seed: rnd.Uint64()}
				one(death{"power cut", func(t *testing.T) string { return c.at(t, cut) }, func() string { return l.name + ", " + c.words(cut) }})
			}
		}
	}
}
