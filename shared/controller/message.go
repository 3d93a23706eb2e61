package controller

import (
	"encoding/json"
	"time"

	"mesh/shared/credential"
	"mesh/shared/declaration"
	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/subject"
)

// Nothing is the argument of a verb that takes none.
type Nothing struct{}

// Done is the answer of a verb that only does.
type Done struct {
	// Changed is false when it was so already.
	Changed bool `json:"changed"`
}

// NodeState is how a node is, in one word; the worst that holds.
type NodeState string

// The states, the worst first.
const (
	NodeRefused NodeState = "refused" // it did not take its newest declaration
	NodeFailed  NodeState = "failed"  // some of what is declared could not be done
	NodeSilent  NodeState = "silent"  // nothing was heard for three heartbeats
	NodeUnknown NodeState = "unknown" // the coordinator has not listened long enough to say, or it never reported
	NodeBehind  NodeState = "behind"  // it has not applied the newest declaration
	NodeNew     NodeState = "new"     // it is let in, nothing is assigned to it and nothing was pushed yet: no trouble, and no packet filter
	NodeAsleep  NodeState = "asleep"  // silent by design, or it said good-bye
	NodeWell    NodeState = "well"
)

// Node is one line about a node.
type Node struct {
	Name  subject.Node `json:"name"`
	State NodeState    `json:"state"`
	// Why says what is wrong, and "" when nothing is.
	Why string `json:"why,omitempty"`
	// Seen is when it was heard last, by the coordinator's clock.
	Seen time.Time `json:"seen,omitzero"`
	// Sent is the newest declaration put on the bus for it, Applied the one it last spoke of.
	Sent    uint64         `json:"sent"`
	Applied uint64         `json:"applied"`
	Outcome report.Outcome `json:"outcome,omitempty"`
	// Agent is the version it reported, "" when it has not.
	Agent string `json:"agent,omitempty"`
	// Modules counts what is assigned to it.
	Modules int `json:"modules"`
	// ClockOffsetMS is how far its clock is ahead of the coordinator's.
	ClockOffsetMS int64 `json:"clock_offset_ms,omitempty"`
}

// StatusAnswer is the mesh in one screen. It is well only when nothing is wrong and all could be seen.
type StatusAnswer struct {
	Mesh    string    `json:"mesh"`
	Name    string    `json:"name"`
	Version string    `json:"version"`
	At      time.Time `json:"at"`
	// TookMS is how long composing this answer took.
	TookMS int64 `json:"took_ms"`
	Well   bool  `json:"well"`
	// Problems are what a person should look at, the worst first.
	Problems []Problem `json:"problems"`
	// Notes are no trouble, and wait for somebody: a new machine for its first push.
	Notes  []Problem `json:"notes,omitempty"`
	Counts Counts    `json:"counts"`
	// NewestAgent is the newest agent version any node reported (NOD-6).
	NewestAgent string `json:"newest_agent,omitempty"`
	// Bus is where the bus is reached.
	Bus []string `json:"bus"`
}

// Counts are the sizes of things.
type Counts struct {
	Nodes       int `json:"nodes"`
	Well        int `json:"well"`
	Behind      int `json:"behind"`
	New         int `json:"new,omitempty"`
	Silent      int `json:"silent"`
	Failed      int `json:"failed"`
	Modules     int `json:"modules"`
	Assignments int `json:"assignments"`
	Operators   int `json:"operators"`
	Invitations int `json:"invitations"`
}

// Problem is one thing that is wrong, or to be done.
type Problem struct {
	Node subject.Node `json:"node,omitempty"`
	What string       `json:"what"`
	// Show is the command to look closer.
	Show string `json:"show,omitempty"`
}

// NodesAnswer is every node, trouble first.
type NodesAnswer struct {
	Nodes []Node `json:"nodes"`
}

// NodeAsk names a node.
type NodeAsk struct {
	Node subject.Node `json:"node"`
}

