package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
)

func openCached(t testing.TB) *DB {
	t.Helper()
	db, err := Open(t.Context(), filepath.Join(t.TempDir(), "x.db"), Options{ID: 7, Migrations: fstest.MapFS{
		"0001_first.sql": {Data: []byte("CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT NOT NULL) STRICT;")}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

// insideWriter shows the writing connection's kept statements.
func insideWriter(t *testing.T, db *DB) map[string]*kept {
	t.Helper()
	var all map[string]*kept
	err := db.write.Raw(func(c any) error {
		all = c.(*conn).kept
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func put(ctx context.Context, tx *sql.Tx, a int, b any) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO t (a, b) VALUES (?, ?)`, a, b)
	return err
}

func TestStatementsAreKept(t *testing.T) {
	ctx, db := t.Context(), openCached(t)
	for i := range 3 {
		if err := db.Write(ctx, func(tx *sql.Tx) error { return put(ctx, tx, i, "x") }); err != nil {
			t.Fatal(err)
		}
	}
	// A refused row leaves the statement usable.
	if err := db.Write(ctx, func(tx *sql.Tx) error { return put(ctx, tx, 1, "x") }); err == nil {
		t.Error("a second row of one key was taken")
	}
	if err := db.WriteLazy(ctx, func(tx *sql.Tx) error { return put(ctx, tx, 9, nil) }); err == nil {
		t.Error("NULL was taken where it may not be")
	}
	if err := db.Write(ctx, func(tx *sql.Tx) error { return put(ctx, tx, 4, "y") }); err != nil {
		t.Error(err)
	}
	all := insideWriter(t, db)
	if all[`INSERT INTO t (a, b) VALUES (?, ?)`] == nil {
		t.Errorf("the INSERT is not kept: %v", all)
	}
	for text := range all {
		if !strings.HasPrefix(text, "INSERT") && !strings.HasPrefix(text, "SELECT") {
			t.Errorf("%q is kept: a PRAGMA acts while it is prepared, and a script is no single statement", text)
		}
	}
}

func TestAStatementInUseIsNotSharedWithItself(t *testing.T) {
	ctx, db := t.Context(), openCached(t)
	const ask = `SELECT a FROM t ORDER BY a`
	err := db.Write(ctx, func(tx *sql.Tx) error {
		for i := range 3 {
			if err := put(ctx, tx, i, "x"); err != nil {
				return err
			}
		}
		outer, err := tx.QueryContext(ctx, ask)
		if err != nil {
			return err
		}
		n := 0
		for outer.Next() {
			inner, err := tx.QueryContext(ctx, ask)
			if err != nil {
				return err
			}
			for inner.Next() {
				n++
			}
			if err := errors.Join(inner.Err(), inner.Close()); err != nil {
				return err
			}
		}
		if n != 9 {
			t.Errorf("three rows within three rows came to %d", n)
		}
		return errors.Join(outer.Err(), outer.Close())
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestAPreparedStatementIsTheKeptOne(t *testing.T) {
	ctx, db := t.Context(), openCached(t)
	for round := range 2 {
		err := db.Write(ctx, func(tx *sql.Tx) error {
			s, err := tx.PrepareContext(ctx, `INSERT INTO t (a, b) VALUES (?, ?)`)
			if err != nil {
				return err
			}
			for i := range 3 {
				if _, err := s.ExecContext(ctx, 10*round+i, "x"); err != nil {
					return err
				}
			}
			return s.Close()
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	var n int
	if err := db.Read().QueryRowContext(ctx, `SELECT count(*) FROM t`).Scan(&n); err != nil || n != 6 {
		t.Errorf("%d rows, %v", n, err)
	}
	if k := insideWriter(t, db)[`INSERT INTO t (a, b) VALUES (?, ?)`]; k == nil || k.busy {
		t.Errorf("the statement is not kept: %v", k)
	}
}

func TestKeptStatementsFollowTheSchema(t *testing.T) {
	ctx, db := t.Context(), openCached(t)
	count := func() (n int) {
		err := db.Write(ctx, func(tx *sql.Tx) error { return tx.QueryRowContext(ctx, `SELECT count(*) FROM t`).Scan(&n) })
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if err := db.Write(ctx, func(tx *sql.Tx) error { return put(ctx, tx, 1, "x") }); err != nil || count() != 1 {
		t.Fatalf("%v", err)
	}
	err := db.Write(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "ALTER TABLE t RENAME TO old; CREATE TABLE t (a INTEGER PRIMARY KEY, c TEXT, b TEXT NOT NULL DEFAULT '') STRICT;")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := count(); n != 0 {
		t.Errorf("the new table has %d rows: a statement reads the old one", n)
	}
	if err := db.Write(ctx, func(tx *sql.Tx) error { return put(ctx, tx, 1, "x") }); err != nil {
		t.Error(err)
	}
}

func TestKeptStatementsAreBounded(t *testing.T) {
	ctx, db := t.Context(), openCached(t)
	for i := range 3 * cacheSize {
		err := db.WriteLazy(ctx, func(tx *sql.Tx) error {
			var n int
			return tx.QueryRowContext(ctx, fmt.Sprintf("SELECT %d", i)).Scan(&n)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := len(insideWriter(t, db)); n > cacheSize {
		t.Errorf("%d statements are kept, the bound is %d", n, cacheSize)
	}
}

func BenchmarkWriteLazy(b *testing.B) {
	ctx, db := b.Context(), openCached(b)
	for i := 0; b.Loop(); i++ {
		err := db.WriteLazy(ctx, func(tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO t (a, b) VALUES (?, ?) ON CONFLICT (a) DO UPDATE SET b = excluded.b`, i%8, fmt.Sprint(i))
			return err
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRead(b *testing.B) {
	ctx, db := b.Context(), openCached(b)
	for b.Loop() {
		var n int
		if err := db.Read().QueryRowContext(ctx, `SELECT count(*) FROM t WHERE a = ?`, 3).Scan(&n); err != nil {
			b.Fatal(err)
		}
	}
}
