package manifest

import (
	"path"
	"regexp"
	"slices"
	"strings"
)

// Below these nothing is a file of a module: the kernel's file systems, the boot loader's folder,
// mesh's own folders, and the folders of units, where a file needs more than writing.
var treesNotOurs = []struct{ tree, why string }{
	{"/proc", "it is the kernel's"},
	{"/sys", "it is the kernel's"},
	{"/dev", "it is the kernel's"},
	{"/boot", "the machine starts from it"},
	{"/run/systemd", "it is systemd's"},
	{"/etc/mesh", "it is mesh's own"},
	{"/run/mesh", "it is mesh's own"},
	{"/run/mesh-agent", "it is mesh's own"},
	{"/run/mesh-coordinator", "it is mesh's own"},
	{"/usr/local/bin/mesh-agent", "it is mesh's own"},
	{"/usr/local/bin/mesh-coordinator", "it is mesh's own"},
	{"/usr/local/bin/mesh-installer", "it is mesh's own"},
	{"/var/lib/mesh", "it is mesh's own"},
	{"/var/lib/mesh-agent", "it is mesh's own"},
	{"/var/lib/mesh-coordinator", "it is mesh's own"},
	{"/etc/systemd/system", "units are declared under run.units"},
	{"/lib/systemd", "units are declared under run.units"},
	{"/usr/lib/systemd", "units are declared under run.units"},
	{"/etc/passwd", "users are declared under run.users"},
	{"/etc/shadow", "users are declared under run.users"},
	{"/etc/group", "users are declared under run.users"},
	{"/etc/gshadow", "users are declared under run.users"},
}

// These folders are the machine's; a module may put things below them.
var foldersOfMachine = []string{"/", "/bin", "/etc", "/home", "/lib", "/lib32", "/lib64", "/libx32", "/media", "/mnt", "/opt",
	"/root", "/run", "/sbin", "/srv", "/tmp", "/usr", "/usr/bin", "/usr/lib", "/usr/lib64", "/usr/local", "/usr/local/bin",
	"/usr/local/lib", "/usr/local/sbin", "/usr/sbin", "/usr/share", "/var", "/var/cache", "/var/lib", "/var/log", "/var/run",
	"/var/spool", "/var/tmp", "/etc/systemd", "/etc/ssh", "/etc/apt", "/etc/pam.d", "/etc/security"}

var (
	fileMode      = late(`^0[0-7]{3}$`)
	directoryMode = late(`^[0-3][0-7]{3}$`)
	shortMode     = late(`^0?o?([0-7]{3})$`)
)

// Place is the path by the name that all machines have for it: /var/run is /run there, and /var/lock is
// /run/lock. Two paths with one Place are one file.
func Place(p string) string {
	for _, alias := range [...]struct{ old, now string }{{"/var/run", "/run"}, {"/var/lock", "/run/lock"}} {
		if rest, ok := strings.CutPrefix(p, alias.old); ok && (rest == "" || rest[0] == '/') {
			return alias.now + rest
		}
	}
	return p
}

// files checks files and directories, which share the paths of a machine.
func (c *checker) files() {
	first := map[string]string{} // path -> where it was declared
	claim := func(at, p string) {
		if !c.path(at+".path", p) {
			return
		}
		if before, twice := first[Place(p)]; twice {
			c.say(at+".path", "%s is declared by %s already", clip(p), before)
			return
		}
		first[Place(p)] = at
	}
	for i, d := range c.m.Run.Directories {
		at := Index("run.directories", i)
		claim(at, d.Path)
		c.mode(at+".mode", d.Mode, directoryMode(), "four octal digits, such as 0750")
		c.account(at+".owner", d.Owner)
		c.account(at+".group", d.Group)
	}
	for i, f := range c.m.Run.Files {
		at := Index("run.files", i)
		claim(at, f.Path)
		c.mode(at+".mode", f.Mode, fileMode(), "four octal digits with a 0 first, such as 0640")
		c.account(at+".owner", f.Owner)
		c.account(at+".group", f.Group)
	}
	for i, l := range c.m.Run.Links {
		at := Index("run.links", i)
		claim(at, l.Path)
		if control(l.Target) || len(l.Target) > 4000 {
			c.say(at+".target", "expected a path of at most 4000 bytes without control characters")
		}
	}
	files := map[string]bool{}
	for _, f := range c.m.Run.Files {
		files[Place(f.Path)] = true
	}
	for _, l := range c.m.Run.Links {
		files[Place(l.Path)] = true
	}
	for p, at := range first {
		for up := path.Dir(p); up != "/" && up != "."; up = path.Dir(up) {
			if files[up] {
				c.say(at+".path", "%s is below the file %s", clip(p), clip(up))
			}
		}
	}
}

// path says whether p can be a path of a module on a machine.
func (c *checker) path(at, p string) bool {
	before := len(c.found)
	switch {
	case p == "": // said already
		return false
	case control(p) || len(p) > 4000:
		c.say(at, "expected a path of at most 4000 bytes without control characters")
	case strings.Contains(p, "${"):
		c.say(at, "placeholders are filled in content, not in a path")
	case !path.IsAbs(p):
		c.say(at, "%q: expected an absolute path", clip(p))
	case path.Clean(p) != p:
		c.say(at, "%q: expected a path without . , .. , doubled slashes or one at the end", clip(p))
	case slices.Contains(foldersOfMachine, p):
		c.say(at, "%s is the machine's; expected a path below it", p)
	}
	for part := range strings.SplitSeq(p, "/") {
		if len(part) > 255 {
			c.say(at, "a name in it has %d bytes; a file system takes 255", len(part))
			break
		}
	}
	for _, t := range treesNotOurs {
		if place := Place(p); place == t.tree || strings.HasPrefix(place, t.tree+"/") {
			c.say(at, "%s: %s; expected another path", clip(p), t.why)
			break
		}
	}
	return len(c.found) == before
}

func (c *checker) mode(at string, m Mode, form *regexp.Regexp, want string) {
	s := string(m)
	if s == "" || form.MatchString(s) {
		return
	}
	if short := shortMode().FindStringSubmatch(s); short != nil {
		c.say(at, "%q: expected %s; did you mean 0%s?", s, want, short[1])
		return
	}
	c.say(at, "%q: expected %s", clip(s), want)
}
