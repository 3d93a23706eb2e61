package foreign

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"os"

	"golang.org/x/sys/unix"
)

// socket asks nf_tables. The parent's is bound to writing one table; this one only lists, for all
// families at once.
type socket struct {
	fd     int
	buffer []byte
}

const (
	// answerSize holds one datagram of a dump; the kernel fills at most 32 KiB.
	answerSize = 64 << 10
	// patience is how many seconds the kernel has for one datagram.
	patience = 10
)

var errInterrupted = errors.New("the rule set changed while it was read")

func openSocket() (*socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	s := &socket{fd: fd, buffer: make([]byte, answerSize)}
	err = os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
	if err == nil {
		err = os.NewSyscallError("setsockopt", unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: patience}))
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *socket) close() error { return os.NewSyscallError("close", unix.Close(s.fd)) }

// ask sends a request about nf_tables, with the names given as its first attributes, and calls each
// for every message of the answer.
func (s *socket) ask(typ uint16, flags uint16, family byte, names []string, each func(message)) error {
	b := make([]byte, unix.NLMSG_HDRLEN+4, 256)
	binary.NativeEndian.PutUint16(b[4:], unix.NFNL_SUBSYS_NFTABLES<<8|typ)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST|flags)
	b[unix.NLMSG_HDRLEN] = family
	for i, name := range names {
		b = binary.NativeEndian.AppendUint16(b, uint16(5+len(name)))
		b = binary.NativeEndian.AppendUint16(b, uint16(i+1))
		b = append(append(b, name...), 0)
		for len(b)%4 != 0 {
			b = append(b, 0)
		}
	}
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	if err := unix.Sendto(s.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	torn := false
	for {
		n, _, err := unix.Recvfrom(s.fd, s.buffer, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return os.NewSyscallError("recvfrom", err)
		}
		for m := range messages(s.buffer[:n]) {
			torn = torn || m.flags&unix.NLM_F_DUMP_INTR != 0
			switch {
			case m.typ == unix.NLMSG_ERROR, m.typ == unix.NLMSG_DONE:
				if err := m.err(); err != nil {
					return err
				}
				if torn {
					return errInterrupted
				}
				return nil
			}
			each(m)
			if m.flags&unix.NLM_F_MULTI == 0 {
				return nil
			}
		}
	}
}

func (s *socket) generation() (id uint32, err error) {
	err = s.ask(unix.NFT_MSG_GETGEN, 0, unix.NFPROTO_UNSPEC, nil, func(m message) {
		for typ, v := range m.attributes() {
			if typ == unix.NFTA_GEN_ID {
				id = number(v)
			}
		}
	})
	return id, err
}

// message is one netlink message; body begins after the netlink header.
type message struct {
	typ, flags uint16
	body       []byte
}

// messages walks the messages in b. A damaged one ends the walk.
func messages(b []byte) iter.Seq[message] {
	return func(yield func(message) bool) {
		for len(b) >= unix.NLMSG_HDRLEN {
			size := int(binary.NativeEndian.Uint32(b))
			if size < unix.NLMSG_HDRLEN || size > len(b) {
				return
			}
			m := message{
				typ:   binary.NativeEndian.Uint16(b[4:]),
				flags: binary.NativeEndian.Uint16(b[6:]),
				body:  b[unix.NLMSG_HDRLEN:size],
			}
			if !yield(m) {
				return
			}
			b = b[min(align(size), len(b)):]
		}
	}
}

func align(n int) int { return (n + 3) &^ 3 }

// err is what the end of an answer says.
func (m message) err() error {
	if len(m.body) < 4 {
		if m.typ == unix.NLMSG_DONE {
			return nil
		}
		return errors.New("a netlink error without a number")
	}
	if n := int32(binary.NativeEndian.Uint32(m.body)); n != 0 {
		return fmt.Errorf("nf_tables: %w", unix.Errno(-n))
	}
	return nil
}

// family is the first byte of nf_tables' own header.
func (m message) family() byte {
	if len(m.body) < 4 {
		return unix.NFPROTO_UNSPEC
	}
	return m.body[0]
}

// attributes walks the attributes after nf_tables' own header.
func (m message) attributes() iter.Seq2[uint16, []byte] {
	if len(m.body) < 4 {
		return attributes(nil)
	}
	return attributes(m.body[4:])
}

// attributes walks the attributes in b by type, without the flag bits.
func attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= 4 {
			size := int(binary.NativeEndian.Uint16(b))
			if size < 4 || size > len(b) {
				return
			}
			if !yield(binary.NativeEndian.Uint16(b[2:])&^(unix.NLA_F_NESTED|unix.NLA_F_NET_BYTEORDER), b[4:size]) {
				return
			}
			b = b[min(align(size), len(b)):]
		}
	}
}

// chars is a string attribute without its end.
func chars(v []byte) []byte {
	for i, c := range v {
		if c == 0 {
			return v[:i]
		}
	}
	return v
}

func text(v []byte) string { return string(chars(v)) }

func number(v []byte) uint32 {
	if len(v) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(v)
}
