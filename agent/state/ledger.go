package state

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"mesh/shared/order"
	"mesh/shared/report"
)

// Phase is how far the making of a thing came.
type Phase string

// The phases.
const (
	Intended Phase = "intended" // about to be made or changed; it may be there already
	Done     Phase = "done"     // there
)

// Row is one thing mesh put on the machine, or is about to.
type Row struct {
	// ID is the resource's: "file:/etc/notes.conf", "unit:mesh-notes-web.service", "dir:/srv/notes".
	ID, Module, Kind string
	Phase            Phase
	// Made: mesh made it, and may remove it. False for what was there already and adopted.
	Made bool
	// Keep: it outlives its declaration (data directories, users).
	Keep bool
	// Sum is what mesh last left there, Want what an intent is about to put there; SHA-256 in hex.
	Sum, Want string
	// Trigger is what a unit was last started with, WantTrigger what an intent is about to start it with.
	Trigger, WantTrigger string
	At                   time.Time
}

// mark lets a row whose bytes rotted allow no removal: SQLite notices no flipped bit inside a row
// (facts/host.md §5.4).
func (r Row) mark() string {
	sum := sha256.Sum256([]byte(r.ID + "\x00" + r.Module + "\x00" + r.Kind + "\x00" + strconv.FormatBool(r.Made) + "\x00" + strconv.FormatBool(r.Keep)))
	return hex.EncodeToString(sum[:8])
}

// Ledger is every row, by id. It costs no query.
func (s *Store) Ledger(ctx context.Context) ([]Row, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ledger == nil { // a reader has not read it yet
		if err := s.loadLedger(ctx); err != nil {
			return nil, err
		}
	}
	rows := slices.AppendSeq(make([]Row, 0, len(s.ledger)), maps.Values(s.ledger))
	order.Sort(rows, func(a, b Row) int { return strings.Compare(a.ID, b.ID) })
	return rows, nil
}

// loadLedger holds mu.
func (s *Store) loadLedger(ctx context.Context) error {
	rows, err := query(ctx, s.db(), func(rows *sql.Rows) (r Row, err error) {
		var at int64
		var mark string
		err = rows.Scan(&r.ID, &r.Module, &r.Kind, &r.Phase, &r.Made, &r.Keep, &r.Sum, &r.Want, &r.Trigger, &r.WantTrigger, &at, &mark)
		if mark != r.mark() {
			r.Made, r.Keep = false, true
		}
		r.At = time.UnixMilli(at).UTC()
		return r, err
	}, `SELECT id, module, kind, phase, made, keep, sum, want, trigger, want_trigger, at, mark FROM ledger`)
	if err != nil {
		return fmt.Errorf("read the ledger: %w", err)
	}
	s.ledger = make(map[string]Row, len(rows))
	for _, r := range rows {
		s.ledger[r.ID] = r
	}
	return nil
}

// mirror takes committed rows over. It holds mu.
func (s *Store) mirror(put []Row, gone []string, now time.Time) {
	for _, id := range gone {
		delete(s.ledger, id)
	}
	for _, r := range put {
		r.At = now
		s.ledger[r.ID] = r
	}
}

// Batch is what became of a pass over the machine, written together.
type Batch struct {
	Put    []Row
	Delete []string
	// Modules is how every module is; nil leaves what is known.
	Modules []report.Module
	Drift   []report.Drift
	// Past is the pass itself, when it is worth remembering.
	Past *Past
	// Good is what became known of modules' last good builds.
	Good []Good
}

// staged is what the mirror has and the file not yet. It is bounded by what it is about.
type staged struct {
	goods   map[string]Good
	put     map[string]Row
	gone    map[string]bool
	before  map[string]report.Module
	drift   []report.Drift
	past    []Past
	moments []Moment
}

// Done writes what became of intents, lazily: after a power cut they are found again by looking. Where
// nothing is new nothing is written.
func (s *Store) Done(ctx context.Context, b Batch) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.stage(b) {
		return nil
	}
	return s.flush(ctx)
}

// Stage is Done that is written together with what is put into the outbox next, or by Flush. A process that
// dies before finds it again by looking, as after a power cut.
func (s *Store) Stage(b Batch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stage(b)
}

// Flush writes what is staged and offered; where nothing is, nothing.
func (s *Store) Flush(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.flush(ctx)
}

// stage takes b into the mirror and reports whether anything of it is new. It holds mu.
func (s *Store) stage(b Batch) bool {
	next := s.modules
	if b.Modules != nil {
		next = s.nextModules(b.Modules)
	}
	if len(b.Put) == 0 && len(b.Delete) == 0 && len(b.Drift) == 0 && b.Past == nil && len(b.Good) == 0 && maps.Equal(s.modules, next) {
		return false
	}
	now := s.clock.Now().UTC().Truncate(time.Millisecond)
	if s.staged == nil {
		s.staged = &staged{put: map[string]Row{}, gone: map[string]bool{}, before: s.modules}
	}
	s.staged.add(b, now)
	s.modules = next
	for _, d := range b.Drift {
		s.drift.add(d)
	}
	s.mirror(b.Put, b.Delete, now)
	return true
}

