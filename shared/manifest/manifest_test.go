package manifest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mesh/shared/refusal"
)

func sample() *Manifest {
	hi := "hi"
	return &Manifest{
		Module: "notes",
		Run: Run{
			Processes: map[string]Process{"web": {Exec: []string{"/bin/notes"}, Env: map[string]string{"A": "${setting:greeting}", "B": "${node:name}"}}},
			Timers:    map[string]Timer{"nightly": {Exec: []string{"/bin/prune"}, Calendar: "daily", Env: map[string]string{"T": "${setting:must}"}}},
			Units:     map[string]Unit{"x.service": {Content: "[Service]\nExecStart=/bin/echo $${A} ${setting:greeting}\n"}},
			Files: []File{
				{Path: "/etc/notes/conf", Mode: "0640", Content: "token = ${secret:token}\nmust = ${setting:must}\n"},
				{Path: "/etc/notes/plain"},
			},
			Directories: []Directory{{Path: "/var/lib/notes"}},
			Users:       map[string]User{"notes": {}},
		},
		Settings: map[string]Setting{"greeting": {Default: &hi}, "must": {}},
		Secrets:  map[string]Secret{"token": {}},
	}
}

// What the agent decodes is held against the same rules, without a file to point into.
func TestCheckOfTheDecodedForm(t *testing.T) {
	if err := sample().Check(); err != nil {
		t.Fatal(err)
	}
	m := sample()
	m.Module = ""
	m.Run.Files[0].Content = "\xff"
	m.Run.Files[1].Content = "a\x00b"
	m.Description = strings.Repeat("x", MaxText+1)
	err := m.Check()
	want := `description: has 262145 bytes; at most 262144 are taken
module: is missing: it has to be there and not empty
run.files[0].content: is no valid UTF-8 text
run.files[1].content: holds a zero byte, which no text of a machine can`
	if err == nil || err.Error() != want {
		t.Errorf("Check:\n%v\nwant:\n%s", err, want)
	}
	var ps Problems
	if !errors.As(err, &ps) || len(ps) != 4 {
		t.Errorf("no list of problems: %#v", err)
	}
}

func TestExpand(t *testing.T) {
	lookup := func(kind, key string) (string, error) {
		if key == "none" {
			return "", errors.New("nothing set it")
		}
		return "<" + kind + " " + key + " ${setting:not-again}>", nil
	}
	for _, tt := range []struct{ in, want, err string }{
		{"", "", ""},
		{"plain $HOME $$ {}", "plain $HOME $$ {}", ""},
		{"a${setting:x}b", "a<setting x ${setting:not-again}>b", ""},
		{"${secret:x}${node:name}", "<secret x ${setting:not-again}><node name ${setting:not-again}>", ""},
		{"$${setting:x}", "${setting:x}", ""},
		{"$$${x", "$${x", ""},
		{"$${a}${setting:b}$${", "${a}<setting b ${setting:not-again}>${", ""},
		{"${setting:none}", "", "${setting:none}: nothing set it"},
		{"${HOME}", "", "${HOME} is no placeholder"},
		{"${}", "", "${} is no placeholder"},
		{"${setting:}", "", nameWant},
		{"${setting:A b}", "", nameWant},
		{"${setting:x", "", "is not closed with }"},
		{"${setting:x\n}", "", "is not closed with }"},
		{"${provision:db.user}", "", "is not in this version"},
		{"${node:address}", "", "is not in this version"},
		{"${node:colour}", "", "write ${node:name}"},
		{"${Setting:x}", "", `did you mean "setting"?`},
	} {
		got, err := Expand(tt.in, lookup)
		if tt.err == "" && (err != nil || got != tt.want) || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
			t.Errorf("Expand(%q) = %q, %v; want %q, %q", tt.in, got, err, tt.want, tt.err)
		}
	}
}

// APP-12: a placeholder nothing set is refused with module, file and key, each of them.
func TestFillNamesWhatIsMissing(t *testing.T) {
	m := sample()
	_, err := m.Fill(m.Values("db1", nil, nil))
	want := `refused: ${setting:must} in env T of timer nightly of module notes: nothing set it and the manifest has no default
do: set must in the assignment of notes to db1
refused: ${secret:token} in file /etc/notes/conf of module notes: nothing set it and the manifest has no default
do: set token in the assignment of notes to db1
refused: ${setting:must} in file /etc/notes/conf of module notes: nothing set it and the manifest has no default
do: set must in the assignment of notes to db1`
	if err == nil || err.Error() != want {
		t.Errorf("Fill:\n%v\nwant:\n%s", err, want)
	}
}

