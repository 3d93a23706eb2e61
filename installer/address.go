package installer

import (
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"mesh/shared/credential"
	"mesh/shared/refusal"
)

// BusPort is where the bus is when nothing else is said: NATS's own port.
const BusPort = 4222

// parseAddresses reads host or host:port, each once; IPv6 addresses with or without brackets.
func parseAddresses(given []string) ([]string, error) {
	var all []string
	for _, g := range given {
		a, err := parseAddress(g)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	if len(all) == 0 {
		return nil, refusal.New("to make a mesh without an address", "the other machines would not find its bus", "name it as they reach it: --address "+strings.Join(append(ownAddresses(), "bus.example.com"), " or --address "))
	}
	return all, nil
}

func parseAddress(s string) (string, error) {
	bad := func(why string) error {
		return refusal.New("the address "+strconv.Quote(s), why, `write it as 192.0.2.1, bus.example.com:4222 or "[2001:db8::1]:4222"`)
	}
	host, port := s, strconv.Itoa(BusPort)
	if ip, err := netip.ParseAddr(strings.Trim(s, "[]")); err == nil {
		host = ip.String()
	} else if h, p, err := net.SplitHostPort(s); err == nil {
		host, port = h, p
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return "", bad("a port is a number from 1 to 65535")
	}
	ip, err := netip.ParseAddr(host)
	switch {
	case err == nil && (ip.IsUnspecified() || ip.IsMulticast()):
		return "", bad("nobody can connect to it")
	case err != nil && (host == "" || strings.ContainsAny(host, ":/[]@% \t\n\\\"'") || len(host) > 253):
		return "", bad("its host is neither a name nor an address")
	}
	return net.JoinHostPort(host, port), nil
}

// parseListen reads where the bus shall listen: port, :port or host:port. Empty is every address of the
// machine, at the port of the first address.
func parseListen(s string, addresses []string) (string, error) {
	if s == "" {
		_, port, err := net.SplitHostPort(addresses[0])
		return net.JoinHostPort("::", port), err
	}
	if _, err := strconv.ParseUint(s, 10, 16); err == nil {
		s = ":" + s
	}
	host, port, err := net.SplitHostPort(s)
	if n, e := strconv.ParseUint(port, 10, 16); err != nil || e != nil || n == 0 || strings.ContainsAny(host, " \t\n\\\"'") {
		return "", refusal.New("to listen at "+strconv.Quote(s), "it is no host:port", "write it as 4222, or 192.0.2.1:4222")
	}
	return net.JoinHostPort(firstOf(host, "::"), port), nil
}

// withoutIPv6 is where to listen on a kernel that has no IPv6, for a bus that listens everywhere.
func withoutIPv6(listen string) (string, bool) {
	host, port, err := net.SplitHostPort(listen)
	return net.JoinHostPort("0.0.0.0", port), err == nil && host == "::"
}

// ownAddresses are the machine's addresses that others may reach, to be proposed.
func ownAddresses() []string {
	all, _ := net.InterfaceAddrs() // proposals only
	var out []string
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.IsGlobalUnicast() && len(out) < 2 {
			out = append(out, n.IP.String())
		}
	}
	return out
}

// nearer puts the machine's own loopback first: the coordinator's machine must find the bus with the
// network down, and behind a router that does not lead its own address back.
func nearer(listen string) func(credential.Bus) credential.Bus {
	host, port, err := net.SplitHostPort(listen)
	return func(b credential.Bus) credential.Bus {
		ip, errIP := netip.ParseAddr(host)
		if err != nil || errIP != nil || !ip.IsUnspecified() {
			return b // it does not listen there
		}
		local := net.JoinHostPort("127.0.0.1", port)
		if !slices.Contains(b.Addresses, local) {
			b.Addresses = append([]string{local}, b.Addresses...)
		}
		return b
	}
}
