package upgrade

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"mesh/shared/refusal"
)

// FallBack goes back to the agent of before the last upgrade. With unlessConfirmed it is the end of a try: one
// that was confirmed stays. Readable says whether this program can read the store at its place. It returns
// what was done, for people.
func (u *Upgrader) FallBack(ctx context.Context, unlessConfirmed bool, readable func(ctx context.Context) error) (string, error) {
	if err := u.cfg.makeFolder(); err != nil {
		return "", err
	}
	release, err := lock(ctx, u.cfg.Dir)
	if err != nil {
		return "", err
	}
	defer release()
	rec, err := u.read()
	if err != nil {
		return "", err
	}
	switch {
	case unlessConfirmed && rec.State != Trying:
		return "the new agent stays", u.disarm(ctx)
	case rec.From.Program == "" || rec.State == Failed:
		return "", refusal.New("to fall back", "there is no agent of before to go back to", "place one by hand: mesh-installer")
	}
	if _, err := os.Stat(rec.From.Program); err != nil {
		return "", refusal.Because(err, "to fall back", "the agent of before is gone: "+err.Error(), "place one by hand: mesh-installer")
	}
	if at, err := os.Readlink(u.cfg.at(Program)); unlessConfirmed && (err != nil || at != rec.To.Program) {
		rec.State, rec.Why = Failed, "the change was broken off before the new agent was started"
		return "the new agent was never started", errors.Join(u.write(rec), u.disarm(ctx))
	}
	rec.State, rec.AtMS = Failed, u.cfg.Clock.Now().UnixMilli()
	rec.Why = fmt.Sprintf("it did not report within %v, and the agent of before is back; see journalctl -u mesh-agent", time.Duration(rec.WindowMS)*time.Millisecond)
	if !unlessConfirmed {
		rec.Why, rec.Tries = "a person went back to the agent of before, with mesh-agent fall-back", mostTries
	}
	return "the agent of before is back: " + rec.From.Program, u.back(ctx, rec, readable)
}

// back stops the new agent, gives the old one what it can read, and starts that. Killed in between, the timer
// comes again: the record is written last but for the start.
func (u *Upgrader) back(ctx context.Context, rec record, readable func(ctx context.Context) error) error {
	if _, err := u.cfg.Units.Stop(ctx, Service); err != nil {
		return err
	}
	if err := readable(ctx); err != nil {
		u.cfg.Log.Warn("the store of before is put back: this agent cannot read what the new one left", "err", err)
		if err := u.restoreStore(); err != nil {
			return err
		}
	}
	if err := link(u.cfg.at(Program), rec.From.Program); err != nil {
		return err
	}
	if err := u.write(rec); err != nil {
		return err
	}
	_, err := u.cfg.Units.Start(ctx, Service)
	return errors.Join(err, u.disarm(ctx))
}

// restoreStore puts the copy of the store into its place; what the new agent wrote is set aside.
func (u *Upgrader) restoreStore() error {
	at, before := filepath.Join(u.cfg.Dir, "state.db"), filepath.Join(u.cfg.Dir, programs, storeCopy)
	if _, err := os.Stat(before); err != nil {
		return err
	}
	for _, suffix := range []string{"-wal", "-shm"} {
		if err := remove(at + suffix); err != nil {
			return err
		}
	}
	if err := os.Rename(at, at+".newer"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Rename(before, at); err != nil {
		return err
	}
	return errors.Join(syncFolder(u.cfg.Dir), syncFolder(filepath.Join(u.cfg.Dir, programs)))
}
