package evaluate

import (
	"fmt"
	"net/netip"
	"strings"
)

func (m portsMatch) words() string {
	var words []string
	add := func(option string, ranges [][2]uint16, not bool) {
		if ranges == nil || len(ranges) == 1 && ranges[0] == [2]uint16{0, 65535} {
			return
		}
		var list []string
		for _, r := range ranges {
			one := fmt.Sprint(r[0])
			if r[0] != r[1] {
				one = fmt.Sprintf("%d:%d", r[0], r[1])
			}
			list = append(list, one)
		}
		if not {
			option = "! " + option
		}
		words = append(words, option+" "+strings.Join(list, ","))
	}
	if m.protocol != "" {
		words = append(words, "-m "+m.protocol)
	}
	add("--sport", m.from, m.notFrom)
	add("--dport", m.to, m.notTo)
	add("--port", m.any, m.notAny)
	if m.flagMask != 0 {
		words = append(words, fmt.Sprintf("--tcp-flags 0x%x 0x%x", m.flagMask, m.flagWant))
	}
	return strings.Join(words, " ")
}

func (m icmpMatch) words() string { return fmt.Sprintf("%s--icmp-type %d", bang(m.not), m.kind) }

func bang(not bool) string {
	if not {
		return "! "
	}
	return ""
}

func stateWords(mask uint32) string {
	var list []string
	for _, n := range []named{{xtInvalid, "INVALID"}, {xtNew, "NEW"}, {2, "ESTABLISHED"}, {4, "RELATED"}, {1 << 6, "SNAT"}, {xtDNAT, "DNAT"}, {xtUntracked, "UNTRACKED"}} {
		if mask&n.bit != 0 {
			list = append(list, n.name)
		}
	}
	return strings.Join(list, ",")
}

func (m stateMatch) words() string { return bang(m.not) + "--state " + stateWords(m.mask) }

func (m conntrackMatch) words() string {
	words := []string{}
	add := func(flag uint16, text string) {
		if m.flags&flag != 0 {
			words = append(words, bang(m.inverted&flag != 0)+text)
		}
	}
	add(ctState, "--ctstate "+stateWords(m.state))
	add(ctProto, fmt.Sprintf("--ctproto %d", m.protocol))
	add(ctOrigSrc, "--ctorigsrc "+kernelAddress(m.origin[0]))
	add(ctOrigDst, "--ctorigdst "+kernelAddress(m.target[0]))
	add(ctStatus, fmt.Sprintf("--ctstatus 0x%x", m.status))
	add(ctOrigSrcPort, fmt.Sprintf("--ctorigsrcport %d", m.fromLow))
	add(ctOrigDstPort, fmt.Sprintf("--ctorigdstport %d", m.low))
	if m.rest {
		words = append(words, "(more that is not known)")
	}
	if len(words) == 0 {
		return "-m conntrack"
	}
	return strings.Join(words, " ")
}

// kernelAddress is an address as xtables holds it: IPv4 in the first four of 16 bytes.
func kernelAddress(a netip.Addr) string {
	b := a.As16()
	if zero(b[4:]) {
		return netip.AddrFrom4([4]byte(b[:4])).String()
	}
	return a.String()
}

func (m addrType) words() string {
	kind := func(mask uint16) string {
		names := []string{"UNSPEC", "UNICAST", "LOCAL", "BROADCAST", "ANYCAST", "MULTICAST", "BLACKHOLE", "UNREACHABLE", "PROHIBIT"}
		var list []string
		for i, name := range names {
			if mask&(1<<i) != 0 {
				list = append(list, name)
			}
		}
		return strings.Join(list, ",")
	}
	var words []string
	if m.source != 0 {
		words = append(words, bang(m.notSource)+"--src-type "+kind(m.source))
	}
	if m.target != 0 {
		words = append(words, bang(m.notTarget)+"--dst-type "+kind(m.target))
	}
	return strings.Join(words, " ")
}

func (m addressRange) words() string {
	show := func(b [2][]byte) string {
		n := 16
		if zero(b[1][4:]) {
			n = 4
		}
		return showAddress(b[0][:n]) + "-" + showAddress(b[1][:n])
	}
	var words []string
	if m.flags&1 != 0 {
		words = append(words, bang(m.flags&16 != 0)+"--src-range "+show(m.from))
	}
	if m.flags&2 != 0 {
		words = append(words, bang(m.flags&32 != 0)+"--dst-range "+show(m.to))
	}
	return strings.Join(words, " ")
}

func (m markMatch) words() string {
	name := "mark"
	if m.connection {
		name = "connmark"
	}
	return fmt.Sprintf("-m %s %s--mark 0x%x/0x%x", name, bang(m.not), m.value, m.mask)
}

func (m packetType) words() string {
	name := fmt.Sprint(m.kind)
	if int(m.kind) < 4 {
		name = []string{"unicast", "broadcast", "multicast", "otherhost"}[m.kind]
	}
	return bang(m.not) + "--pkt-type " + name
}

func (m rpFilter) words() string { return "-m rpfilter" + map[bool]string{true: " --invert"}[m.not] }

func (m setMatch) words() string {
	name := "a set that is gone"
	if m.set != nil {
		name = m.set.Name
	}
	way := "dst"
	if m.flags&2 != 0 {
		way = "src"
	}
	return bang(m.flags&1 != 0) + "--match-set " + name + " " + way
}
