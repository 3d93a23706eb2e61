// Package converge hands a machine's packet filter from the front ends found on it (ufw, firewalld, …) to
// mesh, and back (NET-8, NET-9).
//
// Refusals reads what refuses traffic, whoever wrote it, when it changed and not otherwise. Apply carries
// out a person's wish to converge, each wish once: it writes down what is there, retires each front end the
// wish names by that one's own way, reaches the bus anew, reads the rules again and says what still refuses.
// Chains of container runtimes, bans and tunnels are left alone. Without a wish it puts back what was.
//
// mesh's own filter is in force and confirmed before (mesh/agent/filter), so the machine is never open. When
// the bus is not reached within the window after the change, what was is put back and the wish refused
// (NET-7). The receipt is on disk before each act: killed at any instant, the next Apply goes on where this
// one was. An agent that is stopped inside the window leaves the change to the next start, which gives it a
// window of its own.
//
// The programs run outside the agent's sandbox, through systemd. The package starts no goroutine. Apply and
// Refusals are for one goroutine; Status is for all.
package converge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"mesh/agent/host/file"
	"mesh/agent/host/systemd"
	"mesh/firewall/foreign"
	"mesh/shared/clock"
	"mesh/shared/refusal"
	"mesh/shared/report"
)

// Wish is what the declaration says of the packet filter's owner.
type Wish struct {
	// ID tells one wish to converge from another; 0: what was there shall be in force again.
	ID int64
	// Retire are the front ends that give way.
	Retire []string
	// Seq numbers the declaration.
	Seq uint64
}

// store is what *state.Store does.
type store interface {
	Meta(ctx context.Context, key string) (value []byte, ok bool, err error)
	SetMetaSynced(ctx context.Context, key string, value []byte) error
}

// runner runs a program outside the agent's sandbox and waits for it; *systemd.Conn.
type runner interface {
	Run(ctx context.Context, unit string, argv []string) (exit int, output string, err error)
}

// units looks at systemd's units; *systemd.Conn.
type units interface {
	States(ctx context.Context, units []string) (map[string]systemd.UnitState, error)
}

// window confirms a change; *filter.Filter.
type window interface {
	// Reachable tries to reach the bus once, over a new connection.
	Reachable(ctx context.Context) error
	// Reach tries for as long as a change may take to be confirmed.
	Reach(ctx context.Context) error
}

// Config is what a Converger works with.
type Config struct {
	Store store
	Run   runner
	Units units
	Files *file.Root
	// Window confirms; nil: each act is as one by hand.
	Window window
	// Read reads all rule sets, Signature tells two moments apart without; foreign.ReadWith and
	// foreign.Signature on a machine.
	Read      func(ctx context.Context, save func(ctx context.Context, path string) ([]byte, error)) (foreign.Ruleset, error)
	Signature func() (string, error)
	// Scratch is a folder of the agent's own, for what programs are handed.
	Scratch string
	Clock   clock.Clock
	Log     *slog.Logger
	// FailPoint is called at each of FailPoints; a test dies there. nil on a machine.
	FailPoint func(name string)
}

// FailPoints are the instants at which a test kills the agent.
var FailPoints = []string{noted, frontGone, allGone, allBack}

const (
	noted     = "converge-noted"    // what is there is written down, nothing is done
	frontGone = "converge-retired"  // a front end is retired, which is not written down
	allGone   = "converge-checking" // all are, and the bus is not reached yet
	allBack   = "converge-restored" // what was is back, which is not written down
)

// Converger retires front ends and puts them back. Make it with New.
type Converger struct {
	cfg      Config
	recalled bool
	seen     reading // what Refusals found last

	mu      sync.Mutex // guards receipt
	receipt receipt
}

// New returns a Converger that has done nothing yet.
func New(cfg Config) *Converger {
	if cfg.FailPoint == nil {
		cfg.FailPoint = func(string) {}
	}
	return &Converger{cfg: cfg}
}

// Use sets Config.Scratch and Config.FailPoint before the first use, for a caller who learns of them late.
func (c *Converger) Use(scratch string, failPoint func(name string)) {
	c.cfg.Scratch = scratch
	if failPoint != nil {
		c.cfg.FailPoint = failPoint
	}
}

func (c *Converger) now() receipt {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.receipt
}

func (c *Converger) set(r receipt) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.receipt = r
}

