package evaluate

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"mesh/firewall/foreign"
	"mesh/firewall/internal/nfnetlink"
)

// fragment is what a rule says in nft's words, of one of its expressions.
type fragment struct {
	at   int
	text string
}

// mostElements is how many elements of an unnamed set stand in a rule's text.
const mostElements = 8

// text is a rule in nft's words, as far as they are known: for people, never to be loaded.
func (e *Evaluator) text(t *table, l *foreign.Line) string {
	if l.Words != nil {
		return strings.Join(l.Words, " ")
	}
	var words []string
	for _, f := range e.fragments(t, l) {
		if f.text != "" {
			words = append(words, f.text)
		}
	}
	if len(words) == 0 {
		return "(a rule without a word)"
	}
	return strings.Join(words, " ")
}

// Text is the rule in nft's words.
func (e *Evaluator) Text(t *foreign.Table, l *foreign.Line) string {
	n := &table{Table: t, sets: map[string]*foreign.Set{}}
	for i := range t.Sets {
		n.sets[t.Sets[i].Name] = &t.Sets[i]
	}
	return e.text(n, l)
}

func (e *Evaluator) fragments(t *table, l *foreign.Line) []fragment {
	if f, ok := e.texts[l]; ok {
		return f
	}
	w := writer{t: t, rs: e.rs, six: t.Family == "ip6", regs: map[int]loaded{}}
	var list []fragment
	for i, x := range expressions(l.Expressions) {
		list = append(list, fragment{i, w.expression(x)})
	}
	for i := range list { // the protocol is said again by what follows
		if p, ok := strings.CutPrefix(list[i].text, "meta l4proto "); ok && slices.ContainsFunc(list[i+1:], func(f fragment) bool { return strings.HasPrefix(f.text, p+" ") }) {
			list[i].text = ""
		}
	}
	e.texts[l] = list
	return list
}

// loaded is what stands in a register: its name, how its values are written, and a mask.
type loaded struct {
	name string
	show func([]byte) string
	mask []byte
}

// writer writes the expressions of one rule.
type writer struct {
	t        *table
	rs       *foreign.Ruleset
	six      bool
	protocol uint8 // 0 when no condition says
	regs     map[int]loaded
}

func (w *writer) put(reg uint32, l loaded) {
	if at, ok := registerAt(reg); ok {
		w.regs[at] = l
	}
}

func (w *writer) get(reg uint32) loaded {
	at, _ := registerAt(reg)
	if l, ok := w.regs[at]; ok {
		return l
	}
	return loaded{name: "something", show: showHex}
}

func (w *writer) expression(x expression) string {
	switch x.name {
	case "meta":
		w.meta(x)
		if reg := x.number(unix.NFTA_META_SREG); reg != 0 {
			return "meta " + metaName(x.number(unix.NFTA_META_KEY)) + " set " + w.get(reg).name
		}
	case "ct":
		if reg := x.number(unix.NFTA_CT_SREG); reg != 0 {
			return ctName(x) + " set " + w.get(reg).name
		}
		key := x.number(unix.NFTA_CT_KEY)
		w.put(x.number(unix.NFTA_CT_DREG), loaded{name: ctName(x), show: ctShow(key)})
	case "payload":
		if x.number(unix.NFTA_PAYLOAD_SREG) != 0 {
			return "change the header"
		}
		w.put(x.number(unix.NFTA_PAYLOAD_DREG), w.header(x))
	case "fib":
		w.put(x.number(unix.NFTA_FIB_DREG), fibLoaded(x))
	case "bitwise":
		l := w.get(x.number(unix.NFTA_BITWISE_SREG))
		l.mask = x.value(unix.NFTA_BITWISE_MASK)
		w.put(x.number(unix.NFTA_BITWISE_DREG), l)
	case "byteorder":
		w.put(x.number(unix.NFTA_BYTEORDER_DREG), w.get(x.number(unix.NFTA_BYTEORDER_SREG)))
	case "exthdr":
		w.put(x.number(unix.NFTA_EXTHDR_DREG), loaded{name: "an option or extension header", show: showHex})
	case "cmp":
		return w.cmp(x)
	case "range":
		l := w.get(x.number(unix.NFTA_RANGE_SREG))
		op := ""
		if x.number(unix.NFTA_RANGE_OP) == unix.NFT_RANGE_NEQ {
			op = "!= "
		}
		return l.name + " " + op + l.show(x.value(unix.NFTA_RANGE_FROM_DATA)) + "-" + l.show(x.value(unix.NFTA_RANGE_TO_DATA))
	case "lookup":
		return w.lookup(x)
	case "immediate":
		return w.immediate(x)
	default:
		return w.act(x)
	}
	return ""
}

