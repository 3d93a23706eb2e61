package records_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"mesh/coordinator/records"
	"mesh/shared/credential"
	"mesh/shared/declaration"
	"mesh/shared/subject"
)

func TestRegister(t *testing.T) {
	m := newMesh(t)
	ctx := t.Context()
	artifact := &declaration.Artifact{Digest: strings.Repeat("ab", 32), Size: 10, Chunks: 1}
	first, news, err := m.store.Register(ctx, by, records.Registration{Manifest: json.RawMessage(`{"module":"web","build":{"bundle":{"output":"dist"}}}`), Artifact: artifact, Source: "a folder"})
	m.ok(err)
	if !news || !strings.HasPrefix(first.ID, "build-") || *first.Artifact != *artifact || first.Source != "a folder" {
		t.Errorf("registered %+v", first)
	}
	again, news, err := m.store.Register(ctx, by, records.Registration{Manifest: json.RawMessage(`{"module": "web", "build": {"bundle": {"output": "dist"}}}`), Artifact: artifact})
	m.ok(err)
	if news || again.ID != first.ID {
		t.Errorf("the same again is %+v, news %v", again, news)
	}
	other := *artifact
	other.Digest = strings.Repeat("cd", 32)
	next, news, err := m.store.Register(ctx, by, records.Registration{Manifest: first.Text, Artifact: &other}) // at the same nanosecond
	m.ok(err)
	if !news || next.ID == first.ID {
		t.Errorf("another bundle is %+v, news %v", next, news)
	}
	back := must(m.store.UseBuild(ctx, by, first.ID))
	if cur := must(m.store.Module(ctx, "web")); cur.ID != back.ID {
		t.Errorf("current is %s, want %s", cur.ID, back.ID)
	}
	m.ok(m.store.Close())
	m.open()
	all := must(m.store.Builds(ctx, "web"))
	if len(all) != 2 || all[0].ID != next.ID || string(all[1].Text) != string(first.Text) || *all[1].Artifact != *artifact || all[1].Manifest.Build.Bundle.Output != "dist" {
		t.Errorf("read back %+v", all)
	}
}

func TestRegisterIsRefused(t *testing.T) {
	m := newMesh(t)
	for _, tt := range []struct {
		name, manifest string
		artifact       *declaration.Artifact
		say            string
	}{
		{"unknown field", `{"module":"web","colour":1}`, nil, "colour"},
		{"wrong name", `{"module":"we.b"}`, nil, "dot"},
		{"no bundle", `{"module":"web","build":{"bundle":{"output":"dist"}}}`, nil, "none came with it"},
		{"a bundle too many", `{"module":"web"}`, &declaration.Artifact{Digest: strings.Repeat("ab", 32), Size: 1, Chunks: 1}, "manifest has none"},
		{"a bundle that cannot be", `{"module":"web","build":{"bundle":{"output":"dist"}}}`, &declaration.Artifact{Digest: "x", Size: 1, Chunks: 1}, "digest"},
		{"no JSON", `module: web`, nil, "not JSON"},
		{"a name of the node's own openings", `{"module":"admin"}`, nil, "another name"},
		{"a name of the bus's openings", `{"module":"bus"}`, nil, "another name"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, _, err := m.store.Register(t.Context(), by, records.Registration{Manifest: json.RawMessage(tt.manifest), Artifact: tt.artifact})
			m.refused(err, tt.say)
		})
	}
	if all := must(m.store.Modules(t.Context())); len(all) != 0 {
		t.Errorf("refused, and there is %+v", all)
	}
}

