// Package unit holds the systemd units of mesh's own two daemons, as texts (NOD-4), and of the packet filter
// at boot, which needs neither (NET-10). Both daemons say when they
// are ready, are watched, are restarted for ever and stop within ten seconds. Their sandboxes are as
// narrow as what they do allows; a person's own settings belong
// into a drop-in, which the installer leaves alone.
package unit

import _ "embed" // the texts

// Folder is where units of the machine's own are (systemd.unit(5)).
const Folder = "/etc/systemd/system"

// The daemons, and what loads the packet filter at boot.
const (
	AgentName       = "mesh-agent.service"
	CoordinatorName = "mesh-coordinator.service"
	FilterName      = "mesh-filter.service"
)

//go:embed mesh-agent.service
var agent string

// Agent is the text of AgentName.
func Agent() string { return agent }

//go:embed mesh-coordinator.service
var coordinator string

// Coordinator is the text of CoordinatorName.
func Coordinator() string { return coordinator }

//go:embed mesh-filter.service
var filter string

// Filter is the text of FilterName.
func Filter() string { return filter }
