package apply_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"mesh/agent/apply"
	"mesh/shared/clock"
	"mesh/shared/manifest"
	"mesh/shared/report"
	"mesh/shared/waitfor"
	"mesh/testbus/hosts"
)

const (
	onHostEnv = "MESH_TEST_ON_HOST"
	onlyEnv   = "MESH_TEST_CASE" // for a person: one case of TestOnABootedHost
	dumpEnv   = "MESH_TEST_DUMP"
)

// dumped is what a program was started with.
type dumped struct {
	Args, Env []string
	Dir       string
}

// dump is this test's own binary as a program of a module: it says what it was started with, and stays.
func dump(to string) {
	d := dumped{Args: os.Args[1:], Env: os.Environ()}
	d.Dir, _ = os.Getwd()
	b, err := json.Marshal(d)
	if err == nil {
		err = os.WriteFile(to+".new", b, 0o644)
	}
	if err == nil {
		err = os.Rename(to+".new", to)
	}
	if err != nil {
		panic(err)
	}
	for {
		_ = syscall.Pause() // until it is killed
	}
}

// TestOnABootedHost runs this test's own binary in a Debian host with systemd as PID 1; in there it runs the
// cases, each with an engine of its own on the host's real files and units.
func TestOnABootedHost(t *testing.T) {
	if os.Getenv(onHostEnv) != "" {
		for _, c := range []struct {
			name string
			test func(*testing.T, *bed)
		}{
			{"words", hostWords}, {"hangs", hostHangs}, {"crashes", hostCrashes}, {"bad units", hostBadUnits}, {"by hand", hostByHand},
			{"lost store", hostLostStore}, {"many", hostMany},
		} {
			if only := os.Getenv(onHostEnv); only != "all" && only != c.name {
				continue
			}
			t.Run(c.name, func(t *testing.T) {
				b := hostBed(t, filepath.Join("/var/lib/mesh-test", strings.ReplaceAll(c.name, " ", "-")))
				c.test(t, b)
				seq, _ := b.store.Newest()
				applied(t, b.until(t, b.accept(t, seq+1), report.Applied)) // everything goes
			})
		}
		return
	}
	self, err := os.Executable()
	must(t, err)
	host := hosts.New(t, 1).Host(1)
	host.Copy(t, self, "/root/apply.test", 0o755)
	out, err := host.Exec(t.Context(), hosts.Command{
		Args: []string{"/root/apply.test", "-test.run=^TestOnABootedHost$", "-test.v", "-test.timeout=5m"},
		Env:  []string{onHostEnv + "=" + cmp.Or(os.Getenv(onlyEnv), "all")},
	})
	t.Logf("in the host:\n%s%s", out.Stdout, out.Stderr)
	if err != nil || out.Exit != 0 {
		t.Fatalf("in the host: exit %d, %v", out.Exit, err)
	}
}

func hostBed(t testing.TB, dir string) *bed {
	t.Helper()
	must(t, os.MkdirAll(dir, 0o755))
	b, err := makeBed(dir)
	must(t, err)
	b.real = true
	b.open(t)
	return b
}

// until makes passes until the outcome is as wanted.
func (b *bed) until(t testing.TB, r apply.Result, want report.Outcome) apply.Result {
	t.Helper()
	waitfor.True(t, "the outcome "+string(want), 40*time.Second, func() (bool, any) {
		if r.Outcome != want {
			r = b.pass(t, apply.Reconcile)
		}
		return r.Outcome == want, fmt.Sprintf("%s %s %v", r.Outcome, states(r), r.Refused)
	})
	return r
}

