package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/nats-io/nats.go"

	"mesh/shared/bus"
	"mesh/shared/controller"
	"mesh/shared/engine"
	"mesh/shared/refusal"
	"mesh/shared/subject"
	"mesh/shared/verb"
)

// AskNode asks verb v of the node seat s on node n and decodes the answer as R.
func AskNode[R any](ctx context.Context, c *Client, s subject.Seat, v subject.Verb, n subject.Node, args any) (R, error) {
	var answer R
	bounded, cancel := context.WithTimeout(ctx, AskBound)
	defer cancel()
	err := verb.CallNode(bounded, c.conn, s, v, n, args, &answer)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		err = fmt.Errorf("%w: %s did not answer %s within %v", ErrNoAnswer, n, v, AskBound)
	case errors.Is(err, bus.ErrRefused):
		err = fmt.Errorf("%w: %w", bus.ErrRefused, c.mayNotOnNode(s, v))
	case errors.Is(err, nats.ErrNoResponders):
		err = c.away(ctx, n, err)
	}
	return answer, err
}

// away tells a machine that is away from one nobody knows, and since when it is: the coordinator knows.
func (c *Client) away(ctx context.Context, n subject.Node, err error) error {
	node, e := Ask[controller.NodeAnswer](ctx, c, controller.NodeShow, controller.NodeAsk{Node: n})
	switch {
	case refusal.Of(e) != nil && !errors.Is(e, bus.ErrRefused) && !errors.Is(e, nats.ErrNoResponders):
		return e // it says that there is no such node, and what to do
	case e != nil:
		return err
	case node.Seen.IsZero():
		return fmt.Errorf("%w: %w", nats.ErrNoResponders, refusal.Newf("the ask", "look there: systemctl status mesh-agent", "%s was never heard", n))
	}
	return fmt.Errorf("%w: %w", nats.ErrNoResponders, refusal.Newf("the ask", "look there: systemctl status mesh-agent", "%s is away; it was heard last %s ago", n, c.clk.Now().Sub(node.Seen).Round(time.Second)))
}

func (c *Client) mayNotOnNode(s subject.Seat, v subject.Verb) error {
	line, ok := engine.Find(s, v)
	if !ok {
		return refusal.Newf("the verb "+string(v), "see what can be asked: mesh-coordinator tool list", "%s has no such verb", s)
	}
	return refusal.Newf("the verb "+string(v), "have somebody do it who has that role, or ask an admin for it: mesh-coordinator operator issue <name> --role "+string(line.Least),
		"it takes the role %s, and the credential of %s has less", line.Least, c.Credential.Name)
}

// againFirst and againMost bound the pause before a read that broke is begun anew.
const (
	againFirst = 500 * time.Millisecond
	againMost  = 10 * time.Second
)

// Logs reads a module's lines on n and hands each batch to lines until the last, ctx ends, or lines fails.
// With Follow there is no last, and a read that breaks off (the machine away, its agent anew) is begun again
// after the line that was had last; broken hears why. The next batch is asked for when lines returns, so who
// prints slowly is sent no more.
func (c *Client) Logs(ctx context.Context, n subject.Node, ask engine.LogsAsk, lines func([]engine.LogLine) error, broken func(error)) error {
	pause, begun := againFirst, false
	for {
		got, err := AskNode[engine.LogsAnswer](ctx, c, subject.NodeEngine, engine.Logs, n, ask)
		for err == nil {
			begun, pause = true, againFirst
			if got.Cursor != "" {
				ask.After, ask.SinceMS, ask.Lines = got.Cursor, 0, 0
			}
			if err := lines(got.Lines); err != nil {
				return err
			}
			if got.Done {
				break
			}
			got, err = AskNode[engine.LogsAnswer](ctx, c, subject.NodeEngine, engine.LogsNext, n, engine.LogsNextAsk{Read: got.Read, Batch: got.Next, WaitMS: engine.MaxLogsWait.Milliseconds()})
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil && got.Why != "":
			err = fmt.Errorf("the read on %s ended: %s", n, got.Why)
		case err == nil && !ask.Follow:
			return nil
		case err == nil:
			err = fmt.Errorf("the read on %s ended", n)
		}
		if !ask.Follow || !begun || errors.Is(err, bus.ErrRefused) {
			return err
		}
		broken(err)
		select {
		case <-ctx.Done():
			return nil
		case <-c.clk.After(pause):
		}
		pause = min(2*pause, againMost)
	}
}

// gatherBound is how long a machine may take to make an archive.
const gatherBound = 3 * time.Minute

// Diagnose has n make an archive for a maintainer, and writes it to w as its pieces come (OPS-5).
func (c *Client) Diagnose(ctx context.Context, n subject.Node, w io.Writer) error {
	end := c.clk.Now().Add(gatherBound)
	var ask engine.DiagnoseAsk
	for {
		got, err := AskNode[engine.DiagnoseAnswer](ctx, c, subject.NodeEngine, engine.Diagnose, n, ask)
		if err != nil {
			return err
		}
		ask.Archive = got.Archive
		if got.Size == 0 { // it is being made
			if c.clk.Now().After(end) {
				return fmt.Errorf("%w: %s takes longer than %v to make it", ErrNoAnswer, n, gatherBound)
			}
			continue
		}
		if _, err := w.Write(got.Data); err != nil {
			return err
		}
		if ask.Offset += int64(len(got.Data)); ask.Offset >= got.Size {
			return nil
		}
		if len(got.Data) == 0 {
			return fmt.Errorf("the archive of %s ended after %d of %d bytes", n, ask.Offset, got.Size)
		}
	}
}
