package engine_test

import (
	"fmt"
	"slices"
	"testing"
)

// What podman ps says of ports is read whatever way they are published, and its rules are asked for by name.
func TestPublishedPorts(t *testing.T) {
	s := &stub{answer: func([]string) (int, string) {
		return 0, "web\t0.0.0.0:8080->80/tcp, 192.0.2.1:9000-9002->9000-9002/udp\nbare\t\nsix\t[2001:db8::1]:53->53/udp, :::70000->1/tcp\nold\t80/tcp\n"
	}}
	e := on(t, podman, s, nil)
	all, err := e.Published(t.Context())
	must(t, err)
	var got []string
	for _, p := range all {
		got = append(got, fmt.Sprintf("%s %s %s %d", p.Container, p.Protocol, p.Address, p.Port))
	}
	want := []string{"web tcp 0.0.0.0 8080", "web udp 192.0.2.1 9000", "web udp 192.0.2.1 9001", "web udp 192.0.2.1 9002", "six udp 2001:db8::1 53"}
	if !slices.Equal(got, want) {
		t.Errorf("published are %q, want %q", got, want)
	}
	must(t, e.ReloadNetwork(t.Context(), "web"))
	if last := s.asked[len(s.asked)-1]; last != "network reload web" {
		t.Errorf("podman was asked %q", last)
	}
	quiet := &stub{}
	d := on(t, docker, quiet, nil)
	if all, err := d.Published(t.Context()); err != nil || all != nil || d.ReloadNetwork(t.Context(), "web") != nil || len(quiet.asked) > 0 {
		t.Errorf("docker was asked %q, %v, %v", quiet.asked, all, err)
	}
}
