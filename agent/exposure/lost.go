package exposure

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"mesh/agent/host/engine"
	"mesh/firewall"
	"mesh/firewall/evaluate"
	"mesh/firewall/foreign"
	"mesh/shared/clock"
	"mesh/shared/order"
)

// Holder is the container that a socket is held for: podman has a process listen on every port it publishes, so
// that nobody else takes it, and leads what comes there away by rules. What that process is ever asked itself
// nobody answers.
type Holder struct {
	// Container is its name.
	Container string
	// Unit is the systemd unit it runs in.
	Unit string
}

// holds is the process that podman starts beside each container (conmon(8)).
const holds = "conmon"

// holder is the container that process pid, called comm, is beside; the zero Holder for any other process.
func holder(pid, comm string) Holder {
	if comm != holds {
		return Holder{}
	}
	line, err := os.ReadFile(filepath.Join(proc, pid, "cmdline"))
	if err != nil {
		return Holder{}
	}
	words := strings.Split(string(line), "\x00")
	at := slices.IndexFunc(words, func(w string) bool { return w == "-n" || w == "--name" })
	if at < 0 || at+1 >= len(words) {
		return Holder{}
	}
	h := Holder{Container: words[at+1]}
	groups, err := os.ReadFile(filepath.Join(proc, pid, "cgroup"))
	if err != nil {
		return h
	}
	for line := range strings.Lines(string(groups)) {
		for part := range strings.SplitSeq(strings.TrimSpace(line), "/") {
			if ext := path.Ext(part); ext == ".service" || ext == ".scope" {
				h.Unit = part
			}
		}
	}
	return h
}

// Held is a port that a container publishes.
type Held struct {
	Protocol uint8
	Address  netip.Addr
	Port     uint16
	Holder
}

// holds are the ports of m that are held for containers, as far as the programs of sockets could be told.
func (m *Machine) holds() (all []Held) {
	for _, s := range m.Sockets {
		if s.Holder.Container != "" {
			all = append(all, Held{s.Protocol, s.Address, s.Port, s.Holder})
		}
	}
	return all
}

// gone says that what comes to the port arrives at this machine itself, where nobody answers it.
func gone(a evaluate.Answer) bool { return a.Way == evaluate.Input && len(a.NAT) == 0 }

// Lost are the containers that publish ports for which the engine's rules are gone, by name: somebody flushed
// them, and podman does not notice.
func (m *Machine) Lost() []Holder {
	var all []Holder
	for _, h := range m.Held {
		if slices.Contains(all, h.Holder) {
			continue
		}
		for _, link := range m.links() {
			if m.lost(h, link) {
				all = append(all, h.Holder)
				break
			}
		}
	}
	order.Sort(all, func(a, b Holder) int { return cmp.Compare(a.Container, b.Container) })
	return all
}

// lost says that what comes to the port over a link is led nowhere. Of a port for both families that has to be so
// of both: the container may have no address of one.
func (m *Machine) lost(h Held, link string) bool {
	if !(Socket{Address: h.Address}).reachable(m, link) {
		return false
	}
	a := h.Address.Unmap()
	p := evaluate.Packet{In: link, Six: a.Is6(), Protocol: h.Protocol, Port: h.Port}
	if !a.IsUnspecified() {
		p.Destination = a
	}
	if !gone(m.evaluator.Evaluate(p)) {
		return false
	}
	if a != netip.IPv6Unspecified() {
		return true
	}
	p.Six = false
	return gone(m.evaluator.Evaluate(p))
}

// goneWords say it of a port, where it is asked for by the family it is published in; empty when it is none of these.
func (m *Machine) goneWords(link string, six bool, protocol uint8, port uint16) string {
	for _, h := range m.Held {
		if h.Protocol == protocol && h.Port == port && h.Address.Unmap().Is6() == six && m.lost(h, link) {
			return fmt.Sprintf("published by container %s, but podman's rules for it are gone: podman network reload %s", h.Container, h.Container)
		}
	}
	return ""
}

