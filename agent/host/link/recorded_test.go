package link

import (
	"reflect"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// said is one link as a kernel with VLANs and bonds says it (rtnetlink(7)).
type said struct {
	index, parent, master uint32
	name, kind, device    string
}

func (s said) message() []byte {
	header := nl.NewIfInfomsg(unix.AF_UNSPEC)
	header.Index, header.Flags, header.Type = int32(s.index), unix.IFF_UP, unix.ARPHRD_ETHER
	b := append(header.Serialize(), nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(s.name)).Serialize()...)
	for typ, v := range map[int]uint32{unix.IFLA_LINK: s.parent, unix.IFLA_MASTER: s.master} {
		if v != 0 {
			b = append(b, nl.NewRtAttr(typ, nl.Uint32Attr(v)).Serialize()...)
		}
	}
	if s.device != "" {
		b = append(b, nl.NewRtAttr(unix.IFLA_PARENT_DEV_NAME, nl.ZeroTerminated(s.device)).Serialize()...)
	}
	if s.kind != "" {
		info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
		info.AddRtAttr(unix.IFLA_INFO_KIND, nl.ZeroTerminated(s.kind))
		b = append(b, info.Serialize()...)
	}
	return b
}

// NET-5, NET-15: VLANs and bonds as a kernel that has them says it, for the one at hand may have none: what is made
// on the wire of an uplink is outside, whatever it is called, and the uplink stays one when it is such a link.
func TestVLANsAndBondsAsAKernelSaysThem(t *testing.T) {
	var links []Link
	for _, s := range []said{
		{index: 2, name: "port-a", device: "0000:01:00.0", master: 4}, {index: 3, name: "port-b", device: "0000:02:00.0", master: 4},
		{index: 4, name: "trunk", kind: "bond"}, {index: 5, name: "wan", kind: "vlan", parent: 4}, {index: 6, name: "guests", kind: "vlan", parent: 4, master: 7},
		{index: 7, name: "lanbr", kind: "bridge"}, {index: 8, name: "pods", kind: "bridge"}, {index: 9, name: "pod1", kind: "veth", parent: 2, master: 8},
		{index: 10, name: "qinq", kind: "vlan", parent: 5}, {index: 11, name: "red", kind: "vrf"},
	} {
		l, err := netlink.LinkDeserialize(nil, s.message())
		if err != nil {
			t.Fatal(s.name, err)
		}
		links = append(links, linkOf(l))
	}
	got := Outside(links, []Route{route("0.0.0.0/0", 254, 5)})
	want := []Found{
		{"guests", false, []string{"vlan on trunk"}}, {"lanbr", false, []string{"bridge with port guests"}},
		{"port-a", false, []string{"hardware"}}, {"port-b", false, []string{"hardware"}}, {"qinq", false, []string{"vlan on wan"}},
		{"trunk", false, []string{"bond with port port-a"}}, {"wan", true, []string{"route to 0.0.0.0/0"}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("outside are %+v\nwant       %+v", got, want)
	}
}
