package compose_test

import (
	"encoding/json"
	"flag"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"mesh/coordinator/compose"
	"mesh/coordinator/records"
	"mesh/shared/credential"
	"mesh/shared/declaration"
	"mesh/shared/grant"
	"mesh/shared/manifest"
	"mesh/shared/report"
	"mesh/shared/rule"
	"mesh/shared/subject"
)

var update = flag.Bool("update", false, "write the golden files anew")

// build is a build of a manifest given as JSON.
func build(id, text string) *records.Build {
	var m manifest.Manifest
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		panic(err)
	}
	return &records.Build{ID: id, Module: m.Module, Manifest: &m, Text: json.RawMessage(text)}
}

func port(s string) rule.Port { return must(rule.ParsePort(s)) }

func view() compose.View {
	web := build("build-2", `{"module":"web","settings":{"port":{"default":"80"},"name":{}},"firewall":{"allow":[{"port":"443/tcp","from":"anywhere"},{"port":"80/tcp","from":"192.0.2.0/24"},{"protocol":"vrrp","from":"192.0.2.0/24"}]}}`)
	web.Artifact = &declaration.Artifact{Digest: strings.Repeat("ab", 32), Size: 10, Chunks: 1}
	return compose.View{
		Node: "db1", Bus: credential.Bus{Addresses: []string{"192.0.2.1:4222"}, Pin: strings.Repeat("00", 32)}, Drift: declaration.Repair,
		Admin: []rule.Allow{{Owner: "admin", Port: port("22/tcp"), From: rule.Anywhere()}},
		Facts: records.Facts{OS: "debian", Arch: "amd64", Uplinks: 1, Tunnel: "wg0"},
		Modules: []compose.Instance{
			{Build: web, Settings: map[string]string{"name": "a"}},
			{Build: build("build-1", `{"module":"dns","firewall":{"allow":[{"port":"53/udp","from":"tunnel"}]},"secrets":{"key":{}}}`), Secrets: map[string]credential.Sealed{"key": "X.y"}},
			{Build: build("build-3", `{"module":"plain"}`)},
		},
	}
}

