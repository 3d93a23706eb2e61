package apply_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mesh/agent/apply"
	"mesh/shared/declaration"
	"mesh/shared/manifest"
	"mesh/shared/report"
)

func dataFolders(paths ...string) (all []manifest.Directory) {
	for _, p := range paths {
		all = append(all, manifest.Directory{Path: p, Data: true})
	}
	return all
}

// keeper is a module with data in folders and a volume.
func keeper(paths ...string) mod {
	run := boxes(oneImage)
	run.Directories = dataFolders(paths...)
	return module("box", run)
}

func remove(things ...string) *declaration.Remove {
	return &declaration.Remove{Data: []declaration.RemoveData{{Module: "box", Things: things}}}
}

// deleting is the end of a module with its data, which a kill interrupts at each step.
var deleting = lives{
	name: "deleting data",
	past: func(t *testing.T, b *bed) {
		b.installPodman(t)
		applied(t, b.accept(t, 1, keeper("/srv/box", "/srv/box/db")))
		must(t, os.WriteFile(b.root("/srv/box/db/rows"), []byte("x"), 0o644))
	},
	next:   func(t *testing.T, b *bed) []mod { return busy(b, t, "one")[1:] },
	remove: remove("dir:/srv/box", "dir:/srv/box/db", "volume:mesh-box-data"),
}

func (b *bed) end(t *testing.T, seq uint64, r *declaration.Remove, mods ...mod) apply.Result {
	t.Helper()
	c := b.content(t, mods...)
	c.Remove = r
	return b.acceptContent(t, seq, c)
}

func (b *bed) there(t *testing.T, p string) bool {
	t.Helper()
	_, err := os.Lstat(b.root(p))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return err == nil
}

// APP-11: data survive the end of their module; with a person's word exactly what it names goes, and said again
// the word finds nothing, whoever has something there by then.
func TestDataGoWhereAPersonSaysSo(t *testing.T) {
	b := newBed(t)
	b.installPodman(t)
	must(t, b.put("/srv/precious", "x"))
	applied(t, b.accept(t, 1, keeper("/srv/box", "/srv/box/db", "/srv/stays")))
	must(t, b.put("/srv/box/db/rows", "rows"))
	must(t, os.Symlink(b.root("/srv/precious"), b.root("/srv/box/link")))
	must(t, b.put("/srv/stays/rows", "rows"))
	applied(t, b.accept(t, 2))
	for _, p := range []string{"/srv/box/db/rows", "/srv/stays/rows", store + "/volumes/mesh-box-data/_data"} {
		if !b.there(t, p) {
			t.Errorf("%s did not survive", p)
		}
	}
	word := remove("dir:/srv/box", "dir:/srv/box/db", "volume:mesh-box-data")
	if r := applied(t, b.end(t, 3, word)); r.Steps != 3 || len(r.Left) > 0 {
		t.Errorf("%d steps, left %+v", r.Steps, r.Left)
	}
	for p, want := range map[string]bool{"/srv/box": false, store + "/volumes/mesh-box-data": false, "/srv/stays/rows": true, "/srv/precious": true, "/srv/.mesh-deleted-box": false} {
		if b.there(t, p) != want {
			t.Errorf("%s: there is %v", p, !want)
		}
	}
	must(t, b.put("/srv/box/mine", "a person's"))
	for range 2 {
		if r := applied(t, b.pass(t, apply.Reconcile)); r.Steps != 0 {
			t.Errorf("the word was carried out twice: %+v", r)
		}
	}
	// Another module's by now, under the same name.
	other := module("other", manifest.Run{Directories: dataFolders("/srv/box")})
	if r := applied(t, b.end(t, 4, word, other)); !b.there(t, "/srv/box/mine") || len(r.Left) > 0 {
		t.Errorf("another's data went: %+v", r)
	}
	applied(t, b.end(t, 5, word))
	if !b.there(t, "/srv/box/mine") {
		t.Error("another's data went after its end")
	}
}

// APP-11: each thing that is not exactly data that mesh made for that module stays, and is said.
func TestDataThatStay(t *testing.T) {
	for _, tt := range []struct {
		name   string
		before func(t *testing.T, b *bed)
		after  func(t *testing.T, b *bed)
		things []string
		mods   []mod
		stays  string
		says   string
	}{
		{"a folder that was there before mesh", func(t *testing.T, b *bed) { must(t, b.put("/srv/box/old", "x")) }, nil, []string{"dir:/srv/box"}, nil, "/srv/box/old", "it was there before mesh"},
		{"a volume that was there before mesh", func(t *testing.T, b *bed) { must(t, b.put(store+"/volumes/mesh-box-data/_data/old", "x")) }, nil,
			[]string{"volume:mesh-box-data"}, nil, store + "/volumes/mesh-box-data/_data/old", "it was there before mesh"},
		{"a symlink in the folder's place", nil, func(t *testing.T, b *bed) {
			must(t, os.Rename(b.root("/srv/box"), b.root("/srv/moved")))
			must(t, b.put("/srv/moved/rows", "x"))
			must(t, os.Symlink(b.root("/srv/moved"), b.root("/srv/box")))
		}, []string{"dir:/srv/box"}, nil, "/srv/moved/rows", "it is no folder any more"},
		{"a folder with another module's in it", nil, func(t *testing.T, b *bed) { must(t, b.put("/srv/box/rows", "x")) }, []string{"dir:/srv/box"},
			[]mod{module("other", manifest.Run{Files: []manifest.File{file("/srv/box/other.conf", "x")}})}, "/srv/box/rows", ""},
		{"a folder that holds one that was there before mesh", func(t *testing.T, b *bed) { must(t, os.MkdirAll(b.root("/srv/box/db"), 0o755)) },
			nil, []string{"dir:/srv/box/db"}, nil, "/srv/box/db", "it was there before mesh"},
		{"what is not named", nil, func(t *testing.T, b *bed) { must(t, b.put("/srv/box/rows", "x")) }, []string{"dir:/srv/box/db"}, nil, "/srv/box/rows", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t)
			b.installPodman(t)
			if tt.before != nil {
				tt.before(t, b)
			}
			m := keeper("/srv/box", "/srv/box/db")
			b.accept(t, 1, m)
			if tt.after != nil {
				tt.after(t, b)
			}
			r := b.end(t, 2, remove(tt.things...), tt.mods...)
			if !b.there(t, tt.stays) {
				t.Errorf("%s went: %+v", tt.stays, r)
			}
			said := slices.ContainsFunc(r.Left, func(d report.Drift) bool {
				return strings.Contains(d.What, "stay: "+tt.says) || strings.Contains(d.What, tt.says)
			})
			if tt.says != "" && !said {
				t.Errorf("it does not say %q: %+v, %+v", tt.says, r.Left, r.Refused)
			}
		})
	}
}

