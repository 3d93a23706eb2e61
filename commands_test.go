package mesh_test

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// programs are built once for all tests of the package, stripped as make builds them.
type programs struct {
	folder string

	mu    sync.Mutex // guards built
	built map[string]func() (string, error)
}

// built is set up by TestMain and holds what the tests build.
var built = programs{built: map[string]func() (string, error){}}

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	folder, err := os.MkdirTemp("", "mesh-rules-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(folder)
	built.folder = folder
	return m.Run()
}

// program is the path of the built command name.
func program(t *testing.T, name string) string {
	t.Helper()
	built.mu.Lock()
	build := built.built[name]
	if build == nil {
		build = sync.OnceValues(func() (string, error) { return compile(name, filepath.Join(built.folder, name)) })
		built.built[name] = build
	}
	built.mu.Unlock()
	file, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// compile makes a program as everybody does.
func compile(name, file string) (string, error) {
	c := exec.Command("make", "PROGRAMS="+name, "BIN="+filepath.Dir(file))
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", name, err, out)
	}
	return file, nil
}

// agentLimit is how big the stripped agent may be: it travels to every machine, and each page of it that
// is touched is memory there.
const agentLimit = 16 << 20

func TestTheAgentIsSmallAndStatic(t *testing.T) {
	file := program(t, "mesh-agent")
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() >= agentLimit {
		t.Errorf("mesh-agent has %d bytes stripped, and %d are the most: see what it links with \"go list -deps ./cmd/mesh-agent\" and cut what it can do without", info.Size(), agentLimit)
	}
	t.Logf("mesh-agent: %.1f MiB stripped", float64(info.Size())/(1<<20))
	f, err := elf.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if libraries, err := f.ImportedLibraries(); err == nil && len(libraries) > 0 {
		t.Errorf("mesh-agent needs %v of the machine: it has to be static; find the import that wants CGO", libraries)
	}
}

// said is a command line found in a document.
type said struct {
	where string // file:line
	words []string
}

var (
	programName = regexp.MustCompile(`^(?:\./)?(?:bin/|/usr/local/bin/)?(mesh-agent|mesh-coordinator|mesh-installer|make)$`)
	inline      = regexp.MustCompile("`([^`\n]+)`")
	separator   = regexp.MustCompile(`\s*(?:&&|\|\||[|;])\s*|\$\(`)
	assignment  = regexp.MustCompile(`^[A-Z_]+=\S*$`)
	plain       = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)
	longFlag    = regexp.MustCompile(`^\[?(--[a-z][a-z0-9-]*)`)
)

// commandsIn finds the command lines of a document: in its blocks of code and between backticks.
func commandsIn(file, text string) []said {
	var list []said
	fenced := false
	number := 0
	for line := range strings.Lines(text) {
		number++
		where := fmt.Sprintf("%s:%d", file, number)
		switch {
		case strings.HasPrefix(strings.TrimSpace(line), "```"):
			fenced = !fenced
		case fenced:
			list = append(list, commandsOf(where, line)...)
		default:
			for _, m := range inline.FindAllStringSubmatch(line, -1) {
				list = append(list, commandsOf(where, m[1])...)
			}
		}
	}
	return list
}

// commandsOf splits one line of shell. What does not start with one of our programs is not ours to judge.
func commandsOf(where, line string) []said {
	if before, _, ok := strings.Cut(line, " #"); ok {
		line = before
	}
	var list []said
	for _, part := range separator.Split(line, -1) {
		words := strings.Fields(part)
		for len(words) > 0 && (words[0] == "$" || words[0] == "#" || words[0] == "sudo" || assignment.MatchString(words[0])) {
			words = words[1:]
		}
		if len(words) == 0 {
			continue
		}
		if m := programName.FindStringSubmatch(words[0]); m != nil {
			words[0] = m[1]
			list = append(list, said{where, words})
		}
	}
	return list
}

func TestCommandsInDocumentsExist(t *testing.T) {
	targets := makeTargets(t)
	asked := map[string][]said{}
	for p, text := range papers(t) {
		for _, c := range commandsIn(p, text) {
			asked[c.words[0]] = append(asked[c.words[0]], c)
		}
	}
	for _, c := range asked["make"] {
		for _, w := range c.words[1:] {
			if plain.MatchString(w) && targets[w] == "" {
				t.Errorf("%s says \"make %s\", and the Makefile has no such target: mend the one or the other", c.where, w)
			}
		}
	}
	for _, name := range []string{"mesh-agent", "mesh-coordinator", "mesh-installer"} {
		t.Run(name, func(t *testing.T) {
			cli := tool{t: t, file: program(t, name), kept: map[string]string{}}
			if len(cli.next(nil)) == 0 {
				t.Fatalf("%s names no commands: its tree cannot be read through cobra's __complete", name)
			}
			if cli.check([]string{name, "no-such-command"}) == "" {
				t.Fatalf("%s takes a command it does not have: this check is blind", name)
			}
			if len(asked[name]) == 0 {
				t.Errorf("no document shows a command of %s", name)
			}
			for _, c := range asked[name] {
				if wrong := cli.check(c.words); wrong != "" {
					t.Errorf("%s says %q, but %s: mend the document or the program", c.where, strings.Join(c.words, " "), wrong)
				}
			}
		})
	}
}

