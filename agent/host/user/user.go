// Package user reads the users and groups of a machine from /etc/passwd and /etc/group, and makes the
// declared ones so with the distribution's own useradd, usermod and groupadd: they know its locking, its
// number ranges and its shadow files. What they did is read back; their exit code alone proves nothing.
//
// Users of a directory service (LDAP, SSSD) are not seen. The package removes nobody: whoever owns data
// keeps a name. It starts no goroutine; a Runner starts the programs, in production through systemd,
// since the agent's own sandbox may not write the password files (facts on hosts, §3).
package user

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"mesh/agent/host/file"
	"mesh/shared/refusal"
)

const (
	passwdPath = "/etc/passwd"
	groupPath  = "/etc/group"
	// maxFile bounds what is read of each: some hundred thousand users.
	maxFile = 32 << 20
)

// Accounts are the users and groups of a machine, by name.
type Accounts struct {
	Users  map[string]User
	Groups map[string]Group
}

// User is one line of /etc/passwd, with the groups that list it.
type User struct {
	Name     string
	UID, GID int
	Home     string
	Shell    string
	// Groups are the supplementary ones, sorted.
	Groups []string
}

// Group is one line of /etc/group.
type Group struct {
	Name    string
	GID     int
	Members []string
}

// Spec is a system user as it shall be, with a group of the same name.
type Spec struct {
	Name, Home, Shell string
	// Groups are the supplementary ones, all of them.
	Groups []string
}

// Runner starts a program and waits for it. unit names it for those who look at the machine meanwhile.
type Runner interface {
	Run(ctx context.Context, unit string, argv []string) (exit int, output string, err error)
}

// Observe reads the accounts below root.
func Observe(root *file.Root) (Accounts, error) {
	passwd, err := root.Read(passwdPath, maxFile)
	if err != nil {
		return Accounts{}, err
	}
	group, err := root.Read(groupPath, maxFile)
	if err != nil {
		return Accounts{}, err
	}
	return Parse(passwd, group), nil
}

// Parse reads the two files (passwd(5), group(5)). A line that is none is left out, and of two with one
// name the first counts, as in the C library.
func Parse(passwd, group []byte) Accounts {
	a := Accounts{Users: map[string]User{}, Groups: map[string]Group{}}
	for f := range lines(group, 4) {
		gid, ok := number(f[2])
		if _, twice := a.Groups[f[0]]; !ok || twice {
			continue
		}
		g := Group{Name: f[0], GID: gid}
		for m := range strings.SplitSeq(f[3], ",") {
			if m = strings.TrimSpace(m); m != "" {
				g.Members = append(g.Members, m)
			}
		}
		a.Groups[g.Name] = g
	}
	member := map[string][]string{}
	for _, g := range a.Groups {
		for _, m := range g.Members {
			member[m] = append(member[m], g.Name)
		}
	}
	for f := range lines(passwd, 7) {
		uid, ok := number(f[2])
		gid, ok2 := number(f[3])
		if _, twice := a.Users[f[0]]; !ok || !ok2 || twice {
			continue
		}
		groups := member[f[0]]
		slices.Sort(groups)
		a.Users[f[0]] = User{Name: f[0], UID: uid, GID: gid, Home: f[5], Shell: f[6], Groups: slices.Compact(groups)}
	}
	return a
}

// lines yields the fields of each line that has n of them and a name.
func lines(b []byte, n int) func(yield func([]string) bool) {
	return func(yield func([]string) bool) {
		for line := range strings.Lines(string(b)) {
			f := strings.Split(strings.TrimRight(line, "\r\n"), ":")
			// "+" and "-" lines belong to NIS (nsswitch.conf(5), compat).
			if len(f) != n || f[0] == "" || strings.ContainsAny(f[0][:1], "+-#") {
				continue
			}
			if !yield(f) {
				return
			}
		}
	}
}

func number(s string) (int, bool) {
	n, err := strconv.ParseUint(s, 10, 32)
	return int(n), err == nil
}

