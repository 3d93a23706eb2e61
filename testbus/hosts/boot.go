package hosts

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"mesh/shared/refusal"
)

// bootScript starts systemd-nspawn apart from this process.
//
//go:embed boot.sh
var bootScript string

// Bounds for a busy machine; an idle one needs a tenth.
const (
	bootTimeout = 120 * time.Second
	stopTimeout = 60 * time.Second
)

// poweroffSignal asks systemd as PID 1 to power off: SIGRTMIN+4 as glibc counts (systemd(1)).
const poweroffSignal = unix.Signal(34 + 4)

// consoleLog holds what the host said while it booted.
const consoleLog = "console.log"

// root is the host's file system as the machine sees it, whether the host is up or not. What the host
// mounts itself (/run, /tmp) is not in it.
func (h *Host) root() string { return filepath.Join(h.dir, "root") }

// containers is where the host's engine keeps its images and volumes: not on the host's overlay, for the kernel
// stacks no writable overlay on another.
func (h *Host) containers() string { return filepath.Join(h.dir, "containers") }

// makeRoot lays a fresh overlay over the image and gives the host its names.
func (h *Host) makeRoot() error {
	for _, d := range []string{"up", "work", "root", "containers"} {
		if err := os.MkdirAll(filepath.Join(h.dir, d), 0o755); err != nil {
			return err
		}
	}
	opts := fmt.Sprintf("lowerdir=%s,upperdir=%s/up,workdir=%s/work", h.bed.state.Image, h.dir, h.dir)
	if err := unix.Mount(h.Name, h.root(), "overlay", 0, opts); err != nil {
		return fmt.Errorf("mount overlay %s: %w", h.root(), err)
	}
	for name, text := range map[string]string{
		"hostname":   h.Name + "\n",
		"hosts":      "127.0.0.1 localhost\n127.0.1.1 " + h.Name + "\n::1 localhost ip6-localhost ip6-loopback\n",
		"machine-id": fmt.Sprintf("%s%024x\n", h.bed.state.ID, h.n),
	} {
		if err := os.WriteFile(filepath.Join(h.root(), "etc", name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// BootErr switches the host on and returns when systemd has finished booting; failed units are no
// error. A host that is up is left alone.
func (h *Host) BootErr(ctx context.Context) error {
	if up, err := populated(h.cgroup); err != nil || up {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	if err := removeCgroup(ctx, h.cgroup); err != nil {
		return err
	}
	if err := h.makeLink(ctx); err != nil {
		return fmt.Errorf("%s: %w", h.Name, err)
	}
	if err := os.Mkdir(h.cgroup, 0o755); err != nil {
		return err
	}
	args := []string{"setsid", "--fork", "sh", "-c", bootScript, "boot-" + h.Name,
		h.cgroup, filepath.Join(filepath.Base(h.bed.state.Cgroup), h.Name), filepath.Join(h.dir, consoleLog), h.root(), h.name, h.Name, h.Path()}
	if h.bed.state.Flavour == Podman {
		args = append(args, "--bind="+h.containers()+":/var/lib/containers")
	}
	if err := command(ctx, "", args...); err != nil {
		return err
	}
	return h.waitBooted(ctx, 0)
}

// waitBooted waits for systemd to finish booting under another PID than old. It also notices a host
// that died on the way.
func (h *Host) waitBooted(ctx context.Context, old int) error {
	last := "no PID 1 yet"
	started := false
	err := poll(ctx, pollEvery, func() (bool, error) {
		full, err := populated(h.cgroup)
		if err != nil {
			return false, err
		}
		if started && !full {
			return false, errors.New("it ended while booting")
		}
		started = started || full
		pid, err := h.leader()
		if err != nil || pid == old {
			return false, nil
		}
		if !exists(fmt.Sprintf("/proc/%d/root/run/systemd/private", pid)) {
			last = "systemd is starting"
			return false, nil
		}
		out, err := h.RunErr(ctx, "systemctl", "is-system-running", "--wait")
		if err != nil {
			return false, nil
		}
		last = strings.TrimSpace(out.Stdout + out.Stderr)
		return last == "running" || last == "degraded", nil
	})
	if err != nil {
		return fmt.Errorf("boot %s (last seen: %s): %w\n%s", h.Name, last, err, tail(h.Console(), 15))
	}
	return nil
}

// Console is what the host wrote to its console in this and its earlier lives.
func (h *Host) Console() string {
	raw, _ := os.ReadFile(filepath.Join(h.dir, consoleLog)) // absent before the first boot
	return string(raw)
}

// KillErr switches the host off as a cut of its power would, as far as processes and the network go:
// everything ends at once, nothing is told. The machine's page cache lives on, so a write that was
// never synced is still there afterwards.
func (h *Host) KillErr(ctx context.Context) error {
	if err := killCgroup(ctx, h.cgroup); err != nil {
		return err
	}
	return errors.Join(h.forget(), h.deleteLink(ctx))
}

// forget removes what a killed nspawn leaves of itself in the machine's /run: its lock on the root, named
// by device and inode, and the folder through which mounts could be handed in.
func (h *Host) forget() error {
	const run = "/run/systemd/nspawn"
	var st unix.Stat_t
	if err := unix.Stat(h.root(), &st); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("stat %s: %w", h.root(), err)
	}
	lock := fmt.Sprintf("%s/locks/inode-%d:%d", run, st.Dev, st.Ino)
	return errors.Join(os.RemoveAll(lock), os.RemoveAll(filepath.Join(run, "propagate", h.name)))
}

// StopErr shuts the host down in order, and by KillErr when that takes too long. A host that is down is
// left alone.
func (h *Host) StopErr(ctx context.Context) error {
	if pid, err := h.leader(); err == nil {
		if err := unix.Kill(pid, poweroffSignal); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("signal PID 1 of %s: %w", h.Name, err)
		}
		bounded, cancel := context.WithTimeout(ctx, stopTimeout)
		defer cancel()
		if err := waitEmpty(bounded, h.cgroup); err != nil && ctx.Err() != nil {
			return err
		}
	}
	return h.KillErr(ctx)
}

// RebootErr restarts the host in order, as its own "reboot" does, and returns when it has booted.
func (h *Host) RebootErr(ctx context.Context) error {
	pid, err := h.leader()
	if err != nil {
		return err
	}
	if _, err := h.RunErr(ctx, "systemctl", "reboot", "--no-block"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, stopTimeout+bootTimeout)
	defer cancel()
	return h.waitBooted(ctx, pid)
}

// UpErr reports whether the host is on. That holds from the moment it is switched on, not only after it
// booted.
func (h *Host) UpErr() (bool, error) { return populated(h.cgroup) }

// leader is the host's PID 1 as the machine counts. The file may name other processes for a moment while
// systemd starts its services, hence the look at the innermost PID.
func (h *Host) leader() (int, error) {
	raw, _ := os.ReadFile(filepath.Join(h.cgroup, "payload", "init.scope", "cgroup.procs")) // absent: not up
	for _, pid := range strings.Fields(string(raw)) {
		status, err := os.ReadFile("/proc/" + pid + "/status")
		if err != nil {
			continue // it ended meanwhile
		}
		for line := range strings.Lines(string(status)) {
			if f := strings.Fields(line); len(f) > 2 && f[0] == "NSpid:" && f[len(f)-1] == "1" {
				return strconv.Atoi(pid)
			}
		}
	}
	return 0, refusal.New("an act in "+h.Name, "it is down", "boot it")
}
