package installer

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"mesh/installer/unit"
	"mesh/shared/controller"
	"mesh/shared/credential"
	"mesh/shared/enrol"
	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/subject"
	"mesh/shared/verb"
	"mesh/testbus"
)

// seat stands for the coordinator that a genesis makes: its init, its door and its verbs.
type seat struct {
	*door
	operator credential.File

	mu    sync.Mutex // guards the fields below
	nodes map[subject.Node]*controller.NodeAnswer
	asked []subject.Verb
}

// found makes b a machine on which a genesis of this mesh can be run.
func newSeat(t *testing.T, b *bed) *seat {
	t.Helper()
	verbs := []subject.Verb{controller.Status, controller.NodeInvite, controller.NodeShow, controller.NodeRemove}
	d := newDoor(t)
	d.bus.Add(t, testbus.Operator("admin", verbs...))
	s := &seat{door: d, nodes: map[subject.Node]*controller.NodeAnswer{}}
	s.operator = credential.File{Format: credential.Format, Mesh: "mesh-id", Kind: credential.KindOperator, Name: "admin", Seed: d.bus.Seed("operator-admin"), Bus: d.bus.Where()}
	d.judge = s.letIn
	core := d.bus.Connect(t, "coordinator")
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for name, h := range map[subject.Verb]verb.Handler{
		controller.Status:     verb.Typed(s.status),
		controller.NodeInvite: verb.Typed(s.invite),
		controller.NodeShow:   verb.Typed(s.show),
		controller.NodeRemove: verb.Typed(s.drop),
	} {
		wg.Go(func() { // ends with the test
			at := subject.Tool(subject.Controller, name)
			noted := func(ctx context.Context, who verb.Caller, args []byte) (any, error) {
				s.mu.Lock()
				s.asked = append(s.asked, name)
				s.mu.Unlock()
				return h(ctx, who, args)
			}
			if err := verb.Serve(ctx, core, at, string(subject.Controller), 4, slog.New(slog.DiscardHandler), noted); err != nil {
				t.Errorf("%s: %v", at, err)
			}
		})
	}
	t.Cleanup(func() { cancel(); wg.Wait() })
	b.on[s.initLine()] = func() error {
		if !exists(b.at(recordsFile)) {
			b.write(recordsFile, "records")
			text, err := s.operator.Encode()
			if err != nil {
				return err
			}
			b.writeAt(b.at(madeOperator), string(text), 0o600)
		}
		return nil
	}
	b.on["systemctl start mesh-agent.service"] = func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.nodes["db1"].Report = &report.Report{Number: 1, Node: "db1"}
		return nil
	}
	return s
}

// options are those of a genesis of this mesh.
func (s *seat) options() GenesisOptions {
	return GenesisOptions{Addresses: s.bus.Where().Addresses, Listen: "192.0.2.1:4222"}
}

func (s *seat) initLine() string {
	return "mesh-coordinator init --name mesh --operator admin --listen 192.0.2.1:4222 --address " + s.bus.Where().Addresses[0]
}

func (s *seat) status(context.Context, verb.Caller, controller.Nothing) (controller.StatusAnswer, error) {
	return controller.StatusAnswer{Mesh: "mesh-id"}, nil
}

func (s *seat) invite(_ context.Context, _ verb.Caller, a controller.InviteAsk) (controller.InviteAnswer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.nodes[a.Node] != nil {
		return controller.InviteAnswer{}, refusal.New("the node name "+string(a.Node), "it is taken", "choose another")
	}
	return controller.InviteAnswer{ID: invited, Line: s.line}, nil
}

// letIn keeps who came in.
func (s *seat) letIn(_ int, a enrol.Ask) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodes[a.Node] = &controller.NodeAnswer{Node: controller.Node{Name: a.Node}, Key: a.Key}
	return nil
}

func (s *seat) show(_ context.Context, _ verb.Caller, a controller.NodeAsk) (controller.NodeAnswer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[a.Node]; n != nil {
		return *n, nil
	}
	return controller.NodeAnswer{}, refusal.New("the node "+string(a.Node), "there is none of this name", "list them")
}

