package state

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"time"

	"mesh/shared/order"
	"mesh/shared/report"
	"mesh/shared/subject"
)

// The bounds of what is remembered.
const (
	MaxProblems = 100
	MaxHistory  = 200
	MaxDrift    = 200
)

// nextModules is modules as they will be known: Since is kept while State stays the same. It holds mu.
func (s *Store) nextModules(modules []report.Module) map[string]report.Module {
	next := make(map[string]report.Module, len(modules))
	now := s.clock.Now().UnixMilli()
	for _, m := range modules {
		m.Since = now
		if old, ok := s.modules[string(m.Name)]; ok && old.State == m.State {
			m.Since = old.Since
		}
		next[string(m.Name)] = m
	}
	return next
}

// putModules writes what differs from before.
func putModules(ctx context.Context, tx *sql.Tx, before, next map[string]report.Module) error {
	for name := range before {
		if _, ok := next[name]; !ok {
			if _, err := tx.ExecContext(ctx, `DELETE FROM module WHERE name = ?`, name); err != nil {
				return err
			}
		}
	}
	for name, m := range next {
		if before[name] == m {
			continue
		}
		if _, err := tx.ExecContext(ctx, `INSERT INTO module (name, build, state, detail, since, restarts) VALUES (?,?,?,?,?,?)
			ON CONFLICT (name) DO UPDATE SET build = excluded.build, state = excluded.state, detail = excluded.detail,
			since = excluded.since, restarts = excluded.restarts`,
			name, m.Build, string(m.State), m.Detail, m.Since, m.Restarts); err != nil {
			return err
		}
	}
	return nil
}

