package rule_test

import (
	"encoding/json"
	"testing"

	"mesh/shared/rule"
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
		"203.0.113.1/24":               "", "everywhere": "", "": "", "fe80::1%eth0": "",
	} {
		f, err := rule.ParseFrom(in)
		if (err == nil) != (want != "") || err == nil && f.String() != want {
			t.Errorf("ParseFrom(%q) = %q, %v, want %q", in, f, err, want)
		}
	}
}

func TestAllowSurvivesJSON(t *testing.T) {
	in := `{"owner":"notes","port":"80/tcp","from":"anywhere"}`
	var a rule.Allow
	if err := json.Unmarshal([]byte(in), &a); err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(a)
	if err != nil || string(out) != in {
		t.Errorf("got %s, %v, want %s", out, err, in)
	}
}

func FuzzPort(f *testing.F) {
	f.Add("80/tcp")
	f.Fuzz(func(t *testing.T, s string) {
		if p, err := rule.ParsePort(s); err == nil && p.String() != s && p.First != p.Last {
			t.Errorf("%q reads back as %q", s, p)
		}
	})
}
