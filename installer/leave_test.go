package installer

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mesh/installer/unit"
	"mesh/shared/manifest"
)

// settled is a machine in a mesh with two modules on it.
func settled(t testing.TB) *bed {
	b := newBed(t)
	member(t, b, "mesh-id", "db1")
	b.write("/var/lib/mesh-agent/state.db", "x")
	b.write("/var/lib/mesh-agent/bundles/00/bin/web", "x")
	b.write("/var/lib/mesh-agent/env/mesh-notes-web.env", "x")
	b.write("/etc/systemd/system/mesh-notes-web.service", manifest.UnitMark+"notes, process web.\n# …\n[Service]\n")
	b.write("/etc/systemd/system/hook.timer", manifest.UnitMark+"hooks, unit hook.timer.\n[Timer]\n")
	b.write("/etc/systemd/system/mesh-of-somebody.service", "[Service]\n")
	b.write("/etc/systemd/system/"+unit.AgentName, unit.Agent())
	b.write("/etc/systemd/system/"+unit.FilterName, unit.Filter())
	b.write("/var/lib/mesh-agent/filter.nft", "x")
	b.write("/usr/local/bin/mesh-agent", "x")
	b.write("/usr/local/bin/mesh-installer", "x")
	b.write("/etc/notes/worker.conf", "x")
	b.write("/srv/notes/data", "x")
	ledger := "bundle:notes/00\ndir:/srv/notes\nfile:/etc/notes/worker.conf\nfile:/var/lib/mesh-agent/env/mesh-notes-web.env\nunit:mesh-notes-web.service\nuser:notes\n"
	run := b.Machine.Run
	b.Machine.Run = func(ctx ctx, args ...string) (string, error) {
		out, err := run(ctx, args...)
		switch strings.Join(args, " ") {
		case "/usr/local/bin/mesh-agent ledger":
			return ledger, nil
		case "nft list tables":
			return "table ip filter\n", nil
		}
		return out, err
	}
	return b
}

func TestLeave(t *testing.T) {
	for _, tt := range []struct {
		name  string
		o     LeaveOptions
		ran   []string
		gone  []string
		there []string
		stays []string
	}{
		{"and the workloads run on", LeaveOptions{},
			[]string{"mesh-agent ledger", "systemctl disable --now --quiet mesh-agent.service", "systemctl daemon-reload",
				"systemctl disable --now --quiet mesh-filter.service", "systemctl daemon-reload", "drop filter"},
			[]string{"/var/lib/mesh-agent/state.db", credentialFile, "/usr/local/bin/mesh-agent", "/usr/local/bin/mesh-installer", "/etc/systemd/system/mesh-agent.service",
				"/etc/systemd/system/mesh-filter.service", "/var/lib/mesh-agent/filter.nft"},
			[]string{"/var/lib/mesh-agent/bundles/00/bin/web", "/var/lib/mesh-agent/env/mesh-notes-web.env", "/etc/systemd/system/mesh-notes-web.service", "/srv/notes/data", "/etc/systemd/system/mesh-of-somebody.service"},
			[]string{"hook.timer of module hooks runs on", "mesh-notes-web.service of module notes runs on", "/var/lib/mesh-agent with the programs of these", "folder /srv/notes", "file /etc/notes/worker.conf", "user notes"}},
		{"and the workloads end", LeaveOptions{StopWorkloads: true, Filter: FilterNone},
			[]string{"mesh-agent ledger", "systemctl disable --now --quiet mesh-agent.service", "systemctl daemon-reload",
				"systemctl disable --now --quiet mesh-filter.service", "systemctl daemon-reload",
				"systemctl disable --now --quiet hook.timer mesh-notes-web.service", "systemctl daemon-reload", "drop filter", "nft list tables"},
			[]string{"/var/lib/mesh-agent", "/etc/systemd/system/mesh-notes-web.service", "/etc/systemd/system/hook.timer"},
			[]string{"/srv/notes/data", "/etc/notes/worker.conf", "/etc/systemd/system/mesh-of-somebody.service"},
			[]string{"folder /srv/notes", "file /etc/notes/worker.conf", "user notes", "packet filters that are not mesh's: table ip filter"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := settled(t)
			before := b.tree()
			b.DryRun = true
			if _, err := b.Leave(t.Context(), tt.o); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(before, b.tree()); diff != "" {
				t.Fatalf("the dry run changed %s", diff)
			}
			b.DryRun = false
			b.ran()
			left, err := b.Leave(t.Context(), tt.o)
			if err != nil {
				t.Fatal(err)
			}
			if got := b.ran(); !slices.Equal(got, tt.ran) {
				t.Errorf("ran %q, want %q", got, tt.ran)
			}
			for _, p := range tt.gone {
				if exists(b.at(p)) {
					t.Errorf("%s is still there", p)
				}
			}
			for _, p := range tt.there {
				if !exists(b.at(p)) {
					t.Errorf("%s is gone", p)
				}
			}
			if left.Node != "db1" || !slices.Equal(left.Stays, tt.stays) {
				t.Errorf("left %+v, want %q", left, tt.stays)
			}
		})
	}
}

