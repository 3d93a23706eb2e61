package records

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/subject"
)

// Received is a report as it came in.
type Received struct {
	Report *report.Report
	Heard  time.Time
}

// Heard is what a report was to the records.
type Heard struct {
	Node subject.Node
	// Known: the node is in the mesh. A report of another is not kept.
	Known bool
	// News: it says something that the report kept before did not.
	News bool
	// Past: it is about a declaration that the mesh has moved past, so the account of the apply stays as
	// it was (NOD-8).
	Past bool
	// Runs are the modules that run now with a build they did not run with before (event node-runs).
	Runs []Runs
	// Refused is the declaration the node refuses since this report (event node-refused).
	Refused *NodeRefused
}

// Runs is a module that runs.
type Runs struct {
	Module subject.Module
	Build  string
}

// NodeRefused is a declaration that a node refused.
type NodeRefused struct {
	Seq uint64
	Why string
}

// Account is how applying went, by the last report that was not about the past.
type Account struct {
	Seq     uint64
	Outcome report.Outcome
	Refused *refusal.Refusal
	TookMS  int64
	Heard   time.Time
}

// Reported is what is kept of a node's word.
type Reported struct {
	Node subject.Node
	// Report is the last one; its Number is 0 while nothing was heard but the profile at the enrolment.
	Report report.Report
	Heard  time.Time
	Account
}

// kept is what is remembered of a node's report to tell news without reading.
type kept struct {
	number uint64
	sum    [sha256.Size]byte
}

// sumOf is equal for reports that say the same: number and time are left out.
func sumOf(r *report.Report) [sha256.Size]byte {
	c := *r
	c.Number, c.At = 0, 0
	return sha256.Sum256([]byte(encode(&c)))
}