// Engine is what a Watch asks the machine's container engine, as *engine.Engine answers.
type Engine interface {
	// Published are the ports that running containers publish.
	Published(ctx context.Context) ([]engine.Published, error)
	// ReloadNetwork has it write its rules for a container anew.
	ReloadNetwork(ctx context.Context, container string) error
}

// publishes says whether podman has rules for ports of containers: the chain of all of them has some.
func publishes(rs *foreign.Ruleset) bool {
	for i := range rs.Tables {
		for _, c := range rs.Tables[i].Chains {
			if c.Rules > 0 && (c.Name == "NETAVARK-HOSTPORT-DNAT" || c.Name == "CNI-HOSTPORT-DNAT") {
				return true
			}
		}
	}
	return false
}

// look adds to m what containers publish, where the programs of sockets cannot be told, as in the agent's
// sandbox. The engine is asked when its rules for ports are gone that were there, or that the Watch never saw: a
// container that publishes ports is seldom the only one to do so.
func (w *Watch) look(ctx context.Context, m *Machine) {
	had := w.published
	w.published = publishes(&m.Rules)
	if w.Engine == nil || len(m.Held) > 0 || len(m.containers) == 0 {
		w.suspect = false
		return
	}
	if w.suspect = w.suspect || !w.published && (had || !w.looked); !w.suspect {
		return
	}
	box, err := w.Engine()
	if err != nil {
		return
	}
	all, err := box.Published(ctx)
	if err != nil {
		w.Log.Warn("which ports containers publish is not known", "err", err)
		return
	}
	for _, p := range all {
		h := Holder{Container: p.Container}
		if at := slices.IndexFunc(m.containers, func(c Holder) bool { return c.Container == p.Container }); at >= 0 {
			h = m.containers[at]
		}
		m.Held = append(m.Held, Held{number(p.Protocol), p.Address, p.Port, h})
	}
	w.suspect = len(m.Lost()) > 0
}

const (
	// gather is how long after a change of rules the hooks are looked at, so that many changes are one.
	gather = time.Second
	// own begins the names of the units of mesh's own containers.
	own = "mesh-"
)

// mend has the engine write its rules anew for mesh's own containers. Others' are named, and left to whoever
// runs them.
func (w *Watch) mend(ctx context.Context, lost []Holder) (mended bool) {
	for _, h := range lost {
		if w.Engine == nil || !strings.HasPrefix(h.Unit, own) {
			continue
		}
		box, err := w.Engine()
		if err == nil {
			err = box.ReloadNetwork(ctx, h.Container)
		}
		if err != nil {
			w.Log.Warn("the ports of a container cannot be reached: the engine's rules are gone", "container", h.Container, "err", err)
			continue
		}
		mended = true
		w.Log.Info("the engine wrote its rules anew: somebody had removed them", "container", h.Container)
	}
	return mended
}

// Flushed calls tell when a base chain is gone that was there, as after "nft flush ruleset", until ctx ends:
// changes hints at commits of others. It reads the network namespace of the calling thread.
func Flushed(ctx context.Context, clk clock.Clock, changes <-chan firewall.Event, tell func()) {
	before, _ := foreign.Bases(ctx) // without them the first commit shows what there is
	var due <-chan time.Time
	for {
		ready := changes
		if due != nil {
			ready = nil
		}
		select {
		case <-ctx.Done():
			return
		case _, ok := <-ready:
			if !ok {
				return
			}
			due = clk.After(gather)
		case <-due:
			due = nil
			now, err := foreign.Bases(ctx)
			if err != nil {
				continue // the next commit, or the minute's look
			}
			if slices.ContainsFunc(before, func(chain string) bool { return !slices.Contains(now, chain) }) {
				tell()
			}
			before = now
		}
	}
}