// Status is how the last converge or unconverge stands; nil when there was none.
func (c *Converger) Status() *report.Converge {
	r := c.now()
	return r.status()
}

// Apply carries out w, unless it was. mesh's own filter has to be in force. An error that is a refusal says
// what a person can do; any other is tried again with the next call.
func (c *Converger) Apply(ctx context.Context, w Wish) error {
	if err := c.recall(ctx); err != nil {
		return err
	}
	r := c.now()
	if f := r.Refused; f != nil && f.ID == w.ID && (w.ID != 0 || f.Seq == w.Seq) && r.settled() {
		return &f.Refusal
	}
	switch {
	case w.ID == 0 && len(r.Fronts) == 0 && r.Stage == "":
		return nil // nothing was ever retired
	case w.ID == 0:
		return c.back(ctx, w)
	case w.ID == r.ID && r.Stage == converged:
		return nil
	}
	return c.forth(ctx, w)
}

// settled says whether no act is under way.
func (r *receipt) settled() bool { return r.Stage == "" || r.Stage == converged }

// forth converges.
func (c *Converger) forth(ctx context.Context, w Wish) error {
	r := c.now()
	if r.Stage == restoring || r.Stage == restored { // the word was changed meanwhile: that is finished first
		if err := c.restoreAll(ctx, everyone); err != nil {
			return err
		}
		if err := c.keep(ctx, func(r *receipt) { *r = receipt{At: r.At} }); err != nil {
			return err
		}
		r = c.now()
	}
	if r.settled() || r.ID != w.ID {
		if err := c.reachable(ctx, "handing the packet filter to mesh"); err != nil {
			return err
		}
		if err := c.note(ctx, w); err != nil {
			return err
		}
		c.cfg.FailPoint(noted)
		r = c.now()
	}
	if r.Stage == retiring {
		if err := c.retireAll(ctx, w); err != nil {
			return err
		}
		c.cfg.FailPoint(allGone)
	}
	if err := c.reach(ctx); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return c.undo(ctx, w, refusal.New("handing the packet filter to mesh",
			fmt.Sprintf("the bus could not be reached within the window after it (%v); what was is in force again", err),
			"see that mesh's rules let this machine reach the bus, and converge again"))
	}
	return c.confirmForth(ctx)
}

// note writes down what there is of the front ends that w names.
func (c *Converger) note(ctx context.Context, w Wish) error {
	rs, err := c.read(ctx)
	if err != nil {
		return err
	}
	found := c.prospects(ctx, rs, foreign.Judge(rs))
	var fresh []front
	var left []string
	for _, p := range found {
		switch {
		case !slices.Contains(w.Retire, p.Name):
			left = append(left, p.Name+": it was not there when the word was given; converge again")
		case p.Cannot != "":
			left = append(left, p.Name+": "+p.Cannot)
		default:
			f, err := c.describe(ctx, p)
			if err != nil {
				return fmt.Errorf("write down how %s is: %w", p.Name, err)
			}
			f.By = w.ID
			fresh = append(fresh, f)
		}
	}
	keeps := foreign.Keeps(rs)
	return c.keep(ctx, func(r *receipt) {
		r.ID, r.Stage, r.Keeps, r.Left, r.Lost, r.Refused, r.Back = w.ID, retiring, keeps, left, nil, nil, false
		// One that was retired before and is in force again is as it is now, but that its units started at boot
		// before mesh disabled them.
		old := slices.DeleteFunc(slices.Clone(r.Fronts), func(f front) bool {
			i := slices.IndexFunc(fresh, func(g front) bool { return g.Name == f.Name })
			if i >= 0 && f.Gone {
				fresh[i].inherit(f.Units)
			}
			return i >= 0
		})
		r.Fronts = append(old, fresh...)
	})
}

// retireAll retires those that are not yet. One that cannot be is put back, and the others with it.
func (c *Converger) retireAll(ctx context.Context, w Wish) error {
	for _, f := range c.now().Fronts {
		if f.Gone {
			continue
		}
		if err := c.retire(ctx, f); err != nil {
			if refusal.Of(err) == nil || ctx.Err() != nil {
				return fmt.Errorf("retire %s: %w", f.Name, err)
			}
			return c.undo(ctx, w, err)
		}
		c.cfg.FailPoint(frontGone)
		if err := c.keepFront(ctx, f.Name, func(f *front) { f.Gone = true }); err != nil {
			return err
		}
		c.cfg.Log.Info("a front end of the packet filter is retired", "what", f.Name)
	}
	return c.keep(ctx, func(r *receipt) { r.Stage = retired })
}

