package apply_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mesh/agent/apply"
	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/testbus/steps"
)

// faultEnv makes the child one that goes on while its disk refuses, and says what it met.
const faultEnv = "MESH_FAULT"

// tries is how often it tries before the disk takes again what it is given.
const tries = 3

// meet is the child's life with a disk that refuses: it starts, takes the declaration in, looks whenever it is time
// to, and says each time what came of it; then the disk is well, and it ends as declared.
func (b *bed) meet() {
	relieved := 0
	relief := func() {
		if relieved++; relieved == 1 {
			say("relief")
		}
	}
	for n := 0; ; n++ {
		if err := b.start(); err == nil {
			break
		} else if met("start", err); n == 1 {
			relief()
		} else if n > 3 {
			panic(err)
		}
	}
	ctx := context.Background()
	signed, err := os.ReadFile(b.path("next"))
	if err != nil {
		panic(err)
	}
	for n := 0; n < tries+10; n++ {
		r, err := b.engine.Accept(ctx, signed) // the bus gives it until it was taken in
		if seq, _ := b.store.Newest(); err == nil && seq == nextSeq && n > 0 && !r.News {
			r, err = b.engine.Pass(ctx, apply.Reconcile)
		}
		if err == nil {
			err = b.store.Flush(ctx)
		}
		switch {
		case err != nil:
			met("pass", err)
		case r.Outcome != report.Applied:
			fmt.Printf("met: pause %d\n", r.NextTry.Sub(b.clock.Now())/time.Millisecond)
			met("pass", r.Refused)
		case r.Steps == 0 && n >= tries:
			say("ended")
			os.Exit(0)
		}
		if n == tries-1 {
			relief()
		}
		if wait := r.NextTry.Sub(b.clock.Now()); err == nil && wait > 0 {
			b.clock.Advance(wait)
		} else {
			b.clock.Advance(time.Minute)
		}
	}
	panic(fmt.Sprintf("never as declared: %+v", b.engine.Last()))
}

func met(at string, err error) {
	named := refusal.Of(err)
	words := strings.ReplaceAll(err.Error(), "\n", " ")
	fmt.Printf("met: %s %t %s\n", at, named != nil && named.Do != "", words)
}

// fault is a way a disk refuses.
type fault struct {
	name  string
	errno unix.Errno
	// at says of a step whether it may be refused; once: only the first is.
	at   func(steps.Step) bool
	once bool
	says []string // one of these; none for nothing in particular
	// each is every how many such steps are tried.
	each int
}

var faults = []fault{
	{"disk full", unix.ENOSPC, steps.Step.Grows, false, []string{"disk full"}, 1},
	{"read-only", unix.EROFS, func(s steps.Step) bool { return s.Call != "fsync" && s.Call != "fdatasync" }, false,
		[]string{"read-only file system", "disk that fails", "the disk fails"}, 4},
	{"a sync fails once", unix.EIO, func(s steps.Step) bool { return strings.Contains(s.Call, "sync") }, true, nil, 2},
}

// APP-14: the disk is full, or read-only, from any one write of a change on: of the store, a file, a unit, a bundle, a
// folder. It is said by name with what to do, nothing is half done or left behind, the pauses grow, and once the disk
// is well again the machine becomes as declared by itself.
func TestADiskThatRefusesFromEachWriteOn(t *testing.T) {
	m := newMachine(t, change, memoryFolder(t))
	m.again(t)
	all, _ := m.refused(t, fault{at: func(steps.Step) bool { return false }}, 0)
	for _, f := range faults {
		n, hit := 0, 0
		for i, s := range all {
			if !f.at(s) {
				continue
			}
			if n++; n%f.each != 0 {
				continue
			}
			t.Run(fmt.Sprintf("%s/%d %s %s", f.name, i+1, s.Call, strings.ReplaceAll(strings.TrimPrefix(s.Path, m.dir), "/", "_")), func(t *testing.T) {
				m.again(t)
				if _, was := m.refused(t, f, i+1); was {
					hit++
				}
				m.deaths = 2 * tries // a start that could not be remembered is made again
				m.judge(t, told{})
			})
		}
		if n = n / f.each; hit < 10 || hit < n-2 { // the last steps of a life may be a few more or less
			t.Errorf("%s: only %d of %d steps", f.name, hit, n)
		}
	}
}

