package apply

import "mesh/agent/plan"

// The fail points around what is no step.
const (
	beforeAccept  = "before accept"
	afterAccept   = "after accept"
	beforeIntent  = "before intent"
	afterIntent   = "after intent"
	chunkWritten  = "fetch bundle: a chunk written"
	bundleFetched = "fetch bundle: all written"
	bundleOpened  = "fetch bundle: unpacked"
	bundleSynced  = "fetch bundle: synced"
	bundleNamed   = "fetch bundle: renamed"
	beforeBack    = "before going back"
	afterBack     = "after going back"
	beforeOutcome = "before outcome"
	afterOutcome  = "after outcome"
)

// FailPoints are the instants at which a test kills the agent: before and after each intent, each act and
// each outcome (APP-5).
var FailPoints = failPoints()

func failPoints() []string {
	all := []string{beforeAccept, afterAccept, beforeIntent, afterIntent, chunkWritten, bundleFetched, bundleOpened, bundleSynced, bundleNamed}
	for _, op := range plan.Ops {
		all = append(all, before(op), after(op))
	}
	return append(all, beforeBack, afterBack, beforeOutcome, afterOutcome)
}

func before(op plan.Op) string { return "before " + string(op) }
func after(op plan.Op) string  { return "after " + string(op) }
