package hosts

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"mesh/shared/refusal"
)

// CacheEnv names the variable for the folder that keeps images; defaultCache stands in for it.
const (
	CacheEnv     = "MESH_HOSTS_CACHE"
	defaultCache = "/var/cache/mesh-hosts"
)

// packages are what a host has besides Debian's minimal base.
var packages = []string{
	"ca-certificates", "curl", "dbus", "iproute2", "iputils-ping", "kmod", "less", "libpam-systemd", "netcat-openbsd",
	"nftables", "procps", "sqlite3", "systemd", "systemd-sysv",
}

// engine is what a host of the flavour Podman has besides. Netavark calls iptables, which nothing recommended by
// podman brings without recommends.
var engine = []string{"aardvark-dns", "conmon", "iptables", "netavark", "podman", "runc"}

// containersConf lets podman's containers run in a host: a machine that grants no CAP_SYS_RESOURCE cannot raise
// limits, and one without the pids controller has none; with a fresh store podman may choose CNI.
const containersConf = `[containers]
default_ulimits=["nofile=1024:1024","nproc=1024:1024"]
pids_limit=0
[engine]
runtime="runc"
[network]
network_backend="netavark"
`

// Flavour is what is on a host besides the plain system.
type Flavour string

// The flavours.
const (
	Plain Flavour = ""
	// Podman: the container engine, its storage on the machine's own file system.
	Podman Flavour = "podman"
	// Docker: the other engine, whose daemon starts with the host.
	Docker Flavour = "docker"
	// Fronts: the front ends of packet filters that people install, none of them switched on.
	Fronts Flavour = "fronts"
	// Daemons: programs that people run, none of them switched on, for modules whose processes they are.
	Daemons Flavour = "daemons"
)

// fronts is what a host of the flavour Fronts has besides: front ends, and what bans beside them.
var fronts = []string{"fail2ban", "firewalld", "iptables", "ufw"}

// daemons is what a host of the flavour Daemons has besides.
var daemons = []string{"nginx-light", "redis-server"}

// asleep are the units of theirs that the packages switch on.
var asleep = map[Flavour][]string{
	Fronts:  {"fail2ban.service", "firewalld.service", "ufw.service"},
	Daemons: {"nginx.service", "redis-server.service"},
}

// includes are the packages of a host.
func (f Flavour) includes() []string {
	switch f {
	case Podman:
		return append(slices.Clone(packages), engine...)
	case Docker:
		return append(slices.Clone(packages), "docker.io", "iptables")
	case Fronts:
		return append(slices.Clone(packages), fronts...)
	case Daemons:
		return append(slices.Clone(packages), daemons...)
	}
	return packages
}

// masked are units that only cost time or fail in a host that is one of many on a machine.
var masked = []string{
	"apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer", "e2scrub_reap.service",
	"fstrim.timer", "console-getty.service", "getty@tty1.service", "systemd-pstore.service", "systemd-firstboot.service",
	"remote-fs.target",
}

// excluded paths are never unpacked: nobody reads manuals in there.
var excluded = []string{"/usr/share/doc/*", "/usr/share/man/*", "/usr/share/info/*", "/usr/share/locale/*"}

// imageVersion is raised when the making of the image changes in a way that the lists do not show.
const imageVersion = "1"

// EnsureImage builds the hosts' root file system if it is not in the cache yet (half a minute) and returns
// its folder. Processes that ask at the same time build it once. It takes Debian's packages from where the
// machine does: same suite, same sources, same proxies.
func EnsureImage(ctx context.Context, f Flavour, log *slog.Logger) (string, error) {
	if err := Check(); err != nil {
		return "", err
	}
	cache := os.Getenv(CacheEnv)
	if cache == "" {
		cache = defaultCache
	}
	suite, err := debianSuite()
	if err != nil {
		return "", err
	}
	image := filepath.Join(cache, "debian-"+suite+"-"+imageKey(suite, f))
	if exists(image) {
		return image, nil
	}
	// The files in it have setuid bits; only root may look below.
	if err := os.MkdirAll(cache, 0o700); err != nil {
		return "", fmt.Errorf("image cache: %w", err)
	}
	unlock, err := lockFile(ctx, filepath.Join(cache, "lock"))
	if err != nil {
		return "", fmt.Errorf("image cache: %w", err)
	}
	defer unlock()
	if exists(image) {
		return image, nil
	}
	log.Info("building the image of the hosts", "suite", suite, "flavour", string(f), "path", image)
	temp := image + ".new"
	if err := os.RemoveAll(temp); err != nil {
		return "", fmt.Errorf("image cache: %w", err)
	}
	if err := buildImage(ctx, suite, f, temp); err != nil {
		return "", errors.Join(fmt.Errorf("build the image of the hosts: %w", err), os.RemoveAll(temp))
	}
	if err := os.Rename(temp, image); err != nil {
		return "", fmt.Errorf("image cache: %w", err)
	}
	return image, nil
}

// imageKey names an image by all that goes into it but the packages' versions.
func imageKey(suite string, f Flavour) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %s %q %q %q", imageVersion, suite, f.includes(), masked, excluded))
	return hex.EncodeToString(sum[:6])
}

// lockFile waits for the file's lock. The kernel drops it with the process, whatever ends that.
func lockFile(ctx context.Context, name string) (unlock func(), err error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	err = poll(ctx, pollEvery, func() (bool, error) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", name, err), f.Close())
	}
	return func() { f.Close() }, nil
}

