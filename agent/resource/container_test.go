package resource_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mesh/agent/resource"
	"mesh/shared/credential"
	"mesh/shared/declaration"
	"mesh/shared/manifest"
)

const redis = "docker.io/library/redis@sha256:" + digest

// boxed is a module with all options of containers.
func boxed() manifest.Manifest {
	return manifest.Manifest{
		Module: "box",
		Build:  manifest.Build{Images: map[string]manifest.Image{"web": {From: "web.tar"}}},
		Run: manifest.Run{
			Containers: map[string]manifest.Container{
				"web": {Image: "built", After: []string{"cache"}, Ports: []manifest.Port{{Container: "8080", Publish: "80"}},
					Networks: []string{"back", "proxy"}, Volumes: []manifest.Mount{{Name: "data", At: "/data"}, {Path: "/srv/in", At: "/in", ReadOnly: true}},
					Env:      map[string]string{"ODD": `a "b" 100% $HOME \`, "PASSWORD": "${secret:db}\"$`\\", "PORT": "${setting:port}"},
					Replaces: []string{"old"}},
				"cache": {Image: redis, Name: "redis", Command: []string{"--save", "60 1", "$x%"}, Entrypoint: []string{"/bin/redis", "-v"},
					EnvFiles: []string{"/etc/box/env"}, User: "999:999", Directory: "/data", ReadOnly: true,
					Capabilities: manifest.Capabilities{Add: []string{"CAP_NET_ADMIN", "sys_nice"}, Drop: []string{"all"}}, Devices: []string{"/dev/fuse"},
					Tmpfs:   []manifest.Tmpfs{{At: "/tmp", Size: "64M"}, {At: "/run"}},
					Limits:  manifest.Limits{Memory: "512M", CPUs: "1.5", Pids: "100"},
					Restart: manifest.OnFailure, StopSignal: "SIGINT", StopTimeout: "30s", Labels: map[string]string{"team": "a b"},
					Log: manifest.Log{Lines: "1000"}, Networks: []string{"host"}},
			},
			Networks: map[string]manifest.Network{"back": {Subnet: "10.89.7.0/24", Internal: true}, "proxy": {Name: "proxy", External: true}},
			Volumes:  map[string]manifest.Volume{"data": {Name: "old_data"}},
			Sysctls:  map[string]string{"net.ipv4.ip_forward": "1", "net.ipv4.ip_local_port_range": "1024\t65000"}, KernelModules: []string{"tun"},
			Groups: map[string]manifest.Group{"boxers": {}}, Users: map[string]manifest.User{"box": {Groups: []string{"boxers"}}},
			Links: []manifest.Link{{Path: "/etc/box/link", Target: "../box.d"}},
		},
		Settings: map[string]manifest.Setting{"port": {Default: def("8080")}},
		Secrets:  map[string]manifest.Secret{"db": {}},
	}
}

func boxedInput(t testing.TB, docker bool) resource.Input {
	m := module(t, boxed())
	m.Secrets = map[string]credential.Sealed{"db": "sealed"}
	blob := func(c string) declaration.Artifact {
		return declaration.Artifact{Digest: strings.Repeat(c, 64), Size: 5, Chunks: 1}
	}
	m.Images = []declaration.Image{{Name: "web", Arch: "amd64", ID: strings.Repeat("b", 64), Type: declaration.OCIManifest, Blobs: []declaration.Artifact{blob("a"), blob("b")}}}
	in := input(t, m)
	in.Machine = resource.Machine{Arch: "amd64", OS: "debian", Engine: true}
	in.Engine.Docker = docker
	return in
}

// APP-17: each option is in the unit, for either engine, and the analyzer takes it.
func TestContainersAreAsTheGoldenFiles(t *testing.T) {
	dir := t.TempDir()
	for engine, docker := range map[string]bool{"podman": false, "docker": true} {
		byID := expand(t, boxedInput(t, docker))
		var files []string
		for _, name := range []string{"mesh-box-web.service", "mesh-box-cache.service"} {
			content := string(byID["unit:"+name].Unit.Content)
			golden := filepath.Join("testdata", engine+"-"+name)
			if *update {
				if err := os.WriteFile(golden, []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), content); d != "" {
				t.Errorf("%s (-golden +now):\n%s", golden, d)
			}
			f := filepath.Join(dir, engine+"-"+name)
			// Programs, units and paths that are not here are no fault of the text.
			text := strings.NewReplacer("/usr/bin/"+engine, "/bin/true", "Requires=docker.service\n", "").Replace(content)
			if err := os.WriteFile(f, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			files = append(files, f)
		}
		out, err := exec.CommandContext(t.Context(), "systemd-analyze", append([]string{"verify", "--man=no"}, files...)...).CombinedOutput()
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, "mesh-box") {
				t.Errorf("systemd-analyze verify: %v: %s", err, line)
			}
		}
	}
}

// APP-12: what is secret stands in a file of root's and in no command line.
func TestSecretsOfContainersAreInNoCommandLine(t *testing.T) {
	byID := expand(t, boxedInput(t, false))
	for id, r := range byID {
		if r.Kind == resource.KindUnit && strings.Contains(string(r.Unit.Content), "opened-") {
			t.Errorf("%s holds the secret:\n%s", id, r.Unit.Content)
		}
	}
	f := byID["file:/var/lib/mesh-agent/env/mesh-box-web.env"].File
	if f == nil || f.Mode != 0o600 || !strings.Contains(string(f.Content), "opened-sealed") || strings.Contains(string(f.Content), "PORT") {
		t.Errorf("the file of secrets: %+v", f)
	}
}

