package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"mesh/shared/refusal"
	"mesh/shared/sqlite"
)

var one = fstest.MapFS{"0001_first.sql": {Data: []byte("CREATE TABLE kv (k TEXT PRIMARY KEY, v TEXT) STRICT")}}

func open(t *testing.T, path string, o sqlite.Options) *sqlite.DB {
	t.Helper()
	db, err := sqlite.Open(t.Context(), path, o)
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

func put(k, v string) func(*sql.Tx) error {
	return func(tx *sql.Tx) error {
		_, err := tx.Exec("INSERT INTO kv VALUES (?, ?)", k, v)
		return err
	}
}

func TestWritesAreReadAndRolledBack(t *testing.T) {
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "a?b#c", "state.db") // characters a DSN could trip over
	db := open(t, path, sqlite.Options{ID: 7, Migrations: one})
	if err := db.Write(ctx, put("a", "1")); err != nil {
		t.Fatal(err)
	}
	if err := db.WriteLazy(ctx, put("b", "2")); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	err := db.Write(ctx, func(tx *sql.Tx) error { return errors.Join(put("c", "3")(tx), broken) })
	if !errors.Is(err, broken) {
		t.Errorf("got %v, want the callback's error", err)
	}
	var n int
	if err := db.Read().QueryRow("SELECT count(*) FROM kv").Scan(&n); err != nil || n != 2 {
		t.Errorf("rows = %d, %v, want 2", n, err)
	}
	if err := db.QuickCheck(ctx); err != nil {
		t.Error(err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v, want 0600", st.Mode(), err)
	}
}

// The settings go in the DSN; another driver's spelling would be ignored in silence.
func TestPragmasAreInForce(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "s.db"), sqlite.Options{ID: 7, Migrations: one})
	want := map[string]string{"journal_mode": "wal", "synchronous": "2", "foreign_keys": "1", "busy_timeout": "5000", "trusted_schema": "0", "application_id": "7", "user_version": "1"}
	err := db.Write(context.Background(), func(tx *sql.Tx) error {
		for k, v := range want {
			var got string
			if err := tx.QueryRow("PRAGMA " + k).Scan(&got); err != nil {
				return err
			}
			if got != v {
				t.Errorf("%s = %s, want %s", k, got, v)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestMigrationsRunOnceAndANewerStoreIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.db")
	two := fstest.MapFS{"0001_first.sql": one["0001_first.sql"], "0002_more.sql": {Data: []byte("ALTER TABLE kv ADD COLUMN at INTEGER")}}
	for _, m := range []fstest.MapFS{one, two, two} {
		db, err := sqlite.Open(t.Context(), path, sqlite.Options{ID: 7, Migrations: m})
		if err != nil {
			t.Fatal(err)
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
	}
	_, err := sqlite.Open(t.Context(), path, sqlite.Options{ID: 7, Migrations: one})
	if r := refusal.Of(err); r == nil || !strings.Contains(r.What, "newer") {
		t.Errorf("a newer store: %v", err)
	}
	_, err = sqlite.Open(t.Context(), path, sqlite.Options{ID: 8, Migrations: two})
	if r := refusal.Of(err); r == nil || !strings.Contains(r.What, "another program") {
		t.Errorf("another program's store: %v", err)
	}
	ro := open(t, path, sqlite.Options{ID: 7, Migrations: two, ReadOnly: true})
	if err := ro.Write(context.Background(), put("a", "b")); err == nil {
		t.Error("a read-only store was written")
	}
}