// RecordReports keeps the reports of many nodes in one transaction and says of each, in order, what it
// was. Reports of a node are ordered by their number: an older one, or the same again, costs nothing and
// is no news. One that differs in nothing but its number is written without a sync.
func (s *Store) RecordReports(ctx context.Context, batch []Received) ([]Heard, error) {
	out := make([]Heard, len(batch))
	sums := make([][sha256.Size]byte, len(batch))
	write := s.db.WriteLazy
	pending := 0
	for i, r := range batch {
		out[i].Node = r.Report.Node
		k, known, err := s.keptOf(ctx, r.Report.Node)
		if err != nil {
			return nil, fmt.Errorf("record reports: %w", err)
		}
		if out[i].Known = known; !known || r.Report.Number <= k.number {
			continue
		}
		pending++
		if sums[i] = sumOf(r.Report); sums[i] != k.sum {
			write = s.db.Write
		}
	}
	if pending == 0 {
		return out, nil
	}
	rec := recorder{ctx: ctx, now: map[subject.Node]kept{}}
	err := write(ctx, func(t *sql.Tx) error {
		rec.Tx = t
		for i, r := range batch {
			if !out[i].Known {
				continue
			}
			if err := rec.record(&out[i], r, sums[i]); err != nil {
				return fmt.Errorf("%s: %w", r.Report.Node, err)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("record reports: %w", err)
	}
	s.mu.Lock()
	for n, k := range rec.now {
		s.kept[n] = k
	}
	s.mu.Unlock()
	s.feed.add(rec.touched)
	return out, nil
}

// keptOf reads what is remembered of node; known is false for a node that is not in the mesh.
func (s *Store) keptOf(ctx context.Context, node subject.Node) (k kept, known bool, err error) {
	s.mu.Lock()
	k, known = s.kept[node]
	s.mu.Unlock()
	if known {
		return k, true, nil
	}
	var body sql.NullString
	err = s.db.Read().QueryRowContext(ctx, `SELECT r.body FROM node n LEFT JOIN report r ON r.node = n.id WHERE n.name = ? AND n.removed IS NULL`, string(node)).Scan(&body)
	if errors.Is(err, sql.ErrNoRows) {
		return kept{}, false, nil
	}
	if err != nil {
		return kept{}, false, err
	}
	if body.Valid {
		var r report.Report
		if err := decode(body.String, &r); err != nil {
			return kept{}, false, err
		}
		k = kept{r.Number, sumOf(&r)}
	}
	s.mu.Lock()
	s.kept[node] = k
	s.mu.Unlock()
	return k, true, nil
}

// forget drops what is remembered of a node that left.
func (s *Store) forget(node subject.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.kept, node)
}

type recorder struct {
	*sql.Tx
	ctx     context.Context
	now     map[subject.Node]kept
	touched []touch
}

// before is what the records hold of a node when a report of it comes.
type before struct {
	id       int64
	declared uint64
	top      uint64
	facts    Facts
	account  Account
	report   report.Report
}

func (rec *recorder) record(out *Heard, r Received, sum [sha256.Size]byte) error {
	b, err := rec.before(r.Report.Node)
	if errors.Is(err, sql.ErrNoRows) {
		out.Known = false // removed since
		return nil
	}
	if err != nil || r.Report.Number <= b.report.Number {
		return err
	}
	rec.now[r.Report.Node] = kept{r.Report.Number, sum}
	if r.Report.Profile == nil { // the latest one said is kept (NOD-5)
		c := *r.Report
		c.Profile = b.report.Profile
		r.Report = &c
	}
	if b.report.Number > 0 && sumOf(&b.report) == sumOf(r.Report) {
		_, err := rec.ExecContext(rec.ctx, `UPDATE report SET number = ?, heard = ?, body = ? WHERE node = ?`,
			int64(r.Report.Number), r.Heard.UnixMilli(), encode(r.Report), b.id)
		return err
	}
	out.News = true
	account := b.account
	if out.Past = r.Report.Apply.Seq < max(b.declared, b.account.Seq); !out.Past {
		account = Account{r.Report.Apply.Seq, r.Report.Apply.Outcome, r.Report.Apply.Refused, r.Report.Apply.TookMS, r.Heard}
		out.Refused = newlyRefused(b.account, account)
	}
	out.Runs = newlyRunning(b.report.Modules, r.Report.Modules)
	top := max(b.top, r.Report.Apply.Seq)
	if factsOf(r.Report) != b.facts || top > max(b.top, b.declared) {
		rec.touched = append(rec.touched, touch{node: r.Report.Node})
	}
	return putReport(rec.ctx, rec.Tx, b.id, r.Report, r.Heard, account, top)
}

func (rec *recorder) before(node subject.Node) (before, error) {
	var b before
	var heard, seq, took, applied, top sql.NullInt64
	var outcome, refused, body sql.NullString
	err := rec.QueryRowContext(rec.ctx, `SELECT n.id, coalesce(d.seq, 0), r.heard, r.seq, r.outcome, r.refused, r.took, r.applied, r.top, r.body
		FROM node n LEFT JOIN declaration d ON d.node = n.id LEFT JOIN report r ON r.node = n.id
		WHERE n.name = ? AND n.removed IS NULL`, string(node)).
		Scan(&b.id, &b.declared, &heard, &seq, &outcome, &refused, &took, &applied, &top, &body)
	if err != nil || !body.Valid {
		b.account.Outcome = report.None
		return b, err
	}
	b.top = uint64(top.Int64)
	b.account = Account{Seq: uint64(seq.Int64), Outcome: report.Outcome(outcome.String), TookMS: took.Int64, Heard: at(applied.Int64)}
	if refused.String != "" {
		if err := decode(refused.String, &b.account.Refused); err != nil {
			return b, err
		}
	}
	if err := decode(body.String, &b.report); err != nil {
		return b, err
	}
	b.facts = factsOf(&b.report)
	return b, nil
}

// newlyRunning are the modules that run with a build that was not said to run before.
func newlyRunning(had, have []report.Module) (runs []Runs) {
	ran := make(map[Runs]bool, len(had))
	for _, m := range had {
		if m.State == report.Running {
			ran[Runs{m.Name, m.Build}] = true
		}
	}
	for _, m := range have {
		if r := (Runs{m.Name, m.Build}); m.State == report.Running && !ran[r] {
			runs = append(runs, r)
		}
	}
	return runs
}

// newlyRefused is the refusal in have unless had says the same.
func newlyRefused(had, have Account) *NodeRefused {
	if have.Outcome != report.Refused {
		return nil
	}
	now := NodeRefused{Seq: have.Seq, Why: words(have.Refused)}
	if had.Outcome == report.Refused && had.Seq == now.Seq && words(had.Refused) == now.Why {
		return nil
	}
	return &now
}

func words(r *refusal.Refusal) string {
	if r == nil {
		return "it did not say why"
	}
	if r.Why == "" {
		return r.What
	}
	return r.What + ": " + r.Why
}

func putReport(ctx context.Context, t *sql.Tx, id int64, r *report.Report, heard time.Time, a Account, top uint64) error {
	refused := ""
	if a.Refused != nil {
		refused = encode(a.Refused)
	}
	f := factsOf(r)
	_, err := t.ExecContext(ctx, `INSERT INTO report (node, number, heard, seq, outcome, refused, took, applied, top, os, arch, engine, uplinks, tunnel, body)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (node) DO UPDATE SET number = excluded.number, heard = excluded.heard, seq = excluded.seq, outcome = excluded.outcome,
			refused = excluded.refused, took = excluded.took, applied = excluded.applied, top = excluded.top, os = excluded.os,
			arch = excluded.arch, engine = excluded.engine, uplinks = excluded.uplinks, tunnel = excluded.tunnel, body = excluded.body`,
		id, int64(r.Number), heard.UnixMilli(), int64(a.Seq), string(a.Outcome), refused, a.TookMS, a.Heard.UnixMilli(), int64(top),
		f.OS, f.Arch, f.Engine, f.Uplinks, f.Tunnel, encode(r))
	return err
}

// Report returns what is kept of a node's word; its Report.Number is 0 while nothing was heard.
func (s *Store) Report(ctx context.Context, node subject.Node) (Reported, error) {
	if _, err := s.Node(ctx, node); err != nil {
		return Reported{}, err
	}
	all, err := reported(ctx, s.db.Read(), ` AND n.name = ?`, string(node))
	if err != nil || len(all) == 0 {
		return Reported{Node: node, Account: Account{Outcome: report.None}}, err
	}
	return all[0], nil
}

// Reports are what is kept of every node that ever spoke, by name.
func (s *Store) Reports(ctx context.Context) ([]Reported, error) {
	return reported(ctx, s.db.Read(), ` ORDER BY n.name`)
}

func reported(ctx context.Context, q querier, tail string, args ...any) (all []Reported, err error) {
	err = each(ctx, q, func(r *sql.Rows) error {
		var x Reported
		var heard, applied int64
		var refused, body string
		if err := r.Scan(&x.Node, &heard, &x.Seq, &x.Outcome, &refused, &x.TookMS, &applied, &body); err != nil {
			return err
		}
		x.Heard, x.Account.Heard = at(heard), at(applied)
		if refused != "" {
			if err := decode(refused, &x.Refused); err != nil {
				return err
			}
		}
		if err := decode(body, &x.Report); err != nil {
			return err
		}
		all = append(all, x)
		return nil
	}, `SELECT n.name, r.heard, r.seq, r.outcome, r.refused, r.took, r.applied, r.body FROM report r JOIN node n ON n.id = r.node WHERE n.removed IS NULL`+tail, args...)
	if err != nil {
		return nil, fmt.Errorf("read the reports: %w", err)
	}
	return all, nil
}
