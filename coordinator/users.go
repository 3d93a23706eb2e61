package coordinator

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"mesh/shared/clock"
	"mesh/shared/grant"
)

const (
	// reloadPause is the least time between two reloads of the bus's user list: each one goes over every
	// connected client, so changes are gathered (facts/bus.md §4.2).
	reloadPause = time.Second
	// lookEvery is how often the list is composed without a reason to: invitations end by themselves.
	lookEvery = time.Minute
	// mostLeft is how many of those left out are named at once.
	mostLeft = 20
)

// userList keeps the bus's user list as the records say: at once after a change, then at most one reload
// each reloadPause. An unchanged list causes none (MEM-3).
type userList struct {
	compose func(context.Context) ([]grant.Principal, uint64, error)
	apply   func(grant.List) (changed bool, err error)
	clk     clock.Clock
	log     *slog.Logger

	kick chan struct{} // capacity 1: one look pending is enough

	mu      sync.Mutex    // guards the fields below
	applied uint64        // version in force
	err     error         // of the last try
	tried   chan struct{} // closed and made anew at each try
	left    string        // who was left out, said when it changes
}

func newUserList(compose func(context.Context) ([]grant.Principal, uint64, error), apply func(grant.List) (bool, error), clk clock.Clock, log *slog.Logger) *userList {
	return &userList{compose: compose, apply: apply, clk: clk, log: log, kick: make(chan struct{}, 1), tried: make(chan struct{})}
}

// Kick has the list looked at soon.
func (u *userList) Kick() {
	select {
	case u.kick <- struct{}{}:
	default:
	}
}

// Now returns once a list that follows the records of this moment is in force.
func (u *userList) Now(ctx context.Context) error {
	_, want, err := u.compose(ctx)
	if err != nil {
		return err
	}
	for {
		u.mu.Lock()
		applied, tried := u.applied, u.tried
		u.mu.Unlock()
		if applied >= want {
			return nil
		}
		u.Kick()
		select {
		case <-tried:
		case <-ctx.Done():
			return ctx.Err()
		}
		u.mu.Lock()
		err := u.err
		u.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// run keeps the list until ctx ends.
func (u *userList) run(ctx context.Context) error {
	look, stop := u.clk.Every(lookEvery)
	defer stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-u.kick:
		case <-look:
		}
		if !u.once(ctx) {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-u.clk.After(reloadPause):
		}
	}
}

// once composes and applies. wait says that the next look should wait.
func (u *userList) once(ctx context.Context) (wait bool) {
	list, version, err := u.list(ctx)
	changed := false
	if err == nil && version != u.version() {
		changed, err = u.apply(list)
	}
	u.mu.Lock()
	if err == nil {
		u.applied = version
	}
	if said := u.err != nil; err != nil && ctx.Err() == nil && !said {
		u.log.Error("the bus's user list is not in force, trying again", "err", err)
	}
	if u.err != nil && err == nil {
		u.log.Info("the bus's user list is in force again")
	}
	u.err = err
	close(u.tried)
	u.tried = make(chan struct{})
	u.mu.Unlock()
	if err != nil {
		u.Kick()
	}
	return changed || err != nil
}

func (u *userList) version() uint64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.applied
}

// list composes the list, and names who is left out of it when that changes.
func (u *userList) list(ctx context.Context) (grant.List, uint64, error) {
	people, version, err := u.compose(ctx)
	if err != nil {
		return grant.List{}, 0, err
	}
	if version == u.version() {
		return grant.List{}, version, nil
	}
	list, left, err := grant.Compose(people)
	if err != nil {
		return grant.List{}, 0, err
	}
	var words []string
	for _, l := range left[:min(len(left), mostLeft)] {
		words = append(words, fmt.Sprintf("%s: %s", l.Principal, l.Why))
	}
	if n := len(left) - len(words); n > 0 {
		words = append(words, fmt.Sprintf("and %d more", n))
	}
	if text := strings.Join(words, "; "); text != u.left {
		u.left = text
		u.log.Warn("principals are left out of the bus's user list", "who", text)
	}
	return list, version, nil
}
