package converge

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"mesh/agent/host/systemd"
	"mesh/firewall/foreign"
	"mesh/shared/report"
)

// prospect is a front end found in force, and what a converge can do about it.
type prospect struct {
	report.FrontEnd
	method method
	units  []unit
	// tables are those to be deleted, text is what nftables.service loads.
	text   string
	tables []string
	// kill: the service is killed.
	kill bool
}

// prospects are the front ends that refuse traffic now, sorted by name. An error of systemd's is no reason
// to say nothing of the rules: it stands in each one's Cannot.
func (c *Converger) prospects(ctx context.Context, rs foreign.Ruleset, judged foreign.Report) []prospect {
	var all []prospect
	known := methods()
	var units []string
	for _, name := range fronts(judged) {
		p := prospect{FrontEnd: report.FrontEnd{Name: name}, method: known[name]}
		p.How = p.method.how
		units = append(units, p.method.units...)
		all = append(all, p)
	}
	if len(all) == 0 {
		return nil
	}
	states, err := c.cfg.Units.States(ctx, units)
	for i := range all {
		p := &all[i]
		if err != nil {
			p.Cannot = fmt.Sprintf("systemd cannot be asked how its services are (%v)", err)
			continue
		}
		p.units, p.State = unitsOf(p.method, states)
		c.weigh(p, rs, judged)
	}
	return all
}

// fronts are the front ends among the owners of what refuses.
func fronts(judged foreign.Report) []string {
	var all []string
	for _, r := range slices.Concat(judged.Refusing, judged.Legacy) {
		for i, fate := range r.Fate {
			if fate == report.FateRetire && !slices.Contains(all, r.Owner[i]) {
				all = append(all, r.Owner[i])
			}
		}
	}
	slices.Sort(all)
	return all
}

// unitsOf are the units of m that the machine has, and how they are, in words.
func unitsOf(m method, states map[string]systemd.UnitState) (units []unit, words string) {
	var said []string
	for _, name := range m.units {
		s := states[name]
		if s.Load == "" || s.Load == "not-found" {
			continue
		}
		u := unit{Name: name, File: s.File, Running: s.Running()}
		units = append(units, u)
		how := "not running"
		if u.Running {
			how = "running"
		}
		if s.File != "" {
			how = s.File + ", " + how
		}
		said = append(said, name+" "+how)
	}
	return units, strings.Join(said, "; ")
}

// weigh says what keeps p from being retired, and what goes with it.
func (c *Converger) weigh(p *prospect, rs foreign.Ruleset, judged foreign.Report) {
	m := p.method
	switch {
	case m.how == "":
		p.Cannot = "mesh does not know how to switch it off: do that by hand"
	case len(p.units) == 0 && !c.hasProgram(m.off) && !(m.rules && c.hasRules()):
		p.Cannot = "neither its service nor its program is on this machine: what is in force was left behind, or made by hand"
	case m.flushes || p.Name == "ufw" && c.ufwFlushes() || p.Name == "firewalld" && ownsShared(judged, p.Name):
		if beside := besideIn(rs); beside != "" {
			p.Cannot = "its own way off removes the rules of " + beside + ", too: switch it off by hand, and restart " + beside
		}
	}
	switch {
	case p.Cannot != "":
	case m.tables:
		c.weighTables(p, rs)
	case m.kills && !ownsShared(judged, p.Name):
		p.kill = true
		for _, t := range rs.Tables {
			if t.Name == p.Name {
				p.tables = append(p.tables, t.Family+" "+t.Name)
			}
		}
	}
	p.Notes = c.notes(p, judged)
}

// weighTables finds the tables that go with nftables.service.
func (c *Converger) weighTables(p *prospect, rs foreign.Ruleset) {
	p.text = foreign.ServiceText(c.cfg.Files.Path())
	named := foreign.ServiceTables(p.text)
	for _, t := range rs.Tables {
		name := t.Family + " " + t.Name
		if !slices.Contains(named, name) {
			continue
		}
		others := ownersIn(rs, t.Family, t.Name)
		switch {
		case t.Name == "mesh":
		case t.XT || len(others) > 0:
			p.Notes = append(p.Notes, fmt.Sprintf("the table %s is shared with %s and stays", name, or(strings.Join(others, ", "), "iptables")))
		default:
			p.tables = append(p.tables, name)
		}
	}
	switch {
	case !slices.ContainsFunc(p.units, func(u unit) bool { return u.Running || enabled(u.File) }):
		p.Cannot = "nftables.service neither runs nor starts at boot: the tables were made by hand, or by a program that mesh does not know"
	case len(p.tables) == 0:
		p.Cannot = "no table in force is named in the file it loads: they were made by hand, or by a program that mesh does not know"
	}
}