// NodeAnswer is all that is known of a node.
type NodeAnswer struct {
	Node
	// Key is its public bus key, Curve what secrets for it are sealed to.
	Key       string       `json:"key"`
	Curve     string       `json:"curve"`
	MachineID string       `json:"machine_id,omitempty"`
	Enrolled  time.Time    `json:"enrolled,omitzero"`
	Settings  NodeSettings `json:"settings"`
	// Assigned is what is assigned to it, sorted by module.
	Assigned []Assigned `json:"assigned"`
	// Notes are what a person should know, such as that no filter is sent (NET-3).
	Notes []string `json:"notes,omitempty"`
	// Report is the newest report kept, Profile what it last said of the machine.
	Report     *report.Report  `json:"report,omitempty"`
	ReportedAt time.Time       `json:"reported_at,omitzero"`
	Profile    *report.Profile `json:"profile,omitempty"`
}

// NodeSettings is how a node is treated.
type NodeSettings struct {
	Drift    declaration.Drift `json:"drift"`
	AsleepOK bool              `json:"asleep_ok"`
	// Admin are the openings for people, as "22/tcp from anywhere" (NET-7).
	Admin  []string `json:"admin"`
	Tunnel string   `json:"tunnel,omitempty"`
	// Inside are links a person declared inside (NET-15).
	Inside []string `json:"inside,omitempty"`
	// Converge is the word that handed the packet filter to mesh; nil: nobody's (NET-9).
	Converge *ConvergeWord `json:"converge,omitempty"`
}

// Assigned is one module on a node.
type Assigned struct {
	Module subject.Module `json:"module"`
	// Build is the newest registered, Sent the one last sent to this node, Runs what the node reported.
	Build  string       `json:"build"`
	Sent   string       `json:"sent,omitempty"`
	Runs   string       `json:"runs,omitempty"`
	State  report.State `json:"state,omitempty"`
	Detail string       `json:"detail,omitempty"`
	// Log is what a build that did not get well said last there, in lines (APP-7).
	Log      string            `json:"log,omitempty"`
	Settings map[string]string `json:"settings,omitempty"`
	// Secrets are the names only.
	Secrets []string `json:"secrets,omitempty"`
}

// InviteAsk invites one machine.
type InviteAsk struct {
	Node subject.Node `json:"node"`
	// ValidS is how long in seconds; 0 means 1 h, at most 7 days (NOD-1).
	ValidS int64  `json:"valid_s,omitempty"`
	Why    string `json:"why,omitempty"`
}

// InviteAnswer is the line to paste. It is shown once and kept nowhere.
type InviteAnswer struct {
	ID      string    `json:"id"`
	Line    string    `json:"line"`
	Expires time.Time `json:"expires"`
}

// InvitationState is how an invitation is.
type InvitationState string

// The states.
const (
	InvitationOpen    InvitationState = "open"
	InvitationUsed    InvitationState = "used"
	InvitationExpired InvitationState = "expired"
	InvitationRevoked InvitationState = "revoked"
)

// Invitation is one line about an invitation.
type Invitation struct {
	ID      string          `json:"id"`
	Node    subject.Node    `json:"node"`
	State   InvitationState `json:"state"`
	Made    time.Time       `json:"made"`
	Expires time.Time       `json:"expires"`
	Used    time.Time       `json:"used,omitzero"`
}

// InvitationsAnswer is every invitation, open ones first.
type InvitationsAnswer struct {
	Invitations []Invitation `json:"invitations"`
}

// InvitationRevokeAsk takes one back.
type InvitationRevokeAsk struct {
	ID  string `json:"id"`
	Why string `json:"why,omitempty"`
}

// NodeRemoveAsk removes a node.
type NodeRemoveAsk struct {
	Node subject.Node `json:"node"`
	Why  string       `json:"why,omitempty"`
}

