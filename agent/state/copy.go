package state

import (
	"context"
	"errors"
	"fmt"
)

// CopyTo writes a copy of the store to a new file at path while it is in use: what an earlier agent could go
// back to, when a newer one has changed the store's form.
func (s *Store) CopyTo(ctx context.Context, path string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("copy the store to %s: %w", path, err)
		}
	}()
	if err := s.Flush(ctx); err != nil {
		return err
	}
	c, err := s.db().Read().Conn(ctx)
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
