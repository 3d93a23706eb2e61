// Package sqlite opens the one SQLite file a mesh program keeps its state in: WAL, FULL sync, one
// writing connection, readers beside it, numbered migrations. It promises that an acknowledged Write
// survives a power cut (facts/host.md §1.4) and that a store of a newer program is left alone.
package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"

	"mesh/shared/refusal"
)

// Options say what store is opened.
type Options struct {
	// ID is the application_id: it tells mesh's file from any other and a lost store from a new one.
	ID int32
	// Migrations holds NNNN_name.sql files, run in order, each in its transaction. A released one never changes.
	Migrations fs.FS
	// ReadOnly opens an existing store without ever writing it.
	ReadOnly bool
	// CacheKiB bounds the page cache of a connection; 0 means 512.
	CacheKiB int
}

// DB is an open store. Close ends it.
type DB struct {
	mu    sync.Mutex // guards write and mode: one writer at a time
	write *sql.Conn
	mode  string // what synchronous is set to on the writing connection; "" is not known
	pool  *sql.DB
	read  *sql.DB
}

// Open opens or makes the store at path. A store made by a newer program is refused.
func Open(ctx context.Context, path string, o Options) (*DB, error) {
	db, err := open(ctx, path, o)
	if err != nil {
		return nil, fmt.Errorf("open store %s: %w", path, err)
	}
	return db, nil
}

func open(ctx context.Context, path string, o Options) (_ *DB, err error) {
	if o.CacheKiB == 0 {
		o.CacheKiB = 512
	}
	if !o.ReadOnly {
		// SQLite makes its files 0644; the folder and the file are ours alone.
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return nil, err
		}
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, err
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
	db := &DB{mode: "full"}
	defer func() {
		if err != nil {
			err = errors.Join(err, db.Close())
		}
	}()
	if db.read, err = openPool(dsn(path, o, true)); err != nil {
		return nil, err
	}
	db.read.SetMaxOpenConns(2)
	db.read.SetMaxIdleConns(1)
	if o.ReadOnly {
		return db, db.check(ctx, o)
	}
	if db.pool, err = openPool(dsn(path, o, false)); err != nil {
		return nil, err
	}
	db.pool.SetMaxOpenConns(1)
	if db.write, err = db.pool.Conn(ctx); err != nil {
		return nil, err
	}
	return db, db.migrate(ctx, o)
}

func openPool(dsn string) (*sql.DB, error) {
	c, err := newConnector(dsn)
	if err != nil {
		return nil, err
	}
	return sql.OpenDB(c), nil
}

func dsn(path string, o Options, readOnly bool) string {
	q := url.Values{}
	// busy_timeout first: the later ones may have to wait for another process.
	q.Add("_pragma", "busy_timeout(5000)")
	if readOnly {
		q.Set("mode", "ro")
		q.Add("_pragma", "query_only(1)")
	} else {
		q.Add("_pragma", "journal_mode(wal)")
		q.Add("_pragma", "synchronous(full)")
		q.Add("_pragma", "foreign_keys(on)")
		q.Set("_txlock", "immediate") // a read that turns into a write cannot wait its turn otherwise
	}
	q.Add("_pragma", "trusted_schema(off)")
	q.Add("_pragma", fmt.Sprintf("cache_size(-%d)", o.CacheKiB))
	return (&url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath(), RawQuery: q.Encode()}).String()
}

// check refuses a file that is not this store or is newer than this program.
func (db *DB) check(ctx context.Context, o Options) error {
	var id, version int
	if err := db.read.QueryRowContext(ctx, "PRAGMA application_id").Scan(&id); err != nil {
		return err
	}
	if err := db.read.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return err
	}
	return judge(o, id, version)
}

func judge(o Options, id, version int) error {
	steps, err := migrations(o.Migrations)
	if err != nil {
		return err
	}
	switch {
	case id != 0 && id != int(o.ID):
		return refusal.Newf("a store of another program", "name the right file", "its application_id is %d, expected %d", id, o.ID)
	case version > len(steps):
		return refusal.Newf("a store of a newer program", "run the newer program, or restore the copy made before the upgrade",
			"its schema is %d, this program knows %d", version, len(steps))
	}
	return nil
}

type migration struct{ name, text string }

