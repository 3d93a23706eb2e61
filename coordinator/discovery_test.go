package coordinator_test

import (
	"encoding/json"
	"log/slog"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"mesh/coordinator/client"
	"mesh/shared/bus"
	"mesh/shared/clock"
	"mesh/shared/controller"
	"mesh/shared/waitfor"
)

// SEA-8: what an operator's tool asks of $SRV is answered from the coordinator's account, as the NATS services
// format has it.
func TestTheCoordinatorAnswersDiscovery(t *testing.T) {
	m := startMesh(t)
	c, err := bus.Connect(t.Context(), bus.Options{Bus: m.operator.Bus, Seed: m.operator.Seed, Principal: m.operator.Principal(), Name: "tool", Once: true, Clock: clock.Real(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if _, err := client.Ask[controller.NodesAnswer](t.Context(), m.client(t, m.operator), controller.Nodes, controller.Nothing{}); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{"", ".mesh-controller", ".mesh-controller.mesh-controller"} {
		find := func(what string, v any) {
			t.Helper()
			inbox := c.NATS().NewInbox()
			got := make(chan *nats.Msg, 8)
			sub, err := c.NATS().ChanSubscribe(inbox, got)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.NATS().PublishRequest("$SRV."+what+at, inbox, nil); err != nil {
				t.Fatal(err)
			}
			for { // another account may say that nobody is there
				if msg := waitfor.Value(t, "the answer to "+what+at, soon, got); len(msg.Data) > 0 {
					if err := json.Unmarshal(msg.Data, v); err != nil {
						t.Errorf("%s%s: %v", what, at, err)
					}
					break
				}
			}
			if err := sub.Unsubscribe(); err != nil {
				t.Error(err)
			}
		}
		var info micro.Info
		find("INFO", &info)
		if info.Name != "mesh-controller" || len(info.Endpoints) != len(controller.Table()) || info.Version != "0.0.0-test" {
			t.Errorf("info%s: %+v", at, info)
		}
		for _, e := range info.Endpoints {
			if e.Subject != "mesh.seat.mesh-controller.tool."+e.Name || !json.Valid([]byte(e.Metadata["schema"])) || e.Metadata["role"] == "" || e.QueueGroup != "mesh-controller" {
				t.Errorf("endpoint %+v", e)
			}
		}
		var stats micro.Stats
		find("STATS", &stats)
		asked := 0
		for _, e := range stats.Endpoints {
			asked += e.NumRequests
		}
		if asked == 0 {
			t.Errorf("stats%s: nothing was asked: %+v", at, stats)
		}
	}
}
