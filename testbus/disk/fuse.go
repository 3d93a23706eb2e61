package disk

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// The few messages of FUSE's protocol (linux/fuse.h, 7.31) that a mount of one file needs: its root is the file
// itself, so nothing is ever looked up.
const (
	opGetattr   = 3
	opOpen      = 14
	opRead      = 15
	opWrite     = 16
	opRelease   = 18
	opFsync     = 20
	opFlush     = 25
	opInit      = 26
	opInterrupt = 36
	opForget    = 2
	opBatchGone = 42

	inHeader, outHeader = 40, 16
	maxWrite            = 128 << 10
	bigWrites           = 1 << 5
	directIO            = 1
)

var order = binary.NativeEndian

// served is a file whose bytes are in memory, and who is told of its writes and syncs.
type served struct {
	fd      int // of /dev/fuse
	content []byte
	write   func(off int64, b []byte)
	sync    func()
}

// serve mounts s over the file at path and answers for it until it is unmounted; ended is closed then.
func (s *served) serve(path string) (ended <-chan struct{}, err error) {
	s.fd, err = unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/fuse: %w", err)
	}
	if err := unix.Mount("mesh-disk", path, "fuse", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("fd=%d,rootmode=100600,user_id=0,group_id=0", s.fd)); err != nil {
		return nil, errors.Join(fmt.Errorf("mount a recorded file: %w", err), unix.Close(s.fd))
	}
	done := make(chan struct{})
	go func() { // ends when the file is unmounted
		defer close(done)
		defer func() { _ = unix.Close(s.fd) }() // nothing is left in it
		buf := make([]byte, maxWrite+4096)
		for {
			n, err := unix.Read(s.fd, buf)
			switch {
			case errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOENT):
				continue
			case err != nil || n < inHeader:
				return
			}
			s.answer(buf[:n])
		}
	}()
	return done, nil
}

func (s *served) answer(in []byte) {
	op, unique, body := order.Uint32(in[4:]), order.Uint64(in[8:]), in[inHeader:]
	var errno unix.Errno
	var out []byte
	switch op {
	case opForget, opBatchGone, opInterrupt:
		return
	case opInit:
		out = s.hello(body)
	case opGetattr:
		out = s.attributes()
	case opOpen:
		out = make([]byte, 16)
		order.PutUint32(out[8:], directIO)
	case opRead:
		off, size := int64(order.Uint64(body[8:])), int64(order.Uint32(body[16:]))
		off = min(off, int64(len(s.content)))
		out = s.content[off:min(off+size, int64(len(s.content)))]
	case opWrite:
		off, size := int64(order.Uint64(body[8:])), int64(order.Uint32(body[16:]))
		data := body[40:]
		if off < 0 || off+size > int64(len(s.content)) || size > int64(len(data)) {
			errno = unix.ENOSPC
			break
		}
		copy(s.content[off:], data[:size])
		s.write(off, data[:size])
		out = make([]byte, 8)
		order.PutUint32(out, uint32(size))
	case opFsync:
		s.sync()
	case opFlush, opRelease:
	default: // holes, attributes and locks: what a disk does not have
		errno = unix.EOPNOTSUPP
		if op != 43 { // FALLOCATE
			errno = unix.ENOSYS
		}
	}
	s.reply(unique, errno, out)
}

func (s *served) hello(in []byte) []byte {
	out := make([]byte, 64)
	order.PutUint32(out, 7)
	order.PutUint32(out[4:], 31)
	order.PutUint32(out[8:], order.Uint32(in[8:])) // read ahead as the kernel likes
	order.PutUint32(out[12:], bigWrites)
	order.PutUint16(out[16:], 16)
	order.PutUint16(out[18:], 12)
	order.PutUint32(out[20:], maxWrite)
	order.PutUint32(out[24:], 1)
	return out
}

func (s *served) attributes() []byte {
	out := make([]byte, 104)
	order.PutUint64(out, 3600) // seconds it holds
	attr := out[16:]
	order.PutUint64(attr, 1)
	order.PutUint64(attr[8:], uint64(len(s.content)))
	order.PutUint64(attr[16:], uint64(len(s.content)/512))
	order.PutUint32(attr[60:], unix.S_IFREG|0o600)
	order.PutUint32(attr[64:], 1)
	order.PutUint32(attr[80:], 4096)
	return out
}

func (s *served) reply(unique uint64, errno unix.Errno, out []byte) {
	if errno != 0 {
		out = nil
	}
	b := make([]byte, outHeader, outHeader+len(out))
	order.PutUint32(b, uint32(outHeader+len(out)))
	order.PutUint32(b[4:], uint32(-int32(errno)))
	order.PutUint64(b[8:], unique)
	_, _ = unix.Write(s.fd, append(b, out...)) // a request that was taken back has nobody to hear it
}
