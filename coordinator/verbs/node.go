package verbs

import (
	"cmp"
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/semver"

	"mesh/coordinator/hear"
	"mesh/coordinator/records"
	"mesh/shared/controller"
	"mesh/shared/declaration"
	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/rule"
	"mesh/shared/subject"
)

const (
	// silentAfter is three heartbeats (NOD-7).
	silentAfter = 90 * time.Second
	// clockMost is how far a node's clock may be off before it is said.
	clockMost = 5 * time.Minute
	// mostWords bounds in bytes what a list says of one node; "node show" says the rest.
	mostWords = 300
)

// known is all that is known of one node.
type known struct {
	node     records.Node
	declared records.Declared
	modules  int
	reported records.Reported
	beat     hear.Beat
	beats    bool
	behind   string
}

// judge says how a node is, in one line: the worst that holds. listened is since when heartbeats are
// heard; a thing that cannot be seen is never called well.
func judge(k known, listened, now time.Time) controller.Node {
	n := controller.Node{Name: k.node.Name, Sent: k.declared.Sent, Applied: k.reported.Seq, Outcome: k.reported.Outcome,
		Agent: k.reported.Report.Agent.Version, Modules: k.modules, Seen: k.beat.Seen.UTC()}
	// A report from a time to come was heard before the clock was put back: it tells nothing of now.
	if k.reported.Report.Number > 0 && k.reported.Heard.After(k.beat.Seen) && !k.reported.Heard.After(now) {
		n.Seen = k.reported.Heard.UTC()
	}
	if k.beats {
		n.ClockOffsetMS = k.beat.Offset.Milliseconds()
	}
	n.State, n.Why = state(k, n.Seen, listened, now)
	if off := k.beat.Offset.Abs(); off > clockMost {
		n.Why = strings.TrimPrefix(n.Why+"; ", "; ") + fmt.Sprintf("its clock is %v off", off.Round(time.Second))
	}
	return n
}

func state(k known, seen, listened, now time.Time) (controller.NodeState, string) {
	silence := now.Sub(seen)
	if seen.IsZero() { // since when it is listened to; how long it was silent before is not known
		silence = now.Sub(listened)
	}
	quiet := k.reported.Report.Number > 0 || k.beats
	switch why := cmp.Or(failing(k.reported), filteredByOthers(k.node, k.reported), openOtherwise(k.node, k.reported)); {
	case k.reported.Outcome == report.Refused && k.reported.Seq >= k.declared.Sent:
		return controller.NodeRefused, words(k.reported.Refused)
	case why != "":
		return controller.NodeFailed, why
	case quiet && silence > silentAfter && report.Rests(k.beat.Leaving):
		return controller.NodeAsleep, "it said good-bye: " + k.beat.Leaving
	case quiet && silence > silentAfter && k.node.AsleepOK:
		return controller.NodeAsleep, ""
	case quiet && silence > silentAfter && now.Sub(listened) <= silentAfter:
		return controller.NodeUnknown, "the coordinator has just begun to listen, and has not heard it yet"
	case quiet && silence > silentAfter && k.beat.Leaving != "":
		return controller.NodeSilent, fmt.Sprintf("its agent was stopped there %v ago", silence.Round(time.Second))
	case quiet && silence > silentAfter:
		return controller.NodeSilent, fmt.Sprintf("nothing was heard of it for %v", silence.Round(time.Second))
	case !quiet:
		return controller.NodeUnknown, "it has not reported yet"
	case k.declared.Seq == 0 && k.modules == 0 && k.reported.Seq == 0:
		return controller.NodeNew, "nothing was pushed to it yet, so mesh filters no packets on it"
	case k.behind != "":
		return controller.NodeBehind, k.behind
	}
	return controller.NodeWell, ""
}

// failing says what could not be done on the node, or "".
func failing(r records.Reported) string {
	if r.Outcome == report.Failed {
		if r.Refused != nil {
			return words(r.Refused)
		}
		return fmt.Sprintf("declaration %d could not be applied whole", r.Seq)
	}
	for _, m := range r.Report.Modules {
		if m.State == report.Broken || m.State == report.Unwell {
			return report.Cut(strings.TrimSuffix(fmt.Sprintf("module %s: %s", m.Name, m.Detail), ": "), mostWords)
		}
	}
	return ""
}

func words(r *refusal.Refusal) string {
	if r == nil {
		return "it did not say why"
	}
	return report.Cut(strings.Trim(r.What+": "+r.Why, ": "), mostWords)
}

