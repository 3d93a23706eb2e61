package user

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"mesh/agent/host/file"
	"mesh/shared/refusal"
)

// child runs the distribution's programs as children; the tests need root and a root folder of their own.
type child struct{ calls [][]string }

func (c *child) Run(ctx context.Context, _ string, argv []string) (int, string, error) {
	c.calls = append(c.calls, argv)
	out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode(), string(out), nil
	}
	return 0, string(out), err
}

// deaf says all went well and does nothing.
type deaf struct{}

func (deaf) Run(context.Context, string, []string) (int, string, error) { return 0, "fine", nil }

func machine(t *testing.T) *file.Root {
	t.Helper()
	dir := t.TempDir()
	for name, content := range map[string]string{
		"passwd": "root:x:0:0:root:/root:/bin/bash\nmail:x:8:8:mail:/var/mail:/usr/sbin/nologin\n",
		"group":  "root:x:0:\nmail:x:8:\nadm:x:4:root\ntaken:x:900:\n",
		"shadow": "root:*:1::::::\nmail:*:1::::::\n", "gshadow": "root:*::\nmail:*::\nadm:*::\ntaken:!::\n",
		"login.defs": "UID_MIN 1000\nSYS_UID_MIN 100\nSYS_UID_MAX 999\nSYS_GID_MIN 100\nSYS_GID_MAX 999\n",
	} {
		os.MkdirAll(filepath.Join(dir, "etc"), 0o755)
		if err := os.WriteFile(filepath.Join(dir, "etc", name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	root, err := file.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root
}

func TestEnsure(t *testing.T) {
	root, run := machine(t), &child{}
	notes := Spec{Name: "notes", Home: "/nonexistent", Shell: "/usr/sbin/nologin", Groups: []string{"mail", "adm"}}
	for _, tt := range []struct {
		name    string
		spec    func(*Spec)
		changed bool
		program string
	}{
		{"a new user", func(*Spec) {}, true, "useradd"},
		{"in order", func(*Spec) {}, false, ""},
		{"in order, groups in another order", func(s *Spec) { s.Groups = []string{"adm", "mail"} }, false, ""},
		{"another home and shell", func(s *Spec) { s.Home, s.Shell = "/srv/notes", "/bin/sh" }, true, "usermod"},
		{"fewer groups", func(s *Spec) { s.Groups = []string{"mail"} }, true, "usermod"},
		{"no groups", func(s *Spec) { s.Groups = nil }, true, "usermod"},
		{"a name whose group is there", func(s *Spec) { s.Name, s.Groups = "taken", nil }, true, "useradd"},
	} {
		s := notes
		tt.spec(&s)
		run.calls = nil
		changed, err := Ensure(t.Context(), root, run, s)
		if err != nil || changed != tt.changed {
			t.Fatalf("%s: Ensure = %v, %v", tt.name, changed, err)
		}
		if ran := programs(run.calls); ran != tt.program {
			t.Errorf("%s: ran %v", tt.name, run.calls)
		}
		after, err := Observe(root)
		if err != nil {
			t.Fatal(err)
		}
		u := after.Users[s.Name]
		if d := after.Differs(s); len(d) > 0 || u.UID < 100 || u.UID > 999 || after.Groups[s.Name].GID != u.GID {
			t.Errorf("%s: %+v, differs %v", tt.name, u, d)
		}
	}
	if shadow, _ := os.ReadFile(filepath.Join(root.Path(), "etc/shadow")); !strings.Contains(string(shadow), "\nnotes:!") {
		t.Errorf("the user has a password:\n%s", shadow)
	}
}

func programs(calls [][]string) string {
	var names []string
	for _, argv := range calls {
		names = append(names, argv[0])
	}
	return strings.Join(names, " ")
}

func TestEnsureGroup(t *testing.T) {
	root, run := machine(t), &child{}
	for i, want := range []bool{true, false} {
		if changed, err := EnsureGroup(t.Context(), root, run, "media"); err != nil || changed != want {
			t.Fatalf("EnsureGroup %d = %v, %v", i, changed, err)
		}
	}
	if a, err := Observe(root); err != nil || a.Groups["media"].GID == 0 {
		t.Errorf("groups %+v, %v", a.Groups, err)
	}
}

func TestTheExitCodeAloneIsNotBelieved(t *testing.T) {
	root := machine(t)
	_, err := Ensure(t.Context(), root, deaf{}, Spec{Name: "notes"})
	if err == nil || !strings.Contains(err.Error(), "useradd ended with 0 and yet user notes is not there: fine") {
		t.Errorf("Ensure: %v", err)
	}
	if _, err = EnsureGroup(t.Context(), root, deaf{}, "media"); err == nil {
		t.Error("EnsureGroup believed the exit code")
	}
}

func TestWhatIsRefused(t *testing.T) {
	root := machine(t)
	for _, s := range []Spec{{Name: "--root"}, {Name: "a:b"}, {Name: ""}, {Name: "notes", Groups: []string{"docker"}}} {
		if _, err := Ensure(t.Context(), root, deaf{}, s); refusal.Of(err) == nil {
			t.Errorf("%+v: %v, want a refusal", s, err)
		}
	}
	if _, err := EnsureGroup(t.Context(), root, deaf{}, "Media"); refusal.Of(err) == nil {
		t.Errorf("group Media: %v, want a refusal", err)
	}
	os.Remove(filepath.Join(root.Path(), "etc/passwd"))
	if _, err := Ensure(t.Context(), root, deaf{}, Spec{Name: "notes"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a password file: %v", err)
	}
}

func TestParseTakesWhatIsWhole(t *testing.T) {
	a := Parse([]byte("root:x:0:0::/root:/bin/sh\n\n# note\n+::::::\nshort:x:1\nbad:x:-1:0::/:\nroot:x:7:7::/:\nlast:x:4294967295:5::/:/bin/false"),
		[]byte("root:x:0:\nwheel:x:10:root, last,\nwheel:x:11:x\nbad:x:y:\n"))
	want := Accounts{
		Users: map[string]User{
			"root": {Name: "root", Home: "/root", Shell: "/bin/sh", Groups: []string{"wheel"}},
			"last": {Name: "last", UID: 4294967295, GID: 5, Home: "/", Shell: "/bin/false", Groups: []string{"wheel"}},
		},
		Groups: map[string]Group{"root": {Name: "root"}, "wheel": {Name: "wheel", GID: 10, Members: []string{"root", "last"}}},
	}
	if !reflect.DeepEqual(a, want) {
		t.Errorf("Parse = %+v\nwant    %+v", a, want)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("root:x:0:0::/root:/bin/sh\n"), []byte("wheel:x:10:root\n"))
	f.Fuzz(func(t *testing.T, passwd, group []byte) {
		a := Parse(passwd, group)
		for name, u := range a.Users {
			if u.Name != name || name == "" || !slices.IsSorted(u.Groups) {
				t.Errorf("user %q: %+v", name, u)
			}
		}
	})
}
