package installer

import (
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"mesh/installer/unit"
	"mesh/shared/clock"
	"mesh/shared/credential"
	"mesh/shared/enrol"
	"mesh/shared/refusal"
	"mesh/testbus"
)

// TestEnrol goes through the life of an enrolment: fresh, repeated, and repaired (NOD-2).
func TestEnrol(t *testing.T) {
	b, d := newBed(t), newDoor(t)
	d.hears(b)
	joined, err := b.Enrol(t.Context(), d.line)
	if err != nil || joined.Node != "db1" {
		t.Fatalf("Enrol = %+v, %v\n%s", joined, err, &b.said)
	}
	if got, want := b.ran(), []string{"systemctl daemon-reload", "systemctl daemon-reload", "systemctl enable --quiet mesh-filter.service",
		"systemctl enable --quiet mesh-agent.service", "systemctl start mesh-agent.service"}; !slices.Equal(got, want) {
		t.Errorf("ran %q, want %q", got, want)
	}
	if st, err := os.Stat(b.at(credentialFile)); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("credential: %v, %v", st.Mode(), err)
	}
	if st, err := os.Stat(b.at(agentFolder)); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("state folder: %v, %v", st.Mode(), err)
	}
	f := b.credential()
	if f.Kind != credential.KindNode || f.Name != "db1" || f.Mesh != "mesh-id" || f.Signer != "signer" || f.Bus.CA == "" {
		t.Errorf("credential %+v", f)
	}
	if b.read("/etc/systemd/system/mesh-agent.service") != unit.Agent() || !exists(b.at("/usr/local/bin/mesh-agent")) || !exists(b.at("/usr/local/bin/mesh-installer")) {
		t.Error("unit or programs are not there")
	}
	ask := d.asked()[0]
	key, _ := f.Seed.Public()
	curve, _ := f.Curve.Public()
	if ask.Key != key || ask.Curve != curve || ask.MachineID != machineID || ask.Agent != "0.1.0 (0123456789ab)" || ask.Profile.OS != "debian" {
		t.Errorf("ask %+v", ask)
	}
	for _, line := range strings.Split(strings.TrimSpace(b.said.String()), "\n") {
		if !strings.HasPrefix(line, "✓ ") {
			t.Errorf("said %q", line)
		}
	}

	t.Run("again, nothing changes", func(t *testing.T) {
		before := b.tree()
		if _, err := b.Enrol(t.Context(), d.line); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, b.tree()); diff != "" || len(b.ran()) > 0 {
			t.Errorf("changed: %s", diff)
		}
	})
	t.Run("again, with a unit edited and a program gone", func(t *testing.T) {
		before := b.tree()
		b.write("/etc/systemd/system/mesh-agent.service", "[Service]\n")
		must(t, os.Remove(b.at("/usr/local/bin/mesh-agent")))
		if _, err := b.Enrol(t.Context(), d.line); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, b.tree()); diff != "" {
			t.Errorf("not repaired: %s", diff)
		}
		if got := b.ran(); !slices.Contains(got, "systemctl restart mesh-agent.service") {
			t.Errorf("ran %q", got)
		}
	})
	t.Run("again, removed meanwhile and invited anew", func(t *testing.T) {
		d.mu.Lock()
		d.heard = false // the records begin anew, and the running agent has nothing to say
		d.mu.Unlock()
		b.ran()
		if _, err := b.Enrol(t.Context(), d.line); err != nil {
			t.Errorf("%v\n%s", err, &b.said)
		}
		if got := b.ran(); !slices.Contains(got, "systemctl restart mesh-agent.service") {
			t.Errorf("ran %q", got)
		}
	})
	t.Run("again, after the invitation ended", func(t *testing.T) {
		d.bus.Remove(t, "invitation-"+invited)
		d.bus.Replace(t, "node-db1", principal(t, b))
		if _, err := b.Enrol(t.Context(), d.line); err != nil {
			t.Errorf("%v\n%s", err, &b.said)
		}
	})
	t.Run("again, when nobody has the line any more", func(t *testing.T) {
		before := b.tree()
		b.write("/usr/local/bin/mesh-agent", "of an older release")
		joined, err := b.Enrol(t.Context(), "")
		if diff := cmp.Diff(before, b.tree()); err != nil || joined.Node != "db1" || diff != "" {
			t.Errorf("Enrol = %+v, %v; not repaired: %s\n%s", joined, err, diff, &b.said)
		}
	})
}

func TestEnrolNeedsAnInvitationTheFirstTime(t *testing.T) {
	b := newBed(t)
	before := b.tree()
	_, err := b.Enrol(t.Context(), "")
	if diff := cmp.Diff(before, b.tree()); refusal.Of(err) == nil || !strings.Contains(err.Error(), "in no mesh yet") || diff != "" {
		t.Errorf("%v; changed %s", err, diff)
	}
}

