package profile

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// machine makes a root folder with the files given.
func machine(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestDetectReadsTheFiles(t *testing.T) {
	root := machine(t, map[string]string{
		"/etc/machine-id":                         "0123\n",
		"/etc/os-release":                         "PRETTY_NAME=\"Debian GNU/Linux 12\"\n#ID=no\nID=debian\nVERSION_ID='12'\n",
		"/proc/meminfo":                           "MemTotal:        2048000 kB\nMemFree: 1 kB\n",
		"/proc/filesystems":                       "nodev\tproc\nnodev\toverlay\n\text4\n",
		"/proc/net/if_inet6":                      "",
		"/sys/fs/cgroup/cgroup.controllers":       "cpuset cpu memory pids\n",
		"/sys/fs/selinux/enforce":                 "1",
		"/usr/bin/podman":                         "",
		"/run/docker.sock":                        "",
		"/run/systemd/container":                  "systemd-nspawn",
		"/sys/module/apparmor/parameters/enabled": "N\n",
	})
	p := Detect(t.Context(), Source{Root: root})
	if p.MachineID != "0123" || p.OS != "debian" || p.OSVersion != "12" || p.MemoryMiB != 2000 || p.Engine != "docker,podman" ||
		p.Virtualization != "systemd-nspawn" || p.NetworkManager != "" || p.Cgroup != "" {
		t.Errorf("Detect = %+v", p)
	}
	for _, want := range []string{"cgroup-cpu", "cgroup-memory", "cgroup-pids", "ipv6", "overlayfs", "selinux"} {
		if !slices.Contains(p.Capabilities, want) {
			t.Errorf("capabilities %v lack %s", p.Capabilities, want)
		}
	}
	if slices.Contains(p.Capabilities, "apparmor") || slices.Contains(p.Capabilities, "cgroup-io") || !slices.IsSorted(p.Capabilities) {
		t.Errorf("capabilities %v", p.Capabilities)
	}
}

func TestDetectOnThisMachine(t *testing.T) {
	p := Detect(t.Context(), Source{})
	if p.OS == "" || p.Kernel == "" || p.Arch != runtime.GOARCH || p.CPUs < 1 || p.MemoryMiB < 64 || p.Hostname == "" || p.Virtualization == "" {
		t.Errorf("Detect = %+v", p)
	}
	if id, err := BootID(); err != nil || len(id) != 36 {
		t.Errorf("BootID = %q, %v", id, err)
	}
	if free, size, err := FreeDisk(t.TempDir()); err != nil || free <= 0 || size < free {
		t.Errorf("FreeDisk = %d of %d, %v", free, size, err)
	}
	if _, _, err := FreeDisk("/does/not/exist"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("FreeDisk of nothing: %v", err)
	}
	// A root with nothing in it is a machine nothing is known of, not a failure.
	if p := Detect(t.Context(), Source{Root: t.TempDir(), UplinkName: "up0"}); p.OS != "" || p.Virtualization != "none" || p.NetworkManager != "none" {
		t.Errorf("Detect of nothing = %+v", p)
	}
}

func TestNftables(t *testing.T) {
	runtime.LockOSThread() // never unlocked: the thread and its namespace end with the goroutine
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatalf("this test needs root: %v", err)
	}
	if !nftables() {
		t.Error("this kernel has no nftables, or the question is wrong")
	}
}

func TestVirtualization(t *testing.T) {
	for _, tt := range []struct {
		want  string
		files map[string]string
	}{
		{"none", map[string]string{"/proc/cpuinfo": "flags\t\t: fpu hypervisors\n", "/sys/class/dmi/id/sys_vendor": "Microsoft Corporation", "/sys/class/dmi/id/product_name": "Surface"}},
		{"vm-other", map[string]string{"/proc/cpuinfo": "flags\t\t: fpu hypervisor\n"}},
		{"vm-other", map[string]string{"/proc/cpuinfo": "flags\t\t: fpu hypervisor lahf_lm\n"}},
		{"docker", map[string]string{"/.dockerenv": ""}},
		{"podman", map[string]string{"/run/.containerenv": "engine=podman"}},
		{"lxc", map[string]string{"/run/systemd/container": "lxc\n", "/sys/class/dmi/id/sys_vendor": "QEMU"}},
		{"wsl", map[string]string{"/proc/sys/kernel/osrelease": "5.15.90.1-microsoft-standard-WSL2\n"}},
		{"qemu", map[string]string{"/sys/class/dmi/id/sys_vendor": "QEMU\n", "/sys/class/dmi/id/product_name": "Standard PC\n"}},
		{"kvm", map[string]string{"/sys/class/dmi/id/product_name": "KVM Virtual Machine\n", "/sys/class/dmi/id/sys_vendor": "QEMU\n"}},
		{"amazon", map[string]string{"/sys/class/dmi/id/sys_vendor": "Amazon EC2\n"}},
		{"microsoft", map[string]string{"/sys/class/dmi/id/sys_vendor": "Microsoft Corporation\n", "/sys/class/dmi/id/product_name": "Virtual Machine\n"}},
		{"xen", map[string]string{"/sys/hypervisor/type": "xen\n"}},
		{"kvm", map[string]string{"/proc/device-tree/hypervisor/compatible": "linux,kvm\x00"}},
	} {
		if got := (Source{Root: machine(t, tt.files)}).virtualization(); got != tt.want {
			t.Errorf("%v: %q, want %q", tt.files, got, tt.want)
		}
	}
}

