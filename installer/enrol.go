package installer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"mesh/shared/bus"
	"mesh/shared/credential"
	"mesh/shared/enrol"
	"mesh/shared/refusal"
	"mesh/shared/subject"
	"mesh/shared/verb"
)

const (
	// askPause is between two asks: for the answer that got lost, and for the first report.
	askPause = time.Second
	// askTries is how often a question is asked that got no answer. It also waits for a user list that an
	// invitation made a moment ago is not on yet; the bus's is composed within a second.
	askTries = 4
	// heardTries bounds the wait for the first report, one each askPause.
	heardTries = 60
	// dialBound is for finding out why the bus is not reached.
	dialBound = 3 * time.Second
)

// Joined is what an enrolment or a genesis came to.
type Joined struct {
	Node subject.Node
	Mesh string
	// Repaired: the mesh was there before.
	Repaired bool
}

// enrolment lets this machine in and starts its agent.
type enrolment struct {
	i       *Installer
	node    subject.Node
	service *service
	cred    *place
	// invitation may be set by an earlier step than those of the enrolment.
	invitation credential.Invitation
	// near changes where this machine looks for the bus; nil: as the coordinator says.
	near func(credential.Bus) credential.Bus
	// heard reports whether the coordinator heard a report of this machine.
	heard func(context.Context) (bool, error)

	have   credential.File // what the machine held, or its new keys
	made   bool            // the keys are of this run
	maybe  bool            // the coordinator may know the keys
	forget bool            // but the coordinator is being undone itself
	ended  bool            // the invitation is over, and this machine is in already
	answer enrol.Answer
}

// Enrol lets this machine in by the line of an invitation, installs the agent and returns when its first
// report was heard. Without a line it repairs a machine that is in a mesh: nobody keeps a used invitation
// until the next release.
func (i *Installer) Enrol(ctx context.Context, line string) (Joined, error) {
	inv, err := i.invitation(line)
	if err != nil {
		return Joined{}, err
	}
	release, err := i.alone()
	if err != nil {
		return Joined{}, err
	}
	defer func() { _ = release() }() // the end of the program does so too
	e := i.enrolment(inv.Node)
	e.invitation = inv
	e.ended = inv.Seed == ""
	e.heard = e.askHeard
	steps := append(i.checks([]string{agentProgram, installerProgram}, leastDisk),
		Step{What: "check that this machine is in no other mesh", Reads: true, Do: func(context.Context) (string, error) { return e.checkFree(inv.Mesh) }},
		e.service.remember(), e.keys(), e.letIn(), e.complete(), e.service.install(), i.install(installerProgram), e.service.write(), i.bootFilter().lay(), e.service.start(), e.wait())
	return Joined{Node: inv.Node, Mesh: inv.Mesh}, i.steps(ctx, steps)
}

// invitation is that of the line; without one it has no key and says what mesh this machine is in.
func (i *Installer) invitation(line string) (credential.Invitation, error) {
	if line != "" {
		return credential.ParseInvitation(line)
	}
	f, err := credential.Load(i.Machine.at(credentialFile))
	if errors.Is(err, fs.ErrNotExist) || err == nil && f.Signer == "" {
		return credential.Invitation{}, refusal.New("to enrol this machine without an invitation", "it is in no mesh yet", "make one on the coordinator, mesh-coordinator node invite <name>, and give its line")
	}
	return credential.Invitation{Mesh: f.Mesh, Node: subject.Node(f.Name), Bus: f.Bus}, err
}

func (i *Installer) enrolment(node subject.Node) *enrolment {
	return &enrolment{i: i, node: node, service: i.agent(), cred: i.Machine.place(credentialFile, 0o600)}
}

// read looks at the credential on the machine; one without a signer are keys that wait for their answer.
func (e *enrolment) read() error {
	if err := e.cred.look(); err != nil || !e.cred.there || e.have.Seed != "" {
		return err
	}
	f, err := credential.Decode(e.cred.was)
	if err != nil {
		return refusal.New("the credential "+credentialFile, "it is there and not understood", "if this machine is in no mesh, move that file away and run the same command again")
	}
	e.have = f
	return nil
}

func (e *enrolment) enrolled() bool { return e.have.Signer != "" }

// checkFree refuses a machine that is a node of another mesh, or under another name.
func (e *enrolment) checkFree(mesh string) (string, error) {
	if err := e.read(); err != nil {
		return "", err
	}
	switch {
	case e.have.Seed == "":
		return "this machine is in no mesh", nil
	case !e.enrolled() && e.have.Mesh == mesh:
		return "this machine has keys from an enrolment that did not end", nil
	case !e.enrolled():
		return "this machine has keys from an enrolment elsewhere that did not end; they are replaced", nil
	case e.have.Mesh == mesh && e.have.Name == string(e.node):
		return fmt.Sprintf("this machine is %s already: what is not in order is repaired", e.node), nil
	}
	return "", refusal.Newf("to enrol this machine as "+string(e.node), "take it out of that mesh first: mesh-installer leave", "it is %s of the mesh %s", e.have.Name, e.have.Mesh)
}

