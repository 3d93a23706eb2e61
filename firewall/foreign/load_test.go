package foreign_test

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mesh/testbus/netlab"
)

// A listing of nft cannot be loaded by another nft, nor, where iptables wrote rules, by any. So the
// rule sets of testdata are put into the kernel here, message by message, from nft's JSON: all of
// their structure, the links, log prefixes and verdicts as they are, xtables matches as one that is
// always there, other conditions as one on the mark.

// object is one line of nft's JSON.
type object struct {
	Table *struct {
		Family, Name string
		Flags        []string
	}
	Chain *struct {
		Family, Table, Name, Type, Hook, Policy string
		Prio                                    *int32
		Dev                                     string
	}
	Map *struct {
		Family, Table, Name string
		Map                 any
		Elem                [][2]json.RawMessage
	}
	Rule *struct {
		Family, Table, Chain string
		Expr                 []map[string]json.RawMessage
	}
}

func listing(t testing.TB, name string) []object {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Nftables []object }
	if err := json.Unmarshal(b, &file); err != nil {
		t.Fatal(err)
	}
	return file.Nftables
}

// prefixes are the words that rules log, chain by chain and in order: the JSON lacks those of xt LOG.
func prefixes(t testing.TB, name string) map[string][]string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name+".nft"))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string][]string{}
	var table, chain string
	for line := range strings.Lines(string(b)) {
		words := strings.Fields(line)
		switch {
		case len(words) > 2 && words[0] == "table":
			table = words[1] + " " + words[2]
		case len(words) > 1 && words[0] == "chain":
			chain = table + " " + words[1]
		}
		if _, rest, ok := strings.Cut(line, `log prefix "`); ok {
			prefix, _, _ := strings.Cut(rest, `"`)
			found[chain] = append(found[chain], prefix)
		}
	}
	return found
}

var familyNumbers = map[string]byte{
	"ip": unix.NFPROTO_IPV4, "ip6": unix.NFPROTO_IPV6, "inet": unix.NFPROTO_INET,
	"arp": unix.NFPROTO_ARP, "bridge": unix.NFPROTO_BRIDGE, "netdev": unix.NFPROTO_NETDEV,
}

func hookNumber(family, hook string) uint32 {
	switch {
	case family == "netdev":
		return map[string]uint32{"ingress": 0, "egress": 1}[hook]
	case family == "arp":
		return map[string]uint32{"input": 0, "output": 1}[hook]
	}
	return map[string]uint32{"prerouting": 0, "input": 1, "forward": 2, "output": 3, "postrouting": 4, "ingress": 5}[hook]
}

// batch is a transaction in the making.
type batch struct {
	t    testing.TB
	b    []byte
	seq  uint32
	what map[uint32]string
	maps int
	log  map[string][]string
	sets []byte // the numbers of the sets of ipset that rules ask, in their order
}

func (w *batch) message(typ uint16, flags uint16, family byte, what string, body func()) {
	at := len(w.b)
	w.seq++
	w.what[w.seq] = what
	w.b = append(w.b, make([]byte, 4)...)
	w.b = binary.NativeEndian.AppendUint16(w.b, typ)
	w.b = binary.NativeEndian.AppendUint16(w.b, unix.NLM_F_REQUEST|flags)
	w.b = binary.NativeEndian.AppendUint32(w.b, w.seq)
	w.b = append(w.b, 0, 0, 0, 0, family, 0)
	resource := uint16(0)
	if typ == unix.NFNL_MSG_BATCH_BEGIN || typ == unix.NFNL_MSG_BATCH_END {
		resource = unix.NFNL_SUBSYS_NFTABLES
	}
	w.b = binary.BigEndian.AppendUint16(w.b, resource)
	if body != nil {
		body()
	}
	binary.NativeEndian.PutUint32(w.b[at:], uint32(len(w.b)-at))
}

func (w *batch) nft(typ uint16, family, what string, body func()) {
	w.message(unix.NFNL_SUBSYS_NFTABLES<<8|typ, unix.NLM_F_CREATE|unix.NLM_F_APPEND|unix.NLM_F_ACK, familyNumbers[family], what, body)
}

