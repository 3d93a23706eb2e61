package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

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

// A caller that gives up, or a callback that panics, must not cost the store its only writer.
func TestTheWriterSurvivesItsCallers(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "s.db"), sqlite.Options{ID: 7, Migrations: one})
	for i, spoil := range []func(){
		func() {
			ctx, cancel := context.WithCancel(t.Context())
			err := db.Write(ctx, func(tx *sql.Tx) error {
				cancel()
				return put("cancelled in the callback", "")(tx)
			})
			if err == nil {
				t.Error("a cancelled write was committed")
			}
		},
		func() {
			ctx, cancel := context.WithCancel(t.Context())
			err := db.WriteLazy(ctx, func(tx *sql.Tx) error {
				defer cancel()
				return put("cancelled before the commit", "")(tx)
			})
			if err == nil {
				t.Error("a cancelled write was committed")
			}
		},
		func() {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := db.WriteLazy(ctx, put("cancelled before", "")); !errors.Is(err, context.Canceled) {
				t.Errorf("a write after the end of its ctx: %v", err)
			}
		},
		func() {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			err := db.Write(ctx, func(tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n) INSERT INTO kv SELECT i, i FROM n")
				return err
			})
			if err == nil {
				t.Error("an endless statement ended")
			}
		},
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic was swallowed")
				}
			}()
			_ = db.Write(t.Context(), func(tx *sql.Tx) error {
				_ = put("before the panic", "")(tx)
				panic("broken")
			})
		},
	} {
		spoil()
		if err := db.Write(t.Context(), put(fmt.Sprint("after ", i), "")); err != nil {
			t.Fatalf("case %d: the next write: %v", i, err)
		}
	}
	var n int
	if err := db.Read().QueryRow("SELECT count(*) FROM kv").Scan(&n); err != nil || n != 5 {
		t.Errorf("%d rows, %v, want the 5 that were written after", n, err)
	}
}

// A commit that is refused leaves SQLite inside the transaction; the next write must not meet it.
func TestARefusedCommitIsRolledBack(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "s.db"), sqlite.Options{ID: 7, Migrations: fstest.MapFS{"0001_first.sql": {Data: []byte(
		"CREATE TABLE kv (k TEXT PRIMARY KEY, v TEXT) STRICT; CREATE TABLE child (k TEXT REFERENCES kv DEFERRABLE INITIALLY DEFERRED) STRICT")}}})
	err := db.Write(t.Context(), func(tx *sql.Tx) error {
		_, err := tx.Exec("INSERT INTO child VALUES ('an orphan')")
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "FOREIGN KEY") {
		t.Fatalf("an orphan was committed: %v", err)
	}
	if err := db.Write(t.Context(), put("after", "")); err != nil {
		t.Errorf("the next write: %v", err)
	}
	var n int
	if err := db.Read().QueryRow("SELECT count(*) FROM child").Scan(&n); err != nil || n != 0 {
		t.Errorf("%d orphans, %v", n, err)
	}
}

func TestAFullDiskIsSaidAndSurvived(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "s.db"), sqlite.Options{ID: 7, Migrations: one})
	pages := func(n int) {
		t.Helper()
		if err := db.Write(t.Context(), func(tx *sql.Tx) error {
			_, err := tx.Exec(fmt.Sprintf("PRAGMA max_page_count = %d", n))
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	pages(8)
	if err := db.Write(t.Context(), put("large", strings.Repeat("x", 1<<20))); err == nil || !strings.Contains(err.Error(), "full") {
		t.Fatalf("a full disk: %v", err)
	}
	pages(1 << 20)
	if err := db.Write(t.Context(), put("large", strings.Repeat("x", 1<<20))); err != nil {
		t.Errorf("with room again: %v", err)
	}
}

func TestAForeignFileIsLeftAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "other.db")
	other, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Exec("CREATE TABLE theirs (x)"); err != nil {
		t.Fatal(err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = sqlite.Open(t.Context(), path, sqlite.Options{ID: 7, Migrations: one})
	if r := refusal.Of(err); r == nil || !strings.Contains(r.What, "another program") {
		t.Errorf("a file of somebody else: %v", err)
	}
	if err := os.WriteFile(path, []byte(strings.Repeat("this is text. ", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err = sqlite.Open(t.Context(), path, sqlite.Options{ID: 7, Migrations: one}); err == nil || !strings.Contains(err.Error(), "other.db") {
		t.Errorf("a file that is no store: %v", err)
	}
}

// WriteLazy and Write take turns on one connection; each must find the setting it promises.
func TestEachWriteHasItsOwnSync(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "s.db"), sqlite.Options{ID: 7, Migrations: one})
	for i, write := range []func(context.Context, func(*sql.Tx) error) error{db.WriteLazy, db.Write, db.WriteLazy, db.WriteLazy, db.Write} {
		want := map[bool]string{true: "2", false: "1"}[i == 1 || i == 4]
		var got string
		if err := write(t.Context(), func(tx *sql.Tx) error { return tx.QueryRow("PRAGMA synchronous").Scan(&got) }); err != nil || got != want {
			t.Errorf("write %d: synchronous = %s, %v, want %s", i, got, err, want)
		}
	}
}
