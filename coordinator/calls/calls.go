// Package calls keeps every verb that is asked of the coordinator's seat, with who asked, how it ended and its
// answer (CAL-1). A verb that takes long is answered as running, with the id of its call, and goes on; its
// answer is read by that id, also after a restart. What a coordinator that stopped had under way is marked as
// abandoned by the next one.
//
// That an act began is in the commit of what it does first, and in the records within a moment anyway. What only
// reads is written a moment after it ended, many at once: nobody waits for either. Run writes; Do owns the goroutine of a call, and Close waits for them.
package calls

import (
	"context"
	"encoding/base32"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"mesh/coordinator/records"
	"mesh/shared/clock"
	"mesh/shared/refusal"
	"mesh/shared/verb"
)

const (
	// AnswerWithin is how long a caller waits before it hears that its call runs on: less than what an ask may
	// take at all.
	AnswerWithin = 8 * time.Second
	// longest is how long a call may take; one that hangs is ended then.
	longest = 10 * time.Minute
	// mostArgs bounds kept arguments in bytes.
	mostArgs = 4 << 10
	// gather is how long ended calls wait for others before they are written.
	gather = 500 * time.Millisecond
	// waitingMost bounds those that wait to be written; more are dropped, and counted.
	waitingMost = 4096
)

// store is the records' part this package needs.
type store interface {
	BeginCall(c records.Call)
	KeepCalls(ctx context.Context, ended []records.Call) error
	AbandonCalls(ctx context.Context) error
	Call(ctx context.Context, id string) (records.Call, error)
}

// Config is what a Keeper works with.
type Config struct {
	Records store
	Clock   clock.Clock
	Rand    io.Reader
	Log     *slog.Logger
	// Within is how long a caller waits; 0 means AnswerWithin.
	Within time.Duration
}

// Keeper keeps calls. Make it with New.
type Keeper struct {
	cfg  Config
	kick chan struct{} // capacity 1: one write pending is enough
	over chan struct{} // closed when the calls under way shall end

	mu      sync.Mutex // guards the fields below
	running map[string]records.Call
	waiting []records.Call
	dropped int

	under sync.WaitGroup // calls under way
}

// New makes a Keeper, and marks what an earlier coordinator left running.
func New(ctx context.Context, c Config) (*Keeper, error) {
	if c.Within == 0 {
		c.Within = AnswerWithin
	}
	if err := c.Records.AbandonCalls(ctx); err != nil {
		return nil, fmt.Errorf("mark abandoned calls: %w", err)
	}
	return &Keeper{cfg: c, kick: make(chan struct{}, 1), over: make(chan struct{}), running: map[string]records.Call{}}, nil
}

// Ask is a verb that somebody asks.
type Ask struct {
	// Caller is the principal's label, as the bus authenticated it.
	Caller, Verb string
	Args         []byte
	// Acts: it changes something, and is in the records with the first of it.
	Acts bool
	// Secret: its answer is not kept.
	Secret bool
}

// Do runs fn as a call. An answer that is not there in time is verb.Running; fn then goes on without its caller.
func (k *Keeper) Do(ctx context.Context, a Ask, fn func(context.Context) (any, error)) (any, error) {
	id, err := k.newID()
	if err != nil {
		return nil, err
	}
	c := records.Call{ID: id, Caller: a.Caller, Verb: a.Verb, Args: args(a.Args), Began: k.cfg.Clock.Now(), State: records.CallRunning}
	if a.Acts {
		k.cfg.Records.BeginCall(c)
		k.look()
	}
	k.mu.Lock()
	k.running[id] = c
	k.mu.Unlock()
	type outcome struct {
		answer any
		err    error
	}
	ended := make(chan outcome, 1)
	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), longest)
	go func() { // ends with work
		select {
		case <-k.over:
			cancel()
		case <-work.Done():
		}
	}()
	k.under.Go(func() { // ends with fn, which ends with work
		defer cancel()
		answer, err := k.guarded(work, a.Verb, fn)
		k.end(c, a, answer, err)
		ended <- outcome{answer, err}
	})
	select {
	case o := <-ended:
		return o.answer, o.err
	case <-k.cfg.Clock.After(k.cfg.Within):
		return nil, verb.Running{Call: id}
	}
}

