package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mesh/firewall/foreign"
	"mesh/shared/refusal"
	"mesh/testbus/netlab"
)

// in runs one command line inside a network namespace.
func in(t *testing.T, s *netlab.Space, args ...string) (out string, err error) {
	t.Helper()
	s.Do(func() { out, err = try(t, args...) })
	return out, err
}

// NET-8: the words of the reading, for people and for programs.
func TestFirewallRead(t *testing.T) {
	s := netlab.NewSpace(t, "host")
	if out, err := in(t, s, "firewall", "read"); err != nil || out != "nothing refuses traffic here (0 tables)\n" {
		t.Errorf("%q, %v", out, err)
	}
	s.Run("table inet my_table {\nchain my_input {\ntype filter hook input priority 0; policy drop;\n}\nchain spare {\ndrop\n}\n}\n", "nft", "-f", "-")
	out, err := in(t, s, "firewall", "read", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var r foreign.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Tables) != 1 || len(r.Refusing) != 1 || r.Refusing[0].Owner[0] != "unknown" || r.Refusing[0].Policy != "drop" || len(r.Held) != 1 {
		t.Errorf("%s", out)
	}
	out, err = in(t, s, "firewall", "read")
	for _, words := range []string{"inet my_table", "my_input", "policy drop", "leave and name", "holds refusals, but does not refuse", "no base chain leads to it"} {
		if err != nil || !strings.Contains(out, words) {
			t.Errorf("no %q in %s, %v", words, out, err)
		}
	}
}

// A withdrawn rule bites at once where a person asks for it.
func TestFirewallEnd(t *testing.T) {
	lab := netlab.New(t)
	lab.Host.Run("table inet t {\nchain c {\ntype filter hook input priority 0;\nct state established accept\n}\n}\n", "nft", "-f", "-")
	lab.Host.Serve("tcp", "[::]:22")
	c, err := lab.Outside.Dial("tcp", netlab.HostOutside4+":22", 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if out, err := in(t, lab.Host, "firewall", "end", "80/tcp from anywhere", "vrrp from tunnel"); err != nil || out != "0 flows ended\n" {
		t.Errorf("%q, %v", out, err)
	}
	if out, err := in(t, lab.Host, "firewall", "end", "22/tcp from 203.0.113.0/24"); err != nil || out != "1 flows ended\n" {
		t.Errorf("%q, %v", out, err)
	}
	if out, err := in(t, lab.Host, "firewall", "end", "22"); refusal.Of(err) == nil {
		t.Errorf("%q, %v", out, err)
	}
}

const declared = `{"format":1,"mesh":"m","node":"n","seq":1,"bus":{},"drift":"repair",
	"filter":{"allow":[{"owner":"admin","port":"22/tcp","from":"anywhere"},{"owner":"notes","port":"8000-8010/udp","from":"tunnel"}],"tunnel":"wg0"},"modules":[]}`

// NET-16 and issue 4: what would be loaded, as nft takes it, with and without an uplink.
func TestFirewallRender(t *testing.T) {
	file := filepath.Join(t.TempDir(), "declaration")
	lab := netlab.New(t)
	for name, tt := range map[string]struct {
		text string
		s    *netlab.Space
		want string
	}{
		"plain":             {declared, lab.Host, `"` + netlab.Uplink + `"`},
		"signed":            {"mesh-declaration/1 key signature\n" + declared, lab.Host, "notes: 8000-8010/udp from tunnel"},
		"without an uplink": {declared, netlab.NewSpace(t, "alone"), "# no uplink here"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(file, []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := in(t, tt.s, "firewall", "render", "--declaration", file)
			if err != nil || !strings.Contains(out, tt.want) {
				t.Fatalf("no %s in %s, %v", tt.want, out, err)
			}
			tt.s.Run(out, "nft", "-c", "-f", "-")
		})
	}
	for name, tt := range map[string]struct{ text, want string }{
		"no filter":  {strings.Replace(declared, `"filter":`, `"filters":`, 1), "filters"},
		"none said":  {`{"format":1,"mesh":"m","node":"n","seq":1,"bus":{},"drift":"repair","modules":[]}`, "keeps the filter it has"},
		"no JSON":    {"hello", "refused: "},
		"bad prefix": {strings.Replace(declared, "anywhere", "nowhere", 1), "nowhere"},
	} {
		if err := os.WriteFile(file, []byte(tt.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := in(t, lab.Host, "firewall", "render", "--declaration", file); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, %s", name, err, out)
		}
	}
}
