// Package verb binds a verb of a seat to the bus: one place that decodes strictly, bounds the time,
// answers, turns a refusal into the answer and writes the one log line (style.md, Bus). The verb sees
// typed values. Who asks is known from the bus itself, never from what the caller writes (CAL-0).
package verb

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"mesh/shared/bus"
	"mesh/shared/refusal"
	"mesh/shared/strict"
	"mesh/shared/subject"
)

// Bound is how long an ask may wait and be worked on before its caller is told that it failed.
const Bound = 10 * time.Second

// Reply is what travels back.
type Reply struct {
	Answer  json.RawMessage  `json:"answer,omitempty"`
	Refused *refusal.Refusal `json:"refused,omitempty"`
	Failed  string           `json:"failed,omitempty"`
	// Running is the id of a call that goes on: its answer is read by that id (CAL-1).
	Running string `json:"running,omitempty"`
}

// Running is the error of a call whose answer comes later.
type Running struct {
	// Call is the call's id.
	Call string
}

// Error says what to do.
func (r Running) Error() string {
	return "it takes long and goes on: mesh-coordinator call show " + r.Call
}

// Caller is who asks, as the bus authenticated it.
type Caller struct {
	// Key is the public NKEY of the caller's user; empty when the bus did not say.
	Key string
}

// Handler answers one ask, and ends with ctx. A refusal.Refusal reaches the caller as such.
type Handler func(ctx context.Context, who Caller, args []byte) (any, error)

// ErrFailed is met by errors.Is when the holder tried and failed.
var ErrFailed = errors.New("the verb failed")

// Call asks verb v of seat s and decodes the answer. The caller's ctx bounds it.
func Call(ctx context.Context, c *bus.Conn, s subject.Seat, v subject.Verb, args, answer any) error {
	return CallAt(ctx, c, subject.Tool(s, v), string(s), args, answer)
}

// CallNode asks verb v of the node seat s on node n. One that nobody answers, because the machine is away or
// unknown, is met by errors.Is with nats.ErrNoResponders at once (SEA-11).
func CallNode(ctx context.Context, c *bus.Conn, s subject.Seat, v subject.Verb, n subject.Node, args, answer any) error {
	return callAt(ctx, c, subject.NodeTool(s, v, n), fmt.Sprintf("%s on %s", s, n), args, answer,
		refusal.Newf("the ask", fmt.Sprintf("see when it was heard last: mesh-coordinator node show %s; and there: systemctl status mesh-agent", n), "nobody answers for %s on %s: the machine is away, or is none of this mesh", s, n))
}

// CallAt is Call at any subject; holder names who should answer there.
func CallAt(ctx context.Context, c *bus.Conn, at, holder string, args, answer any) error {
	return callAt(ctx, c, at, holder, args, answer,
		refusal.New("the ask", "nobody holds "+holder+" now", "start the coordinator: systemctl status mesh-coordinator on its machine"))
}

func callAt(ctx context.Context, c *bus.Conn, at, holder string, args, answer any, nobody error) error {
	b, err := json.Marshal(args)
	if err != nil {
		return fmt.Errorf("encode the ask: %w", err)
	}
	m := nats.NewMsg(at)
	m.Data = b
	got, err := c.Ask(ctx, m)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return fmt.Errorf("%w: %w", nats.ErrNoResponders, nobody)
	case errors.Is(err, bus.ErrRefused):
		return fmt.Errorf("%w: %w", bus.ErrRefused, refusal.New("the ask "+at, "this credential may not ask it", "use a credential whose role may, or ask an admin: mesh-coordinator operator issue"))
	case err != nil:
		return err
	}
	var r Reply
	if err := json.Unmarshal(got.Data, &r); err != nil {
		return fmt.Errorf("the answer of %s is not understood: %w", holder, err)
	}
	switch {
	case r.Refused != nil:
		return r.Refused
	case r.Running != "":
		return Running{r.Running}
	case r.Failed != "":
		return fmt.Errorf("%w: %s", ErrFailed, r.Failed)
	case answer == nil || len(r.Answer) == 0:
		return nil
	}
	// An answer may have fields this program does not know yet: they are only ever added.
	if err := json.Unmarshal(r.Answer, answer); err != nil {
		return fmt.Errorf("the answer of %s is not understood: %w", holder, err)
	}
	return nil
}

// Typed makes a Handler of a function of values: the arguments are decoded strictly before anything
// runs, and a refusal names the field (SEA-10).
func Typed[A, R any](fn func(ctx context.Context, who Caller, args A) (R, error)) Handler {
	return func(ctx context.Context, who Caller, b []byte) (any, error) {
		var args A
		if len(bytes.TrimSpace(b)) > 0 {
			if err := strict.Decode(b, &args); err != nil {
				return nil, refusal.New("the arguments", err.Error(), "see the verb's schema: mesh-coordinator tool list")
			}
		}
		return fn(ctx, who, args)
	}
}

// Required refuses an argument that lacks what its type t, a struct, says must be there, by the field's
// name: what is neither omitempty nor omitzero.
func Required(t reflect.Type, args []byte) error {
	var given map[string]json.RawMessage
	if len(args) > 0 {
		if err := json.Unmarshal(args, &given); err != nil {
			return nil // the strict decoder says what is wrong
		}
	}
	for i := range t.NumField() {
		name, options, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		// null would leave the field as if it had not been there
		if v, there := given[name]; !strings.Contains(options, "omit") && (!there || string(v) == "null") {
			return refusal.New("the arguments", name+": is missing", "see the verb's schema: mesh-coordinator tool list --json")
		}
	}
	return nil
}

// callerOf reads the header the server adds on a shared import, and overwrites when forged. An ask from the
// same account passes no import: what stands there then is the caller's own word.
func callerOf(m *nats.Msg) Caller {
	if !strings.HasPrefix(m.Reply, acrossAccounts) {
		return Caller{}
	}
	var info struct {
		User string `json:"user"`
	}
	if h := m.Header.Get("Nats-Request-Info"); h != "" && json.Unmarshal([]byte(h), &info) == nil {
		return Caller{Key: info.User}
	}
	return Caller{}
}
