package grant

import (
	"errors"
	"fmt"

	"mesh/shared/membership"
	"mesh/shared/subject"
)

// instance derives what an instance may: what its membership says and nothing besides. A token that is no
// name is refused, for a right with a wildcard in the place of one would be everybody's.
func instance(m *membership.Membership) (Rights, error) {
	if m == nil {
		return Rights{}, errors.New("it has no membership to derive its rights from")
	}
	if err := errors.Join(subject.Check("node", string(m.Node)), subject.Check("module", string(m.Module))); err != nil {
		return Rights{}, err
	}
	self := subject.Membership(m.Node, m.Module)
	r := Rights{
		Publish:   []string{subject.DirectGet(subject.Assignments, self)},
		Subscribe: []string{subject.Inbox(membership.Label(m.Node, m.Module)) + ".>", self},
	}
	names := map[string]bool{}
	for _, v := range m.Serves {
		if err := checkServes(m, v); err != nil {
			return Rights{}, err
		}
		if v.At != "" {
			r.Subscribe = append(r.Subscribe, v.At)
		}
		if v.Plain != "" {
			r.Subscribe = append(r.Subscribe, v.Plain+" "+v.Queue)
		}
		name := string(v.Seat)
		if name == "" {
			name = string(m.Module)
		}
		names[name] = true
	}
	if len(m.Serves) > 0 {
		r.Publish = append(r.Publish, answers)
	}
	for name := range names {
		r.Subscribe = append(r.Subscribe, served(name)...)
	}
	for _, e := range m.Says {
		if err := checkSays(m, e); err != nil {
			return Rights{}, err
		}
		r.Publish = append(r.Publish, e.At)
	}
	for _, a := range m.Asks {
		asked, err := asks(m, a)
		if err != nil {
			return Rights{}, err
		}
		r.Publish = append(r.Publish, asked...)
	}
	return r, nil
}

// served are the questions that who serves name may hear, under any id (SEA-7). They are written out: a right
// to "$SRV.*" is taken by the server for one to "$SRV.>".
func served(name string) (out []string) {
	for _, q := range []string{"PING", "INFO", "STATS"} {
		out = append(out, "$SRV."+q, "$SRV."+q+"."+name, "$SRV."+q+"."+name+".*")
	}
	return out
}

// checkServes holds what v says against what it can only be.
func checkServes(m *membership.Membership, v membership.Verb) error {
	if err := subject.Check("verb", string(v.Name)); err != nil {
		return err
	}
	at, plain, queue := subject.ModuleToolOn(m.Module, v.Name, m.Node), subject.ModuleTool(m.Module, v.Name), string(m.Module)
	if v.Seat != "" {
		if err := subject.Check("seat", string(v.Seat)); err != nil {
			return err
		}
		at, plain, queue = subject.NodeTool(v.Seat, v.Name, m.Node), subject.Tool(v.Seat, v.Name), string(v.Seat)
	}
	at, plain = subject.Served(at), subject.Served(plain)
	if v.At != "" && v.At != at || v.Plain != "" && (v.Plain != plain || v.Queue != queue) || v.At == "" && v.Plain == "" {
		return fmt.Errorf("its membership has the verb %s at %q and %q, where it cannot be", v.Name, v.At, v.Plain)
	}
	return nil
}

func checkSays(m *membership.Membership, e membership.Event) error {
	if err := subject.Check("event", string(e.Name)); err != nil {
		return err
	}
	at := []string{subject.ModuleEvent(m.Module, e.Name, m.Node)}
	if e.Seat != "" {
		if err := subject.Check("seat", string(e.Seat)); err != nil {
			return err
		}
		at = []string{subject.SeatEvent(e.Seat, e.Name, ""), subject.SeatEventOn(e.Seat, e.Name, m.Node)}
	}
	for _, s := range at {
		if e.At == s {
			return nil
		}
	}
	return fmt.Errorf("its membership has the event %s at %q, where it cannot be", e.Name, e.At)
}

// asks are the subjects of a.
func asks(m *membership.Membership, a membership.Ask) ([]string, error) {
	seat, module, verb, err := a.What.Split()
	if err != nil {
		return nil, err
	}
	v := subject.Verb(verb)
	if module != "" {
		at, on := subject.ModuleTool(module, v), subject.ModuleToolOn(module, v, subject.Each)
		if a.At == at && a.On == on {
			return []string{at, on}, nil
		}
	} else if a.On == "" && (a.At == subject.Tool(seat, v) || a.At == subject.NodeTool(seat, v, m.Node)) {
		return []string{a.At}, nil
	}
	return nil, fmt.Errorf("its membership asks %s at %q and %q, where it cannot be", a.What, a.At, a.On)
}
