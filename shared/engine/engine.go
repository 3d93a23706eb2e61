// Package engine is the protocol of the seat node-engine, which every agent holds for its machine: one
// table of verbs with the Go types of their arguments and answers, served by the agent, asked by the
// command line and the coordinator, and the source of grants and discovery (SEA-8, SEA-13). It also lists
// every seat that the agent program answers for: one with a table of its own is added to Protocols.
// Messages only gain fields. The package does no I/O; the JSON schemas are made from the types by a test of
// coordinator/verbs and kept in schemas.json, since the agent links no maker of schemas.
package engine

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"

	"mesh/shared/controller"
	"mesh/shared/report"
	"mesh/shared/subject"
)

// The verbs of node-engine.
const (
	Show     subject.Verb = "show"
	Facts    subject.Verb = "facts"
	Report   subject.Verb = "report"
	ApplyNow subject.Verb = "apply-now"
	Restart  subject.Verb = "restart"
	Logs     subject.Verb = "logs"
	LogsNext subject.Verb = "logs-next"
	Diagnose subject.Verb = "diagnose"
	Data     subject.Verb = "data"
)

const program = "mesh-coordinator "

// Table is every verb of node-engine, in the order help shows them.
func Table() []controller.Verb {
	return []controller.Verb{
		{Name: Show, Description: "How the machine is: what mesh-agent show --json says there", Example: program + "node ask db1 show",
			Level: controller.Read, Least: controller.Viewer, Ask: controller.Nothing{}, Answer: json.RawMessage(nil)},
		{Name: Facts, Description: "What the machine is: its profile, read now", Example: program + "node ask db1 facts",
			Level: controller.Read, Least: controller.Viewer, Ask: controller.Nothing{}, Answer: FactsAnswer{}},
		{Name: Report, Description: "Send a full report to the coordinator now", Example: program + "node ask db1 report",
			Level: controller.Read, Least: controller.Operator, Ask: controller.Nothing{}, Answer: ReportAnswer{}},
		{Name: ApplyNow, Description: "Look at everything on the machine now and put right what differs", Example: program + `node apply-now db1`,
			Level: controller.Disruptive, Least: controller.Operator, Ask: controller.Nothing{}, Answer: ApplyAnswer{}},
		{Name: Restart, Description: "Restart the services of one module", Example: program + `node restart db1 notes --why "it hangs"`,
			Level: controller.Disruptive, Least: controller.Operator, Ask: RestartAsk{}, Answer: RestartAnswer{}},
		{Name: Logs, Description: "Begin to read a module's lines in the machine's journal", Example: program + "logs db1 notes -f",
			Level: controller.Read, Least: controller.Operator, Ask: LogsAsk{}, Answer: LogsAnswer{}},
		{Name: LogsNext, Description: "Read on in lines that were begun: each ask acknowledges the lines before", Example: program + "logs db1 notes -f",
			Level: controller.Read, Least: controller.Operator, Ask: LogsNextAsk{}, Answer: LogsAnswer{}},
		{Name: Diagnose, Description: "Gather what a maintainer needs of the machine, secrets masked, in pieces", Example: program + "diagnose db1",
			Level: controller.Read, Least: controller.Admin, Ask: DiagnoseAsk{}, Answer: DiagnoseAnswer{}},
		{Name: Data, Description: "Name the folders and volumes with a module's data, and how much is in each", Example: program + "unassign db1 notes --delete-data",
			Level: controller.Read, Least: controller.Operator, Ask: DataAsk{}, Answer: DataAnswer{}},
		{Name: Exposure, Description: "What of the machine can be reached from outside: declared, and let in by the kernel", Example: program + "exposure db1",
			Level: controller.Read, Least: controller.Viewer, Ask: controller.Nothing{}, Answer: report.Exposure{}},
		{Name: Probe, Description: "Try to reach addresses and ports from this machine, by TCP", Example: program + "exposure db1 --from web1",
			Level: controller.Reversible, Least: controller.Operator, Ask: ProbeAsk{}, Answer: ProbeAnswer{}},
	}
}

// Protocol is a node seat that the agent program answers for.
type Protocol struct {
	Seat  subject.Seat
	Verbs []controller.Verb
}

// Protocols are all of them. Grants, discovery and "tool list" derive from this list: a verb that is not
// here can be asked by nobody.
func Protocols() []Protocol {
	return []Protocol{{subject.NodeEngine, Table()}, {subject.NodePrevention, Prevention()}}
}

// seats are the seats of Protocols; a list of its own, because grants of ten thousand nodes ask for it.
var seats = [...]subject.Seat{subject.NodeEngine, subject.NodePrevention}

// Seats are the seats of Protocols.
func Seats() []subject.Seat { return seats[:] }

// Find returns the verb called name of seat.
func Find(seat subject.Seat, name subject.Verb) (controller.Verb, bool) {
	for _, p := range Protocols() {
		if p.Seat != seat {
			continue
		}
		if i := slices.IndexFunc(p.Verbs, func(v controller.Verb) bool { return v.Name == name }); i >= 0 {
			return p.Verbs[i], true
		}
	}
	return controller.Verb{}, false
}

// Schema is the JSON schema of a verb's argument and answer.
type Schema struct {
	Ask    json.RawMessage `json:"ask"`
	Answer json.RawMessage `json:"answer"`
}

//go:embed schemas.json
var schemas []byte

// Schemas are the schemas of every verb of Protocols, by seat and verb.
func Schemas() (map[subject.Seat]map[subject.Verb]Schema, error) {
	var all map[subject.Seat]map[subject.Verb]Schema
	if err := json.Unmarshal(schemas, &all); err != nil {
		return nil, fmt.Errorf("the schemas of node seats: %w", err)
	}
	return all, nil
}
