package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"mesh/shared/bus"
	"mesh/shared/controller"
	"mesh/shared/refusal"
	"mesh/shared/subject"
	"mesh/shared/verb"
)

// lookAgain is the pause between two looks at a call that runs.
const lookAgain = time.Second

// later waits for the answer of a call that goes on (CAL-1), until ctx ends.
func (c *Client) later(ctx context.Context, id string, answer any) error {
	for {
		call, err := Ask[controller.Call](ctx, c, controller.CallShow, controller.CallShowAsk{ID: id})
		if err != nil {
			return err
		}
		switch call.State {
		case controller.CallRunning:
		case controller.CallAnswered:
			if len(call.Answer) == 0 {
				return refusal.Newf("the answer", "see what it changed: mesh-coordinator changes", "it has %d bytes and was not kept", call.Bytes)
			}
			return json.Unmarshal(call.Answer, answer)
		case controller.CallRefused:
			var r refusal.Refusal
			if err := json.Unmarshal(call.Answer, &r); err != nil {
				return fmt.Errorf("the call %s was refused", id)
			}
			return &r
		default:
			return fmt.Errorf("%w: the call %s %s: %s", verb.ErrFailed, id, call.State, call.Answer)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", verb.Running{Call: id}, ctx.Err())
		case <-c.clk.After(lookAgain):
		}
	}
}

// AskTool asks a verb of any seat or module, of node n when it is not empty, and returns the answer as it is.
func (c *Client) AskTool(ctx context.Context, t controller.Tool, n subject.Node, args json.RawMessage) (json.RawMessage, error) {
	if t.Seat == subject.Controller {
		return Ask[json.RawMessage](ctx, c, t.Verb, args)
	}
	if t.Seat != "" {
		return AskNode[json.RawMessage](ctx, c, t.Seat, t.Verb, n, args)
	}
	at, holder := subject.ModuleTool(t.Module, t.Verb), "module "+string(t.Module)
	if n != "" {
		at, holder = subject.ModuleToolOn(t.Module, t.Verb, n), holder+" on "+string(n)
	}
	bounded, cancel := context.WithTimeout(ctx, AskBound)
	defer cancel()
	var answer json.RawMessage
	err := verb.CallAt(bounded, c.conn, at, holder, args, &answer)
	what := fmt.Sprintf("the verb %s of %s", t.Verb, holder)
	switch {
	case errors.Is(err, nats.ErrNoResponders) && n == "":
		err = fmt.Errorf("%w: %w", nats.ErrNoResponders, refusal.New(what, "nobody answers it: no instance runs, or there are several and each answers for its own machine only", "name the machine, or see where it runs: mesh-coordinator module show "+string(t.Module)))
	case errors.Is(err, nats.ErrNoResponders):
		err = fmt.Errorf("%w: %w", nats.ErrNoResponders, refusal.New(what, "nobody answers it there", "see how it is: mesh-coordinator node show "+string(n)))
	case errors.Is(err, bus.ErrRefused):
		err = fmt.Errorf("%w: %w", bus.ErrRefused, refusal.Newf(what, "have somebody ask it who has that role", "it takes the role %s, and the credential of %s has less", t.Role, c.Credential.Name))
	case errors.Is(err, context.DeadlineExceeded):
		err = fmt.Errorf("%w: %s did not answer %s within %v", ErrNoAnswer, holder, t.Verb, AskBound)
	}
	return answer, err
}