// TestRegisterFits: a build that an assignment could not run with is refused, so that no registration
// takes a module off a machine.
func TestRegisterFits(t *testing.T) {
	m := newMesh(t)
	m.node("db1", "db2", "gone")
	m.module(`{"module":"web","settings":{"port":{}},"run":{"files":[{"path":"/etc/web"}]}}`)
	m.module(`{"module":"notes","run":{"files":[{"path":"/etc/notes"}]}}`)
	for _, n := range []subject.Node{"db1", "db2", "gone"} {
		m.ok(m.assign("web", records.AssignSet{Set: map[string]string{"port": "1"}}, n))
	}
	m.ok(m.assign("notes", records.AssignSet{}, "db2"))
	_, err := m.register(`{"module":"web","settings":{"port":{},"name":{}}}`)
	m.refused(err, "db1 lacks the setting name", "db2 lacks", "default")
	_, err = m.register(`{"module":"web","secrets":{"key":{}}}`)
	m.refused(err, "the secret key")
	_, err = m.register(`{"module":"web","settings":{"port":{}},"run":{"files":[{"path":"/etc/notes"}]}}`)
	m.refused(err, "on db2", "module notes has the file /etc/notes there too")
	m.ok(m.store.Unassign(t.Context(), by, []subject.Node{"db2"}, "notes"))
	m.module(`{"module":"web","settings":{"port":{}},"run":{"files":[{"path":"/etc/notes"}]}}`)
}

// TestModulesThatClash on one machine are refused by name, when they are assigned and when another build is
// registered.
func TestModulesThatClash(t *testing.T) {
	for _, tt := range []struct{ name, a, b, say string }{
		{"a file", `"run":{"files":[{"path":"/etc/x","content":"a"}]}`, `"run":{"files":[{"path":"/etc/x","content":"b"}]}`, "file /etc/x"},
		{"a file and a directory", `"run":{"files":[{"path":"/srv/x","content":"a"}]}`, `"run":{"directories":[{"path":"/srv/x"}]}`, "directory /srv/x"},
		{"a user", `"run":{"users":{"app":{}}}`, `"run":{"users":{"app":{}}}`, "user app"},
		{"a port", `"firewall":{"allow":[{"port":"80/tcp","from":"anywhere"}]}`, `"firewall":{"allow":[{"port":"79-90/tcp","from":"tunnel"}]}`, "open port 79-90/tcp"},
		{"a unit", `"run":{"units":{"x.service":{"content":"[Service]\nExecStart=/bin/true\n"}}}`,
			`"run":{"units":{"x.service":{"content":"[Service]\nExecStart=/bin/false\n"}}}`, "unit x.service"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newMesh(t)
			m.node("db1", "db2")
			m.module(`{"module":"one",` + tt.a + `}`)
			m.module(`{"module":"two",` + tt.b + `}`)
			m.module(`{"module":"three"}`)
			m.ok(m.assign("two", records.AssignSet{}, "db1"))
			m.refused(m.assign("one", records.AssignSet{}, "db1"), "module one on db1", "module two has the "+tt.say, "unassign two from db1")
			m.ok(m.assign("one", records.AssignSet{}, "db2"))
			m.ok(m.assign("three", records.AssignSet{}, "db1"))
			_, err := m.register(`{"module":"three",` + tt.a + `}`)
			m.refused(err, "module three on db1", "module two has the")
		})
	}
	t.Run("ports that do not meet", func(t *testing.T) {
		m := newMesh(t)
		m.node("db1")
		m.module(`{"module":"one","firewall":{"allow":[{"port":"80/tcp","from":"anywhere"}]}}`)
		m.module(`{"module":"two","firewall":{"allow":[{"port":"80/udp","from":"anywhere"},{"port":"81-90/tcp","from":"anywhere"}]}}`)
		m.ok(m.assign("one", records.AssignSet{}, "db1"))
		m.ok(m.assign("two", records.AssignSet{}, "db1"))
	})
}

