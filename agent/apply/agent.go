package apply

import (
	"bytes"
	"encoding/json"

	"mesh/shared/declaration"
	"mesh/shared/manifest"
)

// HoldsAgent reports whether a module of Declared holds the seat node-engine: its bundle has the agent that
// the machine shall run.
func HoldsAgent(m *declaration.Module) bool {
	if !mayHoldAgent(m) {
		return false
	}
	var only struct {
		Seats manifest.Seats `json:"seats"`
	}
	return json.Unmarshal(m.Manifest, &only) == nil && (&manifest.Manifest{Seats: only.Seats}).Holds(manifest.NodeEngine)
}

// mayHoldAgent is quick: nearly no manifest names the seat.
func mayHoldAgent(m *declaration.Module) bool {
	return bytes.Contains(m.Manifest, []byte(manifest.NodeEngine))
}
