package foreign

import (
	"cmp"
	"slices"
	"strings"
)

// The kinds of owners.
const (
	kindMesh       = "mesh"
	kindFrontEnd   = "front end"
	kindRuntime    = "container runtime"
	kindHypervisor = "hypervisor"
	kindBans       = "bans"
	kindTunnel     = "tunnel"
	kindSharing    = "connection sharing"
	kindMapping    = "port mapping daemon"
	kindProgram    = "application firewall"
	kindBalancer   = "load balancer"
	kindKnocking   = "port knocking"
	kindUnknown    = "unknown"
)

// What becomes of a chain when the machine is converged (NET-9).
const (
	fateKeep   = "keep"           // it is mesh's
	fateRetire = "retire"         // its front end gives way
	fateLeave  = "leave"          // a runtime's, a ban, a tunnel
	fateName   = "leave and name" // stays in force, and nobody here can judge it
)

const (
	unknown    = "unknown"
	docker     = "docker"
	miniupnpd  = "miniupnpd"
	opensnitch = "opensnitch"
	service    = "nftables.service"
	persistent = "iptables-persistent"
	ferm       = "ferm"
	// Front ends that mesh does not know how to retire: they stay and are named.
	csf         = "csf"
	pveFirewall = "pve-firewall"
	fwbuilder   = "fwbuilder"
	vuurmuur    = "vuurmuur"
)

// kinds says what each owner is.
var kinds = map[string]string{
	"mesh": kindMesh,

	"apf-firewall": kindFrontEnd, "arno-iptables-firewall": kindFrontEnd, ferm: kindFrontEnd, "firehol": kindFrontEnd, "firewalld": kindFrontEnd,
	"foomuuri": kindFrontEnd, persistent: kindFrontEnd, service: kindFrontEnd, "pyroman": kindFrontEnd, "shorewall": kindFrontEnd,
	"ufw": kindFrontEnd, "uruk": kindFrontEnd,

	"CNI plugins": kindRuntime, "calico": kindRuntime, "cilium": kindRuntime, docker: kindRuntime, "flannel": kindRuntime, "incus": kindRuntime,
	"kube-proxy": kindRuntime, "kube-router": kindRuntime, "kubelet": kindRuntime, "lxc": kindRuntime, "lxd": kindRuntime,
	"antrea": kindRuntime, "istio": kindRuntime, "kindnet": kindRuntime, "ovn-kubernetes": kindRuntime, "podman (netavark)": kindRuntime, "weave": kindRuntime,

	"libvirt": kindHypervisor, "multipass": kindHypervisor, "neutron": kindHypervisor,
	"crowdsec": kindBans, "fail2ban": kindBans, "psad": kindBans, "sshguard": kindBans,
	"mullvad": kindTunnel, "netbird": kindTunnel, "nordvpn": kindTunnel, "tailscale": kindTunnel, "wg-quick": kindTunnel,
	"NetworkManager": kindSharing, "systemd-networkd": kindSharing,
	miniupnpd: kindMapping, opensnitch: kindProgram, "nftlb": kindBalancer, "keepalived": kindBalancer, "fwknop": kindKnocking,
}

func kindOf(owner string) string {
	if k, ok := kinds[owner]; ok {
		return k
	}
	return kindUnknown
}

func fateOf(kind string) string {
	switch kind {
	case kindMesh:
		return fateKeep
	case kindFrontEnd:
		return fateRetire
	case kindRuntime, kindHypervisor, kindBans, kindTunnel, kindSharing:
		return fateLeave
	}
	return fateName
}

// namedOwner says whose a name is. A pattern is a name, with at most one * for any letters and ? for
// a lower-case hexadecimal digit.
type namedOwner struct{ pattern, owner string }

// tableNames are tables that are one tool's whole.
var tableNames = []namedOwner{
	{"mesh", "mesh"}, {"mesh-boot", "mesh"}, {"mesh-trial", "mesh"}, {"mesh-handover", "mesh"},
	{"firewalld", "firewalld"}, {"firewalld_policy_*", "firewalld"}, {"foomuuri", "foomuuri"}, {"nftables_svc", service},
	{"proxmox-firewall*", pveFirewall},
	{"docker-bridges", docker}, {"netavark", "podman (netavark)"}, {"incus", "incus"}, {"lxd", "lxd"}, {"lxc", "lxc"}, {"cni_*", "CNI plugins"},
	{"kindnet*", "kindnet"}, {"kube-network-policies", "kindnet"}, {"ovn-kubernetes*", "ovn-kubernetes"},
	{"kube-proxy", "kube-proxy"}, {"flannel-ipv?", "flannel"}, {"calico", "calico"}, {"cilium*", "cilium"}, {"kube-router*", "kube-router"},
	{"libvirt_network", "libvirt"},
	{"wg-quick-*", "wg-quick"}, {"netbird*", "netbird"}, {"tailscale*", "tailscale"}, {"mullvad*", "mullvad"}, {"nordvpn*", "nordvpn"},
	{"f2b-*", "fail2ban"}, {"fail2ban*", "fail2ban"}, {"sshguard", "sshguard"}, {"crowdsec*", "crowdsec"},
	{"nm-shared-*", "NetworkManager"}, {"io.systemd.nat", "systemd-networkd"},
	{"miniupnpd*", miniupnpd}, {"nftlb", "nftlb"}, {"keepalived", "keepalived"}, {"opensnitch", opensnitch},
}

