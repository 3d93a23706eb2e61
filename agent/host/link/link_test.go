package link

import (
	"net/netip"
	"reflect"
	"testing"
)

func route(dst string, table int, links ...int) Route {
	return Route{Dst: netip.MustParsePrefix(dst), Table: table, Unicast: true, Links: links}
}

func TestOutside(t *testing.T) {
	lo := Link{Index: 1, Name: "lo", Kind: "device", Loopback: true}
	nic := Link{Index: 2, Name: "enp1s0", Kind: "device", Hardware: true}
	cloud := Link{Index: 3, Name: "venet0", Kind: "veth"}
	dead := route("::/0", 254, 3)
	dead.Unicast = false
	for _, tt := range []struct {
		name   string
		links  []Link
		routes []Route
		want   []Found
	}{
		{"nothing known", nil, nil, nil},
		{"default route", []Link{lo, cloud}, []Route{route("0.0.0.0/0", 254, 3)}, []Found{{"venet0", true, []string{"route to 0.0.0.0/0"}}}},
		{"both families, said once each", []Link{cloud}, []Route{route("0.0.0.0/0", 254, 3), route("0.0.0.0/0", 100, 3), route("::/0", 254, 3)},
			[]Found{{"venet0", true, []string{"route to 0.0.0.0/0", "route to ::/0"}}}},
		{"another table", []Link{{Index: 5, Name: "tailscale0", Kind: "tuntap"}}, []Route{route("0.0.0.0/0", 52, 5)},
			[]Found{{"tailscale0", true, []string{"route to 0.0.0.0/0"}}}},
		{"halves of a VPN", []Link{{Index: 5, Name: "tun0"}}, []Route{route("0.0.0.0/1", 254, 5), route("128.0.0.0/1", 254, 5)},
			[]Found{{"tun0", true, []string{"route to 0.0.0.0/1", "route to 128.0.0.0/1"}}}},
		{"all but the private ranges", []Link{{Index: 5, Name: "wg0"}}, []Route{route("0.0.0.0/5", 254, 5)},
			[]Found{{"wg0", true, []string{"route to 0.0.0.0/5"}}}},
		{"all of given-out IPv6", []Link{{Index: 5, Name: "sit1"}}, []Route{route("2000::/3", 254, 5)},
			[]Found{{"sit1", true, []string{"route to 2000::/3"}}}},
		{"legs of a multipath route", []Link{cloud, {Index: 4, Name: "b"}}, []Route{route("0.0.0.0/0", 254, 4, 3)},
			[]Found{{"b", true, []string{"route to 0.0.0.0/0"}}, {"venet0", true, []string{"route to 0.0.0.0/0"}}}},
		{"unreachable default", []Link{cloud}, []Route{dead}, nil},
		{"narrow, local and multicast ways", []Link{lo, cloud},
			[]Route{route("10.0.0.0/8", 254, 3), route("224.0.0.0/4", 254, 3), route("fc00::/7", 254, 3), route("ff00::/8", 254, 3), route("0.0.0.0/0", 100, 1)}, nil},
		{"a route over a link that is gone", []Link{lo}, []Route{route("0.0.0.0/0", 254, 9)}, nil},
		{"a second card without a route", []Link{lo, nic}, nil, []Found{{"enp1s0", false, []string{"hardware"}}}},
		{"vlan and macvlan on hardware", []Link{nic, {Index: 7, Name: "v.5", Kind: "vlan", Parent: 2}, {Index: 8, Name: "mv", Kind: "macvlan", Parent: 7}},
			nil, []Found{{"enp1s0", false, []string{"hardware"}}, {"mv", false, []string{"macvlan on v.5"}}, {"v.5", false, []string{"vlan on enp1s0"}}}},
		{"vlan and bridge on an uplink without hardware that shows", []Link{cloud, {Index: 7, Name: "v.5", Kind: "vlan", Parent: 3}, {Index: 8, Name: "br1", Kind: "bridge"}, {Index: 9, Name: "v.6", Kind: "vlan", Parent: 3, Master: 8}},
			[]Route{route("::/0", 254, 3)}, []Found{{"br1", false, []string{"bridge with port v.6"}}, {"v.5", false, []string{"vlan on venet0"}}, {"v.6", false, []string{"vlan on venet0"}}, {"venet0", true, []string{"route to ::/0"}}}},
		{"bridge over a bond of cards", []Link{
			{Index: 10, Name: "br0", Kind: "bridge"}, {Index: 9, Name: "bond0", Kind: "bond", Master: 10},
			{Index: 2, Name: "enp1s0", Kind: "device", Hardware: true, Master: 9}, {Index: 11, Name: "tap1", Kind: "tuntap", Master: 10},
		}, nil, []Found{{"bond0", false, []string{"bond with port enp1s0"}}, {"br0", false, []string{"bridge with port bond0"}}, {"enp1s0", false, []string{"hardware"}}}},
		{"containers' bridge", []Link{{Index: 12, Name: "docker0", Kind: "bridge"}, {Index: 13, Name: "veth1", Kind: "veth", Parent: 2, Master: 12}, nic},
			nil, []Found{{"enp1s0", false, []string{"hardware"}}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := Outside(tt.links, tt.routes); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("Outside = %+v\nwant      %+v", got, tt.want)
			}
		})
	}
}

func TestUplinks(t *testing.T) {
	got := Uplinks([]Found{{Name: "a", Uplink: true}, {Name: "b"}, {Name: "c", Uplink: true}})
	if !reflect.DeepEqual(got, []string{"a", "c"}) {
		t.Errorf("Uplinks = %v", got)
	}
}