// confirmForth reads the rules again, compares, and ends the act.
func (c *Converger) confirmForth(ctx context.Context) error {
	rs, lost, err := c.compare(ctx)
	if err != nil {
		return err
	}
	still := stillRefuse(foreign.Judge(rs), c.now().Fronts)
	err = c.keep(ctx, func(r *receipt) {
		r.Stage, r.Lost = converged, lost
		r.Left = append(slices.Clone(r.Left), still...)
	})
	if err != nil {
		return err
	}
	c.cfg.Log.Info("the packet filter is mesh's", "retired", c.Status().Retired)
	if len(lost) > 0 {
		c.cfg.Log.Warn("a converge took more than the front ends", "what", lost)
	}
	return nil
}

// compare reads the rules, and what of those to be left alone is missing. A service that was started again,
// such as fail2ban, takes a moment to write its own.
func (c *Converger) compare(ctx context.Context) (rs foreign.Ruleset, lost []string, err error) {
	const tries, pause = 20, 500 * time.Millisecond
	for range tries {
		if rs, err = c.read(ctx); err != nil {
			return rs, nil, err
		}
		if lost = missing(c.now().Keeps, foreign.Keeps(rs)); len(lost) == 0 {
			break
		}
		select {
		case <-c.cfg.Clock.After(pause):
		case <-ctx.Done():
			return rs, nil, ctx.Err()
		}
	}
	return rs, lost, nil
}

// stillRefuse says which of the retired front ends have something in force.
func stillRefuse(judged foreign.Report, gone []front) (all []string) {
	for _, f := range gone {
		var chains []string
		for _, r := range slices.Concat(judged.Refusing, judged.Legacy) {
			if slices.Contains(r.Owner, f.Name) {
				chains = append(chains, fmt.Sprintf("%s %s %s (%s)", r.Family, r.Table, r.Chain, strings.Join(r.How, ", ")))
			}
		}
		if len(chains) > 0 {
			all = append(all, fmt.Sprintf("%s is retired, and yet in force: %s", f.Name, strings.Join(chains[:min(len(chains), 5)], "; ")))
		}
	}
	return all
}

// missing is what was kept before and is not there now, in words.
func missing(before, now []foreign.Kept) (all []string) {
	for _, k := range before {
		// A ban inside a front end's chain goes with it, and was said to.
		if !slices.Contains(now, k) && !strings.HasPrefix(k.Chain, "ufw") {
			all = append(all, k.String())
		}
	}
	return all
}

// back puts back what was.
func (c *Converger) back(ctx context.Context, w Wish) error {
	r := c.now()
	if r.Stage != restoring && r.Stage != restored {
		if err := c.reachable(ctx, "giving the packet filter back"); err != nil {
			return err
		}
		rs, err := c.read(ctx)
		if err != nil {
			return err
		}
		keeps := foreign.Keeps(rs)
		if err := c.keep(ctx, func(r *receipt) { r.Stage, r.Keeps, r.Refused = restoring, keeps, nil }); err != nil {
			return err
		}
	}
	if c.now().Stage == restoring {
		if err := c.restoreAll(ctx, everyone); err != nil {
			return err
		}
	}
	if err := c.reach(ctx); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return c.redo(ctx, w, err)
	}
	_, lost, err := c.compare(ctx)
	if err != nil {
		return err
	}
	c.cfg.Log.Info("the packet filter is given back", "what", names(c.now().Fronts))
	if len(lost) > 0 {
		c.cfg.Log.Warn("front ends put back took what was beside them", "what", lost)
	}
	return c.keep(ctx, func(r *receipt) { *r = receipt{At: c.cfg.Clock.Now().UnixMilli(), Back: true, Lost: lost} })
}