// APP-11: a declaration that would delete what it declares, or what is no data, is refused whole.
func TestWhatMayNotBeDeleted(t *testing.T) {
	b := newBed(t)
	for _, tt := range []struct {
		name string
		r    declaration.Remove
		mods []mod
	}{
		{"data of a module that is declared", *remove("dir:/srv/box"), []mod{module("box", files(file("/etc/box", "x")))}},
		{"the root", *remove("dir:/"), nil},
		{"a file", *remove("file:/etc/passwd"), nil},
		{"nothing", declaration.Remove{Data: []declaration.RemoveData{{Module: "box"}}}, nil},
		{"a unit that is not mesh's", declaration.Remove{Strays: []string{"unit:ssh.service"}}, nil},
		{"a volume as a stray", declaration.Remove{Strays: []string{"volume:mesh-box-data"}}, nil},
		{"a module twice", declaration.Remove{Data: append(remove("dir:/a").Data, remove("dir:/b").Data...)}, nil},
	} {
		c := b.content(t, tt.mods...)
		c.Remove = &tt.r
		if r, err := b.engine.Accept(t.Context(), b.sign(t, 1, c)); err != nil || r.Refused == nil || !strings.Contains(r.Refused.Why, "remove") {
			t.Errorf("%s: %+v, %v", tt.name, r.Refused, err)
		}
	}
}

// APP-11: strays are said and stay, until a person has those that were named removed; what has no mark of mesh's is
// none.
func TestStraysGoWhereAPersonSaysSo(t *testing.T) {
	b := newBed(t)
	b.installPodman(t)
	applied(t, b.accept(t, 1, module("box", boxes(oneImage))))
	unit := b.read(t, "/etc/systemd/system/mesh-box-web.service")
	for _, name := range []string{"mesh-gone-web.service", "mesh-gone-stays.service"} {
		must(t, b.put("/etc/systemd/system/"+name, unit))
	}
	must(t, b.put("/etc/systemd/system/mesh-mine.service", "[Service]\nExecStart=/bin/true\n"))
	must(t, b.put("/etc/containers/networks/mesh-gone-net.json", strings.ReplaceAll(b.read(t, "/etc/containers/networks/mesh-box-back.json"), "mesh-box-back", "mesh-gone-net")))
	must(t, b.put("/etc/containers/networks/foreign.json", `{"name":"foreign"}`))
	must(t, b.put(store+"/overlay-containers/containers.json", `[{"id":"1","names":["mesh-gone-web"]},{"id":"2","names":["postgres"]},{"id":"3","names":["mesh-box-web"]}]`))
	r := b.pass(t, apply.Reconcile)
	want := []string{"container:mesh-gone-web", "network:mesh-gone-net", "unit:mesh-gone-stays.service", "unit:mesh-gone-web.service"}
	slices.Sort(r.Strays)
	if !slices.Equal(r.Strays, want) || r.Steps > 0 {
		t.Fatalf("strays %q, %d steps", r.Strays, r.Steps)
	}
	b.asked(t)
	r = b.end(t, 2, &declaration.Remove{Strays: []string{"unit:mesh-gone-web.service", "unit:mesh-mine.service", "unit:mesh-box-web.service", "network:mesh-gone-net", "network:foreign"}}, module("box", boxes(oneImage)))
	applied(t, r)
	for p, want := range map[string]bool{"mesh-gone-web.service": false, "mesh-gone-stays.service": true, "mesh-mine.service": true, "mesh-box-web.service": true,
		"../../containers/networks/mesh-gone-net.json": false, "../../containers/networks/foreign.json": true} {
		if b.there(t, filepath.Join("/etc/systemd/system", p)) != want {
			t.Errorf("%s: there is %v", p, !want)
		}
	}
	if calls := b.units.calls(t); !slices.Contains(calls, "reload") {
		t.Errorf("systemd was not told: %q", calls)
	}
	if r := b.pass(t, apply.Reconcile); r.Steps > 0 || len(r.Strays) != 2 {
		t.Errorf("%d steps, strays %q", r.Steps, r.Strays)
	}
}