func TestEnrolDryRunChangesNothing(t *testing.T) {
	b, d := newBed(t), newDoor(t)
	b.DryRun = true
	before := b.tree()
	if _, err := b.Enrol(t.Context(), d.line); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, b.tree()); diff != "" || len(b.ran()) > 0 || len(d.asked()) > 0 {
		t.Errorf("changed: %s", diff)
	}
	for _, want := range []string{"would make this machine's keys", "would ask to be let in as db1", "would install /usr/local/bin/mesh-agent", "would start mesh-agent.service"} {
		if !strings.Contains(b.said.String(), want) {
			t.Errorf("%q is not said:\n%s", want, &b.said)
		}
	}
}

// TestALostAnswerIsAskedForWithTheSameKeys: the coordinator let the machine in, and the machine never
// heard so (NOD-1).
func TestALostAnswerIsAskedForWithTheSameKeys(t *testing.T) {
	b, d := newBed(t), newDoor(t)
	d.hears(b)
	d.judge = func(n int, _ enrol.Ask) error {
		if n <= 2 {
			return errors.New("the disk was full for a moment")
		}
		return nil
	}
	if _, err := b.Enrol(t.Context(), d.line); err == nil {
		t.Fatal("the first try came through")
	}
	if f := b.credential(); f.Signer != "" {
		t.Errorf("the credential is whole without an answer: %+v", f)
	}
	if exists(b.at("/usr/local/bin/mesh-agent")) || !strings.Contains(b.said.String(), "kept "+credentialFile) {
		t.Errorf("the agent is there, or the kept keys are not said:\n%s", &b.said)
	}
	if _, err := b.Enrol(t.Context(), d.line); err == nil {
		t.Fatal("the second try came through")
	}
	if _, err := b.Enrol(t.Context(), d.line); err != nil {
		t.Fatalf("the third try: %v", err)
	}
	asks := d.asked()
	if asks[0].Key != asks[2].Key || asks[0].Curve != asks[2].Curve {
		t.Error("the machine made new keys")
	}
}

func TestEnrolWaitsForTheFirstReport(t *testing.T) {
	b, d := newBed(t), newDoor(t)
	before := b.tree()
	_, err := b.Enrol(t.Context(), d.line)
	var failed *Failure
	if !errors.As(err, &failed) || !strings.Contains(err.Error(), "it did not report") || !strings.Contains(failed.Do, "journalctl -u mesh-agent") || !strings.Contains(failed.Do, "undone") {
		t.Fatalf("an agent that is never heard: %v", err)
	}
	after := b.tree()
	maps.DeleteFunc(after, func(p, _ string) bool { return strings.HasPrefix(p, agentFolder) })
	before["/var/lib"], after["/var/lib"] = "", ""
	if diff := cmp.Diff(before, after); diff != "" || b.active[unit.AgentName] {
		t.Errorf("left behind: %s", diff)
	}
	// The same line goes on from there.
	d.hears(b)
	if _, err := b.Enrol(t.Context(), d.line); err != nil {
		t.Fatal(err)
	}
}

