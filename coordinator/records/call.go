package records

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"mesh/shared/refusal"
)

// The states of a call.
const (
	CallRunning   = "running"
	CallAnswered  = "answered"
	CallRefused   = "refused"
	CallFailed    = "failed"
	CallAbandoned = "abandoned" // the coordinator stopped before it ended
)

const (
	// callsKept and callsAge bound the calls kept (CAL-1).
	callsKept = 1000
	callsAge  = 14 * 24 * time.Hour
	// MaxAnswer bounds a kept answer in bytes.
	MaxAnswer = 64 << 10
)

// Call is one verb asked of the coordinator's seat.
type Call struct {
	ID, Caller, Verb string
	// Args and Answer are JSON; "" where they are not kept.
	Args, Answer string
	// Bytes is how long the whole answer was.
	Bytes        int
	Began, Ended time.Time
	State        string
}

// BeginCall notes a call that begins. It is written with whatever is acted next, which is its own act if it changes
// anything here, and by KeepCalls at the latest: nobody waits for a commit of its own.
func (s *Store) BeginCall(c Call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun = append(s.begun, c)
}

// withBegun runs write with the calls that began and are in no commit yet; those are kept for the next when it fails.
func (s *Store) withBegun(write func(begun []Call) error) error {
	s.mu.Lock()
	begun := s.begun
	s.begun = nil
	s.mu.Unlock()
	err := write(begun)
	if err != nil && len(begun) > 0 {
		s.mu.Lock()
		s.begun = append(begun, s.begun...)
		s.mu.Unlock()
	}
	return err
}

// KeepCalls writes calls that ended, and those that began, and forgets what is beyond the bounds. It survives a kill;
// a power cut may take the last ones.
func (s *Store) KeepCalls(ctx context.Context, ended []Call) error {
	now := s.clk.Now()
	err := s.withBegun(func(begun []Call) error {
		if len(begun)+len(ended) == 0 {
			return nil
		}
		return s.db.WriteLazy(ctx, func(t *sql.Tx) error {
			if err := errors.Join(putCalls(ctx, t, begun), putCalls(ctx, t, ended)); err != nil || len(ended) == 0 {
				return err
			}
			if _, err := t.ExecContext(ctx, `DELETE FROM call WHERE began < ? AND state <> ?`, now.Add(-callsAge).UnixMilli(), CallRunning); err != nil {
				return err
			}
			_, err := t.ExecContext(ctx, `DELETE FROM call WHERE state <> ? AND id IN (SELECT id FROM call ORDER BY began DESC, id DESC LIMIT -1 OFFSET ?)`, CallRunning, callsKept)
			return err
		})
	})
	if err != nil {
		return fmt.Errorf("keep calls: %w", err)
	}
	return nil
}

func putCalls(ctx context.Context, t *sql.Tx, all []Call) error {
	for _, c := range all {
		var ended any
		if !c.Ended.IsZero() {
			ended = c.Ended.UnixMilli()
		}
		if _, err := t.ExecContext(ctx, `INSERT INTO call (id, caller, verb, args, began, ended, state, answer, bytes) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT (id) DO UPDATE SET ended = excluded.ended, state = excluded.state, answer = excluded.answer, bytes = excluded.bytes`,
			c.ID, c.Caller, c.Verb, c.Args, c.Began.UnixMilli(), ended, c.State, c.Answer, c.Bytes); err != nil {
			return err
		}
	}
	return nil
}

// AbandonCalls marks the calls that a stopped coordinator had under way.
func (s *Store) AbandonCalls(ctx context.Context) error {
	return s.db.WriteLazy(ctx, func(t *sql.Tx) error {
		_, err := t.ExecContext(ctx, `UPDATE call SET state = ?, ended = ? WHERE state = ?`, CallAbandoned, s.clk.Now().UnixMilli(), CallRunning)
		return err
	})
}

const callColumns = `SELECT id, caller, verb, args, began, ended, state, answer, bytes FROM call`

// Calls are the last ones, the newest first, without their answers; verb and caller narrow them when not empty.
func (s *Store) Calls(ctx context.Context, verb, caller string, limit int) (all []Call, err error) {
	err = each(ctx, s.db.Read(), func(r *sql.Rows) error {
		c, err := scanCall(r)
		c.Answer = ""
		all = append(all, c)
		return err
	}, callColumns+` WHERE (?1 = '' OR verb = ?1) AND (?2 = '' OR caller = ?2) ORDER BY began DESC, id DESC LIMIT ?3`, verb, caller, limit)
	return all, err
}

// Call is one call by its id.
func (s *Store) Call(ctx context.Context, id string) (Call, error) {
	c, err := scanCall(s.db.Read().QueryRowContext(ctx, callColumns+` WHERE id = ?`, id))
	if errors.Is(err, sql.ErrNoRows) {
		return c, fmt.Errorf("%w: %w", refusal.Newf("the call "+clip(id), "list them: mesh-coordinator calls", "there is none with this id; the last %d of %d days are kept", callsKept, int(callsAge.Hours()/24)), ErrUnknown)
	}
	return c, err
}

func scanCall(r interface{ Scan(...any) error }) (c Call, err error) {
	var began int64
	var ended sql.NullInt64
	err = r.Scan(&c.ID, &c.Caller, &c.Verb, &c.Args, &began, &ended, &c.State, &c.Answer, &c.Bytes)
	c.Began, c.Ended = at(began), atOrZero(ended)
	return c, err
}
