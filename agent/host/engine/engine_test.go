package engine_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mesh/agent/host/engine"
	"mesh/agent/host/file"
	"mesh/shared/refusal"
)

// stub is an engine's program that records what it is asked and answers as it is told.
type stub struct {
	asked  []string
	answer func(argv []string) (exit int, output string)
}

func (s *stub) Run(_ context.Context, _ string, argv []string) (int, string, error) {
	s.asked = append(s.asked, strings.Join(argv[1:], " "))
	if s.answer == nil {
		return 0, "", nil
	}
	exit, out := s.answer(argv)
	return exit, out, nil
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// on is a machine with one of the engines and these files.
func on(t testing.TB, program string, s *stub, files map[string]string) *engine.Engine {
	t.Helper()
	dir := t.TempDir()
	put := func(p, text string) {
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, p)), 0o755))
		must(t, os.WriteFile(filepath.Join(dir, p), []byte(text), 0o644))
	}
	put(program, "x")
	for p, text := range files {
		put(p, text)
	}
	root, err := file.OpenRoot(dir)
	must(t, err)
	t.Cleanup(func() { must(t, root.Close()) })
	e, err := engine.Find(root, s)
	must(t, err)
	return e
}

const (
	podman = "/usr/bin/podman"
	docker = "/usr/bin/docker"
	// images is what podman 4.3.1 wrote after one build, shortened, with an index beside the manifest.
	images = `[{"id":"4a47e36c7ba87280a3a0ec908f4889b67d4e9ec0ac48b3deba43bbb452d9bada","digest":"sha256:e23a838ef724649e740012fcf8da00cf2ebe1b7f80e22a5eaae5cb6eb36bf13a",
"names":["localhost/hello:latest"],"layer":"20835c4d","big-data-digests":{"manifest":"sha256:e23a838ef724649e740012fcf8da00cf2ebe1b7f80e22a5eaae5cb6eb36bf13a",
"manifest-sha256:1111111111111111111111111111111111111111111111111111111111111111":"sha256:1111111111111111111111111111111111111111111111111111111111111111"}}]`
	network = `{"name":"netx","id":"b2","driver":"bridge","network_interface":"podman1","subnets":[{"subnet":"10.89.0.0/24","gateway":"10.89.0.1"}],
"ipv6_enabled":false,"internal":false,"dns_enabled":true,"labels":{"mesh.module":"x"},"ipam_options":{"driver":"host-local"}}`
)

func TestPodmanIsSeenByItsFiles(t *testing.T) {
	s := &stub{}
	e := on(t, podman, s, map[string]string{
		"/etc/containers/storage.conf":                 "[storage]\ngraphroot = \"/data/box\"\n",
		"/data/box/overlay-images/images.json":         images,
		"/data/box/overlay-containers/containers.json": `[{"id":"a","names":["web"]},{"id":"b","names":["db","old"]}]`,
		"/data/box/volumes/data/_data/x":               "",
		"/etc/containers/networks/netx.json":           network,
	})
	for digest, want := range map[string]bool{
		"sha256:e23a838ef724649e740012fcf8da00cf2ebe1b7f80e22a5eaae5cb6eb36bf13a": true,
		"sha256:1111111111111111111111111111111111111111111111111111111111111111": true, // the index
		"sha256:2222222222222222222222222222222222222222222222222222222222222222": false,
	} {
		there, known, err := e.HasImage(engine.Image{Name: "localhost/hello", Digest: digest})
		if err != nil || !known || there != want {
			t.Errorf("%s: there %v, known %v, %v", digest, there, known, err)
		}
	}
	if there, _, err := e.HasImage(engine.Image{ID: "sha256:4a47e36c7ba87280a3a0ec908f4889b67d4e9ec0ac48b3deba43bbb452d9bada"}); err != nil || !there {
		t.Errorf("by its ID: %v, %v", there, err)
	}
	names, known, err := e.Containers()
	if err != nil || !known || !slices.Equal(names, []string{"db", "old", "web"}) {
		t.Errorf("containers %v, %v, %v", names, known, err)
	}
	if there, known, err := e.HasVolume("data"); err != nil || !known || !there {
		t.Errorf("the volume: %v, %v, %v", there, known, err)
	}
	if there, known, err := e.HasVolume("none"); err != nil || !known || there {
		t.Errorf("a volume that is not there: %v, %v, %v", there, known, err)
	}
	n, known, err := e.Network("netx")
	if err != nil || !known || n.Subnet != netip.MustParsePrefix("10.89.0.0/24") || n.Labels["mesh.module"] != "x" {
		t.Errorf("the network %+v, %v, %v", n, known, err)
	}
	for says, want := range map[string]engine.Network{
		"":         {Name: "netx"},
		"subnet":   {Name: "netx", Subnet: netip.MustParsePrefix("10.1.0.0/24")},
		"internal": {Name: "netx", Internal: true},
		"ipv6":     {Name: "netx", IPv6: true},
	} {
		if got := n.Differs(want); (got == "") != (says == "") || !strings.Contains(got, says) {
			t.Errorf("it differs from %+v by %q, want %q", want, got, says)
		}
	}
	if len(s.asked) > 0 {
		t.Errorf("a look started %v", s.asked)
	}
}