func (w *writer) act(x expression) string {
	switch x.name {
	case "counter", "last", "comment":
		return ""
	case "limit":
		unit := map[uint64]string{1: "second", 60: "minute", 3600: "hour", 86400: "day"}[nfnetlink.Number64(x.attribute(unix.NFTA_LIMIT_UNIT))]
		over := ""
		if x.number(unix.NFTA_LIMIT_FLAGS)&unix.NFT_LIMIT_F_INV != 0 {
			over = "over "
		}
		return fmt.Sprintf("limit rate %s%d/%s", over, nfnetlink.Number64(x.attribute(unix.NFTA_LIMIT_RATE)), unit)
	case "connlimit":
		over := ""
		if x.number(2)&1 != 0 {
			over = "over "
		}
		return fmt.Sprintf("ct count %s%d", over, x.number(1))
	case "log":
		if prefix := nfnetlink.Text(x.attribute(unix.NFTA_LOG_PREFIX)); prefix != "" {
			return fmt.Sprintf("log prefix %q", prefix)
		}
		return "log"
	case "reject":
		return "reject"
	case "queue":
		return fmt.Sprintf("queue num %d", be16(x.attribute(unix.NFTA_QUEUE_NUM)))
	case "nat":
		return w.nat(x)
	case "redir":
		words := "redirect"
		if reg := x.number(unix.NFTA_REDIR_REG_PROTO_MIN); reg != 0 {
			words += " to :" + w.get(reg).name
		}
		return words
	case "masq":
		return "masquerade"
	case "dynset":
		verb := map[uint32]string{0: "add", 1: "update", 2: "delete"}[x.number(unix.NFTA_DYNSET_OP)]
		return verb + " @" + nfnetlink.Text(x.attribute(unix.NFTA_DYNSET_SET_NAME)) + " { " + w.get(x.number(unix.NFTA_DYNSET_SREG_KEY)).name + " }"
	case "match":
		if m := decodeMatch(x, w.rs); m != nil {
			return m.words()
		}
		return "xt match " + nfnetlink.Text(x.attribute(unix.NFTA_MATCH_NAME))
	case "target":
		name := nfnetlink.Text(x.attribute(unix.NFTA_TARGET_NAME))
		if name == "DNAT" || name == "REDIRECT" {
			if to := translationOf(name, x.number(unix.NFTA_TARGET_REV), &blob{b: x.attribute(unix.NFTA_TARGET_INFO)}, w.six); to != "" {
				return name + " to " + to
			}
		}
		return "xt target " + name
	case "numgen", "hash", "osf", "rt", "socket", "xfrm":
		w.computed(x)
		return ""
	}
	return x.name
}

// computed notes what an expression loads that is known by its name alone.
func (w *writer) computed(x expression) {
	for typ, v := range nfnetlink.Attributes(x.data) {
		if _, ok := registerAt(nfnetlink.Number(v)); ok && typ <= 2 {
			w.put(nfnetlink.Number(v), loaded{name: x.name, show: showHex})
		}
	}
}

func (w *writer) nat(x expression) string {
	words := "snat"
	if x.number(unix.NFTA_NAT_TYPE) == unix.NFT_NAT_DNAT {
		words = "dnat"
	}
	to := ""
	if reg := x.number(unix.NFTA_NAT_REG_ADDR_MIN); reg != 0 {
		to = w.get(reg).name
		if b, err := hex.DecodeString(strings.TrimPrefix(to, "0x")); err == nil {
			to = showAddress(b)
		}
	}
	if reg := x.number(unix.NFTA_NAT_REG_PROTO_MIN); reg != 0 {
		port := w.get(reg).name
		if b, err := hex.DecodeString(strings.TrimPrefix(port, "0x")); err == nil {
			port = showBig(b)
		}
		to += ":" + port
	}
	if to != "" {
		words += " to " + to
	}
	return words
}

