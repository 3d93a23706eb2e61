package firewall

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"os"

	"golang.org/x/sys/unix"
)

// socket is a netlink socket of netfilter, used by one caller at a time. The kernel works on a
// request inside the call that sends it, so the answers are there when it returns.
type socket struct {
	fd     int
	port   uint32 // the socket's own address: owner of a table, sender of a commit
	buffer []byte
}

// receiveBuffer holds answers; the kernel allocates only what is used.
const receiveBuffer = 4 << 20

func openSocket() (*socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	s := &socket{fd: fd, buffer: make([]byte, 64<<10)}
	if err := s.prepare(); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return s, nil
}

func (s *socket) prepare() error {
	if err := unix.Bind(s.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	address, err := unix.Getsockname(s.fd)
	if err != nil {
		return os.NewSyscallError("getsockname", err)
	}
	s.port = address.(*unix.SockaddrNetlink).Pid
	// FORCE asks for CAP_NET_ADMIN, which changing the filter needs anyway.
	if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer); err != nil {
		return os.NewSyscallError("setsockopt SO_RCVBUFFORCE", err)
	}
	// Errors come without a copy of the message that caused them, and with the kernel's words.
	for _, option := range []int{unix.NETLINK_CAP_ACK, unix.NETLINK_EXT_ACK} {
		if err := unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, option, 1); err != nil {
			return os.NewSyscallError("setsockopt NETLINK", err)
		}
	}
	return nil
}

func (s *socket) close() error {
	fd := s.fd
	s.fd = -1 // the number may be another file's next
	return os.NewSyscallError("close", unix.Close(fd))
}

func (s *socket) send(b []byte) error {
	// One transaction is one message to the socket: its send buffer has to hold it whole.
	if err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, max(len(b)+4096, 256<<10)); err != nil {
		return os.NewSyscallError("setsockopt SO_SNDBUFFORCE", err)
	}
	return os.NewSyscallError("sendto", unix.Sendto(s.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
}

// kernelError is the kernel's no to one message of a batch.
type kernelError struct {
	errno unix.Errno
	words string
}

func (e *kernelError) Error() string {
	if e.words != "" {
		return e.errno.Error() + " (" + e.words + ")"
	}
	return e.errno.Error()
}

func (e *kernelError) Unwrap() error { return e.errno }

// commit sends a batch whose last message asks for an acknowledgement. It returns the first error of
// any message: then nothing was applied.
func (s *socket) commit(b []byte) error {
	if err := s.send(b); err != nil {
		return err
	}
	var first error
	acknowledged := false
	for {
		n, _, err := unix.Recvfrom(s.fd, s.buffer, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			if first == nil && !acknowledged {
				return errors.New("the kernel did not answer a transaction")
			}
			return first
		case err != nil:
			// ENOBUFS: more errors than the buffer holds. Whoever loads reads back before judging.
			first = errors.Join(first, os.NewSyscallError("recvfrom", err))
			continue
		}
		for m := range messages(s.buffer[:n]) {
			if m.typ != unix.NLMSG_ERROR {
				continue
			}
			if err := m.err(); err != nil && first == nil {
				first = err
			}
			acknowledged = true
		}
	}
}

// ask sends one request and calls each for every message of the answer.
func (s *socket) ask(b []byte, each func(message)) error {
	if err := s.send(b); err != nil {
		return err
	}
	for {
		n, _, err := unix.Recvfrom(s.fd, s.buffer, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return os.NewSyscallError("recvfrom", err)
		}
		for m := range messages(s.buffer[:n]) {
			switch m.typ {
			case unix.NLMSG_DONE, unix.NLMSG_ERROR: // a dump that failed says so in its end
				return m.err()
			}
			each(m)
			if m.flags&unix.NLM_F_MULTI == 0 {
				return nil
			}
		}
	}
}

// message is one netlink message; body begins after the header.
type message struct {
	typ, flags uint16
	port       uint32
	body       []byte
}

// messages walks the messages in b. Damaged ones end the walk.
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
				port:  binary.NativeEndian.Uint32(b[12:]),
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

// err is what an NLMSG_ERROR says, nil for an acknowledgement.
func (m message) err() error {
	if len(m.body) < 4 {
		if m.typ == unix.NLMSG_DONE {
			return nil
		}
		return errors.New("a netlink error without a number")
	}
	number := int32(binary.NativeEndian.Uint32(m.body))
	if number == 0 {
		return nil
	}
	e := &kernelError{errno: unix.Errno(-number)}
	if m.flags&unix.NLM_F_ACK_TLVS != 0 && len(m.body) >= 20 {
		for typ, v := range attributes(m.body[20:]) {
			if typ == unix.NLMSGERR_ATTR_MSG {
				e.words = text(v)
			}
		}
	}
	return e
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

// nft walks the attributes of a message of nf_tables, after its own header.
func (m message) nft() iter.Seq2[uint16, []byte] {
	if len(m.body) < 4 {
		return func(func(uint16, []byte) bool) {}
	}
	return attributes(m.body[4:])
}

// text is a string attribute without its end.
func text(v []byte) string {
	for i, c := range v {
		if c == 0 {
			return string(v[:i])
		}
	}
	return string(v)
}

func number(v []byte) uint32 {
	if len(v) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(v)
}

var errTorn = fmt.Errorf("the rule set changed while it was read")
