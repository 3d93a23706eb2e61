// Package nfnetlink is how mesh speaks to netfilter in the kernel: a socket, the messages that go over
// it written and walked, and nothing of what they mean. The table's writer (the parent) and the reader
// of everybody's rule sets (firewall/foreign) stand on it.
//
// It exists because google/nftables v0.3.0 asks for an echo of every rule (5 to 9 times the time),
// cuts long element lists without a word, cannot set a table's owner, and ignores the kernel's mark on
// a listing that a commit cut short.
//
// A Socket is its caller's: one call at a time, no goroutine. Whatever bytes come, walking them neither
// fails nor panics: a damaged message or attribute ends the walk.
package nfnetlink

import (
	"encoding/binary"
	"errors"
	"iter"

	"golang.org/x/sys/unix"
)

// Message is one netlink message. Body begins after netlink's header; its first bytes are nfnetlink's.
type Message struct {
	Type, Flags uint16
	Seq         uint32 // the request's
	Port        uint32 // of the socket that asked for it; in events, of whoever made the change
	Body        []byte
}

// subHeader is the size of nfnetlink's own header: family, version and resource.
const subHeader = 4

// Messages walks the messages in b.
func Messages(b []byte) iter.Seq[Message] {
	return func(yield func(Message) bool) {
		for len(b) >= unix.NLMSG_HDRLEN {
			size := int(binary.NativeEndian.Uint32(b))
			if size < unix.NLMSG_HDRLEN || size > len(b) {
				return
			}
			m := Message{
				Type:  binary.NativeEndian.Uint16(b[4:]),
				Flags: binary.NativeEndian.Uint16(b[6:]),
				Seq:   binary.NativeEndian.Uint32(b[8:]),
				Port:  binary.NativeEndian.Uint32(b[12:]),
				Body:  b[unix.NLMSG_HDRLEN:size],
			}
			if !yield(m) {
				return
			}
			b = b[min(align(size), len(b)):]
		}
	}
}

func align(n int) int { return (n + 3) &^ 3 }

// KernelError is the kernel's no to one message, with its words where it has some.
type KernelError struct {
	Errno unix.Errno
	Words string
}

// Error is the number in words, and the kernel's own.
func (e *KernelError) Error() string {
	if e.Words != "" {
		return e.Errno.Error() + " (" + e.Words + ")"
	}
	return e.Errno.Error()
}

// Unwrap is the number: errors.Is(err, unix.ENOENT) works.
func (e *KernelError) Unwrap() error { return e.Errno }

// Err is what the end of an answer says: a *KernelError, or nil for an acknowledgement.
func (m Message) Err() error {
	if len(m.Body) < 4 {
		if m.Type == unix.NLMSG_DONE {
			return nil
		}
		return errors.New("a netlink error without a number")
	}
	n := int32(binary.NativeEndian.Uint32(m.Body))
	if n == 0 {
		return nil
	}
	e := &KernelError{Errno: unix.Errno(-n)}
	if m.Flags&unix.NLM_F_ACK_TLVS != 0 && len(m.Body) >= 20 {
		for typ, v := range Attributes(m.Body[20:]) {
			if typ == unix.NLMSGERR_ATTR_MSG {
				e.Words = Text(v)
			}
		}
	}
	return e
}

// Family is the address family the message is about, as NFPROTO_INET.
func (m Message) Family() byte {
	if len(m.Body) < subHeader {
		return unix.NFPROTO_UNSPEC
	}
	return m.Body[0]
}

// Attributes walks the attributes of the message.
func (m Message) Attributes() iter.Seq2[uint16, []byte] {
	if len(m.Body) < subHeader {
		return Attributes(nil)
	}
	return Attributes(m.Body[subHeader:])
}

// Attributes walks the attributes in b by type, without the flag bits. The values point into b.
func Attributes(b []byte) iter.Seq2[uint16, []byte] {
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

// Chars is a string attribute without its end.
func Chars(v []byte) []byte {
	for i, c := range v {
		if c == 0 {
			return v[:i]
		}
	}
	return v
}

// Text is Chars as a string of its own.
func Text(v []byte) string { return string(Chars(v)) }

// Number is a number of 4 bytes in network order, as nearly all of nf_tables' are; 0 for other sizes.
func Number(v []byte) uint32 {
	if len(v) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(v)
}

// Number64 is Number for 8 bytes.
func Number64(v []byte) uint64 {
	if len(v) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(v)
}
