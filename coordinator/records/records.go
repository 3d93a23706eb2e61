// Package records is what the coordinator knows: the mesh, its nodes, invitations, operators, modules
// with their builds, assignments, the declarations composed and sent, and what the nodes reported. It
// is one SQLite file that only this package reads and writes.
//
// A method is one transaction and one promise. Every acting method takes a By and writes who did what
// and why into the journal of changes in the same transaction; the journal is only appended to. What
// cannot be is refused in words, and an empty selection is an error, never "all" (PSH-11).
//
// What a change touches is told to those who keep composed state by Touched. Liveness is not kept
// here: heartbeats live in memory. The package starts no goroutines.
package records

import (
	"context"
	"database/sql"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"sync"
	"time"

	"mesh/shared/clock"
	"mesh/shared/manifest"
	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/sqlite"
	"mesh/shared/subject"
)

// ApplicationID marks the file as the coordinator's records ("mcrd").
const ApplicationID int32 = 0x6d637264

//go:embed schema/*.sql
var schema embed.FS

// Options are the edges of a Store.
type Options struct {
	Clock clock.Clock
	// Rand makes keys of invitations and seals secrets.
	Rand io.Reader
	// Own is the coordinator's own public key on the bus: nobody else may have it.
	Own string
}

// Store is the open records. Close ends it. It is safe for concurrent use.
type Store struct {
	db   *sqlite.DB
	clk  clock.Clock
	rand io.Reader
	own  string
	feed feed

	mu     sync.Mutex // guards the caches below
	builds map[string]*Build
	kept   map[subject.Node]kept
	people people
	begun  []Call // in no commit yet
}

// Open opens or makes the records at path.
func Open(ctx context.Context, path string, o Options) (*Store, error) {
	dir, err := fs.Sub(schema, "schema")
	if err != nil {
		return nil, fmt.Errorf("open records: %w", err)
	}
	db, err := sqlite.Open(ctx, path, sqlite.Options{ID: ApplicationID, Migrations: dir, CacheKiB: 8 << 10})
	if err != nil {
		return nil, fmt.Errorf("open records: %w", Told(err))
	}
	return &Store{db: db, clk: o.Clock, rand: o.Rand, own: o.Own, builds: map[string]*Build{}, kept: map[subject.Node]kept{}}, nil
}

// Close closes the file.
func (s *Store) Close() error { return s.db.Close() }

// QuickCheck returns what SQLite finds wrong with the file, or nil.
func (s *Store) QuickCheck(ctx context.Context) error { return s.db.QuickCheck(ctx) }

// Backup writes a copy of the records to a new file at path while they are in use (OPS-3).
func (s *Store) Backup(ctx context.Context, path string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("back up the records to %s: %w", path, err)
		}
	}()
	c, err := s.db.Read().Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	// A connection for reading may write nothing, not even another file.
	if _, err := c.ExecContext(ctx, "PRAGMA query_only(0)"); err != nil {
		return err
	}
	_, err = c.ExecContext(ctx, "VACUUM INTO ?", path)
	_, errBack := c.ExecContext(context.WithoutCancel(ctx), "PRAGMA query_only(1)")
	return errors.Join(err, errBack)
}

// By says who acts and why; it goes into the journal.
type By struct {
	// Who is a principal's label ("operator-anna"), or "coordinator".
	Who string
	Why string
	// Key, when not empty, is of the operator who acts: one who was revoked by then does nothing.
	Key string
}

// tx is one acting transaction.
type tx struct {
	*sql.Tx
	s       *Store
	ctx     context.Context
	by      By
	now     time.Time
	touched []touch
	// after run once the transaction is on disk.
	after []func()
}

// act runs fn in one transaction that survives a power cut; then those who asked are told what it touched.
func (s *Store) act(ctx context.Context, by By, what string, fn func(*tx) error) error {
	if by.Who == "" {
		return refusal.New(what, "nobody is named who does it", "name who acts")
	}
	var t *tx
	err := s.withBegun(func(begun []Call) error {
		return s.db.Write(ctx, func(raw *sql.Tx) error {
			t = &tx{Tx: raw, s: s, ctx: ctx, by: by, now: s.clk.Now()}
			if err := errors.Join(t.inForce(), putCalls(ctx, raw, begun)); err != nil {
				return err
			}
			return fn(t)
		})
	})
	if t != nil && slices.ContainsFunc(t.touched, func(x touch) bool { return x.users || x.all }) {
		s.forgetOperators() // also where it is not known whether it was committed
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	for _, f := range t.after {
		f()
	}
	s.feed.add(t.touched)
	return nil
}

// inForce refuses an operator who was revoked while what was asked was under way.
func (t *tx) inForce() error {
	if t.by.Key == "" {
		return nil
	}
	var n int
	if err := t.QueryRowContext(t.ctx, `SELECT count(*) FROM operator WHERE key = ? AND revoked IS NULL`, t.by.Key).Scan(&n); err != nil || n > 0 {
		return err
	}
	return refusal.New("what "+t.by.Who+" asked", "it was revoked meanwhile, and nothing was done", "ask an admin for a credential: mesh-coordinator operator issue <name>")
}

// note appends to the journal.
func (t *tx) note(what, object string, n subject.Node, m subject.Module) error {
	return t.exec(`INSERT INTO change (at, who, what, object, node, module, why) VALUES (?, ?, ?, ?, ?, ?, ?)`,
		t.now.UnixMilli(), t.by.Who, what, object, string(n), string(m), t.by.Why)
}

func (t *tx) touch(x touch) { t.touched = append(t.touched, x) }

func (t *tx) exec(query string, args ...any) error {
	_, err := t.ExecContext(t.ctx, query, args...)
	return err
}

// querier is a transaction or the reading pool.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// each calls fn for every row of a query.
func each(ctx context.Context, q querier, fn func(*sql.Rows) error, query string, args ...any) (err error) {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := fn(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// texts is a query of one column of texts.
func texts(ctx context.Context, q querier, query string, args ...any) (all []string, err error) {
	err = each(ctx, q, func(r *sql.Rows) error {
		var s string
		err := r.Scan(&s)
		all = append(all, s)
		return err
	}, query, args...)
	return all, err
}

// didYouMean is the end of a refusal about a name that is not known.
func didYouMean(word string, known []string, otherwise string) string {
	if s := manifest.Suggest(word, known); s != "" {
		return fmt.Sprintf("did you mean %q?", s)
	}
	return otherwise
}

func at(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

// atOrZero is the time in a column that may be NULL.
func atOrZero(ms sql.NullInt64) time.Time {
	if !ms.Valid {
		return time.Time{}
	}
	return at(ms.Int64)
}

// encode is v's JSON. What is handed in here always marshals.
func encode(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("encoding/json refused a %T: %v", v, err))
	}
	return string(b)
}

// decode reads what encode wrote.
func decode(text string, v any) error {
	if err := json.Unmarshal([]byte(text), v); err != nil {
		return fmt.Errorf("the records hold %q: %w", clip(text), err)
	}
	return nil
}

func clip(s string) string { return report.Cut(s, 60) }
