package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"mesh/cmd/e2e/story"
	"mesh/testbus/hosts"
)

// boxProgram is what runs in the test's images: it says what it was given.
const boxProgram = `package main

import (
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	if os.Args[1] == "ask" { // as what its health is asked by
		if _, err := os.Stat("/data/hang"); err == nil {
			time.Sleep(time.Hour)
		}
		return
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	go func() {
		<-end
		os.Exit(0)
	}()
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		data, _ := os.ReadFile("/data/kept")
		fmt.Fprintf(w, "version=%s word=%s secret=%s data=%s uid=%d pid=%d", os.Args[1], os.Getenv("WORD"), os.Getenv("SECRET"), data, os.Getuid(), os.Getpid())
	})
	http.HandleFunc("/keep", func(w http.ResponseWriter, r *http.Request) {
		if err := os.WriteFile("/data/kept", []byte("precious"), 0o644); err != nil {
			http.Error(w, err.Error(), 500)
		}
	})
	if err := http.ListenAndServe(":8080", nil); err != nil {
		fmt.Println(err)
		os.Exit(3)
	}
}
`

const boxManifest = `module: box
run:
  networks: {back: {}}
  sysctls: {net.ipv4.ip_default_ttl: 70}
  links: [{path: /etc/box-link, target: /etc/hostname}]
  groups: {boxers: {}}
  containers:
    web:
      image: %s
      command: ["%s"]
      env: {WORD: "${setting:word}", SECRET: "${secret:key}"}
      ports: [{container: 8080, publish: 8080}]
      networks: [back]
      read-only: true
      user: "0:0"
      capabilities: {drop: [all]}
      tmpfs: [{at: /tmp, size: 1M}]
      volumes: [{name: data, at: /data}]
firewall: {allow: [{port: 8080/tcp, from: anywhere}]}
settings: {word: {default: hello}}
secrets: {key: {}}
`

// boxes is a mesh of one host with podman, and a module with a container.
type boxes struct {
	*mesh
	images map[string]string // by version
}

// TestContainers is APP-2, 3, 6, 11 and 17 with real podman, one chapter after the other.
func TestContainers(t *testing.T) {
	m := &mesh{&story.Story{Bin: t.TempDir()}, t}
	var err error
	m.Source, err = filepath.Abs("../..")
	m.must(err)
	m.must(story.BuildPrograms(t.Context(), m.Source, m.Bin))
	m.must(story.BuildHello(t.Context(), m.Source))
	m.Bed = hosts.NewWith(t, 1, hosts.Podman)
	m.must(m.Deliver(t.Context()))
	t.Cleanup(func() {
		if t.Failed() {
			m.journals()
		}
	})
	_, err = m.Genesis(t.Context())
	m.must(err)
	b := &boxes{m, map[string]string{}}
	b.build()
	for _, chapter := range []struct {
		name string
		tell func(*boxes)
	}{
		{"a container with all it needs", containerComes},
		{"nothing to do starts no process", containerRests},
		{"what is removed by hand comes back", containerRemoved},
		{"a new image takes over", containerUpgraded},
		{"its health is asked inside", containerAsked},
		{"an image over the bus", containerCarried},
		{"a plan says what would be done", containerPlanned},
		{"a cut of the power", containerCut},
		{"a foreign container is left alone", containerHeld},
		{"what is there is taken, and given back", containerTaken},
		{"the end leaves the data", containerGone},
	} {
		if !t.Run(chapter.name, func(t *testing.T) { chapter.tell(&boxes{&mesh{m.Story, t}, b.images}) }) {
			return
		}
	}
}

