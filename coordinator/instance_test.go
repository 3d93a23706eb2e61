package coordinator_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"mesh/coordinator/client"
	"mesh/shared/bus"
	"mesh/shared/controller"
	"mesh/shared/credential"
	"mesh/shared/declaration"
	"mesh/shared/membership"
	"mesh/shared/subject"
	"mesh/shared/verb"
	"mesh/shared/waitfor"
)

// lay lays the files of the instance of module down as the agent does.
func (m *machine) lay(t *testing.T, d *declaration.Declaration, module subject.Module) (folder string, of membership.Membership) {
	t.Helper()
	folder = t.TempDir()
	for _, x := range d.Modules {
		if x.Name != module {
			continue
		}
		seed, err := m.seed.Instance(m.answer.Mesh, module)
		if err != nil {
			t.Fatal(err)
		}
		text, err := credential.InstanceFile(m.answer.Mesh, subject.Node(m.name), module, seed, d.Bus).Encode()
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.WriteFile(filepath.Join(folder, "credential.json"), text, 0o600), os.WriteFile(filepath.Join(folder, "membership.json"), x.Membership, 0o600), json.Unmarshal(x.Membership, &of)); err != nil {
			t.Fatal(err)
		}
		return folder, of
	}
	t.Fatalf("%s is not in the declaration of %s", module, m.name)
	return "", of
}

func pushAndWait(t *testing.T, c *client.Client, m *machine) *declaration.Declaration {
	t.Helper()
	for len(m.decisions) > 0 {
		<-m.decisions
	}
	p := ask[controller.Push](t, c, controller.PushSend, controller.PushAsk{Nodes: []subject.Node{subject.Node(m.name)}, Why: "a test"})
	if p.Unissued != 0 {
		t.Errorf("%d memberships are not on the bus", p.Unissued)
	}
	d := waitfor.Value(t, "the declaration of "+m.name, soon, m.decisions)
	waitfor.True(t, "the push", soon, func() (bool, any) {
		now, err := client.Ask[controller.Push](t.Context(), c, controller.PushShow, controller.PushShowAsk{ID: p.ID})
		return err == nil && now.Done, now
	})
	return d
}

// person connects as the operator itself.
func (m *mesh) person(t *testing.T) *bus.Conn {
	t.Helper()
	conn, err := bus.Connect(t.Context(), bus.Options{Bus: m.operator.Bus, Seed: m.operator.Seed, Principal: m.operator.Principal(), Name: "ada", Once: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

// MEM-1, MEM-2, MEM-4, BUS-13: a module in Go and one in Python, with nothing but the two files of their
// instances, answer a verb and say an event; where they answer follows who else is there.
func TestModulesOnTheBus(t *testing.T) {
	m := startMesh(t)
	c := m.client(t, m.operator)
	n1, n2 := newMachine(t, "n1"), newMachine(t, "n2")
	n1.join(t, c)
	n2.join(t, c)
	greeter := `{"module":"greeter","tools":{"greet":{"description":"Greet","level":"read"}},"events":["greeted"]}`
	python := strings.Replace(greeter, `"greeter"`, `"greeter-python"`, 1)
	for _, text := range []string{greeter, python} {
		ask[controller.RegisterAnswer](t, c, controller.ModuleRegister, controller.RegisterAsk{Manifest: json.RawMessage(text)})
	}
	ask[controller.AssignAnswer](t, c, controller.Assign, controller.AssignAsk{Node: "n1", Module: "greeter"})
	ask[controller.AssignAnswer](t, c, controller.Assign, controller.AssignAsk{Node: "n1", Module: "greeter-python"})
	d := pushAndWait(t, c, n1)
	program := filepath.Join(t.TempDir(), "greeter")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "../docs/examples/greeter")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	folder, of := n1.lay(t, d, "greeter")
	run(t, folder, program)
	inPython, _ := n1.lay(t, d, "greeter-python")
	run(t, inPython, "/usr/bin/python3", "-u", "../docs/examples/greeter-python/bin/greeter.py")
	ada := m.person(t)
	greets := func(at string) {
		t.Helper()
		var answer struct{ Greeting string }
		waitfor.True(t, "an answer at "+at, soon, func() (bool, any) {
			err := verb.CallAt(t.Context(), ada, at, at, map[string]string{"name": "Ada"}, &answer)
			return err == nil && answer.Greeting == "Hello, Ada, from n1", err
		})
	}
	greets("mesh.module.greeter.tool.greet.n1")
	greets("mesh.module.greeter.tool.greet")
	greets("mesh.module.greeter-python.tool.greet.n1")
	greets("mesh.module.greeter-python.tool.greet")
	js, err := jetstream.New(m.core(t).NATS())
	if err != nil {
		t.Fatal(err)
	}
	for _, module := range []subject.Module{"greeter", "greeter-python"} {
		waitfor.True(t, "the event of "+string(module), soon, func() (bool, any) {
			s, err := js.Stream(t.Context(), string(subject.Events))
			if err != nil {
				return false, err
			}
			_, err = s.GetLastMsgForSubject(t.Context(), subject.ModuleEvent(module, "greeted", "n1"))
			return err == nil, err
		})
	}

	// With a second instance neither has the plain address, each from its own push on.
	ask[controller.AssignAnswer](t, c, controller.Assign, controller.AssignAsk{Node: "n2", Module: "greeter"})
	pushAndWait(t, c, n2)
	greets("mesh.module.greeter.tool.greet")
	if d := pushAndWait(t, c, n1); len(d.Modules) != 2 {
		t.Errorf("%d modules", len(d.Modules))
	}
	waitfor.True(t, "the plain address to be nobody's", soon, func() (bool, any) {
		err := verb.CallAt(t.Context(), ada, "mesh.module.greeter.tool.greet", "greeter", map[string]string{"name": "Ada"}, nil)
		return errors.Is(err, nats.ErrNoResponders), err
	})
	greets("mesh.module.greeter.tool.greet.n1")

	// Off the machine, its membership leaves the bus and its key the list.
	ask[controller.Done](t, c, controller.Unassign, controller.UnassignAsk{Node: "n1", Module: "greeter"})
	greets("mesh.module.greeter.tool.greet.n1") // until the machine hears of it
	pushAndWait(t, c, n1)
	waitfor.True(t, "the instance to be gone", soon, func() (bool, any) {
		err := verb.CallAt(t.Context(), ada, "mesh.module.greeter.tool.greet.n1", "greeter", map[string]string{"name": "Ada"}, nil)
		s, errS := js.Stream(t.Context(), string(subject.Assignments))
		if errS != nil {
			return false, errS
		}
		_, gone := s.GetLastMsgForSubject(t.Context(), of.Self)
		return errors.Is(err, nats.ErrNoResponders) && errors.Is(gone, jetstream.ErrMsgNotFound), errors.Join(err, gone)
	})
}

// run runs a program of an instance until the test ends.
func run(t *testing.T, folder string, program ...string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, program[0], program[1:]...)
	cmd.Env = append(os.Environ(), "MESH_INSTANCE="+folder)
	cmd.WaitDelay = 5 * time.Second
	var said lines
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait() // it was killed
		if t.Failed() {
			t.Logf("%s said:\n%s", program[len(program)-1], said.String())
		}
	})
}
