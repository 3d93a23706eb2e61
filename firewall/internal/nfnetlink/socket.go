package nfnetlink

import (
	"encoding/binary"
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// Socket is a netlink socket of netfilter in the network namespace of the thread that opened it, used
// by one caller at a time. The kernel works on a request inside the call that sends it, so the answer
// is there when that returns.
type Socket struct {
	fd     int
	port   uint32
	sends  int // size of the send buffer
	buffer []byte
	asks   Buffer
}

const (
	// answerSize holds one datagram of a listing; the kernel fills at most 32 KiB.
	answerSize = 64 << 10
	// receiveBuffer holds answers; the kernel allocates only what is used.
	receiveBuffer = 4 << 20
	// sendBuffer is the least: one transaction is one datagram and has to fit whole.
	sendBuffer = 256 << 10
	// patience is how many seconds the kernel has for one datagram.
	patience = 10
)

// ErrInterrupted says that a listing is not whole: somebody changed what it lists meanwhile.
var ErrInterrupted = errors.New("the rule set changed while it was read")

// Open makes a Socket.
func Open() (*Socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	s := &Socket{fd: fd, buffer: make([]byte, answerSize)}
	if err := s.prepare(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Socket) prepare() error {
	if err := unix.Bind(s.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	address, err := unix.Getsockname(s.fd)
	if err != nil {
		return os.NewSyscallError("getsockname", err)
	}
	netlinkAddress, ok := address.(*unix.SockaddrNetlink)
	if !ok {
		return errors.New("the netlink socket has an address of another family")
	}
	s.port = netlinkAddress.Pid
	if err := enlarge(s.fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, receiveBuffer); err != nil {
		return os.NewSyscallError("setsockopt SO_RCVBUF", err)
	}
	if err := unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: patience}); err != nil {
		return os.NewSyscallError("setsockopt SO_RCVTIMEO", err)
	}
	// Errors come without a copy of the message that caused them, and with the kernel's words.
	for _, option := range []int{unix.NETLINK_CAP_ACK, unix.NETLINK_EXT_ACK} {
		if err := unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, option, 1); err != nil {
			return os.NewSyscallError("setsockopt NETLINK", err)
		}
	}
	return nil
}

// enlarge sets a buffer past the machine's bound, or, without the right to that, up to it.
func enlarge(fd, force, plain, size int) error {
	err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, size)
	if errors.Is(err, unix.EPERM) {
		return unix.SetsockoptInt(fd, unix.SOL_SOCKET, plain, size)
	}
	return err
}

// Port is the socket's own address: the owner of a table it makes, the sender of its commits.
func (s *Socket) Port() uint32 { return s.port }

// Close gives the socket up. Tables it owns lose their owner, or, without persist, go with it.
func (s *Socket) Close() error {
	fd := s.fd
	s.fd = -1 // the number may be another file's next
	return os.NewSyscallError("close", unix.Close(fd))
}

func (s *Socket) send(b []byte) error {
	if need := max(len(b)+4096, sendBuffer); need > s.sends {
		if err := enlarge(s.fd, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, need); err != nil {
			return os.NewSyscallError("setsockopt SO_SNDBUF", err)
		}
		s.sends = need
	}
	return os.NewSyscallError("sendto", unix.Sendto(s.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}))
}

// Commit sends a batch whose last message asks for an acknowledgement. It returns the first error of
// any message: then nothing was applied. ENOBUFS says that the answer was lost, not the batch: read
// back before judging.
func (s *Socket) Commit(b []byte) error {
	if err := s.send(b); err != nil {
		return err
	}
	var first error
	answered := false
	for {
		n, _, err := unix.Recvfrom(s.fd, s.buffer, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			if first == nil && !answered {
				return errors.New("the kernel did not answer a transaction")
			}
			return first
		case err != nil:
			first = errors.Join(first, os.NewSyscallError("recvfrom", err))
			continue
		}
		for m := range Messages(s.buffer[:n]) {
			if m.Type != unix.NLMSG_ERROR {
				continue
			}
			if err := m.Err(); err != nil && first == nil {
				first = err
			}
			answered = true
		}
	}
}