// tool asks a built program what commands and flags it has, through cobra's completion, which every
// cobra program answers and which needs no bus and no state.
type tool struct {
	t    *testing.T
	file string
	kept map[string]string
}

func (c tool) output(args ...string) string {
	c.t.Helper()
	key := strings.Join(args, "\x00")
	if out, ok := c.kept[key]; ok {
		return out
	}
	cmd := exec.Command(c.file, args...)
	cmd.Env = append(os.Environ(), "NO_COLOR=1")
	out, err := cmd.Output()
	if err != nil {
		c.t.Fatalf("%s %q: %v", filepath.Base(c.file), args, err)
	}
	c.kept[key] = string(out)
	return string(out)
}

// complete is what could stand after words, starting with prefix.
func (c tool) complete(words []string, prefix string) []string {
	args := append([]string{"__completeNoDesc"}, words...)
	var list []string
	for line := range strings.Lines(c.output(append(args, prefix)...)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, ":") {
			list = append(list, strings.TrimSuffix(line, "="))
		}
	}
	return list
}

func (c tool) next(words []string) []string { return c.complete(words, "") }

// onlyCommands says whether a word after words has to be a command: the usage of a command that only
// groups others shows nothing but "[command]".
func (c tool) onlyCommands(words []string) bool {
	help := c.output(append(slices.Clone(words), "--help")...)
	_, usage, ok := strings.Cut(help, "Usage:\n")
	if !ok {
		return false
	}
	for line := range strings.Lines(usage) {
		line = strings.TrimSpace(line)
		if line == "" {
			break
		}
		if !strings.Contains(line, "[command]") {
			return false
		}
	}
	return true
}

// check says what is wrong with the command line words, "" when nothing is.
func (c tool) check(words []string) string {
	var at []string
	rest := words[1:]
	for len(rest) > 0 && plain.MatchString(rest[0]) {
		if !slices.Contains(c.next(at), rest[0]) && rest[0] != "help" {
			if len(at) == 0 || c.onlyCommands(at) {
				return fmt.Sprintf("%q has no command %q", strings.Join(append(words[:1:1], at...), " "), rest[0])
			}
			break
		}
		at = append(at, rest[0])
		rest = rest[1:]
	}
	for _, w := range rest {
		if m := longFlag.FindStringSubmatch(w); m != nil && !slices.Contains(c.complete(at, m[1]), m[1]) && m[1] != "--help" {
			return fmt.Sprintf("%q has no flag %s", strings.Join(append(words[:1:1], at...), " "), m[1])
		}
	}
	return ""
}

// makeTargets are the Makefile's targets with what their ## comments say.
func makeTargets(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile("Makefile")
	if err != nil {
		t.Fatalf("read the Makefile: %v", err)
	}
	targets := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^([a-z][a-z0-9-]*):[^=\n]*?(?:## (.*))?$`).FindAllStringSubmatch(string(text), -1) {
		targets[m[1]] = m[2]
	}
	return targets
}

func TestMakeHelpNamesEveryTarget(t *testing.T) {
	targets := makeTargets(t)
	for _, name := range []string{"all", "check", "test", "e2e", "bench", "lint", "deps", "demo", "demo-shell", "demo-down", "fuzz", "clean", "help"} {
		if _, ok := targets[name]; !ok {
			t.Errorf("the Makefile lacks the target %q", name)
		}
	}
	for name, comment := range targets {
		if comment == "" {
			t.Errorf("the target %q has no \"## comment\" behind it: say in a line what it is for", name)
		}
	}
}

func TestCommandsInFindsThem(t *testing.T) {
	text := "Say `mesh-agent show --json` and `LINE=1 sudo bin/mesh-installer enrol <line>`.\n" +
		"```\n$ mesh-coordinator plan && make check # both\nnot mesh-agent\n" + "```\n" + "mesh-agent in prose\n"
	var got []string
	for _, c := range commandsIn("x.md", text) {
		got = append(got, c.where+" "+strings.Join(c.words, " "))
	}
	want := []string{
		"x.md:1 mesh-agent show --json", "x.md:1 mesh-installer enrol <line>",
		"x.md:3 mesh-coordinator plan", "x.md:3 make check",
	}
	if !slices.Equal(got, want) {
		t.Errorf("commandsIn found\n%q, want\n%q", got, want)
	}
}
