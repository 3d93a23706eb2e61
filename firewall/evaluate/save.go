package evaluate

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"mesh/firewall/foreign"
)

// words asks a rule of legacy xtables, given in the words of iptables-save.
func (s *step) words() verdict {
	w := wordReader{words: s.l.Words}
	for w.more() {
		not := w.take("!")
		word := w.next()
		switch word {
		case "-j", "-g", "--jump", "--goto":
			v, _ := s.jump(w.next(), word == "-g" || word == "--goto", &w)
			return v
		}
		t, text := s.option(word, &w)
		if not {
			t, text = t.not(), "! "+text
		}
		if t == no {
			return verdict{}
		}
		s.add(t, func() string { return "xt " + text })
	}
	return verdict{}
}

type wordReader struct {
	words []string
	at    int
}

func (w *wordReader) more() bool { return w.at < len(w.words) }

func (w *wordReader) next() string {
	if !w.more() {
		return ""
	}
	w.at++
	return w.words[w.at-1]
}

func (w *wordReader) take(word string) bool {
	if w.more() && w.words[w.at] == word {
		w.at++
		return true
	}
	return false
}

// jump does what the target says; the rest of the words are its options.
func (s *step) jump(target string, leave bool, w *wordReader) (verdict, truth) {
	option := func(name string) string {
		if i := slices.Index(w.words, name); i >= 0 && i+1 < len(w.words) {
			return w.words[i+1]
		}
		return ""
	}
	switch {
	case target == "ACCEPT":
		return s.settled(verdict{code: verdictAccept})
	case target == "DROP":
		return s.settled(verdict{code: verdictDrop})
	case target == "RETURN":
		return s.settled(verdict{code: verdictReturn})
	case s.b.t.chains[target] != nil && leave:
		return s.settled(verdict{verdictGoto, target})
	case s.b.t.chains[target] != nil:
		return s.settled(verdict{verdictJump, target})
	case target == "DNAT" || target == "REDIRECT":
		if !s.applies() {
			return verdict{}, no
		}
		s.send(s.translated(target, option("--to-destination"), option("--to-ports")))
		return verdict{code: verdictAccept}, yes
	case target == "MARK" || target == "CONNMARK":
		if s.applies() {
			*map[bool]*value{true: &s.mark, false: &s.ctMark}[target == "MARK"] = unknownValue(4)
		}
		return verdict{}, yes
	case target == "NOTRACK", target == "CT" && slices.Contains(w.words, "--notrack"):
		s.skip = s.skip || s.applies()
		return verdict{}, yes
	case target == "CT":
		return verdict{}, yes
	}
	return s.target(target)
}

func (s *step) settled(v verdict) (verdict, truth) {
	if !s.applies() {
		return verdict{}, no
	}
	return v, yes
}

// translated is where a rule sends the packet.
func (s *step) translated(target, to, ports string) netip.AddrPort {
	a, port := s.to.Addr(), s.to.Port()
	if target == "REDIRECT" {
		a, to = s.own(), ":"+ports
	}
	if full, err := netip.ParseAddrPort(to); err == nil {
		return full
	}
	if host, rest, ok := strings.Cut(to, ":"); ok && strings.Count(to, ":") == 1 {
		if n, err := strconv.ParseUint(first(rest), 10, 16); err == nil {
			port = uint16(n)
		}
		to = host
	}
	if x, err := netip.ParseAddr(first(to)); err == nil {
		a = x
	}
	return netip.AddrPortFrom(a, port)
}

// first is where a range begins.
func first(of string) string { from, _, _ := strings.Cut(of, "-"); return from }

var protocolNumbers = map[string]uint8{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "icmp": unix.IPPROTO_ICMP, "icmpv6": unix.IPPROTO_ICMPV6,
	"ipv6-icmp": unix.IPPROTO_ICMPV6, "sctp": unix.IPPROTO_SCTP, "dccp": unix.IPPROTO_DCCP, "udplite": unix.IPPROTO_UDPLITE,
	"esp": unix.IPPROTO_ESP, "ah": unix.IPPROTO_AH, "gre": unix.IPPROTO_GRE, "igmp": unix.IPPROTO_IGMP, "vrrp": 112, "ospf": 89, "ipv6": 41, "ipip": 4}

// option asks one condition; its text is for where it is not known.
func (s *step) option(word string, w *wordReader) (truth, string) {
	switch word {
	case "-m", "--match":
		return yes, "-m " + w.next()
	case "--comment":
		return yes, "--comment " + w.next()
	case "--match-set":
		name, way := w.next(), w.next()
		m := setMatch{flags: map[bool]uint8{true: 1 << 1}[strings.HasPrefix(way, "src")]}
		if i := slices.IndexFunc(s.e.rs.IPSets, func(x foreign.IPSet) bool { return x.Name == name }); i >= 0 {
			m.set = &s.e.rs.IPSets[i]
		}
		return m.asks(s), "--match-set " + name + " " + way
	}
	if ask := s.options(word); ask != nil {
		argument := w.next()
		return ask(argument), word + " " + argument
	}
	// Not known: its arguments are what does not begin with a dash.
	text := word
	for w.more() && !strings.HasPrefix(w.words[w.at], "-") && w.words[w.at] != "!" {
		text += " " + w.next()
	}
	if strings.Contains(word, "limit") || strings.HasPrefix(word, "--hashlimit") {
		return above(strings.HasSuffix(word, "-above")), text
	}
	return perhaps, text
}