func sh(t testing.TB, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// hostWords: a program gets the arguments and variables that were declared, to the letter.
func hostWords(t *testing.T, b *bed) {
	const odd = "a b'\"\\ \\n \\x41 $HOME ${HOME} $$ %n %% %H ; # ünï 🙂 \u00a0 end\\"
	args := []string{"--", odd, "", ";", "%i", "$PATH", "-", "@", " lead", "trail ", "ü", `\`, `"`, "'", "{}", "*", "~", "|", "&&", ">x"}
	self, err := os.Executable()
	must(t, err)
	dir := b.root("/srv/odd dir %n $x")
	m := module("words", manifest.Run{
		Directories: []manifest.Directory{{Path: dir}},
		Processes: map[string]manifest.Process{"p": {Exec: append([]string{"bin/odd name %n $x"}, args...), Directory: dir, Env: map[string]string{
			dumpEnv: b.path("dump"), "ODD": strings.ReplaceAll(odd, "$$", "$$"), "EMPTY": "", "SET": "${setting:s}", "SECRET": "${secret:k}", "TWO": "<${secret:k}|${setting:s}>"}}}})
	bin, err := os.ReadFile(self)
	must(t, err)
	m = m.with(b.artifact(t, map[string]string{"bin/odd name %n $x": string(bin)}))
	m.Settings, m.settings = map[string]manifest.Setting{"s": {}}, map[string]string{"s": odd + "\nsecond line\r\n\x01 end"}
	m.Secrets, m.secrets = map[string]manifest.Secret{"k": {}}, map[string]string{"k": odd + "\n#x=\"y\"\n`z` \\\n\ttab"}
	// A placeholder's beginning is escaped in a manifest.
	p := m.Run.Processes["p"]
	p.Env["ODD"] = strings.ReplaceAll(odd, "${", "$${")
	if r := b.accept(t, 1, m); r.Outcome != report.Applied {
		t.Fatalf("%+v\n%s\n%s", r.Modules, sh(t, "cat", "/etc/systemd/system/mesh-words-p.service"), sh(t, "journalctl", "-u", "mesh-words-p", "--no-pager"))
	}
	var got dumped
	waitUntil(t, "the program", func() bool {
		raw, err := os.ReadFile(b.path("dump"))
		return err == nil && json.Unmarshal(raw, &got) == nil
	})
	if d := gocmp.Diff(args, got.Args); d != "" {
		t.Errorf("arguments (-want +got):\n%s", d)
	}
	for k, want := range map[string]string{"ODD": odd, "EMPTY": "", "SET": m.settings["s"], "SECRET": m.secrets["k"], "TWO": "<" + m.secrets["k"] + "|" + m.settings["s"] + ">"} {
		i := slices.IndexFunc(got.Env, func(e string) bool { return strings.HasPrefix(e, k+"=") })
		if i < 0 {
			t.Errorf("%s is not set", k)
		} else if d := gocmp.Diff(want, strings.TrimPrefix(got.Env[i], k+"=")); d != "" {
			t.Errorf("%s (-want +got):\n%s", k, d)
		}
	}
	if got.Dir != dir {
		t.Errorf("it runs in %q, want %q", got.Dir, dir)
	}
	// Names as long as they may be.
	long := module(strings.Repeat("m", 40), manifest.Run{Processes: map[string]manifest.Process{strings.Repeat("p", 40): {Exec: []string{"/bin/sleep", "1000"}, Env: map[string]string{"S": "${secret:k}"}}},
		Files: []manifest.File{{Path: "/etc/" + strings.Repeat("f", 250), Content: "x"}, {Path: "/etc/" + strings.Repeat("d", 255) + "/" + strings.Repeat("e", 255) + "/x", Content: "x"}}})
	long.Secrets, long.secrets = map[string]manifest.Secret{"k": {}}, map[string]string{"k": "v"}
	applied(t, b.accept(t, 2, long))
}

// raw is a module with one unit in its own words.
func raw(name, unit, content string) mod {
	return module(name, manifest.Run{Units: map[string]manifest.Unit{unit: {Content: content, Started: true, Enabled: strings.Contains(content, "[Install]")}}})
}

// hostHangs: what does not come up or go down holds up nothing.
func hostHangs(t *testing.T, b *bed) {
	slow := []mod{
		raw("notify", "t-notify.service", "[Service]\nType=notify\nTimeoutStartSec=infinity\nExecStart=/bin/sleep 1000"),
		raw("pre", "t-pre.service", "[Service]\nTimeoutStartSec=infinity\nExecStartPre=/bin/sleep 1000\nExecStart=/bin/sleep 1000"),
		raw("waits", "t-waits.service", "[Unit]\nWants=t-notify.service\nAfter=t-notify.service\n[Service]\nExecStart=/bin/sleep 1000"),
		raw("oneshot", "t-oneshot.service", "[Service]\nType=oneshot\nExecStart=/bin/sleep 1000"),
		module("deaf", manifest.Run{Processes: map[string]manifest.Process{"p": {Exec: []string{"/bin/sh", "-c", "trap '' TERM; while :; do sleep 1; done"}}}}),
		module("fine", manifest.Run{Processes: map[string]manifest.Process{"p": {Exec: []string{"/bin/sleep", "1000"}}}}),
	}
	began := clock.Real().Now()
	r := b.accept(t, 1, slow...)
	if took := clock.Real().Now().Sub(began); took > 25*time.Second {
		t.Errorf("the pass took %v", took)
	}
	if want := "deaf running, fine running, notify pending, oneshot pending, pre pending, waits pending"; states(r) != want || r.Outcome != report.Applying {
		t.Errorf("%s %s, want %s", r.Outcome, states(r), want)
	}
	for range 3 {
		began = clock.Real().Now()
		r = b.pass(t, apply.Reconcile)
		if took := clock.Real().Now().Sub(began); took > 5*time.Second || len(r.Drift) > 0 || r.Steps > 0 {
			t.Errorf("the next pass took %v, made %d steps, found %v", took, r.Steps, r.Drift)
		}
	}
	if want := "deaf running, fine running, notify pending, oneshot running, pre pending, waits pending"; states(r) != want || r.Outcome != report.Applying {
		t.Errorf("%s %s, want %s", r.Outcome, states(r), want)
	}
	// It goes although one does not listen to SIGTERM: mesh waits, and systemd kills it in the end.
	began = clock.Real().Now()
	r = b.accept(t, 2, slow[5])
	if took := clock.Real().Now().Sub(began); took > 25*time.Second || r.Outcome != report.Applying || states(r) != "fine running" {
		t.Errorf("took %v: %s %s %v", took, r.Outcome, states(r), r.Refused)
	}
	sh(t, "systemctl", "kill", "-s", "KILL", "mesh-deaf-p.service")
	b.until(t, r, report.Applied)
	if out := sh(t, "sh", "-c", "systemctl list-units --all --plain --no-legend 't-*' 'mesh-*'"); strings.Contains(out, "deaf") || strings.Contains(out, "t-") {
		t.Errorf("left: %s", out)
	}
}

// hostCrashes: a program that ends, at once or after a while.
func hostCrashes(t *testing.T, b *bed) {
	run := func(restart manifest.Restart, script string) manifest.Run {
		return manifest.Run{Processes: map[string]manifest.Process{"p": {Exec: []string{"/bin/sh", "-c", script}, Restart: restart}}}
	}
	r := b.accept(t, 1,
		module("ends-well", run(manifest.Always, "exit 0")), module("ends-bad", run(manifest.OnFailure, "exit 3")),
		module("late", run(manifest.Always, "sleep 3; exit 7")),
		module("once", run(manifest.Never, "exit 0")), module("once-bad", run(manifest.Never, "exit 5")), module("until-done", run(manifest.OnFailure, "exit 0")),
		module("no-program", manifest.Run{Processes: map[string]manifest.Process{"p": {Exec: []string{"/no/such/program"}}}}),
	)
	if want := "ends-bad failed, ends-well failed, late running, no-program failed, once running, once-bad failed, until-done running"; states(r) != want {
		t.Errorf("%s, want %s: %+v", states(r), want, r.Modules)
	}
	seen := map[string]map[string]bool{}
	began := clock.Real().Now()
	waitfor.True(t, "some crashes", 30*time.Second, func() (bool, any) {
		r = b.pass(t, apply.Reconcile)
		for _, m := range r.Modules {
			if seen[string(m.Name)] == nil {
				seen[string(m.Name)] = map[string]bool{}
			}
			seen[string(m.Name)][string(m.State)+" "+m.Detail] = true
		}
		return clock.Real().Now().Sub(began) > 15*time.Second, nil
	})
	for m, ways := range seen {
		if len(ways) > 3 {
			t.Errorf("%s is said in %d ways: %v", m, len(ways), slices.Sorted(maps.Keys(ways)))
		}
	}
	if want := "ends-bad failed, ends-well failed, late failed, no-program failed, once running, once-bad failed, until-done running"; states(r) != want {
		t.Errorf("%s, want %s: %+v", states(r), want, r.Modules)
	}
	applied(t, b.accept(t, 2, module("late", run(manifest.Always, "sleep 1000"))))
}

// hostBadUnits: what systemd does not take fails its module, by name, and no other.
func hostBadUnits(t *testing.T, b *bed) {
	fine := module("fine", manifest.Run{Processes: map[string]manifest.Process{"p": {Exec: []string{"/bin/sleep", "1000"}}}})
	r := b.accept(t, 1, fine,
		raw("alias", "t-alias.service", "[Service]\nExecStart=/bin/sleep 1000\n[Install]\nAlias=t-alias.timer"),
		raw("no-exec", "t-noexec.service", "[Service]\nType=exec\n[Install]\nWantedBy=multi-user.target"),
		module("calendar", manifest.Run{Timers: map[string]manifest.Timer{"t": {Exec: []string{"/bin/true"}, Calendar: "Mon 99:99"}}}),
		raw("cron", "cron.service", "[Service]\nExecStart=/bin/sleep 1000"),
		raw("dbus-like", "nftables.service", "[Service]\nExecStart=/bin/sleep 1000"),
	)
	t.Log(states(r))
	for range 3 {
		r = b.pass(t, apply.Reconcile)
		for _, d := range r.Drift {
			t.Errorf("found, though nobody did anything: %+v", d)
		}
	}
	for _, m := range r.Modules {
		t.Logf("%s: %s %s", m.Name, m.State, m.Detail)
		if want := map[bool]report.State{true: report.Running, false: report.Broken}[m.Name == "fine" || m.Name == "cron"]; m.State != want {
			t.Errorf("%s is %s, want %s: %s", m.Name, m.State, want, m.Detail)
		}
	}
	applied(t, b.until(t, b.accept(t, 2, fine,
		raw("also", "t-also.service", "[Service]\nExecStart=/bin/sleep 1000\n[Install]\nAlso=mesh-fine-p.service")), report.Applied))
	for range 3 {
		if r = applied(t, b.pass(t, apply.Reconcile)); len(r.Drift) > 0 || r.Steps > 0 {
			t.Errorf("a unit with Also= only: %+v", r)
		}
	}
}

// hostByHand: what a person does to units, users and files, with the tools a person has.
func hostByHand(t *testing.T, b *bed) {
	m := module("hand", manifest.Run{
		Users:       map[string]manifest.User{"handy": {}},
		Files:       []manifest.File{{Path: "/etc/hand/conf", Content: "x", Owner: "handy", Group: "handy", Mode: "0640"}},
		Directories: []manifest.Directory{{Path: "/srv/hand", Owner: "handy", Group: "handy", Mode: "2770"}},
		Processes:   map[string]manifest.Process{"p": {Exec: []string{"/bin/sleep", "1000"}, User: "handy"}},
		Timers:      map[string]manifest.Timer{"t": {Exec: []string{"/bin/true"}, Calendar: "daily"}},
	})
	applied(t, b.accept(t, 1, m))
	const unit = "mesh-hand-p.service"
	for _, tt := range []struct {
		name string
		do   func()
		says string
	}{
		{"stop", func() { sh(t, "systemctl", "stop", unit) }, "it was stopped"},
		{"stop the timer", func() { sh(t, "systemctl", "stop", "mesh-hand-t.timer") }, "it was stopped"},
		{"disable", func() { sh(t, "systemctl", "disable", unit) }, "it does not start at boot any more"},
		{"the unit removed", func() { must(t, os.Remove("/etc/systemd/system/"+unit)) }, "it is gone"},
		{"the unit removed and forgotten", func() {
			must(t, os.Remove("/etc/systemd/system/"+unit))
			sh(t, "systemctl", "daemon-reload")
			sh(t, "systemctl", "stop", unit)
		}, "it is gone"},
		{"the unit changed and in force", func() {
			sh(t, "sed", "-i", "s/1000/2000/", "/etc/systemd/system/"+unit)
			sh(t, "systemctl", "daemon-reload")
			sh(t, "systemctl", "restart", unit)
		}, "content differs"},
		{"a drop-in", func() {
			must(t, os.MkdirAll("/etc/systemd/system/"+unit+".d", 0o755))
			must(t, os.WriteFile("/etc/systemd/system/"+unit+".d/override.conf", []byte("[Service]\nNice=5\n"), 0o644))
			sh(t, "systemctl", "daemon-reload")
		}, "a drop-in changes it"},
		{"no drop-in any more", func() {
			must(t, os.RemoveAll("/etc/systemd/system/"+unit+".d"))
			sh(t, "systemctl", "daemon-reload")
		}, ""},
		{"the user removed", func() {
			sh(t, "systemctl", "stop", unit)
			sh(t, "userdel", "handy")
		}, "user handy is not there"},
		{"the user's shell", func() { sh(t, "usermod", "-s", "/bin/sh", "handy") }, "shell of user handy"},
		{"the user in a group", func() { sh(t, "usermod", "-aG", "adm", "handy") }, "groups of user handy"},
		{"owner", func() { sh(t, "chown", "root:root", "/etc/hand/conf", "/srv/hand") }, "owner is root"},
		{"setgid lost", func() { sh(t, "chmod", "g-s", "/srv/hand") }, "declared 2770"},
		{"folder gone", func() { must(t, os.RemoveAll("/srv/hand")) }, "it is gone"},
		{"immutable", func() {
			sh(t, "sh", "-c", "echo y >/etc/hand/conf; chattr +i /etc/hand/conf || true")
		}, ""},
		{"not immutable any more", func() { sh(t, "sh", "-c", "chattr -i /etc/hand/conf || true") }, ""},
	} {
		tt.do()
		var found []report.Drift
		what := ""
		waitfor.True(t, tt.name+" to be put right", 20*time.Second, func() (bool, any) {
			r := b.pass(t, apply.Reconcile)
			found = append(found, r.Drift...)
			what = fmt.Sprintf("%s %s %v", r.Outcome, states(r), r.Refused)
			return r.Outcome == report.Applied && r.Steps == 0 || tt.name == "immutable" && r.Outcome == report.Failed, what
		})
		if tt.says != "" && !slices.ContainsFunc(found, func(d report.Drift) bool { return strings.Contains(d.What, tt.says) }) {
			t.Errorf("%s: found %+v, want %q", tt.name, found, tt.says)
		}
		if tt.name == "immutable" && !strings.Contains(what, "immutable") {
			t.Errorf("immutable: %s", what)
		}
		if out := sh(t, "sh", "-c", "systemctl is-active "+unit+" mesh-hand-t.timer; systemctl is-enabled "+unit+"; systemctl show -P ExecStart "+unit+" | grep -c 'sleep 1000'"); out != "active\nactive\nenabled\n1" {
			t.Errorf("after %s: %s", tt.name, out)
		}
		st, err := os.Stat("/srv/hand")
		must(t, err)
		if st.Mode().Perm() != 0o770 || st.Mode()&fs.ModeSetgid == 0 || fmt.Sprint(st.Sys().(*syscall.Stat_t).Uid) != sh(t, "id", "-u", "handy") {
			t.Errorf("after %s: /srv/hand is %v", tt.name, st.Mode())
		}
	}
}

// hostLostStore: the store is lost while modules run. Nothing is restarted, nothing is held, and what goes
// afterwards goes.
func hostLostStore(t *testing.T, b *bed) {
	m := module("lost", manifest.Run{
		Files:     []manifest.File{{Path: "/etc/lost/conf", Content: "x"}},
		Processes: map[string]manifest.Process{"p": {Exec: []string{"bin/p", "1000"}}},
	}).with(b.artifact(t, map[string]string{"bin/p": "#!/bin/sh\nexec sleep 1000\n"}))
	applied(t, b.accept(t, 5, m))
	pid := sh(t, "systemctl", "show", "-P", "MainPID", "mesh-lost-p.service")
	must(t, b.stop())
	for _, p := range []string{"state.db", "state.db-wal", "state.db-shm"} {
		if err := os.Remove(b.path("state/" + p)); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	must(t, b.start())
	if r := b.pass(t, apply.Boot); r.Outcome != report.None {
		t.Errorf("%+v", r)
	}
	applied(t, b.accept(t, 5, m))
	if got := sh(t, "systemctl", "show", "-P", "MainPID", "mesh-lost-p.service"); got != pid {
		t.Errorf("it was restarted: %s, was %s", got, pid)
	}
	applied(t, b.accept(t, 6))
	if out := sh(t, "sh", "-c", "systemctl list-unit-files 'mesh-lost*' --no-legend; ls /etc/systemd/system | grep lost || true; ls "+b.path("state/bundles")); out != "" {
		t.Errorf("left: %s", out)
	}
	must(t, os.RemoveAll("/etc/lost")) // adopted, so not removed
}

// hostMany: 50 modules with 10 units' worth of work in all, and 500 files in one module.
func hostMany(t *testing.T, b *bed) {
	var mods []mod
	for i := range 50 {
		run := manifest.Run{Files: []manifest.File{file(fmt.Sprintf("/etc/many/%02d", i), "x")}}
		if i%2 == 0 {
			run.Processes = map[string]manifest.Process{"p": {Exec: []string{"/bin/sleep", "1000"}}}
		}
		mods = append(mods, module(fmt.Sprintf("m%02d", i), run))
	}
	var all []manifest.File
	for i := range 500 {
		all = append(all, file(fmt.Sprintf("/etc/many/files/%03d", i), strings.Repeat("line\n", 50)))
	}
	mods = append(mods, module("files", files(all...)))
	began := clock.Real().Now()
	applied(t, b.accept(t, 1, mods...))
	first := clock.Real().Now().Sub(began)
	var usage [2]syscall.Rusage
	must(t, syscall.Getrusage(syscall.RUSAGE_SELF, &usage[0]))
	began = clock.Real().Now()
	const passes = 20
	for range passes {
		if r := applied(t, b.pass(t, apply.Reconcile)); r.Steps > 0 {
			t.Errorf("%+v", r)
		}
	}
	took := clock.Real().Now().Sub(began) / passes
	must(t, syscall.Getrusage(syscall.RUSAGE_SELF, &usage[1]))
	cpu := time.Duration(usage[1].Utime.Nano()+usage[1].Stime.Nano()-usage[0].Utime.Nano()-usage[0].Stime.Nano()) / passes
	t.Logf("first %v; a pass %v, cpu %v; rss max %d MiB", first, took, cpu, usage[1].Maxrss>>10)
	if cpu > 60*time.Millisecond {
		t.Errorf("a pass costs %v of processor time", cpu)
	}
}
