package resource_test

import (
	"crypto/rand"
	"encoding/json"
	"flag"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"mesh/agent/resource"
	"mesh/shared/credential"
	"mesh/shared/declaration"
	"mesh/shared/manifest"
	"mesh/shared/refusal"
	"mesh/shared/strict"
	"mesh/shared/subject"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const digest = "0011223344556677889900112233445566778899001122334455667788990011"

func def(s string) *string { return &s }

// notes is a module with one of everything.
func notes() manifest.Manifest {
	return manifest.Manifest{
		Module: "notes",
		Build:  manifest.Build{Bundle: &manifest.Bundle{Output: "dist"}},
		Run: manifest.Run{
			Processes: map[string]manifest.Process{
				"db": {Exec: []string{"/usr/bin/notes-db"}, Restart: manifest.OnFailure},
				"web": {Exec: []string{"bin/web", "--title", `50% of "it" for $HOME; \o/`, "", "ünï"}, User: "notes", After: []string{"db"},
					Env: map[string]string{"PORT": "${setting:port}", "ODD": "a\tb \"c\" 100% \\ $X", "PASSWORD": "${secret:db}\"$`\\"}},
				"once": {Exec: []string{"/bin/true"}, Restart: manifest.Never, Directory: "data"},
			},
			Timers: map[string]manifest.Timer{"backup": {Exec: []string{"bin/backup"}, Calendar: "*-*-* 03:00", User: "notes"}},
			Units: map[string]manifest.Unit{
				"notes-hook.service": {Content: "[Service]\nType=oneshot\nExecStart=/bin/echo ${node:name} $${X}\n\n[Install]\nWantedBy=multi-user.target", Enabled: true, Started: true},
			},
			Files: []manifest.File{
				{Path: "/etc/notes/notes.conf", Content: "port ${setting:port}\n", Owner: "notes", Mode: "0640"},
				{Path: "/etc/notes/key", Content: "${secret:db}", Mode: "0600"},
			},
			Directories: []manifest.Directory{{Path: "/srv/notes", Owner: "notes", Group: "notes", Mode: "2750", Data: true}},
			Users:       map[string]manifest.User{"notes": {Groups: []string{"ssl-cert"}}},
		},
		Settings: map[string]manifest.Setting{"port": {Default: def("8080")}},
		Secrets:  map[string]manifest.Secret{"db": {}},
	}
}

func module(t testing.TB, m manifest.Manifest) declaration.Module {
	t.Helper()
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	d := declaration.Module{Name: m.Module, Build: "b1", Manifest: b}
	if m.Build.Bundle != nil {
		d.Artifact = &declaration.Artifact{Digest: digest, Size: 5, Chunks: 1}
	}
	return d
}

func input(t testing.TB, modules ...declaration.Module) resource.Input {
	t.Helper()
	d := &declaration.Declaration{Head: declaration.Head{Format: 1, Mesh: "m", Node: "n1", Seq: 1}, Content: declaration.Content{Modules: modules}}
	ms, err := resource.Decode(d)
	if err != nil {
		t.Fatal(err)
	}
	return resource.Input{Declaration: d, Manifests: ms, BundleDir: "/var/lib/mesh-agent/bundles",
		Open: func(_ subject.Module, _ string, s credential.Sealed) (string, error) {
			return "opened-" + string(s), nil
		}}
}

func notesInput(t testing.TB) resource.Input {
	m := module(t, notes())
	m.Secrets = map[string]credential.Sealed{"db": "sealed"}
	return input(t, m)
}

func expand(t testing.TB, in resource.Input) map[string]resource.Resource {
	t.Helper()
	all, failed := resource.Expand(in)
	if len(failed) > 0 {
		t.Fatal(failed)
	}
	byID := map[string]resource.Resource{}
	for _, r := range all {
		byID[r.ID] = r
	}
	if len(byID) != len(all) {
		t.Fatal("an id twice")
	}
	return byID
}

func TestUnitsAreAsTheGoldenFiles(t *testing.T) {
	for _, r := range expand(t, notesInput(t)) {
		var name string
		var content []byte
		switch {
		case r.Kind == resource.KindUnit:
			name, content = r.Unit.Name, r.Unit.Content
		case strings.HasSuffix(r.ID, ".env"):
			name, content = filepath.Base(r.File.Path), r.File.Content
		default:
			continue
		}
		golden := filepath.Join("testdata", name)
		if *update {
			if err := os.WriteFile(golden, content, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(string(want), string(content)); d != "" {
			t.Errorf("%s (-golden +now):\n%s", name, d)
		}
	}
}

// An unknown key exits 0, so any output is a failure.
func TestSystemdTakesTheUnits(t *testing.T) {
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Fatal("systemd-analyze is needed: install the package systemd")
	}
	dir := t.TempDir()
	var files []string
	for _, r := range expand(t, notesInput(t)) {
		if r.Kind != resource.KindUnit {
			continue
		}
		// The programs and the user do not exist here; the analyzer would say so.
		text := strings.NewReplacer("/var/lib/mesh-agent/bundles/"+digest+"/bin/web", "/bin/true", "/var/lib/mesh-agent/bundles/"+digest+"/bin/backup", "/bin/true",
			"/usr/bin/notes-db", "/bin/true", "User=notes", "User=daemon").Replace(string(r.Unit.Content))
		f := filepath.Join(dir, r.Unit.Name)
		if err := os.WriteFile(f, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	out, err := exec.CommandContext(t.Context(), "systemd-analyze", append([]string{"verify", "--man=no"}, files...)...).CombinedOutput()
	var ours []string
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "mesh-") || strings.Contains(line, dir) || strings.Contains(line, "notes-hook") {
			ours = append(ours, line)
		}
	}
	if err != nil || len(ours) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}

func TestResourcesOfAModule(t *testing.T) {
	byID := expand(t, notesInput(t))
	want := map[string]string{
		"user:notes":                  "",
		"dir:/srv":                    "implied",
		"dir:/srv/notes":              "user:notes dir:/srv",
		"dir:/etc":                    "implied",
		"dir:/etc/notes":              "implied dir:/etc",
		"dir:/var/lib/mesh-agent/env": "implied",
		"bundle:notes/" + digest:      "",
		"file:/etc/notes/notes.conf":  "user:notes dir:/etc/notes",
		"file:/etc/notes/key":         "dir:/etc/notes",
		"file:/var/lib/mesh-agent/env/mesh-notes-web.env": "dir:/var/lib/mesh-agent/env",
		"unit:mesh-notes-db.service":                      "",
		"unit:mesh-notes-web.service":                     "",
		"unit:mesh-notes-once.service":                    "",
		"unit:mesh-notes-backup.service":                  "",
		"unit:mesh-notes-backup.timer":                    "",
		"unit:notes-hook.service":                         "",
	}
	for id, needs := range want {
		r, ok := byID[id]
		if !ok {
			t.Errorf("%s is missing", id)
			continue
		}
		delete(byID, id)
		if r.Kind == resource.KindUnit {
			continue
		}
		got := strings.Join(r.Needs, " ")
		if r.Kind == resource.KindDir && r.Dir.Implied {
			got = strings.TrimSpace("implied " + got)
		}
		if got != needs {
			t.Errorf("%s needs %q, want %q", id, got, needs)
		}
	}
	for id := range byID {
		t.Errorf("%s was not expected", id)
	}
	byID = expand(t, notesInput(t))
	if d := byID["dir:/srv/notes"].Dir; d.Mode != 0o750|fs.ModeSetgid || !d.Data {
		t.Errorf("%+v", d)
	}
	if f := byID["file:/etc/notes/notes.conf"].File; string(f.Content) != "port 8080\n" || f.Mode != 0o640 || f.Owner != "notes" || f.Group != "root" || f.Private {
		t.Errorf("%+v", f)
	}
	if f := byID["file:/etc/notes/key"].File; string(f.Content) != "opened-sealed" || !f.Private {
		t.Errorf("%+v", f)
	}
	web := byID["unit:mesh-notes-web.service"]
	for _, id := range []string{"user:notes", "dir:/srv/notes", "file:/etc/notes/key", "bundle:notes/" + digest, "unit:mesh-notes-db.service"} {
		if !slices.Contains(web.Needs, id) {
			t.Errorf("web does not need %s", id)
		}
	}
	if strings.Contains(string(web.Unit.Content), "opened") {
		t.Error("a secret stands in a unit")
	}
}

func TestOneModuleFailsAlone(t *testing.T) {
	bad := func(change func(*manifest.Manifest)) declaration.Module {
		m := manifest.Manifest{Module: "bad", Run: manifest.Run{Files: []manifest.File{{Path: "/etc/bad", Content: "x"}}}}
		change(&m)
		return module(t, m)
	}
	good := module(t, manifest.Manifest{Module: "good", Run: manifest.Run{Files: []manifest.File{{Path: "/etc/good"}}}})
	for _, tt := range []struct {
		name string
		mod  declaration.Module
		want []string
	}{
		{"a path that is mesh's own", bad(func(m *manifest.Manifest) { m.Run.Files[0].Path = "/etc/mesh/x" }), []string{"bad", "/etc/mesh/x"}},
		{"a setting nobody set", bad(func(m *manifest.Manifest) {
			m.Run.Files[0].Content = "${setting:port}"
			m.Settings = map[string]manifest.Setting{"port": {}}
		}), []string{"module bad", "/etc/bad", "port"}},
		{"a secret nobody set", bad(func(m *manifest.Manifest) {
			m.Run.Files[0].Content, m.Run.Files[0].Mode = "${secret:key}", "0600"
			m.Secrets = map[string]manifest.Secret{"key": {}}
		}), []string{"module bad", "/etc/bad", "key"}},
		{"a setting no environment can hold", func() declaration.Module {
			m := bad(func(m *manifest.Manifest) {
				m.Run.Processes = map[string]manifest.Process{"p": {Exec: []string{"/bin/p"}, Env: map[string]string{"X": "${setting:x}"}}}
				m.Settings = map[string]manifest.Setting{"x": {}}
			})
			m.Settings = map[string]string{"x": "a\x00b"}
			return m
		}(), []string{"module bad", "env X", "process p"}},
		{"another machine is needed", bad(func(m *manifest.Manifest) { m.Needs.Arch = []manifest.Arch{"s390x"} }), []string{"amd64", "s390x"}},
		{"the file of another module", bad(func(m *manifest.Manifest) { m.Run.Files[0].Path = "/etc/aaa" }), []string{"file:/etc/aaa", "module aaa"}},
		{"no artifact", func() declaration.Module {
			m := bad(func(m *manifest.Manifest) { m.Build.Bundle = &manifest.Bundle{Output: "dist"} })
			m.Artifact = nil
			return m
		}(), []string{"artifact"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			first := module(t, manifest.Manifest{Module: "aaa", Run: manifest.Run{Files: []manifest.File{{Path: "/etc/aaa"}}}})
			in := input(t, first, tt.mod, good)
			in.Machine = resource.Machine{Arch: "amd64", OS: "debian"}
			all, failed := resource.Expand(in)
			if len(failed) != 1 || refusal.Of(failed["bad"]) == nil {
				t.Fatalf("failed: %v", failed)
			}
			for _, w := range tt.want {
				if !strings.Contains(failed["bad"].Error(), w) {
					t.Errorf("%q does not name %q", failed["bad"], w)
				}
			}
			if !slices.ContainsFunc(all, func(r resource.Resource) bool { return r.ID == "file:/etc/good" }) {
				t.Error("the good module failed too")
			}
		})
	}
}

func TestUnknownFieldRefusesTheWhole(t *testing.T) {
	m := module(t, manifest.Manifest{Module: "notes", Run: manifest.Run{Files: []manifest.File{{Path: "/etc/x"}}}})
	m.Manifest = json.RawMessage(`{"module":"notes","run":{"colour":"red"}}`)
	_, err := resource.Decode(&declaration.Declaration{Content: declaration.Content{Modules: []declaration.Module{m}}})
	if r := refusal.Of(err); r == nil || !strings.Contains(r.Why, "modules[0].manifest.run.colour") || !strings.Contains(r.Do, "upgrade the agent") {
		t.Errorf("%v", err)
	}
	if !strings.Contains(err.Error(), strict.ErrUnknownField.Error()) {
		t.Errorf("%v", err)
	}
}

func TestSealedSecretIsOpened(t *testing.T) {
	curve, err := credential.NewCurve(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	public, err := curve.Public()
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := credential.Seal(rand.Reader, public, "n1", "notes", "db", "s3cret")
	if err != nil {
		t.Fatal(err)
	}
	m := module(t, notes())
	m.Secrets = map[string]credential.Sealed{"db": sealed}
	in := input(t, m)
	in.Open = func(mod subject.Module, key string, s credential.Sealed) (string, error) {
		return s.Open(curve, "n1", mod, key)
	}
	if f := expand(t, in)["file:/etc/notes/key"].File; string(f.Content) != "s3cret" {
		t.Errorf("%q", f.Content)
	}
}

func TestTriggerChangesWithWhatARunningProgramDependsOn(t *testing.T) {
	trigger := func(change func(*manifest.Manifest, *declaration.Module)) (web, timer string) {
		m := notes()
		d := declaration.Module{Secrets: map[string]credential.Sealed{"db": "sealed"}}
		change(&m, &d)
		mod := module(t, m)
		mod.Secrets, mod.Settings = d.Secrets, d.Settings
		if d.Artifact != nil {
			mod.Artifact = d.Artifact
		}
		all := expand(t, input(t, mod))
		return all["unit:mesh-notes-web.service"].Unit.Trigger, all["unit:mesh-notes-backup.timer"].Unit.Trigger
	}
	web, timer := trigger(func(*manifest.Manifest, *declaration.Module) {})
	for _, tt := range []struct {
		name       string
		change     func(*manifest.Manifest, *declaration.Module)
		web, timer bool
	}{
		{"nothing", func(*manifest.Manifest, *declaration.Module) {}, false, false},
		{"the description", func(m *manifest.Manifest, _ *declaration.Module) { m.Description = "other" }, false, false},
		{"a file", func(m *manifest.Manifest, _ *declaration.Module) { m.Run.Files[0].Content = "other" }, true, false},
		{"a setting", func(_ *manifest.Manifest, d *declaration.Module) { d.Settings = map[string]string{"port": "1"} }, true, false},
		{"a secret", func(_ *manifest.Manifest, d *declaration.Module) {
			d.Secrets = map[string]credential.Sealed{"db": "other"}
		}, true, false},
		{"the bundle", func(_ *manifest.Manifest, d *declaration.Module) {
			d.Artifact = &declaration.Artifact{Digest: strings.Repeat("ab", 32), Size: 1, Chunks: 1}
		}, true, false},
		{"an argument", func(m *manifest.Manifest, _ *declaration.Module) {
			p := m.Run.Processes["web"]
			p.Exec = []string{"bin/web"}
			m.Run.Processes["web"] = p
		}, true, false},
		{"a variable with a secret", func(m *manifest.Manifest, _ *declaration.Module) {
			m.Run.Processes["web"].Env["PASSWORD"] = "x${secret:db}"
		}, true, false},
		{"the calendar", func(m *manifest.Manifest, _ *declaration.Module) {
			tm := m.Run.Timers["backup"]
			tm.Calendar = "hourly"
			m.Run.Timers["backup"] = tm
		}, false, true},
	} {
		gotWeb, gotTimer := trigger(tt.change)
		if (gotWeb != web) != tt.web || (gotTimer != timer) != tt.timer {
			t.Errorf("%s: web %v, timer %v", tt.name, gotWeb != web, gotTimer != timer)
		}
	}
}

func TestSortIsTheSameForAnyOrder(t *testing.T) {
	in := notesInput(t)
	all, _ := resource.Expand(in)
	want := resource.Sort(all)
	at := map[string]int{}
	for i, r := range want {
		at[r.ID] = i
	}
	for _, r := range want {
		for _, n := range r.Needs {
			if at[n] > at[r.ID] {
				t.Errorf("%s comes before %s, which it needs", r.ID, n)
			}
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		shuffled := rapid.Permutation(all).Draw(rt, "order")
		for i, r := range resource.Sort(shuffled) {
			if r.ID != want[i].ID {
				rt.Fatalf("at %d %s, want %s", i, r.ID, want[i].ID)
			}
		}
	})
}
