package profile

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// networkManager is who owns the uplink, asked per link: several managers run side by side on one
// machine, and "enabled" says nothing. "none": set by hand or by the hypervisor. Empty: there is no uplink.
func (s Source) networkManager(ctx context.Context) string {
	if s.UplinkName == "" {
		return ""
	}
	owned := func(string) bool { return true } // without a bus the files must do
	if s.BusNames != nil {
		if names, err := s.BusNames(ctx); err == nil {
			owned = func(name string) bool { return slices.Contains(names, name) }
		}
	}
	if kind := s.networkd(); kind != "" && owned("org.freedesktop.network1") {
		return kind
	}
	state := s.assignments(fmt.Sprintf("/run/NetworkManager/devices/%d", s.UplinkIndex))
	if state["managed"] == "true" && owned("org.freedesktop.NetworkManager") {
		if found, _ := filepath.Glob(s.at("/run/NetworkManager/system-connections/netplan-*")); len(found) > 0 {
			return "netplan+NetworkManager"
		}
		return "NetworkManager"
	}
	switch {
	case s.ifupdown():
		return "ifupdown"
	case s.dhcpcd():
		return "dhcpcd"
	case s.BusNames != nil && owned("net.connman") && s.exists("/run/connman"):
		return "connman"
	case s.BusNames != nil && owned("org.opensuse.Network") && s.exists("/run/wicked"):
		return "wicked"
	}
	return "none"
}

// networkd reads what systemd-networkd says about the link. Netplan never runs: it writes networkd's
// files into /run.
func (s Source) networkd() string {
	state := s.assignments(fmt.Sprintf("/run/systemd/netif/links/%d", s.UplinkIndex))
	if state["NETWORK_FILE"] == "" || state["ADMIN_STATE"] != "configured" && state["ADMIN_STATE"] != "configuring" {
		return ""
	}
	if strings.HasPrefix(filepath.Base(state["NETWORK_FILE"]), "10-netplan-") {
		return "netplan+systemd-networkd"
	}
	return "systemd-networkd"
}

// ifupdown keeps a line for each link it brought up; after ifdown the file stays, without it.
func (s Source) ifupdown() bool {
	for line := range strings.Lines(s.text("/run/network/ifstate")) {
		if strings.HasPrefix(line, s.UplinkName+"=") {
			return true
		}
	}
	return false
}

func (s Source) dhcpcd() bool {
	for _, path := range []string{
		"/run/dhcpcd/pid", "/run/dhcpcd/" + s.UplinkName + ".pid", "/run/dhcpcd/" + s.UplinkName + "-4.pid",
		"/run/dhcpcd.pid", "/run/dhcpcd-" + s.UplinkName + ".pid",
	} {
		if pid := s.line(path); pid != "" && s.line("/proc/"+pid+"/comm") == "dhcpcd" {
			return true
		}
	}
	return false
}

// nftables asks the kernel for the number of its current rule set, in the network namespace of the
// calling thread; a kernel without nf_tables has none. It needs CAP_NET_ADMIN.
func nftables() bool {
	const getGeneration, newGeneration = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWGEN
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return false
	}
	socket := os.NewFile(uintptr(fd), "nfnetlink")
	defer socket.Close() // nothing to lose
	// The kernel answers within the call; the bound is for a sandbox that swallows it.
	if unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 1}) != nil {
		return false
	}
	ask := make([]byte, unix.SizeofNlMsghdr+4) // an nfgenmsg of zeros follows
	binary.NativeEndian.PutUint32(ask, uint32(len(ask)))
	binary.NativeEndian.PutUint16(ask[4:], getGeneration)
	binary.NativeEndian.PutUint16(ask[6:], unix.NLM_F_REQUEST)
	if err := unix.Sendto(fd, ask, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return false
	}
	answer := make([]byte, 4096)
	n, err := unix.Read(fd, answer)
	return err == nil && n >= unix.SizeofNlMsghdr && binary.NativeEndian.Uint16(answer[4:]) == newGeneration
}
