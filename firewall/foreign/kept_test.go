package foreign_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mesh/firewall/foreign"
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

// TestSignature: two looks at a rule set that nobody changed are told by it without reading.
func TestSignature(t *testing.T) {
	a, err := foreign.Signature()
	if err != nil {
		t.Fatal(err)
	}
	if b, err := foreign.Signature(); err != nil || a != b {
		t.Errorf("%q, then %q, %v", a, b, err)
	}
}