// Where the engine keeps its things elsewhere, files do not tell, and nobody is told that a thing is gone.
func TestWhatFilesDoNotTell(t *testing.T) {
	for _, program := range []string{podman, docker} {
		e := on(t, program, &stub{}, nil)
		_, image, err1 := e.HasImage(engine.Image{ID: "sha256:1"})
		_, volume, err2 := e.HasVolume("data")
		if err := errors.Join(err1, err2); err != nil || image || volume {
			t.Errorf("%s: known: image %v, volume %v, %v", program, image, volume, err)
		}
	}
	if n, known, err := on(t, podman, &stub{}, nil).Network("x"); n != nil || known || err != nil {
		t.Errorf("podman's network: %v, %v, %v", n, known, err)
	}
}

func TestWhatIsThereIsNotMadeAgain(t *testing.T) {
	s := &stub{}
	e := on(t, podman, s, map[string]string{"/var/lib/containers/storage/overlay-images/images.json": images,
		"/var/lib/containers/storage/volumes/data/_data/x": "", "/etc/containers/networks/netx.json": network})
	must(t, e.EnsureImage(t.Context(), engine.Image{ID: "sha256:4a47e36c7ba87280a3a0ec908f4889b67d4e9ec0ac48b3deba43bbb452d9bada"}, "127.0.0.1:1/x@sha256:y"))
	must(t, e.EnsureVolume(t.Context(), engine.Volume{Name: "data"}))
	must(t, e.EnsureNetwork(t.Context(), engine.Network{Name: "netx"}, nil))
	if len(s.asked) > 0 {
		t.Errorf("the engine was asked %q", s.asked)
	}
}

// A new network keeps out of the other networks and of what the machine's routes lead to.
func TestSubnets(t *testing.T) {
	taken := []netip.Prefix{netip.MustParsePrefix("10.89.1.0/25"), netip.MustParsePrefix("0.0.0.0/0")}
	for _, tt := range []struct{ name, subnet, want, refused string }{
		{"free, and the file of the name was lost in a power cut", "", "--subnet=10.89.2.0/24", ""},
		{"free", "", "--subnet=10.89.2.0/24", ""},
		{"declared", "10.5.0.0/24", "--subnet=10.5.0.0/24", ""},
		{"declared on a route", "10.89.1.0/24", "", "10.89.1.0/25"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &stub{}
			e := on(t, podman, s, map[string]string{"/etc/containers/networks/netx.json": network, "/etc/containers/networks/new.json": ""})
			n := engine.Network{Name: "new"}
			if tt.subnet != "" {
				n.Subnet = netip.MustParsePrefix(tt.subnet)
			}
			err := e.EnsureNetwork(t.Context(), n, taken)
			if tt.refused != "" {
				if r := refusal.Of(err); r == nil || !strings.Contains(r.Why, tt.refused) || len(s.asked) > 0 {
					t.Errorf("%v, asked %q", err, s.asked)
				}
				return
			}
			if err != nil || len(s.asked) != 1 || !strings.Contains(s.asked[0], tt.want) {
				t.Errorf("%v, asked %q, want %s", err, s.asked, tt.want)
			}
		})
	}
}

