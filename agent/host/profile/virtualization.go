package profile

import "strings"

// virtualization is what the machine runs in, in the words of systemd-detect-virt(1) where the same
// sources tell: a container first, then the hypervisor; "none" for bare metal.
func (s Source) virtualization() string {
	// systemd as PID 1 of a container writes down what its manager said.
	if c := s.line("/run/systemd/container"); c != "" {
		return c
	}
	switch {
	case s.exists("/run/.containerenv"):
		return "podman"
	case s.exists("/.dockerenv"):
		return "docker"
	}
	release := strings.ToLower(s.line("/proc/sys/kernel/osrelease"))
	if strings.Contains(release, "microsoft") || strings.Contains(release, "wsl") {
		return "wsl"
	}
	if kind := s.firmware(); kind != "" {
		return kind
	}
	if s.line("/sys/hypervisor/type") == "xen" {
		return "xen"
	}
	// On other processors than x86 a device tree tells.
	switch tree := s.line("/proc/device-tree/hypervisor/compatible"); {
	case strings.HasPrefix(tree, "linux,kvm"):
		return "kvm"
	case strings.HasPrefix(tree, "xen,xen"):
		return "xen"
	}
	for line := range strings.Lines(s.text("/proc/cpuinfo")) {
		if strings.HasPrefix(line, "flags") {
			if strings.Contains(strings.TrimSpace(line)+" ", " hypervisor ") {
				return "vm-other"
			}
			break
		}
	}
	return "none"
}

// firmwares are the words by which a virtual machine's firmware is known, as in systemd's
// src/basic/virt.c; the first that fits counts.
var firmwares = [...]struct{ prefix, kind string }{
	{"KVM", "kvm"},
	{"OpenStack", "kvm"},
	{"KubeVirt", "kvm"},
	{"Amazon EC2", "amazon"},
	{"QEMU", "qemu"},
	{"VMware", "vmware"},
	{"VMW", "vmware"},
	{"innotek GmbH", "oracle"},
	{"VirtualBox", "oracle"},
	{"Oracle Corporation", "oracle"},
	{"Xen", "xen"},
	{"Bochs", "bochs"},
	{"Parallels", "parallels"},
	{"BHYVE", "bhyve"},
	{"Hyper-V", "microsoft"},
	{"Apple Virtualization", "apple"},
	{"Google Compute Engine", "google"},
	{"Hetzner", "kvm"},
	{"DigitalOcean", "kvm"},
}

func (s Source) firmware() string {
	const dmi = "/sys/class/dmi/id/"
	for _, name := range [...]string{"product_name", "sys_vendor", "board_vendor", "bios_vendor", "product_version"} {
		value := s.line(dmi + name)
		for _, f := range firmwares {
			if value != "" && strings.HasPrefix(value, f.prefix) {
				return f.kind
			}
		}
	}
	// Microsoft makes hardware as well; only its virtual machine has this name.
	if s.line(dmi+"sys_vendor") == "Microsoft Corporation" && s.line(dmi+"product_name") == "Virtual Machine" {
		return "microsoft"
	}
	return ""
}