// all reads every node.
func (s *Server) all(ctx context.Context) ([]controller.Node, error) {
	inputs, err := s.cfg.Records.AllInputs(ctx)
	if err != nil {
		return nil, err
	}
	reports, err := s.cfg.Records.Reports(ctx)
	if err != nil {
		return nil, err
	}
	behind, err := s.cfg.Composer.Behind(ctx)
	if err != nil {
		return nil, err
	}
	byNode := make(map[subject.Node]records.Reported, len(reports))
	for _, r := range reports {
		byNode[r.Node] = r
	}
	listened, beats := s.cfg.Hear.Beats()
	now := s.cfg.Clock.Now()
	out := make([]controller.Node, len(inputs))
	for i, in := range inputs {
		r, ok := byNode[in.Node.Name]
		if !ok {
			r.Outcome = report.None
		}
		beat, heard := beats[in.Node.Name]
		out[i] = judge(known{in.Node, in.Declared, len(in.Placed), r, beat, heard, behind[in.Node.Name]}, listened, now)
	}
	sortNodes(out)
	return out, nil
}

// trouble is the order of states, the worst first.
func trouble() []controller.NodeState {
	return []controller.NodeState{controller.NodeRefused, controller.NodeFailed, controller.NodeSilent, controller.NodeUnknown,
		controller.NodeBehind, controller.NodeNew, controller.NodeAsleep, controller.NodeWell}
}

func sortNodes(all []controller.Node) {
	order := trouble()
	slices.SortFunc(all, func(a, b controller.Node) int {
		return cmp.Or(cmp.Compare(slices.Index(order, a.State), slices.Index(order, b.State)), cmp.Compare(a.Name, b.Name))
	})
}

func (s *Server) nodes(ctx context.Context, _ records.By, _ controller.Nothing) (controller.NodesAnswer, error) {
	all, err := s.all(ctx)
	return controller.NodesAnswer{Nodes: all}, err
}

func (s *Server) node(ctx context.Context, _ records.By, ask controller.NodeAsk) (controller.NodeAnswer, error) {
	var out controller.NodeAnswer
	in, err := s.cfg.Records.Inputs(ctx, ask.Node)
	if err != nil {
		return out, err
	}
	reported, err := s.cfg.Records.Report(ctx, ask.Node)
	if err != nil {
		return out, err
	}
	plans, err := s.cfg.Composer.Plan(ctx, []subject.Node{ask.Node})
	if err != nil {
		return out, err
	}
	behind, err := s.cfg.Composer.Behind(ctx)
	if err != nil {
		return out, err
	}
	listened, beats := s.cfg.Hear.Beats()
	beat, heard := beats[ask.Node]
	out.Node = judge(known{in.Node, in.Declared, len(in.Placed), reported, beat, heard, behind[ask.Node]}, listened, s.cfg.Clock.Now())
	out.Key, out.Curve, out.MachineID, out.Enrolled = in.Node.Key, in.Node.Curve, in.Node.MachineID, in.Node.Enrolled
	out.Settings = settings(in.Node)
	for _, p := range plans {
		for _, l := range p.Left {
			out.Notes = append(out.Notes, l.String())
		}
	}
	out.Profile = reported.Report.Profile
	if reported.Report.Number > 0 {
		out.Report, out.ReportedAt = &reported.Report, reported.Heard
	}
	out.Assigned, err = s.assigned(ctx, ask.Node, reported.Report.Modules)
	return out, err
}

func (s *Server) assigned(ctx context.Context, n subject.Node, runs []report.Module) ([]controller.Assigned, error) {
	all, err := s.cfg.Records.Assignments(ctx, n)
	if err != nil {
		return nil, err
	}
	sends, err := s.cfg.Records.Sends(ctx, n, 1)
	if err != nil {
		return nil, err
	}
	out := make([]controller.Assigned, 0, len(all))
	for _, a := range all {
		b, err := s.cfg.Records.Module(ctx, a.Module)
		if err != nil {
			return nil, err
		}
		x := controller.Assigned{Module: a.Module, Build: b.ID, Settings: a.Settings}
		for k := range a.Secrets {
			x.Secrets = append(x.Secrets, k)
		}
		slices.Sort(x.Secrets)
		if len(sends) > 0 {
			x.Sent = sends[0].Builds[a.Module]
		}
		for _, m := range runs {
			if m.Name == a.Module {
				x.Runs, x.State, x.Detail, x.Log = m.Build, m.State, m.Detail, m.Log
			}
		}
		out = append(out, x)
	}
	return out, nil
}

func settings(n records.Node) controller.NodeSettings {
	out := controller.NodeSettings{Drift: n.Drift, AsleepOK: n.AsleepOK, Tunnel: n.Tunnel, Inside: n.Inside, Admin: []string{}, Converge: word(n)}
	for _, a := range n.Admin {
		out.Admin = append(out.Admin, a.Port.String()+" from "+a.From.String())
	}
	return out
}

