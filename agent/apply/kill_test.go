package apply_test

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"mesh/agent/apply"
	"mesh/agent/state"
	"mesh/shared/clock"
	"mesh/shared/report"
	"mesh/testbus/steps"
)

// The child is this test's own binary as an agent that dies at the n-th fail point it comes to, or lives
// and lists them.
const (
	childEnv = "MESH_FAILPOINT"
	bedEnv   = "MESH_BED"
	paperEnv = "MESH_PAPER" // what is no file of the machine
	stepsEnv = "MESH_STEPS" // each file step is asked about
	waitsEnv = "MESH_WAITS" // it waits for an answer to what it says
)

// child takes the declaration in the file "next" in, or makes a pass where there is none; it reports, looks once
// more, and ends.
func child(at string) {
	flag.Parse()
	if os.Getenv(stepsEnv) != "" {
		if err := steps.Obey(os.NewFile(steps.Socket, "steps")); err != nil {
			panic(err)
		}
	}
	b, err := bedAt(os.Getenv(bedEnv))
	if err != nil {
		panic(err)
	}
	var die, n int
	fmt.Sscan(at, &die)
	b.paper = os.Getenv(paperEnv)
	b.reserve = reserve
	b.workers = 1 // so that the n-th is the same one each time
	b.clock = clock.NewFake(clock.Real().Now().Add(time.Hour))
	b.point = func(name string) {
		if n++; n == die {
			if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
				panic(err)
			}
			select {}
		}
		fmt.Println("point:", name)
		if name == "after accept" && os.Getenv(faultEnv) == "" {
			say("accepted")
		}
	}
	if os.Getenv(faultEnv) != "" {
		b.meet()
	}
	if err := b.start(); err != nil {
		panic(err)
	}
	if err := b.live(); err != nil {
		panic(err)
	}
	say("ended")
	os.Exit(0)
}

func say(what string) {
	fmt.Println("mark:", what)
	if os.Getenv(waitsEnv) != "" {
		if _, err := os.Stdin.Read(make([]byte, 1)); err != nil {
			panic(err)
		}
	}
}

func (b *bed) live() error {
	ctx := context.Background()
	signed, err := os.ReadFile(b.path("next"))
	var r apply.Result
	seq, _ := b.store.Newest()
	switch {
	case err != nil:
		r, err = b.engine.Pass(ctx, apply.Reconcile)
	case seq == nextSeq: // it died before
		r, err = b.engine.Pass(ctx, apply.Boot)
	default:
		r, err = b.engine.Accept(ctx, signed)
	}
	for i := 0; err == nil && r.Outcome != report.Failed && !r.NextTry.IsZero() && i < 12; i++ { // a take goes in several passes
		b.clock.Advance(max(r.NextTry.Sub(b.clock.Now()), 0))
		r, err = b.engine.Pass(ctx, apply.Reconcile)
	}
	if err := errors.Join(err, b.report(ctx)); err != nil {
		return err
	}
	_, err = b.engine.Pass(ctx, apply.Reconcile)
	return errors.Join(err, b.report(ctx), b.store.Flush(ctx), b.stop())
}

// report says how it went, as the agent does, to a bus that is always there.
func (b *bed) report(ctx context.Context) error {
	number, err := b.store.NextReportNumber(ctx)
	if err != nil {
		return err
	}
	o, err := b.store.Offer(ctx, state.Out{Subject: "report", Kind: state.KindReport, Body: []byte("x")})
	if err != nil {
		return err
	}
	held, _ := b.store.Newest()
	say(fmt.Sprintf("reported %d %d", held, number))
	return b.store.Acked(ctx, o)
}

// command is the child.
func command(t testing.TB, dir string, die int) *exec.Cmd {
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", childEnv, die), bedEnv+"="+dir)
	return cmd
}