// chainNames are chains that tools put into tables they share with others.
var chainNames = []namedOwner{
	{"ufw-*", "ufw"}, {"ufw6-*", "ufw"},
	{"DOCKER", docker}, {"DOCKER-*", docker},
	{"NETAVARK*", "podman (netavark)"}, {"CNI-*", "CNI plugins"}, {"cni-br-iface-*", "CNI plugins"},
	{"LIBVIRT_*", "libvirt"},
	{"libvirt-*", "libvirt"}, {"FI-vnet*", "libvirt"}, {"FO-vnet*", "libvirt"}, {"FJ-vnet*", "libvirt"}, {"FP-vnet*", "libvirt"}, {"HI-vnet*", "libvirt"}, {"HJ-vnet*", "libvirt"},
	{"I-vnet*", "libvirt"}, {"O-vnet*", "libvirt"}, {"J-vnet*", "libvirt"}, {"P-vnet*", "libvirt"}, // its nwfilter
	{"neutron-*", "neutron"},
	{"KUBE-ROUTER-*", "kube-router"}, {"KUBE-NWPLCY-*", "kube-router"}, {"KUBE-POD-FW-*", "kube-router"},
	{"KUBE-FIREWALL", "kubelet"}, {"KUBE-KUBELET-CANARY", "kubelet"}, {"KUBE-*", "kube-proxy"},
	{"FLANNEL-*", "flannel"}, {"cali-*", "calico"}, {"CILIUM_*", "cilium"}, {"OLD_CILIUM_*", "cilium"},
	{"WEAVE*", "weave"}, {"ANTREA-*", "antrea"}, {"ISTIO_*", "istio"},
	{"ts-input", "tailscale"}, {"ts-forward", "tailscale"}, {"ts-postrouting", "tailscale"}, {"NETBIRD-*", "netbird"},
	{"f2b-*", "fail2ban"}, {"fail2ban-*", "fail2ban"}, {"sshguard", "sshguard"}, {"crowdsec*", "crowdsec"}, {"CROWDSEC*", "crowdsec"},
	{"PSAD_BLOCK_*", "psad"}, {"FWKNOP_*", "fwknop"}, {"FWSNORT_*", "fwsnort"}, {"nm-sh-*", "NetworkManager"},
	{"miniupnpd", miniupnpd}, {"*_miniupnpd", miniupnpd}, {"MINIUPNPD*", miniupnpd},
}

// signs are chains by which a front end that fills shared tables is known. Its other chains bear
// names of zones and interfaces.
var signs = []namedOwner{
	{"ufw-*", "ufw"}, {"ufw6-*", "ufw"},
	{"*_ZONES", "firewalld"}, {"*_ZONES_SOURCE", "firewalld"}, {"*_POLICIES_pre", "firewalld"}, {"*_direct", "firewalld"}, {"RFC3964_IPv4", "firewalld"},
	{"shorewall", "shorewall"}, {"logflags", "shorewall"}, {"smurfs", "shorewall"}, {"sfilter", "shorewall"}, {"net-fw", "shorewall"},
	{"fw-net", "shorewall"}, {"net-loc", "shorewall"},
	{"EXT_INPUT_CHAIN", "arno-iptables-firewall"}, {"HOST_BLOCK_*", "arno-iptables-firewall"}, {"POST_INPUT_DROP_CHAIN", "arno-iptables-firewall"},
	{"IN_SANITY", "apf-firewall"}, {"OUT_SANITY", "apf-firewall"}, {"PZERO", "apf-firewall"}, {"FRAG_UDP", "apf-firewall"},
	{"rfc4890", "pyroman"}, {"rfc4890f", "pyroman"},
	{"SMART_REJECT", "firehol"}, {"pr_*", "firehol"},
	{"LOCALINPUT", csf}, {"LOGDROPIN", csf}, {"DENYIN", csf}, {"PVEFW-*", pveFirewall},
	{"STATELESSINPUT", "uif"}, {"STATENOTNEW", "uif"}, {"In_RULE_*", fwbuilder}, {"Out_RULE_*", fwbuilder}, {"PRE-VRMR-*", vuurmuur}, {"ESTRELNFQUEUE", vuurmuur},
}