func (w *writer) immediate(x expression) string {
	data := x.attribute(unix.NFTA_IMMEDIATE_DATA)
	reg := x.number(unix.NFTA_IMMEDIATE_DREG)
	if reg != unix.NFT_REG_VERDICT {
		w.put(reg, loaded{name: showHex(attribute(data, unix.NFTA_DATA_VALUE)), show: showHex})
		return ""
	}
	v, known := decodeVerdict(attribute(data, unix.NFTA_DATA_VERDICT))
	if !known {
		return "a verdict that is not known"
	}
	return verdictWords(v)
}

func verdictWords(v verdict) string {
	switch v.code {
	case verdictAccept:
		return "accept"
	case verdictDrop:
		return "drop"
	case verdictReturn:
		return "return"
	case verdictJump:
		return "jump " + v.chain
	case verdictGoto:
		return "goto " + v.chain
	}
	if v.chain == queueChain {
		return "queue"
	}
	return "continue"
}

func (w *writer) cmp(x expression) string {
	l, data := w.get(x.number(unix.NFTA_CMP_SREG)), x.value(unix.NFTA_CMP_DATA)
	op := map[uint32]string{unix.NFT_CMP_NEQ: "!= ", unix.NFT_CMP_LT: "< ", unix.NFT_CMP_LTE: "<= ", unix.NFT_CMP_GT: "> ", unix.NFT_CMP_GTE: ">= "}[x.number(unix.NFTA_CMP_OP)]
	if (l.name == "meta l4proto" || l.name == "ip protocol" || l.name == "ip6 nexthdr") && op == "" && len(data) == 1 {
		w.protocol = data[0]
	}
	switch {
	case l.name == "meta nfproto": // nft adds it by itself
		if op == "" && len(data) == 1 {
			w.six = data[0] == unix.NFPROTO_IPV6
		}
		return ""
	case l.mask == nil:
		return l.name + " " + op + l.show(data)
	case (l.name == "ct state" || l.name == "ct status") && zero(data): // any of the bits
		if op == "!= " {
			return l.name + " " + l.show(l.mask)
		}
		return "! " + l.name + " " + l.show(l.mask)
	}
	if bits, ok := prefixBits(l.mask); ok && (len(data) == 4 || len(data) == 16) && strings.HasSuffix(l.name, "addr") {
		return fmt.Sprintf("%s %s%s/%d", l.name, op, showAddress(data), bits)
	}
	return fmt.Sprintf("%s & %s %s%s", l.name, showHex(l.mask), op, showHex(data))
}

func zero(b []byte) bool { return strings.Trim(string(b), "\x00") == "" }

func prefixBits(mask []byte) (bits int, ok bool) {
	for i, b := range mask {
		for bit := range 8 {
			if b&(0x80>>bit) != 0 {
				if bits != i*8+bit {
					return 0, false
				}
				bits++
			}
		}
	}
	return bits, true
}

func (w *writer) lookup(x expression) string {
	name := nfnetlink.Text(x.attribute(unix.NFTA_LOOKUP_SET))
	reg := x.number(unix.NFTA_LOOKUP_SREG)
	l := w.get(reg)
	set := w.t.sets[name]
	words := l.name
	if set != nil && set.KeyLen > 4 { // several parts, one register after the other
		at, _ := registerAt(reg)
		for next := at + 4; next < at+set.KeyLen; next += 4 {
			if more, ok := w.regs[next]; ok {
				words += " . " + more.name
			}
		}
	}
	op := " "
	if x.number(unix.NFTA_LOOKUP_FLAGS)&unix.NFT_LOOKUP_F_INV != 0 {
		op = " != "
	}
	if to := x.attribute(unix.NFTA_LOOKUP_DREG); to != nil {
		if nfnetlink.Number(to) == unix.NFT_REG_VERDICT {
			return words + " vmap @" + name
		}
		w.put(nfnetlink.Number(to), loaded{name: words + " map @" + name, show: showHex})
		return ""
	}
	if strings.HasPrefix(name, "__") && set != nil {
		return words + op + elementsOf(set, l.show)
	}
	return words + op + "@" + name
}

// elementsOf is a set without a name, in braces.
func elementsOf(set *foreign.Set, show func([]byte) string) string {
	var list []string
	ends := 0
	for _, e := range set.Elements {
		if len(list) == mostElements {
			list = append(list, "…")
			break
		}
		if e.End {
			ends++
			continue
		}
		list = append(list, show(e.Key))
	}
	if set.Interval && ends > 0 {
		return "{ ranges from " + strings.Join(list, ", ") + " }"
	}
	return "{ " + strings.Join(list, ", ") + " }"
}

