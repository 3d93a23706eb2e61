package foreign

import (
	"bytes"
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"

	"mesh/firewall/internal/nfnetlink"
)

// Verdict codes of linux/netfilter.h and linux/netfilter/nf_tables.h. The upper bits of the first
// ones carry an errno or a queue's number.
const (
	verdictDrop   = 0
	verdictAccept = 1
	verdictQueue  = 3
)

// facts are what one rule's expressions say, as far as it matters. It is used again for the next
// rule; the slices of bytes point into the message.
type facts struct {
	acts    []Act
	unknown []string
	xt      bool
	xtSet   bool                // an ipset is asked
	ipset   uint16              // its number
	ipsets  func(uint16) string // names of them, where they can be asked for; nil otherwise
	links   [][]byte
	sets    [][]byte
	prefix  []byte // of a log
	comment []byte

	// What the register loaded last is compared with.
	link, source bool
	// matches counts conditions; sources those of them that are one source address.
	matches, sources int
}

// harmless are expressions that neither refuse nor lead anywhere and whose content is not looked at.
var harmless = []string{"bitwise", "byteorder", "connlimit", "counter", "ct", "dup", "dynset", "exthdr", "fib", "flow_offload", "fwd",
	"hash", "inner", "last", "limit", "masq", "nat", "notrack", "numgen", "objref", "osf", "quota", "range", "redir", "rt", "socket",
	"synproxy", "tproxy", "tunnel", "xfrm"}

// conditions are those of them that decide whether the rule applies.
var conditions = []string{"bitwise", "connlimit", "ct", "exthdr", "fib", "limit", "osf", "quota", "range", "rt", "socket", "xfrm"}

func (f *facts) read(expressions []byte) {
	*f = facts{ipsets: f.ipsets, acts: f.acts[:0], unknown: f.unknown[:0], links: f.links[:0], sets: f.sets[:0]}
	for _, item := range nfnetlink.Attributes(expressions) {
		var name, data []byte
		for typ, v := range nfnetlink.Attributes(item) {
			switch typ {
			case unix.NFTA_EXPR_NAME:
				name = nfnetlink.Chars(v)
			case unix.NFTA_EXPR_DATA:
				data = v
			}
		}
		f.expression(name, data)
	}
}

func (f *facts) expression(name, data []byte) {
	switch string(name) {
	case "immediate":
		f.immediate(data)
	case "lookup":
		f.lookup(data)
	case "meta", "payload":
		f.load(string(name), data)
	case "cmp":
		f.compare(data)
	case "reject":
		f.acts = append(f.acts, Act{Word: "reject"})
	case "queue":
		f.acts = append(f.acts, Act{Word: "queue"})
	case "log":
		for typ, v := range nfnetlink.Attributes(data) {
			if typ == unix.NFTA_LOG_PREFIX {
				f.prefix = nfnetlink.Chars(v)
			}
		}
	case "match":
		f.xtMatch(data)
	case "target":
		f.xtTarget(data)
	default:
		switch {
		case slices.Contains(conditions, string(name)):
			f.matches++
		case !slices.Contains(harmless, string(name)):
			f.unknown = append(f.unknown, "the expression "+string(name))
		}
	}
}

func (f *facts) immediate(data []byte) {
	verdict := false
	var value []byte
	for typ, v := range nfnetlink.Attributes(data) {
		switch typ {
		case unix.NFTA_IMMEDIATE_DREG:
			verdict = nfnetlink.Number(v) == unix.NFT_REG_VERDICT
		case unix.NFTA_IMMEDIATE_DATA:
			value = v
		}
	}
	if !verdict {
		return
	}
	act, known := verdictIn(value)
	if !known {
		f.unknown = append(f.unknown, "a verdict")
	}
	if act != (Act{}) {
		f.acts = append(f.acts, act)
	}
}

// verdictIn reads nested data that holds a verdict. Accepting, returning and going on are no act.
func verdictIn(data []byte) (act Act, known bool) {
	for typ, v := range nfnetlink.Attributes(data) {
		if typ != unix.NFTA_DATA_VERDICT {
			continue
		}
		code, chain := int32(-1<<31), []byte(nil)
		for typ, v := range nfnetlink.Attributes(v) {
			switch typ {
			case unix.NFTA_VERDICT_CODE:
				if len(v) == 4 {
					code = int32(nfnetlink.Number(v))
				}
			case unix.NFTA_VERDICT_CHAIN:
				chain = nfnetlink.Chars(v)
			}
		}
		switch code {
		case unix.NFT_JUMP, unix.NFT_GOTO:
			return Act{Chain: string(chain)}, true
		case unix.NFT_RETURN, unix.NFT_CONTINUE, unix.NFT_BREAK, verdictAccept:
			return Act{}, true
		}
		if code >= 0 {
			switch code & 0xff {
			case verdictDrop:
				return Act{Word: "drop"}, true
			case verdictQueue:
				return Act{Word: "queue"}, true
			}
		}
		return Act{}, false
	}
	return Act{}, false
}

func (f *facts) lookup(data []byte) {
	var set []byte
	verdict := false
	for typ, v := range nfnetlink.Attributes(data) {
		switch typ {
		case unix.NFTA_LOOKUP_SET:
			set = nfnetlink.Chars(v)
		case unix.NFTA_LOOKUP_DREG:
			verdict = nfnetlink.Number(v) == unix.NFT_REG_VERDICT
		}
	}
	if verdict {
		f.acts = append(f.acts, Act{Map: string(set)})
		return
	}
	f.matches++
	f.sets = append(f.sets, set)
}

