package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"mesh/shared/clock"
)

const (
	// gcPercent keeps the heap of a program that rests nearly always close to what it uses.
	gcPercent = 50
	// The memory that the start took is given back after giveBackFirst, that of what came since every
	// giveBackEvery: both together 7 of 22 MiB, for some milliseconds each time.
	giveBackFirst = 5 * time.Second
	giveBackEvery = 10 * time.Minute
)

// giveBack returns memory that is not needed to the kernel until ctx ends: what is free in the heap, and the
// pages of the program's own file that only the start touched.
func giveBack(ctx context.Context, clk clock.Clock, log *slog.Logger) {
	for wait := giveBackFirst; ; wait = giveBackEvery {
		select {
		case <-ctx.Done():
			return
		case <-clk.After(wait):
			debug.FreeOSMemory()
			if err := forgetFile(); err != nil {
				log.Debug("memory was not given back", "err", err)
			}
		}
	}
}

// forgetFile takes the pages of this program's file that cannot be written to out of its memory. The kernel
// keeps them as it keeps any file, lets them go when memory is short, and maps what is used again by itself
// (madvise(2), MADV_DONTNEED).
func forgetFile() error {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("this program's file: %w", err)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return fmt.Errorf("this program's memory: %w", err)
	}
	for line := range strings.Lines(string(maps)) {
		if from, size, ok := fixed(line, exe); ok {
			// It is the program itself, and stays mapped.
			if _, _, no := unix.Syscall(unix.SYS_MADVISE, from, size, unix.MADV_DONTNEED); no != 0 {
				err := error(no)
				return fmt.Errorf("give memory back: %w", err)
			}
		}
	}
	return nil
}

// fixed reads a line of /proc/<pid>/maps (proc(5)); ok says that it is a part of exe that cannot be written to.
func fixed(line, exe string) (from, size uintptr, ok bool) {
	var to uintptr
	var rights, offset, device string
	var inode uint64
	n, err := fmt.Sscanf(line, "%x-%x %s %s %s %d", &from, &to, &rights, &offset, &device, &inode)
	_, path, _ := strings.Cut(line, "/")
	return from, to - from, err == nil && n == 6 && to > from && inode != 0 && strings.HasPrefix(rights, "r") && rights[1] == '-' && "/"+strings.TrimSpace(path) == exe
}
