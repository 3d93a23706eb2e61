package state

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"

	"mesh/shared/refusal"
	"mesh/shared/sqlite"
)

// tables are what is carried over from a store that is left, the most needed first.
var tables = []string{"declaration", "ledger", "meta", "module", "outbox", "problem", "history", "drift", "moment"}

// Keep writes the store anew when its file was deleted or replaced under the running agent: what is open
// would be gone with the process. It costs one stat where all is well.
func (s *Store) Keep(ctx context.Context) error {
	if now, err := inodeOf(s.path); err == nil && now == s.inode {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	aside := s.path + ".replaced-" + s.clock.Now().UTC().Format("20060102T150405.000Z")
	for _, suffix := range []string{"", "-wal", "-shm"} { // a log of the old file would be taken for the new one's
		if err := os.Rename(s.path+suffix, aside+suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("write the store anew: %w", err)
		}
	}
	fresh, err := openChecked(ctx, s.path)
	if err != nil {
		return fmt.Errorf("write the store anew: %w", err)
	}
	var found string
	err = s.db().Write(ctx, func(tx *sql.Tx) error { // for the one connection that is sure to be open
		found, err = salvage(ctx, tx, fresh)
		return err
	})
	inode, errInode := inodeOf(s.path)
	if err := errors.Join(err, errInode, writeMarker(s.path)); err != nil {
		return fmt.Errorf("write the store anew: %w", errors.Join(err, fresh.Close()))
	}
	s.left = append(s.left, s.at.Swap(fresh)) // somebody may be reading
	s.inode = inode
	s.log.Warn("the store's file was gone or another under the running agent; it was written anew", "path", s.path, "held", found)
	return nil
}

func inodeOf(path string) (uint64, error) {
	st, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, errors.New("the system tells no inode of " + path)
	}
	return sys.Ino, nil
}

// salvageFile carries over what can be read of a store that was set aside, and says what.
func salvageFile(ctx context.Context, path string, to *sqlite.DB) string {
	from, err := sqlite.Open(ctx, path, sqlite.Options{ID: ID, Migrations: migrations(), ReadOnly: true})
	if err != nil {
		return "nothing"
	}
	defer func() { _ = from.Close() }() // only read
	found, err := salvage(ctx, from.Read(), to)
	if err != nil {
		return "nothing"
	}
	return found
}

type queryer interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// salvage copies what rows it can read. What the schema does not take is left out; what a row's own
// checksum does not fit is dealt with where rows are read.
func salvage(ctx context.Context, from queryer, to *sqlite.DB) (found string, err error) {
	var all []string
	err = to.Write(ctx, func(tx *sql.Tx) error {
		for _, table := range tables {
			n, err := copyTable(ctx, from, tx, table)
			if err != nil {
				return err
			}
			if n > 0 {
				all = append(all, fmt.Sprintf("%d of %s", n, table))
			}
		}
		return nil
	})
	if len(all) == 0 {
		return "nothing", err
	}
	return strings.Join(all, ", "), err
}

// copyTable copies up to the first row that cannot be read; an error is the new store's.
func copyTable(ctx context.Context, from queryer, tx *sql.Tx, table string) (n int, err error) {
	rows, err := from.QueryContext(ctx, `SELECT * FROM `+table)
	if err != nil {
		return 0, nil
	}
	defer func() { _ = rows.Close() }() // only read
	columns, err := rows.Columns()
	if err != nil {
		return 0, nil
	}
	insert := `INSERT OR IGNORE INTO ` + table + ` (` + strings.Join(columns, ", ") + `) VALUES (` + strings.Join(slices.Repeat([]string{"?"}, len(columns)), ", ") + `)`
	values, into := make([]any, len(columns)), make([]any, len(columns))
	for i := range values {
		into[i] = &values[i]
	}
	for rows.Next() && rows.Scan(into...) == nil {
		switch _, err := tx.ExecContext(ctx, insert, values...); {
		case err == nil:
			n++
		case code(err) != codeConstraint && code(err) != codeMismatch:
			return n, err
		}
	}
	return n, nil
}

// dropRotten forgets the declarations when the newest is not what it was accepted as: SQLite notices no
// flipped bit inside a row, and nothing but the newest may be applied. The bus gives it again.
func (s *Store) dropRotten(ctx context.Context, notes []string) ([]string, error) {
	var seq uint64
	var digest string
	var signed []byte
	var size int64
	err := s.db().Read().QueryRowContext(ctx, `SELECT seq, digest, padded, size FROM declaration ORDER BY seq DESC LIMIT 1`).Scan(&seq, &digest, &signed, &size)
	if errors.Is(err, sql.ErrNoRows) {
		return notes, nil
	}
	sum := sha256.Sum256(unpadded(signed, size))
	if err != nil || hex.EncodeToString(sum[:]) == digest || len(digest) != 2*len(sum) {
		return notes, err
	}
	err = s.db().Write(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `DELETE FROM declaration`)
		return err
	})
	return append(notes, fmt.Sprintf("declaration %d in the store is not what was accepted: the disk may be failing. It is forgotten, the machine is left as it is, and the bus is asked again", seq)), err
}

// code is SQLite's, without its details; 0 for another error.
func code(err error) int {
	var coded interface{ Code() int }
	if errors.As(err, &coded) {
		return coded.Code() & 0xff
	}
	return 0
}

// noRoomForIndex says of an error that the file beside the log could not grow: SQLite calls that a failing disk.
func noRoomForIndex(err error) bool {
	var coded interface{ Code() int }
	return errors.As(err, &coded) && coded.Code() == codeIndexSize
}

// Named gives the errors of a store that a person has to know by name their words (APP-14); what is what
// could not be done.
func Named(err error, what string) error {
	const again = "it is tried again by itself"
	switch c := code(err); {
	case err == nil || refusal.Of(err) != nil:
		return err
	case noRoomForIndex(err):
		return refusal.Because(err, what, "disk full, or a disk that fails: "+err.Error(), "free some space, or look at the disk (dmesg); "+again)
	case c == codeFull || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT):
		return refusal.Because(err, what, "disk full: "+err.Error(), "free some space; "+again)
	case c == codeReadOnly || errors.Is(err, syscall.EROFS):
		return refusal.Because(err, what, "read-only file system: "+err.Error(), "look at the disk (dmesg) and mount it writable; "+again)
	case c == codeIO:
		return refusal.Because(err, what, "the disk fails: "+err.Error(), "look at the disk (dmesg); "+again)
	}
	return err
}
