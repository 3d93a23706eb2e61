package link

import (
	"fmt"
	"testing"
)

// What a new network must not cover: all that a route leads to, but not everything that a VPN leads to.
func TestTaken(t *testing.T) {
	inNamespace(t)
	wire(t, "up0", "198.18.0.2/24")
	ip(t, "route add default via 198.18.0.1", "route add 0.0.0.0/1 dev up0", "route add 128.0.0.0/1 dev up0", "route add 10.89.3.0/24 via 198.18.0.1",
		"route add 10.7.0.0/16 dev up0 table 52", "route add blackhole 192.0.2.0/24", "-6 route add fd00:7::/64 dev up0",
		"link add podman1 type bridge", "addr add 10.89.0.1/24 dev podman1", "link set podman1 up")
	got, err := Taken(t.Context())
	if want := "[10.7.0.0/16 10.89.3.0/24 198.18.0.0/24 fd00:7::/64]"; err != nil || fmt.Sprint(got) != want {
		t.Errorf("Taken is %v, %v, want %s", got, err, want)
	}
}