func TestNetworkManager(t *testing.T) {
	const networkd, nm = "org.freedesktop.network1", "org.freedesktop.NetworkManager"
	self := map[string]string{"/run/dhcpcd/pid": "77\n", "/proc/77/comm": "dhcpcd\n"}
	for _, tt := range []struct {
		name, want string
		bus        string
		files      map[string]string
	}{
		{"networkd", "systemd-networkd", networkd, map[string]string{"/run/systemd/netif/links/2": "# private\nADMIN_STATE=configured\nNETWORK_FILE=/etc/systemd/network/a.network\n"}},
		{"networkd that ended", "none", "", map[string]string{"/run/systemd/netif/links/2": "ADMIN_STATE=configured\nNETWORK_FILE=/etc/systemd/network/a.network\n"}},
		{"networkd leaves it alone", "none", networkd, map[string]string{"/run/systemd/netif/links/2": "ADMIN_STATE=unmanaged\n"}},
		{"networkd on another link", "none", networkd, map[string]string{"/run/systemd/netif/links/3": "ADMIN_STATE=configured\nNETWORK_FILE=/x\n"}},
		{"netplan", "netplan+systemd-networkd", networkd, map[string]string{"/run/systemd/netif/links/2": "ADMIN_STATE=configuring\nNETWORK_FILE=/run/systemd/network/10-netplan-e0.network\n"}},
		{"NetworkManager", "NetworkManager", nm, map[string]string{"/run/NetworkManager/devices/2": "[device]\nmanaged=true\n"}},
		{"NetworkManager with netplan", "netplan+NetworkManager", nm, map[string]string{"/run/NetworkManager/devices/2": "[device]\nmanaged=true\n", "/run/NetworkManager/system-connections/netplan-e0.nmconnection": ""}},
		{"NetworkManager leaves it to ifupdown", "ifupdown", nm, map[string]string{"/run/NetworkManager/devices/2": "[device]\nmanaged=false\n", "/run/network/ifstate": "lo=lo\neth0=eth0\n"}},
		{"ifupdown after ifdown", "none", "", map[string]string{"/run/network/ifstate": "lo=lo\n"}},
		{"dhcpcd", "dhcpcd", "", self},
		{"dhcpcd that died", "none", "", map[string]string{"/run/dhcpcd/pid": "77\n"}},
		{"connman", "connman", "net.connman", map[string]string{"/run/connman/resolv.conf": ""}},
		{"nobody", "none", "", nil},
	} {
		s := Source{Root: machine(t, tt.files), UplinkIndex: 2, UplinkName: "eth0",
			BusNames: func(context.Context) ([]string, error) { return strings.Fields(tt.bus), nil }}
		if got := s.networkManager(t.Context()); got != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
	dead := Source{Root: machine(t, map[string]string{"/run/systemd/netif/links/2": "ADMIN_STATE=configured\nNETWORK_FILE=/x\n"}), UplinkIndex: 2, UplinkName: "eth0",
		BusNames: func(context.Context) ([]string, error) { return nil, errors.New("no bus") }}
	if got := dead.networkManager(t.Context()); got != "systemd-networkd" {
		t.Errorf("without a bus: %q", got)
	}
}

func BenchmarkDetect(b *testing.B) {
	for b.Loop() {
		Detect(b.Context(), Source{UplinkIndex: 2, UplinkName: "eth0"})
	}
}
