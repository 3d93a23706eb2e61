// Package state is what an agent knows across restarts and power cuts, in one SQLite file: the
// declarations it accepted, the ledger of everything mesh put on the machine, the outbox, how each
// module is, what was found changed by hand, and the last of what happened.
//
// Accept is the one synced commit on the way of a declaration: once it returned, a power cut cannot
// lose the declaration or the intents that came with it. Everything after it is written lazily: it
// survives the death of the process at once, and what a power cut takes is found again by looking at
// the machine (facts/host.md §1.4, §5).
//
// A store that is damaged is set aside under a dated name and a fresh one begun with what can still be read
// of it; one that was lost is noticed by the marker beside it; one that is deleted under a running agent is
// written anew (Keep). All are said (Notes). What mesh made and the ledger does not know any more is
// recognized by looking: a unit by its mark, a file by its content being the declared one; a file with other
// content counts as somebody's, is not touched, and is named. The package starts no goroutine; the methods
// may be called from several at once. It decides nothing about the machine.
package state

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"mesh/shared/clock"
	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/sqlite"
)

// ID is the application_id of the agent's store: "MAgt".
const ID = 0x4d416774

// cacheKiB bounds the pages a connection keeps in memory: what is asked often is mirrored, and an agent
// rests nearly always.
const cacheKiB = 128

// Kept is how many accepted declarations stay in the store.
const Kept = 10

// slack is how many rows more than its bound a table may have for a while.
const slack = 8

//go:embed migrations/*.sql
var migrationFiles embed.FS

// Config says which store is opened.
type Config struct {
	// Path is the file, normally /var/lib/mesh-agent/state.db. The marker stands beside it.
	Path  string
	Clock clock.Clock
	// Rand makes message ids: they must not be guessable (design §5).
	Rand io.Reader
	Log  *slog.Logger
}

// Store is the agent's open store.
type Store struct {
	at    atomic.Pointer[sqlite.DB]
	path  string
	clock clock.Clock
	rand  io.Reader
	log   *slog.Logger
	notes []string

	mu       sync.Mutex // guards the fields below, which mirror the file so that most questions cost no query
	newest   Accepted   // without Signed
	slot     int64      // of the newest
	room     []byte     // for padded
	ledger   map[string]Row
	modules  map[string]report.Module
	rows     int   // waiting in the outbox
	bytes    int64 // of those
	waiting  []Out // all of those, when whole
	whole    bool
	acked    []Out        // reports that the bus has, and the file still
	staged   *staged      // outcomes that the mirror has, and the file not yet; nil for none
	offered  *Out         // a message that waits and is not in the file; nil for none
	before   func() error // what must last before an outcome is written; nil for nothing
	dropped  uint64
	problems lately[report.Problem]
	drift    lately[report.Drift]
	moments  moments
	number   uint64
	reserved uint64
	tidy     func() error // what Close does first; nil for a reader
	inode    uint64       // of the file
	left     []*sqlite.DB // files that were deleted while they were open
}

func (s *Store) db() *sqlite.DB { return s.at.Load() }

// Accepted is a declaration this node accepted.
type Accepted struct {
	Seq    uint64
	Digest string
	Signed []byte
	At     time.Time
}

// Open opens the store, or makes it. It never refuses to start over a damaged or lost file; a store of
// a newer agent is refused.
func Open(ctx context.Context, c Config) (*Store, error) {
	db, notes, err := recoverOpen(ctx, c)
	if err != nil {
		return nil, Named(err, "to start without a store")
	}
	s := &Store{path: c.Path, clock: c.Clock, rand: c.Rand, log: c.Log}
	s.at.Store(db)
	notes, err = s.dropRotten(ctx, notes)
	if err == nil {
		s.inode, err = inodeOf(c.Path)
	}
	s.notes = notes
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read the store %s: %w", c.Path, err), db.Close())
	}
	if err := s.load(ctx, true); err != nil {
		return nil, errors.Join(fmt.Errorf("read the store %s: %w", c.Path, err), db.Close())
	}
	s.tidy = func() error { return s.settle(context.WithoutCancel(ctx)) }
	if err := s.reserve(ctx); err != nil {
		return nil, Named(errors.Join(fmt.Errorf("reserve report numbers: %w", err), db.Close()), "to start without a store")
	}
	for _, n := range notes {
		c.Log.Warn("the store was not as it was left", "err", n)
		if err := s.AddProblem(ctx, n); err != nil {
			return nil, Named(errors.Join(err, db.Close()), "to start without a store")
		}
	}
	return s, nil
}

// OpenReadOnly opens the store beside a running agent, or with it down, without ever writing to it. It
// is for show; methods that write return an error.
func OpenReadOnly(ctx context.Context, path string, clk clock.Clock) (*Store, error) {
	db, err := sqlite.Open(ctx, path, sqlite.Options{ID: ID, Migrations: migrations(), ReadOnly: true})
	if err != nil {
		return nil, err
	}
	s := &Store{path: path, clock: clk, log: slog.New(slog.DiscardHandler)}
	s.at.Store(db)
	if err := s.load(ctx, false); err != nil {
		return nil, errors.Join(fmt.Errorf("read the store %s: %w", path, err), db.Close())
	}
	return s, nil
}

// Close ends the use of the store.
func (s *Store) Close() error {
	var err error
	if s.tidy != nil {
		err = s.tidy()
	}
	err = errors.Join(err, s.db().Close())
	for _, db := range s.left {
		err = errors.Join(err, db.Close())
	}
	return err
}

// Notes says what was wrong with the store when it was opened, for people; usually nothing.
func (s *Store) Notes() []string { return s.notes }

