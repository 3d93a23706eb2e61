// Package enrol is what an invited machine and the coordinator say to each other on
// mesh.enrol.<invitation> (NOD-1, NOD-2). The machine makes its keys itself and sends the public
// halves; the answer holds all that it pins. Asking again with the same keys gives the same answer.
package enrol

import (
	"time"

	"mesh/shared/credential"
	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/strict"
	"mesh/shared/subject"
)

const (
	// MaxSkew is how far the machine's clock may be off.
	MaxSkew = 5 * time.Minute
	// Bound is how long the machine waits for the answer.
	Bound = 10 * time.Second

	maxAsk = 64 << 10
)

// Ask asks to be let in.
type Ask struct {
	Node subject.Node `json:"node"`
	// Key is the public bus key, Curve the public key that secrets are sealed to.
	Key   string `json:"key"`
	Curve string `json:"curve"`
	// MachineID is /etc/machine-id: a clone of an enrolled image is told by it.
	MachineID string         `json:"machine_id"`
	Profile   report.Profile `json:"profile"`
	// Agent is the version of the agent that is to be installed.
	Agent string `json:"agent"`
	// At is the machine's time, Unix milliseconds.
	At int64 `json:"at"`
}

// Check refuses an ask that could not be answered, whoever sends it.
func (a Ask) Check() error {
	if _, err := subject.ParseNode(string(a.Node)); err != nil {
		return err
	}
	if err := credential.CheckUserKey(a.Key); err != nil {
		return err
	}
	if err := credential.CheckCurveKey(a.Curve); err != nil {
		return err
	}
	if err := a.Profile.Check(); err != nil {
		return err
	}
	if n := len(a.MachineID); n == 0 || n > 64 {
		return refusal.New("a machine without a machine id", "a clone could not be told from it", "make one with systemd-machine-id-setup and enrol again")
	}
	return nil
}

// DecodeAsk reads an ask strictly.
func DecodeAsk(b []byte) (Ask, error) {
	var a Ask
	if len(b) > maxAsk {
		return a, refusal.Newf("the question to be let in", "use the installer of this mesh's release", "it has %d bytes, the bound is %d", len(b), maxAsk)
	}
	if err := strict.Decode(b, &a); err != nil {
		return a, refusal.New("the question to be let in", err.Error(), "use the installer of this mesh's release")
	}
	return a, a.Check()
}

// Answer lets the machine in: all that it pins.
type Answer struct {
	Mesh string       `json:"mesh"`
	Node subject.Node `json:"node"`
	// Signer is whose declarations the machine believes.
	Signer credential.Verifier `json:"signer"`
	// Bus is where the bus is, with the mesh's CA.
	Bus credential.Bus `json:"bus"`
	// Heard says that the coordinator has a report of the machine's: asked again, the enrolment is over
	// when it says so (NOD-2).
	Heard bool `json:"heard,omitempty"`
	// At is the coordinator's time, Unix milliseconds; for people.
	At int64 `json:"at,omitempty"`
}
