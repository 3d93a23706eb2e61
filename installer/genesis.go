package installer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"mesh/shared/bus"
	"mesh/shared/controller"
	"mesh/shared/credential"
	"mesh/shared/refusal"
	"mesh/shared/subject"
	"mesh/shared/verb"
)

// Where the coordinator is.
const (
	coordinatorFolder = "/var/lib/mesh-coordinator"
	// madeOperator is where "mesh-coordinator init" leaves the first operator's credential.
	madeOperator = coordinatorFolder + "/operator.json"
	recordsFile  = coordinatorFolder + "/records.db"
)

// DefaultMesh and DefaultOperator are the names when none are given.
const (
	DefaultMesh     = "mesh"
	DefaultOperator = "admin"
)

// genesisWhy is in the journal of the mesh beside what a genesis asked for.
const genesisWhy = "genesis"

// GenesisOptions say what mesh is made.
type GenesisOptions struct {
	// Addresses are where the other machines reach the bus, host or host:port.
	Addresses []string
	// Node is this machine's name; empty for its hostname.
	Node string
	// Mesh is the mesh's name and Operator that of the first person; empty for the defaults.
	Mesh, Operator string
	// Listen is where the bus listens, a port or host:port; empty for all addresses.
	Listen string
}

// genesis makes a mesh.
type genesis struct {
	*enrolment
	o         GenesisOptions
	addresses []string
	listen    string
	operator  *place
	there     bool // the mesh was made before
	made      bool // init was run
	person    credential.File
}

// Genesis makes a mesh on this machine: the coordinator with its bus, the first operator's credential,
// and this machine as the first node, let in by an invitation like any other. Run again it repairs.
func (i *Installer) Genesis(ctx context.Context, o GenesisOptions) (Joined, error) {
	g := &genesis{o: o, operator: i.Machine.place(operatorFile, 0o600)}
	node, err := i.prepare(g)
	if err != nil {
		return Joined{}, err
	}
	release, err := i.alone()
	if err != nil {
		return Joined{}, err
	}
	defer func() { _ = release() }() // the end of the program does so too
	g.enrolment = i.enrolment(node)
	g.near = nearer(g.listen)
	g.heard = g.seatHeard
	coordinator := i.coordinator()
	steps := slices.Concat(
		i.checks([]string{agentProgram, coordinatorProgram, installerProgram}, leastDiskCoordinator),
		[]Step{
			{What: "check that there is no other mesh here", Reads: true, Do: g.checkMesh},
			{What: "check that the bus can listen at " + g.listen, Reads: true, Do: g.checkListen},
			coordinator.remember(), g.service.remember(), coordinator.install(), g.service.install(), i.install(installerProgram),
			g.init(), g.handOver(), coordinator.write(), coordinator.start(), g.reach(),
			g.invite(), g.keys(), g.letIn(), g.complete(), g.service.write(), i.bootFilter().lay(), g.service.start(), g.wait(),
		})
	err = i.steps(ctx, steps)
	return Joined{Node: node, Mesh: firstOf(g.o.Mesh, g.person.Mesh), Repaired: g.there}, err
}

// prepare reads the options.
func (i *Installer) prepare(g *genesis) (node subject.Node, err error) {
	g.there = exists(i.Machine.at(recordsFile))
	if g.there { // what is not said is as it was made
		g.remembered(i.Machine)
	} else {
		g.o.Mesh = firstOf(g.o.Mesh, DefaultMesh)
	}
	g.o.Operator = firstOf(g.o.Operator, DefaultOperator)
	if g.o.Mesh != "" { // else the records know the name
		if err := subject.Check("mesh", g.o.Mesh); err != nil {
			return "", err
		}
	}
	if err := subject.Check("operator", g.o.Operator); err != nil {
		return "", err
	}
	if g.addresses, err = parseAddresses(g.o.Addresses); err != nil {
		return "", err
	}
	if g.listen, err = parseListen(g.o.Listen, g.addresses); err != nil {
		return "", err
	}
	return i.nodeName(g.o.Node)
}

// remembered fills in what a repair need not be told again.
func (g *genesis) remembered(m Machine) {
	if f, err := credential.Load(m.at(operatorFile)); err == nil && len(g.o.Addresses) == 0 {
		g.o.Addresses = f.Bus.Addresses
	}
	if f, err := credential.Load(m.at(credentialFile)); err == nil && g.o.Node == "" {
		g.o.Node = f.Name
	}
}

// nodeName is the name given, or the hostname up to its first dot.
func (i *Installer) nodeName(given string) (subject.Node, error) {
	if given != "" {
		return subject.ParseNode(given)
	}
	host, err := i.Machine.hostname()
	if err != nil {
		return "", err
	}
	host, _, _ = strings.Cut(strings.ToLower(host), ".")
	node, err := subject.ParseNode(host)
	if r := refusal.Of(err); r != nil {
		return "", refusal.New("this machine's hostname as its node name", fmt.Sprintf("%q: %s", host, r.Why), "name the machine with --name")
	}
	return node, err
}