var metaNames = map[uint32]string{unix.NFT_META_LEN: "length", unix.NFT_META_PROTOCOL: "protocol", unix.NFT_META_PRIORITY: "priority", unix.NFT_META_MARK: "mark",
	unix.NFT_META_IIF: "iif", unix.NFT_META_OIF: "oif", unix.NFT_META_IIFNAME: "iifname", unix.NFT_META_OIFNAME: "oifname", unix.NFT_META_IIFTYPE: "iiftype",
	unix.NFT_META_OIFTYPE: "oiftype", unix.NFT_META_SKUID: "skuid", unix.NFT_META_SKGID: "skgid", unix.NFT_META_NFTRACE: "nftrace", unix.NFT_META_NFPROTO: "nfproto",
	unix.NFT_META_L4PROTO: "l4proto", unix.NFT_META_PKTTYPE: "pkttype", unix.NFT_META_CPU: "cpu", unix.NFT_META_IIFGROUP: "iifgroup",
	unix.NFT_META_OIFGROUP: "oifgroup", unix.NFT_META_CGROUP: "cgroup", unix.NFT_META_PRANDOM: "random", metaSecpath: "secpath", metaIIFKind: "iifkind"}

func metaName(key uint32) string {
	if name, ok := metaNames[key]; ok {
		return name
	}
	return fmt.Sprintf("key %d", key)
}

func (w *writer) meta(x expression) {
	key := x.number(unix.NFTA_META_KEY)
	l := loaded{name: "meta " + metaName(key), show: showNative}
	switch key {
	case unix.NFT_META_IIFNAME, unix.NFT_META_OIFNAME:
		l = loaded{name: metaName(key), show: showName}
	case unix.NFT_META_L4PROTO, unix.NFT_META_NFPROTO, unix.NFT_META_PKTTYPE:
		l.show = showProtocol
	case unix.NFT_META_MARK, unix.NFT_META_PROTOCOL:
		l.show = showHex
	}
	w.put(x.number(unix.NFTA_META_DREG), l)
}

var ctNames = map[uint32]string{unix.NFT_CT_STATE: "state", unix.NFT_CT_DIRECTION: "direction", unix.NFT_CT_STATUS: "status", unix.NFT_CT_MARK: "mark",
	unix.NFT_CT_EXPIRATION: "expiration", unix.NFT_CT_HELPER: "helper", unix.NFT_CT_L3PROTOCOL: "l3proto", unix.NFT_CT_SRC: "saddr", unix.NFT_CT_DST: "daddr",
	unix.NFT_CT_PROTOCOL: "protocol", unix.NFT_CT_PROTO_SRC: "proto-src", unix.NFT_CT_PROTO_DST: "proto-dst", unix.NFT_CT_SRC_IP: "ip saddr", unix.NFT_CT_DST_IP: "ip daddr",
	unix.NFT_CT_SRC_IP6: "ip6 saddr", unix.NFT_CT_DST_IP6: "ip6 daddr", unix.NFT_CT_ZONE: "zone", unix.NFT_CT_LABELS: "label"}

func ctName(x expression) string {
	name, ok := ctNames[x.number(unix.NFTA_CT_KEY)]
	if !ok {
		name = fmt.Sprintf("key %d", x.number(unix.NFTA_CT_KEY))
	}
	if d := x.attribute(unix.NFTA_CT_DIRECTION); len(d) == 1 {
		name = []string{"original ", "reply "}[d[0]&1] + name
	}
	return "ct " + name
}

func ctShow(key uint32) func([]byte) string {
	switch key {
	case unix.NFT_CT_STATE:
		return showBits([]named{{1, "invalid"}, {2, "established"}, {4, "related"}, {8, "new"}, {64, "untracked"}})
	case unix.NFT_CT_STATUS:
		return showBits([]named{{1, "expected"}, {2, "seen-reply"}, {4, "assured"}, {8, "confirmed"}, {16, "snat"}, {32, "dnat"}, {512, "dying"}})
	case unix.NFT_CT_PROTO_SRC, unix.NFT_CT_PROTO_DST:
		return showBig
	case unix.NFT_CT_SRC, unix.NFT_CT_DST, unix.NFT_CT_SRC_IP, unix.NFT_CT_DST_IP, unix.NFT_CT_SRC_IP6, unix.NFT_CT_DST_IP6:
		return showAddress
	}
	return showHex
}

