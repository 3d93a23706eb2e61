package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mesh/installer"
	"mesh/shared/refusal"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func newApp(in string) (*app, *bytes.Buffer, *bytes.Buffer) {
	var out, err bytes.Buffer
	return &app{in: strings.NewReader(in), out: &out, err: &err, self: "/usr/local/bin", machine: installer.Machine{Root: "/nonexistent", UID: 1000}}, &out, &err
}

// TestHelp keeps what a person reads.
func TestHelp(t *testing.T) {
	for _, name := range []string{"", "genesis", "enrol", "leave"} {
		a, out, _ := newApp("")
		args := strings.Fields(name + " --help")
		if code := run(context.Background(), a, args); code != exitWell {
			t.Errorf("%q exits %d", args, code)
		}
		golden := filepath.Join("testdata", strings.TrimPrefix(name+"-help.txt", "-"))
		if *update {
			if err := os.WriteFile(golden, out.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if out.String() != string(want) {
			t.Errorf("%q: the help changed; run the tests with -update and read the difference\n%s", args, out)
		}
	}
}

func TestExitCodes(t *testing.T) {
	for _, tt := range []struct {
		args string
		code int
		says []string
	}{
		{"nonsense", exitUsage, []string{"wrong usage: unknown command", "do: see mesh-installer --help"}},
		{"genesys", exitUsage, []string{`do: did you mean "genesis"?`}},
		{"enrol", exitNotWell, []string{"refused: to enrol this machine without an invitation: it is in no mesh yet", "do: make one"}},
		{"enrol a b", exitUsage, []string{"wrong usage: accepts at most 1 arg", "do: write mesh-installer enrol [<invitation>]"}},
		{"genesis --nonsense", exitUsage, []string{"wrong usage: unknown flag"}},
		{"enrol mesh1-x", exitNotWell, []string{"refused: the invitation: it is cut", "do: copy"}},
		{"enrol -", exitNotWell, []string{`starts with "mesh1-"`}},
		{"genesis --address 192.0.2.1 --name db1", exitNotWell, []string{"refused: to install mesh", "uid 1000", "do: run it with sudo"}},
		{"leave --keep-workloads --stop-workloads", exitNotWell, []string{"only one of them"}},
		{"leave --filter most", exitNotWell, []string{"--filter found"}},
	} {
		a, out, err := newApp("hello\n")
		if code := run(context.Background(), a, strings.Fields(tt.args)); code != tt.code || out.Len() > 0 {
			t.Errorf("%s: exit %d, want %d; printed %q", tt.args, code, tt.code, out)
		}
		for _, want := range tt.says {
			if !strings.Contains(err.String(), want) {
				t.Errorf("%s says %q, want %q", tt.args, err, want)
			}
		}
	}
}

func TestSayIsTwoLines(t *testing.T) {
	for _, err := range []error{
		refusal.New("it", "because", "that"),
		&installer.Failure{What: "start it", Err: errors.New("it broke\nbadly"), Do: "look"},
		errors.New("something\nelse"),
	} {
		var b bytes.Buffer
		say(&b, err)
		if lines := strings.Split(strings.TrimSpace(b.String()), "\n"); len(lines) != 2 || !strings.HasPrefix(lines[1], "do: ") {
			t.Errorf("%v is said as %q", err, b.String())
		}
	}
}
