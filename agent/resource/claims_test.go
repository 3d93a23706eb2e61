package resource_test

import (
	"slices"
	"strings"
	"testing"

	"mesh/agent/resource"
	"mesh/shared/manifest"
	"mesh/shared/refusal"
	"mesh/shared/subject"
)

// Two modules of one node that would have one thing: the second is refused, by name, and the first is not
// touched by it. No module takes over what another has on the machine while that one cannot be read.
func TestTwoModulesDoNotHaveOneThing(t *testing.T) {
	run := func(name string, r manifest.Run) manifest.Manifest {
		return manifest.Manifest{Module: subject.Module(name), Run: r}
	}
	files := func(paths ...string) (r manifest.Run) {
		for _, p := range paths {
			r.Files = append(r.Files, manifest.File{Path: p})
		}
		return r
	}
	dir := func(p string) manifest.Run {
		return manifest.Run{Directories: []manifest.Directory{{Path: p}}}
	}
	process := func(name string) manifest.Run {
		return manifest.Run{Processes: map[string]manifest.Process{name: {Exec: []string{"/bin/true"}}}}
	}
	unset := run("a", files("/etc/x"))
	unset.Run.Files[0].Content, unset.Settings = "${setting:port}", map[string]manifest.Setting{"port": {}}
	late := unset
	late.Module = "z"
	for _, tt := range []struct {
		name string
		mods []manifest.Manifest
		bad  string   // who is refused; empty: nobody
		want []string // what the refusal names
	}{
		{"process b-c of a and process c of a-b are one unit", []manifest.Manifest{run("a", process("b-c")), run("a-b", process("c"))}, "a-b", []string{"mesh-a-b-c.service", "module a "}},
		{"a process and the service of a timer", []manifest.Manifest{run("a", process("b-c")),
			run("a-b", manifest.Run{Timers: map[string]manifest.Timer{"c": {Exec: []string{"/bin/true"}, Calendar: "daily"}}})}, "a-b", []string{"mesh-a-b-c.service", "module a "}},
		{"one file", []manifest.Manifest{run("a", files("/etc/x")), run("b", files("/etc/x"))}, "b", []string{"/etc/x", "module a "}},
		{"one file by two names", []manifest.Manifest{run("a", files("/run/x/y")), run("b", files("/var/run/x/y"))}, "b", []string{"/var/run/x/y", "module a "}},
		{"one folder", []manifest.Manifest{run("a", dir("/srv/x")), run("b", dir("/srv/x"))}, "b", []string{"/srv/x", "module a "}},
		{"one user", []manifest.Manifest{run("a", manifest.Run{Users: map[string]manifest.User{"u": {}}}), run("b", manifest.Run{Users: map[string]manifest.User{"u": {}}})}, "b", []string{"user:u", "module a "}},
		{"one raw unit", []manifest.Manifest{run("a", manifest.Run{Units: map[string]manifest.Unit{"x.service": {Content: "[Service]"}}}),
			run("b", manifest.Run{Units: map[string]manifest.Unit{"x.service": {Content: "[Service]"}}})}, "b", []string{"x.service", "module a "}},
		{"a file and a folder", []manifest.Manifest{run("a", files("/srv/x")), run("b", dir("/srv/x"))}, "b", []string{"/srv/x", "module a has a file there"}},
		{"a file where another has files below", []manifest.Manifest{run("a", files("/srv/x/y")), run("b", files("/srv/x"))}, "b", []string{"/srv/x", "module a has a folder there"}},
		{"a file below another's file", []manifest.Manifest{run("a", files("/srv/x")), run("b", files("/srv/x/y"))}, "b", []string{"/srv/x", "module a has a file there"}},
		{"the first cannot be read", []manifest.Manifest{unset, run("b", files("/etc/x"))}, "b", []string{"/etc/x", "module a "}},
		{"the last cannot be read", []manifest.Manifest{run("b", files("/etc/x")), late}, "b", []string{"/etc/x", "module z "}},
		{"files in /run, which is /var/run", []manifest.Manifest{run("a", files("/run/x/1")), run("b", files("/var/run/x/2"))}, "", nil},
		{"folders that both only need", []manifest.Manifest{run("a", files("/srv/x/1")), run("b", files("/srv/x/2"))}, "", nil},
		{"a folder that one needs and the other declares", []manifest.Manifest{run("a", files("/srv/x/1")), run("b", dir("/srv/x"))}, "", nil},
		{"a folder that one declares and the other needs", []manifest.Manifest{run("a", dir("/srv/x")), run("b", files("/srv/x/1"))}, "", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := input(t, module(t, tt.mods[0]), module(t, tt.mods[1]))
			all, failed := resource.Expand(in)
			if tt.bad == "" {
				if len(failed) > 0 {
					t.Errorf("refused: %v", failed)
				}
				return
			}
			err := failed[subject.Module(tt.bad)]
			if refusal.Of(err) == nil {
				t.Fatalf("%s is not refused: %v", tt.bad, failed)
			}
			for _, w := range tt.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not say %q", err, w)
				}
			}
			if slices.ContainsFunc(all, func(r resource.Resource) bool { return string(r.Module) == tt.bad }) {
				t.Error("it has resources all the same")
			}
		})
	}
}
