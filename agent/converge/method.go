package converge

// method is how one front end is retired and put back (facts/firewall.md §8). What is in none of its fields
// is the same for all: its units are disabled, and enabled again where they were.
type method struct {
	units []string
	// stops: stopping its units retires it. The others' units are not stopped: nftables.service would flush
	// everybody's rules with that, and shorewall would close the machine.
	stops bool
	// off retires it and on puts it back, where the program is there.
	off, on []command
	// tables: the tables its file names are deleted, and loaded from that file.
	tables bool
	// rules: its rules are taken out of shared tables, and put back into them.
	rules bool
	// kills: its service is killed and its own tables are deleted, unless it has rules in shared tables. A stop
	// of firewalld 1.x flushes all of iptables' rules, and takes fail2ban with it.
	kills bool
	// flushing: its start flushes all of iptables' rules; those of others are put back after it.
	flushing bool
	// ready returns once it is started whole.
	ready []string
	// opens: the policies of iptables' chains go to accept after its own stop, which leaves some at drop.
	opens bool
	// flushes: its own way off removes the rules of others, too.
	flushes bool
	// files configure it.
	files []string
	// how says all that to a person.
	how string
}

// command is a program that is run when the unit was running before; always, when none is named.
type command struct {
	unit string
	argv []string
}

func always(argv ...string) command { return command{argv: argv} }

// methods are the front ends that mesh knows how to switch off, by the names of mesh/firewall/foreign.
func methods() map[string]method {
	const stop = "its service is stopped and disabled"
	return map[string]method{
		"ufw": {units: []string{"ufw.service"}, off: []command{always("ufw", "--force", "disable")}, on: []command{always("ufw", "--force", "enable")},
			files: []string{"/etc/ufw/ufw.conf", "/etc/default/ufw", "/etc/ufw/user.rules", "/etc/ufw/user6.rules", "/etc/ufw/before.rules", "/etc/ufw/before6.rules",
				"/etc/ufw/after.rules", "/etc/ufw/after6.rules"},
			how: `"ufw disable", and its service is disabled`},
		"firewalld": {units: []string{"firewalld.service"}, stops: true, kills: true, flushing: true, ready: []string{"firewall-cmd", "--state"},
			files: []string{"/etc/firewalld/firewalld.conf", "/etc/firewalld/direct.xml"},
			how:   "its service is disabled and ended without its own clean-up (that would flush iptables' rules), and its tables are deleted"},
		"foomuuri":               {units: []string{"foomuuri.service", "foomuuri-monitor.service"}, stops: true, how: stop},
		"ferm":                   {units: []string{"ferm.service"}, stops: true, files: []string{"/etc/ferm/ferm.conf"}, how: stop},
		"firehol":                {units: []string{"firehol.service"}, stops: true, files: []string{"/etc/firehol/firehol.conf"}, how: stop},
		"apf-firewall":           {units: []string{"apf-firewall.service"}, stops: true, flushes: true, how: stop},
		"uruk":                   {units: []string{"uruk.service"}, stops: true, flushes: true, files: []string{"/etc/uruk/rc"}, how: stop},
		"arno-iptables-firewall": {units: []string{"arno-iptables-firewall.service"}, stops: true, flushes: true, opens: true, how: stop + ", and the policies it leaves at drop go to accept"},
		"shorewall": {units: []string{"shorewall.service", "shorewall6.service"}, flushes: true,
			off: []command{{"shorewall.service", []string{"shorewall", "clear"}}, {"shorewall6.service", []string{"shorewall6", "clear"}}},
			on:  []command{{"shorewall.service", []string{"shorewall", "start"}}, {"shorewall6.service", []string{"shorewall6", "start"}}},
			how: `"shorewall clear" (its stop would close the machine), and its services are disabled`},
		"nftables.service": {units: []string{"nftables.service"}, tables: true, files: []string{"/etc/nftables.conf"},
			how: "its service is disabled and not stopped (that would flush everybody's rules), and the tables its file names are deleted"},
		"iptables-persistent": {units: []string{"netfilter-persistent.service"}, rules: true,
			files: []string{"/etc/iptables/rules.v4", "/etc/iptables/rules.v6", "/etc/default/netfilter-persistent"},
			how:   "its service is disabled, policies go to accept, and its rules are taken out of the shared chains one by one"},
	}
}
