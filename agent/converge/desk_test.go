package converge_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mesh/agent/converge"
	"mesh/agent/host/file"
	"mesh/agent/host/systemd"
	"mesh/firewall/foreign"
	"mesh/shared/clock"
)

// desk is a machine on paper: front ends that refuse while they are on, units, and what the programs do to
// them. What nft, iptables, ufw and firewalld really do is tested on booted hosts.
type desk struct {
	t      *testing.T
	root   string
	store  map[string][]byte
	units  map[string]*systemd.UnitState
	on     map[string]bool // ufw, firewalld, nftables.service, docker
	ran    []string
	fails  map[string]int // exit codes of commands
	reach  []error        // answers of the window, then nil
	direct bool           // firewalld has rules in iptables' tables, too
	away   error          // the bus cannot be reached at all
	reads  int
	sign   int
	dieAt  string
	died   bool
	window []string // what was on at each try to reach the bus
}

func newDesk(t *testing.T, on ...string) *desk {
	d := &desk{t: t, root: t.TempDir(), store: map[string][]byte{}, on: map[string]bool{}, fails: map[string]int{}, units: map[string]*systemd.UnitState{}}
	for _, name := range on {
		d.on[name] = true
	}
	for name, running := range map[string]bool{"ufw.service": false, "firewalld.service": d.on["firewalld"], "nftables.service": d.on["nftables.service"], "fail2ban.service": true} {
		u := &systemd.UnitState{Name: name, Load: "loaded", Active: "inactive", File: "enabled"}
		if running {
			u.Active = "active"
		}
		d.units[name] = u
	}
	for name, text := range map[string]string{
		"etc/nftables.conf": "flush ruleset\ntable inet filter {\n}\n", "etc/ufw/ufw.conf": "ENABLED=yes\n", "usr/sbin/ufw": "", "scratch/.keep": "",
		"etc/systemd/system/sysinit.target.wants/nftables.service": "",
	} {
		path := filepath.Join(d.root, name)
		d.must(os.MkdirAll(filepath.Dir(path), 0o755))
		d.must(os.WriteFile(path, []byte(text), 0o755))
	}
	return d
}

func (d *desk) must(err error) {
	d.t.Helper()
	if err != nil {
		d.t.Fatal(err)
	}
}

// start is a life of the agent.
func (d *desk) start() *converge.Converger {
	d.t.Helper()
	files, err := file.OpenRoot(d.root)
	d.must(err)
	d.t.Cleanup(func() { d.must(files.Close()) })
	return converge.New(converge.Config{Store: d, Run: d, Units: d, Files: files, Window: d, Read: d.read, Scratch: filepath.Join(d.root, "scratch"),
		Signature: func() (string, error) { d.sign++; return d.names(), nil },
		Clock:     clock.NewFake(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)), Log: slog.New(slog.DiscardHandler), FailPoint: d.failPoint})
}

type death struct{}

func (d *desk) failPoint(name string) {
	if name == d.dieAt && !d.died {
		d.died = true
		panic(death{})
	}
}

// apply is one Apply, which may die at a fail point.
func (d *desk) apply(c *converge.Converger, w converge.Wish) (err error, died bool) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case death:
			died = true
		default:
			panic(p)
		}
	}()
	return c.Apply(d.t.Context(), w), false
}

