package compose

import (
	"net"
	"net/netip"
	"slices"
	"strconv"

	"mesh/coordinator/records"
	"mesh/shared/rule"
)

// Host is the machine that the coordinator runs on, with the bus in it.
type Host struct {
	// MachineID is its /etc/machine-id: the node that was enrolled with it is this machine. "" is none.
	MachineID string
	// Listen is where the bus listens, host:port.
	Listen string
}

// openings are those of the bus. A packet filter sees the port that is listened on; a bus that listens on
// loopback alone is reached through something else on the machine, at the port of one of its addresses.
func (h Host) openings(addresses []string) []rule.Allow {
	named := []string{h.Listen}
	host, _, err := net.SplitHostPort(h.Listen)
	if ip, errIP := netip.ParseAddr(host); err != nil || host == "localhost" || errIP == nil && ip.IsLoopback() {
		named = addresses
	}
	var ports []uint16
	for _, a := range named {
		_, port, err := net.SplitHostPort(a)
		if n, errN := strconv.ParseUint(port, 10, 16); err == nil && errN == nil && n > 0 && !slices.Contains(ports, uint16(n)) {
			ports = append(ports, uint16(n))
		}
	}
	all := make([]rule.Allow, len(ports))
	for i, p := range ports {
		all[i] = rule.Allow{Owner: records.BusOwner, Port: rule.Port{First: p, Last: p, Protocol: "tcp"}, From: rule.Anywhere()}
	}
	slices.SortFunc(all, rule.Allow.Compare)
	return all
}
