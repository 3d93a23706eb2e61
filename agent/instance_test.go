package agent_test

import (
	"encoding/json"
	"os"
	"testing"

	"mesh/shared/credential"
	"mesh/shared/manifest"
)

// MEM-2, MEM-4, APP-2: the agent lays an instance's credential and membership down, and says the public half of the
// key it made; with another membership the program is left running.
func TestAnInstanceIsLaidDownAndItsKeySaid(t *testing.T) {
	r := newRig(t)
	r.start()
	if first := r.report(); len(first.Keys) > 0 {
		t.Errorf("keys without instances: %+v", first.Keys)
	}
	m := mod("notes", "one", "web")
	m.Tools = map[string]manifest.Tool{"list": {Description: "List the notes"}}
	c := content(t, m, mod("quiet", "two"))
	member := func(plain bool) json.RawMessage {
		b, err := json.Marshal(m.Membership(r.cred.Mesh, "n1", plain))
		must(t, err)
		return b
	}
	c.Modules[0].Membership = member(true)
	r.push(signAs(t, r.signer, "n1", 1, c))
	p := r.applied(1)
	folder := r.path("root" + r.path("state") + "/instances/notes/")
	f, err := credential.Load(folder + "/credential.json")
	must(t, err)
	public, err := f.Seed.Public()
	must(t, err)
	if f.Principal() != "instance-n1.notes" || len(p.Keys) != 1 || p.Keys[0].Module != "notes" || p.Keys[0].Key != public {
		t.Errorf("said %+v, laid %s with %s", p.Keys, f.Principal(), public)
	}
	before, err := os.ReadFile(folder + "/membership.json")
	must(t, err)
	started := r.units.state("mesh-notes-web.service")
	c.Modules[0].Membership = member(false)
	r.push(signAs(t, r.signer, "n1", 2, c))
	p = r.applied(2)
	after, err := os.ReadFile(folder + "/membership.json")
	must(t, err)
	if string(before) == string(after) || len(p.Keys) != 1 || p.Keys[0].Key != public {
		t.Errorf("after another membership: %s, keys %+v", after, p.Keys)
	}
	if now := r.units.state("mesh-notes-web.service"); now != started {
		t.Errorf("the program was touched: %+v, was %+v", now, started)
	}
}
