package apply_test

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"mesh/agent/apply"
	"mesh/shared/declaration"
)

// APP-6: what a person changes of a container's things, of links and of the kernel is said with what differs, and
// with drift=report only said: nothing is made, nothing started, no engine asked. With drift=repair it all comes
// back.
func TestDriftOfContainersLinksAndTheKernel(t *testing.T) {
	b := newBed(t)
	b.installPodman(t)
	c := b.content(t, module("box", boxes(oneImage)))
	c.Drift = declaration.ReportOnly
	applied(t, b.acceptContent(t, 1, c))
	unit := b.root("/etc/systemd/system/mesh-box-web.service")
	must(t, os.Remove(b.root("/etc/containers/networks/mesh-box-back.json")))                                                        // a network removed
	must(t, os.RemoveAll(b.root(store+"/volumes/mesh-box-data")))                                                                    // a volume vanished
	must(t, b.put(store+"/overlay-images/images.json", "[]"))                                                                        // an image removed
	must(t, os.Remove(b.root("/etc/box/current")))                                                                                   // a link that leads
	must(t, os.Symlink("elsewhere", b.root("/etc/box/current")))                                                                     // elsewhere
	must(t, b.put("/proc/sys/net/ipv4/ip_forward", "0\n"))                                                                           // a setting of the kernel
	must(t, b.put("/etc/sysctl.d/60-mesh-box-sysctls.conf", "net.ipv4.ip_forward = 0\n"))                                            // and the file it holds by
	must(t, os.Chmod(unit, 0o600))                                                                                                   // a unit's mode
	b.units.by(t, "mesh-box-web.service", func(p *paperUnit) { p.Active, p.Sub = "inactive", "dead" })                               // a container stopped
	b.units.by(t, "mesh-box-web.service", func(p *paperUnit) { p.DropIns = "/etc/systemd/system/mesh-box-web.service.d/mine.conf" }) // and changed from beside
	b.units.calls(t)
	b.asked(t)
	want := []string{"file:/etc/sysctl.d/60-mesh-box-sysctls.conf", "image:box/" + oneImage, "link:/etc/box/current", "network:mesh-box-back", "sysctl:net.ipv4.ip_forward",
		"unit:mesh-box-web.service", "volume:mesh-box-data"}
	said := map[string]string{}
	before := stamps(t, b.path("root"))
	for range 12 {
		b.clock.Advance(time.Minute)
		r := b.pass(t, apply.Reconcile)
		for _, d := range r.Drift {
			if said[d.Thing] += d.What + "; "; d.Repaired {
				t.Errorf("it was repaired: %+v", d)
			}
		}
		if calls, asked := b.units.calls(t), b.asked(t); r.Steps > 0 || len(calls)+len(asked) > 0 {
			t.Fatalf("%d steps, systemd was asked %q, the engine %q", r.Steps, calls, asked)
		}
	}
	if got := slices.Sorted(maps.Keys(said)); !slices.Equal(got, want) {
		t.Errorf("said of %q\nwant %q", got, want)
	}
	if what := said["unit:mesh-box-web.service"]; !strings.Contains(what, "mine.conf") || !strings.Contains(what, "it was stopped") || !strings.Contains(what, "mode is 0600") {
		t.Errorf("of the unit it says %q", what)
	}
	if stamps(t, b.path("root")) != before {
		t.Error("something was written")
	}

	c.Drift = declaration.Repair
	r := b.acceptContent(t, 2, c)
	if r.Steps < len(want) {
		t.Errorf("%d steps: %+v", r.Steps, r)
	}
	b.clock.Advance(10 * time.Minute)
	if r = b.pass(t, apply.Reconcile); r.Steps > 0 {
		t.Errorf("not all was put right at once: %d steps, %+v", r.Steps, r.Drift)
	}
	if to, err := os.Readlink(b.root("/etc/box/current")); err != nil || to != "conf" {
		t.Errorf("the link leads to %s: %v", to, err)
	}
	for _, p := range []string{"/etc/containers/networks/mesh-box-back.json", store + "/volumes/mesh-box-data/_data"} {
		if !b.there(t, p) {
			t.Errorf("%s is not back", p)
		}
	}
}