// GiveBack puts back what was on a person's word at the machine, and returns the names. The wish that retired
// it is not carried out again.
func (c *Converger) GiveBack(ctx context.Context) ([]string, error) {
	if err := c.recall(ctx); err != nil {
		return nil, err
	}
	r := c.now()
	if len(r.Fronts) == 0 {
		return nil, nil
	}
	if err := c.restoreAll(ctx, everyone); err != nil {
		return nil, err
	}
	no := refused{ID: r.ID, Refusal: *refusal.Of(refusal.New("handing the packet filter to mesh", "it was given back at the machine, by hand",
		"converge the node again, or unconverge it"))}
	return names(r.Fronts), c.keep(ctx, func(r *receipt) { *r = receipt{Back: true, Refused: &no} })
}

// Retired are the front ends that the receipt in s says are retired; s is only read.
func Retired(ctx context.Context, s interface {
	Meta(ctx context.Context, key string) (value []byte, ok bool, err error)
}) ([]string, error) {
	b, ok, err := s.Meta(ctx, receiptKey)
	if err != nil || !ok {
		return nil, err
	}
	var r receipt
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, fmt.Errorf("the receipt of the last converge is unreadable: %w", err)
	}
	return names(r.Fronts), nil
}

func everyone(front) bool { return true }

// restoreAll puts back those that which says, the last one first.
func (c *Converger) restoreAll(ctx context.Context, which func(front) bool) error {
	all := c.now().Fronts
	for _, f := range slices.Backward(all) {
		if !which(f) {
			continue
		}
		if err := c.restore(ctx, f); err != nil {
			return fmt.Errorf("put %s back: %w", f.Name, err)
		}
		c.cfg.FailPoint(allBack)
		if err := c.keepFront(ctx, f.Name, func(f *front) { f.Gone = false }); err != nil {
			return err
		}
	}
	return c.keep(ctx, func(r *receipt) { r.Stage = restored })
}

// redo retires again what was put back, since the bus is not reached with it, and refuses to go back.
func (c *Converger) redo(ctx context.Context, w Wish, why error) error {
	r := refusal.New("giving the packet filter back",
		fmt.Sprintf("the bus could not be reached within the window after it (%v); the front ends are retired again", why),
		"correct the front end's own rules on the machine, then push to it again")
	for _, f := range c.now().Fronts {
		if err := c.retire(ctx, f); err != nil {
			return errors.Join(r, fmt.Errorf("retire %s again: %w", f.Name, err))
		}
		if err := c.keepFront(ctx, f.Name, func(f *front) { f.Gone = true }); err != nil {
			return err
		}
	}
	c.cfg.Log.Warn("the packet filter is mesh's again", "why", why)
	return c.refuse(ctx, w, refusal.Of(r), converged)
}

// undo puts back what this converge has retired so far, and refuses it. What an earlier one retired stays so.
func (c *Converger) undo(ctx context.Context, w Wish, why error) error {
	c.cfg.Log.Warn("a converge is undone", "why", why)
	id := c.now().ID
	mine := func(f front) bool { return f.By == id }
	if err := c.restoreAll(ctx, mine); err != nil {
		return errors.Join(why, err) // the next call goes on with the act, and comes here again
	}
	err := c.keep(ctx, func(r *receipt) { r.Fronts = slices.DeleteFunc(slices.Clone(r.Fronts), mine) })
	if err != nil {
		return errors.Join(why, err)
	}
	return c.refuse(ctx, w, refusal.Of(why), "")
}

// refuse ends an act that was not carried out.
func (c *Converger) refuse(ctx context.Context, w Wish, why *refusal.Refusal, then stage) error {
	err := c.keep(ctx, func(r *receipt) {
		if len(r.Fronts) > 0 {
			then, r.ID = converged, r.Fronts[len(r.Fronts)-1].By
		}
		r.Stage, r.Refused = then, &refused{ID: w.ID, Seq: w.Seq, Refusal: *why}
	})
	return errors.Join(why, err)
}

// reachable refuses to begin what nothing could confirm.
func (c *Converger) reachable(ctx context.Context, what string) error {
	if c.cfg.Window == nil {
		return nil
	}
	if err := c.cfg.Window.Reachable(ctx); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return refusal.New(what, fmt.Sprintf("the bus cannot be reached (%v), so nothing could confirm it", err), "nothing: it is done when the bus is back")
	}
	return nil
}

func (c *Converger) reach(ctx context.Context) error {
	if c.cfg.Window == nil {
		return nil
	}
	return c.cfg.Window.Reach(ctx)
}

func names(all []front) []string {
	out := make([]string, len(all))
	for i, f := range all {
		out[i] = f.Name
	}
	return out
}