func TestAssign(t *testing.T) {
	m := newMesh(t)
	ctx := t.Context()
	m.node("db1", "db2")
	m.module(`{"module":"web","settings":{"port":{},"name":{"default":"x"}},"secrets":{"key":{}},"run":{"users":{"web":{}}}}`)
	m.module(`{"module":"twin","run":{"users":{"web":{}}}}`)
	full := records.AssignSet{Set: map[string]string{"port": "80"}, Secrets: map[string]string{"key": "hush"}}
	m.refused(m.assign("web", records.AssignSet{Set: map[string]string{"port": "80"}}, "db1"), "lacks the secret key")
	m.refused(m.assign("web", records.AssignSet{Secrets: map[string]string{"key": "k"}}, "db1"), "lacks the setting port")
	m.refused(m.assign("web", full, "db1", "nope"), "nope")
	if all := must(m.store.AssignmentsOf(ctx, "web")); len(all) != 0 {
		t.Fatalf("refused for one, and there is %+v", all)
	}
	got, err := m.store.Assign(ctx, by, []subject.Node{"db2", "db1", "db1"}, "web", full)
	m.ok(err)
	if want := []records.Assigned{{"db1", true, true}, {"db2", true, true}}; !slices.Equal(got, want) {
		t.Errorf("assigned %+v, want %+v", got, want)
	}
	for _, line := range m.journal() {
		if strings.Contains(line, "hush") {
			t.Errorf("a secret stands in the journal: %s", line)
		}
	}
	lines := len(m.journal())
	got, err = m.store.Assign(ctx, by, []subject.Node{"db1", "db2"}, "web", records.AssignSet{Set: map[string]string{"port": "80"}})
	m.ok(err)
	if want := []records.Assigned{{"db1", false, false}, {"db2", false, false}}; !slices.Equal(got, want) || len(m.journal()) != lines {
		t.Errorf("the same again: %+v", got)
	}
	m.ok(m.assign("web", records.AssignSet{Set: map[string]string{"name": "y"}}, "db1"))
	m.refused(m.assign("web", records.AssignSet{Unset: []string{"port"}}, "db1"), "lacks the setting port")
	m.refused(m.assign("web", records.AssignSet{Set: map[string]string{"port": "1"}, Unset: []string{"port"}}, "db1"), "at once")
	a := must(m.store.Assignments(ctx, "db1"))[0]
	if a.Settings["port"] != "80" || a.Settings["name"] != "y" {
		t.Errorf("settings are %v", a.Settings)
	}
	m.ok(m.assign("web", records.AssignSet{Unset: []string{"name"}}, "db1"))
	if a := must(m.store.Assignments(ctx, "db1"))[0]; len(a.Settings) != 1 {
		t.Errorf("settings are %v", a.Settings)
	}
	m.refused(m.assign("twin", records.AssignSet{}, "db1"), "module web has the user web there too", "unassign web")
	m.ok(m.store.Unassign(ctx, by, []subject.Node{"db1", "db2"}, "web"))
	m.refused(m.store.Unassign(ctx, by, []subject.Node{"db1"}, "web"), "not assigned")
	m.ok(m.assign("twin", records.AssignSet{}, "db1"))
}

// TestSecretsAreSealed: what is kept can be opened by that node only.
func TestSecretsAreSealed(t *testing.T) {
	m := newMesh(t)
	curve := must(credential.NewCurve(cryptoRand{}))
	a := ask()
	a.Curve = must(curve.Public())
	must(m.store.AddNode(t.Context(), by, "db1", a))
	m.module(`{"module":"web","secrets":{"key":{}}}`)
	m.ok(m.assign("web", records.AssignSet{Secrets: map[string]string{"key": "hush"}}, "db1"))
	sealed := must(m.store.Assignments(t.Context(), "db1"))[0].Secrets["key"]
	if got := must(sealed.Open(curve, "db1", "web", "key")); got != "hush" {
		t.Errorf("opened %q", got)
	}
	if _, err := sealed.Open(must(credential.NewCurve(cryptoRand{})), "db1", "web", "key"); err == nil {
		t.Error("another node opened it")
	}
}

