package engine

import (
	"mesh/shared/controller"
	"mesh/shared/subject"
)

// Verbs about what of the machine can be reached, and who cannot reach it.
const (
	// Exposure and Probe are of node-engine.
	Exposure subject.Verb = "exposure"
	Probe    subject.Verb = "probe"
	// Banned is of node-intrusion-prevention.
	Banned subject.Verb = "banned"
)

// The bounds of Probe and Banned.
const (
	// MostProbes bounds ProbeAsk.Targets.
	MostProbes = 64
	// ProbeBound is how long one target has, in milliseconds.
	ProbeBound = 3000
	// MostBans bounds BannedAnswer.Bans.
	MostBans = 500
	// MostAddresses bounds BannedAsk.Addresses.
	MostAddresses = 1000
)

// ProbeAsk has the machine try to reach others, as anybody could: one TCP connection each, that is closed at
// once.
type ProbeAsk struct {
	// Targets are addresses with ports: "192.0.2.1:22".
	Targets []string `json:"targets"`
}

// ProbeAnswer has a line for each target, in their order.
type ProbeAnswer struct {
	Node    subject.Node  `json:"node"`
	Results []ProbeResult `json:"results"`
}

// ProbeResult is what became of one try.
type ProbeResult struct {
	Target string `json:"target"`
	// Reached says that a connection came about; with Refused the machine, or something before it, said no
	// at once, which a closed port does too.
	Reached bool   `json:"reached"`
	Refused bool   `json:"refused,omitempty"`
	Why     string `json:"why,omitempty"`
}

// BannedAsk asks who is banned.
type BannedAsk struct {
	// Addresses narrow the answer to bans that cover one of them; empty: all.
	Addresses []string `json:"addresses,omitempty"`
}

// BannedAnswer is who is banned on the machine, by fail2ban, crowdsec, sshguard, psad.
type BannedAnswer struct {
	Node subject.Node `json:"node"`
	Bans []Ban        `json:"bans"`
	// More counts bans left out.
	More int `json:"more,omitempty"`
	// Jails are all of them with how many they ban.
	Jails []Jail `json:"jails,omitempty"`
	// NotUnderstood is what could not be read.
	NotUnderstood []string `json:"not_understood,omitempty"`
}

// Ban is one sender, or a range of them, that is refused.
type Ban struct {
	// Address is an address, a prefix, or a range.
	Address string `json:"address"`
	// Tool is whose ban it is, Jail its own word for why, where it has one.
	Tool string `json:"tool"`
	Jail string `json:"jail,omitempty"`
	// SinceMS and UntilMS are UTC milliseconds; 0 where the kernel does not know.
	SinceMS int64 `json:"since_ms,omitempty"`
	UntilMS int64 `json:"until_ms,omitempty"`
	// Where is the set or chain it stands in.
	Where string `json:"where"`
	// Idle says why it refuses nobody; empty: it does.
	Idle string `json:"idle,omitempty"`
}

// Jail counts bans.
type Jail struct {
	Tool string `json:"tool"`
	Jail string `json:"jail,omitempty"`
	Bans int    `json:"bans"`
}

// Prevention is every verb of node-intrusion-prevention.
func Prevention() []controller.Verb {
	return []controller.Verb{
		{Name: Banned, Description: "Who is banned on the machine, by which tool and since when", Example: program + "bans db1",
			Level: controller.Read, Least: controller.Viewer, Ask: BannedAsk{}, Answer: BannedAnswer{}},
	}
}