// NodeSetAsk changes how a node is treated: drift=repair|report, asleep-ok=yes|no,
// admin="22/tcp from anywhere; 2222/tcp from 192.0.2.0/24", tunnel=<link>, inside=<link>,<link>.
type NodeSetAsk struct {
	Node subject.Node      `json:"node"`
	Set  map[string]string `json:"set"`
	// LockSSH: admin may leave 22/tcp out, which was in it (NET-7); admin=none says so by itself.
	LockSSH bool   `json:"lock_ssh,omitempty"`
	Why     string `json:"why,omitempty"`
}

// NodeSetAnswer is what holds now.
type NodeSetAnswer struct {
	Changed  bool         `json:"changed"`
	Settings NodeSettings `json:"settings"`
}

// Module is one line about a module.
type Module struct {
	Name        subject.Module        `json:"name"`
	Description string                `json:"description,omitempty"`
	Build       string                `json:"build"`
	Registered  time.Time             `json:"registered"`
	Artifact    *declaration.Artifact `json:"artifact,omitempty"`
	// Images are its container images, without their blobs.
	Images []ModuleImage  `json:"images,omitempty"`
	Nodes  []subject.Node `json:"nodes"`
	// More counts nodes that are not named: an answer has to fit one message.
	More int `json:"more,omitempty"`
}

// ModuleImage is a container image of a module.
type ModuleImage struct {
	Name string `json:"name"`
	Arch string `json:"arch"`
	// ID is the image's id, by which an engine knows it.
	ID string `json:"id"`
	// Size is of all its blobs together, in bytes as they travel.
	Size   int64 `json:"size"`
	Layers int   `json:"layers"`
}

// ModulesAnswer is every module.
type ModulesAnswer struct {
	Modules []Module `json:"modules"`
}

// ModuleAsk names a module.
type ModuleAsk struct {
	Module subject.Module `json:"module"`
}

// ModuleAnswer is all that is known of a module.
type ModuleAnswer struct {
	Module
	Manifest json.RawMessage `json:"manifest"`
	// Builds are the registrations, newest first.
	Builds []Build `json:"builds"`
}

// Build is one registration of a module.
type Build struct {
	ID         string                `json:"id"`
	Registered time.Time             `json:"registered"`
	Source     string                `json:"source,omitempty"`
	Artifact   *declaration.Artifact `json:"artifact,omitempty"`
	Images     []ModuleImage         `json:"images,omitempty"`
}

// RegisterAsk hands over a module by hand. The artifact's chunks are on the bus already.
type RegisterAsk struct {
	Manifest json.RawMessage       `json:"manifest"`
	Artifact *declaration.Artifact `json:"artifact,omitempty"`
	// Images are those of build.images, sorted by name and architecture; their blobs are on the bus too.
	Images []declaration.Image `json:"images,omitempty"`
	// Source says where it came from, for people.
	Source string `json:"source,omitempty"`
	Why    string `json:"why,omitempty"`
}

// RegisterAnswer names the build. Registering what is the newest already gives that one again.
type RegisterAnswer struct {
	Module  subject.Module `json:"module"`
	Build   string         `json:"build"`
	Changed bool           `json:"changed"`
	// Nodes are those it is assigned to: what a push would reach.
	Nodes []subject.Node `json:"nodes"`
}

// AssignAsk puts a module on a node, or changes its settings there. Settings and secrets given are
// set, settings named in Unset go back to the manifest's default, the others stay.
type AssignAsk struct {
	Node     subject.Node                 `json:"node"`
	Module   subject.Module               `json:"module"`
	Settings map[string]string            `json:"settings,omitempty"`
	Secrets  map[string]credential.Sealed `json:"secrets,omitempty"`
	Unset    []string                     `json:"unset,omitempty"`
	Why      string                       `json:"why,omitempty"`
}

// AssignAnswer says what holds now.
type AssignAnswer struct {
	Changed bool   `json:"changed"`
	Build   string `json:"build"`
}

