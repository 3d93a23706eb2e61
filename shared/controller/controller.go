// Package controller is the protocol of the seat mesh-controller: one table of verbs, each with its
// name, description, example, level, least role and the Go types of its argument and answer. The
// coordinator serves the table, the command line asks by it, grants and discovery derive from it, so a
// verb cannot be forgotten in one place. Messages only gain fields; each has a golden file. The package
// does no I/O and makes no schemas: coordinator/verbs does, since the agent links none of that.
package controller

import (
	"fmt"
	"slices"

	"mesh/shared/refusal"
	"mesh/shared/subject"
)

// Level is what asking a verb can do.
type Level string

// The levels.
const (
	Read       Level = "read"       // changes nothing
	Reversible Level = "reversible" // changes records; can be taken back, touches no machine by itself
	Disruptive Level = "disruptive" // reaches machines, or lets somebody in or out
)

// Role is what a person may ask (SEA-13). Each includes the one below it.
type Role string

// The roles.
const (
	Viewer   Role = "viewer"   // reads
	Operator Role = "operator" // registers, assigns and pushes
	Admin    Role = "admin"    // also lets machines and people in and out
)

// Roles lists the roles, the least first.
func Roles() []Role { return []Role{Viewer, Operator, Admin} }

// ParseRole checks s as a role.
func ParseRole(s string) (Role, error) {
	if r := Role(s); slices.Contains(Roles(), r) {
		return r, nil
	}
	return "", refusal.New(fmt.Sprintf("the role %q", s), "there is no such role", "use admin, operator or viewer")
}

// UnmarshalText refuses what is no role.
func (r *Role) UnmarshalText(b []byte) (err error) { *r, err = ParseRole(string(b)); return err }

// Covers reports whether r may do what least may.
func (r Role) Covers(least Role) bool {
	return slices.Index(Roles(), r) >= slices.Index(Roles(), least) && slices.Contains(Roles(), r)
}

// Upload reports whether r may put artifacts on the bus.
func (r Role) Upload() bool { return r.Covers(Operator) }

// Verb is one line of the table.
type Verb struct {
	Name        subject.Verb
	Description string
	// Example is a command that asks it.
	Example string
	Level   Level
	// Least is the role it takes.
	Least Role
	// Ask and Answer are zero values of the argument and the answer.
	Ask, Answer any
}

// The verbs.
const (
	Status           subject.Verb = "status"
	Nodes            subject.Verb = "nodes"
	NodeShow         subject.Verb = "node"
	NodeInvite       subject.Verb = "node-invite"
	Invitations      subject.Verb = "invitations"
	InvitationRevoke subject.Verb = "invitation-revoke"
	NodeRemove       subject.Verb = "node-remove"
	NodeSet          subject.Verb = "node-set"
	Modules          subject.Verb = "modules"
	ModuleShow       subject.Verb = "module-show"
	ModuleRegister   subject.Verb = "module-register"
	ArtifactReady    subject.Verb = "artifact-ready"
	Artifacts        subject.Verb = "artifacts"
	ArtifactVerify   subject.Verb = "artifact-verify"
	Assign           subject.Verb = "assign"
	Unassign         subject.Verb = "unassign"
	UnassignWithData subject.Verb = "unassign-with-data"
	Plan             subject.Verb = "plan"
	PushSend         subject.Verb = "push"
	PushShow         subject.Verb = "push-show"
	Seats            subject.Verb = "seats"
	Tools            subject.Verb = "tools"
	OperatorIssue    subject.Verb = "operator-issue"
	Operators        subject.Verb = "operators"
	OperatorRevoke   subject.Verb = "operator-revoke"
	Changes          subject.Verb = "changes"
	Calls            subject.Verb = "calls"
	CallShow         subject.Verb = "call-show"
)

const program = "mesh-coordinator "

