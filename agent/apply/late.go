package apply

import (
	"context"
	"errors"
	"fmt"
	"time"

	"mesh/agent/host/systemd"
	"mesh/agent/plan"
	"mesh/shared/subject"
)

// lookAgain is when a pass that ended before something was over is followed by the next.
const lookAgain, fetchOn = 5 * time.Second, time.Second

// late ends a module's part of a pass that waited long enough: nothing failed, it is only not over.
type late struct {
	what  string
	again time.Duration
	taken bool // systemd has the job: the act counts as done
}

func (l *late) Error() string { return l.what }

// errWaited is the cause of a context that ended because a pass waits no longer.
var errWaited = errors.New("a pass waits no longer")

// atLeast is what is waited for something although the pass has waited long enough for others.
const atLeast = time.Second

// bounded gives act a context that ends when the pass has waited for the engine's Wait in all.
func (r *run) bounded(ctx context.Context, act func(context.Context)) (waited bool) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done, watched := make(chan struct{}), make(chan struct{})
	over := r.cfg.Clock.After(max(r.until.Sub(r.cfg.Clock.Now()), atLeast))
	go func() { // ends with act
		defer close(watched)
		select {
		case <-over:
			cancel(errWaited)
		case <-done:
		}
	}()
	act(ctx)
	close(done)
	<-watched
	return errors.Is(context.Cause(ctx), errWaited)
}

// job has systemd do something with the unit of s, and waits a bounded time for the end of it.
func (r *run) job(ctx context.Context, s plan.Step, do func(context.Context, string) (systemd.JobResult, error)) (job systemd.JobResult, err error) {
	waited := r.bounded(ctx, func(ctx context.Context) { job, err = do(ctx, s.Name()) })
	if err != nil && waited && ctx.Err() == nil {
		ing := map[plan.Op]string{plan.Start: "starting", plan.Restart: "restarting", plan.Stop: "stopping"}[s.Op]
		return job, &late{fmt.Sprintf("%s is still %s", s.Name(), ing), lookAgain, job.Result != ""}
	}
	return job, err
}

// waits notes that a module's part of the pass ends here, without a failure.
func (r *run) waits(m subject.Module, l *late) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.late[m] == nil {
		r.late[m] = l
	}
}