// hintOneSource is a rule that rejects all of one source address: inside ufw's chain for people's
// rules that is how fail2ban bans.
const hintOneSource = "one source"

// hintLink begins a hint that is only the name of a link: docker's bridges may have any.
const hintLink = "link "

// bridgesIn says whether the links that a chain speaks of are docker's bridges.
func bridgesIn(chain string) bool {
	return chain == "DOCKER" || strings.HasPrefix(chain, "DOCKER-") && chain != "DOCKER-USER"
}

// What in a rule points to an owner.
var (
	logPrefixes = []namedOwner{
		{"iptables: REASON=*", "uruk"}, {"ip6tables: REASON=*", "uruk"}, {"AIF:*", "arno-iptables-firewall"}, {"[UFW *", "ufw"}, {"Shorewall:*", "shorewall"},
		{"DROP UNMATCHED *", "firehol"}, {"IN-unknown:*", "firehol"}, {"OUT-unknown:*", "firehol"}, {"PASS-unknown:*", "firehol"},
	}
	setNames = []namedOwner{{"crowdsec*", "crowdsec"}, {"f2b-*", "fail2ban"}, {"fail2ban-*", "fail2ban"}, {"sshguard*", "sshguard"}, {"cali*", "calico"}, {"KUBE-*", "kube-proxy"}, {"DOCKER-*", docker}, {"addr-set-*", "fail2ban"}, {"addr6-set-*", "fail2ban"}}
	// comments are those of single rules in chains of others, by the tools that write one into each.
	comments = []namedOwner{{"generated for LXD network *", "lxd"}, {"generated for Incus network *", "incus"}, {"generated for Multipass network *", "multipass"},
		{"nm-shared-*", "NetworkManager"}, {"wg-quick(8) rule for *", "wg-quick"}}
	linkNames = []namedOwner{{"docker0", docker}, {"docker_gwbridge", docker}, {"br-????????????", docker}, {"virbr*", "libvirt"}, {"cni-podman*", "podman (netavark)"}, {"podman*", "podman (netavark)"}, {"wt0", "netbird"}}
)

// like says whether name is of the pattern.
func like(pattern, name string) bool {
	before, after, wild := strings.Cut(pattern, "*")
	if !wild {
		return len(name) == len(pattern) && each(pattern, name)
	}
	return len(name) >= len(before)+len(after) && each(before, name[:len(before)]) && each(after, name[len(name)-len(after):])
}

func each(pattern, part string) bool {
	for i := range len(pattern) {
		hex := part[i] >= '0' && part[i] <= '9' || part[i] >= 'a' && part[i] <= 'f'
		if pattern[i] != part[i] && (pattern[i] != '?' || !hex) {
			return false
		}
	}
	return true
}

func ownerIn(table []namedOwner, name string) string {
	for _, n := range table {
		if like(n.pattern, name) {
			return n.owner
		}
	}
	return ""
}

// world is what is known of all tables of one kind, nftables or legacy xtables.
type world struct {
	// plain owns tables of iptables that bear no front end's sign.
	plain string
	// fronts are the front ends with a sign in any table of a family, ip or ip6.
	fronts map[string][]string
	// signed are the tables with such a sign.
	signed []*Table
	// tools are owners of named chains in the tables of iptables, of both families together: a tool
	// writes single rules into tables where it has no chain.
	tools []string
	// bridges are those that docker's chains speak of.
	bridges []string
	// served are tables named in the file of nftables.service, as "inet filter".
	served []string
	// opensnitch says that its tables are there; they have everybody's names.
	opensnitch bool
}

func look(tables []Table, plain string, served []string) world {
	w := world{plain: plain, served: served, fronts: map[string][]string{}}
	for i := range tables {
		t := &tables[i]
		if t.Family == "ip" || t.Family == "ip6" {
			for _, f := range frontsIn(t) {
				w.fronts[t.Family] = addWord(w.fronts[t.Family], f)
				w.signed = append(w.signed, t)
			}
			if t.ofIPTables() {
				w.tools = addTools(w.tools, t)
				for _, c := range t.Chains {
					for _, link := range c.Bridges {
						w.bridges = addWord(w.bridges, link)
					}
				}
			}
		}
		if t.Family == "inet" && (t.Name == "nat" && t.chain("filter-prerouting") != nil || t.Name == "mangle" && t.queues()) {
			w.opensnitch = true
		}
	}
	return w
}

