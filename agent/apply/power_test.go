package apply_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"mesh/agent/apply"
	"mesh/shared/clock"
	"mesh/shared/manifest"
	"mesh/shared/report"
	"mesh/testbus/hosts"
)

// daemonEnv makes this test's own binary the agent of a host: it takes the declaration in the file "next" of the
// folder named, looks at the machine twice a second, and says how it went in the file "status".
const daemonEnv = "MESH_TEST_DAEMON"

type daemonStatus struct {
	Seq     uint64
	Outcome report.Outcome
	Steps   int
	Words   string
}

func daemon(dir string) {
	flag.Parse()
	b, err := bedAt(dir)
	if err != nil {
		panic(err)
	}
	b.real = true
	if err := b.start(); err != nil {
		panic(err)
	}
	ctx, clk := context.Background(), clock.Real()
	say := func(r apply.Result, err error) {
		s, _ := json.Marshal(daemonStatus{r.Seq, r.Outcome, r.Steps, fmt.Sprint(r.Refused, states(r), err)})
		if err := os.WriteFile(b.path("status.new"), s, 0o644); err == nil {
			_ = os.Rename(b.path("status.new"), b.path("status"))
		}
	}
	say(b.engine.Pass(ctx, apply.Boot))
	for {
		if signed, err := os.ReadFile(b.path("next")); err == nil {
			say(b.engine.Accept(ctx, signed))
		}
		<-clk.After(500 * time.Millisecond)
		say(b.engine.Pass(ctx, apply.Reconcile))
	}
}

// changing is a machine that changes much from one version to the next.
func changing(b *bed, t *testing.T, v int) (mods []mod) {
	version := fmt.Sprint("v", v)
	script := "#!/bin/sh\nexec sleep 1000" + fmt.Sprint(v) + "\n"
	m := module("notes", manifest.Run{
		Users:       map[string]manifest.User{"notes": {}},
		Directories: []manifest.Directory{{Path: "/srv/notes", Owner: "notes", Group: "notes", Mode: "2770", Data: true}, {Path: "/srv/notes-" + version}},
		Files: []manifest.File{{Path: "/etc/notes/conf", Content: strings.Repeat(version+"\n", 2000), Owner: "notes", Mode: "0640"},
			{Path: "/etc/notes/only-" + version, Content: version}},
		Processes: map[string]manifest.Process{"web": {Exec: []string{"bin/web"}, User: "notes", Env: map[string]string{"SECRET": "${secret:k}"}}},
		Timers:    map[string]manifest.Timer{"t": {Exec: []string{"bin/web"}, Calendar: "daily"}},
	}).with(b.artifact(t, map[string]string{"bin/web": script, "share/data": noise(300 << 10), "share/version": version}))
	m.Secrets, m.secrets = map[string]manifest.Secret{"k": {}}, map[string]string{"k": version}
	mods = append(mods, m)
	for i := range 4 {
		if (v+i)%3 != 0 {
			mods = append(mods, module(fmt.Sprint("x", i), manifest.Run{Files: []manifest.File{file(fmt.Sprintf("/etc/x/%d", i), version)},
				Processes: map[string]manifest.Process{"p": {Exec: []string{"/bin/sleep", "77" + fmt.Sprint(i)}}}}))
		}
	}
	return mods
}

