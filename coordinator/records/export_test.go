package records

import (
	"context"
	"database/sql"
)

// Hold keeps the right to write while fn runs.
func (s *Store) Hold(fn func()) error {
	return s.db.Write(context.Background(), func(*sql.Tx) error { fn(); return nil })
}