func addWord(list []string, word string) []string {
	if slices.Contains(list, word) {
		return list
	}
	return append(list, word)
}

func (t *Table) chain(name string) *Chain {
	i := slices.IndexFunc(t.Chains, func(c Chain) bool { return c.Name == name })
	if i < 0 {
		return nil
	}
	return &t.Chains[i]
}

// frontsIn are the front ends that have written into t. Empty chains are what a retired one leaves.
func frontsIn(t *Table) []string {
	var fronts []string
	for _, c := range t.Chains {
		if c.Rules == 0 {
			continue
		}
		if owner := ownerIn(signs, c.Name); owner != "" && !c.Base {
			fronts = addWord(fronts, owner)
		}
		if of, in := strings.CutPrefix(c.Name, "in_"); in && t.ofIPTables() && t.chain("out_"+of) != nil { // one pair for each interface and router
			fronts = addWord(fronts, "firehol")
		}
		for _, h := range c.Hints {
			if kindOf(h) == kindFrontEnd {
				fronts = addWord(fronts, h)
			}
		}
	}
	return fronts
}

// here is what is known of one table.
type here struct {
	w world
	t *Table
	// whole owns the table, or is empty.
	whole string
	// fronts are whose the unnamed rules are.
	fronts []string
	// tools are owners of named chains in it.
	tools []string
}

func (w world) at(t *Table) here {
	h := here{w: w, t: t, whole: ownerIn(tableNames, t.Name)}
	h.tools = addTools(nil, t)
	if h.whole != "" {
		return h
	}
	if h.fronts = frontsIn(t); len(h.fronts) > 0 {
		return h
	}
	switch {
	case slices.Contains(w.served, t.Family+" "+t.Name):
		h.fronts = []string{service}
	case t.Family == "inet" && w.opensnitch && slices.Contains([]string{"filter", "nat", "mangle"}, t.Name):
		h.fronts = []string{opensnitch}
	case t.Family == "inet" && t.Name == "filter" && t.hasBase("input", "forward", "output"):
		h.fronts = []string{service}
		if slices.Contains(h.tools, miniupnpd) && !t.refusesOutside("forward") {
			h.fronts = []string{miniupnpd}
		}
	case !t.ofIPTables():
		h.fronts = []string{unknown}
	case len(w.frontsOver(t)) > 0:
		h.fronts = w.frontsOver(t)
	case slices.Contains(h.tools, docker) && !h.administered():
		h.fronts = nil // its policy is docker's alone
	default:
		h.fronts = []string{w.plain}
	}
	return h
}

// frontsOver are the front ends that an unsigned table of iptables is counted to: those of its family, or those of
// the other, when the table only shuts its family off, or is the twin of one of theirs. A front end that is told to
// do without IPv6 shuts it off with policies and a few rules that bear no sign, and one that does both writes them
// alike; what is neither was written by somebody else.
func (w world) frontsOver(t *Table) (fronts []string) {
	if fronts = w.fronts[t.Family]; len(fronts) > 0 {
		return fronts
	}
	if t.shut() {
		return w.fronts[map[string]string{"ip": "ip6", "ip6": "ip"}[t.Family]]
	}
	for _, other := range w.signed {
		if t.twin(other) {
			for _, f := range frontsIn(other) {
				fronts = addWord(fronts, f)
			}
		}
	}
	return fronts
}

// twin says whether all chains of t that are nobody's by name, one at least, are in the table of that name of the
// other family too.
func (t *Table) twin(other *Table) bool {
	if t.Name != other.Name || t.Family == other.Family {
		return false
	}
	some := false
	for _, c := range t.Chains {
		if c.Base || ownerIn(chainNames, c.Name) != "" {
			continue
		}
		if other.chain(c.Name) == nil {
			return false
		}
		some = some || c.Rules > 0
	}
	return some
}

// mostOfShut is how many rules a chain of a family that is shut off has at most, besides those that refuse:
// for loopback, and for what is known already.
const mostOfShut = 2

// shut says whether t, with the built-in chains alone, lets nothing of its family in or through.
func (t *Table) shut() bool {
	for _, c := range t.Chains {
		others := c.Rules
		for _, a := range c.Acts {
			if a.refuses() {
				others -= a.Count
			}
		}
		if !c.Base || others > mostOfShut || (c.Hook == "input" || c.Hook == "forward") && c.Policy != "drop" && !slices.ContainsFunc(c.Acts, Act.refuses) {
			return false
		}
	}
	return len(t.Chains) > 0
}

