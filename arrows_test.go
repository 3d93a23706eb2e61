package mesh_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// arrows says which top folders each top folder may import, itself aside (docs/architecture.md).
var arrows = map[string][]string{
	"cmd":         {"agent", "coordinator", "installer", "firewall", "shared"},
	"agent":       {"firewall", "shared"},
	"coordinator": {"firewall", "shared"},
	"installer":   {"firewall", "shared"},
	"firewall":    {"shared"},
	"shared":      {},
	"testbus":     {"shared"}, // and only tests and cmd/e2e import it
	"docs":        {},         // examples: programs of their own
}

// commands says which of the three in the middle each command is the shell of.
var commands = map[string]string{
	"cmd/mesh-agent":       "agent",
	"cmd/mesh-coordinator": "coordinator",
	"cmd/mesh-installer":   "installer",
}

func TestImportsGoOneWay(t *testing.T) {
	for _, s := range tree(t) {
		may, known := arrows[top(s.folder)]
		if !known && s.folder != "." {
			t.Errorf("%s: the folder %q has no place in the import arrows: put the file into one that has, or add the folder to arrows_test.go and docs/architecture.md", s.path, top(s.folder))
			continue
		}
		for _, p := range s.imports() {
			to, isOurs := ours(p)
			if !isOurs {
				continue
			}
			if why := wrongArrow(s, to, may); why != "" {
				t.Errorf("%s imports %s: %s", s.path, p, why)
			}
		}
	}
}

// wrongArrow says what to do about s importing the folder to, "" when it may.
func wrongArrow(s source, to string, may []string) string {
	e2e := s.under("cmd/e2e")
	switch {
	case within(to, "testbus") || within(to, "cmd/e2e"):
		if s.test || e2e || s.under("testbus") && within(to, "testbus") {
			return ""
		}
		return "it is for tests and cmd/e2e only; move what a program needs of it into shared"
	case e2e:
		return ""
	case within(to, "cmd"):
		if s.under("cmd") && within(to, s.folder) {
			return ""
		}
		return "a command is imported by nobody; move what is needed into the package it wires"
	case s.folder == ".":
		return "the tests of the root read the tree, they import nothing of it"
	}
	for command, middle := range commands {
		if s.under(command) && slices.Contains([]string{"agent", "coordinator", "installer"}, top(to)) && top(to) != middle {
			return command + " is the shell of " + middle + " alone; what two of them need is a message or a value, and lives in shared"
		}
	}
	if top(to) == top(s.folder) || slices.Contains(may, top(to)) {
		return ""
	}
	return top(s.folder) + " may import only " + strings.Join(append([]string{top(s.folder)}, may...), ", ") +
		"; what two sides need is a message or a value, and lives in shared"
}

// TestNoCycleBetweenTopFolders also follows the imports of tests, except those of testbus: a test that
// needs the other side belongs to cmd/e2e.
func TestNoCycleBetweenTopFolders(t *testing.T) {
	edges := map[string]map[string]string{} // from, to, a file that does it
	for _, s := range tree(t) {
		for _, p := range s.imports() {
			to, isOurs := ours(p)
			from := top(s.folder)
			if !isOurs || top(to) == "testbus" || from == "testbus" || top(to) == from {
				continue
			}
			if edges[from] == nil {
				edges[from] = map[string]string{}
			}
			edges[from][top(to)] = s.path
		}
	}
	var way []string
	var visit func(folder string)
	visit = func(folder string) {
		if i := slices.Index(way, folder); i >= 0 {
			round := append(slices.Clone(way[i:]), folder)
			t.Errorf("the folders import each other in a circle: %s (%s closes it); move what both need into shared",
				strings.Join(round, " -> "), edges[way[len(way)-1]][folder])
			return
		}
		way = append(way, folder)
		for to := range edges[folder] {
			visit(to)
		}
		way = way[:len(way)-1]
	}
	for folder := range edges {
		visit(folder)
	}
}

// mayLink says which packages may import a library directly that the rest of the tree must not link.
var mayLink = map[string]struct {
	folders []string
	why     string
}{
	"github.com/nats-io/nats-server": {[]string{"shared/broker", "testbus", "cmd/e2e"}, "only shared/broker links the bus's server, so the agent does not"},
	"mesh/shared/broker":             {[]string{"coordinator", "testbus", "cmd/e2e"}, "only the coordinator and the tests run a bus; the agent must not link one"},
	"C":                              {nil, "mesh is built without CGO"},
	"modernc.org/sqlite":             {[]string{"shared/sqlite", "cmd/e2e"}, "a store is opened by shared/sqlite, which knows the settings that make it durable"},
}

func TestHeavyLibrariesStayWhereTheyBelong(t *testing.T) {
	for _, s := range tree(t) {
		for _, p := range s.imports() {
			for library, rule := range mayLink {
				if !within(p, library) || s.test && library != "C" {
					continue
				}
				if !slices.ContainsFunc(rule.folders, s.under) {
					t.Errorf("%s imports %s: %s", s.path, p, rule.why)
				}
			}
		}
	}
}

// TestTheAgentLinksLittle asks the Go tool, which also sees what comes in by way of others.
func TestTheAgentLinksLittle(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "./cmd/mesh-agent").Output()
	if err != nil {
		t.Fatalf("go list -deps ./cmd/mesh-agent: %v", err)
	}
	for _, p := range strings.Fields(string(out)) {
		for _, not := range []string{"github.com/nats-io/nats-server", "mesh/shared/broker", "mesh/coordinator", "mesh/installer", "mesh/testbus", "go.yaml.in/yaml"} {
			if within(p, not) || strings.HasPrefix(p, not+"/") {
				t.Errorf("mesh-agent links %s; find who imports it with \"go mod why -m\" or \"go list -deps\", and cut that import: the agent stays small and starts fast", p)
			}
		}
	}
}

// TestTheFoldersAreThere holds what docs/architecture.md and CONTRIBUTING.md tell a newcomer.
func TestTheFoldersAreThere(t *testing.T) {
	have := map[string]bool{}
	for _, s := range tree(t) {
		have[s.folder] = true
	}
	for _, want := range []string{
		"cmd/mesh-agent", "cmd/mesh-coordinator", "cmd/mesh-installer", "cmd/e2e", "cmd/e2e/demo", "cmd/e2e/bench",
		"agent", "agent/state", "agent/resource", "agent/plan", "agent/apply", "agent/filter", "agent/link", "agent/show",
		"coordinator", "coordinator/records", "coordinator/compose", "coordinator/push", "coordinator/hear", "coordinator/enrol", "coordinator/verbs",
		"installer", "firewall", "shared/subject", "shared/grant", "shared/declaration", "shared/report", "shared/manifest", "shared/controller",
		"testbus", "testbus/hosts",
	} {
		if !have[want] {
			t.Errorf("the folder %s has no Go file: the documents name it, so write it or mend them", want)
		}
	}
}
