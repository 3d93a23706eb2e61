package testbus_test

import (
	"os"
	"regexp"
	"runtime/debug"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"mesh/testbus"
)

const theServer = "github.com/nats-io/nats-server/v2"

// BUS-2: tests run the bus that the mesh ships: the release go.mod pins is the one linked in, and the one
// that says so to whoever connects.
func TestTheBusIsOfThePinnedRelease(t *testing.T) {
	text, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^\s*` + regexp.QuoteMeta(theServer) + ` v(\S+)`).FindSubmatch(text)
	if m == nil {
		t.Fatalf("go.mod does not pin %s", theServer)
	}
	pinned := string(m[1])
	if regexp.MustCompile(`(?m)^\s*(replace )?` + regexp.QuoteMeta(theServer) + `( v\S+)? =>`).Match(text) {
		t.Error("go.mod replaces the bus: tests would run another than the mesh names")
	}
	if server.VERSION != pinned {
		t.Errorf("the linked bus says %s, go.mod pins %s", server.VERSION, pinned)
	}
	if c := testbus.Bare(t); c.Connect(t, "coordinator").NATS().ConnectedServerVersion() != pinned {
		t.Errorf("the running bus is another than %s", pinned)
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		t.Fatal("this test was built without module information")
	}
	for _, d := range info.Deps {
		if d.Path == theServer && (d.Version != "v"+pinned || d.Replace != nil) {
			t.Errorf("built with %s %s (replaced: %v), go.mod pins %s", d.Path, d.Version, d.Replace, pinned)
		}
	}
}