func (w *staged) add(b Batch, now time.Time) {
	for _, id := range b.Delete {
		delete(w.put, id)
		w.gone[id] = true
	}
	for _, r := range b.Put {
		r.At = now
		w.put[r.ID] = r
	}
	w.addGoods(b.Good)
	w.drift = append(w.drift, b.Drift...)
	w.drift = w.drift[max(0, len(w.drift)-MaxDrift):]
	if b.Past != nil {
		p := *b.Past
		p.At = now
		w.past = append(w.past, p)
		w.past = w.past[max(0, len(w.past)-MaxHistory):]
	}
}

// Before names what makes last what outcomes are about, such as the names of files: it is called before one is
// written, so that what the ledger calls done survived a power cut if the ledger did.
func (s *Store) Before(lasting func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.before = lasting
}

// Part writes what waits for the next write, and forgets Before: whoever it calls is about to end.
func (s *Store) Part() error {
	var err error
	if s.tidy != nil {
		err = s.tidy()
	}
	s.Before(nil)
	return err
}

// lasting holds mu.
func (s *Store) lasting() error {
	if s.before == nil || s.staged == nil || len(s.staged.put) == 0 {
		return nil
	}
	return s.before()
}

// forget drops what is staged of rows that are written otherwise.
func (w *staged) forget(rows []Row) {
	if w == nil {
		return
	}
	for _, r := range rows {
		delete(w.put, r.ID)
		delete(w.gone, r.ID)
	}
}

// flush writes what is staged and what is offered. It holds mu.
func (s *Store) flush(ctx context.Context) error { return s.flushBy(ctx, s.db().WriteLazy) }

// flushBy is flush through Write or WriteLazy.
func (s *Store) flushBy(ctx context.Context, write func(context.Context, func(*sql.Tx) error) error) error {
	s.release()
	if s.staged == nil && s.offered == nil {
		return nil
	}
	if err := s.lasting(); err != nil {
		return fmt.Errorf("write the outcome: %w", err)
	}
	o := s.offered
	err := write(ctx, func(tx *sql.Tx) error {
		if err := s.putStaged(ctx, tx); err != nil || o == nil {
			return err
		}
		return insertOut(ctx, tx, o)
	})
	if err != nil {
		return Named(fmt.Errorf("write the outcome: %w", err), "to remember what was done")
	}
	if s.staged = nil; o != nil {
		s.offered = nil
		s.rows, s.bytes = s.rows+1, s.bytes+int64(len(o.Body))
		s.mirrorOut(*o, true)
	}
	return nil
}

// putStaged writes what is staged, and leaves forgetting it to who commits. It holds mu.
func (s *Store) putStaged(ctx context.Context, tx *sql.Tx) error {
	w := s.staged
	if w == nil {
		return nil
	}
	for id := range w.gone {
		if _, err := tx.ExecContext(ctx, `DELETE FROM ledger WHERE id = ?`, id); err != nil {
			return err
		}
	}
	if err := putRows(ctx, tx, slices.Collect(maps.Values(w.put))); err != nil {
		return err
	}
	if err := s.putStagedGoods(ctx, tx); err != nil {
		return err
	}
	if err := putModules(ctx, tx, w.before, s.modules); err != nil {
		return err
	}
	if err := putDrift(ctx, tx, w.drift); err != nil {
		return err
	}
	for _, p := range w.past {
		if err := putPast(ctx, tx, p); err != nil {
			return err
		}
	}
	return putMoments(ctx, tx, w.moments)
}

// Intend writes intents that come with no declaration: of a repair, or of what could not be done before. What
// the ledger does not yet call made by mesh is written synced: a power cut that took the row and left the thing
// would leave it for somebody else's, and nobody would ever remove it.
func (s *Store) Intend(ctx context.Context, rows []Row) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	fresh := slices.ContainsFunc(rows, func(r Row) bool { return r.Made && !s.ledger[r.ID].Made })
	if !s.stage(Batch{Put: rows}) {
		return nil
	}
	if fresh {
		return s.flushBy(ctx, s.db().Write)
	}
	return s.flush(ctx)
}

func dated(rows []Row, now time.Time) []Row {
	out := slices.Clone(rows)
	for i := range out {
		out[i].At = now
	}
	return out
}

func putRows(ctx context.Context, tx *sql.Tx, rows []Row) error {
	for _, r := range rows {
		if _, err := tx.ExecContext(ctx, `INSERT OR REPLACE INTO ledger
			(id, module, kind, phase, made, keep, sum, want, trigger, want_trigger, at, mark) VALUES (?,?,?,?,?,?,?,?,?,?,?,?)`, r.ID, r.Module, r.Kind, string(r.Phase), r.Made, r.Keep, r.Sum, r.Want, r.Trigger, r.WantTrigger,
			r.At.UnixMilli(), r.mark()); err != nil {
			return fmt.Errorf("%s: %w", r.ID, err)
		}
	}
	return nil
}
