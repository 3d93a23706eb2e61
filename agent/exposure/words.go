package exposure

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"mesh/firewall"
	"mesh/firewall/evaluate"
)

// ours says that a place is in mesh's own table, or in one that stands in for it or is tried beside it.
func ours(p evaluate.Place) bool {
	return p.Family == "inet" && (p.Table == firewall.TableName || strings.HasPrefix(p.Table, firewall.TableName+"-"))
}

// decides is the place that let a packet in at last: mesh's, where mesh filters, or else the last rule
// that said so; nil when only policies did.
func decides(a evaluate.Answer) *evaluate.Place {
	var last *evaluate.Place
	for i := range a.Passed {
		p := &a.Passed[i]
		if p.Hook != evaluate.Input && p.Hook != evaluate.Forward {
			continue
		}
		if ours(*p) {
			return p
		}
		if !strings.HasPrefix(p.Rule, "policy ") {
			last = p
		}
	}
	return last
}

// byWords names what decides in one line.
func byWords(a evaluate.Answer) string {
	switch {
	case a.Verdict == evaluate.Depends:
		var all []string
		for _, c := range a.On {
			all = append(all, strings.TrimPrefix(c.What, "xt ")+", in "+chainWords(c.Place))
		}
		if len(all) == 0 {
			return "more than could be followed"
		}
		return strings.Join(all, "; ")
	case a.By != nil && a.Verdict == evaluate.Refused:
		return placeWords(*a.By)
	}
	if p := decides(a); p != nil {
		return placeWords(*p)
	}
	return "no rule refuses it"
}

// placeWords is a rule or policy, and whose it is: mesh's in the manifest's words.
func placeWords(p evaluate.Place) string {
	switch {
	case p.Kernel:
		return p.Rule
	case ours(p) && p.Chain == "refuse":
		return "mesh, for nothing declares it"
	case ours(p) && p.Comment != "":
		return "mesh: " + p.Comment
	case strings.HasPrefix(p.Rule, "policy "):
		return "the " + p.Rule + " of " + chainWords(p)
	}
	return fmt.Sprintf("`%s` in %s", p.Rule, chainWords(p))
}

// chainWords is a chain, and whose it is.
func chainWords(p evaluate.Place) string {
	words := p.Family + " " + p.Table + " " + p.Chain
	if p.Legacy {
		words += " of legacy xtables"
	}
	if len(p.Owner) > 0 && p.Owner[0] != "unknown" {
		return words + ", " + strings.Join(p.Owner, " and ") + "'s"
	}
	return words
}

// do is what a person does about an answer; empty for nothing. ask is "8080/tcp".
func (m *Machine) do(a evaluate.Answer, ask string, from netip.Addr) string {
	if a.Verdict == evaluate.Depends {
		return "look at the rule, and try it: from another machine, reach " + ask
	}
	if a.Verdict != evaluate.Refused || a.By == nil {
		return ""
	}
	p := *a.By
	address := "ADDRESS"
	if from.IsValid() {
		address = from.String()
	}
	switch owner := ownerOf(p); {
	case p.Kernel && strings.Contains(p.Rule, "forwards no"):
		return "a container runtime turns forwarding on when it starts; by hand: sysctl net.ipv4.ip_forward=1"
	case p.Kernel:
		return "look at the routes: ip route get " + a.To.Addr().String()
	case ours(p):
		return "declare it: firewall.allow in the manifest of its module, then push; for people: mesh-coordinator node set NODE admin=…"
	case owner == "ufw":
		return "let ufw let it in too: ufw allow " + ask + "; or hand the packet filter to mesh: mesh-coordinator node converge NODE"
	case owner == "firewalld":
		return "let firewalld let it in too: firewall-cmd --add-port=" + ask + " --permanent, then --reload; or hand the packet filter to mesh: mesh-coordinator node converge NODE"
	case owner == "fail2ban":
		return "lift the ban: fail2ban-client unban " + address
	case owner == "crowdsec":
		return "lift the ban: cscli decisions delete --ip " + address
	case owner == "sshguard", owner == "psad":
		return "it is a ban of " + owner + ", which ends by itself; what is banned: mesh-agent bans"
	case owner == "docker" || strings.HasPrefix(owner, "podman"):
		return "publish the port of the container (-p), or see which network it is on; " + owner + " keeps containers apart from the rest"
	case slices.Contains(m.retiring(), owner):
		return "let " + owner + " let it in too, or hand the packet filter to mesh: mesh-coordinator node converge NODE"
	}
	if p.Legacy {
		return "look at it: iptables-legacy -vnL " + p.Chain
	}
	return fmt.Sprintf("look at it: nft list chain %s %s %s", p.Family, p.Table, p.Chain)
}

func ownerOf(p evaluate.Place) string {
	switch {
	case len(p.Owner) == 0:
		return ""
	case slices.Contains(p.Owner, "fail2ban"): // inside ufw's chain
		return "fail2ban"
	}
	return p.Owner[0]
}
