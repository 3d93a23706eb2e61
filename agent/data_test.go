package agent_test

import (
	"os"
	"strings"
	"testing"

	"mesh/agent"
	"mesh/agent/host/file"
	"mesh/shared/engine"
	"mesh/shared/manifest"
)

// APP-11: what a deletion would be about is named by the machine, from what mesh made there.
func TestDataOfAModuleAreNamed(t *testing.T) {
	r := newRig(t)
	files, err := file.OpenRoot(r.root("/"))
	must(t, err)
	r.change = func(_ *agent.Config, m *agent.Machine) { m.Host.Files = files }
	t.Cleanup(func() { _ = files.Close() })
	must(t, os.MkdirAll(r.root("/srv/old"), 0o755))
	r.start()
	r.report()
	m := mod("notes", "x")
	m.Run.Directories = []manifest.Directory{{Path: "/srv/notes", Data: true}, {Path: "/srv/old", Data: true}, {Path: "/srv/plain"}}
	r.push(r.sign(1, m))
	r.applied(1)
	must(t, os.WriteFile(r.root("/srv/notes/rows"), []byte(strings.Repeat("x", 10_000)), 0o600))
	ada := r.bus.Connect(t, "operator-ada")
	got, err := ask[engine.DataAnswer](r, ada, engine.Data, engine.DataAsk{Module: "notes"})
	must(t, err)
	if len(got.Things) != 2 || got.Things[0].Thing != "dir:/srv/notes" || got.Things[0].Files != 1 || got.Things[0].Bytes < 10_000 || got.Things[0].Stays != "" ||
		got.Things[1].Thing != "dir:/srv/old" || got.Things[1].Stays != "it was there before mesh" {
		t.Errorf("%+v", got)
	}
	if _, err := ask[engine.DataAnswer](r, ada, engine.Data, engine.DataAsk{Module: "other"}); err == nil || !strings.Contains(err.Error(), "nothing of it") {
		t.Errorf("of no module: %v", err)
	}
}