// Differs says in words what of s is not so in a; nothing means in order. It reads and changes nothing.
func (a Accounts) Differs(s Spec) []string {
	have, ok := a.Users[s.Name]
	if !ok {
		return []string{"user " + s.Name + " is not there"}
	}
	var out []string
	say := func(what, have, want string) {
		if have != want {
			out = append(out, fmt.Sprintf("%s of user %s is %q, declared %q", what, s.Name, have, want))
		}
	}
	say("home", have.Home, s.Home)
	say("shell", have.Shell, s.Shell)
	say("groups", strings.Join(have.Groups, ","), strings.Join(s.groups(), ","))
	return out
}

func (s Spec) groups() []string {
	g := slices.Clone(s.Groups)
	slices.Sort(g)
	return slices.Compact(g)
}

// nameRule is what useradd takes on every distribution; a leading hyphen would be an option.
var nameRule = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,31}$`) })

// Ensure makes the user s so, and reports whether anything had to change. It may be repeated.
func Ensure(ctx context.Context, root *file.Root, run Runner, s Spec) (changed bool, err error) {
	what := "user " + s.Name
	if err := checkName(what, s.Name); err != nil {
		return false, err
	}
	have, err := Observe(root)
	if err != nil {
		return false, fmt.Errorf("%s: %w", what, err)
	}
	if len(have.Differs(s)) == 0 {
		return false, nil
	}
	for _, g := range s.Groups {
		if _, ok := have.Groups[g]; !ok {
			return false, refusal.New(what, "the machine has no group "+g, "take the group out of the declaration, or install what brings it")
		}
	}
	options := []string{"--home-dir", s.Home, "--shell", s.Shell, "--groups", strings.Join(s.groups(), ",")}
	argv := append([]string{"useradd", "--system", "--no-create-home"}, options...)
	if _, exists := have.Users[s.Name]; exists {
		options[0] = "--home"
		argv = append([]string{"usermod"}, options...)
	} else if _, taken := have.Groups[s.Name]; taken {
		argv = append(argv, "--gid", s.Name)
	} else {
		argv = append(argv, "--user-group")
	}
	return true, act(ctx, root, run, argv, s.Name, what, func(a Accounts) []string { return a.Differs(s) })
}

// EnsureGroup makes the system group name, and reports whether it had to. It may be repeated.
func EnsureGroup(ctx context.Context, root *file.Root, run Runner, name string) (changed bool, err error) {
	what := "group " + name
	if err := checkName(what, name); err != nil {
		return false, err
	}
	have, err := Observe(root)
	if err != nil {
		return false, fmt.Errorf("%s: %w", what, err)
	}
	missing := func(a Accounts) []string {
		if _, ok := a.Groups[name]; ok {
			return nil
		}
		return []string{what + " is not there"}
	}
	if missing(have) == nil {
		return false, nil
	}
	return true, act(ctx, root, run, []string{"groupadd", "--system"}, name, what, missing)
}

func checkName(what, name string) error {
	if nameRule().MatchString(name) {
		return nil
	}
	return refusal.New(what, "useradd takes a-z, 0-9, _ and - only, 32 at most, not a digit or - first", "declare another name")
}

// act runs argv for name and then looks whether differs is content.
func act(ctx context.Context, root *file.Root, run Runner, argv []string, name, what string, differs func(Accounts) []string) error {
	if root.Path() != "/" {
		argv = append(argv, "--prefix", root.Path())
	}
	argv = append(argv, "--", name)
	exit, output, err := run.Run(ctx, "mesh-"+argv[0]+"-"+name, argv)
	if err != nil {
		return fmt.Errorf("%s: %s: %w", what, argv[0], err)
	}
	after, err := Observe(root)
	if err != nil {
		return fmt.Errorf("%s: after %s: %w", what, argv[0], err)
	}
	if left := differs(after); len(left) > 0 {
		return fmt.Errorf("%s: %s ended with %d and yet %s: %s", what, argv[0], exit,
			strings.Join(left, "; "), strings.TrimSpace(output))
	}
	return nil
}