// load remembers whether what is compared next is the name of a link, or the source address.
func (f *facts) load(name string, data []byte) {
	f.link, f.source = false, false
	var a [5]uint32
	for typ, v := range nfnetlink.Attributes(data) {
		if int(typ) < len(a) {
			a[typ] = nfnetlink.Number(v)
		}
	}
	if name == "meta" {
		key := a[unix.NFTA_META_KEY]
		f.link = key == unix.NFT_META_IIFNAME || key == unix.NFT_META_OIFNAME
		return
	}
	at := [2]uint32{a[unix.NFTA_PAYLOAD_OFFSET], a[unix.NFTA_PAYLOAD_LEN]}
	f.source = a[unix.NFTA_PAYLOAD_BASE] == unix.NFT_PAYLOAD_NETWORK_HEADER && (at == [2]uint32{12, 4} || at == [2]uint32{8, 16})
}

func (f *facts) compare(data []byte) {
	f.matches++
	var op uint32
	var value []byte
	for typ, v := range nfnetlink.Attributes(data) {
		switch typ {
		case unix.NFTA_CMP_OP:
			op = nfnetlink.Number(v)
		case unix.NFTA_CMP_DATA:
			for typ, v := range nfnetlink.Attributes(v) {
				if typ == unix.NFTA_DATA_VALUE {
					value = v
				}
			}
		}
	}
	switch {
	case f.link: // or any other: docker refuses what did not come over its bridge
		f.links = append(f.links, nfnetlink.Chars(value))
	case op != unix.NFT_CMP_EQ:
	case f.source:
		f.sources++
	}
	f.link, f.source = false, false
}

// xtParts are the name and content of an xtables match or target.
func xtParts(data []byte) (name string, info []byte) {
	for typ, v := range nfnetlink.Attributes(data) {
		switch typ {
		case unix.NFTA_MATCH_NAME: // as NFTA_TARGET_NAME
			name = nfnetlink.Text(v)
		case unix.NFTA_MATCH_INFO:
			info = v
		}
	}
	return name, info
}

func (f *facts) xtMatch(data []byte) {
	f.xt = true
	switch name, info := xtParts(data); name {
	case "comment":
		f.comment = nfnetlink.Chars(info)
	case "set":
		f.matches++
		f.xtSet = true
		if len(info) >= 2 {
			f.ipset = binary.NativeEndian.Uint16(info)
		}
	default:
		f.matches++
	}
}

// refusingTargets are the xtables targets that refuse, or hand the packet to a program that may.
var refusingTargets = []string{"REJECT", "TARPIT", "NFQUEUE", "QUEUE", "DELUDE", "CHAOS", "STEAL"}

func (f *facts) xtTarget(data []byte) {
	f.xt = true
	name, info := xtParts(data)
	switch {
	case slices.Contains(refusingTargets, name):
		f.acts = append(f.acts, Act{Word: "xt " + name})
	case name == "standard" && len(info) >= 4: // ebtables: a verdict as a number
		if v := int32(binary.NativeEndian.Uint32(info)); v == -2 {
			f.acts = append(f.acts, Act{Word: "drop"})
		}
	case name == "LOG" && len(info) > 2: // level, flags, prefix
		f.prefix = nfnetlink.Chars(info[2:])
	case (name == "NFLOG" || name == "nflog") && len(info) > 16: // four numbers before the prefix
		f.prefix = nfnetlink.Chars(info[min(len(info), 16):])
	}
}

// hint is the owner something in the rule points to, or empty.
func (f *facts) hint() string {
	refuses := slices.ContainsFunc(f.acts, Act.refuses)
	switch {
	case bytes.HasPrefix(f.comment, []byte("cali:")):
		return "calico"
	case bytes.HasPrefix(f.comment, []byte("cilium-feeder:")):
		return "cilium"
	case hintOf(comments, bytes.TrimRight(f.comment, "\x00")) != "":
		return hintOf(comments, bytes.TrimRight(f.comment, "\x00"))
	case f.xtSet && refuses && f.hintOfSet() != "":
		return f.hintOfSet()
	case f.sources == 1 && f.matches == 1 && slices.ContainsFunc(f.acts, func(a Act) bool { return a.Word == "reject" || a.Word == "xt REJECT" }):
		return hintOneSource
	}
	if h := hintOf(logPrefixes, f.prefix); h != "" {
		return h
	}
	for _, set := range f.sets {
		if h := hintOf(setNames, set); h != "" {
			return h
		}
	}
	for _, link := range f.links {
		if h := hintOf(linkNames, link); h != "" {
			return h
		}
	}
	if refuses && len(f.links) > 0 {
		return hintLink + string(f.links[0])
	}
	return ""
}

// hintOfSet is whose a refusal by an ipset is: by its name, or, where that cannot be asked for, by how it
// refuses. A set of a name that says nothing is the administrator's.
func (f *facts) hintOfSet() string {
	name := ""
	if f.ipsets != nil {
		name = f.ipsets(f.ipset)
	}
	switch {
	case name != "":
		return hintOf(setNames, []byte(name))
	case slices.ContainsFunc(f.acts, func(a Act) bool { return a.Word == "drop" }):
		return "crowdsec"
	}
	return "fail2ban" // its ipset actions reject
}

func hintOf(table []namedOwner, name []byte) string {
	if len(name) == 0 {
		return ""
	}
	for _, n := range table {
		if like(n.pattern, string(name)) {
			return n.owner
		}
	}
	return ""
}
