package state

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// Meta reads a small value kept under a key; ok is false when there is none.
func (s *Store) Meta(ctx context.Context, key string) (value []byte, ok bool, err error) {
	err = s.db().Read().QueryRowContext(ctx, `SELECT value FROM meta WHERE key = ?`, key).Scan(&value)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("read %s: %w", key, err)
	}
	return value, true, nil
}

// SetMeta keeps a small value under a key, lazily; nil forgets it. An equal value is not written.
func (s *Store) SetMeta(ctx context.Context, key string, value []byte) error {
	return s.putMeta(ctx, s.db().WriteLazy, key, value)
}

// SetMetaSynced is SetMeta that survives a power cut. It is for what must hold before an act that
// cannot be looked up afterwards; nothing on the way of a declaration uses it.
func (s *Store) SetMetaSynced(ctx context.Context, key string, value []byte) error {
	return s.putMeta(ctx, s.db().Write, key, value)
}

func (s *Store) putMeta(ctx context.Context, write func(context.Context, func(*sql.Tx) error) error, key string, value []byte) error {
	err := write(ctx, func(tx *sql.Tx) error {
		if value == nil {
			_, err := tx.ExecContext(ctx, `DELETE FROM meta WHERE key = ?`, key)
			return err
		}
		_, err := tx.ExecContext(ctx, `INSERT INTO meta (key, value) VALUES (?, ?)
			ON CONFLICT (key) DO UPDATE SET value = excluded.value WHERE value <> excluded.value`, key, value)
		return err
	})
	if err != nil {
		return fmt.Errorf("keep %s: %w", key, err)
	}
	return nil
}
