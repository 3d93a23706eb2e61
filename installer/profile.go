package installer

import (
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"mesh/shared/report"
)

// profile is what is known of the machine before its agent runs; the agent's first report, moments
// later, says it in full (NOD-5).
func (m Machine) profile() report.Profile {
	release := map[string]string{}
	b, _ := os.ReadFile(m.at("/etc/os-release")) // a fact that cannot be had is empty
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			release[k] = strings.Trim(v, `"'`)
		}
	}
	p := report.Profile{MachineID: m.line("/etc/machine-id"), OS: release["ID"], OSVersion: release["VERSION_ID"], Arch: runtime.GOARCH, CPUs: runtime.NumCPU()}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		p.Hostname, p.Kernel = unix.ByteSliceToString(u.Nodename[:]), unix.ByteSliceToString(u.Release[:])
	}
	if f := strings.Fields(m.line("/proc/meminfo")); len(f) > 1 { // "MemTotal:  2048000 kB"
		kib, _ := strconv.Atoi(f[1])
		p.MemoryMiB = kib / 1024
	}
	return p
}
