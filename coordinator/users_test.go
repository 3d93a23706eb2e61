package coordinator

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"mesh/shared/clock"
	"mesh/shared/credential"
	"mesh/shared/grant"
	"mesh/shared/waitfor"

	"crypto/rand"
)

// people is a composer and a bus for a userList.
type people struct {
	mu      sync.Mutex
	version uint64
	list    []grant.Principal
	err     error
	applied []int // how many users each reload had
}

func (p *people) compose(context.Context) ([]grant.Principal, uint64, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]grant.Principal(nil), p.list...), p.version, nil
}

func (p *people) apply(l grant.List) (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return false, p.err
	}
	p.applied = append(p.applied, len(l.Users))
	return true, nil
}

func (p *people) add(t *testing.T, n int) {
	t.Helper()
	for range n {
		seed, err := credential.NewUser(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		key, err := seed.Public()
		if err != nil {
			t.Fatal(err)
		}
		p.mu.Lock()
		p.list = append(p.list, grant.Principal{Kind: grant.Node, Name: "n1", Key: key})
		p.version++
		p.mu.Unlock()
	}
}

func (p *people) reloads() []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]int(nil), p.applied...)
}

func runList(t *testing.T, p *people, clk clock.Clock) *userList {
	t.Helper()
	u := newUserList(p.compose, p.apply, clk, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- u.run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := waitfor.Value(t, "the list to stop", 10*time.Second, done); err != nil {
			t.Error(err)
		}
	})
	return u
}

func TestAHundredJoinsAreAtMostTwoReloads(t *testing.T) {
	p, clk := &people{}, clock.NewFake(time.Unix(1e9, 0))
	u := runList(t, p, clk)
	p.add(t, 1)
	if err := u.Now(t.Context()); err != nil { // the first is at once
		t.Fatal(err)
	}
	p.add(t, 99)
	errs := make(chan error, 99)
	for range 99 {
		go func() { errs <- u.Now(context.WithoutCancel(t.Context())) }()
	}
	waitfor.True(t, "the pause after the first", 10*time.Second, func() (bool, any) { return clk.Waiting() == 2, clk.Waiting() })
	if got := p.reloads(); len(got) != 1 {
		t.Errorf("before the pause is over there were reloads of %v", got)
	}
	clk.Advance(reloadPause)
	for range 99 {
		if err := waitfor.Value(t, "a join to be in force", 10*time.Second, errs); err != nil {
			t.Error(err)
		}
	}
	if got := p.reloads(); len(got) != 2 || got[1] != 100 {
		t.Errorf("reloads of %v, expected 1 and 100", got)
	}
}

func TestAnUnchangedListCausesNoReload(t *testing.T) {
	p, clk := &people{}, clock.NewFake(time.Unix(1e9, 0))
	p.add(t, 1)
	u := runList(t, p, clk)
	if err := u.Now(t.Context()); err != nil {
		t.Fatal(err)
	}
	waitfor.True(t, "the pause", 10*time.Second, func() (bool, any) { return clk.Waiting() == 2, clk.Waiting() })
	clk.Advance(reloadPause)
	for range 3 {
		u.Kick()
		if err := u.Now(t.Context()); err != nil {
			t.Fatal(err)
		}
		clk.Advance(lookEvery)
	}
	if got := p.reloads(); len(got) != 1 {
		t.Errorf("reloads of %v", got)
	}
}

func TestAListThatTheBusRefusesIsTriedAgain(t *testing.T) {
	p, clk := &people{err: errors.New("no")}, clock.NewFake(time.Unix(1e9, 0))
	p.add(t, 1)
	u := runList(t, p, clk)
	if err := u.Now(t.Context()); err == nil {
		t.Error("Now does not say that the bus refused")
	}
	p.mu.Lock()
	p.err = nil
	p.mu.Unlock()
	waitfor.True(t, "another try", 10*time.Second, func() (bool, any) {
		clk.Advance(reloadPause)
		return len(p.reloads()) == 1, p.reloads()
	})
}
