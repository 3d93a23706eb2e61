package resource

import (
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"mesh/shared/manifest"
)

// Mark is how the file of every unit of mesh begins; a unit that has it is mesh's even when the ledger
// was lost.
const Mark = manifest.UnitMark

// The pause before a process is started again, and the bound on how often: ten deaths within a minute
// end it, and the agent tries again with growing pauses. The bound only holds because burst times pause
// is shorter than the interval (facts/host.md §2.2).
const (
	restartPause = "1s"
	burst        = "10"
	interval     = "60s"
)

// units adds the module's units, in the order of their names.
func (e *expander) units() error {
	for _, name := range slices.Sorted(maps.Keys(e.filled.Run.Processes)) {
		e.process(name, e.filled.Run.Processes[name])
	}
	for _, name := range slices.Sorted(maps.Keys(e.filled.Run.Containers)) {
		if err := e.container(name, e.filled.Run.Containers[name]); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(e.filled.Run.Timers)) {
		e.timer(name, e.filled.Run.Timers[name])
	}
	for _, name := range slices.Sorted(maps.Keys(e.filled.Run.Units)) {
		e.raw(name, e.filled.Run.Units[name])
	}
	return nil
}

func (e *expander) unit(u Unit, text string, after ...string) {
	u.Content = []byte(text)
	u.Sum = Sum(u.Content)
	if u.Started && u.Trigger == "" {
		u.Trigger = e.trigger(u.Content)
	}
	e.add(Resource{ID: ID(KindUnit, u.Name), Kind: KindUnit, Unit: &u, Needs: append(slices.Clone(e.base), after...)})
}

func (e *expander) process(name string, p manifest.Process) {
	unit := manifest.UnitName(e.module.Name, name, ".service")
	after, needs := e.others(p.After)
	t := newText(string(e.module.Name), "process "+name)
	t.section("Unit")
	t.set("Description", string(e.module.Name)+" "+name+" (mesh)")
	t.set("After", strings.Join(append([]string{"network.target"}, after...), " "))
	if len(after) > 0 {
		// Wants, not Requires: the other's restart is no reason to stop this one.
		t.set("Wants", strings.Join(after, " "))
	}
	t.set("StartLimitIntervalSec", interval)
	t.set("StartLimitBurst", burst)
	t.section("Service")
	t.set("Type", "exec")
	e.program(t, unit, p.Exec, p.Directory, p.RunsAs(), e.withInstance(p.Env), e.plain.Run.Processes[name].Env)
	t.set("Restart", string(p.RestartPolicy()))
	if p.RestartPolicy() != manifest.Never {
		t.set("RestartSec", restartPause)
	}
	t.section("Install")
	t.set("WantedBy", "multi-user.target")
	e.unit(Unit{Name: unit, Enabled: true, Started: true, Ends: p.RestartPolicy() != manifest.Always, Once: p.RestartPolicy() == manifest.Never,
		Replaces: e.replaced(p.Replaces), Health: e.health(unit, p)}, t.String(), needs...)
}

func (e *expander) timer(name string, timer manifest.Timer) {
	service := manifest.UnitName(e.module.Name, name, ".service")
	t := newText(string(e.module.Name), "timer "+name)
	t.section("Unit")
	t.set("Description", string(e.module.Name)+" "+name+" (mesh)")
	t.section("Service")
	t.set("Type", "oneshot")
	e.program(t, service, timer.Exec, timer.Directory, timer.RunsAs(), e.withInstance(timer.Env), e.plain.Run.Timers[name].Env)
	e.unit(Unit{Name: service}, t.String())

	t = newText(string(e.module.Name), "timer "+name)
	t.section("Unit")
	t.set("Description", string(e.module.Name)+" "+name+" (mesh)")
	t.section("Timer")
	t.set("OnCalendar", timer.Calendar)
	t.section("Install")
	t.set("WantedBy", "timers.target")
	text := t.String()
	// The timer depends on its own text only: what it starts reads files and settings anew each time.
	e.unit(Unit{Name: manifest.UnitName(e.module.Name, name, ".timer"), Enabled: true, Started: true, Trigger: Sum([]byte(text))},
		text, ID(KindUnit, service))
}

func (e *expander) raw(name string, u manifest.Unit) {
	text := newText(string(e.module.Name), "unit "+name).String() + "\n" + u.Content
	if !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	unit := Unit{Name: name, Enabled: u.Enabled, Started: u.Started}
	if ext := path.Ext(name); ext == ".timer" || ext == ".socket" {
		unit.Trigger = Sum([]byte(text))
	}
	unit.Ends = oneshot(u.Content)
	e.unit(unit, text)
}