// refused lives a change during which the disk refuses from a step on, and returns the steps, and whether it did.
func (m *machine) refused(t *testing.T, f fault, from int) (all []steps.Step, was bool) {
	t.Helper()
	cmd := command(t, m.dir, 0)
	cmd.Env = append(cmd.Env, stepsEnv+"=1", faultEnv+"=1", waitsEnv+"=1")
	in, err := cmd.StdinPipe()
	must(t, err)
	out, outEnd, err := os.Pipe()
	must(t, err)
	cmd.Stdout, cmd.Stderr = outEnd, outEnd
	var well, hit atomic.Bool
	var said []string
	var wg sync.WaitGroup
	wg.Go(func() { // ends with the child
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			said = append(said, lines.Text())
			if lines.Text() == "mark: relief" {
				if hit.Load() && !f.once {
					m.whole(t)
					if f.errno == unix.ENOSPC { // else nothing can be removed
						m.nothingLeft(t)
					}
				}
				well.Store(true)
			}
			if strings.HasPrefix(lines.Text(), "mark: ") {
				if _, err := io.WriteString(in, "\n"); err != nil {
					t.Error(err)
				}
			}
		}
	})
	err = steps.Follow(cmd, []string{filepath.Join(m.dir, "root"), filepath.Join(m.dir, "state")}, func(s steps.Step) steps.Answer {
		if !m.own(s) {
			return steps.Answer{}
		}
		if all = append(all, s); len(all) < from || well.Load() || !f.at(s) || f.once && hit.Load() {
			return steps.Answer{}
		}
		hit.Store(true)
		return steps.Answer{Err: f.errno}
	})
	err = errors.Join(err, outEnd.Close())
	wg.Wait()
	must(t, out.Close())
	if err != nil {
		t.Fatalf("the child: %v\n%s", err, strings.Join(said, "\n"))
	}
	if hit.Load() && f.says != nil {
		named(t, f.says, said)
	}
	return all, hit.Load()
}

// named checks what was said: each trouble by its name and with what to do, and longer pauses each time.
func named(t *testing.T, names, said []string) {
	t.Helper()
	told, last, grew := 0, 0, 0
	for _, line := range said {
		var pause int
		if n, _ := fmt.Sscanf(line, "met: pause %d", &pause); n == 1 {
			if pause < last {
				t.Errorf("a pause of %d ms came after one of %d ms", pause, last)
			}
			if last > 0 && pause > last {
				grew++
			}
			last = pause
			continue
		}
		if words, ok := strings.CutPrefix(line, "met: "); ok {
			named := slices.ContainsFunc(names, func(n string) bool { return strings.Contains(words, n) })
			if told++; !named || !strings.Contains(words, " true ") {
				t.Errorf("said without its name: %s", words)
			}
		}
	}
	if told == 0 {
		t.Errorf("nothing was said:\n%s", strings.Join(said, "\n"))
	}
	if last > 0 && grew == 0 && told >= tries {
		t.Errorf("the pauses do not grow:\n%s", strings.Join(said, "\n"))
	}
}

// nothingLeft finds what a write that was refused left behind.
func (m *machine) nothingLeft(t *testing.T) {
	t.Helper()
	for p := range tree(t, m.dir) {
		if base := filepath.Base(p); strings.HasPrefix(base, ".mesh-") || strings.HasPrefix(base, ".unpack-") || strings.HasPrefix(base, ".part-") {
			t.Errorf("left behind: %s", p)
		}
	}
}

// APP-14: systemd stops to answer at any one call of a change. It is said, what systemd has no part in goes on, and
// once it answers again the machine becomes as declared.
func TestSystemdStopsAnsweringAtEachCall(t *testing.T) {
	m := newMachine(t, change, memoryFolder(t))
	signed, err := os.ReadFile(filepath.Join(m.start, "next"))
	must(t, err)
	m.deaths = 1
	for from, over := 1, false; !over; from++ {
		t.Run(fmt.Sprint("call ", from), func(t *testing.T) {
			m.again(t)
			b := m.open(t)
			defer func() { must(t, b.stop()) }()
			m.settle(t, b)
			n := 0
			var at string
			b.units.refuses = func(call string) error {
				if n++; n < from {
					return nil
				}
				if n == from {
					at = call
				}
				return errors.New("dial unix /run/dbus/system_bus_socket: connect: connection refused")
			}
			r, err := b.engine.Accept(t.Context(), signed)
			must(t, err)
			if over = n < from; over {
				return // that many calls are not made
			}
			last := time.Duration(0)
			for range tries {
				if r.Refused == nil || !strings.Contains(r.Refused.Error(), "connection refused") || r.Refused.Do == "" {
					t.Errorf("dead from %q on, it says %+v", at, r.Refused)
				}
				pause := time.Minute
				if !r.NextTry.IsZero() {
					pause = r.NextTry.Sub(b.clock.Now())
				}
				if pause < last {
					t.Errorf("dead from %q on, a pause of %v after one of %v", at, pause, last)
				}
				last = pause
				b.clock.Advance(pause)
				r = b.pass(t, apply.Reconcile)
			}
			m.whole(t)
			b.units.refuses = nil
			b.clock.Advance(time.Hour)
			applied(t, b.pass(t, apply.Reconcile))
			m.settle(t, b)
			m.same(t, "dead from "+at+" on, and back", m.after, m.see(t, b))
		})
	}
}