// guarded is fn, whose panic is a failure with the stack in the log.
func (k *Keeper) guarded(ctx context.Context, name string, fn func(context.Context) (any, error)) (answer any, err error) {
	defer func() {
		if p := recover(); p != nil {
			k.cfg.Log.Error("verb panicked", "verb", name, "err", fmt.Sprint(p), "stack", string(debug.Stack()))
			answer, err = nil, fmt.Errorf("a fault in the coordinator, whose log says more")
		}
	}()
	return fn(ctx)
}

// end notes how c ended.
func (k *Keeper) end(c records.Call, a Ask, answer any, err error) {
	c.Ended, c.State = k.cfg.Clock.Now(), records.CallAnswered
	var b []byte
	switch r := refusal.Of(err); {
	case r != nil:
		c.State = records.CallRefused
		b, err = json.Marshal(r)
	case err != nil:
		c.State = records.CallFailed
		b, err = json.Marshal(err.Error())
	case !a.Secret:
		b, err = json.Marshal(answer)
	}
	if c.Bytes = len(b); err == nil && len(b) <= records.MaxAnswer {
		c.Answer = string(b)
	}
	k.mu.Lock()
	delete(k.running, c.ID)
	if len(k.waiting) < waitingMost {
		k.waiting = append(k.waiting, c)
	} else {
		k.dropped++
	}
	k.mu.Unlock()
	k.look()
}

// look has Run write in a moment.
func (k *Keeper) look() {
	select {
	case k.kick <- struct{}{}:
	default:
	}
}

// Refused notes a call that was refused before it could begin.
func (k *Keeper) Refused(a Ask, err error) {
	id, errID := k.newID()
	if errID != nil {
		k.cfg.Log.Error("a refused call cannot be kept", "err", errID)
		return
	}
	k.end(records.Call{ID: id, Caller: a.Caller, Verb: a.Verb, Args: args(a.Args), Began: k.cfg.Clock.Now()}, a, nil, err)
}

// Find is a call by its id, as it stands now.
func (k *Keeper) Find(ctx context.Context, id string) (records.Call, error) {
	k.mu.Lock()
	c, ok := k.running[id]
	for i := range k.waiting {
		if k.waiting[i].ID == id {
			c, ok = k.waiting[i], true
		}
	}
	k.mu.Unlock()
	if ok {
		return c, nil
	}
	return k.cfg.Records.Call(ctx, id)
}

// Run writes what ended, until ctx ends; then it ends the calls under way and writes the last. It runs once.
func (k *Keeper) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			close(k.over)
			k.under.Wait()
			return k.Flush(context.WithoutCancel(ctx))
		case <-k.kick:
		}
		select {
		case <-ctx.Done():
		case <-k.cfg.Clock.After(gather):
		}
		if err := k.Flush(context.WithoutCancel(ctx)); err != nil {
			k.cfg.Log.Warn("calls could not be kept", "err", err)
		}
	}
}

// Flush writes what began and what ended. What cannot be written is dropped, and said: an answer was given all the same.
func (k *Keeper) Flush(ctx context.Context) error {
	k.mu.Lock()
	all, dropped := k.waiting, k.dropped
	k.waiting, k.dropped = nil, 0
	k.mu.Unlock()
	if dropped > 0 {
		k.cfg.Log.Warn("calls were not kept: too many ended at once", "calls", dropped)
	}
	return k.cfg.Records.KeepCalls(ctx, all)
}

// args are a's, as they are kept.
func args(b []byte) string {
	switch {
	case len(b) > mostArgs:
		return fmt.Sprintf(`"%d bytes, not kept"`, len(b))
	case !json.Valid(b):
		return ""
	}
	return string(b)
}

func (k *Keeper) newID() (string, error) {
	var b [10]byte
	if _, err := io.ReadFull(k.cfg.Rand, b[:]); err != nil {
		return "", fmt.Errorf("make the id of a call: %w", err)
	}
	return "call-" + strings.ToLower(base32.StdEncoding.EncodeToString(b[:])), nil
}