func (w *batch) bytes(typ uint16, v []byte) {
	w.b = binary.NativeEndian.AppendUint16(w.b, uint16(4+len(v)))
	w.b = binary.NativeEndian.AppendUint16(w.b, typ)
	w.b = append(w.b, v...)
	for len(w.b)%4 != 0 {
		w.b = append(w.b, 0)
	}
}

func (w *batch) str(typ uint16, s string) { w.bytes(typ, append([]byte(s), 0)) }
func (w *batch) u32(typ uint16, v uint32) { w.bytes(typ, binary.BigEndian.AppendUint32(nil, v)) }

func (w *batch) nest(typ uint16, body func()) {
	at := len(w.b)
	w.bytes(typ|unix.NLA_F_NESTED, nil)
	body()
	binary.NativeEndian.PutUint16(w.b[at:], uint16(len(w.b)-at))
}

func (w *batch) expression(name string, data func()) {
	w.nest(unix.NFTA_LIST_ELEM, func() {
		w.str(unix.NFTA_EXPR_NAME, name)
		w.nest(unix.NFTA_EXPR_DATA, data)
	})
}

func (w *batch) meta(key uint32, equal []byte) {
	w.expression("meta", func() {
		w.u32(unix.NFTA_META_DREG, unix.NFT_REG_1)
		w.u32(unix.NFTA_META_KEY, key)
	})
	if equal == nil {
		return
	}
	w.expression("cmp", func() {
		w.u32(unix.NFTA_CMP_SREG, unix.NFT_REG_1)
		w.u32(unix.NFTA_CMP_OP, unix.NFT_CMP_EQ)
		w.nest(unix.NFTA_CMP_DATA, func() { w.bytes(unix.NFTA_DATA_VALUE, equal) })
	})
}

func (w *batch) xt(kind, name string, revision uint32, info []byte) {
	w.expression(kind, func() {
		w.str(unix.NFTA_MATCH_NAME, name)
		w.u32(unix.NFTA_MATCH_REV, revision)
		w.bytes(unix.NFTA_MATCH_INFO, info)
	})
}

// verdict is nested data of what nft's JSON says.
func (w *batch) verdict(typ uint16, said map[string]json.RawMessage) bool {
	codes := map[string]int32{"drop": 0, "accept": 1, "continue": -1, "jump": unix.NFT_JUMP, "goto": unix.NFT_GOTO, "return": unix.NFT_RETURN}
	for word, code := range codes {
		raw, ok := said[word]
		if !ok {
			continue
		}
		var to struct{ Target string }
		_ = json.Unmarshal(raw, &to) // null where nothing is led to
		w.nest(typ, func() {
			w.nest(unix.NFTA_DATA_VERDICT, func() {
				w.u32(unix.NFTA_VERDICT_CODE, uint32(code))
				if to.Target != "" {
					w.str(unix.NFTA_VERDICT_CHAIN, to.Target)
				}
			})
		})
		return true
	}
	return false
}

// verdictMap makes a map of marks in place of one by whatever it was.
func (w *batch) verdictMap(family, table, name string, elements [][2]json.RawMessage) {
	w.nft(unix.NFT_MSG_NEWSET, family, "map "+name, func() {
		w.str(unix.NFTA_SET_TABLE, table)
		w.str(unix.NFTA_SET_NAME, name)
		w.u32(unix.NFTA_SET_FLAGS, unix.NFT_SET_MAP)
		w.u32(unix.NFTA_SET_KEY_TYPE, 19)
		w.u32(unix.NFTA_SET_KEY_LEN, 4)
		w.u32(unix.NFTA_SET_DATA_TYPE, 0xffffff00)
		w.u32(unix.NFTA_SET_ID, uint32(w.maps))
	})
	w.nft(unix.NFT_MSG_NEWSETELEM, family, "elements of "+name, func() {
		w.str(unix.NFTA_SET_ELEM_LIST_TABLE, table)
		w.str(unix.NFTA_SET_ELEM_LIST_SET, name)
		w.nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS, func() {
			for i, e := range elements {
				var said map[string]json.RawMessage
				if err := json.Unmarshal(e[1], &said); err != nil {
					w.t.Fatal(err)
				}
				w.nest(unix.NFTA_LIST_ELEM, func() {
					w.nest(unix.NFTA_SET_ELEM_KEY, func() { w.bytes(unix.NFTA_DATA_VALUE, binary.NativeEndian.AppendUint32(nil, uint32(i))) })
					w.verdict(unix.NFTA_SET_ELEM_DATA, said)
				})
			}
		})
	})
	w.maps++
}

