package installer

import (
	"os"
	"strings"
	"testing"

	"mesh/installer/unit"
)

// NET-10: the unit is laid and enabled, laid again when it was changed by hand, taken back when a later step
// fails, and a machine without nft is told.
func TestBootFilter(t *testing.T) {
	b := newBed(t)
	path := unit.Folder + "/" + unit.FilterName
	lay := func() error {
		b.said.Reset()
		return b.steps(t.Context(), []Step{b.bootFilter().lay()})
	}
	must(t, lay())
	if b.read(path) != unit.Filter() || !strings.Contains(b.state(unit.FilterName), "UnitFileState=enabled") {
		t.Errorf("the unit is %q, %s", b.read(path), b.state(unit.FilterName))
	}
	b.ran()
	must(t, lay())
	if ran := b.ran(); len(ran) != 0 {
		t.Errorf("a second time it ran %q", ran)
	}
	b.write(path, "[Service]\n")
	must(t, os.Remove(b.at("/usr/sbin/nft")))
	must(t, lay())
	if b.read(path) != unit.Filter() || !strings.Contains(b.said.String(), "install the package nftables") {
		t.Errorf("after a change by hand, without nft: %q, said %q", b.read(path), b.said.String())
	}

	b = newBed(t)
	before := b.tree()
	failing := Step{What: "fail", Do: func(ctx) (string, error) { return "", os.ErrPermission }}
	if err := b.steps(t.Context(), []Step{b.bootFilter().lay(), failing}); err == nil {
		t.Fatal("it did not fail")
	}
	if after := b.tree(); len(after) != len(before) || strings.Contains(b.state(unit.FilterName), "enabled") {
		t.Errorf("left behind: %v, %s", after, b.state(unit.FilterName))
	}
}