// image is an image with a manifest, a config and two layers.
func image(name, arch string, first byte) declaration.Image {
	i := declaration.Image{Name: name, Arch: arch, Type: declaration.OCIManifest}
	for k := range byte(4) {
		i.Blobs = append(i.Blobs, declaration.Artifact{Digest: strings.Repeat(string("0123456789abcdef"[(first+k)%16]), 64), Size: int64(k) + 1, Chunks: 1})
	}
	i.ID = i.Blobs[1].Digest
	return i
}

func TestRegisterImages(t *testing.T) {
	m := newMesh(t)
	ctx := t.Context()
	text := json.RawMessage(`{"module":"web","build":{"images":{"web":{"from":"web.tar"}}}}`)
	images := []declaration.Image{image("web", "amd64", 0), image("web", "arm64", 8)}
	b, _, err := m.store.Register(ctx, by, records.Registration{Manifest: text, Images: images})
	m.ok(err)
	if again, news, err := m.store.Register(ctx, by, records.Registration{Manifest: text, Images: images}); err != nil || news || again.ID != b.ID {
		t.Errorf("the same again: %+v, %v, %v", again, news, err)
	}
	if _, news, err := m.store.Register(ctx, by, records.Registration{Manifest: text, Images: images[:1]}); err != nil || !news {
		t.Errorf("another set of images: news %v, %v", news, err)
	}
	m.ok(m.store.Close())
	m.open()
	read := must(m.store.Build(ctx, b.ID))
	if len(read.Images) != 2 || read.Images[1].Blobs[3] != images[1].Blobs[3] || len(read.Artifacts("")) != 8 || len(read.Artifacts("arm64")) != 4 || len(read.ImagesFor("riscv64")) != 0 {
		t.Errorf("read back %+v", read.Images)
	}
	for _, tt := range []struct {
		say    string
		images []declaration.Image
	}{
		{"none came with it", nil},
		{"none of that name", []declaration.Image{image("other", "amd64", 0), images[0]}},
		{"not in order", []declaration.Image{images[1], images[0]}},
		{"has 0 blobs", []declaration.Image{{Name: "web", Arch: "amd64", Type: declaration.OCIManifest}}},
	} {
		_, _, err := m.store.Register(ctx, by, records.Registration{Manifest: text, Images: tt.images})
		m.refused(err, tt.say)
	}
}

// What may not leave the bus: the current build's, those of the last builds, and what is declared.
func TestNeeded(t *testing.T) {
	m := newMesh(t)
	ctx := t.Context()
	var ids []string
	artifact := func(n int) *declaration.Artifact {
		return &declaration.Artifact{Digest: strings.Repeat(string("0123456789abcdef"[n]), 64), Size: 10, Chunks: 1}
	}
	for n := range 6 {
		b, _, err := m.store.Register(ctx, by, records.Registration{Manifest: json.RawMessage(`{"module":"web","build":{"bundle":{"output":"dist"}}}`), Artifact: artifact(n)})
		m.ok(err)
		ids = append(ids, b.ID)
	}
	must(m.store.UseBuild(ctx, by, ids[0]))
	needed := must(m.store.Needed(ctx, 2))
	for n := range 6 {
		if _, is := needed[artifact(n).Digest]; is != slices.Contains([]int{0, 4, 5}, n) {
			t.Errorf("the bundle of build %d of 6, with the first in use, is needed: %v", n, is)
		}
	}
	m.ok(m.store.SetVerified(ctx, *artifact(1), true))
	other := *artifact(1)
	other.Size++
	for _, tt := range []struct {
		a    declaration.Artifact
		want bool
	}{{*artifact(1), true}, {other, false}, {*artifact(2), false}} {
		if got := must(m.store.Verified(ctx, []declaration.Artifact{tt.a})); got[tt.a.Digest] != tt.want {
			t.Errorf("%v verified: %v", tt.a, got)
		}
	}
	m.ok(m.store.SetVerified(ctx, *artifact(1), false))
	if got := must(m.store.Verified(ctx, []declaration.Artifact{*artifact(1)})); got[artifact(1).Digest] {
		t.Error("it is verified still")
	}
}
