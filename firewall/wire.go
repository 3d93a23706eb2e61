package firewall

import (
	"bytes"
	"encoding/binary"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// The messages of nf_tables are written here rather than by google/nftables, whose v0.3.0 asks for
// an echo of every rule (5 to 9 times the time), cuts long element lists, and cannot set a table's
// owner. Its names of types and user data are used.

// Flags of a table (linux/netfilter/nf_tables.h). An owned table takes orders from the socket that
// made it only; with persist it outlives that socket.
const (
	tableOwner   = 0x2
	tablePersist = 0x4
)

const (
	attrTableFlags  = 2    // NFTA_TABLE_FLAGS
	attrTableOwner  = 7    // NFTA_TABLE_OWNER
	maxElements     = 1000 // per message: an attribute ends at 64 KiB
	nested          = unix.NLA_F_NESTED
	setInterval     = unix.NFT_SET_INTERVAL
	batchGeneration = unix.NFNL_BATCH_GENID
)

// wire is a buffer of netlink messages.
type wire struct {
	b   []byte
	seq uint32
	msg int // where the newest message begins
}

// message begins one; close ends it.
func (w *wire) message(typ uint16, flags uint16, family byte, resource uint16) {
	w.seq++
	w.msg = len(w.b)
	w.b = append(w.b, 0, 0, 0, 0)
	w.b = binary.NativeEndian.AppendUint16(w.b, typ)
	w.b = binary.NativeEndian.AppendUint16(w.b, unix.NLM_F_REQUEST|flags)
	w.b = binary.NativeEndian.AppendUint32(w.b, w.seq)
	w.b = append(w.b, 0, 0, 0, 0, family, unix.NFNETLINK_V0)
	w.b = binary.BigEndian.AppendUint16(w.b, resource)
}

// nft begins a message of nf_tables about the family inet.
func (w *wire) nft(typ uint16, flags uint16) {
	w.message(unix.NFNL_SUBSYS_NFTABLES<<8|typ, flags, unix.NFPROTO_INET, 0)
}

func (w *wire) close() {
	binary.NativeEndian.PutUint32(w.b[w.msg:], uint32(len(w.b)-w.msg))
}

// acknowledge asks for an answer to the newest message.
func (w *wire) acknowledge() {
	at := w.msg + 6
	binary.NativeEndian.PutUint16(w.b[at:], binary.NativeEndian.Uint16(w.b[at:])|unix.NLM_F_ACK)
}

func (w *wire) begin(generation uint32) {
	w.message(unix.NFNL_MSG_BATCH_BEGIN, 0, 0, unix.NFNL_SUBSYS_NFTABLES)
	if generation != 0 {
		w.u32(batchGeneration, generation)
	}
	w.close()
}

func (w *wire) end() {
	w.message(unix.NFNL_MSG_BATCH_END, 0, 0, unix.NFNL_SUBSYS_NFTABLES)
	w.close()
}

func (w *wire) bytes(typ uint16, v []byte) {
	w.b = binary.NativeEndian.AppendUint16(w.b, uint16(4+len(v)))
	w.b = binary.NativeEndian.AppendUint16(w.b, typ)
	w.b = append(w.b, v...)
	w.pad()
}

func (w *wire) str(typ uint16, s string) {
	w.b = binary.NativeEndian.AppendUint16(w.b, uint16(5+len(s)))
	w.b = binary.NativeEndian.AppendUint16(w.b, typ)
	w.b = append(append(w.b, s...), 0)
	w.pad()
}

func (w *wire) u32(typ uint16, v uint32) {
	w.b = binary.NativeEndian.AppendUint16(w.b, 8)
	w.b = binary.NativeEndian.AppendUint16(w.b, typ)
	w.b = binary.BigEndian.AppendUint32(w.b, v)
}

func (w *wire) u64(typ uint16, v uint64) {
	w.b = binary.NativeEndian.AppendUint16(w.b, 12)
	w.b = binary.NativeEndian.AppendUint16(w.b, typ)
	w.b = binary.BigEndian.AppendUint64(w.b, v)
}

func (w *wire) pad() {
	for len(w.b)%4 != 0 {
		w.b = append(w.b, 0)
	}
}

// open begins a nested attribute; shut(at) ends it.
func (w *wire) open(typ uint16) (at int) {
	at = len(w.b)
	w.b = append(w.b, 0, 0)
	w.b = binary.NativeEndian.AppendUint16(w.b, typ|nested)
	return at
}

func (w *wire) shut(at int) { binary.NativeEndian.PutUint16(w.b[at:], uint16(len(w.b)-at)) }

// value is a nested attribute that holds one value.
func (w *wire) value(typ uint16, v []byte) {
	at := w.open(typ)
	w.bytes(unix.NFTA_DATA_VALUE, v)
	w.shut(at)
}

func (w *wire) newTable(name string, flags uint32) {
	w.nft(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE)
	w.str(unix.NFTA_TABLE_NAME, name)
	w.u32(attrTableFlags, flags)
	w.close()
}

// simple is a message about a table, or a named thing in it: all carry the table as attribute 1, and
// their own name as attribute 2, but for chains.
func (w *wire) simple(typ uint16, table, name string) {
	w.nft(typ, 0)
	w.str(1, table)
	switch {
	case name == "":
	case typ == unix.NFT_MSG_DELCHAIN:
		w.str(unix.NFTA_CHAIN_NAME, name)
	default:
		w.str(2, name)
	}
	w.close()
}

func (s set) flags() uint32 {
	if s.interval {
		return setInterval
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
	w.nft(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE)
	w.str(unix.NFTA_SET_TABLE, table)
	w.str(unix.NFTA_SET_NAME, s.name)
	w.u32(unix.NFTA_SET_FLAGS, s.flags())
	w.u32(unix.NFTA_SET_KEY_TYPE, s.kind.key)
	w.u32(unix.NFTA_SET_KEY_LEN, s.kind.size)
	w.u32(unix.NFTA_SET_ID, id)
	w.bytes(unix.NFTA_SET_USERDATA, s.userData())
	w.close()
}

// entry is one element as the kernel holds it: a range is a key where it begins and one where the
// next begins, marked as an end.
type entry struct {
	key []byte
	end bool
}

func (s set) entries() []entry {
	out := make([]entry, 0, 2*len(s.elements))
	for _, e := range s.elements {
		out = append(out, entry{key: e.first})
		if !s.interval {
			continue
		}
		next, overflow := successor(e.last)
		if !overflow { // a range up to the greatest key has no end
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

func (w *wire) newElements(table string, s set) {
	all := s.entries()
	for len(all) > 0 {
		part := all[:min(maxElements, len(all))]
		all = all[len(part):]
		w.nft(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE)
		w.str(unix.NFTA_SET_ELEM_LIST_TABLE, table)
		w.str(unix.NFTA_SET_ELEM_LIST_SET, s.name)
		list := w.open(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		for _, e := range part {
			at := w.open(unix.NFTA_LIST_ELEM)
			if e.end {
				w.u32(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END)
			}
			w.value(unix.NFTA_SET_ELEM_KEY, e.key)
			w.shut(at)
		}
		w.shut(list)
		w.close()
	}
}

func (w *wire) newChain(table string, c chain) {
	w.nft(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE)
	w.str(unix.NFTA_CHAIN_TABLE, table)
	w.str(unix.NFTA_CHAIN_NAME, c.name)
	if c.hook != hookNone {
		at := w.open(unix.NFTA_CHAIN_HOOK)
		w.u32(unix.NFTA_HOOK_HOOKNUM, c.hook.number())
		w.u32(unix.NFTA_HOOK_PRIORITY, priority)
		w.shut(at)
		w.u32(unix.NFTA_CHAIN_POLICY, uint32(nftables.ChainPolicyAccept))
		w.str(unix.NFTA_CHAIN_TYPE, string(nftables.ChainTypeFilter))
	}
	w.close()
}

func (w *wire) newRule(table, chain string, l line) {
	w.nft(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND)
	w.str(unix.NFTA_RULE_TABLE, table)
	w.str(unix.NFTA_RULE_CHAIN, chain)
	at := w.open(unix.NFTA_RULE_EXPRESSIONS)
	w.expressions(l)
	w.shut(at)
	if u := l.userData(); u != nil {
		w.bytes(unix.NFTA_RULE_USERDATA, u)
	}
	w.close()
}

func (l line) userData() []byte {
	if l.comment == "" {
		return nil
	}
	return userdata.AppendString(nil, userdata.TypeComment, l.comment)
}

func (w *wire) expressions(l line) {
	for _, t := range l.match {
		w.term(t)
	}
	if l.limit != nil {
		w.expression("limit", func() {
			w.u64(unix.NFTA_LIMIT_RATE, l.limit.rate)
			w.u64(unix.NFTA_LIMIT_UNIT, l.limit.unit)
			w.u32(unix.NFTA_LIMIT_BURST, l.limit.burst)
			w.u32(unix.NFTA_LIMIT_TYPE, unix.NFT_LIMIT_PKTS)
		})
	}
	if l.log != "" {
		w.expression("log", func() {
			w.bytes(unix.NFTA_LOG_GROUP, []byte{0, LogGroup})
			w.str(unix.NFTA_LOG_PREFIX, l.log)
		})
	}
	if l.counter {
		w.expression("counter", func() {})
	}
	if l.verdict.word != "" {
		w.expression("immediate", func() {
			w.u32(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
			data := w.open(unix.NFTA_IMMEDIATE_DATA)
			at := w.open(unix.NFTA_DATA_VERDICT)
			w.u32(unix.NFTA_VERDICT_CODE, uint32(l.verdict.code))
			if l.verdict.chain != "" {
				w.str(unix.NFTA_VERDICT_CHAIN, l.verdict.chain)
			}
			w.shut(at)
			w.shut(data)
		})
	}
}

func (w *wire) expression(name string, data func()) {
	at := w.open(unix.NFTA_LIST_ELEM)
	w.str(unix.NFTA_EXPR_NAME, name)
	inner := w.open(unix.NFTA_EXPR_DATA)
	data()
	w.shut(inner)
	w.shut(at)
}

func (w *wire) term(t term) {
	for i, l := range t.loads {
		w.load(l, unix.NFT_REG_1+uint32(i))
	}
	if t.mask != nil {
		w.expression("bitwise", func() {
			w.u32(unix.NFTA_BITWISE_SREG, unix.NFT_REG_1)
			w.u32(unix.NFTA_BITWISE_DREG, unix.NFT_REG_1)
			w.u32(unix.NFTA_BITWISE_LEN, uint32(len(t.mask)))
			w.value(unix.NFTA_BITWISE_MASK, t.mask)
			w.value(unix.NFTA_BITWISE_XOR, make([]byte, len(t.mask)))
		})
	}
	if t.set != "" {
		w.expression("lookup", func() {
			w.str(unix.NFTA_LOOKUP_SET, t.set)
			w.u32(unix.NFTA_LOOKUP_SREG, unix.NFT_REG_1)
			if t.not {
				w.u32(unix.NFTA_LOOKUP_FLAGS, unix.NFT_LOOKUP_F_INV)
			}
		})
		return
	}
	w.expression("cmp", func() {
		op := uint32(unix.NFT_CMP_EQ)
		if t.not {
			op = unix.NFT_CMP_NEQ
		}
		w.u32(unix.NFTA_CMP_SREG, unix.NFT_REG_1)
		w.u32(unix.NFTA_CMP_OP, op)
		w.value(unix.NFTA_CMP_DATA, t.value)
	})
}

func (w *wire) load(l load, register uint32) {
	switch l.kind {
	case loadMeta:
		w.expression("meta", func() {
			w.u32(unix.NFTA_META_KEY, l.key)
			w.u32(unix.NFTA_META_DREG, register)
		})
	case loadCT:
		w.expression("ct", func() {
			w.u32(unix.NFTA_CT_KEY, l.key)
			w.u32(unix.NFTA_CT_DREG, register)
			if l.directed {
				w.bytes(unix.NFTA_CT_DIRECTION, []byte{0})
			}
		})
	case loadPayload:
		w.expression("payload", func() {
			w.u32(unix.NFTA_PAYLOAD_DREG, register)
			w.u32(unix.NFTA_PAYLOAD_BASE, l.key)
			w.u32(unix.NFTA_PAYLOAD_OFFSET, l.offset)
			w.u32(unix.NFTA_PAYLOAD_LEN, l.size)
		})
	}
}