func migrations() fs.FS {
	sub, err := fs.Sub(migrationFiles, "migrations")
	if err != nil { // the folder is embedded above
		panic("embedded migrations: " + err.Error())
	}
	return sub
}

// load fills the mirror; without whole, not with the ledger, which is long, nor with what only a writer asks.
func (s *Store) load(ctx context.Context, whole bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.db().Read()
	var at int64
	err := r.QueryRowContext(ctx, `SELECT slot, seq, digest, accepted FROM declaration ORDER BY seq DESC LIMIT 1`).
		Scan(&s.slot, &s.newest.Seq, &s.newest.Digest, &at)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return err
	}
	s.newest.At = time.UnixMilli(at).UTC()
	if whole {
		if err := s.loadLedger(ctx); err != nil {
			return err
		}
	}
	if err := s.loadOutbox(ctx); err != nil {
		return err
	}
	if err := s.loadPast(ctx); err != nil {
		return err
	}
	return s.loadModules(ctx)
}

// Accept keeps a signed declaration as the one to apply, together with the ledger rows of what applying
// it is about to make, in one synced commit; it reports whether the declaration is news. The bus
// delivers more than once, so the newest seq again is no error and writes nothing; an older one, or
// another text under the newest seq, is refused: seq only grows.
func (s *Store) Accept(ctx context.Context, seq uint64, digest string, signed []byte, intents []Row) (news bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	news, err = s.judge(seq, digest)
	if err != nil || !news {
		return false, err
	}
	now, slot := s.clock.Now().UTC().Truncate(time.Millisecond), (s.slot+1)%Kept
	err = s.db().Write(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO declaration (slot, seq, accepted, size, digest, padded) VALUES (?, ?, ?, ?, ?, ?)
			ON CONFLICT (slot) DO UPDATE SET seq = excluded.seq, accepted = excluded.accepted, size = excluded.size,
			digest = excluded.digest, padded = excluded.padded`,
			slot, int64(seq), now.UnixMilli(), len(signed), digest, s.padded(signed)); err != nil {
			return err
		}
		if err := s.putStagedGoods(ctx, tx); err != nil { // what replaces a good build may need it back
			return err
		}
		return putRows(ctx, tx, dated(intents, now))
	})
	if err != nil {
		return false, fmt.Errorf("accept declaration %d: %w", seq, err)
	}
	s.staged.forgetGoods()
	s.staged.forget(intents)
	s.slot = slot
	s.newest = Accepted{Seq: seq, Digest: digest, At: now}
	s.mirror(intents, nil, now)
	return true, nil
}

// grain is what the kept text of a declaration is padded to a multiple of.
const grain = 512

// maxRoom is the longest padded text whose room is kept for the next.
const maxRoom = 32 << 10

// padded uses the store's own room. It holds mu.
func (s *Store) padded(signed []byte) []byte {
	n := (len(signed) + grain - 1) / grain * grain
	if n > maxRoom {
		return append(make([]byte, 0, n), signed...)[:n]
	}
	s.room = append(s.room[:0], signed...)
	for len(s.room) < n {
		s.room = append(s.room, 0)
	}
	return s.room
}

// unpadded is the text in a row; all of it when the size cannot be.
func unpadded(b []byte, size int64) []byte {
	if size < 0 || size > int64(len(b)) {
		return b
	}
	return b[:size]
}

// Judge says what Accept would: whether a declaration is news, or why it is refused.
func (s *Store) Judge(seq uint64, digest string) (news bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.judge(seq, digest)
}

// judge holds mu.
func (s *Store) judge(seq uint64, digest string) (news bool, err error) {
	const do = "push again from the coordinator: it gives the next seq"
	switch {
	case seq == s.newest.Seq && digest == s.newest.Digest:
		return false, nil
	case seq == s.newest.Seq:
		return false, refusal.Newf(fmt.Sprintf("declaration %d", seq), do, "this node holds another text under the same seq")
	case seq < s.newest.Seq:
		return false, refusal.Newf(fmt.Sprintf("declaration %d", seq), do, "this node holds %d, and seq only grows", s.newest.Seq)
	}
	return true, nil
}

// Newest is the seq and digest of the declaration held; zero when nothing was ever accepted. It costs
// no query.
func (s *Store) Newest() (seq uint64, digest string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.newest.Seq, s.newest.Digest
}

// NewestAt is when the declaration held was accepted; zero when nothing ever was.
func (s *Store) NewestAt() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.newest.Seq == 0 {
		return time.Time{}
	}
	return s.newest.At
}

// Current is the declaration to apply; ok is false when nothing was ever accepted.
func (s *Store) Current(ctx context.Context) (a Accepted, ok bool, err error) {
	all, err := s.accepted(ctx, 1)
	if err != nil || len(all) == 0 {
		return Accepted{}, false, err
	}
	return all[0], true, nil
}

// Accepted lists the kept declarations, newest first.
func (s *Store) Accepted(ctx context.Context) ([]Accepted, error) { return s.accepted(ctx, Kept) }

func (s *Store) accepted(ctx context.Context, n int) ([]Accepted, error) {
	return query(ctx, s.db(), func(rows *sql.Rows) (a Accepted, err error) {
		var at, size int64
		err = rows.Scan(&a.Seq, &a.Digest, &a.Signed, &size, &at)
		a.Signed, a.At = unpadded(a.Signed, size), time.UnixMilli(at).UTC()
		return a, err
	}, `SELECT seq, digest, padded, size, accepted FROM declaration ORDER BY seq DESC LIMIT ?`, n)
}

// query reads every row of a question.
func query[T any](ctx context.Context, db *sqlite.DB, scan func(*sql.Rows) (T, error), text string, args ...any) (out []T, err error) {
	rows, err := db.Read().QueryContext(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, rows.Err()
}