// keys makes the machine's keys and keeps them before they are used for the first time.
func (e *enrolment) keys() Step {
	return Step{What: "make this machine's keys in " + credentialFile,
		Do: func(context.Context) (string, error) {
			if err := e.read(); err != nil {
				return "", err
			}
			if e.have.Seed != "" && e.have.Curve != "" && e.have.Mesh == e.invitation.Mesh || e.enrolled() {
				return "this machine's keys are in " + credentialFile, nil
			}
			f := credential.File{Format: credential.Format, Mesh: e.invitation.Mesh, Kind: credential.KindNode, Name: string(e.node), Bus: e.invitation.Bus}
			var err error
			if f.Seed, err = credential.NewUser(e.i.Machine.Rand); err != nil {
				return "", err
			}
			if f.Curve, err = credential.NewCurve(e.i.Machine.Rand); err != nil {
				return "", err
			}
			e.made = true
			e.have = f
			return "", e.write(f)
		},
		Undo: func(context.Context) error {
			if e.maybe && e.made && !e.forget {
				e.i.say("·", "kept "+credentialFile+": the coordinator may have let these keys in, and the same invitation fits them")
				return nil
			}
			return e.cred.undo()
		}}
}

func (e *enrolment) write(f credential.File) error {
	b, err := f.Encode()
	if err != nil {
		return err
	}
	changed, err := e.cred.put(b)
	e.service.changed = e.service.changed || changed
	return err
}

// letIn asks to be let in.
func (e *enrolment) letIn() Step {
	return Step{What: "ask to be let in as " + string(e.node),
		Do: func(ctx context.Context) (string, error) {
			if e.invitation.Seed == "" { // a repair without one
				return "this machine is let in as " + string(e.node), nil
			}
			answer, err := e.askPatiently(ctx)
			if errors.Is(err, errEnded) && e.enrolled() {
				e.ended = true
				return "the invitation is over, and this machine is let in already", nil
			}
			if err != nil {
				return "", err
			}
			e.maybe = true
			if err := e.judge(answer); err != nil {
				return "", err
			}
			e.answer = answer
			// Removed and let in again under its name: what its agent reported is forgotten, and only a new
			// life of it says everything again.
			e.service.changed = e.service.changed || e.enrolled() && !answer.Heard
			return fmt.Sprintf("the coordinator let this machine in as %s%s", e.node, e.offset(answer)), nil
		}}
}

// offset says how far the machine's clock is off, when that is worth a word.
func (e *enrolment) offset(a enrol.Answer) string {
	if a.At == 0 {
		return ""
	}
	d := e.i.Machine.Clock.Now().Sub(time.UnixMilli(a.At)).Round(time.Second)
	if d.Abs() < 5*time.Second {
		return ""
	}
	return fmt.Sprintf("; this machine's clock is %v off", d)
}

// judge refuses an answer that is not the one that was asked for.
func (e *enrolment) judge(a enrol.Answer) error {
	wrong := func(why string) error {
		return refusal.New("the answer to the enrolment", why, "tell whoever runs the mesh; nothing on this machine was changed for it")
	}
	pin, err := credential.PinOf(a.Bus.CA)
	switch {
	case err != nil:
		return wrong("it holds no certificate authority: " + err.Error())
	case pin != e.invitation.Bus.Pin:
		return wrong("its certificate authority is not the invitation's")
	case a.Mesh != e.invitation.Mesh || a.Node != e.node:
		return wrong(fmt.Sprintf("it is for %s of the mesh %s", a.Node, a.Mesh))
	case a.Signer == "":
		return wrong("it does not say whose declarations to believe")
	}
	return a.Bus.Check()
}

// errEnded is in the error when the bus does not know the invitation.
var errEnded = errors.New("the bus does not know the invitation")

// askPatiently asks until there is an answer, and makes what went wrong a refusal.
func (e *enrolment) askPatiently(ctx context.Context) (enrol.Answer, error) {
	at := strings.Join(e.invitation.Bus.Addresses, ", ")
	for try := 1; ; try++ {
		answer, err := e.ask(ctx)
		again := errors.Is(err, bus.ErrRefused) || errors.Is(err, nats.ErrNoResponders) || errors.Is(err, context.DeadlineExceeded)
		if again && try < askTries && ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-e.i.Machine.Clock.After(askPause):
			}
			continue
		}
		switch {
		case errors.Is(err, bus.ErrRefused):
			return answer, fmt.Errorf("%w: %w", errEnded, e.unknown())
		case errors.Is(err, bus.ErrAway):
			return answer, refusal.New("to enrol this machine", "the bus at "+at+" is not reached: "+unreached(ctx, e.invitation.Bus.Addresses, err),
				"see that the coordinator runs and that this machine may connect there, and run the same command again")
		case errors.Is(err, nats.ErrNoResponders), errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
			return answer, refusal.New("to enrol this machine", "the bus at "+at+" is there, but no coordinator answered",
				"look at it on its machine: systemctl status mesh-coordinator; then run the same command again")
		}
		return answer, err
	}
}

