package steps

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Step is one change to a file that a process is about to make.
type Step struct {
	// N counts the steps of the process, from 1.
	N int
	// Call is the change in a word: "write", "fsync", "rename", "create", "mkdir", "unlink", …
	Call string
	// Path is absolute; of a rename, what is renamed.
	Path string
	// Size is the number of bytes of a write.
	Size int
}

// Answer is what becomes of a step. The zero value lets it happen.
type Answer struct {
	// Kill ends the process before it.
	Kill bool
	// Tear lets the first half of a write happen before Kill.
	Tear bool
	// Err is what the process gets instead; 0 for none.
	Err unix.Errno
}

// Grows says of a step that it needs room on a disk: a full one refuses it.
func (s Step) Grows() bool {
	switch s.Call {
	case "write", "pwrite", "writev", "pwritev", "create", "mkdir", "symlink", "link", "allocate", "copy range", "setxattr":
		return true
	}
	return false
}

// Follow starts cmd, which calls Obey with its file descriptor Socket first of all, asks what is to become of each
// step below the folders, and returns how the process ended. decide is called by one goroutine.
func Follow(cmd *exec.Cmd, folders []string, decide func(Step) Answer) error {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	theirs := os.NewFile(uintptr(ends[1]), "steps")
	cmd.ExtraFiles = []*os.File{theirs}
	err = cmd.Start()
	err = errors.Join(err, theirs.Close())
	if err != nil {
		return errors.Join(err, unix.Close(ends[0]))
	}
	listener, err := receive(ends[0])
	if err == nil {
		f := follower{listener: listener, folders: folders, decide: decide, pid: cmd.Process.Pid}
		err = errors.Join(f.run(), unix.Close(listener))
	}
	if err != nil {
		_ = cmd.Process.Kill() // it may have ended
	}
	return errors.Join(err, unix.Close(ends[0]), cmd.Wait())
}

// Socket is the descriptor that Obey takes in a process that Follow started.
const Socket = 3

// receive takes the descriptor that a process hands over.
func receive(socket int) (int, error) {
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(socket, make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return -1, err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		return -1, errors.Join(err, errors.New("the process ended before it could be followed"))
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return -1, errors.Join(err, errors.New("the process handed over something else"))
	}
	return fds[0], nil
}

// notification and response are the kernel's (linux/seccomp.h).
type notification struct {
	id         uint64
	pid, flags uint32
	nr         int32
	arch       uint32
	ip         uint64
	args       [6]uint64
}

type response struct {
	id    uint64
	val   int64
	err   int32
	flags uint32
}

const (
	ioctlReceive = 0xc0502100
	ioctlSend    = 0xc0182101
	goOn         = 1
)

type follower struct {
	listener int
	folders  []string
	decide   func(Step) Answer
	pid      int
	n        int
}

// run answers until the process is gone.
func (f *follower) run() error {
	for {
		poll := []unix.PollFd{{Fd: int32(f.listener), Events: unix.POLLIN}}
		if _, err := unix.Poll(poll, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		if poll[0].Revents&unix.POLLIN == 0 {
			if poll[0].Revents != 0 {
				return nil
			}
			continue
		}
		var asked notification
		if err := ioctl(f.listener, ioctlReceive, unsafe.Pointer(&asked)); err != nil {
			if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINTR) { // it went while it asked
				continue
			}
			return fmt.Errorf("receive a step: %w", err)
		}
		answer := response{id: asked.id, flags: goOn}
		if s, ok := f.step(&asked); ok {
			a := f.decide(s)
			switch {
			case a.Kill:
				if a.Tear {
					if err := f.tear(&asked, s); err != nil {
						return err
					}
				}
				if err := unix.Kill(f.pid, unix.SIGKILL); err != nil {
					return err
				}
				continue // it is not answered any more
			case a.Err != 0:
				answer.flags, answer.err = 0, -int32(a.Err)
			}
		}
		if err := ioctl(f.listener, ioctlSend, unsafe.Pointer(&answer)); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("answer a step: %w", err)
		}
	}
}