func (d *desk) names() string {
	var all []string
	for name, on := range d.on {
		if on {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// read makes the rules of what is on.
func (d *desk) read(context.Context, func(context.Context, string) ([]byte, error)) (foreign.Ruleset, error) {
	d.reads++
	base := func(name, policy string, acts ...foreign.Act) foreign.Chain {
		return foreign.Chain{Name: name, Base: true, Hook: strings.ToLower(name), Type: "filter", Policy: policy, Rules: len(acts), Acts: acts}
	}
	drop := foreign.Act{Word: "drop", Count: 1}
	var rs foreign.Ruleset
	rs.Tables = append(rs.Tables, foreign.Table{Family: "inet", Name: "mesh", Chains: []foreign.Chain{base("input", "accept", drop)}})
	filter := foreign.Table{Family: "ip", Name: "filter", XT: true, Chains: []foreign.Chain{base("INPUT", "accept"), base("FORWARD", "accept")}}
	if d.on["ufw"] {
		filter.Chains[0] = base("INPUT", "drop", foreign.Act{Chain: "ufw-user-input", Count: 1})
		filter.Chains = append(filter.Chains, foreign.Chain{Name: "ufw-user-input", Rules: 2, Acts: []foreign.Act{drop, {Word: "reject", Count: 1, Hint: "one source"}}})
	}
	if d.on["firewalld"] && d.direct {
		filter.Chains[0] = base("INPUT", "accept", foreign.Act{Chain: "INPUT_direct", Count: 1})
		filter.Chains = append(filter.Chains, foreign.Chain{Name: "INPUT_direct", Rules: 1, Acts: []foreign.Act{drop}})
	}
	if d.on["docker"] {
		filter.Chains[1] = base("FORWARD", "accept", foreign.Act{Chain: "DOCKER", Count: 1})
		filter.Chains = append(filter.Chains, foreign.Chain{Name: "DOCKER", Rules: 1, Acts: []foreign.Act{drop}})
	}
	rs.Tables = append(rs.Tables, filter)
	if d.on["firewalld"] {
		rs.Tables = append(rs.Tables, foreign.Table{Family: "inet", Name: "firewalld", Chains: []foreign.Chain{base("filter_INPUT", "accept", drop)}})
	}
	if d.on["nftables.service"] {
		rs.Tables = append(rs.Tables, foreign.Table{Family: "inet", Name: "filter", Chains: []foreign.Chain{base("input", "drop")}})
	}
	if d.on["mine"] {
		rs.Tables = append(rs.Tables, foreign.Table{Family: "inet", Name: "own", Chains: []foreign.Chain{base("in", "drop")}})
	}
	return rs, nil
}

// Run is systemd's.
func (d *desk) Run(_ context.Context, _ string, argv []string) (int, string, error) {
	line := strings.Join(argv, " ")
	for path, short := range map[string]string{filepath.Join(d.root, "scratch") + "/": ""} {
		line = strings.ReplaceAll(line, path, short)
	}
	d.ran = append(d.ran, line)
	if exit := d.fails[line]; exit != 0 {
		return exit, "it does not work\n", nil
	}
	switch {
	case line == "ufw --force disable":
		d.on["ufw"] = false
	case line == "ufw --force enable":
		d.on["ufw"] = true
	case argv[0] == "systemctl" && argv[1] == "show":
		return 0, "fail2ban.service other.service\n\n\n", nil
	case argv[0] == "systemctl":
		for _, u := range argv[2:] {
			d.systemctl(argv, u)
		}
	case argv[0] == "nft":
		b, err := os.ReadFile(argv[len(argv)-1])
		if err != nil || strings.Contains(string(b), "flush ruleset") {
			return 1, "", fmt.Errorf("a file for nft: %q, %w", b, err)
		}
		for line := range strings.Lines(string(b)) {
			for table, name := range map[string]string{"inet filter": "nftables.service", "inet firewalld": "firewalld"} {
				if strings.HasPrefix(line, "delete table "+table) {
					d.on[name] = false
				} else if strings.HasPrefix(line, "table "+table) {
					d.on[name] = true
				}
			}
		}
	}
	return 0, "", nil
}

func (d *desk) systemctl(argv []string, unit string) {
	u := d.units[unit]
	switch {
	case slices.Contains(argv, "enable") && u != nil:
		u.File = "enabled"
	case slices.Contains(argv, "disable") && u != nil:
		u.File = "disabled"
	case argv[1] == "start" && u != nil:
		u.Active = "active"
		if unit == "firewalld.service" {
			d.on["firewalld"] = true
		}
	case argv[1] == "kill" && u != nil:
		u.Active = "failed" // and its table stays
	case argv[1] == "reset-failed" && u != nil && u.Active == "failed":
		u.Active = "inactive"
	case argv[1] == "stop" && u != nil:
		u.Active = "inactive"
		if unit == "firewalld.service" {
			d.on["firewalld"] = false
			d.units["fail2ban.service"].Active = "inactive" // it is a part of firewalld's
		}
	}
}

// States is systemd's.
func (d *desk) States(_ context.Context, units []string) (map[string]systemd.UnitState, error) {
	out := map[string]systemd.UnitState{}
	for _, name := range units {
		out[name] = systemd.UnitState{Name: name, Load: "not-found", Active: "inactive"}
		if u := d.units[name]; u != nil {
			out[name] = *u
		}
	}
	return out, nil
}

// Meta is the store's.
func (d *desk) Meta(_ context.Context, key string) ([]byte, bool, error) {
	b, ok := d.store[key]
	return b, ok, nil
}

// SetMetaSynced is the store's.
func (d *desk) SetMetaSynced(_ context.Context, key string, value []byte) error {
	d.store[key] = value
	return nil
}

// Reachable is the packet filter's.
func (d *desk) Reachable(context.Context) error { return d.away }

// Reach is the packet filter's.
func (d *desk) Reach(context.Context) error {
	d.window = append(d.window, d.names())
	if len(d.reach) == 0 {
		return nil
	}
	err := d.reach[0]
	d.reach = d.reach[1:]
	return err
}

var errCut = errors.New("no answer")

func writeFile(d *desk, name, text string) error {
	path := filepath.Join(d.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o644)
}
