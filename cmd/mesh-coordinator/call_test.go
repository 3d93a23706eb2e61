package main

import (
	"encoding/json"
	"strings"
	"testing"

	"mesh/shared/controller"
)

func TestCallArgs(t *testing.T) {
	tools := []controller.Tool{
		{Seat: "mesh-controller", Verb: "status"},
		{Seat: "node-engine", Verb: "facts", PerNode: true},
		{Module: "notes", Verb: "prune", Schema: json.RawMessage(`{"type":"object","properties":{"days":{"type":"integer"},"name":{"type":"string"},"all":{"type":"boolean"},"tags":{"type":"array"}},"additionalProperties":false,"required":["days"]}`)},
	}
	for _, tt := range []struct {
		given      string
		node, args string
		refused    string
	}{
		{given: "mesh-controller.status", args: `{}`},
		{given: "node-engine.facts db1", node: "db1", args: `{}`},
		{given: "node-engine.facts", refused: "none is named"},
		{given: "notes.prune days=3", args: `{"days":3}`},
		{given: "notes.prune db1 days=3 name=7 all=true tags=[1]", node: "db1", args: `{"all":true,"days":3,"name":"7","tags":[1]}`},
		{given: `notes.prune db1 {"days":3}`, node: "db1", args: `{"days":3}`},
		{given: `notes.prune {"days":3}`, args: `{"days":3}`},
		{given: `notes.prune`, refused: "days"},
		{given: `notes.prune days=x`, refused: "days"},
		{given: `notes.prune days=3 dys=1`, refused: "dys"},
		{given: `notes.prune days=3 word`, refused: "neither"},
		{given: `notes.prune {"days":3`, refused: "no JSON object"},
		{given: `notes.prun days=3`, refused: `did you mean "notes.prune"`},
		{given: `notes.prune D_B days=3`, refused: "node name"},
	} {
		_, n, args, err := callArgs(tools, strings.Fields(tt.given))
		if tt.refused != "" {
			if err == nil || !strings.Contains(err.Error(), tt.refused) {
				t.Errorf("%s: %v, want it to say %q", tt.given, err, tt.refused)
			}
			continue
		}
		if err != nil || string(n) != tt.node || string(args) != tt.args {
			t.Errorf("%s: %s %s %v", tt.given, n, args, err)
		}
	}
}
