package foreign_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mesh/firewall/foreign"
	"mesh/shared/waitfor"
	"mesh/testbus/netlab"
)

// TestKeeps: what a converge leaves alone in tables that several tools share (NET-9).
func TestKeeps(t *testing.T) {
	tables, err := foreign.ParseSave("ip", strings.NewReader(`*filter
:INPUT DROP [0:0]
:FORWARD DROP [0:0]
:DOCKER - [0:0]
:DOCKER-USER - [0:0]
:f2b-sshd - [0:0]
:ufw-user-input - [0:0]
-A INPUT -p tcp -j f2b-sshd
-A INPUT -j ufw-user-input
-A FORWARD -o docker0 -j DOCKER
-A FORWARD -o docker1 -j DOCKER
-A DOCKER -i docker0 -j DROP
-A f2b-sshd -s 192.0.2.7/32 -j REJECT
-A ufw-user-input -j DROP
COMMIT
`))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, k := range foreign.Keeps(foreign.Ruleset{Tables: tables}) {
		got = append(got, k.String())
	}
	want := []string{
		"the jump from ip filter INPUT to f2b-sshd of fail2ban", "the jump from ip filter FORWARD to DOCKER of docker",
		"ip filter DOCKER of docker", "ip filter f2b-sshd of fail2ban",
	}
	if !slices.Equal(got, want) {
		t.Errorf("kept %q\nwant %q", got, want)
	}
	for chain, owner := range map[string]string{"DOCKER-USER": "docker", "ufw-user-input": "", "INPUT": "", "KUBE-FORWARD": "kube-proxy"} {
		if got := foreign.Stays(chain); got != owner {
			t.Errorf("%s stays as %q's, want %q", chain, got, owner)
		}
	}
}

// TestServiceText: what nftables.service loads, files it includes in place.
func TestServiceText(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"etc/nftables.conf":    "flush ruleset\ntable inet filter {\n}\ninclude \"nftables.d/*.nft\"\ninclude \"/etc/absent.nft\"\n",
		"etc/nftables.d/a.nft": "table ip nat {\n}\ninclude \"/etc/nftables.d/a.nft\"",
		"etc/nftables.d/b.nft": "table inet extra {\n}\n",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := foreign.ServiceTables(foreign.ServiceText(root)), []string{"inet filter", "ip nat", "inet extra"}; !slices.Equal(got, want) {
		t.Errorf("tables %q, want %q", got, want)
	}
	if got := foreign.ServiceText(t.TempDir()); got != "" {
		t.Errorf("a machine without the file: %q", got)
	}
}

// TestSignature: two looks at a machine that nobody changed are told by it without reading, and each change that
// may matter is one.
func TestSignature(t *testing.T) {
	s := netlab.NewSpace(t, "host")
	s.Run("", "ip", "link", "add", "a0", "type", "veth", "peer", "name", "b0")
	for _, link := range []string{"a0", "b0"} { // IPv6 makes no addresses by itself
		s.Run("", "ip", "link", "set", link, "addrgenmode", "none")
	}
	signature := func() (now string) {
		s.Do(func() {
			var err error
			if now, err = foreign.Signature(); err != nil {
				t.Error(err)
			}
		})
		return now
	}
	var before string
	for _, change := range []string{
		"nft add table inet x", "ip link set a0 up", "ip link set b0 up", "ip address add 192.0.2.1/24 dev a0", "ip address add 198.51.100.1/24 dev b0",
		"ip route add default via 192.0.2.9", "ip route replace default via 198.51.100.9", "ip route add default via 192.0.2.9 table 52",
		"ip -6 address add 2001:db8::1/64 dev a0 nodad", "ip -6 route add default via 2001:db8::9", "ip route add blackhole 203.0.113.0/24",
		"ip link add link a0 name mv0 type macvlan", "ip link set b0 down", "ip link set b0 name c0", "ip link delete mv0",
	} {
		waitfor.True(t, "two equal signatures before "+change, 10*time.Second, func() (bool, any) { // IPv6 takes a moment
			before = signature()
			return signature() == before, before
		})
		s.Run("", strings.Fields(change)...)
		if signature() == before {
			t.Errorf("%q did not change it", change)
		}
	}
}