// Docker cannot run where this is tested: these are the words it is told.
func TestDockersWords(t *testing.T) {
	s := &stub{}
	e := on(t, docker, s, nil)
	if e.Kind() != engine.Docker {
		t.Fatal(e.Kind())
	}
	i := engine.Image{Name: "docker.io/library/redis", Digest: "sha256:1111111111111111111111111111111111111111111111111111111111111111"}
	must(t, e.EnsureImage(t.Context(), i, ""))
	must(t, e.EnsureImage(t.Context(), engine.Image{Digest: i.Digest, ID: "sha256:22"}, "127.0.0.1:41234/mesh/x@"+i.Digest))
	must(t, e.EnsureNetwork(t.Context(), engine.Network{Name: "back", Internal: true, Labels: map[string]string{"mesh.module": "box"}}, nil))
	must(t, e.EnsureVolume(t.Context(), engine.Volume{Name: "data", Labels: map[string]string{"mesh.module": "box"}}))
	must(t, e.RemoveContainer(t.Context(), "web"))
	must(t, e.RemoveNetwork(t.Context(), "back"))
	must(t, e.RemoveImage(t.Context(), i))
	want := []string{
		"pull --quiet docker.io/library/redis@sha256:1111111111111111111111111111111111111111111111111111111111111111",
		"pull --quiet 127.0.0.1:41234/mesh/x@sha256:1111111111111111111111111111111111111111111111111111111111111111",
		"network create --driver=bridge --subnet=10.89.0.0/24 --internal --opt=com.docker.network.bridge.name=" + engine.Bridge("back") + " --label=mesh.module=box back",
		"volume create --label=mesh.module=box data",
		"rm -v -f web",
		"network rm back",
		"rmi docker.io/library/redis@sha256:1111111111111111111111111111111111111111111111111111111111111111",
	}
	if !slices.Equal(s.asked, want) {
		t.Errorf("docker was told\n%s\nwant\n%s", strings.Join(s.asked, "\n"), strings.Join(want, "\n"))
	}
}

func TestDockerIsSeenByItsFiles(t *testing.T) {
	at := "/var/lib/docker/image/overlay2/"
	e := on(t, docker, &stub{}, map[string]string{
		at + "imagedb/content/sha256/22":                   "{}",
		at + "repositories.json":                           `{"Repositories":{"redis":{"redis@sha256:11":"sha256:22"}}}`,
		"/var/lib/docker/containers/a/config.v2.json":      `{"Name":"/web"}`,
		"/sys/class/net/" + engine.Bridge("back") + "/mtu": "1500",
	})
	for _, tt := range []struct {
		image engine.Image
		there bool
	}{{engine.Image{ID: "sha256:22"}, true}, {engine.Image{ID: "sha256:33"}, false},
		{engine.Image{Name: "docker.io/library/redis", Digest: "sha256:11"}, true}, {engine.Image{Name: "x.y/redis", Digest: "sha256:12"}, false}} {
		there, known, err := e.HasImage(tt.image)
		if err != nil || !known || there != tt.there {
			t.Errorf("%+v: there %v, known %v, %v", tt.image, there, known, err)
		}
	}
	if names, known, err := e.Containers(); err != nil || !known || !slices.Equal(names, []string{"web"}) {
		t.Errorf("containers %v, %v, %v", names, known, err)
	}
	if n, known, err := e.Network("back"); err != nil || known || n == nil {
		t.Errorf("the network %v, %v, %v", n, known, err)
	}
	if n, _, err := e.Network("other"); err != nil || n != nil {
		t.Errorf("a network that is not there: %v, %v", n, err)
	}
}