func TestFill(t *testing.T) {
	m := sample()
	got, err := m.Fill(m.Values("db1", map[string]string{"must": "x ${y}"}, map[string]string{"token": "s3"}))
	if err != nil {
		t.Fatal(err)
	}
	want := sample()
	want.Run.Processes["web"] = Process{Exec: []string{"/bin/notes"}, Env: map[string]string{"A": "hi", "B": "db1"}}
	want.Run.Timers["nightly"] = Timer{Exec: []string{"/bin/prune"}, Calendar: "daily", Env: map[string]string{"T": "x ${y}"}}
	want.Run.Units["x.service"] = Unit{Content: "[Service]\nExecStart=/bin/echo ${A} hi\n"}
	want.Run.Files[0].Content = "token = s3\nmust = x ${y}\n"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Fill (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(sample(), m); diff != "" {
		t.Errorf("Fill changed what it was called on:\n%s", diff)
	}
}

func TestPlaceholders(t *testing.T) {
	var got []string
	for _, u := range sample().Placeholders() {
		got = append(got, fmt.Sprintf("%s %s | %s | %s", u.Kind, u.Key, u.Path, u.Where))
	}
	want := []string{
		"setting greeting | run.processes.web.env.A | env A of process web",
		"node name | run.processes.web.env.B | env B of process web",
		"setting must | run.timers.nightly.env.T | env T of timer nightly",
		`setting greeting | run.units["x.service"].content | unit x.service`,
		"secret token | run.files[0].content | file /etc/notes/conf",
		"setting must | run.files[0].content | file /etc/notes/conf",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Placeholders (-want +got):\n%s", diff)
	}
}

func TestKnows(t *testing.T) {
	m := sample()
	if err := errors.Join(m.KnowsSetting("must"), m.KnowsSecret("token")); err != nil {
		t.Error(err)
	}
	for _, tt := range []struct {
		err error
		do  string
	}{
		{m.KnowsSetting("greting"), `did you mean "greeting"?`},
		{m.KnowsSetting("colour"), "it has: greeting, must"},
		{m.KnowsSecret("tokne"), `did you mean "token"?`},
		{(&Manifest{Module: "x"}).KnowsSecret("a"), "it has none: name a in the manifest under secrets first"},
	} {
		if r := refusal.Of(tt.err); r == nil || r.Do != tt.do {
			t.Errorf("got %v, want do: %s", tt.err, tt.do)
		}
	}
}

func TestSuggest(t *testing.T) {
	known := []string{"exec", "env", "after", "on-failure", "description"}
	for in, want := range map[string]string{"exek": "exec", "Exec": "exec", "excec": "exec", "evn": "env", "on_failure": "on-failure",
		"descripton": "description", "no": "", "x": "", "colour": "", "": "", strings.Repeat("exec", 50): ""} {
		if got := Suggest(in, known); got != want {
			t.Errorf("Suggest(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestClaims(t *testing.T) {
	want := []string{"directory /var/lib/notes", "file /etc/notes/conf", "file /etc/notes/plain", "unit mesh-notes-nightly.service",
		"unit mesh-notes-nightly.timer", "unit mesh-notes-web.service", "unit x.service", "user notes"}
	if got := sample().Claims(); !slices.Equal(got, want) {
		t.Errorf("Claims = %q, want %q", got, want)
	}
}

func TestDefaults(t *testing.T) {
	for _, tt := range []struct{ got, want any }{
		{(&Manifest{}).Policy(), Record}, {Process{}.RestartPolicy(), Always}, {Process{Restart: Never}.RestartPolicy(), Never},
		{Process{}.RunsAs(), "root"}, {Timer{User: "x"}.RunsAs(), "x"}, {User{}.HomeDir(), "/nonexistent"},
		{User{}.LoginShell(), "/usr/sbin/nologin"}, {Mode("0640").Bits(0), uint32(0o640)}, {Mode("").Bits(0o755), uint32(0o755)},
	} {
		if tt.got != tt.want {
			t.Errorf("got %v, want %v", tt.got, tt.want)
		}
	}
}

// Whatever the text, Expand ends, and a text that Check takes can be filled.
func FuzzExpand(f *testing.F) {
	for _, s := range []string{"${setting:a}", "$${", "$$${a}", "${node:name", "${:}", "${secret:a}${"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		asked := 0
		got, err := Expand(s, func(string, string) (string, error) { asked++; return "", nil })
		if err == nil && len(got) > len(s) {
			t.Errorf("%q grew to %q with empty values", s, got)
		}
		if !strings.Contains(s, "${") && (err != nil || got != s || asked > 0) {
			t.Errorf("%q without a placeholder became %q, %v", s, got, err)
		}
	})
}

// The agent's own seat takes a bundle to hold the agent, and one module on a machine holds it.
func TestTheAgentsSeat(t *testing.T) {
	m := Manifest{Module: "agent", Seats: Seats{Claims: []Claim{NodeEngine}}}
	if err := m.Check(); err == nil || !strings.Contains(err.Error(), "takes a bundle with bin/mesh-agent") {
		t.Errorf("without a bundle: %v", err)
	}
	m.Build.Bundle = &Bundle{Output: "dist"}
	if err := m.Check(); err != nil || !m.Holds(NodeEngine) || !slices.Contains(m.Claims(), "seat node-engine") {
		t.Errorf("%v, claims %v", err, m.Claims())
	}
	m.Seats.Claims = append(m.Seats.Claims, NodeEngine, "mesh-controller")
	if err := m.Check(); err == nil || !strings.Contains(err.Error(), "claimed twice") || !strings.Contains(err.Error(), "expected one of node-engine") {
		t.Errorf("twice, and another: %v", err)
	}
}
