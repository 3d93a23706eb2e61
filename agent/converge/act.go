package converge

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"mesh/firewall/foreign"
	"mesh/shared/refusal"
	"mesh/shared/report"
)

const (
	// mostCopied bounds a file that is copied into the receipt, in bytes; a longer one is left out.
	mostCopied = 1 << 20
	// mostSaved bounds what is read of iptables-save.
	mostSaved = 16 << 20
	// runBound bounds one program; a front end with thousands of rules takes a while.
	runBound = 3 * time.Minute
	// unitName is what the programs run as. It does not begin as units of modules do: word of those has the
	// machine looked at again, and so what failed tried again, at once.
	unitName = "converge-by-mesh"
)

// savers are the programs whose output describes iptables' rules, and those that take it back.
var savers = [...]struct{ save, restore string }{{"iptables-save", "iptables-restore"}, {"ip6tables-save", "ip6tables-restore"}}

// describe writes down how p is, before anything is done to it.
func (c *Converger) describe(ctx context.Context, p prospect) (front, error) {
	f := front{Name: p.Name, Units: p.units, Text: p.text, Tables: p.tables, Kill: p.kill}
	for _, path := range p.method.files {
		st, err := c.cfg.Files.Observe(path)
		if err != nil || !st.Exists {
			continue
		}
		if b, err := c.cfg.Files.Read(path, mostCopied); err == nil { // a copy for people: a file that is too large is none
			f.Files = append(f.Files, copied{Path: path, Mode: st.Mode, Content: b})
		}
	}
	if p.method.stops && !p.kill {
		also, err := c.dependents(ctx, p.units)
		if err != nil {
			return f, err
		}
		f.Also = also
	}
	if p.method.rules {
		f.Rules = map[string]string{}
		for _, s := range savers {
			if !c.installed(s.save) {
				continue
			}
			text, err := c.saved(ctx, s.save)
			if err != nil {
				return f, err
			}
			f.Rules[s.restore] = text
		}
	}
	return f, nil
}

// dependents are running units that systemd stops when it stops all: fail2ban's is a part of firewalld's, and
// lifts its bans as it stops.
func (c *Converger) dependents(ctx context.Context, all []unit) ([]string, error) {
	if len(all) == 0 {
		return nil, nil
	}
	argv := []string{"systemctl", "show", "--value", "--property=ConsistsOf,BoundBy,RequiredBy"}
	for _, u := range all {
		argv = append(argv, u.Name)
	}
	out, err := c.run(ctx, argv...)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, name := range strings.Fields(out) {
		if strings.Contains(name, ".") && !slices.Contains(found, name) && !slices.ContainsFunc(all, func(u unit) bool { return u.Name == name }) {
			found = append(found, name)
		}
	}
	states, err := c.cfg.Units.States(ctx, found)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(found, func(name string) bool { return !states[name].Running() }), nil
}

// retire puts f out of force. It may be repeated.
func (c *Converger) retire(ctx context.Context, f front) error {
	m := methods()[f.Name]
	if err := c.commands(ctx, m.off, f); err != nil {
		return err
	}
	running, starts := f.pick()
	// Disabled first: nothing starts it again meanwhile.
	if err := c.systemctl(ctx, []string{"--quiet", "disable"}, starts); err != nil {
		return err
	}
	if err := c.end(ctx, f.Kill, m.stops, running); err != nil {
		return err
	}
	if err := c.deleteTables(ctx, f.Tables); err != nil {
		return err
	}
	if m.rules {
		if err := c.takeOut(ctx); err != nil {
			return err
		}
	}
	if m.opens {
		if err := c.openPolicies(ctx); err != nil {
			return err
		}
	}
	return c.systemctl(ctx, []string{"start"}, f.Also)
}

// end ends units, if at all, by a stop or without one.
func (c *Converger) end(ctx context.Context, kill, stops bool, running []string) error {
	switch {
	case kill:
		up, err := c.up(ctx, running)
		if err != nil {
			return err
		}
		if err := c.systemctl(ctx, []string{"kill", "--signal=KILL"}, up); err != nil {
			return err
		}
		failed, err := c.ended(ctx, running)
		if err != nil {
			return err
		}
		return c.systemctl(ctx, []string{"reset-failed"}, failed)
	case stops:
		return c.systemctl(ctx, []string{"stop"}, running)
	}
	return nil
}