// APP-14: what an engine says becomes a reason and what to do. The words are podman 4.3's and docker's.
func TestFaultsSayWhatToDo(t *testing.T) {
	for says, tt := range map[string]struct {
		exit int
		out  string
	}{
		"ss -ltnp":               {126, "Error: cannot listen on the TCP port: listen tcp4 :8088: bind: address already in use"},
		"free some space":        {125, "Error: write /var/lib/containers/x: no space left on device"},
		"mount it writable":      {125, "Error: mkdir /var/lib/containers: read-only file system"},
		"systemctl start docker": {125, "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"},
		"registry cannot be":     {125, `Error: initializing source docker://r.example/x: pinging container registry r.example: Get "https://r.example/v2/": dial tcp: lookup r.example: no such host`},
		"name and digest":        {125, "Error: initializing source docker://quay.io/x: reading manifest sha256:1 in quay.io/x: manifest unknown"},
		"declare another subnet": {125, "Error: subnet 10.89.0.0/24 is already used on the host or by another config"},
		"take limits out": {127, "Error: runc: runc create failed: unable to start container process: error during container init: error setting cgroup config for procHooks process: " +
			"openat2 /sys/fs/cgroup/machine.slice/x.scope/pids.max: no such file or directory: OCI runtime attempted to invoke a command that was not found"},
		"run.directories":         {125, "Error: statfs /srv/none: no such file or directory"},
		"it ended with status 12": {12, "Error: who knows"},
	} {
		s := &stub{answer: func([]string) (int, string) { return tt.exit, tt.out }}
		e := on(t, podman, s, nil)
		err := e.EnsureImage(t.Context(), engine.Image{Name: "r.example/x", Digest: "sha256:1"}, "")
		if r := refusal.Of(err); r == nil || !strings.Contains(r.Why+" / "+r.Do, says) {
			t.Errorf("%q becomes %v, want %q in it", tt.out, err, says)
		}
	}
}

func TestRemovalsOfWhatIsGoneOrInUse(t *testing.T) {
	out, exit := "Error: unable to find network with name or ID x: network not found", 1
	e := on(t, podman, &stub{answer: func([]string) (int, string) { return exit, out }}, nil)
	must(t, e.RemoveNetwork(t.Context(), "x"))
	out = `Error: no volume with name "x" found: no such volume`
	must(t, e.RemoveVolume(t.Context(), "x"))
	out, exit = `Error: "x" has associated containers with it. Use -f to forcibly delete containers and pods: network is being used`, 2
	if err := e.RemoveNetwork(t.Context(), "x"); !errors.Is(err, engine.ErrInUse) {
		t.Errorf("a network in use: %v", err)
	}
	out = "Error: image used by 803c: image is in use by a container"
	must(t, e.RemoveImage(t.Context(), engine.Image{ID: "sha256:1"}))
}

func TestInspectReadsWhatATakeCompares(t *testing.T) {
	out := "WARN[0000] something\n" + `{"image":"2f3b","config":{"mesh.module":"box","PODMAN_SYSTEMD_UNIT":"web.service"},"created":"2026-11-30T17:58:33.861257036Z","status":"running",` +
		`"ports":{"8080/tcp":[{"HostIp":"","HostPort":"8088"}]},"networks":{"netx":{}},"mounts":[{"Type":"volume","Name":"v1","Source":"/s","Destination":"/data","RW":true},` +
		`{"Type":"bind","Source":"/srv","Destination":"/x","RW":false}],"name":"localhost/hello:latest"}`
	e := on(t, podman, &stub{answer: func([]string) (int, string) { return 0, out }}, nil)
	c, err := e.Inspect(t.Context(), "web")
	must(t, err)
	if c.Image != "sha256:2f3b" || c.ImageName != "localhost/hello:latest" || c.Unit != "web.service" || c.Labels["mesh.module"] != "box" ||
		!slices.Equal(c.Ports, []string{"8080/tcp -> 0.0.0.0:8088"}) || !slices.Equal(c.Mounts, []string{"/srv at /x, read only", "volume v1 at /data"}) || c.Created.Year() != 2026 {
		t.Errorf("%+v", c)
	}
}

func TestNoEngine(t *testing.T) {
	root, err := file.OpenRoot(t.TempDir())
	must(t, err)
	defer root.Close()
	if _, err := engine.Find(root, &stub{}); !errors.Is(err, engine.ErrNone) {
		t.Errorf("%v", err)
	}
	if r := refusal.Of(engine.Missing("module box")); r == nil || !strings.Contains(r.Do, "install podman") {
		t.Errorf("%v", r)
	}
}