// migrations are the numbered files, which must run 1, 2, 3 … without a gap.
func migrations(dir fs.FS) ([]migration, error) {
	names, err := fs.Glob(dir, "*.sql")
	if err != nil {
		return nil, err
	}
	sort.Strings(names)
	var out []migration
	for i, n := range names {
		number, _, _ := strings.Cut(n, "_")
		if k, err := strconv.Atoi(number); err != nil || k != i+1 {
			return nil, fmt.Errorf("migration %s: expected number %04d", n, i+1)
		}
		b, err := fs.ReadFile(dir, n)
		if err != nil {
			return nil, err
		}
		out = append(out, migration{n, string(b)})
	}
	return out, nil
}

func (db *DB) migrate(ctx context.Context, o Options) error {
	var id, version int
	if err := db.write.QueryRowContext(ctx, "PRAGMA application_id").Scan(&id); err != nil {
		return err
	}
	if err := db.write.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return err
	}
	if err := judge(o, id, version); err != nil {
		return err
	}
	if id == 0 && version == 0 {
		var things int
		if err := db.write.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema").Scan(&things); err != nil {
			return err
		}
		if things > 0 {
			return refusal.New("a store of another program", "it holds tables and has no application_id", "name the right file")
		}
	}
	steps, err := migrations(o.Migrations)
	if err != nil {
		return err
	}
	for i := version; i < len(steps); i++ {
		err := db.Write(ctx, func(tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, steps[i].text); err != nil {
				return err
			}
			_, err := tx.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d; PRAGMA application_id = %d", i+1, o.ID))
			return err
		})
		if err != nil {
			return fmt.Errorf("migration %s: %w", steps[i].name, err)
		}
	}
	return nil
}

// Write runs fn in one transaction and returns once it is on disk: it survives a power cut.
func (db *DB) Write(ctx context.Context, fn func(*sql.Tx) error) error { return db.do(ctx, false, fn) }

// WriteLazy runs fn in one transaction that survives the death of this process at once and a power cut
// only after the next Write. It costs no sync: for outcomes that the next start can find out again.
func (db *DB) WriteLazy(ctx context.Context, fn func(*sql.Tx) error) error {
	return db.do(ctx, true, fn)
}

// do runs fn in one transaction of the only writing connection. The transaction has a ctx of its own:
// when one ends, database/sql rolls back beside the callback that still runs, and the connection can be
// left inside a transaction for good.
func (db *DB) do(ctx context.Context, lazy bool, fn func(*sql.Tx) error) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.write == nil {
		return errors.New("the store is open for reading only")
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	own := context.WithoutCancel(ctx)
	mode := "full"
	if lazy {
		mode = "normal"
	}
	if mode != db.mode {
		db.mode = ""
		if _, err := db.write.ExecContext(own, "PRAGMA synchronous = "+mode); err != nil {
			return err
		}
		db.mode = mode
	}
	tx, err := db.write.BeginTx(own, nil)
	if err != nil {
		return err
	}
	settled := false
	defer func() {
		if !settled { // fn panicked
			_ = db.rollBack(own, tx)
		}
	}()
	err = fn(tx)
	if err == nil {
		err = ctx.Err() // the caller was told, or will be, that it did not happen
	}
	settled = true
	if err != nil {
		return errors.Join(err, db.rollBack(own, tx))
	}
	if err := tx.Commit(); err != nil {
		return errors.Join(err, db.rollBack(own, tx)) // a commit that a full disk refused leaves it open
	}
	return nil
}

// rollBack makes sure that the connection is in no transaction: SQLite ends it by itself at some errors,
// and database/sql forgets it when a commit fails.
func (db *DB) rollBack(ctx context.Context, tx *sql.Tx) error {
	err := tx.Rollback()
	if err == nil {
		return nil
	}
	if _, e := db.write.ExecContext(ctx, "ROLLBACK"); e == nil || strings.Contains(e.Error(), "no transaction is active") {
		return nil
	}
	return fmt.Errorf("roll back: %w", err)
}

// Read is for queries; it sees what was committed and cannot write.
func (db *DB) Read() *sql.DB { return db.read }

// QuickCheck returns what SQLite finds wrong with the file, or nil.
func (db *DB) QuickCheck(ctx context.Context) error {
	var text string
	if err := db.read.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&text); err != nil {
		return err
	}
	if text != "ok" {
		return fmt.Errorf("the store is damaged: %s", text)
	}
	return nil
}

// Close closes every connection; the WAL is folded into the file.
func (db *DB) Close() error {
	var errs []error
	if db.read != nil {
		errs = append(errs, db.read.Close())
	}
	if db.write != nil {
		errs = append(errs, db.write.Close())
	}
	if db.pool != nil {
		errs = append(errs, db.pool.Close())
	}
	return errors.Join(errs...)
}
