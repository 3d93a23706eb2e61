package firewall

import (
	"bytes"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"mesh/firewall/internal/nfnetlink"
)

// Why the messages are not google/nftables': see nfnetlink. Its names of types and user data are used.

// Flags of a table (linux/netfilter/nf_tables.h). An owned table takes orders from the socket that
// made it only; with persist it outlives that socket.
const (
	tableOwner   = 0x2
	tablePersist = 0x4
)

const (
	attrTableFlags = 2        // NFTA_TABLE_FLAGS
	attrTableOwner = 7        // NFTA_TABLE_OWNER
	attrSetExpr    = 17       // NFTA_SET_EXPR
	maxElements    = 48 << 10 // bytes of them in one message: an attribute ends at 64 KiB
	counterName    = "counter"
)

// wire writes the messages of nf_tables that make mesh's table.
type wire struct {
	nfnetlink.Buffer
	buffer []byte // used again for each rule
}

func (w *wire) newTable(name string, flags uint32) {
	w.Nft(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, unix.NFPROTO_INET)
	w.Str(unix.NFTA_TABLE_NAME, name)
	w.U32(attrTableFlags, flags)
	w.Finish()
}

// simple is a message about a table, or a named thing in it: all carry the table as attribute 1, and
// their own name as attribute 2, but for chains.
func (w *wire) simple(typ uint16, table, name string) {
	w.Nft(typ, 0, unix.NFPROTO_INET)
	w.Str(1, table)
	switch {
	case name == "":
	case typ == unix.NFT_MSG_DELCHAIN:
		w.Str(unix.NFTA_CHAIN_NAME, name)
	default:
		w.Str(2, name)
	}
	w.Finish()
}

func (s set) flags() uint32 {
	if s.interval {
		return unix.NFT_SET_INTERVAL
	}
	return 0
}

// userData tells nft how to print the set; each entry is a type, a length and a number.
func (s set) userData() []byte {
	order := uint32(2) // big endian
	if s.kind.native {
		order = 1
	}
	out := append([]byte{0, 4}, native(order)...)
	if s.merge {
		out = append(append(out, 2, 4), native(1)...)
	}
	return out
}

func (w *wire) newSet(table string, s set, id uint32) {
	w.Nft(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, unix.NFPROTO_INET)
	w.Str(unix.NFTA_SET_TABLE, table)
	w.Str(unix.NFTA_SET_NAME, s.name)
	w.U32(unix.NFTA_SET_FLAGS, s.flags())
	w.U32(unix.NFTA_SET_KEY_TYPE, s.kind.key)
	w.U32(unix.NFTA_SET_KEY_LEN, s.kind.size)
	w.U32(unix.NFTA_SET_ID, id)
	w.Bytes(unix.NFTA_SET_USERDATA, s.userData())
	if s.counted {
		at := w.Open(attrSetExpr)
		w.Str(unix.NFTA_EXPR_NAME, counterName)
		w.Shut(w.Open(unix.NFTA_EXPR_DATA))
		w.Shut(at)
	}
	w.Finish()
}

// entry is one element as the kernel holds it: a range is a key where it begins and one where the
// next begins, marked as an end.
type entry struct {
	key   []byte
	end   bool
	words string // its comment; not read where the set does not count
}

func (s set) entries() []entry {
	out := make([]entry, 0, 2*len(s.elements))
	for _, e := range s.elements {
		out = append(out, entry{key: e.first, words: e.words})
		if !s.interval {
			continue
		}
		if next, overflow := successor(e.last); !overflow {
			out = append(out, entry{key: next, end: true})
		}
	}
	return out
}

func successor(key []byte) (next []byte, overflow bool) {
	next = bytes.Clone(key)
	for i := len(next) - 1; i >= 0; i-- {
		next[i]++
		if next[i] != 0 {
			return next, false
		}
	}
	return next, true
}

// predecessor is the key before; the least has none.
func predecessor(key []byte) []byte {
	before := bytes.Clone(key)
	for i := len(before) - 1; i >= 0; i-- {
		before[i]--
		if before[i] != 0xff {
			break
		}
	}
	return before
}

func (w *wire) newElements(table string, s set, elements []element) {
	w.elements(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, table, s, elements)
}

func (w *wire) delElements(table string, s set, elements []element) {
	w.elements(unix.NFT_MSG_DELSETELEM, 0, table, s, elements)
}