func ioctl(fd int, request uintptr, at unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(at)); errno != 0 {
		return errno
	}
	return nil
}

// step is what is asked, if it is below the folders.
func (f *follower) step(asked *notification) (Step, bool) {
	s := Step{Call: calls[uint32(asked.nr)]}
	pid, a := int(asked.pid), asked.args
	switch uint32(asked.nr) {
	case unix.SYS_WRITE, unix.SYS_PWRITE64:
		s.Size = int(a[2])
		fallthrough
	case unix.SYS_WRITEV, unix.SYS_PWRITEV, unix.SYS_FSYNC, unix.SYS_FDATASYNC, unix.SYS_SYNCFS, unix.SYS_SYNC_FILE_RANGE, unix.SYS_FTRUNCATE,
		unix.SYS_FALLOCATE, unix.SYS_FCHMOD, unix.SYS_FCHOWN, unix.SYS_FSETXATTR:
		s.Path = open(pid, int(int32(a[0])))
	case unix.SYS_COPY_FILE_RANGE:
		s.Path = open(pid, int(int32(a[2])))
	case unix.SYS_SYMLINKAT:
		s.Path = at(pid, int(int32(a[1])), a[2])
	default:
		s.Path = at(pid, int(int32(a[0])), a[1])
	}
	for _, folder := range f.folders {
		if s.Path == folder || strings.HasPrefix(s.Path, folder+"/") {
			f.n++
			s.N = f.n
			return s, true
		}
	}
	return s, false
}

// open is the path of a descriptor.
func open(pid, fd int) string {
	p, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/fd/" + strconv.Itoa(fd))
	if err != nil {
		return ""
	}
	return p
}

// at is the path that a call names beneath a folder's descriptor.
func at(pid, dir int, address uint64) string {
	p := text(pid, address)
	if filepath.IsAbs(p) {
		return filepath.Clean(p)
	}
	var base string
	if dir == unix.AT_FDCWD {
		base, _ = os.Readlink("/proc/" + strconv.Itoa(pid) + "/cwd") // a process that is gone made no step
	} else {
		base = open(pid, dir)
	}
	return filepath.Join(base, p)
}

// text is a string in another process.
func text(pid int, address uint64) string {
	var out []byte
	for len(out) < unix.PathMax {
		// Not over the end of a page: the next may not be there.
		part := make([]byte, 256-address%256)
		n, err := peek(pid, address, part)
		if err != nil || n == 0 {
			break
		}
		if i := bytes.IndexByte(part[:n], 0); i >= 0 {
			return string(append(out, part[:i]...))
		}
		out, address = append(out, part[:n]...), address+uint64(n)
	}
	return string(out)
}

func peek(pid int, address uint64, into []byte) (int, error) {
	local := []unix.Iovec{{Base: &into[0]}}
	local[0].SetLen(len(into))
	return unix.ProcessVMReadv(pid, local, []unix.RemoteIovec{{Base: uintptr(address), Len: len(into)}}, 0)
}

// tear makes half of a write in the place of the process.
func (f *follower) tear(asked *notification, s Step) error {
	if s.Size < 2 || s.Call != "write" && s.Call != "pwrite" {
		return nil
	}
	half := make([]byte, s.Size/2)
	n, err := peek(int(asked.pid), asked.args[1], half)
	if err != nil {
		return err
	}
	pidfd, err := unix.PidfdOpen(f.pid, 0)
	if err != nil {
		return err
	}
	fd, err := unix.PidfdGetfd(pidfd, int(int32(asked.args[0])), 0)
	if err = errors.Join(err, unix.Close(pidfd)); err != nil {
		return err
	}
	if s.Call == "pwrite" {
		_, err = unix.Pwrite(fd, half[:n], int64(asked.args[3]))
	} else {
		_, err = unix.Write(fd, half[:n])
	}
	return errors.Join(err, unix.Close(fd))
}
