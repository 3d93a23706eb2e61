package take

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"mesh/agent/host/engine"
	"mesh/agent/host/file"
	"mesh/agent/resource"
	"mesh/shared/diagnosis"
	"mesh/shared/report"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := "testdata/" + name
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs; run with -update and review the diff:\n%s", path, got)
	}
}

func write(b *bytes.Buffer, title string, h report.Held) {
	fmt.Fprintf(b, "---- %s\n%s of %s needs %q\n", title, h.Thing, h.Module, h.Needs)
	for _, f := range h.Facts {
		fmt.Fprintf(b, "%-12s | %s | %s\n", f.What, f.Have, f.Want)
	}
	for _, l := range h.Difference {
		fmt.Fprintf(b, "  %s\n", l)
	}
	for _, n := range h.Notes {
		fmt.Fprintf(b, "note: %s\n", n)
	}
	if h.Cannot != "" {
		fmt.Fprintf(b, "cannot: %s\n", h.Cannot)
	}
}

func fileSeen(text string) FileSeen {
	b := []byte(text)
	return FileSeen{Content: b, Owner: "anna", Group: "users", Attributes: []string{"user.whose"},
		State: file.State{Exists: true, Kind: file.File, Sum: [32]byte([]byte(strings.Repeat("s", 32))), Mode: 0o640, Fingerprint: file.Fingerprint{Size: int64(len(b)), Mtime: time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC).UnixNano()}}}
}

func declaredFile(text string) *resource.Resource {
	return &resource.Resource{ID: "file:/etc/web.conf", Module: "site", Kind: resource.KindFile,
		File: &resource.File{Path: "/etc/web.conf", Content: []byte(text), Sum: resource.Sum([]byte(text)), Mode: 0o644, Owner: "root", Group: "root"}}
}

func seenContainer() ContainerSeen {
	return ContainerSeen{Container: engine.Container{Name: "web", ID: "cafe", Image: "sha256:" + strings.Repeat("f0", 32), ImageName: "docker.io/library/nginx:1.27", Status: "running",
		Created: time.Date(2026, 1, 5, 0, 0, 0, 0, time.UTC), Networks: []string{"podman", "shop"}, Ports: []string{"80/tcp -> 0.0.0.0:8080"},
		Mounts: []string{"/srv/www at /www", "volume data at /data"}, Volumes: []string{"data"},
		Data: []engine.Data{{At: "/data", Source: "data", Volume: true}, {At: "/www", Source: "/srv/www"}}},
		Made: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), DeclaredMade: time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC), DeclaredID: "sha256:" + strings.Repeat("d1", 32),
		Beside: map[string][]string{"shop": {"db", "queue"}}, Again: true}
}

func declaredContainer() *resource.Resource {
	return &resource.Resource{ID: "container:web", Module: "site", Kind: resource.KindContainer, Container: &resource.Container{Name: "web", Unit: "mesh-site-web.service",
		Image: &resource.Image{Name: "docker.io/library/nginx", Digest: "sha256:" + strings.Repeat("ab", 32)}, Networks: []string{"mesh-site-back"},
		Ports: []string{"80/tcp -> 0.0.0.0:8080"}, Mounts: []string{"/srv/www at /www", "volume data at /data"}, Sources: map[string]string{"/data": "data", "/www": "/srv/www"}}}
}