// Table is every verb of the seat, in the order help shows them.
func Table() []Verb {
	return []Verb{
		{Status, "How the mesh is: what is wrong first, then the counts", program + "status", Read, Viewer, Nothing{}, StatusAnswer{}},
		{Nodes, "List the nodes and how they are", program + "node list", Read, Viewer, Nothing{}, NodesAnswer{}},
		{NodeShow, "Show one node: its last report, settings and modules", program + "node show db1", Read, Viewer, NodeAsk{}, NodeAnswer{}},
		{NodeInvite, "Make an invitation: one line that lets one machine enrol", program + "node invite db1", Disruptive, Admin, InviteAsk{}, InviteAnswer{}},
		{Invitations, "List the invitations, open ones first", program + "node invitations", Read, Viewer, Nothing{}, InvitationsAnswer{}},
		{InvitationRevoke, "Take an invitation back before it is used", program + "node revoke k3v9", Disruptive, Admin, InvitationRevokeAsk{}, Done{}},
		{NodeRemove, "Remove a node: its credential ends, its records are kept as history", program + `node remove db1 --why "sold"`, Disruptive, Admin, NodeRemoveAsk{}, Done{}},
		{NodeSet, "Set how a node is treated: drift, asleep-ok, admin, tunnel, inside", program + "node set db1 drift=report", Reversible, Operator, NodeSetAsk{}, NodeSetAnswer{}},
		{NodeConvergence, "Show what filters packets on a node besides mesh, and what a converge makes of each", program + "node converge db1", Read, Viewer, NodeAsk{}, Convergence{}},
		{NodeConverge, "Hand a node's packet filter to mesh: the front ends found there are retired", program + `node converge db1 --yes --why "mesh filters here"`, Disruptive, Operator, NodeConvergeAsk{}, NodeConvergeAnswer{}},
		{NodeUnconverge, "Give a node's packet filter back to the front ends that were retired", program + `node unconverge db1 --why "ufw stays"`, Disruptive, Operator, NodeUnconvergeAsk{}, NodeUnconvergeAnswer{}},
		{NodeKeep, "Keep what was changed by hand on a node until a time", program + `node keep db1 file:/etc/notes.conf --until 7d --why "we try this"`, Disruptive, Operator, NodeKeepAsk{}, NodeKeepAnswer{}},
		{HeldThings, "Put what a node holds for a module, that mesh did not put there, beside what is declared", program + "take db1 notes", Read, Viewer, HeldAsk{}, HeldAnswer{}},
		{Take, "Make what a node holds for a module the module's, with the same data", program + `take db1 notes --yes --replace /etc/notes.conf --why "mesh runs it now"`, Disruptive, Operator, TakeAsk{}, TakeAnswer{}},
		{GiveBack, "Put back what was taken for a module on a node, as it was found", program + `give-back db1 notes --why "a mistake"`, Disruptive, Operator, GiveBackAsk{}, TakeAnswer{}},
		{Modules, "List the registered modules and where they are assigned", program + "module list", Read, Viewer, Nothing{}, ModulesAnswer{}},
		{ModuleShow, "Show one module: its manifest, builds and nodes", program + "module show notes", Read, Viewer, ModuleAsk{}, ModuleAnswer{}},
		{ModuleRegister, "Register a module's manifest and artifact as its newest build", program + "module register ./notes", Reversible, Operator, RegisterAsk{}, RegisterAnswer{}},
		{ArtifactReady, "Say which of these artifacts the bus lacks, and check those it holds", program + "module register ./notes", Reversible, Operator, ArtifactReadyAsk{}, ArtifactReadyAnswer{}},
		{Artifacts, "List the bundles and layers on the bus, and which build needs them", program + "artifact list", Read, Viewer, Nothing{}, ArtifactsAnswer{}},
		{ArtifactVerify, "Read every artifact on the bus again, and take off what is damaged", program + "artifact verify", Reversible, Operator, Nothing{}, ArtifactVerifyAnswer{}},
		{Assign, "Say that a module runs on a node, with settings and sealed secrets", program + "assign db1 notes --set greeting=hello", Reversible, Operator, AssignAsk{}, AssignAnswer{}},
		{Unassign, "Say that a module does not run on a node any more; data stays", program + "unassign db1 notes", Reversible, Operator, UnassignAsk{}, Done{}},
		{UnassignWithData, "Say that a module does not run on a node any more, and which of its data are deleted there", program + `unassign db1 notes --delete-data --why "not needed any more"`, Disruptive, Operator, UnassignWithDataAsk{}, Done{}},
		{Plan, "Show what a push would change, per node and module, with why", program + "plan db1", Read, Viewer, PlanAsk{}, PlanAnswer{}},
		{PushSend, "Send declarations to named nodes, to all, or to those behind", program + `push db1 --why "new greeting"`, Disruptive, Operator, PushAsk{}, Push{}},
		{PushShow, "Show how a push goes; waits up to 5 s for news", program + "push show mdx3k2a1", Read, Viewer, PushShowAsk{}, Push{}},
		{Seats, "List the seats and who holds them", program + "seat list", Read, Viewer, Nothing{}, SeatsAnswer{}},
		{Tools, "List every verb that can be asked, with its description and schema", program + "tool list", Read, Viewer, Nothing{}, ToolsAnswer{}},
		{OperatorIssue, "Let a person in, by the public key of a credential made where it is used", program + "operator issue ada --role viewer --out ada.json", Disruptive, Admin, OperatorIssueAsk{}, OperatorIssueAnswer{}},
		{Operators, "List the people and their roles", program + "operator list", Read, Viewer, Nothing{}, OperatorsAnswer{}},
		{OperatorRevoke, "End a person's credential", program + "operator revoke ada", Disruptive, Admin, OperatorRevokeAsk{}, Done{}},
		{Changes, "Read the journal: who changed what, when and why", program + "changes", Read, Viewer, ChangesAsk{}, ChangesAnswer{}},
		{Calls, "List the last calls: who asked what, and how it ended", program + "calls", Read, Viewer, CallsAsk{}, CallsAnswer{}},
		{CallShow, "Show one call with its answer", program + "call show call-5fz3k2", Read, Viewer, CallShowAsk{}, Call{}},
	}
}

// Find returns the verb called name.
func Find(name subject.Verb) (Verb, bool) {
	for _, v := range Table() {
		if v.Name == name {
			return v, true
		}
	}
	return Verb{}, false
}

// Verbs are the verbs r may ask: what grants are made from.
func (r Role) Verbs() []subject.Verb {
	var out []subject.Verb
	for _, v := range Table() {
		if r.Covers(v.Least) {
			out = append(out, v.Name)
		}
	}
	return out
}
