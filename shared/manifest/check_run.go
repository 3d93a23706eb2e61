package manifest

import (
	"maps"
	"path"
	"slices"
	"strings"

	"mesh/shared/rule"
	"mesh/shared/subject"
)

var (
	envName   = late(`^[A-Za-z_][A-Za-z0-9_]*$`)
	userName  = late(`^[a-z_][a-z0-9_-]{0,30}$`) // useradd's rule; utmp holds 32 bytes
	calendar  = late(`^[A-Za-z0-9*:/.,~_+ -]+$`)
	wordsOnly = late(`^[A-Za-z]+$`)
	unitName  = late(`^[A-Za-z0-9:_.@-]+$`)
	osName    = late(`^[a-z0-9][a-z0-9._-]*$`)
)

func (c *checker) process(name string, p Process) {
	at := Join("run.processes", name)
	c.program(at, p.Exec, p.Directory)
	c.env(at, p.Env)
	c.account(at+".user", p.User)
	c.order(at, name, p.After, p.Replaces)
	c.health(at, p.Health)
}

// order checks what is started before name, and what it takes over from.
func (c *checker) order(at, name string, after, replaces []string) {
	all := c.runs()
	for i, a := range after {
		here := Index(at+".after", i)
		switch {
		case a == name:
			c.say(here, "nothing can start after itself")
		case !slices.Contains(all, a):
			c.say(here, "%q is no process or container of this module; expected one of run.processes or run.containers%s", clip(a), didYouMean(a, all))
		case slices.Contains(after[:i], a):
			c.say(here, "%q stands here twice", a)
		}
	}
	for i, r := range replaces {
		here := Index(at+".replaces", i)
		switch {
		case slices.Contains(all, r):
			c.say(here, "%q is of this build; expected a process or container that only earlier builds had", clip(r))
		case subject.Check("process", r) != nil:
			c.say(here, nameWant)
		case slices.Contains(replaces[:i], r):
			c.say(here, "%q stands here twice", r)
		}
	}
}

// runs are the names of the processes and containers.
func (c *checker) runs() []string {
	all := slices.Collect(maps.Keys(c.m.Run.Processes))
	all = slices.AppendSeq(all, maps.Keys(c.m.Run.Containers))
	slices.Sort(all)
	return all
}

// after is what name waits for, and where it says so.
func (c *checker) after(name string) (names []string, at string) {
	if p, ok := c.m.Run.Processes[name]; ok {
		return p.After, Join("run.processes", name) + ".after"
	}
	return c.m.Run.Containers[name].After, Join("run.containers", name) + ".after"
}

// cycle finds processes and containers that wait for each other.
func (c *checker) cycle() {
	const open, done = 1, 2
	state := map[string]int{}
	all := c.runs()
	var visit func(name string, trail []string) bool
	visit = func(name string, trail []string) bool {
		trail = append(trail, name)
		state[name] = open
		after, at := c.after(name)
		for _, a := range after {
			switch {
			case a == name || !slices.Contains(all, a) || state[a] == done:
			case state[a] == open:
				loop := append(trail[slices.Index(trail, a):], a)
				c.say(at, "these wait for each other: %s", clip(strings.Join(loop, " after ")))
				return false
			case !visit(a, trail):
				return false
			}
		}
		state[name] = done
		return true
	}
	for _, name := range all {
		if state[name] == 0 && !visit(name, nil) {
			return
		}
	}
}

func (c *checker) program(at string, exec []string, dir string) {
	for i, arg := range exec {
		here := Index(at+".exec", i)
		switch {
		case control(arg):
			c.say(here, "holds a control character; expected one line of text")
		case strings.Contains(arg, "${setting:") || strings.Contains(arg, "${secret:") || strings.Contains(arg, "${node:"):
			c.say(here, "placeholders are filled in env and in the content of files and units, not here")
		}
	}
	if len(exec) > 0 {
		c.place(at+".exec[0]", "program", exec[0])
	}
	if dir != "" {
		c.place(at+".directory", "folder", dir)
	}
}

// place checks a path on the machine or in the bundle.
func (c *checker) place(at, kind, p string) {
	switch {
	case control(p): // said already
	case path.IsAbs(p):
		if path.Clean(p) != p {
			c.say(at, "%q: expected a path without . , .. or doubled slashes", clip(p))
		}
	case !inside(p):
		c.say(at, "%q: expected the path of a %s in the bundle, or an absolute path", clip(p), kind)
	case c.m.Build.Bundle == nil:
		c.say(at, "%q is a path in the bundle, and the module has none; expected an absolute path, or build.bundle", clip(p))
	}
}

func (c *checker) env(at string, env map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(env)) {
		if !envName().MatchString(name) {
			c.say(Join(at+".env", name), "expected the name of an environment variable: letters, digits and _, no digit first")
		}
		if control(strings.ReplaceAll(env[name], "\t", "")) {
			c.say(Join(at+".env", name), "holds a control character; expected one line of text")
		}
	}
}

func (c *checker) timer(name string, t Timer) {
	at := Join("run.timers", name)
	c.program(at, t.Exec, t.Directory)
	c.env(at, t.Env)
	c.account(at+".user", t.User)
	if t.Calendar != "" {
		c.calendar(at+".calendar", t.Calendar)
	}
}

var calendarWords = []string{"minutely", "hourly", "daily", "weekly", "monthly", "quarterly", "semiannually", "yearly", "annually",
	"mon", "tue", "wed", "thu", "fri", "sat", "sun",
	"monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"}