// options are those with one argument.
func (s *step) options(word string) func(string) truth {
	switch word {
	case "-p", "--protocol":
		return s.protocolIs
	case "-s", "--source":
		at, n := s.sourceAt()
		return func(arg string) truth { return inPrefix(part(s.ip, at, n), arg) }
	case "-d", "--destination":
		return func(arg string) truth { return inPrefix(s.address(s.to.Addr()), arg) }
	case "-i", "--in-interface":
		return func(arg string) truth { return linkIs(s.in, arg) }
	case "-o", "--out-interface":
		return func(arg string) truth {
			if s.unrouted() {
				return perhaps
			}
			return linkIs(s.out, arg)
		}
	case "--dport", "--dports", "--destination-port":
		return func(arg string) truth { return portsMatch{to: portRanges(arg)}.asks(s) }
	case "--sport", "--sports", "--source-port":
		return func(arg string) truth { return portsMatch{from: portRanges(arg)}.asks(s) }
	case "--ctstate", "--state":
		return func(arg string) truth { return stateMatch{mask: stateBits(arg), untracked: xtUntracked}.asks(s) }
	case "--icmp-type", "--icmpv6-type":
		return func(arg string) truth {
			n, err := strconv.ParseUint(first(strings.Split(arg, "/")[0]), 10, 8)
			if err != nil {
				return perhaps
			}
			return icmpMatch{kind: uint8(n), high: 255}.asks(s)
		}
	case "--dst-type":
		return func(arg string) truth {
			bits := map[string]uint16{"UNICAST": 1 << 1, "LOCAL": 1 << 2, "BROADCAST": 1 << 3, "ANYCAST": 1 << 4, "MULTICAST": 1 << 5}
			mask := uint16(0)
			for name := range strings.SplitSeq(arg, ",") {
				mask |= bits[name]
			}
			return addrType{target: mask}.asks(s)
		}
	}
	return nil
}

func (s *step) protocolIs(arg string) truth {
	n, known := protocolNumbers[arg]
	if x, err := strconv.ParseUint(arg, 10, 8); err == nil {
		n, known = uint8(x), true
	}
	switch {
	case arg == "all" || arg == "0":
		return yes
	case !known:
		return perhaps
	}
	return truthOf(n == s.p.Protocol)
}

func inPrefix(v value, arg string) truth {
	address, mask, _ := strings.Cut(arg, "/")
	if m, err := netip.ParseAddr(mask); err == nil { // as a mask, which need not be a prefix
		if a, err := netip.ParseAddr(address); err == nil && a.BitLen() == m.BitLen() && a.BitLen() == len(v.b)*8 {
			var wide [2][16]byte
			copy(wide[0][:], a.AsSlice())
			copy(wide[1][:], m.AsSlice())
			return masked(v, netip.AddrFrom16(wide[0]), netip.AddrFrom16(wide[1]))
		}
		return perhaps
	}
	p, err := netip.ParsePrefix(arg)
	if err != nil {
		a, errA := netip.ParseAddr(arg)
		if errA != nil {
			return perhaps
		}
		p = netip.PrefixFrom(a, a.BitLen())
	}
	if p.Addr().BitLen() != len(v.b)*8 {
		return no
	}
	if p.Bits() == 0 {
		return yes
	}
	return within(v, p.Masked().Addr().AsSlice(), lastOf(p.Masked()).AsSlice())
}

func linkIs(l *Link, arg string) truth {
	name := ""
	if l != nil {
		name = l.Name
	}
	if prefix, wild := strings.CutSuffix(arg, "+"); wild {
		return truthOf(strings.HasPrefix(name, prefix))
	}
	return truthOf(name == arg)
}

// portRanges reads "22,80:90".
func portRanges(arg string) (ranges [][2]uint16) {
	ranges = [][2]uint16{}
	for one := range strings.SplitSeq(arg, ",") {
		from, to, ranged := strings.Cut(one, ":")
		if !ranged {
			to = from
		}
		a, errA := strconv.ParseUint(from, 10, 16)
		b, errB := strconv.ParseUint(to, 10, 16)
		if from == "" {
			a, errA = 0, nil
		}
		if ranged && to == "" {
			b, errB = 65535, nil
		}
		if errA == nil && errB == nil {
			ranges = append(ranges, [2]uint16{uint16(a), uint16(b)})
		}
	}
	return ranges
}

func stateBits(arg string) (mask uint32) {
	bits := map[string]uint32{"INVALID": xtInvalid, "NEW": xtNew, "ESTABLISHED": 1 << 1, "RELATED": 1 << 2, "SNAT": 1 << 6, "DNAT": xtDNAT, "UNTRACKED": xtUntracked}
	for name := range strings.SplitSeq(arg, ",") {
		mask |= bits[name]
	}
	return mask
}
