package records

import (
	"context"
	"database/sql"
	"fmt"
)

// Hold keeps the right to write while fn runs.
func (s *Store) Hold(fn func()) error {
	return s.db.Write(context.Background(), func(*sql.Tx) error { fn(); return nil })
}

// Limit bounds the file to what it has and so many pages more: a disk that is full.
func (s *Store) Limit(ctx context.Context, more int) error {
	return s.db.Write(ctx, func(t *sql.Tx) error {
		var pages int
		if err := t.QueryRowContext(ctx, "PRAGMA page_count").Scan(&pages); err != nil {
			return err
		}
		_, err := t.ExecContext(ctx, fmt.Sprintf("PRAGMA max_page_count = %d", pages+more))
		return err
	})
}