// build makes two images FROM scratch around a static program, in the host's own store.
func (b *boxes) build() {
	dir := b.t.TempDir()
	b.must(os.WriteFile(filepath.Join(dir, "main.go"), []byte(boxProgram), 0o644))
	b.must(os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module box\n"), 0o644))
	cmd := exec.CommandContext(b.t.Context(), "go", "build", "-ldflags", "-s -w", "-o", "box", ".")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		b.t.Fatalf("%v: %s", err, out)
	}
	h := b.Bed.Host(1)
	h.Copy(b.t, filepath.Join(dir, "box"), "/root/image/box", 0o755)
	for _, v := range []string{"one", "two", "three"} {
		h.WriteFile(b.t, "/root/image/Containerfile", "FROM scratch\nCOPY box /box\nENTRYPOINT [\"/box\"]\nLABEL version="+v+"\n", 0o644)
		b.on(1, "podman", "build", "-q", "--timestamp", "0", "-t", "localhost/box:"+v, "/root/image")
		digest := strings.TrimSpace(b.on(1, "podman", "image", "inspect", "--format", "{{.Digest}}", "localhost/box:"+v))
		b.images[v] = "localhost/box@" + digest
	}
}

// register registers the module with an image and assigns it.
func (b *boxes) register(image, version string, more ...string) {
	text := fmt.Sprintf(boxManifest, image, version)
	for _, m := range more {
		text += m
	}
	b.Bed.Host(1).WriteFile(b.t, "/root/box/module.yaml", text, 0o644)
	b.coordinator("module", "register", "/root/box")
}

func (b *boxes) says(want ...string) string {
	b.t.Helper()
	last := ""
	b.waitFor("the container to say "+strings.Join(want, " "), later, func() (bool, any) {
		out, err := b.Run(b.t.Context(), 1, "curl", "-s", "-m", "2", "http://127.0.0.1:8080/")
		last = out
		for _, w := range want {
			if err != nil || !strings.Contains(out, w) {
				return false, fmt.Sprint(out, err)
			}
		}
		return true, out
	})
	return last
}

func containerComes(b *boxes) {
	b.register(b.images["one"], "one")
	b.Bed.Host(1).WriteFile(b.t, "/root/key", "s3cr3t", 0o600)
	b.coordinator("assign", "host1", "box", "--set", "word=moin", "--secret", "key=@/root/key")
	b.coordinator("push", "--all", "--why", "first")
	b.says("version=one", "word=moin", "secret=s3cr3t", "uid=0")
	b.well(1)
	b.on(1, "curl", "-s", "-m", "2", "-f", "http://127.0.0.1:8080/keep")
	b.says("data=precious")
	if out := b.on(1, "sh", "-c", "ps axww; systemctl cat mesh-box-web.service; podman inspect mesh-box-web --format '{{.Config.CreateCommand}}'"); strings.Contains(out, "s3cr3t") {
		b.t.Error("the secret is in a command line")
	}
	if out := b.on(1, "cat", "/proc/sys/net/ipv4/ip_default_ttl", "/etc/box-link"); !strings.HasPrefix(out, "70\nhost1") {
		b.t.Errorf("sysctl and link: %q", out)
	}
	b.on(1, "getent", "group", "boxers")
	if out := b.on(1, "podman", "ps", "--format", "{{.Names}} {{.Networks}} {{.Labels}}"); !strings.Contains(out, "mesh-box-back") || !strings.Contains(out, "mesh.module:box") {
		b.t.Errorf("podman ps says %q", out)
	}
}

// life is the container's main process and its conmon's start.
func (b *boxes) life() string {
	b.t.Helper()
	return b.on(1, "systemctl", "show", "-p", "InvocationID", "mesh-box-web.service")
}

// containerRests: APP-3. The same declaration and the passes in between start nothing, podman least of all.
func containerRests(b *boxes) {
	life := b.life()
	count := func() string {
		return b.on(1, "sh", "-c", "journalctl -q --no-pager -o cat _COMM=podman | wc -l; journalctl -q --no-pager -o cat -u 'mesh-engine_*' | wc -l; grep -c . /var/lib/containers/storage/overlay-images/images.json")
	}
	before := count()
	b.coordinator("push", "--all", "--why", "again")
	b.well(1)
	if after := count(); after != before {
		b.t.Errorf("the engine was at work: %q before, %q after", before, after)
	}
	if now := b.life(); now != life {
		b.t.Errorf("the container was started again: %s, %s", life, now)
	}
}