// APP-9: what a person reads before a take; no secret is in it.
func TestCompare(t *testing.T) {
	var b bytes.Buffer
	mask := diagnosis.NewMask().Text
	text := "# the shop\nname = old\npassword = hunter2secret\nport = 80\nlog = yes\ntls = no\nworkers = 4\nend\n"
	other := strings.Replace(strings.Replace(text, "name = old", "name = new", 1), "workers = 4\n", "", 1) + "more\n"
	write(&b, "a file", CompareFile(declaredFile(other), fileSeen(text), mask))
	private := declaredFile("password = hunter3secret\n")
	private.File.Private = true
	write(&b, "a file with a secret declared", CompareFile(private, fileSeen(text), mask))
	write(&b, "a file that is no text", CompareFile(declaredFile(other), fileSeen("\x00\x01"), mask))
	large := fileSeen("")
	large.Content, large.State.Size = nil, 9<<20
	write(&b, "a large file", CompareFile(declaredFile(other), large, mask))

	unit := &resource.Resource{ID: "unit:web.service", Module: "site", Kind: resource.KindUnit,
		Unit: &resource.Unit{Name: "web.service", Content: []byte("[Service]\nExecStart=/bin/new\n"), Enabled: true, Started: true}}
	own := UnitSeen{File: fileSeen("[Service]\nExecStart=/bin/old\n"), Text: []byte("[Service]\nExecStart=/bin/old\n"), Fragment: "/etc/systemd/system/web.service",
		Enabled: "disabled", Active: "active", DropIns: []string{"/etc/systemd/system/web.service.d/limits.conf"}}
	write(&b, "a unit", CompareUnit(unit, own, mask))
	write(&b, "a unit of the distribution", CompareUnit(unit, UnitSeen{Text: []byte("[Service]\nExecStart=/usr/sbin/web\n"), Fragment: "/usr/lib/systemd/system/web.service", Enabled: "enabled", Active: "inactive"}, mask))

	c := seenContainer()
	write(&b, "a container", CompareContainer(declaredContainer(), c))
	change := func(title string, fn func(*ContainerSeen)) {
		c := seenContainer()
		fn(&c)
		write(&b, title, CompareContainer(declaredContainer(), c))
	}
	change("an older image is declared", func(c *ContainerSeen) { c.Made = c.DeclaredMade.AddDate(0, 1, 0) })
	change("the declared image is not there", func(c *ContainerSeen) { c.DeclaredMade, c.DeclaredID = time.Time{}, "" })
	change("of a unit, and it goes when it ends", func(c *ContainerSeen) { c.Owned, c.Unit, c.AutoRemove = true, "container-web.service", true })
	change("started again at boot by podman", func(c *ContainerSeen) { c.Restart = "always" })
	change("started again at boot by docker", func(c *ContainerSeen) { c.Restart, c.Docker = "always", true })
	change("other data are declared", func(c *ContainerSeen) { c.Data[0].Source = "olddata" })
	change("data that nothing is declared of", func(c *ContainerSeen) { c.Data[1].At = "/uploads" })
	change("--rm with a volume without a name", func(c *ContainerSeen) { c.AutoRemove, c.Volumes = true, []string{strings.Repeat("ab", 32)} })
	change("--rm, and nobody knows how it was made", func(c *ContainerSeen) { c.AutoRemove, c.Again = true, false })
	if strings.Contains(b.String(), "hunter") {
		t.Error("a secret is shown")
	}
	golden(t, "compare.txt", b.Bytes())
}

// A find is told from another by what a take depends on, and by nothing else.
func TestSeenTellsFindsApart(t *testing.T) {
	base := CompareContainer(declaredContainer(), seenContainer()).Seen
	for name, tt := range map[string]struct {
		change func(*ContainerSeen)
		same   bool
	}{
		"another container": {func(c *ContainerSeen) { c.ID = "beef" }, false},
		"another image":     {func(c *ContainerSeen) { c.Image = "sha256:0" }, false},
		"it was stopped":    {func(c *ContainerSeen) { c.Status = "exited" }, true},
		"a neighbour came":  {func(c *ContainerSeen) { c.Beside["shop"] = nil }, true},
	} {
		c := seenContainer()
		tt.change(&c)
		if got := CompareContainer(declaredContainer(), c).Seen; (got == base) != tt.same {
			t.Errorf("%s: same=%v", name, got == base)
		}
	}
	a, b := fileSeen("x"), fileSeen("x")
	b.Owner = "root"
	mask := func(s string) string { return s }
	if CompareFile(declaredFile("y"), a, mask).Seen == CompareFile(declaredFile("y"), b, mask).Seen {
		t.Error("a file of another owner is the same find")
	}
}

func TestDifference(t *testing.T) {
	for name, tt := range map[string]struct {
		have, want string
		out        []string
	}{
		"equal":          {"a\nb\n", "a\nb\n", nil},
		"a line more":    {"a\n", "a\nb\n", []string{"  a", "+ b"}},
		"nothing there":  {"", "a\n", []string{"+ a"}},
		"the last break": {"a", "a\n", []string{"  only the end of the last line differs"}},
		"far apart":      {"x\n1\n2\n3\n4\n5\n6\ny\n", "X\n1\n2\n3\n4\n5\n6\nY\n", []string{"- x", "+ X", "  1", "  2", "  …", "  5", "  6", "- y", "+ Y"}},
	} {
		if got := difference([]byte(tt.have), []byte(tt.want)); !slices.Equal(got, tt.out) {
			t.Errorf("%s: %q, want %q", name, got, tt.out)
		}
	}
	long := difference([]byte(strings.Repeat("a\n", 500)), []byte(strings.Repeat("b\n", 500)))
	if len(long) != report.MaxDifference || !strings.Contains(long[len(long)-1], "961 more lines") {
		t.Errorf("%d lines, the last %q", len(long), long[len(long)-1])
	}
}