// debianSuite is the machine's own release: its nspawn and its sources fit that one.
func debianSuite() (string, error) {
	raw, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "", err
	}
	facts := map[string]string{}
	for line := range strings.Lines(string(raw)) {
		k, v, _ := strings.Cut(strings.TrimSpace(line), "=")
		facts[k] = strings.Trim(v, `"'`)
	}
	if facts["ID"] != "debian" || facts["VERSION_CODENAME"] == "" {
		return "", refusal.New("building the image of the hosts",
			fmt.Sprintf("this machine is %q %q, not a Debian release", facts["ID"], facts["VERSION_CODENAME"]),
			"run it on Debian 12 or later")
	}
	return facts["VERSION_CODENAME"], nil
}

// buildImage runs mmdebstrap and settles the result into something that boots fast and says "running".
func buildImage(ctx context.Context, suite string, f Flavour, dir string) error {
	sources, err := aptSources(suite)
	if err != nil {
		return err
	}
	options, err := aptOptions(ctx)
	if err != nil {
		return err
	}
	args := []string{"mmdebstrap", "--quiet", "--mode=root", "--variant=minbase", "--format=directory",
		"--include=" + strings.Join(f.includes(), ","), "--dpkgopt=force-unsafe-io"}
	for _, p := range excluded {
		args = append(args, "--dpkgopt=path-exclude="+p)
	}
	for _, o := range options {
		args = append(args, "--aptopt="+o)
	}
	args = append(append(args, suite, dir), sources...)
	if err := command(ctx, "", args...); err != nil {
		return err
	}
	if err := putAsleep(ctx, dir, f); err != nil {
		return err
	}
	return settleImage(dir, f)
}

// aptSources are the machine's source files that speak of the suite.
func aptSources(suite string) ([]string, error) {
	var files []string
	for _, pattern := range []string{"/etc/apt/sources.list", "/etc/apt/sources.list.d/*.list", "/etc/apt/sources.list.d/*.sources"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		for _, f := range found {
			raw, err := os.ReadFile(f)
			if err != nil {
				return nil, err
			}
			if mentions(raw, suite) {
				files = append(files, f)
			}
		}
	}
	if len(files) == 0 {
		return nil, refusal.New("building the image of the hosts", "no file below /etc/apt names the suite "+suite,
			"give the machine Debian's package sources")
	}
	return files, nil
}

// mentions reports whether a line that is no comment has suite as a word.
func mentions(raw []byte, suite string) bool {
	lines := bufio.NewScanner(bytes.NewReader(raw))
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if strings.HasPrefix(line, "#") {
			continue
		}
		for _, word := range strings.Fields(line) {
			if word == suite {
				return true
			}
		}
	}
	return false
}

// carried are the apt settings that say how this machine reaches its sources; the rest of its
// configuration (hooks, caches) is about its own disk.
var carried = regexp.MustCompile(`(?i)^Acquire::(http|https|ftp|Retries|ForceIPv[46]|Check-Valid-Until|Check-Date)(::[^ ]*)? "[^"]+";$`)

// aptOptions are the machine's settings for reaching its sources.
func aptOptions(ctx context.Context) ([]string, error) {
	raw, err := exec.CommandContext(ctx, "apt-config", "dump").Output()
	if err != nil {
		return nil, fmt.Errorf("apt-config dump: %w", err)
	}
	return carriedOptions(string(raw)), nil
}

func carriedOptions(dump string) []string {
	var options []string
	for line := range strings.Lines(dump) {
		if line = strings.TrimSpace(line); carried.MatchString(line) {
			options = append(options, strings.TrimSuffix(line, ";"))
		}
	}
	return options
}

// settleImage makes the fresh root one that boots quickly and quietly, and drops what it took over from
// the machine.
func settleImage(dir string, f Flavour) error {
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, unit := range masked {
		link := at("etc/systemd/system/" + unit)
		if err := os.Symlink("/dev/null", link); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	for _, d := range []string{"etc/apt/sources.list.d", "etc/apt/apt.conf.d", "etc/apt/auth.conf.d", "var/lib/apt/lists", "var/cache/apt"} {
		if err := os.RemoveAll(at(d)); err != nil {
			return err
		}
		if err := os.MkdirAll(at(d), 0o755); err != nil {
			return err
		}
	}
	files := map[string]string{
		"etc/resolv.conf":                        "", // no name server is there: lookups fail at once
		"etc/apt/sources.list":                   "",
		"etc/machine-id":                         "",
		"etc/systemd/journald.conf.d/hosts.conf": "[Journal]\nStorage=persistent\nSystemMaxUse=64M\n",
		"etc/systemd/system.conf.d/hosts.conf":   "[Manager]\nDefaultTimeoutStopSec=15s\n",
	}
	if f == Podman {
		files["etc/containers/containers.conf"] = containersConf
	}
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(at(name)), 0o755); err != nil {
			return err
		}
		if err := os.Remove(at(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.WriteFile(at(name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(at("var/log/journal"), 0o2755); err != nil {
		return err
	}
	return markUpdated(dir)
}

// putAsleep switches off what the packages of the flavour switched on.
func putAsleep(ctx context.Context, dir string, f Flavour) error {
	if len(asleep[f]) == 0 {
		return nil
	}
	return command(ctx, "", append([]string{"systemctl", "--quiet", "--root=" + dir, "disable"}, asleep[f]...)...)
}

// markUpdated says that /etc and /var were made for this /usr, else each first boot rebuilds caches
// (systemd-update-done.service(8)).
func markUpdated(dir string) error {
	usr, err := os.Stat(filepath.Join(dir, "usr"))
	if err != nil {
		return err
	}
	at := usr.ModTime()
	for _, name := range []string{"etc/.updated", "var/.updated"} {
		stamp := fmt.Appendf(nil, "TIMESTAMP_NSEC=%d\n", at.UnixNano())
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, stamp, 0o644); err != nil {
			return err
		}
		if err := os.Chtimes(file, at, at); err != nil {
			return err
		}
	}
	return nil
}