func (w *batch) object(o object) {
	switch {
	case o.Table != nil:
		w.nft(unix.NFT_MSG_NEWTABLE, o.Table.Family, "table "+o.Table.Name, func() {
			w.str(unix.NFTA_TABLE_NAME, o.Table.Name)
			var flags uint32
			for _, f := range o.Table.Flags {
				flags |= map[string]uint32{"dormant": 1, "owner": 2, "persist": 4}[f]
			}
			w.u32(2, flags)
		})
	case o.Chain != nil:
		c := o.Chain
		w.nft(unix.NFT_MSG_NEWCHAIN, c.Family, "chain "+c.Name, func() {
			w.str(unix.NFTA_CHAIN_TABLE, c.Table)
			w.str(unix.NFTA_CHAIN_NAME, c.Name)
			if c.Hook == "" {
				return
			}
			w.nest(unix.NFTA_CHAIN_HOOK, func() {
				w.u32(unix.NFTA_HOOK_HOOKNUM, hookNumber(c.Family, c.Hook))
				w.u32(unix.NFTA_HOOK_PRIORITY, uint32(*c.Prio))
				if c.Family == "netdev" {
					w.str(unix.NFTA_HOOK_DEV, "lo")
				}
			})
			w.u32(unix.NFTA_CHAIN_POLICY, map[string]uint32{"drop": 0, "accept": 1}[c.Policy])
			w.str(unix.NFTA_CHAIN_TYPE, c.Type)
		})
	case o.Map != nil && o.Map.Map == "verdict":
		w.verdictMap(o.Map.Family, o.Map.Table, o.Map.Name, o.Map.Elem)
	}
}

func (w *batch) rule(o object) {
	r := o.Rule

	body := batch{t: w.t, what: map[uint32]string{}, log: w.log, sets: w.sets}
	for _, e := range r.Expr {
		w.part(&body, r.Family, r.Table, r.Chain, e)
	}
	w.sets = body.sets
	w.nft(unix.NFT_MSG_NEWRULE, r.Family, "rule of "+r.Chain, func() {
		w.str(unix.NFTA_RULE_TABLE, r.Table)
		w.str(unix.NFTA_RULE_CHAIN, r.Chain)
		w.nest(unix.NFTA_RULE_EXPRESSIONS, func() { w.b = append(w.b, body.b...) })
	})
}

