package compose_test

import (
	"strings"
	"testing"

	"mesh/coordinator/compose"
	"mesh/coordinator/records"
	"mesh/shared/declaration"
	"mesh/shared/subject"
)

func image(name, arch string, digits ...string) declaration.Image {
	i := declaration.Image{Name: name, Arch: arch, Type: declaration.OCIManifest}
	for _, d := range digits {
		i.Blobs = append(i.Blobs, declaration.Artifact{Digest: strings.Repeat(d, 64), Size: 5, Chunks: 1})
	}
	i.ID = i.Blobs[1].Digest
	return i
}

// A machine is sent the images for its architecture, one that nobody knows yet all of them, and one that
// none is for not the module.
func TestImagesForAMachine(t *testing.T) {
	for _, tt := range []struct {
		arch string
		want string
		left string
	}{
		{"amd64", "amd64", ""},
		{"arm64", "arm64", ""},
		{"", "amd64 arm64", ""},
		{"riscv64", "", "its image web is for amd64, this machine is riscv64"},
	} {
		b := build("build-1", `{"module":"web","build":{"images":{"web":{"from":"web.tar"}}}}`)
		b.Images = []declaration.Image{image("web", "amd64", "a", "b", "c"), image("web", "arm64", "d", "e", "c")}
		c, left := compose.Content(compose.View{Node: "db1", Facts: records.Facts{OS: "debian", Arch: tt.arch}, Modules: []compose.Instance{{Build: b}}})
		var got []string
		for _, m := range c.Modules {
			for _, i := range m.Images {
				got = append(got, i.Arch)
			}
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("on %q it has images for %v, want %s", tt.arch, got, tt.want)
		}
		if tt.left != "" && (len(left) == 0 || left[0].Why != tt.left) {
			t.Errorf("on %q left out: %v", tt.arch, left)
		}
		want := map[string]int{"amd64": 3, "arm64": 3, "": 5, "riscv64": 0}[tt.arch] // a layer is shared
		if all := compose.Artifacts(c); len(all) != want {
			t.Errorf("on %q it may fetch %d blobs, want %d", tt.arch, len(all), want)
		}
	}
}

// A node may fetch the blobs of its own modules' images and nobody else's.
func TestRightsToBlobs(t *testing.T) {
	f := newFleet(t)
	f.node("db1")
	f.node("db2")
	i := image("web", "amd64", "a", "b", "c")
	_, _, err := f.store.Register(t.Context(), by, records.Registration{Manifest: []byte(`{"module":"web","build":{"images":{"web":{"from":"web.tar"}}}}`), Images: []declaration.Image{i}})
	f.ok(err)
	must(f.store.Assign(t.Context(), by, []subject.Node{"db1"}, "web", records.AssignSet{}))
	all, _, err := f.composer().Principals(t.Context())
	f.ok(err)
	for _, p := range all {
		want := map[string]int{"db1": 3}[p.Name]
		if len(p.Artifacts) != want {
			t.Errorf("%s may fetch %v, want %d blobs", p.Name, p.Artifacts, want)
		}
	}
}
