package state

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"
)

// The bounds of the outbox.
const (
	MaxOutRows  = 1000
	MaxOutBytes = 8 << 20
)

// KindReport is the kind of message of which a newer one supersedes all older ones.
const KindReport = "report"

// Out is a message that must not be lost.
type Out struct {
	// N orders messages; Put sets it.
	N int64
	// ID is the message id the bus tells repetitions by; Put makes it, unguessable.
	ID            string
	Subject, Kind string
	Body          []byte
	At            time.Time
}

const (
	// mirrored is how many waiting messages are kept in memory too: with the bus there, one or none waits.
	mirrored = 8
	// maxAcked is how many acknowledged reports the file keeps until they are deleted without an occasion.
	maxAcked = 32
)

// Put appends a message, lazily, and returns it with its id. Over the bounds the oldest superseded
// reports leave first, then the oldest of all; what left is counted (Dropped). The newest message stays.
func (s *Store) Put(ctx context.Context, o Out) (Out, error) {
	if err := s.stamp(&o); err != nil {
		return Out{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.offered != nil { // it comes before
		if err := s.flush(ctx); err != nil {
			return Out{}, err
		}
	}
	return s.put(ctx, o)
}

// Offer is Put for a message that a start after a kill makes again: it waits in memory, with what is staged,
// and is written by the next write or by Flush, unless it was acknowledged by then. Where something waits
// already it is Put.
func (s *Store) Offer(ctx context.Context, o Out) (Out, error) {
	if err := s.stamp(&o); err != nil {
		return Out{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rows > 0 || s.offered != nil {
		if err := s.flush(ctx); err != nil {
			return Out{}, err
		}
		return s.put(ctx, o)
	}
	s.offered = &o
	return o, nil
}

// stamp gives o what the store gives each message.
func (s *Store) stamp(o *Out) error {
	id, err := s.messageID()
	if err != nil {
		return fmt.Errorf("make a message id: %w", err)
	}
	o.ID, o.At = id, s.clock.Now().UTC().Truncate(time.Millisecond)
	if o.Body == nil {
		o.Body = []byte{}
	}
	return nil
}

func insertOut(ctx context.Context, tx *sql.Tx, o *Out) error {
	res, err := tx.ExecContext(ctx, `INSERT INTO outbox (id, subject, kind, body, at) VALUES (?, ?, ?, ?, ?)`,
		o.ID, o.Subject, o.Kind, o.Body, o.At.UnixMilli())
	if err == nil {
		o.N, err = res.LastInsertId()
	}
	return err
}

// put holds mu; nothing is offered.
func (s *Store) put(ctx context.Context, o Out) (_ Out, err error) {
	if err := s.lasting(); err != nil {
		return Out{}, fmt.Errorf("write the outcome: %w", err)
	}
	rows, bytes, dropped := s.rows+1, s.bytes+int64(len(o.Body)), uint64(0)
	err = s.db().WriteLazy(ctx, func(tx *sql.Tx) error {
		if err := s.putStaged(ctx, tx); err != nil {
			return err
		}
		if err := deleteOut(ctx, tx, s.acked); err != nil {
			return err
		}
		if err := insertOut(ctx, tx, &o); err != nil {
			return err
		}
		rows, bytes, dropped, err = shrink(ctx, tx, rows, bytes, o.N)
		return err
	})
	if err != nil {
		return Out{}, fmt.Errorf("put a %s into the outbox: %w", o.Kind, err)
	}
	s.rows, s.bytes, s.dropped, s.acked, s.staged = rows, bytes, s.dropped+dropped, nil, nil
	s.mirrorOut(o, dropped == 0)
	return o, nil
}

// mirrorOut takes a message that was written into the mirror. It holds mu.
func (s *Store) mirrorOut(o Out, room bool) {
	if s.whole = s.whole && room && len(s.waiting) < mirrored; s.whole {
		s.waiting = append(s.waiting, o)
	} else {
		s.waiting = nil
	}
}

func deleteOut(ctx context.Context, tx *sql.Tx, all []Out) error {
	for _, o := range all {
		if _, err := tx.ExecContext(ctx, `DELETE FROM outbox WHERE n = ? AND id = ?`, o.N, o.ID); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) messageID() (string, error) {
	r := s.rand
	if r == nil {
		r = rand.Reader
	}
	var b [16]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return "", err
	}
	return hex.EncodeToString(b[:]), nil
}

// shrink drops messages until the bounds hold; newest stays.
func shrink(ctx context.Context, tx *sql.Tx, rows int, bytes int64, newest int64) (_ int, _ int64, dropped uint64, err error) {
	for rows > MaxOutRows || bytes > MaxOutBytes {
		var n, size int64
		err := tx.QueryRowContext(ctx, `SELECT n, length(body) FROM outbox WHERE n <> ?1
			ORDER BY (kind = ?2 AND n < (SELECT max(n) FROM outbox WHERE kind = ?2)) DESC, n LIMIT 1`, newest, KindReport).Scan(&n, &size)
		if errors.Is(err, sql.ErrNoRows) {
			break // one message alone is over the bound; its own format bounds it
		}
		if err != nil {
			return rows, bytes, dropped, err
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM outbox WHERE n = ?`, n); err != nil {
			return rows, bytes, dropped, err
		}
		rows, bytes, dropped = rows-1, bytes-size, dropped+1
	}
	if dropped == 0 {
		return rows, bytes, 0, nil
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO meta (key, value) VALUES ('outbox.dropped', CAST(? AS BLOB))
		ON CONFLICT (key) DO UPDATE SET value = CAST(CAST(CAST(value AS TEXT) AS INTEGER) + CAST(CAST(excluded.value AS TEXT) AS INTEGER) AS BLOB)`,
		fmt.Sprint(dropped))
	return rows, bytes, dropped, err
}

// Next returns the first n messages, in order. While few wait it costs no query.
func (s *Store) Next(ctx context.Context, n int) ([]Out, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.offered != nil { // then nothing else waits
		return []Out{*s.offered}, nil
	}
	if s.rows == 0 {
		return nil, nil
	}
	if s.whole {
		return slices.Clone(s.waiting[:min(n, len(s.waiting))]), nil
	}
	if err := s.deleteAcked(ctx); err != nil {
		return nil, err
	}
	out, err := query(ctx, s.db(), func(rows *sql.Rows) (o Out, err error) {
		var at int64
		err = rows.Scan(&o.N, &o.ID, &o.Subject, &o.Kind, &o.Body, &at)
		o.At = time.UnixMilli(at).UTC()
		return o, err
	}, `SELECT n, id, subject, kind, body, at FROM outbox ORDER BY n LIMIT ?`, n)
	if err != nil {
		return nil, fmt.Errorf("read the outbox: %w", err)
	}
	if len(out) == s.rows && len(out) <= mirrored {
		s.waiting, s.whole = slices.Clone(out), true
	}
	return out, nil
}

// Acked removes messages the bus has acknowledged, by ID, and N where they were written. It is written lazily: after a power cut they
// are sent again under the same id. A report is taken out of the file with the next write only: one that
// is sent once more says nothing new, by its number.
func (s *Store) Acked(ctx context.Context, all ...Out) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := make([]Out, 0, len(all))
	for _, o := range all {
		if s.offered != nil && s.offered.ID == o.ID {
			s.offered = nil
			continue
		}
		i := slices.IndexFunc(s.waiting, func(w Out) bool { return w.ID == o.ID })
		if i >= 0 {
			o.N = s.waiting[i].N
		}
		if !s.whole || i >= 0 && s.waiting[i].Kind != KindReport {
			now = append(now, o)
			continue
		}
		if i >= 0 {
			s.acked = append(s.acked, Out{N: s.waiting[i].N, ID: o.ID})
			s.takeOut(i)
		}
	}
	if len(s.acked) > maxAcked {
		if err := s.deleteAcked(ctx); err != nil {
			return err
		}
	}
	return s.ackedNow(ctx, now)
}

// takeOut removes the i-th of all waiting messages from the mirror. It holds mu.
func (s *Store) takeOut(i int) {
	s.rows, s.bytes = s.rows-1, s.bytes-int64(len(s.waiting[i].Body))
	s.waiting = slices.Delete(s.waiting, i, i+1)
}

// ackedNow removes messages from the file at once. It holds mu.
func (s *Store) ackedNow(ctx context.Context, all []Out) error {
	if len(all) == 0 {
		return nil
	}
	rows, bytes := s.rows, s.bytes
	err := s.db().WriteLazy(ctx, func(tx *sql.Tx) error {
		for _, o := range all {
			var size int64
			err := tx.QueryRowContext(ctx, `DELETE FROM outbox WHERE (n = ?1 OR ?1 = 0) AND id = ?2 RETURNING length(body)`, o.N, o.ID).Scan(&size)
			if errors.Is(err, sql.ErrNoRows) {
				continue // acknowledged before
			}
			if err != nil {
				return err
			}
			rows, bytes = rows-1, bytes-size
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("acknowledge in the outbox: %w", err)
	}
	s.rows, s.bytes = rows, bytes
	s.waiting = slices.DeleteFunc(s.waiting, func(w Out) bool {
		return slices.ContainsFunc(all, func(o Out) bool { return o.ID == w.ID })
	})
	s.whole = s.whole || rows == 0
	return nil
}

// settle writes what waited for the next occasion.
func (s *Store) settle(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.flush(ctx), s.deleteAcked(ctx))
}

// deleteAcked holds mu.
func (s *Store) deleteAcked(ctx context.Context) error {
	if len(s.acked) == 0 {
		return nil
	}
	if err := s.db().WriteLazy(ctx, func(tx *sql.Tx) error { return deleteOut(ctx, tx, s.acked) }); err != nil {
		return fmt.Errorf("acknowledge in the outbox: %w", err)
	}
	s.acked = nil
	return nil
}

// Depth is how many messages wait. It costs no query.
func (s *Store) Depth() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.offered != nil {
		return s.rows + 1
	}
	return s.rows
}

// Dropped counts the messages that left the outbox unsent since the store was made. It costs no query.
func (s *Store) Dropped(context.Context) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.dropped, nil
}

// loadOutbox holds mu.
func (s *Store) loadOutbox(ctx context.Context) error {
	b, _, err := s.Meta(ctx, "outbox.dropped")
	if err != nil {
		return err
	}
	if n, err := strconv.ParseUint(string(b), 10, 64); err == nil { // what rotted is no reason not to start
		s.dropped = n
	}
	err = s.db().Read().QueryRowContext(ctx, `SELECT count(*), coalesce(sum(length(body)), 0) FROM outbox`).Scan(&s.rows, &s.bytes)
	s.whole = s.rows == 0
	return err
}

// numberBlock is how many report numbers one synced commit reserves.
const numberBlock = 1000

// NextReportNumber is a number no report of this node ever had, greater than all before: numbers are
// reserved in blocks, so that a power cut skips some and repeats none, and a report costs no sync. A
// fresh store begins at the time, so that a lost one does not make the coordinator deaf.
func (s *Store) NextReportNumber(ctx context.Context) (uint64, error) {
	s.mu.Lock()
	left := s.number < s.reserved
	s.mu.Unlock()
	if !left {
		if err := s.reserve(ctx); err != nil {
			return 0, fmt.Errorf("reserve report numbers: %w", err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.number++
	return s.number, nil
}

func (s *Store) reserve(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var from uint64
	b, ok, err := s.Meta(ctx, "report.number")
	if err != nil {
		return err
	}
	if ok {
		from, err = strconv.ParseUint(string(b), 10, 64)
	}
	if !ok || err != nil { // what rotted counts as lost
		from = uint64(max(s.clock.Now().UnixMilli(), 0))
	}
	if err := s.putMeta(ctx, s.db().Write, "report.number", []byte(fmt.Sprint(from+numberBlock))); err != nil {
		return err
	}
	s.number, s.reserved = from, from+numberBlock
	return nil
}