// UnassignAsk takes a module off a node at the next push.
type UnassignAsk struct {
	Node   subject.Node   `json:"node"`
	Module subject.Module `json:"module"`
	Why    string         `json:"why,omitempty"`
}

// UnassignWithDataAsk takes a module off a node at the next push, and has its data deleted there (APP-11).
type UnassignWithDataAsk struct {
	Node   subject.Node   `json:"node"`
	Module subject.Module `json:"module"`
	// Things are the folders and volumes that go, as the node's verb data names them. What else there is stays.
	Things []string `json:"things"`
	Why    string   `json:"why"`
}

// PlanAsk names the nodes; none means all.
type PlanAsk struct {
	Nodes []subject.Node `json:"nodes,omitempty"`
}

// PlanAnswer is what a push would do. Nodes with nothing to change are counted, not listed.
type PlanAnswer struct {
	Nodes     []NodePlan `json:"nodes"`
	Unchanged int        `json:"unchanged"`
	// More counts nodes that would change and are not listed: an answer has to fit one message.
	More int `json:"more,omitempty"`
}

// MaxPlanned is how many nodes a plan lists.
const MaxPlanned = 1000

// NodePlan is what would change on one node.
type NodePlan struct {
	Node subject.Node `json:"node"`
	// Seq is the last declaration's; a push sends the next when there are Changes, else this again.
	Seq uint64 `json:"seq"`
	// Unsent: the last declaration never reached the bus.
	Unsent  bool         `json:"unsent,omitempty"`
	Changes []PlanChange `json:"changes"`
	// Notes are what is not sent and why (NOD-5, NET-3).
	Notes []string `json:"notes,omitempty"`
	// Refused says why nothing can be sent to it.
	Refused *refusal.Refusal `json:"refused,omitempty"`
}

// PlanChange is one change.
type PlanChange struct {
	// Module it concerns; empty: the node itself.
	Module subject.Module `json:"module,omitempty"`
	// What changes: "module" (comes or goes), "build", "setting port", "secret key", "open", "open the bus",
	// "close", "filter", "tunnel", "inside", "converge", "take", "drift", "bus".
	What string `json:"what"`
	// From and To are what is and what would be; empty: nothing.
	From string `json:"from,omitempty"`
	To   string `json:"to,omitempty"`
	// Why is who did what to cause it.
	Why string `json:"why,omitempty"`
}

// PushAsk sends. Exactly one of Nodes, All and Behind is given: an empty selection is an error, never
// "all" (PSH-11). Why is required (PSH-1).
type PushAsk struct {
	Nodes  []subject.Node `json:"nodes,omitempty"`
	All    bool           `json:"all,omitempty"`
	Behind bool           `json:"behind,omitempty"`
	// Prune has the strays removed that the nodes named in their last reports (APP-11).
	Prune bool   `json:"prune,omitempty"`
	Why   string `json:"why"`
}

// PushState is how a push stands with one node.
type PushState string

// The states.
const (
	PushWaiting PushState = "waiting" // not on the bus yet
	PushSent    PushState = "sent"    // on the bus
	PushHeard   PushState = "heard"   // the node took it and works
	PushApplied PushState = "applied"
	PushFailed  PushState = "failed"  // the node could not do all of it and tries again
	PushRefused PushState = "refused" // the coordinator, the bus or the node refused it
)

// Final reports whether nothing more is expected of the node.
func (s PushState) Final() bool { return s == PushApplied || s == PushFailed || s == PushRefused }

// PushNode is one node of a push.
type PushNode struct {
	Node   subject.Node     `json:"node"`
	Seq    uint64           `json:"seq"`
	State  PushState        `json:"state"`
	Why    *refusal.Refusal `json:"why,omitempty"`
	Note   string           `json:"note,omitempty"`
	TookMS int64            `json:"took_ms,omitempty"`
}