func (s *Server) setNode(ctx context.Context, who records.By, ask controller.NodeSetAsk) (controller.NodeSetAnswer, error) {
	set, err := parseSet(ask.Set)
	if err != nil {
		return controller.NodeSetAnswer{}, err
	}
	before, err := s.cfg.Records.Node(ctx, ask.Node)
	if err != nil {
		return controller.NodeSetAnswer{}, err
	}
	if set.Admin != nil && len(*set.Admin) > 0 && !ask.LockSSH && opensSSH(before.Admin) && !opensSSH(*set.Admin) {
		return controller.NodeSetAnswer{}, refusal.New("admin="+ask.Set["admin"]+" on "+string(ask.Node), "it leaves out 22/tcp, by which people come in over SSH",
			`add "22/tcp from …"; when SSH listens elsewhere or nobody shall come in by it, say so: --yes-lock-ssh`)
	}
	after, err := s.cfg.Records.SetNode(ctx, by(who, ask.Why), ask.Node, set)
	if err != nil {
		return controller.NodeSetAnswer{}, err
	}
	was, is := settings(before), settings(after)
	return controller.NodeSetAnswer{Changed: !reflect.DeepEqual(was, is), Settings: is}, nil
}

// opensSSH reports whether somebody is let in at SSH's port.
func opensSSH(all []rule.Allow) bool {
	return slices.ContainsFunc(all, func(a rule.Allow) bool {
		return a.Port.Protocol == "tcp" && a.Port.First <= 22 && 22 <= a.Port.Last
	})
}

// parseSet reads key=value pairs as node set takes them.
func parseSet(pairs map[string]string) (records.NodeSet, error) {
	var set records.NodeSet
	for key, value := range pairs {
		var err error
		switch key {
		case "drift":
			d := declaration.Drift(value)
			set.Drift = &d
		case "tunnel":
			set.Tunnel = &value
		case "inside":
			links := strings.FieldsFunc(value, func(r rune) bool { return r == ',' || r == ' ' })
			if len(links) > mostOpenings {
				err = refusal.Newf("inside", "name fewer", "it has %d links, at most %d are taken", len(links), mostOpenings)
			}
			set.Inside = &links
		case "asleep-ok":
			set.AsleepOK, err = yesOrNo(value)
		case "admin":
			if set.Admin, err = openings(value); err == nil && len(*set.Admin) > mostOpenings {
				err = refusal.Newf("admin", "name address sets instead of single addresses: 22/tcp from 192.0.2.0/24", "it has %d openings, at most %d are taken", len(*set.Admin), mostOpenings)
			}
		default:
			err = refusal.New("the setting "+key, "a node has none of this name", "the settings are drift, asleep-ok, admin, tunnel, inside")
		}
		if err != nil {
			return records.NodeSet{}, err
		}
	}
	return set, nil
}

// mostOpenings bounds what a person sets on one node: it travels in each of its declarations.
const mostOpenings = 100

func yesOrNo(value string) (*bool, error) {
	yes := value == "yes" || value == "true"
	if !yes && value != "no" && value != "false" {
		return nil, refusal.New(fmt.Sprintf("asleep-ok=%q", value), "it is yes or no", "write asleep-ok=yes or asleep-ok=no")
	}
	return &yes, nil
}

// openings reads "22/tcp from anywhere; 2222/tcp from 192.0.2.0/24". No way in at all has to be said in
// so many words (NET-7).
func openings(value string) (*[]rule.Allow, error) {
	all := []rule.Allow{}
	if value == "none" {
		return &all, nil
	}
	for part := range strings.SplitSeq(value, ";") {
		a, err := rule.ParseAllow(part)
		if err != nil {
			return nil, err
		}
		a.Owner = records.AdminOwner
		all = append(all, a)
	}
	return &all, nil
}

func (s *Server) removeNode(ctx context.Context, who records.By, ask controller.NodeRemoveAsk) (controller.Done, error) {
	// A push that is being composed would send the node's declaration after it was taken off the bus.
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return controller.Done{}, ctx.Err()
	}
	if err := s.cfg.Records.RemoveNode(ctx, by(who, ask.Why), ask.Node); err != nil {
		return controller.Done{}, err
	}
	s.cfg.Push.Gone(ask.Node)
	if err := s.cfg.Push.Purge(ctx, ask.Node); err != nil {
		s.cfg.Log.Error("a removed node's declaration is on the bus until the next start", "node", ask.Node, "err", err)
	}
	err := s.inForce(ctx)
	if e := s.cfg.Hear.Forget(ctx, ask.Node); e != nil {
		s.cfg.Log.Warn("a removed node's last reports are on the bus yet", "node", ask.Node, "err", e)
	}
	return controller.Done{Changed: true}, err
}

// inForce returns once the user list in force follows the records. The act stands in any case.
func (s *Server) inForce(ctx context.Context) error {
	if err := s.cfg.Users.Now(ctx); err != nil {
		return fmt.Errorf("it is in the records, and the bus's user list follows as soon as it can: %w", err)
	}
	return nil
}

// older reports whether version a is older than b: by semver where both parse, else as texts (NOD-6).
func older(a, b string) bool {
	if va, vb := "v"+a, "v"+b; semver.IsValid(va) && semver.IsValid(vb) {
		return semver.Compare(va, vb) < 0
	}
	return a < b
}
