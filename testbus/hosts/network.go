package hosts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// The internet side of every bed (198.18.0.0/15 is for test beds, RFC 2544; 203.0.113.0/24 and fd00::/8
// lead nowhere either). FarIPv4 is behind the hosts' default route, not on their link.
const (
	InternetIPv4 = "198.18.0.1"
	InternetIPv6 = "fd00:18::1"
	FarIPv4      = "203.0.113.1"
)

// Link is the name of a host's uplink inside the host.
const Link = "eth0"

// IPv4 is the host's address on the internet: 198.18.0.11 for host1, and so on.
func (h *Host) IPv4() string { return fmt.Sprintf("198.18.0.%d", 10+h.n) }

// IPv6 is the host's other address: fd00:18::11 for host1, and so on.
func (h *Host) IPv6() string { return fmt.Sprintf("fd00:18::%d", 10+h.n) }

// makeInternet makes the namespace with the bridge. Multicast snooping is off: a bridge without a
// querier may drop the neighbour solicitations that IPv6 needs.
func (b *Bed) makeInternet(ctx context.Context) error {
	if err := command(ctx, "", "ip", "netns", "add", b.inet.name); err != nil {
		return err
	}
	err := b.inet.batch(ctx,
		"link set lo up",
		"link add br0 type bridge mcast_snooping 0",
		"addr add "+InternetIPv4+"/24 dev br0",
		"addr add "+InternetIPv6+"/64 dev br0 nodad",
		"addr add "+FarIPv4+"/32 dev lo",
		"link set br0 up",
	)
	if err != nil {
		return err
	}
	// /proc/sys/net shows each thread its own namespace.
	return b.inet.do(func() error {
		return errors.Join(
			os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0),
			os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0))
	})
}

// makeLink gives the host a fresh namespace and plugs it in. The MAC is fixed, so that neighbours still
// reach a host that came back from a power cut.
func (h *Host) makeLink(ctx context.Context) error {
	if err := h.deleteLink(ctx); err != nil {
		return err
	}
	if err := command(ctx, "", "ip", "netns", "add", h.name); err != nil {
		return err
	}
	if err := h.bed.inet.batch(ctx,
		fmt.Sprintf("link add %s type veth peer name %s netns %s", h.port(), Link, h.name),
		fmt.Sprintf("link set %s master br0 up", h.port()),
	); err != nil {
		return err
	}
	return h.batch(ctx,
		"link set lo up",
		fmt.Sprintf("link set %s address 02:00:c6:12:00:%02x", Link, h.n),
		fmt.Sprintf("addr add %s/24 dev %s", h.IPv4(), Link),
		fmt.Sprintf("addr add %s/64 dev %s nodad", h.IPv6(), Link),
		fmt.Sprintf("link set %s up", Link),
		"route add default via "+InternetIPv4,
		"route add ::/0 via "+InternetIPv6,
	)
}

// deleteLink drops the host's namespace and its port. The port is deleted by name because the kernel
// takes a namespace apart some time after its deletion.
func (h *Host) deleteLink(ctx context.Context) error {
	if exists(filepath.Join(netnsDir, h.bed.inet.name)) {
		err := h.bed.inet.batch(ctx, "link del "+h.port())
		if err != nil && !strings.Contains(err.Error(), "Cannot find device") {
			return err
		}
	}
	return deleteNamespace(ctx, h.name)
}

// port is the host's end of the link on the internet's side.
func (h *Host) port() string { return h.Name }

// CutLinkErr unplugs the host from the bridge: packets vanish without a word, and the host's own view of
// its link does not change. RestoreLinkErr ends it.
func (h *Host) CutLinkErr(ctx context.Context) error {
	return h.bed.inet.batch(ctx, "link set "+h.port()+" nomaster")
}

// DropCarrierErr takes the carrier of the host's uplink away: the host sees NO-CARRIER, and the kernel
// marks its routes linkdown. RestoreLinkErr ends it.
func (h *Host) DropCarrierErr(ctx context.Context) error {
	return h.bed.inet.batch(ctx, "link set "+h.port()+" down")
}

// RestoreLinkErr ends CutLinkErr and DropCarrierErr.
func (h *Host) RestoreLinkErr(ctx context.Context) error {
	return h.bed.inet.batch(ctx, "link set "+h.port()+" master br0 up")
}

// deleteNamespace deletes a named network namespace if it is there.
func deleteNamespace(ctx context.Context, name string) error {
	if _, err := os.Lstat(filepath.Join(netnsDir, name)); err != nil {
		return nil
	}
	return command(ctx, "", "ip", "netns", "del", name)
}