// APP-5 on a booted host: it is switched off at a random instant of each change, and after each start is as
// declared, to the last file and unit. (The page cache lives on: facts/host.md §1.3, grade 1.)
func TestAHostIsSwitchedOffDuringApplies(t *testing.T) {
	const dir = "/var/lib/mesh-test"
	b, err := makeBed(t.TempDir())
	must(t, err)
	host := hosts.New(t, 1).Host(1)
	self, err := os.Executable()
	must(t, err)
	host.Copy(t, self, "/root/apply.test", 0o755)
	host.Copy(t, b.path("keys"), dir+"/keys", 0o600)
	host.WriteFile(t, "/etc/systemd/system/the-agent.service", "[Unit]\nStartLimitIntervalSec=0\n[Service]\nExecStart=/root/apply.test\nEnvironment="+daemonEnv+"="+dir+
		"\nRestart=always\nRestartSec=100ms\n[Install]\nWantedBy=multi-user.target\n", 0o644)
	host.Run(t, "systemctl", "enable", "--now", "the-agent.service")
	offered := func(seq int) {
		signed := b.sign(t, uint64(seq), b.content(t, changing(b, t, seq)...))
		entries, err := os.ReadDir(b.path("artifacts"))
		must(t, err)
		for _, e := range entries {
			host.Copy(t, b.path("artifacts/"+e.Name()), dir+"/artifacts/"+e.Name(), 0o644)
		}
		must(t, host.WriteFileErr(t.Context(), dir+"/next", bytes.NewReader(signed), 0o600))
	}
	settled := func(seq int) {
		t.Helper()
		host.WaitFor(t, fmt.Sprintf("declaration %d to be applied", seq), func(context.Context) (bool, string) {
			var s daemonStatus
			raw, err := host.ReadFileErr(dir + "/status")
			if err == nil {
				err = json.Unmarshal(raw, &s)
			}
			return err == nil && s.Seq == uint64(seq) && s.Outcome == report.Applied && s.Steps == 0, fmt.Sprint(string(raw), err)
		}, time.Minute)
	}
	offered(1)
	settled(1)
	r := rand.New(rand.NewPCG(rand.Uint64(), 1))
	for seq := 2; seq <= 7; seq++ {
		offered(seq)
		wait := time.Duration(r.IntN(1500)) * time.Millisecond
		<-clock.Real().After(wait)
		host.Kill(t)
		if seq%3 == 0 { // and once more while it comes back
			host.Boot(t)
			<-clock.Real().After(time.Duration(r.IntN(800)) * time.Millisecond)
			host.Kill(t)
		}
		host.Boot(t)
		settled(seq)
		asDeclared(t, host, seq, fmt.Sprintf("declaration %d, switched off after %v", seq, wait))
	}
}

func asDeclared(t *testing.T, host *hosts.Host, v int, what string) {
	t.Helper()
	version := fmt.Sprint("v", v)
	want := map[string]string{
		"head -1 /etc/notes/conf; wc -l </etc/notes/conf; stat -c '%U %a' /etc/notes/conf":                  version + "\n2000\nnotes 640",
		"ls /etc/notes; ls -d /srv/notes*":                                                                  "conf\nonly-" + version + "\n/srv/notes\n/srv/notes-" + version,
		"stat -c '%U:%G %a' /srv/notes":                                                                     "notes:notes 2770",
		"pgrep -u notes -af '^sleep' | cut -d' ' -f2-":                                                      "sleep 1000" + fmt.Sprint(v),
		"tr '\\0' '\\n' </proc/$(systemctl show -P MainPID mesh-notes-web.service)/environ | grep ^SECRET=": "SECRET=" + version,
		"find / -xdev -name '.mesh-*' -o -xdev -name '.unpack-*' -o -xdev -name '.part-*' 2>/dev/null":      "",
		"systemctl is-enabled mesh-notes-t.timer; systemctl is-active mesh-notes-t.timer":                   "enabled\nactive",
		"ls /var/lib/mesh-test/state/bundles | wc -l; ls -A /var/lib/mesh-test/state/bundles | wc -l":       "2\n4",
		"ls /var/lib/mesh-test/state/env; ls /var/lib/mesh-test/state | grep -c damaged":                    "mesh-notes-web.env\n0",
	}
	var xs, files []string
	for i := range 4 {
		if (v+i)%3 != 0 {
			xs, files = append(xs, fmt.Sprintf("mesh-x%d-p.service", i)), append(files, fmt.Sprint(i))
		}
	}
	want["cd /etc/systemd/system; ls | grep mesh-x; systemctl is-active mesh-x* | sort -u; ls multi-user.target.wants | grep mesh-x"] =
		strings.Join(xs, "\n") + "\nactive\n" + strings.Join(xs, "\n")
	want["ls /etc/x; cat /etc/x/*"] = strings.Join(files, "\n") + "\n" + strings.Repeat(version, len(files))
	for cmd, w := range want {
		out, err := host.RunErr(t.Context(), "sh", "-c", cmd)
		if got := strings.TrimSpace(out.Stdout); err != nil || got != w {
			t.Errorf("%s: %s\ngot  %q\nwant %q (%v %s)", what, cmd, got, w, err, out.Stderr)
		}
	}
}