// TestEnrolRefusals: each wrong thing is said in two lines, and the machine is as before.
func TestEnrolRefusals(t *testing.T) {
	refuse := func(what, why, do string) func(*testing.T, *bed, *door) {
		return func(_ *testing.T, _ *bed, d *door) {
			d.judge = func(int, enrol.Ask) error { return refusal.New(what, why, do) }
		}
	}
	for _, tt := range []struct {
		name string
		set  func(*testing.T, *bed, *door)
		line func(*door) string
		says []string
	}{
		{"not root", func(_ *testing.T, b *bed, _ *door) { b.Machine.UID = 1000 }, nil, []string{"uid 1000", "sudo"}},
		{"no systemd", func(t *testing.T, b *bed, _ *door) { must(t, os.RemoveAll(b.at("/run/systemd/system"))) }, nil, []string{"PID 1"}},
		{"no nftables", func(_ *testing.T, b *bed, _ *door) {
			b.Machine.Filter = func() error { return errors.New("protocol not supported") }
		}, nil, []string{"nftables", "protocol not supported"}},
		{"a full disk", func(_ *testing.T, b *bed, _ *door) {
			b.Machine.Free = func(string) (int64, error) { return 5 << 20, nil }
		}, nil, []string{"5 MiB", "make room"}},
		{"a file system that is read-only", func(_ *testing.T, b *bed, _ *door) {
			b.Machine.Writable = func(folder string) error {
				if strings.HasSuffix(folder, "/usr/local/bin") {
					return unix.EROFS
				}
				return nil
			}
		}, nil, []string{"/usr/local/bin", "mounted read-only", "remount,rw"}},
		{"no programs", func(_ *testing.T, b *bed, _ *door) { b.From = t.TempDir() }, nil, []string{"mesh-agent", "--from"}},
		{"a program that is a script", func(t *testing.T, b *bed, _ *door) { b.writeAt(b.From+"/mesh-agent", "#!/bin/sh\n", 0o755) }, nil, []string{"no program"}},
		{"no machine id", func(_ *testing.T, b *bed, _ *door) { b.write("/etc/machine-id", "uninitialized\n") }, nil, []string{"uninitialized", "systemd-machine-id-setup"}},
		{"in another mesh", func(t *testing.T, b *bed, _ *door) { member(t, b, "other", "web1") }, nil, []string{"web1 of the mesh other", "mesh-installer leave"}},
		{"under another name", func(t *testing.T, b *bed, _ *door) { member(t, b, "mesh-id", "web1") }, nil, []string{"web1", "mesh-installer leave"}},
		{"no invitation", nil, func(*door) string { return "hello" }, []string{`starts with "mesh1-"`}},
		{"a cut one", nil, func(d *door) string { return d.line[:len(d.line)-3] }, []string{"cut or mistyped", "copy the whole line"}},
		{"a clock that is off", refuse("the machine for db1", "its clock is 10m0s behind the coordinator's", "set its clock"), nil, []string{"10m0s", "set its clock"}},
		{"a cloned image", refuse("the machine for db1", "its machine id is that of web1: a cloned image", "give the clone its own"), nil, []string{"cloned image"}},
		{"a used one", refuse("the invitation k3v9", "another machine used it", "make a new one"), nil, []string{"another machine used it"}},
		{"a revoked one", func(t *testing.T, _ *bed, d *door) { d.bus.Remove(t, "invitation-"+invited) }, nil, []string{"the invitation k3v9", "revoked", "node invite db1"}},
		{"one that is long over", func(t *testing.T, _ *bed, d *door) { d.bus.Remove(t, "invitation-"+invited) }, func(d *door) string {
			inv := d.inv
			inv.Expires = clock.Real().Now().Add(-48 * time.Hour).UnixMilli()
			line, _ := inv.Encode()
			return line
		}, []string{"it ended 20", "node invite db1"}},
		{"a bus that is away", nil, func(d *door) string {
			inv := d.inv
			inv.Bus.Addresses = []string{"127.0.0.1:1"}
			line, _ := inv.Encode()
			return line
		}, []string{"127.0.0.1:1 is not reached", "connection refused"}},
		{"an impostor", nil, func(d *door) string {
			inv := d.inv
			inv.Bus.Pin = strings.Repeat("ab", 32)
			line, _ := inv.Encode()
			return line
		}, []string{"pinned"}},
		{"an answer with another authority", func(t *testing.T, _ *bed, d *door) {
			d.other = func(a *enrol.Answer) { a.Bus.CA = testbus.Bare(t).Authority.PEM() }
		}, nil, []string{"its certificate authority is not the invitation's"}},
		{"an answer for another machine", func(_ *testing.T, _ *bed, d *door) { d.other = func(a *enrol.Answer) { a.Node = "web1" } }, nil, []string{"it is for web1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, d := newBed(t), newDoor(t)
			if tt.set != nil {
				tt.set(t, b, d)
			}
			line := d.line
			if tt.line != nil {
				line = tt.line(d)
			}
			before := b.tree()
			_, err := b.Enrol(t.Context(), line)
			if refusal.Of(err) == nil || strings.Count(refusal.Of(err).Error(), "\n") != 1 {
				t.Fatalf("got %v, want a refusal in two lines", err)
			}
			for _, want := range tt.says {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q lacks %q", err, want)
				}
			}
			after := b.tree()
			if strings.HasPrefix(tt.name, "an answer") { // by then the keys are known there
				maps.DeleteFunc(after, func(p, _ string) bool { return strings.HasPrefix(p, agentFolder) })
			}
			if diff := cmp.Diff(before, after); diff != "" {
				t.Errorf("the machine was changed: %s", diff)
			}
		})
	}
}

// TestARepairThatFailsPutsBackWhatRan: the machine of a repair is a machine in use.
func TestARepairThatFailsPutsBackWhatRan(t *testing.T) {
	b, d := newBed(t), newDoor(t)
	d.hears(b)
	if _, err := b.Enrol(t.Context(), d.line); err != nil {
		t.Fatal(err)
	}
	b.write("/usr/local/bin/mesh-agent", "an older agent")
	b.ran()
	before := b.tree()
	b.fails["systemctl restart mesh-agent.service"] = &RunError{Args: []string{"systemctl", "restart"}, Stderr: "Job failed", Err: errors.New("exit status 1")}
	_, err := b.Enrol(t.Context(), d.line)
	if err == nil || !strings.Contains(err.Error(), "Job failed") {
		t.Fatalf("got %v", err)
	}
	if diff := cmp.Diff(before, b.tree()); diff != "" {
		t.Errorf("not put back: %s", diff)
	}
	got := b.ran()
	if got[len(got)-1] != "systemctl restart mesh-agent.service" {
		t.Errorf("the older agent was not started again: %q", got)
	}
}
