package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// sample is one round of one side.
type sample struct{ wall, cpu time.Duration }

// cpuOf is the processor time of all threads of a process, the dead ones included; 0 is this process.
func cpuOf(pid int) time.Duration {
	id := int32(unix.CLOCK_PROCESS_CPUTIME_ID)
	if pid != 0 {
		id = int32(^pid)<<3 | 2 // CPUCLOCK_SCHED of clock_getcpuclockid(3)
	}
	var t unix.Timespec
	if unix.ClockGettime(id, &t) != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// cpuOfAll is the sum of some processes.
func cpuOfAll(children ...*child) (sum time.Duration) {
	for _, c := range children {
		sum += cpuOf(c.pid())
	}
	return sum
}

// memory is what a process holds, in KiB.
type memory struct{ rss, anon, peak float64 }

func memoryOf(pid int) (m memory) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return m
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		v, _ := strconv.ParseFloat(f[1], 64) // other lines hold words; they are not looked at
		switch f[0] {
		case "VmRSS:":
			m.rss = v
		case "RssAnon:":
			m.anon = v
		case "VmHWM:":
			m.peak = v
		}
	}
	return m
}

// wakeups is how often the threads of a process were put on a processor (proc(5), schedstat).
func wakeups(pid int) (n int64) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		return 0
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // the thread ended
		}
		if x := strings.Fields(string(b)); len(x) == 3 {
			k, _ := strconv.ParseInt(x[2], 10, 64)
			n += k
		}
	}
	return n
}

// idle is the share of processor time nobody used during d, of the whole machine.
func idle(ctx context.Context, d time.Duration) float64 {
	all0, idle0 := processorTime()
	pause(ctx, d)
	all1, idle1 := processorTime()
	if all1 == all0 {
		return 1
	}
	return (idle1 - idle0) / (all1 - all0)
}

func processorTime() (all, idle float64) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0
	}
	line, _, _ := strings.Cut(string(b), "\n")
	for i, f := range strings.Fields(line)[1:] {
		v, _ := strconv.ParseFloat(f, 64)
		if i >= 8 {
			break // guests are counted as user already
		}
		all += v
		if i == 3 || i == 4 { // idle, iowait
			idle += v
		}
	}
	return all, idle
}

// pause waits d or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// until looks every step until done says yes, for at most bound.
func until(ctx context.Context, what string, step, bound time.Duration, done func() (bool, error)) error {
	over := time.Now().Add(bound)
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if time.Now().After(over) {
			return fmt.Errorf("waited %v for %s", bound, what)
		}
		pause(ctx, step)
	}
}

// quantile of v, which need not be sorted; 0 of nothing.
func quantile(v []float64, q float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	return s[int(q*float64(len(s)-1)+0.5)]
}

func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(v))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// walls and cpus are the samples' times in milliseconds.
func walls(all []sample) (v []float64) {
	for _, s := range all {
		v = append(v, millis(s.wall))
	}
	return v
}

func cpus(all []sample) (v []float64) {
	for _, s := range all {
		v = append(v, millis(s.cpu))
	}
	return v
}

// inTurn runs floor and mesh one after the other, n times after one round to warm up, which is dropped.
func inTurn(ctx context.Context, n int, floor, mesh func(round int) (sample, error)) (f, m []sample, err error) {
	for round := range n + 1 {
		for _, side := range []struct {
			run func(int) (sample, error)
			out *[]sample
		}{{floor, &f}, {mesh, &m}} {
			s, err := side.run(round)
			if err != nil {
				return nil, nil, err
			}
			if ctx.Err() != nil {
				return nil, nil, ctx.Err()
			}
			if round > 0 {
				*side.out = append(*side.out, s)
			}
		}
	}
	return f, m, nil
}

// timed runs fn and says what it took, with the processor time of the children and of this process.
func timed(fn func() error, children ...*child) (sample, error) {
	c, t := cpuOf(0)+cpuOfAll(children...), time.Now()
	err := fn()
	return sample{wall: time.Since(t), cpu: cpuOf(0) + cpuOfAll(children...) - c}, err
}
