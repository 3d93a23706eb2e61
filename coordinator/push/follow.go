package push

import (
	"context"
	"fmt"
	"time"

	"mesh/shared/controller"
	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/subject"
)

// mostWords bounds in bytes each text of a refusal: a push to all is shown in one message.
const mostWords = 300

// Heard takes what a node reported about the declaration it last accepted or refused.
func (e *Engine) Heard(node subject.Node, a report.Apply) {
	e.mu.Lock()
	changed := false
	// set takes places away that need no more following
	for _, at := range append([]place(nil), e.byNode[node]...) {
		n := &at.p.nodes[at.i]
		if a.Seq < n.Seq {
			continue // it speaks of an older one
		}
		if state, why, note := judge(n.Seq, a); state != "" && (state != n.State || note != n.Note && note != "") {
			if note != "" {
				n.Note = note
			}
			e.set(at, state, why)
			changed = true
		}
	}
	e.mu.Unlock()
	if changed {
		e.tell()
	}
}

// Follows says whether a push waits for a word of node.
func (e *Engine) Follows(node subject.Node) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.byNode[node]) > 0
}

// judge says what an account of seq a.Seq means for a node that was sent seq.
func judge(seq uint64, a report.Apply) (state controller.PushState, why *refusal.Refusal, note string) {
	if a.Seq > seq {
		note = fmt.Sprintf("it has moved on to declaration %d", a.Seq)
	}
	switch a.Outcome {
	case report.Applying:
		return controller.PushHeard, nil, note
	case report.Applied:
		return controller.PushApplied, nil, note
	case report.Failed:
		return controller.PushFailed, report.Shorten(a.Refused, mostWords), note
	case report.Refused:
		return controller.PushRefused, report.Shorten(a.Refused, mostWords), note
	}
	return "", nil, ""
}

// Gone ends the waiting for a node that was removed.
func (e *Engine) Gone(node subject.Node) {
	e.mu.Lock()
	for _, at := range append([]place(nil), e.byNode[node]...) {
		e.set(at, controller.PushRefused, &refusal.Refusal{What: "the declaration of " + string(node), Why: "the node was removed from the mesh", Do: "nothing more"})
	}
	e.mu.Unlock()
	e.tell()
}

// set moves one node on. It holds mu.
func (e *Engine) set(at place, state controller.PushState, why *refusal.Refusal) {
	p, n := at.p, &at.p.nodes[at.i]
	p.counts[n.State]--
	p.counts[state]++
	if p.counts[n.State] == 0 {
		delete(p.counts, n.State)
	}
	switch {
	case state.Final() && !n.State.Final():
		p.open--
	case !state.Final() && n.State.Final():
		p.open++ // a node that failed tries again
	}
	p.version++
	n.State, n.Why, n.version = state, why, p.version
	if state.Final() && !n.sent.IsZero() {
		n.TookMS = max(1, e.cfg.Clock.Now().Sub(n.sent).Milliseconds())
	}
	if state == controller.PushApplied || state == controller.PushRefused {
		e.unfollow(n.Node, p)
	}
}

// tell wakes everybody who waits for news.
func (e *Engine) tell() {
	e.mu.Lock()
	defer e.mu.Unlock()
	close(e.news)
	e.news = make(chan struct{})
}

// Show says how push id stands: what changed after version after. It waits up to wait for news; news of
// a push under way is collected for a moment, its end is said at once.
func (e *Engine) Show(ctx context.Context, id string, after uint64, wait time.Duration) (controller.Push, error) {
	over := e.cfg.Clock.After(min(max(wait, 0), controller.MaxPushWait))
	lingering := false
	for {
		e.mu.Lock()
		p := e.find(id)
		if p == nil {
			e.mu.Unlock()
			return controller.Push{}, refusal.New("the push "+id, "it is not remembered: only the last pushes since the coordinator started are",
				"see mesh-coordinator node list and mesh-coordinator changes")
		}
		done, changed, news := p.open == 0 || e.ending, p.version > after, e.news
		if done || wait <= 0 {
			defer e.mu.Unlock()
			return p.answer(after), nil
		}
		e.mu.Unlock()
		if changed && !lingering {
			lingering, over = true, e.cfg.Clock.After(linger)
		}
		select {
		case <-news:
		case <-over:
			wait = 0
		case <-ctx.Done():
			return controller.Push{}, ctx.Err()
		}
	}
}

func (e *Engine) find(id string) *push {
	for _, p := range e.pushes {
		if p.id == id {
			return p
		}
	}
	return nil
}

// answer is p's state with the nodes that changed after version after. Engine.mu is held.
func (p *push) answer(after uint64) controller.Push {
	out := controller.Push{ID: p.id, Version: p.version, Started: p.started.UTC(), By: p.by, Why: p.why, Done: p.open == 0,
		Counts: make(map[controller.PushState]int, len(p.counts)), Nodes: []controller.PushNode{}}
	for s, n := range p.counts {
		out.Counts[s] = n
	}
	for i := range p.nodes {
		if p.nodes[i].version > after {
			out.Nodes = append(out.Nodes, p.nodes[i].PushNode)
		}
	}
	return out
}
