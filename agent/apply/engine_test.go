package apply_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mesh/agent/apply"
	"mesh/shared/manifest"
)

const (
	oneImage = "docker.io/library/one@sha256:1111111111111111111111111111111111111111111111111111111111111111"
	twoImage = "docker.io/library/two@sha256:2222222222222222222222222222222222222222222222222222222222222222"
	newImage = "docker.io/library/new@sha256:3333333333333333333333333333333333333333333333333333333333333333"
	store    = "/var/lib/containers/storage"
)

// paperEngine is podman: its files below the machine's root, changed by its commands. Each call is noted.
type paperEngine struct{ *bed }

// install puts the program there.
func (b *bed) installPodman(t testing.TB) {
	t.Helper()
	must(t, b.put("/usr/bin/podman", "x"))
	for _, p := range []string{"net/ipv4/ip_forward", "vm/swappiness", "vm/overcommit_memory"} {
		must(t, b.put("/proc/sys/"+p, "0\n"))
	}
}

func (b *bed) put(p, text string) error {
	if err := os.MkdirAll(filepath.Dir(b.root(p)), 0o755); err != nil {
		return err
	}
	f, err := os.Create(b.root(p))
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if b.paper != "" { // on a disk that can be cut off: podman and its like sync what they write
		err = errors.Join(err, f.Sync())
	}
	return errors.Join(err, f.Close())
}