func (m Machine) hostname() (string, error) {
	if m.Root != "/" {
		return m.line("/etc/hostname"), nil
	}
	return os.Hostname()
}

// checkMesh tells a new mesh from a repair and refuses all else.
func (g *genesis) checkMesh(context.Context) (string, error) {
	if err := errors.Join(g.read(), g.operator.look()); err != nil {
		return "", err
	}
	switch {
	case !g.there && g.enrolled():
		return "", refusal.Newf("to make a mesh here", "take it out of that mesh first: mesh-installer leave", "this machine is %s of the mesh %s", g.have.Name, g.have.Mesh)
	case !g.there && g.operator.there:
		return "", refusal.New("to make a mesh here", operatorFile+" is there, the credential of a person of another mesh", "move that file away and run the same command again")
	case !g.there:
		return "there is no mesh here yet", nil
	}
	f, err := g.credential()
	if err != nil {
		return "", err
	}
	if f.Seed == "" {
		return "", refusal.New("to repair the mesh here", "the first operator's credential is neither in "+operatorFile+" nor in "+madeOperator, "put the credential of an admin into "+operatorFile)
	}
	if !slices.Equal(f.Bus.Addresses, g.addresses) {
		return "", refusal.Newf("to make a mesh here", "repair it with the addresses it has: --address "+strings.Join(f.Bus.Addresses, " --address ")+`; or take it away: mesh-installer leave --coordinator-too`,
			"there is one, with its bus at %s", strings.Join(f.Bus.Addresses, ", "))
	}
	if g.have.Seed != "" && g.have.Mesh == f.Mesh || g.have.Seed == "" {
		return "there is a mesh here: what is not in order is repaired", nil
	}
	return g.checkFree(f.Mesh)
}

// credential is the first operator's, from where it is or was made; empty when it is nowhere.
func (g *genesis) credential() (credential.File, error) {
	for _, at := range []string{operatorFile, madeOperator} {
		f, err := credential.Load(g.i.Machine.at(at))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		return f, err
	}
	return credential.File{}, nil
}

func (g *genesis) checkListen(context.Context) (string, error) {
	if g.there {
		return "the bus listens at " + g.listen, nil
	}
	err := g.i.Machine.Listen(g.listen)
	if v4, may := withoutIPv6(g.listen); may && errors.Is(err, syscall.EAFNOSUPPORT) {
		g.listen = v4
		err = g.i.Machine.Listen(v4)
	}
	if err != nil {
		return "", refusal.New("to make a mesh here", "its bus cannot listen at "+g.listen+": "+oneLine(err), "end what listens there, or choose another port: --listen <port>, and --address with it")
	}
	return "the bus can listen at " + g.listen, nil
}

// init makes the coordinator's keys and records. The program makes them whole or not at all, and twice
// is no error.
func (g *genesis) init() Step {
	return Step{What: strings.TrimSpace("make the mesh "+g.o.Mesh) + " in " + coordinatorFolder,
		Do: func(ctx context.Context) (string, error) {
			if g.o.Mesh == "" {
				return coordinatorFolder + " holds a mesh", nil
			}
			args := []string{filepath.Join(programFolder, coordinatorProgram), "init", "--name", g.o.Mesh, "--operator", g.o.Operator}
			if !g.there || g.o.Listen != "" {
				args = append(args, "--listen", g.listen)
			}
			for _, a := range g.addresses {
				args = append(args, "--address", a)
			}
			_, err := g.i.Machine.Run(ctx, args...)
			var failed *RunError
			if errors.As(err, &failed) && failed.refused() != nil {
				return "", failed.refused()
			}
			if err == nil && g.there {
				return coordinatorFolder + " holds the mesh " + g.o.Mesh, nil
			}
			// Only what was made is undone; and with the mesh, keys it knows are worth nothing.
			g.made = err == nil
			g.forget = g.made
			return "", err
		},
		Undo: func(context.Context) error {
			if !g.made {
				return nil
			}
			return os.RemoveAll(g.i.Machine.at(coordinatorFolder))
		}}
}

// handOver puts the first operator's credential where people look for it, and only there.
func (g *genesis) handOver() Step {
	return Step{What: "write " + operatorFile + ", the credential of " + g.o.Operator,
		Do: func(context.Context) (string, error) {
			f, err := g.credential()
			if err != nil {
				return "", err
			}
			if f.Seed == "" {
				return "", fmt.Errorf("%s left no credential in %s", coordinatorProgram, madeOperator)
			}
			g.person = f
			b, err := f.Encode()
			if err != nil {
				return "", err
			}
			said := ""
			if g.operator.there {
				said = operatorFile + " is there"
			} else if _, err := g.operator.put(b); err != nil {
				return "", err
			}
			return said, remove(g.i.Machine.at(madeOperator))
		},
		Undo: func(context.Context) error { return g.operator.undo() }}
}

