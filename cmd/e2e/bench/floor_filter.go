package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// The floor of a packet filter: bytes made beforehand and sent as one transaction with one answer, and
// listings received and thrown away. The rules mean what mesh's mean.

// netspace puts the calling thread, for good, into a network namespace of its own, and names it as a file
// that others can enter while this process lives.
func netspace() (string, error) {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return "", fmt.Errorf("a network namespace of its own (this needs root): %w", err)
	}
	fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd), nil
}

// rawFilter is a netlink socket and what is sent over it.
type rawFilter struct {
	fd     int
	buffer []byte
	turns  [][]byte // transactions that exchange one set of rules for the other
	at     int
	asks   [][]byte // listings that are a reading of the whole table
}

// floorFilterPart is the child "floor-filter".
func floorFilterPart(ctx context.Context) error {
	space, err := netspace()
	if err != nil {
		return err
	}
	f, reader := &rawFilter{}, &rawFilter{}
	if err := f.open(); err != nil {
		return err
	}
	err = serve(ctx, handlers{
		"space": on(func(context.Context, nothing) (any, error) { return space, nil }),
		"rules": on(func(_ context.Context, n int) (any, error) {
			f.turns = [][]byte{rawTurn(n, 1000), rawTurn(n, 10_000)}
			if err := f.commit(rawTable()); err != nil {
				return nil, err
			}
			return nil, f.turn()
		}),
		"replace": on(func(_ context.Context, n int) (any, error) { return many(n, f.turn) }),
		"ask": on(func(_ context.Context, n int) (any, error) {
			return many(n, func() error { return f.list(rawAsk(unix.NFT_MSG_GETGEN, 0, 0)) })
		}),
		// "foreign" puts others' rules into this namespace: n of them in chains of 20.
		"foreign": on(func(_ context.Context, n int) (any, error) { return nil, f.commit(rawForeign(n)) }),
		"listall": on(func(_ context.Context, n int) (any, error) { return many(n, f.listAll) }),
		// "enter" reads from another namespace: sets are those of its table mesh.
		"enter": on(func(_ context.Context, there rawEntry) (any, error) { return nil, reader.enter(space, there) }),
		"read":  on(func(_ context.Context, n int) (any, error) { return many(n, reader.read) }),
		// "stir" changes something else there, as others do.
		"stir": on(func(context.Context, nothing) (any, error) { return nil, reader.stir() }),
	})
	return errors.Join(err, f.close(), reader.close())
}

func (f *rawFilter) open() (err error) {
	f.buffer = make([]byte, 64<<10)
	if f.fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER); err != nil {
		return err
	}
	for _, option := range []int{unix.SO_SNDBUFFORCE, unix.SO_RCVBUFFORCE} {
		if err := unix.SetsockoptInt(f.fd, unix.SOL_SOCKET, option, 16<<20); err != nil {
			return err
		}
	}
	return unix.Bind(f.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
}

func (f *rawFilter) close() error {
	if f.fd == 0 {
		return nil
	}
	return unix.Close(f.fd)
}

// turn exchanges the rules for the other ones.
func (f *rawFilter) turn() error {
	f.at++
	return f.commit(f.turns[f.at%len(f.turns)])
}

