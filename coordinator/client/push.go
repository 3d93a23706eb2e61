package client

import (
	"cmp"
	"context"
	"slices"
	"time"

	"mesh/shared/controller"
	"mesh/shared/subject"
)

// Watch follows a push from its first answer until nothing more is expected, or wait is over: then the
// push returned is not Done. news hears each answer with what changed since the one before.
func (c *Client) Watch(ctx context.Context, first controller.Push, wait time.Duration, news func(controller.Push)) (controller.Push, error) {
	all := make(map[subject.Node]controller.PushNode, len(first.Nodes))
	last := first
	end := c.clk.Now().Add(wait)
	for {
		for _, n := range last.Nodes {
			all[n.Node] = n
		}
		if news != nil {
			news(last)
		}
		left := end.Sub(c.clk.Now())
		if last.Done || left <= 0 {
			break
		}
		next, err := Ask[controller.Push](ctx, c, controller.PushShow,
			controller.PushShowAsk{ID: first.ID, After: last.Version, WaitMS: max(1, min(left, controller.MaxPushWait).Milliseconds())})
		if err != nil {
			return whole(last, all), err
		}
		last = next
	}
	return whole(last, all), nil
}

// whole is p with every node, trouble first.
func whole(p controller.Push, all map[subject.Node]controller.PushNode) controller.Push {
	p.Nodes = make([]controller.PushNode, 0, len(all))
	for _, n := range all {
		p.Nodes = append(p.Nodes, n)
	}
	SortPush(p.Nodes)
	return p
}

// SortPush puts trouble first, then what is still awaited, then what is done; by name within.
func SortPush(nodes []controller.PushNode) {
	order := []controller.PushState{controller.PushRefused, controller.PushFailed, controller.PushWaiting, controller.PushSent, controller.PushHeard, controller.PushApplied}
	slices.SortFunc(nodes, func(a, b controller.PushNode) int {
		return cmp.Or(cmp.Compare(slices.Index(order, a.State), slices.Index(order, b.State)), cmp.Compare(a.Node, b.Node))
	})
}