// containerRemoved: APP-6, at once, because systemd tells.
func containerRemoved(b *boxes) {
	life := b.life()
	b.on(1, "podman", "rm", "-f", "mesh-box-web")
	b.waitFor("the container's next life", soon, func() (bool, any) {
		now := b.life()
		return now != life && now != "InvocationID=\n", now
	})
	b.says("version=one", "data=precious")
	b.waitFor("the network", later, func() (bool, any) {
		out, err := b.Run(b.t.Context(), 1, "sh", "-c", "systemctl stop mesh-box-web.service; podman network rm -f mesh-box-back; true")
		return err == nil, out
	})
	b.says("version=one", "data=precious") // and it is called well once it has stayed up for a minute
}

func containerUpgraded(b *boxes) {
	life := b.life()
	b.register(b.images["two"], "two")
	b.coordinator("push", "--all", "--why", "an image")
	b.says("version=two", "data=precious")
	if b.life() == life {
		b.t.Error("it is the same life")
	}
	b.well(1)
}

// containerAsked: APP-7, APP-17. A program is asked in the container; one that hangs is killed there.
func containerAsked(b *boxes) {
	text := fmt.Sprintf(boxManifest, b.images["two"], "two")
	text = strings.Replace(text, "      read-only: true\n", "      read-only: true\n      health: {command: [/box, ask], every: 1s, timeout: 2s, retries: 1}\n", 1)
	h := b.Bed.Host(1)
	h.WriteFile(b.t, "/root/box/module.yaml", text, 0o644)
	b.coordinator("module", "register", "/root/box")
	b.coordinator("push", "--all", "--why", "its health")
	b.says("version=two")
	b.well(1)
	hang := strings.TrimSpace(b.on(1, "podman", "volume", "inspect", "--format", "{{.Mountpoint}}", "mesh-box-data")) + "/hang"
	b.on(1, "touch", hang)
	said := func(want bool) {
		b.t.Helper()
		b.waitFor(fmt.Sprintf("it to be unhealthy: %v", want), later, func() (bool, any) {
			out, err := b.Coordinator(b.t.Context(), "node", "show", "host1")
			return err == nil && strings.Contains(out, "unhealthy") == want && (!want || strings.Contains(out, "/box was not over in time and was killed")), out
		})
	}
	said(true)
	b.on(1, "rm", hang)
	said(false)
	b.waitFor("what hung to be gone", soon, func() (bool, any) {
		out, err := h.RunErr(b.t.Context(), "sh", "-c", "ps -eo etimes,args | grep '[/]box ask' | awk '$1 > 8'")
		return err == nil && strings.TrimSpace(out.Stdout) == "", out.Stdout
	})
	b.well(1)
}

// containerCarried: an image from an archive beside the manifest travels over the bus.
func containerCarried(b *boxes) {
	b.on(1, "sh", "-c", "podman save -q --format oci-archive -o /root/box/three.tar localhost/box:three && podman rmi -f localhost/box:three")
	b.register("built", "three", "build: {images: {web: {from: three.tar}}}\n")
	b.coordinator("push", "--all", "--why", "over the bus")
	b.says("version=three", "data=precious")
	b.well(1)
}

// containerPlanned: APP-15. The plan of the declaration held is empty, and one of what somebody did says it.
func containerPlanned(b *boxes) {
	if out := b.on(1, "mesh-agent", "plan"); out != "nothing to do\n" {
		b.t.Errorf("with nothing to do the plan is %q", out)
	}
	b.on(1, "systemctl", "stop", "mesh-agent")
	b.on(1, "systemctl", "stop", "mesh-box-web.service")
	b.on(1, "podman", "network", "rm", "-f", "mesh-box-back")
	out := b.on(1, "mesh-agent", "plan")
	if !strings.Contains(out, "make network") || strings.Index(out, "make network") > strings.Index(out, "start ") {
		b.t.Errorf("the plan is\n%s", out)
	}
	b.on(1, "systemctl", "start", "mesh-agent")
	b.says("version=three", "data=precious")
}

// containerCut: all processes of the machine end at once, and it comes back by itself.
func containerCut(b *boxes) {
	h := b.Bed.Host(1)
	h.Kill(b.t)
	h.Boot(b.t)
	b.says("version=three", "data=precious")
}

