package state

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
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

// Put appends a message, lazily, and returns it with its id. Over the bounds the oldest superseded
// reports leave first, then the oldest of all; what left is counted (Dropped). The newest message stays.
func (s *Store) Put(ctx context.Context, o Out) (Out, error) {
	id, err := s.messageID()
	if err != nil {
		return Out{}, fmt.Errorf("make a message id: %w", err)
	}
	o.ID, o.At = id, s.clock.Now().UTC().Truncate(time.Millisecond)
	if o.Body == nil {
		o.Body = []byte{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	rows, bytes := s.rows+1, s.bytes+int64(len(o.Body))
	err = s.db.WriteLazy(ctx, func(tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, `INSERT INTO outbox (id, subject, kind, body, at) VALUES (?, ?, ?, ?, ?)`,
			o.ID, o.Subject, o.Kind, o.Body, o.At.UnixMilli())
		if err != nil {
			return err
		}
		if o.N, err = res.LastInsertId(); err != nil {
			return err
		}
		rows, bytes, err = shrink(ctx, tx, rows, bytes, o.N)
		return err
	})
	if err != nil {
		return Out{}, fmt.Errorf("put a %s into the outbox: %w", o.Kind, err)
	}
	s.rows, s.bytes = rows, bytes
	return o, nil
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
func shrink(ctx context.Context, tx *sql.Tx, rows int, bytes int64, newest int64) (int, int64, error) {
	dropped := 0
	for rows > MaxOutRows || bytes > MaxOutBytes {
		var n, size int64
		err := tx.QueryRowContext(ctx, `SELECT n, length(body) FROM outbox WHERE n <> ?1
			ORDER BY (kind = ?2 AND n < (SELECT max(n) FROM outbox WHERE kind = ?2)) DESC, n LIMIT 1`, newest, KindReport).Scan(&n, &size)
		if errors.Is(err, sql.ErrNoRows) {
			break // one message alone is over the bound; its own format bounds it
		}
		if err != nil {
			return rows, bytes, err
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM outbox WHERE n = ?`, n); err != nil {
			return rows, bytes, err
		}
		rows, bytes, dropped = rows-1, bytes-size, dropped+1
	}
	if dropped == 0 {
		return rows, bytes, nil
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO meta (key, value) VALUES ('outbox.dropped', CAST(? AS BLOB))
		ON CONFLICT (key) DO UPDATE SET value = CAST(CAST(CAST(value AS TEXT) AS INTEGER) + CAST(CAST(excluded.value AS TEXT) AS INTEGER) AS BLOB)`,
		fmt.Sprint(dropped))
	return rows, bytes, err
}

// Next returns the first n messages, in order.
func (s *Store) Next(ctx context.Context, n int) ([]Out, error) {
	if s.Depth() == 0 {
		return nil, nil
	}
	out, err := query(ctx, s.db, func(rows *sql.Rows) (o Out, err error) {
		var at int64
		err = rows.Scan(&o.N, &o.ID, &o.Subject, &o.Kind, &o.Body, &at)
		o.At = time.UnixMilli(at).UTC()
		return o, err
	}, `SELECT n, id, subject, kind, body, at FROM outbox ORDER BY n LIMIT ?`, n)
	if err != nil {
		return nil, fmt.Errorf("read the outbox: %w", err)
	}
	return out, nil
}

// Acked removes messages the bus has acknowledged, by id. It is written lazily: after a power cut they
// are sent again under the same id.
func (s *Store) Acked(ctx context.Context, ids ...string) error {
	if len(ids) == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	args := make([]any, len(ids))
	for i, id := range ids {
		args[i] = id
	}
	marks := strings.Repeat("?, ", len(ids)-1) + "?"
	rows, bytes := s.rows, s.bytes
	err := s.db.WriteLazy(ctx, func(tx *sql.Tx) error {
		var count int
		var size int64
		if err := tx.QueryRowContext(ctx, `SELECT count(*), coalesce(sum(length(body)), 0) FROM outbox WHERE id IN (`+marks+`)`, args...).
			Scan(&count, &size); err != nil {
			return err
		}
		rows, bytes = s.rows-count, s.bytes-size
		_, err := tx.ExecContext(ctx, `DELETE FROM outbox WHERE id IN (`+marks+`)`, args...)
		return err
	})
	if err != nil {
		return fmt.Errorf("acknowledge in the outbox: %w", err)
	}
	s.rows, s.bytes = rows, bytes
	return nil
}

// Depth is how many messages wait. It costs no query.
func (s *Store) Depth() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rows
}

// Dropped counts the messages that left the outbox unsent since the store was made.
func (s *Store) Dropped(ctx context.Context) (uint64, error) {
	b, _, err := s.Meta(ctx, "outbox.dropped")
	if err != nil || len(b) == 0 {
		return 0, err
	}
	var n uint64
	_, err = fmt.Sscan(string(b), &n)
	return n, err
}

// loadOutbox holds mu.
func (s *Store) loadOutbox(ctx context.Context) error {
	return s.db.Read().QueryRowContext(ctx, `SELECT count(*), coalesce(sum(length(body)), 0) FROM outbox`).Scan(&s.rows, &s.bytes)
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
		if _, err := fmt.Sscan(string(b), &from); err != nil {
			return err
		}
	} else {
		from = uint64(max(s.clock.Now().UnixMilli(), 0))
	}
	if err := s.putMeta(ctx, s.db.Write, "report.number", []byte(fmt.Sprint(from+numberBlock))); err != nil {
		return err
	}
	s.number, s.reserved = from, from+numberBlock
	return nil
}