func (e paperEngine) run(argv []string) (int, string, error) {
	e.podman.Lock()
	defer e.podman.Unlock()
	f, err := os.OpenFile(e.memory("engine"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return 0, "", err
	}
	_, err = fmt.Fprintln(f, strings.Join(argv[1:], " "))
	if err := errors.Join(err, f.Close()); err != nil {
		return 0, "", err
	}
	last := argv[len(argv)-1]
	network, volume := e.root("/etc/containers/networks/"+last+".json"), e.root(store+"/volumes/"+last)
	switch argv[1] + " " + argv[2] {
	case "network create":
		subnet := ""
		labels := map[string]string{}
		for _, a := range argv {
			if s, ok := strings.CutPrefix(a, "--subnet="); ok {
				subnet = s
			}
			if s, ok := strings.CutPrefix(a, "--label="); ok {
				k, v, _ := strings.Cut(s, "=")
				labels[k] = v
			}
		}
		b, err := json.Marshal(map[string]any{"name": last, "subnets": []any{map[string]string{"subnet": subnet}}, "labels": labels,
			"internal": slices.Contains(argv, "--internal")})
		if err != nil {
			return 0, "", err
		}
		return 0, "", e.put("/etc/containers/networks/"+last+".json", string(b))
	case "network rm":
		return e.remove(network)
	case "volume create":
		return 0, "", os.MkdirAll(volume+"/_data", 0o755)
	case "volume rm":
		return e.remove(volume)
	}
	switch argv[1] {
	case "pull":
		return e.images(func(all []string) []string { return append(all, last[strings.Index(last, "@")+1:]) })
	case "rmi":
		return e.images(func(all []string) []string {
			return slices.DeleteFunc(all, func(d string) bool { return strings.HasSuffix(last, d) })
		})
	}
	return e.containers(argv)
}

func (e paperEngine) remove(p string) (int, string, error) {
	if _, err := os.Stat(p); errors.Is(err, fs.ErrNotExist) {
		return 1, "no such thing", nil
	}
	return 0, "", os.RemoveAll(p)
}

func (e paperEngine) images(change func([]string) []string) (int, string, error) {
	at := store + "/overlay-images/images.json"
	var list []map[string]string
	if b, err := os.ReadFile(e.root(at)); err == nil {
		if err := json.Unmarshal(b, &list); err != nil {
			return 0, "", err
		}
	}
	var all []string
	for _, i := range list {
		all = append(all, i["digest"])
	}
	list = nil
	for _, d := range change(all) {
		list = append(list, map[string]string{"id": "of " + d, "digest": d})
	}
	b, err := json.Marshal(list)
	if err != nil {
		return 0, "", err
	}
	new := at + ".new"
	return 0, "", errors.Join(e.put(new, string(b)), os.Rename(e.root(new), e.root(at)))
}

// asked are the engine's commands since the last time.
func (b *bed) asked(t testing.TB) (out []string) {
	t.Helper()
	text, err := os.ReadFile(b.memory("engine"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	must(t, os.WriteFile(b.memory("engine"), nil, 0o644))
	for line := range strings.Lines(string(text)) {
		out = append(out, strings.TrimSpace(line))
	}
	return out
}

func boxes(image string) manifest.Run {
	return manifest.Run{
		Networks:      map[string]manifest.Network{"back": {}},
		Sysctls:       map[string]string{"net.ipv4.ip_forward": "1"},
		KernelModules: []string{"tun"},
		Groups:        map[string]manifest.Group{"boxers": {}},
		Links:         []manifest.Link{{Path: "/etc/box/current", Target: "conf"}},
		Containers: map[string]manifest.Container{"web": {Image: image, Networks: []string{"back"},
			Volumes: []manifest.Mount{{Name: "data", At: "/data"}}}},
	}
}

// APP-2, APP-3: all of a container's things come, the same declaration again asks the engine nothing, what
// vanished comes back, and the end leaves the data.
func TestContainersAndWhatTheyNeed(t *testing.T) {
	b := newBed(t)
	b.installPodman(t)
	applied(t, b.accept(t, 1, module("box", boxes(oneImage))))
	want := []string{"network create --driver=bridge --subnet=10.89.0.0/24 --label=mesh.digest=", "pull --quiet " + oneImage, "volume create --label=mesh.digest="}
	got := b.asked(t)
	slices.Sort(got)
	if len(got) != len(want) || slices.ContainsFunc([]int{0, 1, 2}, func(i int) bool { return !strings.HasPrefix(got[i], want[i]) }) {
		t.Fatalf("the engine was asked %q, want %q", got, want)
	}
	if v := strings.TrimSpace(b.read(t, "/proc/sys/net/ipv4/ip_forward")); v != "1" {
		t.Errorf("the sysctl is %s", v)
	}
	if to, err := os.Readlink(b.root("/etc/box/current")); err != nil || to != "conf" {
		t.Errorf("the link leads to %s: %v", to, err)
	}
	unit := b.read(t, "/etc/systemd/system/mesh-box-web.service")
	for _, line := range []string{"Type=notify", "--network=mesh-box-back", "--volume=mesh-box-data:/data", "--pull=never", oneImage} {
		if !strings.Contains(unit, line) {
			t.Errorf("the unit lacks %s:\n%s", line, unit)
		}
	}
	b.units.calls(t)
	for range 3 {
		if r := applied(t, b.pass(t, apply.Reconcile)); r.Steps > 0 {
			t.Errorf("steps in a pass with nothing to do: %+v", r)
		}
		b.clock.Advance(10 * time.Minute)
	}
	if asked := b.asked(t); len(asked) > 0 {
		t.Errorf("in passes that had nothing to do the engine was asked %q", asked)
	}

	must(t, os.Remove(b.root("/etc/containers/networks/mesh-box-back.json")))
	must(t, os.RemoveAll(b.root(store+"/volumes/mesh-box-data")))
	r := applied(t, b.pass(t, apply.Reconcile))
	if got := b.asked(t); len(got) != 2 || len(r.Drift) != 2 {
		t.Errorf("after network and volume went, the engine was asked %q and the drift is %+v", got, r.Drift)
	}
	if calls := b.units.calls(t); !slices.Contains(calls, "start mesh-box-web.service") {
		t.Errorf("the container was not started with its new volume: %q", calls)
	}

	applied(t, b.accept(t, 2, module("box", boxes(twoImage))))
	if got := b.asked(t); !slices.Equal(got, []string{"pull --quiet " + twoImage}) {
		t.Errorf("for the new image the engine was asked %q", got)
	}

	applied(t, b.accept(t, 3))
	if v := strings.TrimSpace(b.read(t, "/proc/sys/net/ipv4/ip_forward")); v != "0" {
		t.Errorf("the sysctl did not come back: %s", v)
	}
	for p, there := range map[string]bool{"/etc/containers/networks/mesh-box-back.json": false, store + "/volumes/mesh-box-data/_data": true,
		"/etc/box/current": false, "/etc/sysctl.d/60-mesh-box-sysctls.conf": false, "/etc/systemd/system/mesh-box-web.service": false} {
		if _, err := os.Lstat(b.root(p)); (err == nil) != there {
			t.Errorf("after the end %s: %v, want there=%v", p, err, there)
		}
	}
	if images := b.read(t, store+"/overlay-images/images.json"); images != "null" {
		t.Errorf("images stay: %s", images)
	}
}

// APP-14: a machine without an engine fails the module by name, and no other.
func TestWithoutAnEngine(t *testing.T) {
	b := newBed(t)
	r := b.accept(t, 1, module("box", boxes(oneImage)), module("plain", files(file("/etc/plain", "x"))))
	if r.Refused == nil || !strings.Contains(r.Refused.Why, "needs a container engine") || !strings.Contains(r.Refused.Do, "install podman") {
		t.Errorf("it says %+v", r.Refused)
	}
	b.read(t, "/etc/plain")
	b.installPodman(t)
	b.clock.Advance(10 * time.Minute)
	applied(t, b.pass(t, apply.Reconcile))
}

// APP-8: the new one is started first, the old one goes once it is up.
func TestAProcessTakesOverFromAContainer(t *testing.T) {
	b := newBed(t)
	b.installPodman(t)
	applied(t, b.accept(t, 1, module("box", manifest.Run{Containers: map[string]manifest.Container{"web": {Image: oneImage}}})))
	b.units.calls(t)
	applied(t, b.accept(t, 2, module("box", manifest.Run{Processes: map[string]manifest.Process{"server": {Exec: []string{"/bin/server"}, Replaces: []string{"web"}}}})))
	calls := b.units.calls(t)
	start, stop := slices.Index(calls, "start mesh-box-server.service"), slices.Index(calls, "stop mesh-box-web.service")
	if start < 0 || stop < start {
		t.Errorf("not the new one first: %q", calls)
	}
	if _, err := os.Lstat(b.root("/etc/systemd/system/mesh-box-web.service")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the old unit stays: %v", err)
	}

	failing := manifest.Run{Containers: map[string]manifest.Container{"web2": {Image: oneImage, Replaces: []string{"server"}, Command: []string{"fails"}}}}
	r := b.accept(t, 3, module("box", failing))
	if calls := b.units.calls(t); slices.Contains(calls, "stop mesh-box-server.service") {
		t.Errorf("the old one was stopped although the new one failed: %q, %+v", calls, r)
	}
}

// APP-14: what the engine said when it could not start a container becomes what to do, in the same words each time.
func TestAContainerThatTheEngineCannotStart(t *testing.T) {
	b := newBed(t)
	b.installPodman(t)
	applied(t, b.accept(t, 1, module("box", manifest.Run{Containers: map[string]manifest.Container{"web": {Image: oneImage}}})))
	first := ""
	for _, sub := range []string{"auto-restart", "auto-restart", "auto-restart"} {
		b.units.by(t, "mesh-box-web.service", func(p *paperUnit) { p.Active, p.Sub, p.Result, p.Status = "activating", sub, "exit-code", 126 })
		d := b.pass(t, apply.Reconcile).Modules[0].Detail
		if !strings.Contains(d, "a port it publishes is in use") || !strings.Contains(d, "ss -ltnp") || first != "" && d != first {
			t.Errorf("it says %q, and said %q", d, first)
		}
		first = d
		b.clock.Advance(time.Second)
	}
}

var boxLives = []lives{{
	name: "containers come and go",
	past: func(t *testing.T, b *bed) {
		b.installPodman(t)
		applied(t, b.accept(t, 1, module("box", boxes(oneImage)), module("gone", manifest.Run{
			Networks:   map[string]manifest.Network{"n": {}},
			Sysctls:    map[string]string{"vm.swappiness": "10", "vm.overcommit_memory": "2"},
			Links:      []manifest.Link{{Path: "/etc/gone", Target: "x"}},
			Containers: map[string]manifest.Container{"c": {Image: twoImage, Networks: []string{"n"}}}}),
			module("turn", manifest.Run{Containers: map[string]manifest.Container{"old": {Image: oneImage}}})))
	},
	next: func(t *testing.T, b *bed) []mod {
		return []mod{module("box", boxes(oneImage)), module("more", manifest.Run{
			Networks: map[string]manifest.Network{"n": {Subnet: "10.99.0.0/24"}}, Groups: map[string]manifest.Group{"more": {}},
			Sysctls: map[string]string{"vm.swappiness": "20"}, KernelModules: []string{"vxlan"}, Links: []manifest.Link{{Path: "/etc/more", Target: "x"}},
			Containers: map[string]manifest.Container{"c": {Image: newImage, Networks: []string{"n"}, Volumes: []manifest.Mount{{Name: "v", At: "/v"}}}}}),
			module("turn", manifest.Run{Containers: map[string]manifest.Container{"new": {Image: oneImage, Replaces: []string{"old"}}}})}
	},
}}
