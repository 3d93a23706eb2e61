// Package profile tells what a machine is (NOD-5): operating system, kernel, processor, what it runs
// in, container engine, who manages the network, and what the kernel can do. It reads a handful of small
// files and asks the kernel and the bus; it starts no program and no goroutine and changes nothing.
//
// A fact that cannot be had is left empty: a profile is never an error.
package profile

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"mesh/shared/report"
)

// Source is where the facts come from.
type Source struct {
	// Root is the folder that stands for "/"; empty means "/".
	Root string
	// UplinkIndex and UplinkName are the link whose network manager is asked for; 0 and "" if there is none.
	UplinkIndex int
	UplinkName  string
	// BusNames lists the names owned on the system bus; nil, or an error, leaves out what only it can tell.
	BusNames func(context.Context) ([]string, error)
}

// Detect reads the facts. It takes about a millisecond.
func Detect(ctx context.Context, s Source) report.Profile {
	if s.Root == "" {
		s.Root = "/"
	}
	release := s.assignments("/etc/os-release")
	if len(release) == 0 {
		release = s.assignments("/usr/lib/os-release") // os-release(5)
	}
	p := report.Profile{
		MachineID:      s.line("/etc/machine-id"),
		OS:             release["ID"],
		OSVersion:      release["VERSION_ID"],
		Arch:           runtime.GOARCH,
		CPUs:           runtime.NumCPU(),
		MemoryMiB:      s.memory(),
		Virtualization: s.virtualization(),
		Engine:         s.engine(),
		NetworkManager: s.networkManager(ctx),
		Cgroup:         s.cgroup(),
		Capabilities:   s.capabilities(),
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		p.Hostname, p.Kernel = unix.ByteSliceToString(u.Nodename[:]), unix.ByteSliceToString(u.Release[:])
	}
	return p
}

// BootID names the time since the kernel started; what was true in another boot may not be in this.
func BootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}

// FreeDisk is what anybody but root may still write to the file system of path, and its size, in bytes.
func FreeDisk(path string) (free, size int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, 0, fmt.Errorf("free disk of %s: %w", path, err)
	}
	return int64(st.Bavail) * st.Bsize, int64(st.Blocks) * st.Bsize, nil
}

// engine names the container engines, "docker", "podman" or "docker,podman". Docker counts by its
// socket, podman, which needs no daemon, by its program.
func (s Source) engine() string {
	var found []string
	if s.exists("/run/docker.sock") {
		found = append(found, "docker")
	}
	if s.exists("/usr/bin/podman") || s.exists("/usr/local/bin/podman") {
		found = append(found, "podman")
	}
	return strings.Join(found, ",")
}

// cgroup is "v2", "hybrid" or "v1", by what is mounted where (cgroups(7)).
func (s Source) cgroup() string {
	var st unix.Statfs_t
	switch {
	case unix.Statfs(s.at("/sys/fs/cgroup"), &st) != nil:
		return ""
	case st.Type == unix.CGROUP2_SUPER_MAGIC:
		return "v2"
	case unix.Statfs(s.at("/sys/fs/cgroup/unified"), &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC:
		return "hybrid"
	case s.exists("/sys/fs/cgroup/systemd"), s.exists("/sys/fs/cgroup/memory"):
		return "v1"
	}
	return ""
}

// controllers are the cgroup v2 controllers whose absence a module can feel: limits that do not hold.
var controllers = [...]string{"cpu", "io", "memory", "pids"}

// capabilities are what a kernel may lack, sorted.
func (s Source) capabilities() []string {
	var out []string
	if s.exists("/sys/module/apparmor/parameters/enabled") && s.line("/sys/module/apparmor/parameters/enabled") == "Y" {
		out = append(out, "apparmor")
	}
	has := " " + s.line("/sys/fs/cgroup/cgroup.controllers") + " "
	for _, c := range controllers {
		if strings.Contains(has, " "+c+" ") {
			out = append(out, "cgroup-"+c)
		}
	}
	if s.exists("/proc/net/if_inet6") {
		out = append(out, "ipv6")
	}
	if nftables() {
		out = append(out, "nftables")
	}
	if strings.Contains(s.text("/proc/filesystems"), "\toverlay\n") {
		out = append(out, "overlayfs")
	}
	if s.exists("/sys/fs/selinux/enforce") {
		out = append(out, "selinux")
	}
	return out
}

func (s Source) memory() int {
	for line := range strings.Lines(s.text("/proc/meminfo")) {
		if rest, ok := strings.CutPrefix(line, "MemTotal:"); ok {
			kib, _ := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB"))) // 0: not known
			return kib / 1024
		}
	}
	return 0
}

func (s Source) at(path string) string { return filepath.Join(s.Root, path) }

func (s Source) exists(path string) bool {
	_, err := os.Stat(s.at(path))
	return err == nil
}

func (s Source) text(path string) string {
	b, _ := os.ReadFile(s.at(path)) // a fact that cannot be had is empty
	return string(b)
}

func (s Source) line(path string) string {
	first, _, _ := strings.Cut(s.text(path), "\n")
	return strings.TrimSpace(first)
}

// assignments reads lines of KEY=value, the value perhaps quoted as in a shell (os-release(5)).
func (s Source) assignments(path string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(s.text(path)) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if !ok || strings.HasPrefix(key, "#") {
			continue
		}
		if n := len(value); n >= 2 && (value[0] == '"' || value[0] == '\'') && value[n-1] == value[0] {
			value = value[1 : n-1]
		}
		out[key] = value
	}
	return out
}
