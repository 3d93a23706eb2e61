package apply_test

import (
	"os"
	"testing"
	"time"

	"mesh/shared/declaration"
	"mesh/shared/manifest"
)

// lives is a machine's past and the change during which it dies.
type lives struct {
	name string
	past func(t *testing.T, b *bed)
	next func(t *testing.T, b *bed) []mod // nil: the change is a pass
	// stale: a machine that boots starts its units before the change is repaired, and a repair restarts none.
	stale bool
	back  bool // it ends with what was before, which stands in the place of what failed
	// remove is what next has deleted.
	remove *declaration.Remove
	// sign makes the change, in the place of next; nil for next.
	sign func(b *bed) declaration.Signed
	// held: before the change something is held, which is no trouble.
	held bool
	// kills: it is only killed. What podman has in mind of containers no disk tells.
	kills bool
	// gap: what is given back is mesh's, then nobody's, then as it was.
	gap bool
}

func busy(b *bed, t *testing.T, version string) []mod {
	m := notes(b, t, version)
	m.Run.Files = append(m.Run.Files, file("/etc/notes/only-"+version, version))
	return []mod{m, steady()}
}

func steady() mod {
	return module("steady", manifest.Run{Files: []manifest.File{file("/etc/steady", "x")}, Processes: map[string]manifest.Process{"p": {Exec: []string{"/bin/p"}}}})
}

func confAndProcess(name, content string) mod {
	return module(name, manifest.Run{Files: []manifest.File{file("/etc/"+name+"/conf", content)}, Processes: map[string]manifest.Process{"p": {Exec: []string{"/bin/p"},
		Env: map[string]string{"VERSION": content}}}})
}

// versions takes one declaration in after the other.
func versions(t *testing.T, b *bed, all ...[]mod) {
	t.Helper()
	for i, mods := range all {
		b.clock.Advance(time.Minute)
		applied(t, b.accept(t, uint64(i+1), mods...))
	}
}

// allLives are what is done on a machine, each once.
func allLives() []lives {
	return append([]lives{
		{
			name: "install",
			past: func(*testing.T, *bed) {},
			next: func(t *testing.T, b *bed) []mod { return busy(b, t, "one") },
		},
		{
			name: "upgrade",
			past: func(t *testing.T, b *bed) {
				versions(t, b, append(busy(b, t, "one"), confAndProcess("plain", "one")))
			},
			next: func(t *testing.T, b *bed) []mod {
				mods := busy(b, t, "two")
				mods[0].Run.Directories[0].Mode = "0700"
				mods[0].secrets["key"] = "another"
				return append(mods, confAndProcess("plain", "two"))
			},
		},
		{
			name: "rename", // the same files and folders under another module's name
			past: func(t *testing.T, b *bed) { versions(t, b, []mod{notes(b, t, "one"), steady()}) },
			next: func(t *testing.T, b *bed) []mod {
				m := notes(b, t, "one")
				m.Module = "memo"
				return []mod{m, steady()}
			},
		},
		{
			name: "remove",
			past: func(t *testing.T, b *bed) {
				versions(t, b, append(busy(b, t, "one"), confAndProcess("plain", "one")))
			},
			next: func(*testing.T, *bed) []mod { return []mod{steady()} },
		},
		{
			name: "bundle switch", // the third: the first one goes
			past: func(t *testing.T, b *bed) { versions(t, b, big(b, t, "one"), big(b, t, "two")) },
			next: func(t *testing.T, b *bed) []mod { return big(b, t, "three") },
		},
		change, repair, replaces, back, deleting, taking("take", false), taking("give back", true),
	}, boxLives...)
}

// big has a bundle of a few files, one of them larger than a chunk.
func big(b *bed, t *testing.T, version string) []mod {
	return []mod{module("big", manifest.Run{Processes: map[string]manifest.Process{"p": {Exec: []string{"bin/p"}}}}).
		with(b.artifact(t, map[string]string{"bin/p": "program " + version, "share/a": version + noise(200<<10), "share/version": version})), steady()}
}

var change = lives{
	name: "a declaration",
	past: func(t *testing.T, b *bed) {
		old := module("old", manifest.Run{Files: []manifest.File{file("/etc/old/conf", "x")}, Processes: map[string]manifest.Process{"p": {Exec: []string{"/bin/p"}}}})
		versions(t, b, append(busy(b, t, "zero"), old), append(busy(b, t, "one"), old))
	},
	next: func(t *testing.T, b *bed) []mod {
		mods := busy(b, t, "two")
		mods[0].Run.Directories[0].Mode = "0700"
		return append(mods, module("fresh", manifest.Run{Users: map[string]manifest.User{"fresh": {}}, Files: []manifest.File{file("/etc/fresh/conf", "x")},
			Processes: map[string]manifest.Process{"p": {Exec: []string{"/bin/p"}}}}))
	},
}

// back is a build that fails, and the last good one that takes its place again (APP-7).
var back = lives{
	name: "going back",
	past: func(t *testing.T, b *bed) { versions(t, b, busy(b, t, "one")) },
	next: func(t *testing.T, b *bed) []mod {
		mods := busy(b, t, "fails")
		mods[0].build = "build-2"
		return mods
	},
	back: true,
}

var repair = lives{
	name:  "a pass",
	stale: true,
	past: func(t *testing.T, b *bed) {
		must(t, os.WriteFile(b.root("/etc/steady"), []byte("held"), 0o644))
		b.accept(t, 1, busy(b, t, "one")...)
		must(t, os.Remove(b.root("/etc/steady")))
		must(t, os.WriteFile(b.root("/etc/notes/conf"), []byte("drifted"), 0o644))
		must(t, os.Chmod(b.root("/srv/notes"), 0o777))
		must(t, os.Remove(b.root("/etc/systemd/system/mesh-notes-backup.service")))
		b.units.by(t, "mesh-notes-web.service", func(p *paperUnit) { p.Active = "inactive" })
	},
}

// taking is a take of what somebody had there, or its end (APP-10, APP-18).
func taking(name string, back bool) lives {
	var next func(*bed) declaration.Signed
	return lives{name: name, held: !back, kills: true, gap: back,
		past: func(t *testing.T, b *bed) {
			var past func(*bed)
			next, past, _ = takeLives(t, back)
			past(b)
		},
		sign: func(b *bed) declaration.Signed { return next(b) },
	}
}

var replaces = lives{
	name: "replaces",
	past: func(t *testing.T, b *bed) {
		b.installPodman(t)
		versions(t, b, []mod{module("box", manifest.Run{Containers: map[string]manifest.Container{"web": {Image: oneImage}}}), steady()})
	},
	next: func(*testing.T, *bed) []mod {
		return []mod{module("box", manifest.Run{Processes: map[string]manifest.Process{"server": {Exec: []string{"/bin/server"}, Replaces: []string{"web"}}}}), steady()}
	},
}
