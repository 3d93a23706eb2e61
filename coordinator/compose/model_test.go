package compose_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"mesh/coordinator/records"
	"mesh/shared/declaration"
	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/subject"
)

// TestIncrementalIsFromScratch does things to the records in any order, composing now this and now that,
// and holds the composer against one that reads everything anew.
func TestIncrementalIsFromScratch(t *testing.T) {
	fewerChecks(t)
	rapid.Check(t, func(rt *rapid.T) {
		f := newFleet(t)
		c := f.composer()
		names := []subject.Node{"a", "b", "c"}
		modules := []subject.Module{"x", "y"}
		node := rapid.SampledFrom(names)
		module := rapid.SampledFrom(modules)
		value := rapid.StringOf(rapid.RuneFrom([]rune(`ab"\<ü`)))
		ctx := t.Context()
		may := func(err error) { // a refusal is an answer too
			if err != nil && refusal.Of(err) == nil {
				rt.Fatal(err)
			}
		}
		check := func() {
			f.agrees(c)
			if why, err := c.Behind(ctx); err != nil {
				rt.Fatal(err)
			} else if plans, err := c.Names(ctx); err != nil || len(why) > len(plans) {
				rt.Fatal(why, plans, err)
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"add": func(rt *rapid.T) {
				n := node.Draw(rt, "node")
				_, err := f.store.AddNode(ctx, by, n, records.EnrolAsk{Key: userKey(), Curve: curveKey(), MachineID: fmt.Sprintf("%032x", hashName(n))})
				may(err)
			},
			"remove": func(rt *rapid.T) { may(f.store.RemoveNode(ctx, by, node.Draw(rt, "node"))) },
			"register": func(rt *rapid.T) {
				m := module.Draw(rt, "module")
				text := fmt.Sprintf(`{"module":%q,"settings":{"s":{"default":%q}},"needs":{"arch":[%q]},"firewall":{"allow":[{"port":"%d/tcp","from":"anywhere"}]},"build":{"bundle":{"output":"dist"}}}`,
					m, "d", rapid.SampledFrom([]string{"amd64", "arm64"}).Draw(rt, "arch"), rapid.IntRange(1, 3).Draw(rt, "port"))
				digest := fmt.Sprintf("%064x", rapid.IntRange(1, 3).Draw(rt, "digest"))
				f.clk.Advance(time.Millisecond)
				_, _, err := f.store.Register(ctx, by, records.Registration{Manifest: json.RawMessage(text), Artifact: &declaration.Artifact{Digest: digest, Size: 1, Chunks: 1}})
				may(err)
			},
			"assign": func(rt *rapid.T) {
				_, err := f.store.Assign(ctx, by, []subject.Node{node.Draw(rt, "node")}, module.Draw(rt, "module"), records.AssignSet{Set: map[string]string{"s": value.Draw(rt, "value")}})
				may(err)
			},
			"unassign": func(rt *rapid.T) {
				may(f.store.Unassign(ctx, by, []subject.Node{node.Draw(rt, "node")}, module.Draw(rt, "module")))
			},
			"set": func(rt *rapid.T) {
				tunnel := rapid.SampledFrom([]string{"", "wg0"}).Draw(rt, "tunnel")
				_, err := f.store.SetNode(ctx, by, node.Draw(rt, "node"), records.NodeSet{Tunnel: &tunnel})
				may(err)
			},
			"move the bus": func(rt *rapid.T) {
				may(f.store.SetAddresses(ctx, by, []string{fmt.Sprintf("192.0.2.%d:4222", rapid.IntRange(1, 2).Draw(rt, "host"))}))
			},
			"report": func(rt *rapid.T) {
				n := node.Draw(rt, "node")
				if _, err := f.store.Node(ctx, n); err != nil {
					return
				}
				f.hear(n, func(r *report.Report) {
					r.Uplinks = make([]string, rapid.IntRange(0, 1).Draw(rt, "uplinks"))
					r.Profile = &report.Profile{OS: "debian", Arch: rapid.SampledFrom([]string{"amd64", "arm64"}).Draw(rt, "arch")}
					r.Apply.Seq = uint64(rapid.IntRange(0, 9).Draw(rt, "seq"))
				})
			},
			"compose one": func(rt *rapid.T) {
				_, err := c.Node(ctx, node.Draw(rt, "node"))
				may(err)
			},
			"plan": func(rt *rapid.T) {
				_, err := c.Plan(ctx, []subject.Node{node.Draw(rt, "node")})
				may(err)
			},
			"restart":   func(*rapid.T) { c = f.composer() },
			"check all": func(*rapid.T) { check() },
			"": func(rt *rapid.T) {
				if _, err := c.Names(ctx); err != nil {
					rt.Fatal(err)
				}
			},
		})
		check()
	})
}

// fewerChecks spares a full run the syncs of a hundred stores; -rapid.checks asks for more.
func fewerChecks(t *testing.T) {
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "rapid.checks" })
	if given {
		return
	}
	if err := flag.Set("rapid.checks", "30"); err != nil {
		t.Fatal(err)
	}
}