func (f *rawFilter) commit(b []byte) error {
	if err := unix.Sendto(f.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	n, _, err := unix.Recvfrom(f.fd, f.buffer, 0)
	if err != nil {
		return err
	}
	if n < 20 || binary.NativeEndian.Uint32(f.buffer[16:]) != 0 {
		return fmt.Errorf("the kernel answers %x", f.buffer[:min(n, 20)])
	}
	return nil
}

// list receives the answer to a request to its end.
func (f *rawFilter) list(ask []byte) error {
	if err := unix.Sendto(f.fd, ask, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	for {
		n, _, err := unix.Recvfrom(f.fd, f.buffer, 0)
		if err != nil {
			return err
		}
		for b := f.buffer[:n]; len(b) >= 16; {
			size := int(binary.NativeEndian.Uint32(b))
			if typ := binary.NativeEndian.Uint16(b[4:]); typ == unix.NLMSG_DONE || typ == unix.NLMSG_ERROR || binary.NativeEndian.Uint16(b[6:])&unix.NLM_F_MULTI == 0 {
				return nil
			}
			b = b[min(len(b), (size+3)&^3):]
		}
	}
}

// rawEntry is where a table mesh is: a namespace, and the names of its sets.
type rawEntry struct {
	Space string   `json:"space"`
	Sets  []string `json:"sets"`
}

// enter opens the socket in another namespace; the thread comes back.
func (f *rawFilter) enter(own string, there rawEntry) error {
	if err := errors.Join(f.close(), inside(there.Space), f.open(), inside(own)); err != nil {
		return err
	}
	f.asks = [][]byte{
		rawAsk(unix.NFT_MSG_GETTABLE, 0, unix.NFPROTO_INET, "mesh"), rawAsk(unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, unix.NFPROTO_INET, "mesh"),
		rawAsk(unix.NFT_MSG_GETSET, unix.NLM_F_DUMP, unix.NFPROTO_INET, "mesh"), rawAsk(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, unix.NFPROTO_INET, "mesh"),
	}
	for _, s := range there.Sets {
		f.asks = append(f.asks, rawAsk(unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, unix.NFPROTO_INET, "mesh", s))
	}
	return nil
}

func inside(space string) error {
	file, err := os.Open(space)
	if err != nil {
		return err
	}
	return errors.Join(unix.Setns(int(file.Fd()), unix.CLONE_NEWNET), file.Close())
}

func (f *rawFilter) read() error {
	for _, ask := range f.asks {
		if err := f.list(ask); err != nil {
			return err
		}
	}
	return nil
}

func (f *rawFilter) listAll() error {
	for _, typ := range []uint16{unix.NFT_MSG_GETTABLE, unix.NFT_MSG_GETCHAIN, unix.NFT_MSG_GETSET, unix.NFT_MSG_GETRULE} {
		if err := f.list(rawAsk(typ, unix.NLM_F_DUMP, unix.NFPROTO_UNSPEC)); err != nil {
			return err
		}
	}
	return nil
}

func (f *rawFilter) stir() error {
	var w rawWriter
	w.batch(unix.NFNL_MSG_BATCH_BEGIN)
	for _, typ := range []uint16{unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_DELTABLE} {
		flags := uint16(unix.NLM_F_CREATE)
		if typ == unix.NFT_MSG_DELTABLE {
			flags = unix.NLM_F_ACK
		}
		w.begin(typ, flags, unix.NFPROTO_INET)
		w.text(unix.NFTA_TABLE_NAME, "stirred")
		w.end()
	}
	w.batch(unix.NFNL_MSG_BATCH_END)
	return f.commit(w.b)
}

// rawWriter writes netlink messages.
type rawWriter struct {
	b  []byte
	at int
}

func (w *rawWriter) header(typ, flags uint16, family byte, resource uint16) {
	w.at = len(w.b)
	w.b = append(w.b, 0, 0, 0, 0)
	w.b = binary.NativeEndian.AppendUint16(w.b, typ)
	w.b = binary.NativeEndian.AppendUint16(w.b, unix.NLM_F_REQUEST|flags)
	w.b = append(w.b, 1, 0, 0, 0, 0, 0, 0, 0, family, 0)
	w.b = binary.BigEndian.AppendUint16(w.b, resource)
}

func (w *rawWriter) begin(typ, flags uint16, family byte) {
	w.header(unix.NFNL_SUBSYS_NFTABLES<<8|typ, flags, family, 0)
}
func (w *rawWriter) end() { binary.NativeEndian.PutUint32(w.b[w.at:], uint32(len(w.b)-w.at)) }

func (w *rawWriter) batch(typ uint16) {
	w.header(typ, 0, 0, unix.NFNL_SUBSYS_NFTABLES)
	w.end()
}

func (w *rawWriter) bytes(typ uint16, v ...byte) {
	w.b = binary.NativeEndian.AppendUint16(w.b, uint16(4+len(v)))
	w.b = append(binary.NativeEndian.AppendUint16(w.b, typ), v...)
	for len(w.b)%4 != 0 {
		w.b = append(w.b, 0)
	}
}

func (w *rawWriter) text(typ uint16, s string) { w.bytes(typ, append([]byte(s), 0)...) }
func (w *rawWriter) number(typ uint16, v uint32) {
	w.bytes(typ, binary.BigEndian.AppendUint32(nil, v)...)
}

func (w *rawWriter) nest(typ uint16, fn func()) {
	at := len(w.b)
	w.b = append(w.b, 0, 0)
	w.b = binary.NativeEndian.AppendUint16(w.b, typ|unix.NLA_F_NESTED)
	fn()
	binary.NativeEndian.PutUint16(w.b[at:], uint16(len(w.b)-at))
}

func (w *rawWriter) expression(name string, data func()) {
	w.nest(unix.NFTA_LIST_ELEM, func() {
		w.text(unix.NFTA_EXPR_NAME, name)
		w.nest(unix.NFTA_EXPR_DATA, data)
	})
}

func (w *rawWriter) compare(value ...byte) {
	w.expression("cmp", func() {
		w.number(unix.NFTA_CMP_SREG, unix.NFT_REG_1)
		w.number(unix.NFTA_CMP_OP, unix.NFT_CMP_EQ)
		w.nest(unix.NFTA_CMP_DATA, func() { w.bytes(unix.NFTA_DATA_VALUE, value...) })
	})
}

func (w *rawWriter) verdict(code int32, chain string) {
	w.expression("immediate", func() {
		w.number(unix.NFTA_IMMEDIATE_DREG, unix.NFT_REG_VERDICT)
		w.nest(unix.NFTA_IMMEDIATE_DATA, func() {
			w.nest(unix.NFTA_DATA_VERDICT, func() {
				w.number(unix.NFTA_VERDICT_CODE, uint32(code))
				if chain != "" {
					w.text(unix.NFTA_VERDICT_CHAIN, chain)
				}
			})
		})
	})
}

func (w *rawWriter) rule(family byte, table, chain string, flags uint16, expressions func()) {
	w.begin(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND|flags, family)
	w.text(unix.NFTA_RULE_TABLE, table)
	w.text(unix.NFTA_RULE_CHAIN, chain)
	w.nest(unix.NFTA_RULE_EXPRESSIONS, expressions)
	w.end()
}

func (w *rawWriter) base(family byte, table, chain string, hook uint32) {
	w.begin(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, family)
	w.text(unix.NFTA_CHAIN_TABLE, table)
	w.text(unix.NFTA_CHAIN_NAME, chain)
	w.nest(unix.NFTA_CHAIN_HOOK, func() {
		w.number(unix.NFTA_HOOK_HOOKNUM, hook)
		w.number(unix.NFTA_HOOK_PRIORITY, 0)
	})
	w.text(unix.NFTA_CHAIN_TYPE, "filter")
	w.end()
}

// last is the flag of the last of n: it is answered, and with it the whole.
func last(i, n int) uint16 {
	if i == n-1 {
		return unix.NLM_F_ACK
	}
	return 0
}

func rawAsk(typ, flags uint16, family byte, names ...string) []byte {
	var w rawWriter
	w.begin(typ, flags, family)
	for i, name := range names {
		w.text(uint16(i+1), name)
	}
	w.end()
	return w.b
}

// The floor's table: rules of the kernel's that ask a set, whose elements count and are the rules declared.
const floorTable, floorSet, floorChain = "floor", "ports", "input"

// rawTable makes the table without elements: meta l4proto tcp ct original proto-dst @ports accept, and the same
// for packets that are not tracked.
func rawTable() []byte {
	const inet, counts = unix.NFPROTO_INET, 17 // NFTA_SET_EXPR
	var w rawWriter
	w.batch(unix.NFNL_MSG_BATCH_BEGIN)
	w.begin(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, inet)
	w.text(unix.NFTA_TABLE_NAME, floorTable)
	w.end()
	w.base(inet, floorTable, floorChain, unix.NF_INET_LOCAL_IN)
	w.begin(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, inet)
	w.text(unix.NFTA_SET_TABLE, floorTable)
	w.text(unix.NFTA_SET_NAME, floorSet)
	w.number(unix.NFTA_SET_FLAGS, 0)
	w.number(unix.NFTA_SET_KEY_TYPE, 13)
	w.number(unix.NFTA_SET_KEY_LEN, 2)
	w.number(unix.NFTA_SET_ID, 1)
	w.nest(counts, func() {
		w.text(unix.NFTA_EXPR_NAME, "counter")
		w.nest(unix.NFTA_EXPR_DATA, func() {})
	})
	w.end()
	protocol := func() {
		w.expression("meta", func() {
			w.number(unix.NFTA_META_KEY, unix.NFT_META_L4PROTO)
			w.number(unix.NFTA_META_DREG, unix.NFT_REG_1)
		})
		w.compare(unix.IPPROTO_TCP)
	}
	found := func() {
		w.expression("lookup", func() {
			w.text(unix.NFTA_LOOKUP_SET, floorSet)
			w.number(unix.NFTA_LOOKUP_SREG, unix.NFT_REG_1)
		})
		w.verdict(1, "")
	}
	w.rule(inet, floorTable, floorChain, 0, func() {
		protocol()
		w.expression("ct", func() {
			w.number(unix.NFTA_CT_KEY, unix.NFT_CT_PROTO_DST)
			w.number(unix.NFTA_CT_DREG, unix.NFT_REG_1)
			w.bytes(unix.NFTA_CT_DIRECTION, 0)
		})
		found()
	})
	w.rule(inet, floorTable, floorChain, unix.NLM_F_ACK, func() {
		protocol()
		w.expression("payload", func() {
			w.number(unix.NFTA_PAYLOAD_DREG, unix.NFT_REG_1)
			w.number(unix.NFTA_PAYLOAD_BASE, unix.NFT_PAYLOAD_TRANSPORT_HEADER)
			w.number(unix.NFTA_PAYLOAD_OFFSET, 2)
			w.number(unix.NFTA_PAYLOAD_LEN, 2)
		})
		found()
	})
	w.batch(unix.NFNL_MSG_BATCH_END)
	return w.b
}

// rawTurn is n declared rules in the place of those there are: PORT comment "…".
func rawTurn(n, port int) []byte {
	const inet, most = unix.NFPROTO_INET, 500 // elements: an attribute ends at 64 KiB
	var w rawWriter
	w.batch(unix.NFNL_MSG_BATCH_BEGIN)
	w.begin(unix.NFT_MSG_DELSETELEM, 0, inet)
	w.text(unix.NFTA_SET_ELEM_LIST_TABLE, floorTable)
	w.text(unix.NFTA_SET_ELEM_LIST_SET, floorSet)
	w.end()
	for from := 0; from < n; from += most {
		w.begin(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE|last(min(from+most, n)-1, n), inet)
		w.text(unix.NFTA_SET_ELEM_LIST_TABLE, floorTable)
		w.text(unix.NFTA_SET_ELEM_LIST_SET, floorSet)
		w.nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS, func() {
			for i := from; i < min(from+most, n); i++ {
				comment := fmt.Sprintf("m%d: %d/tcp from anywhere\x00", i, port+i)
				w.nest(unix.NFTA_LIST_ELEM, func() {
					w.nest(unix.NFTA_SET_ELEM_KEY, func() { w.bytes(unix.NFTA_DATA_VALUE, binary.BigEndian.AppendUint16(nil, uint16(port+i))...) })
					w.bytes(unix.NFTA_SET_ELEM_USERDATA, append([]byte{0, byte(len(comment))}, comment...)...)
				})
			}
		})
		w.end()
	}
	w.batch(unix.NFNL_MSG_BATCH_END)
	return w.b
}

// rawForeign is n rules as a program over iptables-nft makes them, in chains of 20 that hang on FORWARD:
// -s ADDRESS -j DROP.
func rawForeign(n int) []byte {
	const table, forward, ip = "filter", "FORWARD", unix.NFPROTO_IPV4
	var w rawWriter
	w.batch(unix.NFNL_MSG_BATCH_BEGIN)
	w.begin(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, ip)
	w.text(unix.NFTA_TABLE_NAME, table)
	w.end()
	w.base(ip, table, forward, unix.NF_INET_FORWARD)
	for i := range n {
		chain := fmt.Sprintf("TOOL-%d", i/20)
		if i%20 == 0 {
			w.begin(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, ip)
			w.text(unix.NFTA_CHAIN_TABLE, table)
			w.text(unix.NFTA_CHAIN_NAME, chain)
			w.end()
			w.rule(ip, table, forward, 0, func() { w.verdict(unix.NFT_JUMP, chain) })
		}
		w.rule(ip, table, chain, last(i, n), func() {
			w.expression("payload", func() {
				w.number(unix.NFTA_PAYLOAD_DREG, unix.NFT_REG_1)
				w.number(unix.NFTA_PAYLOAD_BASE, unix.NFT_PAYLOAD_NETWORK_HEADER)
				w.number(unix.NFTA_PAYLOAD_OFFSET, 12)
				w.number(unix.NFTA_PAYLOAD_LEN, 4)
			})
			w.compare(10, byte(i>>16), byte(i>>8), byte(i))
			w.expression("counter", func() {})
			w.verdict(0, "")
		})
	}
	w.batch(unix.NFNL_MSG_BATCH_END)
	return w.b
}
