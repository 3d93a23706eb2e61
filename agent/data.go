package agent

import (
	"context"
	"fmt"
	"strings"
	"time"

	box "mesh/agent/host/engine"
	"mesh/agent/host/file"
	"mesh/agent/resource"
	"mesh/shared/engine"
	"mesh/shared/refusal"
	"mesh/shared/verb"
)

// measureBound is how long the data of a module are measured, all together.
const measureBound = 5 * time.Second

// dataVerb names a module's data, from the ledger: what a deletion would be about (APP-11).
func (a *Agent) dataVerb(ctx context.Context, _ verb.Caller, ask engine.DataAsk) (engine.DataAnswer, error) {
	out := engine.DataAnswer{Things: []engine.DataThing{}}
	rows, err := a.store.Ledger(ctx)
	if err != nil {
		return out, err
	}
	known := false
	ctx, cancel := context.WithTimeout(ctx, measureBound)
	defer cancel()
	for _, row := range rows {
		if row.Module != string(ask.Module) {
			continue
		}
		known = true
		_, name, _ := strings.Cut(row.ID, ":")
		x := engine.DataThing{Thing: row.ID, Path: name}
		switch kind := resource.Kind(row.Kind); {
		case !row.Keep || kind != resource.KindDir && kind != resource.KindVolume:
			continue
		case !row.Made:
			x.Stays = "it was there before mesh"
		}
		if resource.Kind(row.Kind) == resource.KindVolume {
			x.Path = a.volumeFolder(name)
		}
		if files := a.files(); files != nil && x.Path != "" {
			size, err := files.TreeSize(ctx, x.Path)
			x.Bytes, x.Files, x.More = size.Bytes, size.Files, err != nil
		}
		out.Things = append(out.Things, x)
	}
	if !known {
		return out, refusal.Newf("the data of "+string(ask.Module), fmt.Sprintf("see what runs there: mesh-coordinator node show %s", a.node), "nothing of it is on %s", a.node)
	}
	return out, nil
}

// files is the machine's files, nil where the agent was given none of its own.
func (a *Agent) files() *file.Root { return a.machine.Host.Files }

// volumeFolder is where a volume's data are, "" where that cannot be told.
func (a *Agent) volumeFolder(name string) string {
	files, run := a.files(), a.machine.Host.Runner
	if files == nil || run == nil {
		return ""
	}
	e, err := box.Find(files, run)
	if err != nil {
		return ""
	}
	return e.VolumeFolder(name)
}