// ended waits until none of units runs, and returns those that systemd says have failed: it is told of a kill
// after the fact.
func (c *Converger) ended(ctx context.Context, units []string) (failed []string, err error) {
	const tries, pause = 50, 100 * time.Millisecond
	for range tries {
		states, err := c.cfg.Units.States(ctx, units)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(units, func(name string) bool { return !states[name].Stopped() }) {
			return slices.DeleteFunc(slices.Clone(units), func(name string) bool { return states[name].Active != "failed" }), nil
		}
		select {
		case <-c.cfg.Clock.After(pause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return nil, refusal.New("the end of "+strings.Join(units, ", "), "it was killed, and runs", "look at it on the machine, then converge again")
}

// up are those of units that run.
func (c *Converger) up(ctx context.Context, units []string) ([]string, error) {
	states, err := c.cfg.Units.States(ctx, units)
	return slices.DeleteFunc(slices.Clone(units), func(name string) bool { return !states[name].Running() }), err
}

// restore puts f back in force as it was. It may be repeated.
func (c *Converger) restore(ctx context.Context, f front) error {
	m := methods()[f.Name]
	running, starts := f.pick()
	if err := c.systemctl(ctx, []string{"--quiet", "enable"}, starts); err != nil {
		return err
	}
	if m.tables {
		if err := c.loadTables(ctx, f); err != nil {
			return err
		}
	}
	if m.rules {
		if err := c.eachSaver(ctx, func(restore, now string) string { return restoreRules(f.Rules[restore], now) }); err != nil {
			return err
		}
	}
	if m.stops {
		if err := c.begin(ctx, m, f, running); err != nil {
			return err
		}
	}
	return c.commands(ctx, m.on, f)
}

// begin starts the units of f. Where that flushes iptables' rules, those of others come back.
func (c *Converger) begin(ctx context.Context, m method, f front, running []string) error {
	up, err := c.up(ctx, running)
	if err != nil || len(up) == len(running) {
		return err
	}
	before := map[string]string{}
	if m.flushing {
		if err := c.eachSaver(ctx, func(restore, now string) string { before[restore] = now; return "" }); err != nil {
			return err
		}
	}
	if err := c.systemctl(ctx, []string{"start"}, running); err != nil {
		return err
	}
	if len(m.ready) > 0 {
		if _, err := c.run(ctx, m.ready...); err != nil {
			return err
		}
	}
	if m.flushing {
		if err := c.eachSaver(ctx, func(restore, now string) string { return restoreAll(before[restore], now) }); err != nil {
			return err
		}
	}
	return c.systemctl(ctx, []string{"restart"}, f.Also)
}

// pick are the units of f that ran, and those that started at boot.
func (f front) pick() (running, starts []string) {
	for _, u := range f.Units {
		if u.Running {
			running = append(running, u.Name)
		}
		if enabled(u.File) {
			starts = append(starts, u.Name)
		}
	}
	return running, starts
}

// commands runs those whose program is there and whose unit ran.
func (c *Converger) commands(ctx context.Context, all []command, f front) error {
	running, _ := f.pick()
	for _, x := range all {
		if x.unit != "" && !slices.Contains(running, x.unit) || !c.installed(x.argv[0]) {
			continue
		}
		if _, err := c.run(ctx, x.argv...); err != nil {
			return err
		}
	}
	return nil
}

// systemctl runs systemctl for units, unless there are none.
func (c *Converger) systemctl(ctx context.Context, act, units []string) error {
	if len(units) == 0 {
		return nil
	}
	_, err := c.run(ctx, slices.Concat([]string{"systemctl"}, act, units)...)
	return err
}

// run runs a program outside the sandbox. One that fails is a refusal, with the end of its words.
func (c *Converger) run(ctx context.Context, argv ...string) (output string, err error) {
	ctx, cancel := context.WithTimeout(ctx, runBound)
	defer cancel()
	exit, output, err := c.cfg.Run.Run(ctx, unitName, argv)
	if err != nil {
		return "", err
	}
	if exit != 0 {
		words := strings.Join(strings.Fields(output), " ")
		return "", refusal.New("what a converge runs: "+strings.Join(argv, " "), report.Cut(fmt.Sprintf("it ended with %d: %s", exit, words), 500),
			"look at it on the machine, then converge again")
	}
	return output, nil
}

// saved is what save prints. It prints into a file: what Run returns is bounded.
func (c *Converger) saved(ctx context.Context, save string) (text string, err error) {
	path := filepath.Join(c.cfg.Scratch, unitName+"."+filepath.Base(save))
	defer func() { err = errors.Join(err, gone(os.Remove(path))) }()
	if _, err := c.run(ctx, save, "--file", path); err != nil {
		return "", err
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if info.Size() > mostSaved {
		return "", refusal.Newf("what "+save+" prints", "retire the front end by hand", "it has %d bytes, at most %d are kept", info.Size(), mostSaved)
	}
	b, err := os.ReadFile(path)
	return string(b), err
}

// gone is no error about what is not there.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// hand runs a program with a file of that text as its last argument.
func (c *Converger) hand(ctx context.Context, text string, argv ...string) (err error) {
	path := filepath.Join(c.cfg.Scratch, unitName+"."+filepath.Base(argv[0]))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, gone(os.Remove(path))) }()
	_, err = c.run(ctx, append(argv, path)...)
	return err
}

// takeOut takes a front end's rules out of the tables it shares.
func (c *Converger) takeOut(ctx context.Context) error {
	return c.eachSaver(ctx, func(restore, now string) string { return retireRules(now) })
}

// openPolicies has iptables' chains accept what meets no rule.
func (c *Converger) openPolicies(ctx context.Context) error {
	return c.eachSaver(ctx, func(restore, now string) string {
		var b strings.Builder
		for _, t := range parseSaved(now) {
			if opens := t.opens(); len(opens) > 0 {
				fmt.Fprintf(&b, "*%s\n", t.name)
				for _, chain := range opens {
					fmt.Fprintf(&b, ":%s ACCEPT [0:0]\n", chain)
				}
				b.WriteString("COMMIT\n")
			}
		}
		return b.String()
	})
}

// eachSaver changes the rules of both families in one transaction each, by what change makes of them.
func (c *Converger) eachSaver(ctx context.Context, change func(restore, now string) string) error {
	for _, s := range savers {
		if !c.installed(s.save) {
			continue
		}
		now, err := c.saved(ctx, s.save)
		if err != nil {
			return err
		}
		if text := change(s.restore, now); text != "" {
			if err := c.hand(ctx, text, s.restore, "--noflush"); err != nil {
				return err
			}
		}
	}
	return nil
}

// deleteTables deletes those that are there.
func (c *Converger) deleteTables(ctx context.Context, tables []string) error {
	if len(tables) == 0 {
		return nil
	}
	there, err := c.there(ctx, tables)
	if err != nil || len(there) == 0 {
		return err
	}
	return c.hand(ctx, deletions(there), "nft", "--file")
}

// there are those of tables that are in force.
func (c *Converger) there(ctx context.Context, tables []string) (there []string, err error) {
	rs, err := c.read(ctx)
	for _, t := range rs.Tables {
		if name := t.Family + " " + t.Name; slices.Contains(tables, name) {
			there = append(there, name)
		}
	}
	return there, err
}

func deletions(tables []string) string {
	var b bytes.Buffer
	for _, t := range tables {
		family, name, _ := strings.Cut(t, " ")
		fmt.Fprintf(&b, "delete table %s %s\n", family, name)
	}
	return b.String()
}

// loadTables loads what nftables.service did, but for its first line: that flushes everybody's rules.
func (c *Converger) loadTables(ctx context.Context, f front) error {
	there, err := c.there(ctx, f.Tables)
	if err != nil {
		return err
	}
	return c.hand(ctx, deletions(there)+withoutFlush(f.Text), "nft", "--file")
}

// withoutFlush is an nft file without the words that flush all tables.
func withoutFlush(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if w := strings.Fields(strings.TrimRight(strings.TrimSpace(line), "; ")); len(w) >= 2 && w[0] == "flush" && w[1] == "ruleset" {
			continue
		}
		b.WriteString(line)
	}
	return b.String()
}

// read reads all rule sets.
func (c *Converger) read(ctx context.Context) (foreign.Ruleset, error) {
	rs, err := c.cfg.Read(ctx, c.saveLegacy)
	if err != nil {
		return rs, err
	}
	rs.Served = foreign.Served(c.cfg.Files.Path())
	return rs, nil
}

// saveLegacy runs iptables-legacy-save, which needs what the agent's sandbox does not give.
func (c *Converger) saveLegacy(ctx context.Context, path string) ([]byte, error) {
	text, err := c.saved(ctx, path)
	return []byte(text), err
}