// oneshot says whether a service ends by itself and stays inactive, as systemd.service(5) has it. The
// last setting wins there, and so here.
func oneshot(content string) bool {
	once, stays := false, false
	for line := range strings.Lines(content) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		value = strings.ToLower(strings.TrimSpace(value))
		switch strings.TrimSpace(key) {
		case "Type":
			once = value == "oneshot"
		case "RemainAfterExit":
			stays = slices.Contains([]string{"yes", "true", "on", "1"}, value)
		}
	}
	return once && !stays
}

// program writes who runs what, where and with which environment. Variables with a secret in them do
// not stand in the unit, which everybody can read, but in a file of root's.
func (e *expander) program(t *text, unit string, exec []string, dir, user string, env, plain map[string]string) {
	if user != "root" {
		t.set("User", user)
	}
	t.set("WorkingDirectory", escapePath(e.place(dir, true)))
	var private []string
	for _, k := range slices.Sorted(maps.Keys(env)) {
		if hasSecret(plain[k]) {
			private = append(private, k)
			continue
		}
		t.set("Environment", quote(k+"="+env[k], false))
	}
	if len(private) > 0 {
		t.set("EnvironmentFile", escapePath(e.envFile(unit, private, env)))
	}
	words := make([]string, len(exec))
	for i, arg := range exec {
		if i == 0 {
			words[i] = quote(e.place(arg, false), false) // systemd replaces no $ in the program's path
		} else {
			words[i] = quote(arg, true)
		}
	}
	t.set("ExecStart", strings.Join(words, " "))
	t.set("SyslogIdentifier", strings.TrimSuffix(unit, ".service"))
}

// place is the absolute path of what the manifest names in the bundle or on the machine.
func (e *expander) place(p string, folder bool) string {
	switch {
	case path.IsAbs(p):
		return p
	case e.module.Artifact == nil && folder:
		return "/"
	}
	return path.Join(e.bundleFolder(), p)
}

// envFile adds the file that holds the variables with secrets of a unit, and returns its path.
func (e *expander) envFile(unit string, names []string, env map[string]string) string {
	var b strings.Builder
	b.WriteString(Mark + string(e.module.Name) + ".\n")
	for _, k := range names {
		b.WriteString(k + `="` + envEscapes.Replace(env[k]) + "\"\n")
	}
	at := e.envPath(unit)
	dir := path.Dir(at)
	content := []byte(b.String())
	if !slices.ContainsFunc(e.out, func(r Resource) bool { return r.ID == ID(KindDir, dir) }) {
		e.add(Resource{ID: ID(KindDir, dir), Kind: KindDir, Dir: &Dir{Path: dir, Mode: 0o755, Owner: "root", Group: "root", Implied: true}})
	}
	e.add(Resource{ID: ID(KindFile, at), Kind: KindFile, Needs: []string{ID(KindDir, dir)},
		File: &File{Path: at, Content: content, Sum: Sum(content), Mode: 0o600, Owner: "root", Group: "root", Private: true}})
	return at
}

// envPath is where that file is.
func (e *expander) envPath(unit string) string {
	return path.Join(path.Dir(e.in.BundleDir), "env", strings.TrimSuffix(unit, ".service")+".env")
}

// text is a unit file in the making.
type text struct{ strings.Builder }

func newText(module, what string) *text {
	t := &text{}
	t.WriteString(Mark + module + ", " + what + ".\n# What is changed here by hand is undone: change the module instead.\n")
	return t
}

func (t *text) section(name string) { t.WriteString("\n[" + name + "]\n") }

func (t *text) set(key, value string) { t.WriteString(key + "=" + value + "\n") }

const plainWord = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@/.,:=+-"

// quote makes s one word of a unit file (systemd.syntax(7), "Quoting"): specifiers and, in arguments,
// variables are taken literally.
func quote(s string, argument bool) string {
	if s != "" && strings.Trim(s, plainWord) == "" {
		return s
	}
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '%' || r == '$' && argument:
			b.WriteRune(r)
			b.WriteRune(r)
		case r < 0x20 || r == 0x7f:
			b.WriteString(`\x` + hex2(r))
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

func hex2(r rune) string {
	s := strconv.FormatInt(int64(r), 16)
	if len(s) == 1 {
		return "0" + s
	}
	return s
}

// envEscapes are those of double quotes in an EnvironmentFile (systemd.exec(5)).
var envEscapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`, `$`, `\$`, "`", "\\`")

// escapePath is a path as the whole value of a setting: not a word, so quotes mean nothing; a backslash
// at the end would join the next line.
func escapePath(p string) string {
	p = strings.ReplaceAll(p, "%", "%%")
	if strings.HasSuffix(p, `\`) || strings.HasSuffix(p, " ") {
		p += "/."
	}
	return p
}