func TestResourcesOfContainers(t *testing.T) {
	byID := expand(t, boxedInput(t, false))
	for _, id := range []string{"network:mesh-box-back", "volume:old_data", "image:box/sha256:" + strings.Repeat("b", 64), "image:box/" + redis,
		"container:redis", "container:mesh-box-web", "sysctl:net.ipv4.ip_forward", "kernel-module:tun", "group:boxers", "link:/etc/box/link",
		"file:/etc/sysctl.d/60-mesh-box-sysctls.conf", "file:/etc/modules-load.d/mesh-box-modules.conf", "dir:/etc/sysctl.d", "dir:/etc/box"} {
		if _, ok := byID[id]; !ok {
			t.Errorf("%s is missing", id)
		}
	}
	if _, there := byID["network:proxy"]; there {
		t.Error("an external network is made")
	}
	web := byID["unit:mesh-box-web.service"]
	for _, need := range []string{"network:mesh-box-back", "volume:old_data", "container:mesh-box-web", "unit:mesh-box-cache.service", "image:box/sha256:" + strings.Repeat("b", 64)} {
		if !slices.Contains(web.Needs, need) {
			t.Errorf("the unit does not need %s: %v", need, web.Needs)
		}
	}
	if d := cmp.Diff([]string{"network:mesh-box-back", "volume:old_data"}, web.Unit.Uses); d != "" {
		t.Errorf("it uses (-want +got)\n%s", d)
	}
	if !slices.Contains(byID["user:box"].Needs, "group:boxers") {
		t.Errorf("the user does not need its group: %v", byID["user:box"].Needs)
	}
	if v := byID["sysctl:net.ipv4.ip_local_port_range"].Sysctl.Value; v != "1024 65000" {
		t.Errorf("the kernel says 1024 65000 and not %q", v)
	}
}

// A machine of another architecture, or without an engine, refuses the module and no other.
func TestContainersThatCannotBeHere(t *testing.T) {
	for says, machine := range map[string]resource.Machine{
		"it is for amd64, and this machine is arm64": {Arch: "arm64", OS: "debian", Engine: true},
		"it needs a container engine":                {Arch: "amd64", OS: "debian"},
	} {
		in := boxedInput(t, false)
		in.Machine = machine
		_, failed := resource.Expand(in)
		if err := failed["box"]; err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v, want %q", machine, err, says)
		}
	}
}

// A new network, another image or another secret starts the container anew; the same again does not.
func TestTriggersOfContainers(t *testing.T) {
	trigger := func(edit func(*manifest.Manifest, *declaration.Module)) string {
		m := boxed()
		in := boxedInput(t, false)
		edit(&m, &in.Declaration.Modules[0])
		d := module(t, m)
		in.Declaration.Modules[0].Manifest = d.Manifest
		var err error
		if in.Manifests, err = resource.Decode(in.Declaration); err != nil {
			t.Fatal(err)
		}
		return expand(t, in)["unit:mesh-box-web.service"].Unit.Trigger
	}
	same := trigger(func(*manifest.Manifest, *declaration.Module) {})
	if same != trigger(func(*manifest.Manifest, *declaration.Module) {}) {
		t.Error("the same declaration has two triggers")
	}
	for what, edit := range map[string]func(*manifest.Manifest, *declaration.Module){
		"a subnet": func(m *manifest.Manifest, _ *declaration.Module) {
			m.Run.Networks["back"] = manifest.Network{Subnet: "10.89.8.0/24"}
		},
		"a secret": func(_ *manifest.Manifest, d *declaration.Module) { d.Secrets["db"] = "resealed" },
		"an image": func(_ *manifest.Manifest, d *declaration.Module) {
			d.Images[0].ID, d.Images[0].Blobs[1].Digest = strings.Repeat("c", 64), strings.Repeat("c", 64)
		},
	} {
		if trigger(edit) == same {
			t.Errorf("%s starts nothing anew", what)
		}
	}
}

// A socket is a unit in its own words: it starts anew for its own text only, not for a file of the module.
func TestSocketsAreUnits(t *testing.T) {
	trigger := func(content string) string {
		m := manifest.Manifest{Module: "notes", Run: manifest.Run{
			Units: map[string]manifest.Unit{
				"notes.socket":  {Content: "[Socket]\nListenStream=8080\n\n[Install]\nWantedBy=sockets.target", Enabled: true, Started: true},
				"notes.service": {Content: "[Service]\nExecStart=/bin/notes"}},
			Files: []manifest.File{{Path: "/etc/notes", Content: content}}}}
		if err := m.Check(); err != nil {
			t.Fatal(err)
		}
		u := expand(t, input(t, module(t, m)))["unit:notes.socket"].Unit
		if !u.Started || !u.Enabled {
			t.Errorf("%+v", u)
		}
		return u.Trigger
	}
	if trigger("one") != trigger("two") {
		t.Error("a file of the module starts the socket anew")
	}
}