// reach waits until the coordinator answers the first operator.
func (g *genesis) reach() Step {
	return Step{What: "ask the coordinator how the mesh is", Hint: `see why: "journalctl -u mesh-coordinator -n 20"`,
		Do: func(ctx context.Context) (string, error) {
			var answer controller.StatusAnswer
			if err := g.seat(ctx, controller.Status, controller.Nothing{}, &answer); err != nil {
				return "", err
			}
			return "the coordinator answers " + g.person.Name, nil
		}}
}

// seat asks the coordinator as the first operator, and a few times: its bus takes on people a moment
// after it is ready.
func (g *genesis) seat(ctx context.Context, v subject.Verb, args, answer any) error {
	for try := 1; ; try++ {
		err := g.seatOnce(ctx, v, args, answer)
		if err == nil || try == askTries || ctx.Err() != nil || refusal.Of(err) != nil && !errors.Is(err, bus.ErrRefused) {
			return err
		}
		select {
		case <-ctx.Done():
		case <-g.i.Machine.Clock.After(askPause):
		}
	}
}

func (g *genesis) seatOnce(ctx context.Context, v subject.Verb, args, answer any) error {
	c, err := bus.Connect(ctx, bus.Options{Bus: g.near(g.person.Bus), Seed: g.person.Seed, Principal: g.person.Principal(), Name: "mesh-installer of " + g.person.Name, Once: true, Clock: g.i.Machine.Clock})
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, verb.Bound+2*time.Second)
	defer cancel()
	return verb.Call(ctx, c, subject.Controller, v, args, answer)
}

// invite makes the invitation that this machine is let in by.
func (g *genesis) invite() Step {
	return Step{What: "invite this machine as " + string(g.node),
		Do: func(ctx context.Context) (string, error) {
			if g.enrolled() && g.have.Mesh == g.person.Mesh {
				if g.have.Name != string(g.node) {
					return "", refusal.Newf("to enrol this machine as "+string(g.node), "repair it under its name: --name "+g.have.Name, "it is %s of this mesh", g.have.Name)
				}
				if listed, err := g.listed(ctx); err != nil || listed {
					return "this machine is " + string(g.node) + " of this mesh", err
				}
				// Somebody removed the coordinator's own machine: it is let in again, with the keys it has.
				g.service.changed = true // its agent dials again at once
			} else if err := g.forgetHalf(ctx); err != nil {
				return "", err
			}
			var answer controller.InviteAnswer
			if err := g.seat(ctx, controller.NodeInvite, controller.InviteAsk{Node: g.node, Why: genesisWhy}, &answer); err != nil {
				return "", err
			}
			var err error
			if g.invitation, err = credential.ParseInvitation(answer.Line); err != nil {
				return "", err
			}
			g.invitation.Bus = g.near(g.invitation.Bus)
			return "", nil
		}}
}

// listed reports whether the records have this machine's name.
func (g *genesis) listed(ctx context.Context) (bool, error) {
	var n controller.NodeAnswer
	err := g.seat(ctx, controller.NodeShow, controller.NodeAsk{Node: g.node}, &n)
	if refusal.Of(err) != nil && !errors.Is(err, bus.ErrRefused) {
		return false, nil // there is none of this name, or it was removed
	}
	return err == nil, err
}

// forgetHalf takes this machine off the records again when a genesis was cut short after it was let in
// and before it had the answer: the invitation that would give it again is gone.
func (g *genesis) forgetHalf(ctx context.Context) error {
	if g.have.Seed == "" || g.have.Mesh != g.person.Mesh {
		return nil
	}
	key, err := g.have.Seed.Public()
	if err != nil {
		return err
	}
	var n controller.NodeAnswer
	if err := g.seat(ctx, controller.NodeShow, controller.NodeAsk{Node: g.node}, &n); refusal.Of(err) != nil || err == nil && n.Key != key {
		return nil // it was not let in
	} else if err != nil {
		return err
	}
	return g.seat(ctx, controller.NodeRemove, controller.NodeRemoveAsk{Node: g.node, Why: genesisWhy + ", begun again"}, nil)
}

func (g *genesis) seatHeard(ctx context.Context) (bool, error) {
	var n controller.NodeAnswer
	err := g.seatOnce(ctx, controller.NodeShow, controller.NodeAsk{Node: g.node}, &n)
	return err == nil && n.Report != nil && n.Report.Number > 0, err
}
