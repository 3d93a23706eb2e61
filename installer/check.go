package installer

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"mesh/installer/unit"
	"mesh/shared/refusal"
)

const (
	// leastSystemd knows every setting of the units (ProtectProc= came last, with v247).
	leastSystemd = 247
	// leastDisk is for the programs and a state that grows; the bus reserves 192 MiB of its own, and its
	// server takes on three quarters of what is free.
	leastDisk            = 200 << 20
	leastDiskCoordinator = 600 << 20
)

// checks are what must hold of the machine before anything on it is changed.
func (i *Installer) checks(programs []string, disk int64) []Step {
	return []Step{
		{What: "check who runs this", Reads: true, Do: i.checkRoot},
		{What: "check that systemd runs this machine", Reads: true, Do: i.checkSystemd},
		{What: "check that the kernel can filter packets", Reads: true, Do: i.checkFilter},
		{What: "check the programs", Reads: true, Do: func(ctx context.Context) (string, error) { return i.checkPrograms(ctx, programs) }},
		{What: "check that files can be written", Reads: true, Do: i.checkWritable},
		{What: "check the disk", Reads: true, Do: func(context.Context) (string, error) { return i.checkDisk(disk) }},
		{What: "check the machine id", Reads: true, Do: i.checkMachineID},
	}
}

func (i *Installer) checkRoot(context.Context) (string, error) {
	if i.Machine.UID != 0 {
		return "", refusal.Newf("to install mesh", "run it with sudo", "it writes to %s and %s, and this user (uid %d) is not root", programFolder, unit.Folder, i.Machine.UID)
	}
	return "this is root", nil
}

func (i *Installer) checkSystemd(ctx context.Context) (string, error) {
	const do = "use a machine with a newer Linux distribution: Debian 12, Ubuntu 22.04, Fedora 34 or later"
	// sd_booted(3)
	if !exists(i.Machine.at("/run/systemd/system")) {
		return "", refusal.New("this machine", "systemd is not its PID 1, and mesh runs everything as systemd units", "use a machine or a container that systemd boots")
	}
	out, err := i.Machine.Run(ctx, "systemctl", "--version")
	if err != nil {
		return "", err
	}
	var version int
	if f := strings.Fields(out); len(f) > 1 && f[0] == "systemd" {
		version, _ = strconv.Atoi(strings.SplitN(f[1], "-", 2)[0]) // 0: too old, and said
	}
	if version < leastSystemd {
		return "", refusal.Newf("this machine", do, "its systemd is version %d, and mesh's units need %d", version, leastSystemd)
	}
	return fmt.Sprintf("systemd %d runs this machine", version), nil
}

func (i *Installer) checkFilter(context.Context) (string, error) {
	if err := i.Machine.Filter(); err != nil {
		return "", refusal.New("this machine", "its kernel does not filter packets with nftables: "+oneLine(err), "use a kernel with nf_tables (CONFIG_NF_TABLES_INET); a container needs CAP_NET_ADMIN")
	}
	return "the kernel can filter packets with nftables", nil
}

// checkPrograms looks at the files and lets each say its version: it is there, whole and for this
// machine's processor.
func (i *Installer) checkPrograms(ctx context.Context, programs []string) (string, error) {
	var said []string
	for _, name := range programs {
		file := filepath.Join(i.From, name)
		if err := checkArch(file); err != nil {
			return "", refusal.New("to install "+name, oneLine(err), `name the folder that holds the programs with --from; "make" builds them`)
		}
		version, err := i.versionOf(ctx, name)
		if err != nil {
			return "", refusal.New("to install "+name, file+" does not run here: "+oneLine(err), "take programs that were built for this machine, all of one release")
		}
		said = append(said, name+" "+version)
	}
	return "the programs run here: " + strings.Join(said, ", "), nil
}

// machines are the processors of ELF files, by Go's names.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64, "arm": elf.EM_ARM, "386": elf.EM_386, "riscv64": elf.EM_RISCV}

func checkArch(file string) error {
	f, err := elf.Open(file)
	var path *fs.PathError
	switch {
	case errors.As(err, &path):
		return err
	case err != nil:
		return fmt.Errorf("%s is no program: %w", file, err)
	}
	defer f.Close() // only read
	if want, known := machines[runtime.GOARCH]; known && f.Machine != want {
		return fmt.Errorf("%s is for another processor (%v), and this machine is %s", file, f.Machine, runtime.GOARCH)
	}
	return nil
}

// versionOf is what "name --version" says after the word version.
func (i *Installer) versionOf(ctx context.Context, name string) (string, error) {
	out, err := i.Machine.Run(ctx, filepath.Join(i.From, name), "--version")
	if err != nil {
		return "", err
	}
	_, version, ok := strings.Cut(strings.TrimSpace(out), " version ")
	if !ok {
		return "", fmt.Errorf("it says %q when asked for its version", out)
	}
	return version, nil
}

func (i *Installer) checkWritable(context.Context) (string, error) {
	for _, folder := range []string{programFolder, unit.Folder, agentFolder} {
		err := i.Machine.Writable(i.Machine.at(folder))
		if errors.Is(err, unix.EROFS) {
			err = errors.New("its file system is mounted read-only")
		}
		if err != nil {
			return "", refusal.New("to install mesh in "+folder, oneLine(err), "make it writable (mount -o remount,rw), or use a system whose /etc, /var and /usr/local can be written")
		}
	}
	return "files can be written", nil
}

func (i *Installer) checkDisk(least int64) (string, error) {
	for _, folder := range []string{agentFolder, programFolder} {
		n, err := i.Machine.Free(i.Machine.at(folder))
		if err != nil {
			return "", err
		}
		if n < least {
			return "", refusal.Newf("this machine", "make room and run the same command again", "%s are free for %s, and mesh wants %s", size(n), folder, size(least))
		}
	}
	n, err := i.Machine.Free(i.Machine.at(agentFolder))
	return size(n) + " of disk are free", err
}

func size(n int64) string {
	if n >= 1<<30 {
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	}
	return fmt.Sprintf("%d MiB", n>>20)
}

var machineIDRule = regexp.MustCompile(`^[0-9a-f]{32}$`) // machine-id(5)

func (i *Installer) checkMachineID(context.Context) (string, error) {
	id, err := i.Machine.machineID()
	if err != nil {
		return "", err
	}
	return "the machine id is " + id[:8] + "…", nil
}

func (m Machine) machineID() (string, error) {
	id := m.line("/etc/machine-id")
	if !machineIDRule.MatchString(id) {
		return "", refusal.Newf("this machine", "make one: systemd-machine-id-setup", "/etc/machine-id holds %q, which is no machine id, and a clone could not be told from it", id)
	}
	return id, nil
}

// line is the first line of a small file, empty when it cannot be had.
func (m Machine) line(path string) string {
	b, _ := os.ReadFile(m.at(path)) // empty
	first, _, _ := strings.Cut(string(b), "\n")
	return strings.TrimSpace(first)
}