func or(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// enabled says whether a unit of that state of its file starts at boot.
func enabled(file string) bool {
	return slices.Contains([]string{"enabled", "enabled-runtime", "generated"}, file)
}

// notes are what a person should know before p is retired.
func (c *Converger) notes(p *prospect, judged foreign.Report) []string {
	all := p.Notes
	for _, r := range judged.Refusing {
		if p.Name == "ufw" && strings.HasPrefix(r.Chain, "ufw") {
			for i, kind := range r.Kind {
				if kind == "bans" {
					all = append(all, fmt.Sprintf("the bans that %s made with its action for ufw go with it, while %s lists them as in force", r.Owner[i], r.Owner[i]))
				}
			}
		}
	}
	translates := func(says string, patterns ...string) {
		if slices.ContainsFunc(patterns, func(pattern string) bool { return c.translates(pattern) }) {
			all = append(all, says)
		}
	}
	switch p.Name {
	case "ufw":
		translates("its files translate addresses (nat), too; what they do of that ends", "/etc/ufw/before.rules", "/etc/ufw/before6.rules")
	case "iptables-persistent":
		translates("its files translate addresses (nat), too: that stays in force until the next boot, and is not loaded then", "/etc/iptables/rules.v4", "/etc/iptables/rules.v6")
	case "firewalld":
		translates("its zones masquerade or forward ports; that ends", "/etc/firewalld/zones/*.xml", "/etc/firewalld/policies/*.xml")
		all = append(all, "what it was told without --permanent does not come back with it")
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// translates says whether a file that fits the pattern is about address translation.
func (c *Converger) translates(pattern string) bool {
	files, _ := filepath.Glob(filepath.Join(c.cfg.Files.Path(), pattern)) // the patterns are ours
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		text := string(b)
		_, nat, _ := strings.Cut(text, "*nat")
		nat, _, _ = strings.Cut(nat, "COMMIT")
		if strings.Contains(nat, "\n-A ") || strings.Contains(text, "<masquerade") || strings.Contains(text, "<forward-port") {
			return true
		}
	}
	return false
}

// ufwFlushes says whether ufw takes all rules of the built-in chains for its own (/etc/default/ufw).
func (c *Converger) ufwFlushes() bool {
	b, err := c.cfg.Files.Read("/etc/default/ufw", mostCopied)
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		if k, v, _ := strings.Cut(strings.TrimSpace(line), "="); k == "MANAGE_BUILTINS" && strings.EqualFold(strings.Trim(v, `"'`), "yes") {
			return true
		}
	}
	return false
}

// ownsShared says whether a front end refuses in tables that it shares with others.
func ownsShared(judged foreign.Report, name string) bool {
	return slices.ContainsFunc(judged.Refusing, func(r foreign.Refusing) bool { return r.Table != name && slices.Contains(r.Owner, name) })
}

// besideIn names the tools that have something in iptables' tables and are left alone, or is empty.
func besideIn(rs foreign.Ruleset) string {
	var all []string
	for _, k := range foreign.Keeps(rs) {
		if (k.Family == "ip" || k.Family == "ip6") && slices.Contains([]string{"filter", "nat", "mangle", "raw", "security"}, k.Table) && !slices.Contains(all, k.Owner) {
			all = append(all, k.Owner)
		}
	}
	slices.Sort(all)
	return strings.Join(all, " and ")
}

func ownersIn(rs foreign.Ruleset, family, table string) (all []string) {
	for _, k := range foreign.Keeps(rs) {
		if k.Family == family && k.Table == table && !slices.Contains(all, k.Owner) {
			all = append(all, k.Owner)
		}
	}
	return all
}

// hasRules says whether iptables-persistent has something to load.
func (c *Converger) hasRules() bool {
	for _, name := range methods()["iptables-persistent"].files[:2] {
		if _, err := os.Stat(filepath.Join(c.cfg.Files.Path(), name)); err == nil {
			return true
		}
	}
	return false
}

func (c *Converger) hasProgram(all []command) bool {
	return slices.ContainsFunc(all, func(x command) bool { return c.installed(x.argv[0]) })
}

// programDirs are where programs of the distribution are.
var programDirs = [...]string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

func (c *Converger) installed(program string) bool {
	for _, dir := range programDirs {
		info, err := os.Stat(filepath.Join(c.cfg.Files.Path(), dir, program))
		if err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return true
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			continue
		}
	}
	return false
}