func (w *wire) elements(typ, flags uint16, table string, s set, all []element) {
	for len(all) > 0 {
		w.Nft(typ, flags, unix.NFPROTO_INET)
		w.Str(unix.NFTA_SET_ELEM_LIST_TABLE, table)
		w.Str(unix.NFTA_SET_ELEM_LIST_SET, s.name)
		list := w.Open(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		for len(all) > 0 && len(w.B)-list < maxElements {
			e := &all[0]
			all = all[1:]
			words := ""
			if s.counted && typ == unix.NFT_MSG_NEWSETELEM {
				words = e.words
			}
			w.element(e.first, false, words)
			if !s.interval {
				continue
			}
			if next, overflow := successor(e.last); !overflow { // a range up to the greatest key has no end
				w.element(next, true, "")
			}
		}
		w.Shut(list)
		w.Finish()
	}
}

func (w *wire) element(key []byte, end bool, words string) {
	at := w.Open(unix.NFTA_LIST_ELEM)
	if end {
		w.U32(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END)
	}
	w.Value(unix.NFTA_SET_ELEM_KEY, key)
	if words != "" {
		w.buffer = userdata.AppendString(w.buffer[:0], userdata.TypeComment, words) // an element's comment has the number of a rule's
		w.Bytes(unix.NFTA_SET_ELEM_USERDATA, w.buffer)
	}
	w.Shut(at)
}

// objectCounter is NFT_OBJECT_COUNTER.
const objectCounter = 1

// newCounter makes a counter that is not there; one that is keeps its count.
func (w *wire) newCounter(table, name string) {
	w.Nft(unix.NFT_MSG_NEWOBJ, unix.NLM_F_CREATE, unix.NFPROTO_INET)
	w.Str(unix.NFTA_OBJ_TABLE, table)
	w.Str(unix.NFTA_OBJ_NAME, name)
	w.U32(unix.NFTA_OBJ_TYPE, objectCounter)
	w.Shut(w.Open(unix.NFTA_OBJ_DATA))
	w.Finish()
}

// delCounter removes a counter that no rule names any more.
func (w *wire) delCounter(table, name string) {
	w.Nft(unix.NFT_MSG_DELOBJ, 0, unix.NFPROTO_INET)
	w.Str(unix.NFTA_OBJ_TABLE, table)
	w.Str(unix.NFTA_OBJ_NAME, name)
	w.U32(unix.NFTA_OBJ_TYPE, objectCounter)
	w.Finish()
}

func (w *wire) newChain(table string, c chain) {
	w.Nft(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, unix.NFPROTO_INET)
	w.Str(unix.NFTA_CHAIN_TABLE, table)
	w.Str(unix.NFTA_CHAIN_NAME, c.name)
	if c.hook != hookNone {
		at := w.Open(unix.NFTA_CHAIN_HOOK)
		w.U32(unix.NFTA_HOOK_HOOKNUM, c.hook.number())
		w.U32(unix.NFTA_HOOK_PRIORITY, priority)
		w.Shut(at)
		w.U32(unix.NFTA_CHAIN_POLICY, uint32(nftables.ChainPolicyAccept))
		w.Str(unix.NFTA_CHAIN_TYPE, filterType)
	}
	w.Finish()
}

func (w *wire) newRule(table, chain string, l line) {
	w.Nft(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, unix.NFPROTO_INET)
	w.Str(unix.NFTA_RULE_TABLE, table)
	w.Str(unix.NFTA_RULE_CHAIN, chain)
	at := w.Open(unix.NFTA_RULE_EXPRESSIONS)
	w.expressions(l)
	w.Shut(at)
	if l.comment != "" {
		w.buffer = l.appendUserData(w.buffer[:0])
		w.Bytes(unix.NFTA_RULE_USERDATA, w.buffer)
	}
	w.Finish()
}

// appendUserData adds what nft keeps with a rule: its comment, as a type, a length and a text that ends in 0.
func (l line) appendUserData(b []byte) []byte {
	if l.comment == "" {
		return b
	}
	return userdata.AppendString(b, userdata.TypeComment, l.comment)
}

func (w *wire) expressions(l line) {
	for _, t := range l.match {
		w.term(t)
	}
	if l.limit != nil {
		w.expression("limit", func() {
			w.U64(unix.NFTA_LIMIT_RATE, l.limit.rate)
			w.U64(unix.NFTA_LIMIT_UNIT, l.limit.unit)
			w.U32(unix.NFTA_LIMIT_BURST, l.limit.burst)
			w.U32(unix.NFTA_LIMIT_TYPE, unix.NFT_LIMIT_PKTS)
		})
	}
	if l.log != "" {
		w.expression("log", func() {
			w.Bytes(unix.NFTA_LOG_GROUP, []byte{0, LogGroup})
			w.Str(unix.NFTA_LOG_PREFIX, l.log)
		})
	}
	if l.counter != "" {
		w.expression("objref", func() {
			w.U32(unix.NFTA_OBJREF_IMM_TYPE, objectCounter)
			w.Str(unix.NFTA_OBJREF_IMM_NAME, l.counter)
		})
	}
	if l.verdict.word != "" {
		w.expression("immediate", func() {
			w.U32(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
			data := w.Open(unix.NFTA_IMMEDIATE_DATA)
			at := w.Open(unix.NFTA_DATA_VERDICT)
			w.U32(unix.NFTA_VERDICT_CODE, uint32(l.verdict.code))
			if l.verdict.chain != "" {
				w.Str(unix.NFTA_VERDICT_CHAIN, l.verdict.chain)
			}
			w.Shut(at)
			w.Shut(data)
		})
	}
}

func (w *wire) expression(name string, data func()) {
	at := w.Open(unix.NFTA_LIST_ELEM)
	w.Str(unix.NFTA_EXPR_NAME, name)
	inner := w.Open(unix.NFTA_EXPR_DATA)
	data()
	w.Shut(inner)
	w.Shut(at)
}

func (w *wire) term(t term) {
	at := uint32(0)
	for _, l := range t.loads {
		w.load(l, register(at))
		at += (l.size + 3) &^ 3
	}
	if t.mask != nil {
		w.expression("bitwise", func() {
			w.U32(unix.NFTA_BITWISE_SREG, unix.NFT_REG_1)
			w.U32(unix.NFTA_BITWISE_DREG, unix.NFT_REG_1)
			w.U32(unix.NFTA_BITWISE_LEN, uint32(len(t.mask)))
			w.Value(unix.NFTA_BITWISE_MASK, t.mask)
			w.Value(unix.NFTA_BITWISE_XOR, make([]byte, len(t.mask)))
		})
	}
	if t.set != "" {
		w.expression("lookup", func() {
			w.Str(unix.NFTA_LOOKUP_SET, t.set)
			w.U32(unix.NFTA_LOOKUP_SREG, unix.NFT_REG_1)
			if t.not {
				w.U32(unix.NFTA_LOOKUP_FLAGS, unix.NFT_LOOKUP_F_INV)
			}
		})
		return
	}
	switch {
	case t.last != nil:
		w.compare(unix.NFT_CMP_GTE, t.value)
		w.compare(unix.NFT_CMP_LTE, t.last)
	case t.not:
		w.compare(unix.NFT_CMP_NEQ, t.value)
	default:
		w.compare(unix.NFT_CMP_EQ, t.value)
	}
}

// register is the one that begins at the byte at. Those of 16 bytes have numbers of their own, which the
// kernel lists where they fit.
func register(at uint32) uint32 {
	if at%16 == 0 {
		return unix.NFT_REG_1 + at/16
	}
	return unix.NFT_REG32_00 + at/4
}

func (w *wire) compare(op uint32, value []byte) {
	w.expression("cmp", func() {
		w.U32(unix.NFTA_CMP_SREG, unix.NFT_REG_1)
		w.U32(unix.NFTA_CMP_OP, op)
		w.Value(unix.NFTA_CMP_DATA, value)
	})
}

func (w *wire) load(l load, register uint32) {
	switch l.kind {
	case loadMeta:
		w.expression("meta", func() {
			w.U32(unix.NFTA_META_KEY, l.key)
			w.U32(unix.NFTA_META_DREG, register)
		})
	case loadCT:
		w.expression("ct", func() {
			w.U32(unix.NFTA_CT_KEY, l.key)
			w.U32(unix.NFTA_CT_DREG, register)
			if l.directed {
				w.Bytes(unix.NFTA_CT_DIRECTION, []byte{0})
			}
		})
	case loadPayload:
		w.expression("payload", func() {
			w.U32(unix.NFTA_PAYLOAD_DREG, register)
			w.U32(unix.NFTA_PAYLOAD_BASE, l.key)
			w.U32(unix.NFTA_PAYLOAD_OFFSET, l.offset)
			w.U32(unix.NFTA_PAYLOAD_LEN, l.size)
		})
	}
}