// Modules is how every module is, by name. It costs no query.
func (s *Store) Modules() []report.Module {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := slices.AppendSeq(make([]report.Module, 0, len(s.modules)), maps.Values(s.modules))
	order.Sort(out, func(a, b report.Module) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return out
}

// loadModules holds mu.
func (s *Store) loadModules(ctx context.Context) error {
	all, err := query(ctx, s.db(), func(rows *sql.Rows) (m report.Module, err error) {
		err = rows.Scan(&m.Name, &m.Build, &m.State, &m.Detail, &m.Since, &m.Restarts)
		return m, err
	}, `SELECT name, build, state, detail, since, restarts FROM module`)
	s.modules = make(map[string]report.Module, len(all))
	for _, m := range all {
		s.modules[string(m.Name)] = m
	}
	return err
}

// recent is how many problems and changes by hand are kept in memory too.
const recent = 16

// lately is the newest of a list in the file, newest first; all is true when that is the whole list.
type lately[T any] struct {
	list []T
	all  bool
}

func (l *lately[T]) add(v T) {
	if l.list = slices.Insert(l.list, 0, v); len(l.list) > recent {
		l.list, l.all = l.list[:recent], false
	}
}

// first are the newest n; ok is false when memory does not go back so far.
func (l *lately[T]) first(n int) (list []T, ok bool) {
	if n <= len(l.list) || l.all {
		return slices.Clone(l.list[:min(n, len(l.list))]), true
	}
	return nil, false
}

// loadPast holds mu.
func (s *Store) loadPast(ctx context.Context) (err error) {
	if s.problems.list, err = s.readProblems(ctx, recent); err != nil {
		return err
	}
	s.problems.all = len(s.problems.list) < recent
	s.drift.list, err = s.readDrift(ctx, recent)
	s.drift.all = len(s.drift.list) < recent
	return err
}

// AddProblem remembers one line for a person, lazily. The same line as the newest one is not repeated.
func (s *Store) AddProblem(ctx context.Context, text string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last, _ := s.problems.first(1); len(last) == 1 && last[0].Text == text {
		return nil
	}
	p := report.Problem{At: s.clock.Now().UnixMilli(), Text: text}
	err := s.db().WriteLazy(ctx, func(tx *sql.Tx) error {
		return ring(ctx, tx, "problem", MaxProblems, `INSERT INTO problem (at, text) VALUES (?, ?)`, p.At, p.Text)
	})
	if err != nil {
		return fmt.Errorf("remember a problem: %w", err)
	}
	s.problems.add(p)
	return nil
}

// Problems are the last n, newest first. A few cost no query.
func (s *Store) Problems(ctx context.Context, n int) ([]report.Problem, error) {
	s.mu.Lock()
	list, ok := s.problems.first(n)
	s.mu.Unlock()
	if ok {
		return list, nil
	}
	return s.readProblems(ctx, n)
}

func (s *Store) readProblems(ctx context.Context, n int) ([]report.Problem, error) {
	return query(ctx, s.db(), func(rows *sql.Rows) (p report.Problem, err error) {
		err = rows.Scan(&p.At, &p.Text)
		return p, err
	}, `SELECT at, text FROM problem ORDER BY n DESC LIMIT ?`, n)
}

// Past is one apply that happened.
type Past struct {
	Seq     uint64
	Outcome report.Outcome
	Why     string
	Steps   int
	Took    time.Duration
	At      time.Time
}

func putPast(ctx context.Context, tx *sql.Tx, p Past) error {
	return ring(ctx, tx, "history", MaxHistory, `INSERT INTO history (seq, outcome, why, steps, took, at) VALUES (?,?,?,?,?,?)`,
		int64(p.Seq), string(p.Outcome), p.Why, p.Steps, p.Took.Milliseconds(), p.At.UnixMilli())
}

// History is the last n applies, newest first.
func (s *Store) History(ctx context.Context, n int) ([]Past, error) {
	if err := s.Flush(ctx); err != nil {
		return nil, err
	}
	return query(ctx, s.db(), func(rows *sql.Rows) (p Past, err error) {
		var took, at int64
		err = rows.Scan(&p.Seq, &p.Outcome, &p.Why, &p.Steps, &took, &at)
		p.Took, p.At = time.Duration(took)*time.Millisecond, time.UnixMilli(at).UTC()
		return p, err
	}, `SELECT seq, outcome, why, steps, took, at FROM history ORDER BY n DESC LIMIT ?`, n)
}

func putDrift(ctx context.Context, tx *sql.Tx, found []report.Drift) error {
	for _, d := range found {
		if err := ring(ctx, tx, "drift", MaxDrift, `INSERT INTO drift (module, thing, what, repaired, at, who) VALUES (?,?,?,?,?,?)`,
			string(d.Module), d.Thing, d.What, d.Repaired, d.At, d.Who); err != nil {
			return err
		}
	}
	return nil
}

// Drift is the last n things found changed by hand, newest first. A few cost no query.
func (s *Store) Drift(ctx context.Context, n int) ([]report.Drift, error) {
	s.mu.Lock()
	list, ok := s.drift.first(n)
	s.mu.Unlock()
	if ok {
		return list, nil
	}
	return s.readDrift(ctx, n)
}

func (s *Store) readDrift(ctx context.Context, n int) ([]report.Drift, error) {
	return query(ctx, s.db(), func(rows *sql.Rows) (d report.Drift, err error) {
		var module string
		err = rows.Scan(&module, &d.Thing, &d.What, &d.Repaired, &d.At, &d.Who)
		d.Module = subject.Module(module)
		return d, err
	}, `SELECT module, thing, what, repaired, at, who FROM drift ORDER BY n DESC LIMIT ?`, n)
}

// ring inserts and now and then forgets the oldest over the bound. table is a constant of this package.
func ring(ctx context.Context, tx *sql.Tx, table string, bound int, insert string, args ...any) error {
	res, err := tx.ExecContext(ctx, insert, args...)
	if err != nil {
		return err
	}
	n, err := res.LastInsertId()
	if err != nil || n%slack != 0 {
		return err
	}
	_, err = tx.ExecContext(ctx, `DELETE FROM `+table+` WHERE n <= ?`, n-int64(bound))
	return err
}
