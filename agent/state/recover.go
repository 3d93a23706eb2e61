package state

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"mesh/shared/refusal"
	"mesh/shared/sqlite"
)

// SQLite's words (sqlite3.h); codeCorrupt and codeNotADB are for a file that is no database any more.
const (
	codeReadOnly   = 8
	codeIO         = 10
	codeCorrupt    = 11
	codeFull       = 13
	codeConstraint = 19
	codeMismatch   = 20
	codeNotADB     = 26
	codeIndexSize  = codeIO | 19<<8
)

// recoverOpen opens the store whatever state its files are in, and says what it found.
func recoverOpen(ctx context.Context, c Config) (db *sqlite.DB, notes []string, err error) {
	lost, err := wasLost(c.Path)
	if err != nil {
		return nil, nil, fmt.Errorf("look at the store: %w", err)
	}
	db, err = openChecked(ctx, c.Path)
	if err != nil && isDamage(err) {
		aside, errAside := setAside(c)
		if errAside != nil {
			return nil, nil, fmt.Errorf("set the damaged store aside: %w", errors.Join(err, errAside))
		}
		damage := err
		lost = false
		if db, err = openChecked(ctx, c.Path); err == nil {
			notes = append(notes, fmt.Sprintf("the store was damaged (%v); it was set aside as %s and a fresh one begun with what could be read of it: %s. "+
				"What else mesh put on this machine is recognized by its content; what is not declared any more may stay behind", damage, aside, salvageFile(ctx, aside, db)))
		}
	}
	if err != nil {
		return nil, nil, err
	}
	if lost {
		notes = append(notes, "the store was lost: its marker is here and the store was empty or gone. "+
			"What mesh put on this machine is recognized by its content; what is not declared any more may stay behind")
	}
	if err := writeMarker(c.Path); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("write the store's marker: %w", err), db.Close())
	}
	return db, notes, nil
}

func openChecked(ctx context.Context, path string) (*sqlite.DB, error) {
	db, err := sqlite.Open(ctx, path, sqlite.Options{ID: ID, Migrations: migrations(), CacheKiB: cacheKiB})
	if err != nil {
		return nil, err
	}
	if err := db.QuickCheck(ctx); err != nil {
		return nil, errors.Join(errDamaged, err, db.Close())
	}
	return db, nil
}

var errDamaged = errors.New("the check at start failed")

// isDamage tells a broken file from one that cannot be opened for another reason, such as a full disk.
func isDamage(err error) bool {
	if refusal.Of(err) != nil {
		return false
	}
	return code(err) == codeCorrupt || code(err) == codeNotADB || errors.Is(err, errDamaged)
}

// setAside moves the broken set, which belongs together: the WAL may hold commits the file lacks.
func setAside(c Config) (string, error) {
	aside := c.Path + ".damaged-" + c.Clock.Now().UTC().Format("20060102T150405.000Z")
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if err := os.Rename(c.Path+suffix, aside+suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	return aside, nil
}

// MarkerPath is the file beside the store at path that says there was one.
func MarkerPath(path string) string { return path + ".marker" }

// wasLost reports that there was a store here and now is none, or an empty file: SQLite would take that
// for a new database and find nothing wrong with it.
func wasLost(path string) (bool, error) {
	if _, err := os.Stat(MarkerPath(path)); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	st, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	// A file of length 0 whose WAL holds everything is a store that was never folded.
	wal, err := os.Stat(path + "-wal")
	return st.Size() == 0 && (err != nil || wal.Size() == 0), nil
}

func writeMarker(path string) error {
	marker := MarkerPath(path)
	if _, err := os.Stat(marker); err == nil {
		return nil
	}
	f, err := os.OpenFile(marker, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString("The agent's state is kept beside this file. If the store is gone and this is here, it was lost.\n")
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