// live runs the child and returns the fail points it came to.
func live(t testing.TB, dir string, die int) (points []string, h told) {
	t.Helper()
	cmd := command(t, dir, die)
	out, err := cmd.Output()
	if killed := err != nil && strings.Contains(err.Error(), "signal: killed"); killed != (die > 0) || err != nil && !killed {
		t.Fatalf("the child: %v\n%s", err, out)
	}
	return heard(string(out))
}

func heard(out string) (points []string, h told) {
	in := bufio.NewScanner(strings.NewReader(out))
	for in.Scan() {
		h.hear(in.Text())
		if name, ok := strings.CutPrefix(in.Text(), "point: "); ok {
			points = append(points, name)
		}
	}
	return points, h
}

// liveBySteps runs the child to its n-th file step of its own; 0 for to its end. It returns the steps it came to.
func (m *machine) liveBySteps(t testing.TB, die int, tear bool) (all []steps.Step, h told) {
	t.Helper()
	cmd := command(t, m.dir, 0)
	cmd.Env = append(cmd.Env, stepsEnv+"=1")
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	err := steps.Follow(cmd, []string{filepath.Join(m.dir, "root"), filepath.Join(m.dir, "state")}, func(s steps.Step) steps.Answer {
		if !m.own(s) {
			return steps.Answer{}
		}
		all = append(all, s)
		return steps.Answer{Kill: len(all) == die, Tear: tear}
	})
	_, h = heard(out.String())
	killed := err != nil && strings.Contains(err.Error(), "signal: killed")
	if err != nil && !killed || killed != !h.ended {
		t.Fatalf("the child: %v\n%s", err, out.String())
	}
	return all, h
}

// own tells the agent's steps from those of the stand-ins for other programs.
func (m *machine) own(s steps.Step) bool {
	p, below := strings.CutPrefix(s.Path, filepath.Join(m.dir, "root"))
	return !below || !theirs(p) && !strings.Contains(p, ".wants/")
}

// APP-5: a kill at any instant, then a start, ends in the state the declaration asks for or in the one
// before, and never in a third. Here at the first of each fail point of each life; the file steps between them and
// all others are a sample (TestCrashes), and all of them in make soak.
func TestKilledAtEachInstantItConverges(t *testing.T) {
	reached := map[string]bool{}
	for _, l := range allLives() {
		t.Run(l.name, func(t *testing.T) {
			m := newMachine(t, l, memoryFolder(t))
			tried := map[string]bool{}
			for i, name := range m.points {
				if tried[name] {
					continue
				}
				tried[name], reached[name] = true, true
				t.Run(name, func(t *testing.T) { m.killAt(t, i+1) })
			}
		})
	}
	for _, p := range apply.FailPoints {
		if !reached[p] {
			t.Errorf("no life came to the fail point %q", p)
		}
	}
}

func (m *machine) killAt(t *testing.T, point int) (kind string) {
	m.again(t)
	m.deaths = 1
	_, h := live(t, m.dir, point)
	return m.judge(t, h)
}

// killAtStep kills at a file step, now and then in the middle of a write, and now and then the next life too.
func (m *machine) killAtStep(t *testing.T, step int, rnd *rand.Rand) (kind string) {
	m.again(t)
	m.deaths = 1
	all, h := m.liveBySteps(t, step, rnd.IntN(2) == 0)
	if len(all) > 0 {
		t.Logf("killed at step %d: %s %s", step, all[len(all)-1].Call, strings.TrimPrefix(all[len(all)-1].Path, m.dir))
	}
	if rnd.IntN(8) == 0 && !h.ended {
		m.deaths++
		_, again := m.liveBySteps(t, 1+rnd.IntN(step+10), false)
		h.accepted, h.ended = h.accepted || again.accepted, again.ended
		if again.reported > 0 {
			if again.reported <= h.reported {
				t.Errorf("two reports have the numbers %d and %d", h.reported, again.reported)
			}
			h.reported, h.held = again.reported, again.held
		}
		t.Logf("and killed again (%+v)", h)
	}
	return m.judge(t, h)
}
