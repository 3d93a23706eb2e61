package firewall_test

import (
	"strings"
	"testing"
	"time"

	"mesh/firewall"
	"mesh/shared/clock"
	"mesh/testbus/netlab"
)

// instantClock lets the two seconds of a warm-up pass at once.
type instantClock struct{ *clock.Fake }

func (c instantClock) After(time.Duration) <-chan time.Time { return c.Fake.After(0) }

// NET-7: a trial stands beside the table, and ends with the process that made it.
func TestTrialEndsWithItsProcess(t *testing.T) {
	host := netlab.NewSpace(t, "host")
	table := func(outside string) firewall.Table {
		made, err := firewall.Compile(firewall.Filter{Outside: []string{outside}})
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	open := func(options ...firewall.Option) (d *firewall.Driver) {
		t.Helper()
		var err error
		instant := firewall.WithClock(instantClock{clock.NewFake(time.Unix(0, 0))})
		host.Do(func() { d, err = firewall.Open(append(options, instant)...) })
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	tables := func(want ...string) {
		t.Helper()
		got := strings.Split(strings.TrimSpace(host.Run("", "nft", "list", "tables")), "\n")
		for i := range got {
			got[i] = strings.TrimPrefix(got[i], "table inet ")
		}
		if strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("tables %q, want %q", got, want)
		}
	}
	ctx := t.Context()
	d := open()
	must(d.Load(ctx, table("up0")))
	must(d.Try(ctx, table("up1")))
	tables("mesh", "mesh-trial")
	if why, err := d.Differs(ctx, table("up0")); why != "" || err != nil {
		t.Errorf("the table differs: %s, %v", why, err)
	}
	must(d.Close()) // as a kill would
	tables("mesh")
	host.Run(table("up0").BootText(), "nft", "-f", "-")
	d = open()
	must(d.Load(ctx, table("up0")))
	tables("mesh", "mesh-boot")
	must(d.DropBoot(ctx))
	must(d.Try(ctx, table("up1")))
	if is, err := d.Trying(ctx); !is || err != nil {
		t.Errorf("trying: %v, %v", is, err)
	}
	must(d.EndTrial(ctx))
	if is, err := d.Trying(ctx); is || err != nil {
		t.Errorf("trying after the end: %v, %v", is, err)
	}
	tables("mesh")
	must(d.Close())
	// Without owned tables the trial is left to the next process.
	d = open(firewall.WithoutOwner())
	must(d.Try(ctx, table("up1")))
	must(d.Close())
	tables("mesh", "mesh-trial")
	d = open()
	must(d.Try(ctx, table("up1")))
	must(d.EndTrial(ctx))
	tables("mesh")
	must(d.Close())
}
