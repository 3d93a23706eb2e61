package manifest_test

import (
	"strings"
	"testing"

	"mesh/shared/manifest"
)

const someDigest = "@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// APP-17: what a container may say, and what is refused before it reaches a machine.
func TestContainersAreChecked(t *testing.T) {
	for _, tt := range []struct {
		name string
		edit func(*manifest.Manifest, *manifest.Container)
		says string // empty: it keeps the rules
	}{
		{"as it is", func(*manifest.Manifest, *manifest.Container) {}, ""},
		{"a tag", func(_ *manifest.Manifest, c *manifest.Container) { c.Image = "docker.io/library/redis:7" }, "digest"},
		{"no registry", func(_ *manifest.Manifest, c *manifest.Container) { c.Image = "redis" + someDigest }, "registry"},
		{"a registry on loopback", func(_ *manifest.Manifest, c *manifest.Container) { c.Image = "localhost:5000/redis" + someDigest }, ""},
		{"built of nothing", func(_ *manifest.Manifest, c *manifest.Container) { c.Image = "built" }, "build.images"},
		{"built", func(m *manifest.Manifest, c *manifest.Container) {
			m.Build.Images, c.Image = map[string]manifest.Image{"web": {From: "web.tar"}}, "built"
		}, ""},
		{"built of another name", func(m *manifest.Manifest, c *manifest.Container) {
			m.Build.Images, c.Image = map[string]manifest.Image{"web": {From: "web.tar"}}, "built:wob"
		}, `did you mean "web"`},
		{"a process of the name", func(m *manifest.Manifest, _ *manifest.Container) {
			m.Run.Processes = map[string]manifest.Process{"web": {Exec: []string{"/bin/true"}}}
		}, "rename one"},
		{"after a process", func(m *manifest.Manifest, c *manifest.Container) {
			m.Run.Processes, c.After = map[string]manifest.Process{"db": {Exec: []string{"/bin/true"}}}, []string{"db"}
		}, ""},
		{"each after the other", func(m *manifest.Manifest, c *manifest.Container) {
			m.Run.Processes = map[string]manifest.Process{"db": {Exec: []string{"/bin/true"}, After: []string{"web"}}}
			c.After = []string{"db"}
		}, "wait for each other"},
		{"replaces what is there", func(_ *manifest.Manifest, c *manifest.Container) { c.Replaces = []string{"web"} }, "of this build"},
		{"a secret for the engine", func(m *manifest.Manifest, c *manifest.Container) {
			m.Secrets, c.Env = map[string]manifest.Secret{"k": {}}, map[string]string{"LD_PRELOAD": "${secret:k}"}
		}, "reads this variable itself"},
		{"an unknown network", func(_ *manifest.Manifest, c *manifest.Container) { c.Networks = []string{"bakc"} }, "run.networks"},
		{"host among others", func(m *manifest.Manifest, c *manifest.Container) {
			m.Run.Networks, c.Networks = map[string]manifest.Network{"back": {}}, []string{"host", "back"}
		}, "stands alone"},
		{"ports on host", func(_ *manifest.Manifest, c *manifest.Container) {
			c.Networks, c.Ports = []string{"host"}, []manifest.Port{{Container: "80"}}
		}, "publishes nothing"},
		{"port 0", func(_ *manifest.Manifest, c *manifest.Container) { c.Ports = []manifest.Port{{Container: "0"}} }, "65535"},
		{"a port twice", func(_ *manifest.Manifest, c *manifest.Container) {
			c.Ports = []manifest.Port{{Container: "80"}, {Container: "80", Publish: "80"}}
		}, "twice"},
		{"a mount of both", func(_ *manifest.Manifest, c *manifest.Container) {
			c.Volumes = []manifest.Mount{{Name: "d", Path: "/srv/d", At: "/d"}}
		}, "either name"},
		{"a mount with a colon", func(_ *manifest.Manifest, c *manifest.Container) {
			c.Volumes = []manifest.Mount{{Path: "/srv/d:rw", At: "/d"}}
		}, "colon"},
		{"a device elsewhere", func(_ *manifest.Manifest, c *manifest.Container) { c.Devices = []string{"/etc/passwd"} }, "/dev/"},
		{"memory in words", func(_ *manifest.Manifest, c *manifest.Container) { c.Limits.Memory = "much" }, "512M"},
		{"mesh's label", func(_ *manifest.Manifest, c *manifest.Container) { c.Labels = map[string]string{"mesh.module": "x"} }, "mesh's own"},
		{"health of two kinds", func(_ *manifest.Manifest, c *manifest.Container) {
			c.Health = &manifest.Health{TCP: "127.0.0.1:1", Systemd: true}
		}, "exactly one"},
		{"health by ftp", func(_ *manifest.Manifest, c *manifest.Container) {
			c.Health = &manifest.Health{HTTP: "ftp://x"}
		}, "http://"},
		{"a subnet with an address in it", func(m *manifest.Manifest, _ *manifest.Container) {
			m.Run.Networks = map[string]manifest.Network{"n": {Subnet: "10.1.2.3/24"}}
		}, "range of addresses"},
		{"a sysctl of a path", func(m *manifest.Manifest, _ *manifest.Container) {
			m.Run.Sysctls = map[string]string{"net/../../etc": "1"}
		}, "kernel setting"},
		{"a kernel module twice", func(m *manifest.Manifest, _ *manifest.Container) { m.Run.KernelModules = []string{"tun", "tun"} }, "twice"},
		{"a link where a file is", func(m *manifest.Manifest, _ *manifest.Container) {
			m.Run.Files, m.Run.Links = []manifest.File{{Path: "/etc/x"}}, []manifest.Link{{Path: "/etc/x", Target: "y"}}
		}, "already"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := manifest.Manifest{Module: "notes"}
			c := manifest.Container{Image: "docker.io/library/redis" + someDigest}
			tt.edit(&m, &c)
			m.Run.Containers = map[string]manifest.Container{"web": c}
			err := m.Check()
			if tt.says == "" && err != nil || tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says)) {
				t.Errorf("Check says %v, want %q", err, tt.says)
			}
		})
	}
}

func TestPortsInTheEngineWords(t *testing.T) {
	for want, p := range map[string]manifest.Port{
		"80:80/tcp":               {Container: "80"},
		"127.0.0.1:8080:80/udp":   {Container: "80", Publish: "8080", Protocol: "udp", Address: "127.0.0.1"},
		"[2001:db8::1]:80:80/tcp": {Container: "80", Address: "2001:db8::1"},
	} {
		if got := p.Word(); got != want {
			t.Errorf("Word of %+v is %s, want %s", p, got, want)
		}
	}
}
