package installer

import (
	"slices"
	"strings"
	"testing"

	"mesh/shared/credential"
)

func TestAddresses(t *testing.T) {
	got, err := parseAddresses([]string{"192.0.2.1", "bus.example.com", "2001:db8::1", "[2001:db8::2]", "[2001:db8::1]:4222", "192.0.2.1:443"})
	want := []string{"192.0.2.1:4222", "bus.example.com:4222", "[2001:db8::1]:4222", "[2001:db8::2]:4222", "192.0.2.1:443"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
	for bad, why := range map[string]string{"": "neither", "a b": "neither", "a:b": "1 to 65535", "a:0": "1 to 65535", "0.0.0.0": "nobody", "http://x": "1 to 65535", "[::]:4222": "nobody", "x/y": "neither"} {
		if _, err := parseAddress(bad); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%q: %v, want %q", bad, err, why)
		}
	}
	if _, err := parseAddresses(nil); err == nil || !strings.Contains(err.Error(), "--address") {
		t.Errorf("none: %v", err)
	}
}

func TestListen(t *testing.T) {
	for given, want := range map[string]string{"": "[::]:443", "4222": "[::]:4222", ":4222": "[::]:4222", "192.0.2.1:4222": "192.0.2.1:4222", "x": "", "4222x": "", "a:0": ""} {
		got, err := parseListen(given, []string{"192.0.2.1:443"})
		if got != want || (err != nil) != (want == "") {
			t.Errorf("%q: %q, %v; want %q", given, got, err, want)
		}
	}
	b := credential.Bus{Addresses: []string{"192.0.2.1:4222"}}
	if got := nearer("[::]:4222")(b).Addresses; !slices.Equal(got, []string{"127.0.0.1:4222", "192.0.2.1:4222"}) {
		t.Errorf("nearer: %q", got)
	}
	if got := nearer("192.0.2.1:4222")(b).Addresses; len(got) != 1 {
		t.Errorf("nearer to a bus that listens elsewhere: %q", got)
	}
}