func TestContentGolden(t *testing.T) {
	c, left := compose.Content(view())
	if len(left) != 0 {
		t.Errorf("left out: %v", left)
	}
	got := must(declaration.AppendContent(nil, c))
	var pretty strings.Builder
	enc := json.NewEncoder(&pretty)
	enc.SetIndent("", "  ")
	if err := enc.Encode(json.RawMessage(got)); err != nil {
		t.Fatal(err)
	}
	const golden = "testdata/content.json"
	if *update {
		if err := os.WriteFile(golden, []byte(pretty.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if d := cmp.Diff(string(must(os.ReadFile(golden))), pretty.String()); d != "" {
		t.Errorf("the content is another one, which every node would be sent (-want +got):\n%s", d)
	}
	whole := declaration.Declaration{Head: declaration.Head{Format: 1, Mesh: "m", Node: "db1", Seq: 1}, Content: *c}
	if err := whole.Check(); err != nil {
		t.Errorf("no agent would take it: %v", err)
	}
}

// TestTheBusStaysOpen: on the machine that runs the bus its port is open, whatever a person sets.
func TestTheBusStaysOpen(t *testing.T) {
	for _, tt := range []struct {
		name, listen string
		addresses    []string
		want         string
	}{
		{"everywhere", "[::]:4222", []string{"bus.example.com:443"}, "bus: 4222/tcp from anywhere"},
		{"at one address", "192.0.2.1:4333", []string{"192.0.2.1:4333"}, "bus: 4333/tcp from anywhere"},
		{"on loopback, behind something", "127.0.0.1:4222", []string{"bus.example.com:443", "192.0.2.1:443", "[2001:db8::1]:80"}, "bus: 80/tcp from anywhere bus: 443/tcp from anywhere"},
		{"on loopback, IPv6", "[::1]:4222", []string{"bus.example.com:443"}, "bus: 443/tcp from anywhere"},
		{"said badly", "rubbish", []string{"192.0.2.1:4222"}, "bus: 4222/tcp from anywhere"},
	} {
		f := newFleet(t)
		f.node("host1")
		f.node("host2")
		f.ok(f.store.SetAddresses(t.Context(), by, tt.addresses))
		for _, n := range []subject.Node{"host1", "host2"} {
			f.hear(n, func(r *report.Report) { r.Uplinks = []string{"eth0"} })
		}
		here := must(f.store.Node(t.Context(), "host1"))
		c := compose.New(f.store, compose.Options{Signer: f.signer, Coordinator: coordinatorKey, Clock: f.clk, Host: compose.Host{MachineID: here.MachineID, Listen: tt.listen}})
		words := func(n subject.Node) string {
			var all []string
			for _, a := range f.opened(c, f.compose(c, n)).Filter.Allow {
				all = append(all, a.String())
			}
			return strings.Join(all, " ")
		}
		if got, want := words("host1"), "admin: 22/tcp from anywhere "+tt.want; got != want {
			t.Errorf("%s: open are %q, want %q", tt.name, got, want)
		}
		none := []rule.Allow{}
		must(f.store.SetNode(t.Context(), by, "host1", records.NodeSet{Admin: &none}))
		if got := words("host1"); got != tt.want {
			t.Errorf("%s, with nobody let in: open are %q, want %q", tt.name, got, tt.want)
		}
		if got := words("host2"); got != "admin: 22/tcp from anywhere" {
			t.Errorf("%s: on another machine open are %q", tt.name, got)
		}
	}
}

func TestContentIsTheSameInAnyOrder(t *testing.T) {
	c, _ := compose.Content(view())
	want := must(declaration.AppendContent(nil, c))
	for range 20 {
		v := view()
		rand.Shuffle(len(v.Modules), func(i, j int) { v.Modules[i], v.Modules[j] = v.Modules[j], v.Modules[i] })
		before := slices.Clone(v.Modules)
		c, _ := compose.Content(v)
		if got := must(declaration.AppendContent(nil, c)); string(got) != string(want) {
			t.Fatalf("shuffled, it is\n%s\nwant\n%s", got, want)
		}
		for i := range before {
			if before[i].Build != v.Modules[i].Build {
				t.Fatal("the view was changed")
			}
		}
	}
}

func TestContentLeavesOut(t *testing.T) {
	for _, tt := range []struct {
		name     string
		change   func(*compose.View)
		left     []string
		modules  []string
		noFilter bool
	}{
		{"nothing", func(*compose.View) {}, nil, []string{"dns", "plain", "web"}, false},
		{"the filter of a node without uplinks", func(v *compose.View) { v.Facts.Uplinks = 0 },
			[]string{"packet filter: the node has reported no uplink"}, []string{"dns", "plain", "web"}, true},
		{"a module for another processor", func(v *compose.View) {
			v.Modules[2].Build = build("b", `{"module":"plain","needs":{"arch":["arm64","arm"]}}`)
		},
			[]string{"module of plain: it needs a machine of arm64 or arm, this one is amd64"}, []string{"dns", "web"}, false},
		{"a module for another system", func(v *compose.View) { v.Modules[2].Build = build("b", `{"module":"plain","needs":{"os":["alpine"]}}`) },
			[]string{"needs the system alpine, this one has debian"}, []string{"dns", "web"}, false},
		{"a module that needs an engine", func(v *compose.View) { v.Modules[2].Build = build("b", `{"module":"plain","needs":{"engine":true}}`) },
			[]string{"container engine"}, []string{"dns", "web"}, false},
		{"nothing on a machine that said nothing", func(v *compose.View) {
			v.Facts = records.Facts{Uplinks: 1}
			v.Modules[2].Build = build("b", `{"module":"plain","needs":{"engine":true,"arch":["arm"],"os":["alpine"]}}`)
		}, nil, []string{"dns", "plain", "web"}, false},
		{"a module that lacks a setting", func(v *compose.View) { v.Modules[0].Settings = nil },
			[]string{"module of web: the assignment lacks the setting name"}, []string{"dns", "plain"}, false},
		{"a module that lacks a secret", func(v *compose.View) { v.Modules[1].Secrets = nil },
			[]string{"module of dns: the assignment lacks the secret key"}, []string{"plain", "web"}, false},
		{"a setting the build has no more", func(v *compose.View) { v.Modules[0].Settings = map[string]string{"name": "a", "old": "b"} },
			[]string{"setting old of web"}, []string{"dns", "plain", "web"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v := view()
			tt.change(&v)
			c, left := compose.Content(v)
			if len(left) != len(tt.left) {
				t.Fatalf("left out: %v, want %v", left, tt.left)
			}
			for i, l := range left {
				if !strings.Contains(l.String(), tt.left[i]) {
					t.Errorf("left out: %v, want %s", l, tt.left[i])
				}
			}
			var names []string
			for _, m := range c.Modules {
				names = append(names, string(m.Name))
				if _, old := m.Settings["old"]; old {
					t.Error("an unknown setting is sent")
				}
				if c.Filter != nil {
					continue
				}
			}
			if !slices.Equal(names, tt.modules) || (c.Filter == nil) != tt.noFilter {
				t.Errorf("it holds %v, filter %v", names, c.Filter)
			}
			if c.Filter == nil {
				return
			}
			for _, a := range c.Filter.Allow { // what is left out opens nothing
				if a.Owner != "admin" && !slices.Contains(names, a.Owner) {
					t.Errorf("%v is open", a)
				}
			}
		})
	}
}

func TestTunnelOfThePersonWins(t *testing.T) {
	v := view()
	v.Tunnel = "tailscale0"
	if c, _ := compose.Content(v); c.Filter.Tunnel != "tailscale0" {
		t.Errorf("the tunnel is %q", c.Filter.Tunnel)
	}
	v.Tunnel = ""
	if c, _ := compose.Content(v); c.Filter.Tunnel != "wg0" {
		t.Errorf("the tunnel is %q", c.Filter.Tunnel)
	}
}

// NET-15: the declaration carries what a person declared inside, and none of it when nothing is.
func TestInsideIsCarried(t *testing.T) {
	v := view()
	v.Inside = []string{"lan0", "lan1"}
	c, left := compose.Content(v)
	if !slices.Equal(c.Filter.Inside, v.Inside) || len(left) != 0 {
		t.Errorf("inside is %q, left out %v", c.Filter.Inside, left)
	}
	body, err := declaration.AppendContent(nil, c)
	if err != nil || !strings.Contains(string(body), `"inside":["lan0","lan1"]`) {
		t.Errorf("%s, %v", body, err)
	}
	v.Inside = nil
	c, _ = compose.Content(v)
	if body, err = declaration.AppendContent(nil, c); err != nil || strings.Contains(string(body), "inside") {
		t.Errorf("an agent of before would refuse %s, %v", body, err)
	}
}

func TestPrincipals(t *testing.T) {
	now := start
	inv := func(id string, expires, used, revoked time.Duration) records.Invitation {
		in := records.Invitation{ID: id, Key: "U" + id, Expires: now.Add(expires)}
		if used != 0 {
			in.Used = now.Add(used)
		}
		if revoked != 0 {
			in.Revoked = now.Add(revoked)
		}
		return in
	}
	u := compose.Users{Coordinator: "UC", Now: now,
		Nodes: []compose.NodeUser{{Name: "db1", Key: "UN", Artifacts: []string{"ab"}}},
		Operators: []records.Operator{
			{Name: "anna", Key: "UA", Role: records.RoleAdmin},
			{Name: "bert", Key: "UB", Role: records.RoleRead},
			{Name: "cleo", Key: "UX", Role: records.RoleAdmin, Revoked: now},
		},
		Invitations: []records.Invitation{
			inv("open", time.Hour, 0, 0), inv("ended", -23*time.Hour, 0, 0), inv("gone", -24*time.Hour, 0, 0),
			inv("used", time.Hour, -23*time.Hour, 0), inv("usedlong", time.Hour, -25*time.Hour, 0), inv("revoked", time.Hour, 0, -time.Second),
		},
		Rights: func(r records.Role) ([]subject.Verb, bool) {
			if r == records.RoleAdmin {
				return []subject.Verb{"push", "status"}, true
			}
			return []subject.Verb{"status"}, false
		},
	}
	want := []grant.Principal{
		{Kind: grant.Coordinator, Name: "coordinator", Key: "UC"},
		{Kind: grant.Node, Name: "db1", Key: "UN", Artifacts: []string{"ab"}},
		{Kind: grant.Operator, Name: "anna", Key: "UA", Verbs: []subject.Verb{"push", "status"}, Upload: true, EveryTool: true},
		{Kind: grant.Operator, Name: "bert", Key: "UB", Verbs: []subject.Verb{"status"}},
		{Kind: grant.Invitation, Name: "open", Key: "Uopen"},
		{Kind: grant.Invitation, Name: "ended", Key: "Uended"},
		{Kind: grant.Invitation, Name: "used", Key: "Uused"},
	}
	if d := cmp.Diff(want, compose.Principals(u)); d != "" {
		t.Errorf("principals (-want +got):\n%s", d)
	}
}

func TestDiff(t *testing.T) {
	before := view()
	after := view()
	after.Drift = declaration.ReportOnly
	after.Bus.Addresses = []string{"192.0.2.9:4222"}
	after.Tunnel = "wg1"
	after.Inside = []string{"lan0", "lan1"}
	after.Served = []rule.Allow{{Owner: records.BusOwner, Port: port("4222/tcp"), From: rule.Anywhere()}}
	after.Modules[0].Settings = map[string]string{"name": "b", "port": "81"}
	after.Modules[0].Build.ID = "build-9"
	after.Modules[1].Secrets = map[string]credential.Sealed{"key": "X.z"}
	after.Modules[2].Build = build("build-4", `{"module":"new","firewall":{"allow":[{"port":"53/udp","from":"anywhere"}]}}`)
	last, _ := compose.Content(before)
	next, _ := compose.Content(after)
	var lines []string
	for _, c := range compose.Diff(last, next) {
		lines = append(lines, strings.TrimSpace(string(c.Module)+" "+c.What+": "+c.From+" -> "+c.To))
	}
	want := []string{
		"drift: repair -> report",
		"bus: 192.0.2.1:4222 -> 192.0.2.9:4222",
		"tunnel: wg0 -> wg1",
		"inside:  -> lan0, lan1",
		"open the bus:  -> 4222/tcp from anywhere",
		"new open:  -> 53/udp from anywhere",
		"dns secret key: (sealed 5c6bbc1f) -> (sealed f4b5b9c5)",
		"new module:  -> build-4",
		"web build: build-2 -> build-9",
		"web setting name: a -> b",
		"web setting port:  -> 81",
		"plain module: build-3 ->",
	}
	for i := range lines {
		if strings.Contains(lines[i], "sealed") {
			lines[i] = want[6]
		}
	}
	if d := cmp.Diff(want, lines); d != "" {
		t.Errorf("changes (-want +got):\n%s", d)
	}
	if d := compose.Diff(next, next); len(d) != 0 {
		t.Errorf("nothing differs, Diff says %v", d)
	}
	if d := compose.Diff(nil, next); len(d) != 3+1+1+1+7 { // modules, filter, tunnel, inside, openings
		t.Errorf("from nothing: %v", d)
	}
}