// addTools adds the owners of named chains of t.
func addTools(tools []string, t *Table) []string {
	for _, c := range t.Chains {
		if owner := ownerIn(chainNames, c.Name); owner != "" {
			tools = addWord(tools, owner)
		}
	}
	return tools
}

func (t *Table) hasBase(names ...string) bool {
	return slices.ContainsFunc(t.Chains, func(c Chain) bool { return c.Base && slices.Contains(names, c.Name) })
}

// queues says whether t asks a program about packets.
func (t *Table) queues() bool {
	return slices.ContainsFunc(t.Chains, func(c Chain) bool {
		return slices.ContainsFunc(c.Acts, func(a Act) bool { return a.Word == "queue" })
	})
}

// refusesOutside says whether a base chain at another hook refuses.
func (t *Table) refusesOutside(hook string) bool {
	return slices.ContainsFunc(t.Chains, func(c Chain) bool {
		return c.Base && c.Hook != hook && (c.Policy == "drop" || slices.ContainsFunc(c.Acts, Act.refuses))
	})
}

// ofIPTables says whether t looks like one of iptables' own: published rule sets use its names of
// tables with names of chains that iptables cannot work with.
func (t *Table) ofIPTables() bool {
	if t.Family != "ip" && t.Family != "ip6" || !slices.Contains([]string{"filter", "nat", "mangle", "raw", "security"}, t.Name) {
		return false
	}
	builtin := []string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}
	return !slices.ContainsFunc(t.Chains, func(c Chain) bool { return c.Base && !slices.Contains(builtin, c.Name) })
}

// administered says whether somebody other than the tools refuses in the base chains, but for the
// policy of FORWARD.
func (h here) administered() bool {
	return h.t.refusesOutside("forward") || slices.ContainsFunc(h.t.Chains, func(c Chain) bool {
		return c.Base && slices.ContainsFunc(c.Acts, func(a Act) bool { return a.refuses() && h.tool(a.Hint) == "" })
	})
}

// tool is the owner a hint points to, when it is one that writes single rules into chains of others.
// A link's name is a hint only where the tool has chains beside.
func (h here) tool(hint string) string {
	if link, ok := strings.CutPrefix(hint, hintLink); ok {
		switch {
		case !h.t.ofIPTables():
		case slices.Contains(h.w.bridges, link):
			return docker
		case link == "lo" && h.t.Name == "raw" && slices.Contains(h.w.tools, docker):
			return docker // it guards what it publishes on loopback
		}
		return ""
	}
	switch {
	case hint == "" || hint == hintOneSource || kindOf(hint) == kindFrontEnd:
		return ""
	case kindOf(hint) == kindBans, slices.ContainsFunc(comments, func(n namedOwner) bool { return n.owner == hint }), slices.Contains(h.tools, hint), h.t.ofIPTables() && slices.Contains(h.w.tools, hint):
		return hint
	}
	return ""
}

// ownersOf says whose the refusals of c are: first of its policy, then of its rules.
func (h here) ownersOf(c *Chain) Words {
	if h.whole != "" {
		return Words{h.whole}
	}
	var owners Words
	named := ownerIn(chainNames, c.Name)
	switch {
	case !c.Base || c.Policy != "drop":
	case named != "":
		owners = Words{named}
	default:
		owners = append(owners, h.fronts...)
		if c.Hook == "forward" && slices.Contains(h.tools, docker) {
			owners = addWord(owners, docker) // dockerd sets it when it turns forwarding on
		}
	}
	for _, a := range c.Acts {
		if !a.refuses() {
			continue
		}
		for _, owner := range h.ownersOfRule(c, named, a) {
			owners = addWord(owners, owner)
		}
	}
	if len(owners) == 0 {
		owners = Words{cmp.Or(named, unknown)}
	}
	// Front ends come first: what gives way, then what stays.
	slices.SortStableFunc(owners, func(a, b string) int { return rank(a) - rank(b) })
	return owners
}

func rank(owner string) int {
	if kindOf(owner) == kindFrontEnd {
		return 0
	}
	return 1
}

func (h here) ownersOfRule(c *Chain, named string, a Act) []string {
	switch {
	case c.Name == "DOCKER-USER": // docker leaves it to people; bans come here too
		return []string{cmp.Or(h.tool(a.Hint), unknown)}
	case named == "ufw" && strings.HasSuffix(c.Name, "-user-input") && a.Hint == hintOneSource:
		return []string{named, "fail2ban"} // its ban, which goes with ufw all the same
	case named != "":
		return []string{named}
	case h.tool(a.Hint) != "":
		return []string{h.tool(a.Hint)}
	}
	return h.fronts
}