// containerHeld: APP-9. A name that somebody else's container has is not taken.
func containerHeld(b *boxes) {
	b.on(1, "podman", "run", "-d", "--name", "theirs", b.images["one"], "one")
	b.Bed.Host(1).WriteFile(b.t, "/root/thief/module.yaml", "module: thief\nrun: {containers: {c: {image: \""+b.images["one"]+"\", name: theirs}}}\n", 0o644)
	b.coordinator("module", "register", "/root/thief")
	b.coordinator("assign", "host1", "thief")
	id := b.on(1, "podman", "inspect", "--format", "{{.Id}}", "theirs")
	out, err := b.Bed.Host(1).RunErr(b.t.Context(), "mesh-coordinator", "push", "--all", "--why", "held")
	b.must(err)
	b.waitFor("the refusal", later, func() (bool, any) {
		doc, _ := b.shown(1)
		for _, m := range doc.Modules {
			if m.Name == "thief" && strings.Contains(m.Detail, "mesh did not put it there") && strings.Contains(m.Detail, "localhost/box") {
				return true, ""
			}
		}
		text, err := json.Marshal(doc)
		return false, fmt.Sprint(string(text), err, out.Stdout, out.Stderr)
	})
	if now := b.on(1, "podman", "inspect", "--format", "{{.Id}} {{.State.Status}}", "theirs"); !strings.HasPrefix(now, strings.TrimSpace(id)) || !strings.Contains(now, "running") {
		b.t.Errorf("their container was touched: %s", now)
	}
	b.clash()
	b.coordinator("unassign", "host1", "thief")
	b.coordinator("push", "--all", "--why", "theirs")
	b.well(1)
}

// clash: APP-14. A port that is in use is said with what to do.
func (b *boxes) clash() {
	b.Bed.Host(1).WriteFile(b.t, "/root/clash/module.yaml", "module: clash\nrun: {containers: {c: {image: \""+b.images["two"]+"\", command: [x], ports: [{container: 8080}]}}}\n", 0o644)
	b.coordinator("module", "register", "/root/clash")
	b.coordinator("assign", "host1", "clash")
	_, err := b.Bed.Host(1).RunErr(b.t.Context(), "mesh-coordinator", "push", "--all", "--why", "a clash")
	b.must(err)
	b.waitFor("the clash to be said", later, func() (bool, any) {
		doc, _ := b.shown(1)
		for _, m := range doc.Modules {
			if m.Name == "clash" {
				return strings.Contains(m.Detail, "a port it publishes is in use on this machine") && strings.Contains(m.Detail, "ss -ltnp"), m.Detail
			}
		}
		return false, "no such module"
	})
	b.coordinator("unassign", "host1", "clash")
}

// containerGone: APP-11.
func containerGone(b *boxes) {
	b.coordinator("unassign", "host1", "box")
	b.coordinator("push", "--all", "--why", "the end")
	b.waitFor("the container to be gone", later, func() (bool, any) {
		out, err := b.Run(b.t.Context(), 1, "sh", "-c", "podman ps -a --format '{{.Names}}'; podman network ls --format '{{.Name}}'; ls /etc/systemd/system")
		return err == nil && !strings.Contains(out, "mesh-box"), fmt.Sprint(out, err)
	})
	// facts/host.md §4.6: nothing of it runs on; what is left is theirs.
	if out := b.on(1, "sh", "-c", "ps axo comm | grep -c conmon; ps axo args | grep -c '^/box'"); out != "1\n1\n" {
		b.t.Errorf("processes of it run on: %q", out)
	}
	if out := b.on(1, "sh", "-c", "cat /var/lib/containers/storage/volumes/mesh-box-data/_data/kept; cat /proc/sys/net/ipv4/ip_default_ttl; ls /etc/box-link 2>/dev/null || echo gone; podman ps --format '{{.Names}}'"); out != "precious64\ngone\ntheirs\n" {
		b.t.Errorf("after the end: %q", out)
	}
}
