package rule_test

import (
	"encoding/json"
	"testing"

	"mesh/shared/refusal"
	"mesh/shared/rule"
	"mesh/shared/strict"
)

func TestPort(t *testing.T) {
	for in, ok := range map[string]bool{
		"80/tcp": true, "9000-9010/udp": true, "1/tcp": true, "65535/udp": true,
		"80": false, "0/tcp": false, "65536/tcp": false, "080/tcp": false, "90-80/tcp": false, "80/sctp": false, "-/tcp": false, "+8/tcp": false, "": false,
	} {
		p, err := rule.ParsePort(in)
		if (err == nil) != ok {
			t.Errorf("ParsePort(%q) = %v, want ok %v", in, err, ok)
		}
		if ok && p.String() != in {
			t.Errorf("ParsePort(%q) reads back as %q", in, p)
		}
	}
}

func TestFrom(t *testing.T) {
	for in, want := range map[string]string{
		"anywhere": "anywhere", "tunnel": "tunnel", "203.0.113.9": "203.0.113.9/32",
		"2001:db8::/32,203.0.113.0/24": "203.0.113.0/24, 2001:db8::/32",
		"203.0.113.1/24":               "", "::ffff:1.2.3.4": "", "::ffff:0:0/96": "", "everywhere": "", "": "", "fe80::1%eth0": "",
	} {
		f, err := rule.ParseFrom(in)
		if (err == nil) != (want != "") || err == nil && f.String() != want {
			t.Errorf("ParseFrom(%q) = %q, %v, want %q", in, f, err, want)
		}
	}
}

func TestProtocol(t *testing.T) {
	for in, want := range map[string]string{
		"vrrp": "vrrp", "112": "vrrp", "carp": "vrrp", "esp": "esp", "ah": "ah", "gre": "gre", "ospf": "ospf", "sctp": "sctp", "6in4": "6in4", "41": "6in4",
		"253": "253", "tcp": "", "17": "", "icmp": "", "58": "", "0": "", "255": "", "300": "", "44": "", "60": "", "": "", "VRRP": "", "+50": "", "050": "", "80/tcp": "",
	} {
		p, err := rule.ParseProtocol(in)
		if (err == nil) != (want != "") || err == nil && (p.String() != want || !p.Valid()) {
			t.Errorf("ParseProtocol(%q) = %v, %v, want %q", in, p, err, want)
		}
		if err != nil && refusal.Of(err).Do == "" {
			t.Errorf("ParseProtocol(%q) does not say what to do: %v", in, err)
		}
	}
	for _, p := range []rule.Protocol{0, 1, 6, 17, 43, 44, 58, 255} {
		if p.Valid() {
			t.Errorf("%d is valid", p)
		}
	}
}

func TestParseAllow(t *testing.T) {
	for in, want := range map[string]string{
		"22/tcp from anywhere": ": 22/tcp from anywhere", " vrrp  from 192.0.2.1, 192.0.2.2 ": ": vrrp from 192.0.2.1/32, 192.0.2.2/32",
		"protocol 50 from tunnel": ": esp from tunnel", "protocol 253 from anywhere": ": protocol 253 from anywhere", "6in4 from 192.0.2.9": ": 6in4 from 192.0.2.9/32",
		"22/tcp": "", "22 from anywhere": "", "253 from anywhere": "", " from tunnel": "", "tcp from anywhere": "", "22/tcp from": "", "": "",
	} {
		a, err := rule.ParseAllow(in)
		if (err == nil) != (want != "") || err == nil && a.String() != want {
			t.Errorf("ParseAllow(%q) = %q, %v, want %q", in, a, err, want)
		}
	}
}

func TestAllowSurvivesJSON(t *testing.T) {
	for _, in := range []string{
		`{"owner":"notes","port":"80/tcp","from":"anywhere"}`,
		`{"owner":"balance","protocol":"vrrp","from":"192.0.2.0/24"}`,
	} {
		var a rule.Allow
		if err := strict.Decode([]byte(in), &a); err != nil {
			t.Fatal(err)
		}
		out, err := json.Marshal(a)
		if err != nil || string(out) != in {
			t.Errorf("got %s, %v, want %s", out, err, in)
		}
	}
	for _, in := range []string{
		`{"owner":"notes","Port":"80/tcp","from":"anywhere"}`, `{"owner":"notes","protocol":112,"from":"anywhere"}`,
		`{"owner":"notes","port":"80/tcp","port":"81/tcp","from":"anywhere"}`, `{"owner":"notes","port":"80/tcp","from":"anywhere","to":"x"}`,
	} {
		if err := strict.Decode([]byte(in), new(rule.Allow)); err == nil {
			t.Errorf("%s is taken", in)
		}
	}
}

// FuzzAllow: what is taken reads back as the same rule, in words and in JSON.
func FuzzAllow(f *testing.F) {
	for _, s := range []string{"80/tcp from anywhere", "9000-9010/udp from tunnel", "vrrp from 192.0.2.0/24, 2001:db8::1", "112 from anywhere", "0/tcp from x", "::ffff:1.2.3.4"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := rule.ParseAllow(s)
		if err != nil {
			if refusal.Of(err) == nil {
				t.Errorf("%q: %v is no refusal", s, err)
			}
			return
		}
		again, err := rule.ParseAllow(a.What() + " from " + a.From.String())
		if err != nil || again.String() != a.String() || again.Compare(a) != 0 {
			t.Errorf("%q reads as %q, and that as %q, %v", s, a, again, err)
		}
		b, err := json.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		var decoded rule.Allow
		if err := strict.Decode(b, &decoded); err != nil || decoded.String() != a.String() {
			t.Errorf("%q: %s reads as %q, %v", s, b, decoded, err)
		}
	})
}
