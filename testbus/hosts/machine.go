package hosts

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"mesh/shared/refusal"
)

// Programs are what the package runs on the machine, with the Debian package of each.
var Programs = map[string]string{
	"systemd-nspawn": "systemd-container",
	"mmdebstrap":     "mmdebstrap",
	"ip":             "iproute2",
	"nsenter":        "util-linux",
	"unshare":        "util-linux",
	"setsid":         "util-linux",
}

// Check refuses a machine on which no bed can stand.
func Check() error {
	if os.Geteuid() != 0 {
		return refusal.New("booting hosts", "this user is not root", "run it as root")
	}
	var missing []string
	for program, pkg := range Programs {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, fmt.Sprintf("%s (package %s)", program, pkg))
		}
	}
	if len(missing) > 0 {
		slices.Sort(missing)
		return refusal.New("booting hosts", "missing: "+strings.Join(missing, ", "), "make deps")
	}
	return nil
}

// prepareDir makes the state folder and returns its absolute path without symlinks, as the kernel
// lists it among the mounts.
func prepareDir(dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return "", err
	}
	if strings.ContainsAny(dir, " \t\n\\,:\"") {
		return "", refusal.New("state folder "+dir, "overlay options cannot hold blanks, commas, colons, quotes or backslashes", "name another folder")
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	if len(entries) > 0 {
		return "", refusal.New("state folder "+dir, fmt.Sprintf("it is not empty (%s)", entries[0].Name()), "take down what is there, or name another folder")
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return "", fmt.Errorf("statfs %s: %w", dir, err)
	}
	if st.Type == unix.OVERLAYFS_SUPER_MAGIC {
		return "", refusal.New("state folder "+dir, "it lies on an overlay file system, and the kernel stacks no writable overlay on another",
			"name a folder on ext4, xfs, btrfs or tmpfs (tests: MESH_HOSTS_STATE)")
	}
	return dir, nil
}

// shareMount makes dir a shared mount point. The hosts' supervisors have mount namespaces of their own
// that copy ours; only through a shared mount do they learn that a root below dir was unmounted.
func shareMount(dir string) error {
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s to itself: %w", dir, err)
	}
	if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share mount %s: %w", dir, err)
	}
	return nil
}

// mountsBelow lists the mount points at or below dir, the last mounted first.
func mountsBelow(dir string) ([]string, error) {
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var points []string
	for line := range strings.Lines(string(raw)) {
		f := strings.Fields(line)
		if len(f) > 4 && (f[4] == dir || strings.HasPrefix(f[4], dir+"/")) {
			points = append(points, f[4])
		}
	}
	slices.Reverse(points)
	return points, nil
}

// unmountBelow unmounts all at or below dir and is sure of it: what is deleted afterwards lies on dir's
// own file system.
func unmountBelow(dir string) error {
	points, err := mountsBelow(dir)
	if err != nil {
		return err
	}
	for _, p := range points {
		if err := unix.Unmount(p, 0); err != nil {
			return fmt.Errorf("unmount %s: %w", p, err)
		}
	}
	if left, err := mountsBelow(dir); err != nil || len(left) > 0 {
		return fmt.Errorf("still mounted below %s: %v %w", dir, left, err)
	}
	return nil
}

// command runs a program of the machine and puts what it said into the error.
func command(ctx context.Context, stdin string, args ...string) error {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, tail(string(out), 20))
	}
	return nil
}

// tail is the last n lines of s.
func tail(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
