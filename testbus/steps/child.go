// Package steps follows a process through each change it is about to make to files, and kills it, lets half of a
// write happen, or refuses the change with an error such as a full disk's, at the step a test names.
//
// The process asks for it by Obey, which has the kernel hold every system call that changes files until this
// process has answered (seccomp(2), user notification). So the steps are the kernel's own: those of the durable
// writer, of the bundles and of SQLite alike, whatever package made them, and whatever build of it. What memory
// that is mapped is given without a call is not seen; of SQLite that is the index of its log, which it makes anew.
//
// A step that is killed at does not happen: what stands then is what all steps before it made. Root is needed.
// It is for tests and cmd/e2e only.
package steps

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// calls are those that change files, by what they are called.
var calls = map[uint32]string{
	unix.SYS_WRITE: "write", unix.SYS_PWRITE64: "pwrite", unix.SYS_WRITEV: "writev", unix.SYS_PWRITEV: "pwritev",
	unix.SYS_FSYNC: "fsync", unix.SYS_FDATASYNC: "fdatasync", unix.SYS_SYNCFS: "syncfs", unix.SYS_SYNC_FILE_RANGE: "sync range",
	unix.SYS_FTRUNCATE: "truncate", unix.SYS_FALLOCATE: "allocate", unix.SYS_COPY_FILE_RANGE: "copy range",
	unix.SYS_OPENAT:   "create", // with O_CREAT or O_TRUNC only
	unix.SYS_RENAMEAT: "rename", unix.SYS_RENAMEAT2: "rename", unix.SYS_LINKAT: "link", unix.SYS_SYMLINKAT: "symlink",
	unix.SYS_UNLINKAT: "unlink", unix.SYS_MKDIRAT: "mkdir",
	unix.SYS_FCHMOD: "chmod", unix.SYS_FCHMODAT: "chmod", unix.SYS_FCHOWN: "chown", unix.SYS_FCHOWNAT: "chown",
	unix.SYS_FSETXATTR: "setxattr", unix.SYS_UTIMENSAT: "utime",
}

// Obey has the kernel ask whoever is at the other end of socket, which End made, before each change to a file that
// this process makes from now on. It cannot be undone.
func Obey(socket *os.File) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	program := filter()
	const newListener, allThreads, tellWhich = 1 << 3, 1 << 0, 1 << 4 // seccomp(2)
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, newListener|allThreads|tellWhich, uintptr(unsafe.Pointer(&prog)))
	if errno != 0 {
		return fmt.Errorf("have the kernel hold system calls (seccomp): %w", errno)
	}
	// Sendmsg is none of those that are held.
	err := unix.Sendmsg(int(socket.Fd()), []byte{0}, unix.UnixRights(int(fd)), nil, 0)
	return errors.Join(err, unix.Close(int(fd)))
}

// filter holds the calls of the table and lets all else pass.
func filter() []unix.SockFilter {
	load := func(off uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: off}
	}
	ret := func(v uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: v} }
	const nr, flags = 0, 16 + 2*8 // of struct seccomp_data; the low half of the third argument
	out := []unix.SockFilter{load(nr)}
	for n := range calls {
		if n == unix.SYS_OPENAT {
			continue
		}
		out = append(out, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: n, Jf: 1}, ret(unix.SECCOMP_RET_USER_NOTIF))
	}
	return append(out,
		unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_OPENAT, Jf: 3},
		load(flags), unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: unix.O_CREAT | unix.O_TRUNC, Jf: 1}, ret(unix.SECCOMP_RET_USER_NOTIF),
		ret(unix.SECCOMP_RET_ALLOW))
}