func (e *enrolment) unknown() error {
	why := "the bus does not know it: it was revoked, is over, or is of a mesh that is gone"
	if now := e.i.Machine.Clock.Now(); now.After(e.invitation.ExpiresAt()) {
		why = fmt.Sprintf("it ended %s, and the bus does not know it any more", e.invitation.ExpiresAt().UTC().Format(time.RFC3339))
	}
	return refusal.New("the invitation "+e.invitation.ID, why, "make a new one: mesh-coordinator node invite "+string(e.node))
}

// unreached says why no connection came about. The client tells the cause of a failed dial to nobody,
// so it is dialled once more.
func unreached(ctx context.Context, addresses []string, err error) string {
	d := net.Dialer{Timeout: dialBound}
	for _, a := range addresses {
		c, failed := d.DialContext(ctx, "tcp", a)
		if failed != nil {
			err = failed
			continue
		}
		if c.Close() == nil {
			return a + " takes connections, and then: " + oneLine(err)
		}
	}
	return oneLine(err)
}

// ask asks once, over a connection of its own.
func (e *enrolment) ask(ctx context.Context) (enrol.Answer, error) {
	m := e.i.Machine
	id, err := m.machineID()
	if err != nil {
		return enrol.Answer{}, err
	}
	version, err := e.i.versionOf(ctx, agentProgram)
	if err != nil {
		return enrol.Answer{}, err
	}
	ask := enrol.Ask{Node: e.node, MachineID: id, Profile: m.profile(), Agent: version, At: m.Clock.Now().UnixMilli()}
	if ask.Key, err = e.have.Seed.Public(); err != nil {
		return enrol.Answer{}, err
	}
	if ask.Curve, err = e.have.Curve.Public(); err != nil {
		return enrol.Answer{}, err
	}
	inv := e.invitation
	c, err := bus.Connect(ctx, bus.Options{Bus: inv.Bus, Seed: inv.Seed, Principal: inv.Principal(), Name: "mesh-installer of " + string(e.node), Once: true, Clock: m.Clock})
	if err != nil {
		return enrol.Answer{}, err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, enrol.Bound)
	defer cancel()
	var answer enrol.Answer
	err = verb.CallAt(ctx, c, subject.Enrol(inv.ID), "the enrolment", ask, &answer)
	// A refusal of the coordinator's is the one end that leaves the keys unknown to it.
	if refusal.Of(err) == nil && err != nil {
		e.maybe = true
	}
	return answer, err
}

// complete writes the credential with all that the machine pins.
func (e *enrolment) complete() Step {
	return Step{What: "write " + credentialFile + " with the mesh's authority and signer",
		Do: func(context.Context) (string, error) {
			if e.answer.Mesh == "" {
				return credentialFile + " is as it should be", nil
			}
			f := e.have
			f.Mesh, f.Name, f.Signer, f.Bus = e.answer.Mesh, string(e.answer.Node), e.answer.Signer, e.answer.Bus
			f.Bus.Pin = e.invitation.Bus.Pin
			if e.near != nil {
				f.Bus = e.near(f.Bus)
			}
			if e.enrolled() && f.Signer == e.have.Signer && f.Bus.CA == e.have.Bus.CA && slices.Equal(f.Bus.Addresses, e.have.Bus.Addresses) {
				return credentialFile + " is as it should be", nil
			}
			e.have = f
			return "", e.write(f)
		}}
}

// wait waits until the coordinator heard the machine.
func (e *enrolment) wait() Step {
	return Step{What: "wait until the coordinator hears this machine", Hint: `see why: "journalctl -u mesh-agent -n 20"`,
		Do: func(ctx context.Context) (string, error) {
			if e.ended {
				return "the bus takes this machine's credential", e.probe(ctx)
			}
			var last error
			for range heardTries {
				ok, err := e.heard(ctx)
				if ok {
					return fmt.Sprintf("the coordinator heard %s", e.node), nil
				}
				last = err
				select {
				case <-ctx.Done():
					return "", ctx.Err()
				case <-e.i.Machine.Clock.After(askPause):
				}
			}
			if last == nil {
				last = errors.New("it did not report")
			}
			return "", fmt.Errorf("waited %v: %w", heardTries*askPause, last)
		}}
}

func (e *enrolment) askHeard(ctx context.Context) (bool, error) {
	a, err := e.ask(ctx)
	return a.Heard, err
}

func (e *enrolment) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, enrol.Bound)
	defer cancel()
	return bus.Probe(ctx, bus.Options{Bus: e.have.Bus, Seed: e.have.Seed, Principal: e.have.Principal(), Name: "mesh-installer", Clock: e.i.Machine.Clock})
}