// calendar finds what systemd would surely refuse; only systemd itself can say the rest
// (systemd.time(7)).
func (c *checker) calendar(at, s string) {
	const form = "expected systemd's OnCalendar, such as *-*-* 03:00 or hourly"
	first, _, _ := strings.Cut(s, " ")
	switch {
	case !calendar().MatchString(s) || strings.TrimSpace(s) != s:
		c.say(at, "%q: %s", clip(s), form)
	case wordsOnly().MatchString(first) && !slices.Contains(calendarWords, strings.ToLower(first)):
		c.say(at, "%q: %q is no word of a calendar; %s%s", clip(s), clip(first), form, didYouMean(first, calendarWords))
	case strings.Trim(s, ":/.,~_+ -") == "":
		c.say(at, "%q: %s", clip(s), form)
	}
}

// Units that hold up the machine or mesh, by the beginning of their names.
var unitsNotOurs = []string{"mesh-", "systemd-", "dbus", "init.", "getty", "ssh.", "sshd"}

func (c *checker) unit(name string, u Unit) {
	at := Join("run.units", name)
	suffix := path.Ext(name)
	stem := strings.TrimSuffix(name, suffix)
	switch {
	case suffix == ".path" || suffix == ".mount" || suffix == ".target" || suffix == ".slice":
		c.say(at, "%s units are not in this version of mesh; expected a .service, a .timer or a .socket", suffix)
	case suffix != ".service" && suffix != ".timer" && suffix != ".socket":
		c.say(at, "expected the name of a unit that ends in .service, .timer or .socket")
	case !unitName().MatchString(stem) || len(name) > 255 || strings.HasPrefix(stem, ".") || strings.Contains(stem, "@"):
		c.say(at, "expected a unit name of letters, digits and : - _ . , at most 255 bytes, no template")
	}
	for _, own := range unitsNotOurs {
		if strings.HasPrefix(name, own) {
			c.say(at, "the machine or mesh itself needs the units %s*; expected another name", own)
		}
	}
	if u.Content != "" && !strings.Contains("\n"+u.Content, "\n[") {
		c.say(at+".content", "expected a systemd unit with a section such as [Service]")
	}
	if u.Enabled && !strings.Contains("\n"+u.Content, "\n[Install]") {
		c.say(at+".enabled", "a unit without [Install] cannot be enabled; expected that section in content")
	}
}

// account checks the name of a user that something runs as or belongs to.
func (c *checker) account(at, name string) {
	if name == "" {
		return
	}
	if _, ours := c.m.Run.Users[name]; ours {
		return
	}
	if !userName().MatchString(name) {
		c.say(at, "%q: expected the name of a user: a-z, 0-9, _ and -, at most 31 characters, no digit first", clip(name))
		return
	}
	// Whether the machine has the user shows there; here only a slip of the pen can be found.
	if slices.Contains(usersOfMachine, name) {
		return
	}
	if s := Suggest(name, slices.Sorted(maps.Keys(c.m.Run.Users))); s != "" {
		c.say(at, "%q is not under run.users; did you mean %q?", name, s)
	}
}

// The users every Debian has, which a module must not declare.
var usersOfMachine = []string{"root", "daemon", "bin", "sys", "sync", "games", "man", "lp", "mail", "news", "uucp", "proxy",
	"www-data", "backup", "list", "irc", "gnats", "nobody", "messagebus", "sshd", "_apt"}

func (c *checker) users() {
	for _, name := range slices.Sorted(maps.Keys(c.m.Run.Users)) {
		u, at := c.m.Run.Users[name], Join("run.users", name)
		switch {
		case !userName().MatchString(name):
			c.say(at, "expected the name of a user: a-z, 0-9, _ and -, at most 31 characters, no digit first")
		case slices.Contains(usersOfMachine, name) || strings.HasPrefix(name, "systemd-"):
			c.say(at, "the machine has a user of this name; expected another one")
		}
		for key, p := range map[string]string{"home": u.Home, "shell": u.Shell} {
			if p != "" && (!path.IsAbs(p) || path.Clean(p) != p || control(p) || strings.Contains(p, ":")) {
				c.say(at+"."+key, "%q: expected an absolute path without . , .. or a colon", clip(p))
			}
		}
		for i, g := range u.Groups {
			if !userName().MatchString(g) {
				c.say(Index(at+".groups", i), "%q: expected the name of a group", clip(g))
			} else if slices.Contains(u.Groups[:i], g) {
				c.say(Index(at+".groups", i), "%q stands here twice", g)
			}
		}
	}
}

func (c *checker) firewall() {
	seen := map[string]bool{}
	for i, a := range c.m.Firewall.Allow {
		switch at := Index("firewall.allow", i); {
		case a.Port == rule.Port{} && a.Protocol == 0:
			c.say(at+".port", "is missing: it has to be there, or protocol has")
			continue
		case a.Port != rule.Port{} && a.Protocol != 0:
			c.say(at+".protocol", "stands beside port: an opening has one of them")
		}
		words := rule.Allow{Port: a.Port, Protocol: a.Protocol, From: a.From}.String()
		if seen[words] {
			c.say(Index("firewall.allow", i), "%s stands here twice", clip(strings.TrimPrefix(words, ": ")))
		}
		seen[words] = true
	}
}

func (c *checker) needs() {
	for i, a := range c.m.Needs.Arch {
		if slices.Contains(c.m.Needs.Arch[:i], a) {
			c.say(Index("needs.arch", i), "%q stands here twice", clip(string(a)))
		}
	}
	for i, o := range c.m.Needs.OS {
		if !osName().MatchString(o) {
			c.say(Index("needs.os", i), "%q: expected ID as in /etc/os-release, such as debian", clip(o))
		} else if slices.Contains(c.m.Needs.OS[:i], o) {
			c.say(Index("needs.os", i), "%q stands here twice", o)
		}
	}
}