// Ask sends one request and calls each for every message of the answer, whose bytes are good until each
// returns. It returns ErrInterrupted, after the last call, when the kernel says the listing is not whole.
func (s *Socket) Ask(b []byte, each func(Message)) error {
	if err := s.send(b); err != nil {
		return err
	}
	seq := binary.NativeEndian.Uint32(b[8:])
	torn := false
	for {
		n, _, err := unix.Recvfrom(s.fd, s.buffer, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return os.NewSyscallError("recvfrom", err)
		}
		for m := range Messages(s.buffer[:n]) {
			if m.Seq != seq {
				continue // the rest of an answer that was given up
			}
			torn = torn || m.Flags&unix.NLM_F_DUMP_INTR != 0
			if m.Type == unix.NLMSG_DONE || m.Type == unix.NLMSG_ERROR {
				err := m.Err() // a listing that failed says so in its end
				if err == nil && torn {
					return ErrInterrupted
				}
				return err
			}
			each(m)
			if m.Flags&unix.NLM_F_MULTI == 0 {
				return nil
			}
		}
	}
}

// List asks for all of something of nf_tables, of one family or of all with NFPROTO_UNSPEC; names are
// the request's first attributes: the table, and what is in it.
func (s *Socket) List(typ uint16, family byte, each func(Message), names ...string) error {
	return s.nft(typ, unix.NLM_F_DUMP, family, each, names)
}

// Get is List for one thing.
func (s *Socket) Get(typ uint16, family byte, each func(Message), names ...string) error {
	return s.nft(typ, 0, family, each, names)
}

func (s *Socket) nft(typ, flags uint16, family byte, each func(Message), names []string) error {
	w := &s.asks
	w.B = w.B[:0]
	w.Nft(typ, flags, family)
	for i, name := range names {
		w.Str(uint16(i+1), name)
	}
	w.Finish()
	return s.Ask(w.B, each)
}

// Generation is the number of the rule set in force: each commit of anybody makes another one.
func (s *Socket) Generation() (id uint32, err error) {
	err = s.Get(unix.NFT_MSG_GETGEN, unix.NFPROTO_UNSPEC, func(m Message) {
		for typ, v := range m.Attributes() {
			if typ == unix.NFTA_GEN_ID {
				id = Number(v)
			}
		}
	})
	return id, err
}

// Settled says whether the generation of that number is in force, and whole: it waits for the commit under
// way. The kernel counts a commit just before what it changes is seen, so that Generation alone does not
// tell: a listing begun between the two shows the rules before it and the rules after it, under one number.
// An empty transaction for that generation waits its turn behind every commit, and changes nothing.
func (s *Socket) Settled(generation uint32) (bool, error) {
	w := &s.asks
	w.B = w.B[:0]
	w.BeginBatch(generation)
	w.Begin(unix.NFNL_MSG_BATCH_END, 0, 0, unix.NFNL_SUBSYS_NFTABLES)
	w.Finish()
	if err := s.send(w.B); err != nil {
		return false, err
	}
	// The kernel says nothing when all is well.
	for {
		n, _, err := unix.Recvfrom(s.fd, s.buffer, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return true, nil
		case err != nil:
			return false, os.NewSyscallError("recvfrom", err)
		}
		for m := range Messages(s.buffer[:n]) {
			if m.Type != unix.NLMSG_ERROR || m.Seq != w.seq-1 && m.Seq != w.seq {
				continue
			}
			if err := m.Err(); errors.Is(err, unix.ERESTART) {
				return false, nil
			} else if err != nil {
				return false, err
			}
		}
	}
}

// Steady calls read, which lists something, until what it listed is one state: between two equal
// generations, the first of them whole. It returns ErrInterrupted when the rule set changed each of that
// many times, after as many calls, and otherwise what read does.
func (s *Socket) Steady(times int, read func() error) (generation uint32, err error) {
	for range times {
		before, settled, err := s.settled()
		if err != nil {
			return 0, err
		}
		err = read()
		if generation, errGen := s.Generation(); errGen != nil {
			return 0, errGen
		} else if settled && before == generation && !errors.Is(err, ErrInterrupted) {
			return generation, err
		}
	}
	if generation, err = s.Generation(); err == nil {
		err = ErrInterrupted
	}
	return generation, err
}

// settled is the generation in force. Somebody who commits all the time may keep it from being whole.
func (s *Socket) settled() (generation uint32, settled bool, err error) {
	for range 20 {
		if generation, err = s.Generation(); err != nil {
			return 0, false, err
		}
		if settled, err = s.Settled(generation); settled || err != nil {
			return generation, settled, err
		}
	}
	return generation, false, nil
}