func (s *seat) drop(_ context.Context, _ verb.Caller, a controller.NodeRemoveAsk) (controller.Done, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.nodes, a.Node)
	return controller.Done{Changed: true}, nil
}

// TestGenesis: a mesh on one machine, with the same enrolment as any other (NOD-3).
func TestGenesis(t *testing.T) {
	b := newBed(t)
	s := newSeat(t, b)
	joined, err := b.Genesis(t.Context(), s.options())
	if err != nil || joined.Node != "db1" || joined.Mesh != "mesh" {
		t.Fatalf("Genesis = %+v, %v\n%s", joined, err, &b.said)
	}
	want := []string{s.initLine(),
		"systemctl daemon-reload", "systemctl enable --quiet mesh-coordinator.service", "systemctl start mesh-coordinator.service",
		"systemctl daemon-reload", "systemctl daemon-reload", "systemctl enable --quiet mesh-filter.service",
		"systemctl enable --quiet mesh-agent.service", "systemctl start mesh-agent.service"}
	if got := b.ran(); !slices.Equal(got, want) {
		t.Errorf("ran %q, want %q", got, want)
	}
	if st, err := os.Stat(b.at(operatorFile)); err != nil || st.Mode().Perm() != 0o600 || exists(b.at(madeOperator)) {
		t.Errorf("the operator's credential: %v; and it is to be in one place", err)
	}
	if b.read("/etc/systemd/system/mesh-coordinator.service") != unit.Coordinator() {
		t.Error("the coordinator's unit")
	}
	if f := b.credential(); f.Name != "db1" || f.Signer == "" {
		t.Errorf("credential %+v", f)
	}

	t.Run("again, nothing changes", func(t *testing.T) {
		before := b.tree()
		o := s.options()
		o.Listen, o.Mesh = "", "mesh" // a repair need not say where it listens
		delete(b.on, s.initLine())
		if _, err := b.Genesis(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(before, b.tree()); diff != "" {
			t.Errorf("changed: %s", diff)
		}
		if got := b.ran(); len(got) != 1 || strings.Contains(got[0], "--listen") {
			t.Errorf("ran %q", got)
		}
	})
	t.Run("again, with nothing said", func(t *testing.T) {
		before := b.tree()
		joined, err := b.Genesis(t.Context(), GenesisOptions{})
		if diff := cmp.Diff(before, b.tree()); err != nil || !joined.Repaired || diff != "" || len(b.ran()) > 0 {
			t.Errorf("Genesis = %+v, %v; changed %s", joined, err, diff)
		}
	})
	t.Run("again, cut short before the answer came", func(t *testing.T) {
		f := b.credential()
		f.Signer = ""
		text, err := f.Encode()
		must(t, err)
		b.writeAt(b.at(credentialFile), string(text), 0o600)
		s.nodes["db1"].Report = nil
		b.on["systemctl restart mesh-agent.service"] = b.on["systemctl start mesh-agent.service"]
		if _, err := b.Genesis(t.Context(), s.options()); err != nil {
			t.Fatal(err)
		}
		if f := b.credential(); f.Signer == "" {
			t.Error("the credential is not whole")
		}
		if !slices.Contains(s.asked, controller.NodeRemove) {
			t.Errorf("asked %v", s.asked)
		}
	})
	t.Run("again, after somebody removed the coordinator's own machine", func(t *testing.T) {
		before := b.credential()
		delete(s.nodes, "db1")
		s.asked = nil
		if _, err := b.Genesis(t.Context(), s.options()); err != nil {
			t.Fatal(err)
		}
		if s.nodes["db1"] == nil || !slices.Contains(s.asked, controller.NodeInvite) || b.credential().Seed != before.Seed {
			t.Errorf("it was not let in again with its keys: asked %v", s.asked)
		}
	})
	t.Run("again, with other addresses", func(t *testing.T) {
		o := s.options()
		o.Addresses = []string{"192.0.2.7"}
		if _, err := b.Genesis(t.Context(), o); refusal.Of(err) == nil || !strings.Contains(err.Error(), "there is one, with its bus at 127.0.0.1:") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("as another machine of it", func(t *testing.T) {
		o := s.options()
		o.Node = "web1"
		if _, err := b.Genesis(t.Context(), o); refusal.Of(err) == nil || !strings.Contains(err.Error(), "--name db1") && !strings.Contains(err.Error(), "it is db1") {
			t.Errorf("got %v", err)
		}
	})
}

// TestAGenesisThatFailsLeavesNothing, wherever it fails.
func TestAGenesisThatFailsLeavesNothing(t *testing.T) {
	broken := &RunError{Args: []string{"x"}, Stderr: "it broke", Err: errors.New("exit status 1")}
	for _, at := range []string{"init", "systemctl start mesh-coordinator.service", "systemctl enable --quiet mesh-agent.service", "systemctl start mesh-agent.service", "report"} {
		t.Run(at, func(t *testing.T) {
			b := newBed(t)
			s := newSeat(t, b)
			b.write("/etc/mesh/of-a-person", "x")
			before := b.tree()
			switch at {
			case "init":
				b.fails[s.initLine()] = &RunError{Args: []string{"mesh-coordinator"}, Stderr: "refused: a new mesh in x: it is full\ndo: empty it\n", Err: broken.Err}
				b.on[s.initLine()] = nil
			case "report":
				b.on["systemctl start mesh-agent.service"] = nil
			default:
				b.fails[at] = broken
			}
			_, err := b.Genesis(t.Context(), s.options())
			if err == nil {
				t.Fatal("it came through")
			}
			if at == "init" && err.Error() != "refused: a new mesh in x: it is full\ndo: empty it" {
				t.Errorf("the program's refusal became %q", err)
			}
			if diff := cmp.Diff(before, b.tree()); diff != "" || len(b.active) > 0 {
				t.Errorf("left behind: %s, running %v\n%s", diff, b.active, &b.said)
			}
		})
	}
}

func TestGenesisRefusals(t *testing.T) {
	for _, tt := range []struct {
		name string
		set  func(*testing.T, *bed, *GenesisOptions)
		says string
	}{
		{"no address", func(_ *testing.T, _ *bed, o *GenesisOptions) { o.Addresses = nil }, "--address"},
		{"a name with a dot", func(_ *testing.T, _ *bed, o *GenesisOptions) { o.Node = "db.1" }, "dot"},
		{"a hostname that is no name", func(_ *testing.T, b *bed, _ *GenesisOptions) { b.write("/etc/hostname", "my_box\n") }, "--name"},
		{"a mesh name with a dot", func(_ *testing.T, _ *bed, o *GenesisOptions) { o.Mesh = "a.b" }, "mesh name"},
		{"a machine of another mesh", func(t *testing.T, b *bed, _ *GenesisOptions) { member(t, b, "other", "web1") }, "web1 of the mesh other"},
		{"a credential of another mesh", func(_ *testing.T, b *bed, _ *GenesisOptions) { b.writeAt(b.at(operatorFile), "{}", 0o600) }, "another mesh"},
		{"a port in use", func(_ *testing.T, b *bed, _ *GenesisOptions) {
			b.Machine.Listen = func(string) error { return errors.New("address already in use") }
		}, "already in use"},
		{"too little disk", func(_ *testing.T, b *bed, _ *GenesisOptions) {
			b.Machine.Free = func(string) (int64, error) { return 300 << 20, nil }
		}, "300 MiB"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t)
			o := GenesisOptions{Addresses: []string{"192.0.2.1"}}
			tt.set(t, b, &o)
			before := b.tree()
			if _, err := b.Genesis(t.Context(), o); refusal.Of(err) == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v, want a refusal that says %q", err, tt.says)
			}
			if diff := cmp.Diff(before, b.tree()); diff != "" {
				t.Errorf("the machine was changed: %s", diff)
			}
		})
	}
}