// Push is how a push stands.
type Push struct {
	ID string `json:"id"`
	// Version grows with each change; PushShowAsk.After takes it.
	Version uint64    `json:"version"`
	Started time.Time `json:"started"`
	By      string    `json:"by,omitempty"`
	Why     string    `json:"why,omitempty"`
	// Done is true when nothing more is expected of any node.
	Done   bool              `json:"done"`
	Counts map[PushState]int `json:"counts"`
	// Nodes are those that changed since After, all when it was 0.
	Nodes []PushNode `json:"nodes"`
	// Unissued counts memberships that the bus did not take; said once, in the answer to the push.
	Unissued int `json:"unissued,omitempty"`
}

// PushShowAsk asks for news of a push.
type PushShowAsk struct {
	ID string `json:"id"`
	// After is the version seen last; the answer comes when there is a newer one, or after WaitMS.
	After uint64 `json:"after,omitempty"`
	// WaitMS is at most 5000.
	WaitMS int64 `json:"wait_ms,omitempty"`
}

// MaxPushWait bounds PushShowAsk.WaitMS.
const MaxPushWait = 5 * time.Second

// Seat is one line about a seat.
type Seat struct {
	Name        subject.Seat   `json:"name"`
	Scope       string         `json:"scope"`
	Description string         `json:"description"`
	Holder      string         `json:"holder,omitempty"`
	Verbs       []subject.Verb `json:"verbs"`
}

// SeatsAnswer is every seat.
type SeatsAnswer struct {
	Seats []Seat `json:"seats"`
}

// Tool is one verb with its schemas.
type Tool struct {
	Seat subject.Seat `json:"seat,omitempty"`
	// Module is whose verb it is, when it is no seat's.
	Module subject.Module `json:"module,omitempty"`
	// PerNode: it is asked of one machine.
	PerNode     bool            `json:"per_node,omitempty"`
	Verb        subject.Verb    `json:"verb"`
	Description string          `json:"description"`
	Example     string          `json:"example,omitempty"`
	Level       Level           `json:"level"`
	Role        Role            `json:"role"`
	Schema      json.RawMessage `json:"schema"`
	Answer      json.RawMessage `json:"answer,omitempty"`
}

// ToolsAnswer is every tool.
type ToolsAnswer struct {
	Tools []Tool `json:"tools"`
}

// OperatorIssueAsk lets a person in. The seed stays where it was made.
type OperatorIssueAsk struct {
	Name string `json:"name"`
	Role Role   `json:"role"`
	Key  string `json:"key"`
	Why  string `json:"why,omitempty"`
}

// OperatorIssueAnswer is what completes the credential.
type OperatorIssueAnswer struct {
	Mesh string         `json:"mesh"`
	Bus  credential.Bus `json:"bus"`
}

// Person is one operator.
type Person struct {
	Name   string    `json:"name"`
	Role   Role      `json:"role"`
	Key    string    `json:"key"`
	Issued time.Time `json:"issued"`
}

// OperatorsAnswer is every person let in.
type OperatorsAnswer struct {
	Operators []Person `json:"operators"`
}

// OperatorRevokeAsk ends a person's credential.
type OperatorRevokeAsk struct {
	Name string `json:"name"`
	Why  string `json:"why,omitempty"`
}

// ChangesAsk reads the journal, newest first.
type ChangesAsk struct {
	// Limit is at most 1000; 0 means 50.
	Limit int `json:"limit,omitempty"`
	// Node and Module narrow it.
	Node   subject.Node   `json:"node,omitempty"`
	Module subject.Module `json:"module,omitempty"`
}

// Change is one line of the journal.
type Change struct {
	ID     int64          `json:"id"`
	At     time.Time      `json:"at"`
	Who    string         `json:"who"`
	What   string         `json:"what"`
	Object string         `json:"object"`
	Node   subject.Node   `json:"node,omitempty"`
	Module subject.Module `json:"module,omitempty"`
	Why    string         `json:"why,omitempty"`
}

// ChangesAnswer is a page of the journal.
type ChangesAnswer struct {
	Changes []Change `json:"changes"`
}
