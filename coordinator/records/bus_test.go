package records_test

import (
	"testing"

	"mesh/coordinator/records"
	"mesh/shared/report"
)

// MEM-1, SEA-10: a registration says what is wrong with what a module is on the bus.
func TestAModuleOnTheBusIsJudgedAtRegistration(t *testing.T) {
	m := newMesh(t)
	for text, says := range map[string]string{
		`{"module":"a","tools":{"x":{"description":"X","schema":{"type":"thing","properties":{"a":3}}}}}`: "schema of the tool x",
		`{"module":"a","invokes":["seat:mesh-controller.statsu"]}`:                                        "no such verb",
		`{"module":"a","invokes":["seat:mesh-controller.operator-issue"]}`:                                "no module has it",
		`{"module":"a","invokes":["module:a.x"]}`:                                                         "need not ask itself",
		`{"module":"a","invokes":["seat:node-engine.restart"]}`:                                           "people ask",
	} {
		_, err := m.register(text)
		m.refused(err, says)
	}
	m.module(`{"module":"a","tools":{"x":{"description":"X","schema":{"type":"object"}}},"invokes":["seat:mesh-controller.status","seat:mesh-controller.*","module:b.*"]}`)
}

// MEM-4: a machine lets in the instances of the modules that are assigned to it, with keys that nobody else has.
func TestAMachineSaysTheKeysOfItsInstances(t *testing.T) {
	m := newMesh(t)
	m.node("n1", "n2")
	m.module(`{"module":"notes","events":["added"]}`)
	m.module(`{"module":"other","events":["added"]}`)
	m.ok(m.assign("notes", records.AssignSet{}, "n1", "n2"))
	number := uint64(0)
	say := func(node string, keys ...report.Key) records.Heard {
		t.Helper()
		number++
		r := &report.Report{Format: report.Format, Mesh: "m1", Number: number, Keys: keys}
		m.ok(r.Node.UnmarshalText([]byte(node)))
		r.Apply.Outcome = report.None
		heard, err := m.store.RecordReports(t.Context(), []records.Received{{Report: r, Heard: m.clk.Now()}})
		m.ok(err)
		return heard[0]
	}
	mark := m.store.Mark()
	one, two := userKey(), userKey()
	if h := say("n1", report.Key{Module: "notes", Key: one}, report.Key{Module: "other", Key: userKey()}); !h.Keyed {
		t.Error("a new key is no news")
	}
	if touched, _ := m.store.Touched(mark); len(touched.Nodes) != 1 {
		t.Errorf("touched %+v", touched)
	}
	if h := say("n1", report.Key{Module: "notes", Key: one}); h.Keyed {
		t.Error("the same key is news")
	}
	say("n2", report.Key{Module: "notes", Key: one}) // somebody's
	say("n2", report.Key{Module: "notes", Key: m.own})
	all, err := m.store.Instances(t.Context())
	m.ok(err)
	if len(all) != 1 || all[0] != (records.Instance{Node: "n1", Module: "notes", Key: one}) {
		t.Errorf("instances %+v", all)
	}
	say("n2", report.Key{Module: "notes", Key: two})
	in := must(m.store.Inputs(t.Context(), "n2"))
	if in.Placed[0].Key != two {
		t.Errorf("placed %+v", in.Placed)
	}
	if every := must(m.store.AllInputs(t.Context())); every[0].Placed[0].Key != one || every[1].Placed[0].Key != two {
		t.Errorf("all inputs %+v", every)
	}
	if i := must(m.store.InstanceByKey(t.Context(), two)); i.Label() != "instance-n2.notes" {
		t.Errorf("by key: %+v", i)
	}
}
