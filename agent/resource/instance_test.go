package resource_test

import (
	"encoding/json"
	"strings"
	"testing"

	"mesh/agent/resource"
	"mesh/shared/credential"
	"mesh/shared/declaration"
	"mesh/shared/manifest"
	"mesh/shared/membership"
	"mesh/shared/subject"
)

// MEM-2, APP-2: an instance gets its credential, which its programs' user alone may read, and its membership
// beside it; a membership of another is refused whole.
func TestAnInstanceGetsItsFiles(t *testing.T) {
	var m manifest.Manifest
	text := `{"module":"notes","tools":{"list":{"description":"L"}},"run":{"users":{"notes":{}},"processes":{"web":{"exec":["/bin/true"],"user":"notes"}}}}`
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		t.Fatal(err)
	}
	own := credential.Seed("SUAIBDPBAUTWCWBKIO6XHQNINK5FWJW4OHLXC3HQ2KFE4PEJUA44CNHTC4") // of the documentation of NKEYS
	member, err := json.Marshal(m.Membership("m1", "n1", true))
	if err != nil {
		t.Fatal(err)
	}
	d := &declaration.Declaration{Head: declaration.Head{Mesh: "m1", Node: "n1"}, Content: declaration.Content{Bus: credential.Bus{Addresses: []string{"192.0.2.1:4222"}, Pin: strings.Repeat("ab", 32)},
		Modules: []declaration.Module{{Name: "notes", Build: "build-1", Manifest: json.RawMessage(text), Membership: member}}}}
	manifests, err := resource.Decode(d)
	if err != nil {
		t.Fatal(err)
	}
	in := resource.Input{Declaration: d, Manifests: manifests, BundleDir: "/var/lib/mesh-agent/bundles", Expanded: resource.Expanded{},
		Instance: func(m subject.Module) (credential.Seed, error) { return own.Instance("m1", m) }}
	all, failed := resource.Expand(in)
	if len(failed) > 0 {
		t.Fatal(failed)
	}
	byID := map[string]resource.Resource{}
	for _, r := range all {
		byID[r.ID] = r
	}
	secret := byID["file:/var/lib/mesh-agent/instances/notes/credential.json"]
	if secret.File == nil || secret.File.Mode != 0o600 || secret.File.Owner != "notes" || !secret.File.Private || !strings.Contains(strings.Join(secret.Needs, " "), "user:notes") {
		t.Fatalf("credential: %+v", secret)
	}
	f, err := credential.Decode(secret.File.Content)
	if err != nil || f.Principal() != "instance-n1.notes" || f.Seed == own || f.Bus.Addresses[0] != "192.0.2.1:4222" {
		t.Errorf("%+v, %v", f, err)
	}
	var laid membership.Membership
	if err := json.Unmarshal(byID["file:/var/lib/mesh-agent/instances/notes/membership.json"].File.Content, &laid); err != nil || laid.Inbox != "_INBOX.instance-n1.notes" || len(laid.Serves) != 1 {
		t.Errorf("%+v, %v", laid, err)
	}
	unit := byID["unit:mesh-notes-web.service"]
	if !strings.Contains(string(unit.Unit.Content), "MESH_INSTANCE=/var/lib/mesh-agent/instances/notes") {
		t.Errorf("the process is not told where: %s", unit.Unit.Content)
	}
	// Another address of the bus is another file, though the module's text is the same.
	d.Bus.Addresses = []string{"192.0.2.2:4222"}
	all, _ = resource.Expand(in)
	for _, r := range all {
		if r.ID == secret.ID && !strings.Contains(string(r.File.Content), "192.0.2.2") {
			t.Error("the credential has the old address of the bus (BUS-13)")
		}
		// What an instance is may change while its program runs: it hears of that over the bus.
		if r.ID == unit.ID && r.Unit.Trigger != unit.Unit.Trigger {
			t.Error("the program would be started anew for it")
		}
	}
	d.Modules[0].Membership = json.RawMessage(strings.Replace(string(member), `"node":"n1"`, `"node":"n2"`, 1))
	if _, err := resource.Decode(d); err == nil || !strings.Contains(err.Error(), "membership") {
		t.Errorf("the membership of another: %v", err)
	}
	d.Modules[0].Membership = json.RawMessage(strings.Replace(string(member), `"node":`, `"knot":1,"node":`, 1))
	if _, err := resource.Decode(d); err == nil || !strings.Contains(err.Error(), "knot") {
		t.Errorf("a field nobody knows: %v", err)
	}
}