// TestLeaveAConvergedMachine: the front ends that mesh retired filter again before mesh's own table goes (NET-9).
func TestLeaveAConvergedMachine(t *testing.T) {
	for _, tt := range []struct{ filter, step, stays string }{
		{FilterFound, "mesh-agent firewall give-back", ""},
		{FilterNone, "", "switched off, as mesh left them: firewalld, ufw"},
	} {
		b := settled(t)
		run := b.Machine.Run
		b.Machine.Run = func(ctx ctx, args ...string) (string, error) {
			out, err := run(ctx, args...)
			if strings.HasSuffix(strings.Join(args, " "), "mesh-agent ledger") {
				out += "front-end:firewalld\nfront-end:ufw\n"
			}
			return out, err
		}
		left, err := b.Leave(t.Context(), LeaveOptions{Filter: tt.filter})
		if err != nil {
			t.Fatal(err)
		}
		ran := b.ran()
		if at := slices.Index(ran, "mesh-agent firewall give-back"); (at >= 0) != (tt.step != "") || at > slices.Index(ran, "drop filter") || at >= 0 && at < slices.Index(ran, "systemctl disable --now --quiet mesh-agent.service") {
			t.Errorf("with %s, ran %q", tt.filter, ran)
		}
		if tt.stays != "" && !slices.Contains(left.Stays, tt.stays) {
			t.Errorf("with %s, stays %q", tt.filter, left.Stays)
		}
	}
}

func TestLeaveWithTheCoordinatorHere(t *testing.T) {
	b := settled(t)
	b.write("/var/lib/mesh-coordinator/records.db", "x")
	b.write("/etc/systemd/system/"+unit.CoordinatorName, unit.Coordinator())
	b.write("/usr/local/bin/mesh-coordinator", "x")
	b.write(operatorFile, "x")
	before := b.tree()
	if _, err := b.Leave(t.Context(), LeaveOptions{}); err == nil || !strings.Contains(err.Error(), "--coordinator-too") {
		t.Errorf("got %v", err)
	}
	if diff := cmp.Diff(before, b.tree()); diff != "" {
		t.Fatalf("it changed %s", diff)
	}
	if _, err := b.Leave(t.Context(), LeaveOptions{CoordinatorToo: true, StopWorkloads: true}); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{coordinatorFolder, agentFolder, meshFolder, "/usr/local/bin/mesh-coordinator", "/etc/systemd/system/mesh-coordinator.service"} {
		if exists(b.at(p)) {
			t.Errorf("%s is still there", p)
		}
	}
	left, err := b.Leave(t.Context(), LeaveOptions{})
	if err != nil || left.Node != "" || !strings.Contains(b.said.String(), "mesh is not on this machine") {
		t.Errorf("again: %+v, %v", left, err)
	}
	if _, err := b.Leave(t.Context(), LeaveOptions{Filter: "what"}); err == nil {
		t.Error("a filter that does not exist was taken")
	}
}