// header names a part of a header.
func (w *writer) header(x expression) loaded {
	base, at, n := x.number(unix.NFTA_PAYLOAD_BASE), x.number(unix.NFTA_PAYLOAD_OFFSET), x.number(unix.NFTA_PAYLOAD_LEN)
	key := [2]uint32{at, n}
	switch base {
	case unix.NFT_PAYLOAD_NETWORK_HEADER:
		switch {
		case at == 12 && n <= 4:
			return loaded{name: "ip saddr", show: showAddress}
		case at == 16 && n <= 4 && !w.six:
			return loaded{name: "ip daddr", show: showAddress}
		case at == 8 && n > 4:
			return loaded{name: "ip6 saddr", show: showAddress}
		case at == 24:
			return loaded{name: "ip6 daddr", show: showAddress}
		case key == [2]uint32{9, 1}:
			return loaded{name: "ip protocol", show: showProtocol}
		case key == [2]uint32{6, 1}:
			return loaded{name: "ip6 nexthdr", show: showProtocol}
		}
	case unix.NFT_PAYLOAD_TRANSPORT_HEADER:
		name := map[uint8]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp", unix.IPPROTO_SCTP: "sctp", unix.IPPROTO_DCCP: "dccp"}[w.protocol]
		if name == "" {
			name = "th"
		}
		switch {
		case w.protocol == unix.IPPROTO_ICMP && key == [2]uint32{0, 1}:
			return loaded{name: "icmp type", show: showBig}
		case w.protocol == unix.IPPROTO_ICMPV6 && key == [2]uint32{0, 1}:
			return loaded{name: "icmpv6 type", show: showBig}
		case key == [2]uint32{0, 2}:
			return loaded{name: name + " sport", show: showBig}
		case key == [2]uint32{2, 2}:
			return loaded{name: name + " dport", show: showBig}
		case key == [2]uint32{0, 4}:
			return loaded{name: name + " sport and dport", show: func(b []byte) string {
				if len(b) != 4 {
					return showHex(b)
				}
				return showBig(b[:2]) + " and " + showBig(b[2:])
			}}
		case w.protocol == unix.IPPROTO_TCP && key == [2]uint32{13, 1}:
			return loaded{name: "tcp flags", show: showHex}
		}
	}
	return loaded{name: fmt.Sprintf("@%s,%d,%d", map[uint32]string{0: "ll", 1: "nh", 2: "th"}[base], at*8, n*8), show: showHex}
}

func fibLoaded(x expression) loaded {
	flags := x.number(unix.NFTA_FIB_FLAGS)
	var parts []string
	for _, f := range []struct {
		bit  uint32
		name string
	}{{unix.NFTA_FIB_F_SADDR, "saddr"}, {unix.NFTA_FIB_F_DADDR, "daddr"}, {unix.NFTA_FIB_F_MARK, "mark"}, {unix.NFTA_FIB_F_IIF, "iif"}, {unix.NFTA_FIB_F_OIF, "oif"}} {
		if flags&f.bit != 0 {
			parts = append(parts, f.name)
		}
	}
	l := loaded{name: "fib " + strings.Join(parts, " . "), show: showNative}
	switch x.number(unix.NFTA_FIB_RESULT) {
	case unix.NFT_FIB_RESULT_ADDRTYPE:
		l.name += " type"
		l.show = func(b []byte) string {
			if len(b) != 4 {
				return showHex(b)
			}
			n := binary.NativeEndian.Uint32(b)
			if name := map[uint32]string{1: "unicast", 2: "local", 3: "broadcast", 4: "anycast", 5: "multicast", 6: "blackhole"}[n]; name != "" {
				return name
			}
			return fmt.Sprint(n)
		}
	case unix.NFT_FIB_RESULT_OIFNAME:
		l.name += " oifname"
		l.show = showName
	default:
		l.name += " oif"
		if flags&unix.NFTA_FIB_F_PRESENT != 0 {
			l.show = func(b []byte) string {
				if zero(b) {
					return "missing"
				}
				return "exists"
			}
		}
	}
	return l
}
