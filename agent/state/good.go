package state

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// goodPrefix begins the keys, among the small values, of what is known of modules' last good builds; bodyPrefix
// those of what they were declared as.
const goodPrefix, bodyPrefix = "good:", "good-body:"

// Good is a change to what is known of a module's last good build.
type Good struct {
	Module string
	// Known says which it is and what failed since; nil forgets the module.
	Known []byte
	// Body is what it was declared as; nil leaves it as it is.
	Body []byte
}

// Goods is Known of every module that has it.
func (s *Store) Goods(ctx context.Context) (map[string][]byte, error) {
	type row struct {
		key   string
		value []byte
	}
	rows, err := query(ctx, s.db(), func(rows *sql.Rows) (r row, err error) {
		err = rows.Scan(&r.key, &r.value)
		return r, err
	}, `SELECT key, value FROM meta WHERE key >= ? AND key < ?`, goodPrefix, strings.TrimSuffix(goodPrefix, ":")+";")
	if err != nil {
		return nil, fmt.Errorf("read the last good builds: %w", err)
	}
	out := make(map[string][]byte, len(rows))
	for _, r := range rows {
		out[strings.TrimPrefix(r.key, goodPrefix)] = r.value
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.staged != nil {
		for _, g := range s.staged.goods {
			if out[g.Module] = g.Known; g.Known == nil {
				delete(out, g.Module)
			}
		}
	}
	return out, nil
}

// GoodBody is Body of a module's last good build; ok is false when there is none.
func (s *Store) GoodBody(ctx context.Context, module string) (body []byte, ok bool, err error) {
	s.mu.Lock()
	if s.staged != nil {
		if g, staged := s.staged.goods[module]; staged && (g.Body != nil || g.Known == nil) {
			s.mu.Unlock()
			return g.Body, g.Body != nil, nil
		}
	}
	s.mu.Unlock()
	return s.Meta(ctx, bodyPrefix+module)
}

// RollBack keeps, synced, that a module goes back to its last good build, with the intents of that: an apply of
// its own, which a power cut in the middle of does not forget.
func (s *Store) RollBack(ctx context.Context, goods []Good, intents []Row) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now().UTC().Truncate(time.Millisecond)
	err := s.lasting()
	if err != nil {
		return fmt.Errorf("begin to go back to the last good build: %w", err)
	}
	err = s.db().Write(ctx, func(tx *sql.Tx) error {
		if err := s.putStaged(ctx, tx); err != nil { // what was done of what failed
			return err
		}
		for _, g := range goods {
			if err := putGood(ctx, tx, g); err != nil {
				return err
			}
		}
		return putRows(ctx, tx, dated(intents, now))
	})
	if err != nil {
		return fmt.Errorf("begin to go back to the last good build: %w", err)
	}
	s.staged = nil
	s.mirror(intents, nil, now)
	return nil
}

// addGoods merges what is to be written of modules.
func (w *staged) addGoods(all []Good) {
	for _, g := range all {
		if w.goods == nil {
			w.goods = map[string]Good{}
		}
		if old, ok := w.goods[g.Module]; ok && g.Body == nil && g.Known != nil {
			g.Body = old.Body
		}
		w.goods[g.Module] = g
	}
}

// putStagedGoods writes what is staged of good builds, and leaves forgetting it to who commits. It holds mu.
func (s *Store) putStagedGoods(ctx context.Context, tx *sql.Tx) error {
	if s.staged == nil {
		return nil
	}
	for _, m := range slices.Sorted(maps.Keys(s.staged.goods)) {
		if err := putGood(ctx, tx, s.staged.goods[m]); err != nil {
			return err
		}
	}
	return nil
}

func (w *staged) forgetGoods() {
	if w != nil {
		w.goods = nil
	}
}

func putGood(ctx context.Context, tx *sql.Tx, g Good) error {
	if g.Known == nil {
		_, err := tx.ExecContext(ctx, `DELETE FROM meta WHERE key IN (?, ?)`, goodPrefix+g.Module, bodyPrefix+g.Module)
		return err
	}
	const put = `INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)`
	if _, err := tx.ExecContext(ctx, put, goodPrefix+g.Module, g.Known); err != nil {
		return err
	}
	if g.Body == nil {
		return nil
	}
	_, err := tx.ExecContext(ctx, put, bodyPrefix+g.Module, g.Body)
	return err
}
