package installer

import (
	"io/fs"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"mesh/shared/enrol"
)

// mortal lets a run end as a kill would, at the n-th line it says or program it runs: nothing is undone and
// nothing said.
type mortal struct {
	b    *bed
	left int
}

func (m *mortal) live() {
	if m.left--; m.left == 0 {
		runtime.Goexit()
	}
}

func (m *mortal) Write(p []byte) (int, error) {
	n, err := m.b.said.Write(p)
	m.live()
	return n, err
}

// killed runs fn, which ends at event n, and says whether it came to its end before that.
func (b *bed) killed(n int, fn func(*Installer) error) (ended bool) {
	m := &mortal{b, n}
	i := &Installer{Machine: b.Machine, From: b.From, Say: m}
	i.Machine.Run = func(ctx ctx, args ...string) (string, error) {
		m.live()
		return b.run(ctx, args...)
	}
	done := make(chan struct{})
	go func() { // ends when it is killed, at the latest
		defer close(done)
		if err := fn(i); err != nil {
			b.t.Errorf("killed at %d it failed before: %v", n, err)
		}
		ended = true
	}()
	<-done
	return ended
}

// litter is what a run must not leave: files under passing names.
func (b *bed) litter() (all []string) {
	b.t.Helper()
	err := filepath.WalkDir(b.root, func(p string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasPrefix(d.Name(), ".mesh-") {
			all = append(all, strings.TrimPrefix(p, b.root))
		}
		return err
	})
	if err != nil {
		b.t.Fatal(err)
	}
	return all
}

// TestKilledAtEachStep: wherever a run is killed, the same command again ends as one that was not (NOD-2,
// NOD-3, NOD-13).
func TestKilledAtEachStep(t *testing.T) {
	t.Run("enrol", func(t *testing.T) {
		d := newDoor(t)
		ended := false
		for n := 1; !ended && !t.Failed(); n++ {
			b := newBed(t)
			b.write("/usr/local/bin/.mesh-installer-mesh-agent", "half of a program, of a run that was killed while it wrote")
			d.mu.Lock()
			d.heard, d.asks = false, nil
			d.mu.Unlock()
			d.hears(b)
			ended = b.killed(n, func(i *Installer) error { _, err := i.Enrol(t.Context(), d.line); return err })
			if _, err := b.Enrol(t.Context(), d.line); err != nil {
				t.Errorf("killed at %d, then: %v\n%s", n, err, &b.said)
				continue
			}
			if f := b.credential(); f.Signer == "" || !b.active["mesh-agent.service"] || !exists(b.at("/usr/local/bin/mesh-installer")) || len(b.litter()) > 0 {
				t.Errorf("killed at %d, then: credential %+v, running %v, litter %v", n, f, b.active, b.litter())
			}
			if keys := askedKeys(d.asked()); len(keys) != 1 {
				t.Errorf("killed at %d, it asked with several keys: %v", n, keys)
			}
		}
	})
	t.Run("genesis", func(t *testing.T) {
		ended := false
		for n := 1; !ended && !t.Failed(); n++ {
			b := newBed(t)
			s := newSeat(t, b)
			b.on["systemctl restart mesh-agent.service"] = b.on["systemctl start mesh-agent.service"]
			ended = b.killed(n, func(i *Installer) error { _, err := i.Genesis(t.Context(), s.options()); return err })
			if _, err := b.Genesis(t.Context(), s.options()); err != nil {
				t.Errorf("killed at %d, then: %v\n%s", n, err, &b.said)
				continue
			}
			f := b.credential()
			key, err := f.Seed.Public()
			must(t, err)
			if f.Signer == "" || !b.active["mesh-agent.service"] || !b.active["mesh-coordinator.service"] || exists(b.at(madeOperator)) || !exists(b.at(operatorFile)) || len(b.litter()) > 0 {
				t.Errorf("killed at %d, then: credential %+v, running %v, litter %v", n, f, b.active, b.litter())
			}
			s.mu.Lock()
			if len(s.nodes) != 1 || s.nodes["db1"] == nil || s.nodes["db1"].Key != key {
				t.Errorf("killed at %d, then the coordinator knows %v", n, s.nodes)
			}
			s.mu.Unlock()
		}
	})
	for name, o := range map[string]LeaveOptions{"leave": {}, "leave, and stop": {StopWorkloads: true}} {
		t.Run(name, func(t *testing.T) {
			whole := settled(t)
			if _, err := whole.Leave(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			want := whole.tree()
			ended := false
			for n := 1; !ended && !t.Failed(); n++ {
				b := settled(t)
				ended = b.killed(n, func(i *Installer) error { _, err := i.Leave(t.Context(), o); return err })
				if _, err := b.Leave(t.Context(), o); err != nil {
					t.Errorf("killed at %d, then: %v\n%s", n, err, &b.said)
					continue
				}
				for path := range b.tree() {
					if _, there := want[path]; !there {
						t.Errorf("killed at %d, then %s is left", n, path)
					}
				}
			}
		})
	}
}

func askedKeys(asks []enrol.Ask) map[string]int {
	keys := map[string]int{}
	for _, a := range asks {
		keys[a.Key]++
	}
	return keys
}