// part adds one expression to body, and to w what has to be there before the rule.
func (w *batch) part(body *batch, family, table, chain string, e map[string]json.RawMessage) {
	for word, raw := range e {
		switch word {
		case "match":
			body.match(raw)
		case "vmap":
			var m struct{ Data json.RawMessage }
			var data struct{ Set [][2]json.RawMessage }
			if err := json.Unmarshal(raw, &m); err != nil {
				w.t.Fatal(err)
			}
			var name string
			if json.Unmarshal(m.Data, &name) == nil {
				name = strings.TrimPrefix(name, "@")
			} else if err := json.Unmarshal(m.Data, &data); err != nil {
				w.t.Fatal(err)
			} else {
				name = fmt.Sprintf("unnamed%d", w.maps)
				w.verdictMap(family, table, name, data.Set)
			}
			body.meta(unix.NFT_META_MARK, nil)
			body.expression("lookup", func() {
				body.str(unix.NFTA_LOOKUP_SET, name)
				body.u32(unix.NFTA_LOOKUP_SREG, unix.NFT_REG_1)
				body.u32(unix.NFTA_LOOKUP_DREG, unix.NFT_REG_VERDICT)
			})
		case "xt":
			var x struct{ Type, Name string }
			if err := json.Unmarshal(raw, &x); err != nil {
				w.t.Fatal(err)
			}
			body.xtables(x.Type, x.Name, family+" "+table+" "+chain)
		case "reject":
			body.expression("reject", func() {
				typ := map[string]uint32{"inet": unix.NFT_REJECT_ICMPX_UNREACH}[family]
				body.u32(unix.NFTA_REJECT_TYPE, typ)
				body.bytes(unix.NFTA_REJECT_ICMP_CODE, []byte{0})
			})
		case "log":
			var l struct{ Prefix string }
			if err := json.Unmarshal(raw, &l); err == nil && l.Prefix != "" {
				body.expression("log", func() { body.str(unix.NFTA_LOG_PREFIX, l.Prefix) })
			}
		case "counter":
			body.expression("counter", func() {})
		case "jump", "goto", "drop", "accept", "return", "continue":
			body.expression("immediate", func() {
				body.u32(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
				body.verdict(unix.NFTA_IMMEDIATE_DATA, e)
			})
		}
	}
}

func (w *batch) match(raw json.RawMessage) {
	var m struct {
		Op   string
		Left struct{ Meta struct{ Key string } }
	}
	var r struct{ Right string }
	_ = json.Unmarshal(raw, &r) // other things than strings stand there too
	if err := json.Unmarshal(raw, &m); err != nil {
		w.t.Fatal(err)
	}
	key := map[string]uint32{"iifname": unix.NFT_META_IIFNAME, "oifname": unix.NFT_META_OIFNAME}[m.Left.Meta.Key]
	if key != 0 && m.Op == "==" && r.Right != "" {
		w.meta(key, append([]byte(r.Right), make([]byte, 16-len(r.Right))...))
		return
	}
	w.meta(unix.NFT_META_MARK, []byte{1, 2, 3, 4})
}

func (w *batch) xtables(kind, name, chain string) {
	switch {
	case kind == "match" && name == "set":
		index := byte(0)
		if len(w.sets) > 0 {
			index, w.sets = w.sets[0], w.sets[1:]
		}
		w.xt(kind, name, 1, []byte{index, 0, 1, 1, 0, 0, 0, 0}) // by its source
	case kind == "match":
		w.xt(kind, "comment", 0, make([]byte, 256))
	case name == "REJECT":
		w.xt(kind, name, 0, make([]byte, 8))
	case name == "LOG":
		info := make([]byte, 32)
		if list := w.log[chain]; len(list) > 0 {
			copy(info[2:31], list[0])
			w.log[chain] = list[1:]
		}
		w.xt(kind, name, 0, info)
	default:
		w.xt(kind, "MARK", 2, make([]byte, 8))
	}
}

// put loads objects into the space as one transaction. The socket that owns tables lives as long as
// the test.
func put(t testing.TB, s *netlab.Space, objects []object, log map[string][]string, sets ...byte) {
	t.Helper()
	w := &batch{t: t, what: map[uint32]string{}, log: log, sets: sets}
	w.message(unix.NFNL_MSG_BATCH_BEGIN, 0, 0, "begin", nil)
	for _, pass := range []func(object) bool{
		func(o object) bool { return o.Table != nil }, func(o object) bool { return o.Chain != nil }, func(o object) bool { return o.Map != nil },
	} {
		for _, o := range objects {
			if pass(o) {
				w.object(o)
			}
		}
	}
	for _, o := range objects {
		if o.Rule != nil {
			w.rule(o)
		}
	}
	w.message(unix.NFNL_MSG_BATCH_END, 0, 0, "end", nil)
	var err error
	s.Do(func() { err = w.commit() })
	if err != nil {
		t.Fatal(err)
	}
}

func (w *batch) commit() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	w.t.Cleanup(func() { unix.Close(fd) })
	for _, option := range []int{unix.SO_SNDBUFFORCE, unix.SO_RCVBUFFORCE} {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, 64<<20); err != nil {
			return err
		}
	}
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}), unix.Sendto(fd, w.b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})); err != nil {
		return err
	}
	buffer := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(fd, buffer, unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EAGAIN) {
			return nil
		}
		if err != nil {
			return err
		}
		for b := buffer[:n]; len(b) >= 20; b = b[(binary.NativeEndian.Uint32(b)+3)&^3:] {
			if no := int32(binary.NativeEndian.Uint32(b[16:])); no != 0 {
				return fmt.Errorf("%s: %w", w.what[binary.NativeEndian.Uint32(b[8:])], unix.Errno(-no))
			}
		}
	}
}
