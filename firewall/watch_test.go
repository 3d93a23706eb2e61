package firewall_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"mesh/firewall"
	"mesh/shared/waitfor"
	"mesh/testbus/netlab"
)

// One foreign load of thousands of rules overflows a socket of default size, and whoever listens there hears
// nothing ever again. Here it is one event, and the next ones come too.
func TestWatchOutlivesLargeLoads(t *testing.T) {
	s := netlab.NewSpace(t, "host")
	d := open(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var events <-chan firewall.Event
	var err error
	s.Do(func() { events, err = d.Watch(ctx) })
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("table ip big {\nchain c {\n")
	for i := range 10000 {
		fmt.Fprintf(&b, "ip saddr 10.%d.%d.1 counter drop\n", i/256, i%256)
	}
	b.WriteString("}\n}\n")
	s.Run(b.String(), "nft", "-f", "-")
	if e := waitfor.Value(t, "the large load", soon, events); e.Process != "nft" {
		t.Errorf("the large load: %+v", e)
	}
	s.Run("", "nft", "delete", "table", "ip", "big")
	if e := waitfor.Value(t, "what came after it", soon, events); e.Process != "nft" {
		t.Errorf("what came after it: %+v", e)
	}
}
