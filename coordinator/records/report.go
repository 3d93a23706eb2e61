package records

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"slices"
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
	// Old: a later one was heard before; it says nothing of how the node is now.
	Old bool
	// News: it says something that the report kept before did not.
	News bool
	// Past: it is about a declaration that the mesh has moved past, so the account of the apply stays as
	// it was (NOD-8).
	Past bool
	// Runs are the modules that run now with a build they did not run with before (event node-runs).
	Runs []Runs
	// Refused is the declaration the node refuses since this report (event node-refused).
	Refused *NodeRefused
	// Keyed: an instance of the node has a key that it did not have.
	Keyed bool
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

// RecordReports keeps the reports of many nodes in one transaction and says of each, in order, what it
// was. Reports of a node are ordered by their number: an older one, or the same again, costs nothing and
// is no news. One that says nothing new is remembered, and written now and then, without a sync.
func (s *Store) RecordReports(ctx context.Context, batch []Received) ([]Heard, error) {
	out, err := s.recordReports(ctx, batch)
	if err != nil {
		return nil, fmt.Errorf("record reports: %w", err)
	}
	return out, nil
}

func (s *Store) recordReports(ctx context.Context, batch []Received) ([]Heard, error) {
	out := make([]Heard, len(batch))
	rec := recorder{ctx: ctx, now: make(map[subject.Node]kept, len(batch))}
	var todo []entry
	write := s.db.WriteLazy
	for i, r := range batch {
		out[i].Node = r.Report.Node
		k, known, err := s.keptOf(ctx, r.Report.Node)
		if err != nil {
			return nil, err
		}
		if out[i].Known = known; !known {
			continue
		}
		if staged, ok := rec.now[r.Report.Node]; ok { // two of one node in a batch
			k = staged
		}
		if r.Report.Number <= k.number {
			out[i].Old = r.Report.Number < k.number
			continue
		}
		e := entry{i: i, report: withProfile(r.Report, k.profile), heard: r.Heard}
		e.sum = sumOf(e.report)
		e.news = k.number == 0 || e.sum != k.sum
		k.number, k.heard, k.sum, k.profile = r.Report.Number, r.Heard, e.sum, e.report.Profile
		rec.now[r.Report.Node] = k
		if e.news {
			write = s.db.Write
		} else if r.Heard.Sub(k.written) < rewrite {
			continue
		}
		todo = append(todo, e)
	}
	if len(todo) > 0 {
		err := write(ctx, func(t *sql.Tx) error {
			rec.Tx = t
			for _, e := range todo {
				if err := rec.record(s, &out[e.i], e); err != nil {
					return fmt.Errorf("%s: %w", e.report.Node, err)
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	for n, k := range rec.now {
		s.kept[n] = k
	}
	s.mu.Unlock()
	s.feed.add(rec.touched)
	return out, nil
}

// rewrite is how old what is written of a node may be when it says the same again.
const rewrite = 10 * time.Minute

// entry is a report to be written.
type entry struct {
	i      int // its place in the batch
	report *report.Report
	heard  time.Time
	sum    [sha256.Size]byte
	news   bool
}

// withProfile is r with the latest profile said (NOD-5).
func withProfile(r *report.Report, p *report.Profile) *report.Report {
	if r.Profile != nil || p == nil {
		return r
	}
	c := *r
	c.Profile = p
	return &c
}

// kept is what is remembered of a node's word: enough to judge the next without reading or decoding.
type kept struct {
	id      int64
	number  uint64
	sum     [sha256.Size]byte
	heard   time.Time
	written time.Time // heard of what the file has
	profile *report.Profile
	runs    []Runs
	top     uint64
	facts   Facts
	account Account
	keys    []report.Key // that the records were given since the start
}

// diskGrain is how many bytes free disk must change by to be news, as for the agent (NOD-7).
const diskGrain = 1 << 30

// sumOf is equal for reports that say the same: number, times and small changes of free disk are left out.
func sumOf(r *report.Report) [sha256.Size]byte {
	c := *r
	c.Number, c.At, c.Apply.TookMS = 0, 0, 0
	c.FreeDisk /= diskGrain
	return sha256.Sum256([]byte(encode(&c)))
}

// keptOf is what is remembered of node; known is false for a node that is not in the mesh.
func (s *Store) keptOf(ctx context.Context, node subject.Node) (k kept, known bool, err error) {
	s.mu.Lock()
	k, known = s.kept[node]
	s.mu.Unlock()
	if known {
		return k, true, nil
	}
	k, err = readKept(ctx, s.db.Read(), node)
	if errors.Is(err, sql.ErrNoRows) {
		return kept{}, false, nil
	}
	if err != nil {
		return kept{}, false, err
	}
	s.mu.Lock()
	s.kept[node] = k
	s.mu.Unlock()
	return k, true, nil
}

// Known is the number of the last report of node that is remembered; 0 for none, or one that was not asked
// for since the start. It costs no query.
func (s *Store) Known(node subject.Node) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kept[node].number
}

// Stands is the account of applying that node's report of that number left, while it is the last one
// remembered and about declaration seq: the node said that it stands. It costs no query.
func (s *Store) Stands(node subject.Node, number, seq uint64) (a Account, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k, ok := s.kept[node]
	return k.account, ok && number > 0 && k.number == number && k.account.Seq == seq
}

// readKept reads what the file has of a node's word.
func readKept(ctx context.Context, q querier, node subject.Node) (kept, error) {
	var k kept
	var heard, seq, took, applied, top sql.NullInt64
	var outcome, refused, body sql.NullString
	err := q.QueryRowContext(ctx, `SELECT n.id, r.heard, r.seq, r.outcome, r.refused, r.took, r.applied, r.top, r.body
		FROM node n LEFT JOIN report r ON r.node = n.id WHERE n.name = ? AND n.removed IS NULL`, string(node)).
		Scan(&k.id, &heard, &seq, &outcome, &refused, &took, &applied, &top, &body)
	if err != nil || !body.Valid {
		k.account.Outcome = report.None
		return k, err
	}
	k.heard = at(heard.Int64)
	k.written, k.top = k.heard, uint64(top.Int64)
	k.account = Account{Seq: uint64(seq.Int64), Outcome: report.Outcome(outcome.String), TookMS: took.Int64, Heard: at(applied.Int64)}
	if refused.String != "" {
		if err := decode(refused.String, &k.account.Refused); err != nil {
			return k, err
		}
	}
	var r report.Report
	if err := decode(body.String, &r); err != nil {
		return k, err
	}
	k.number, k.sum, k.profile, k.runs, k.facts = r.Number, sumOf(&r), r.Profile, running(r.Modules), factsOf(&r)
	return k, nil
}

// forget drops what is remembered of a node that left.
func (s *Store) forget(node subject.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.kept, node)
}

// recorder is one transaction of reports.
type recorder struct {
	*sql.Tx
	ctx     context.Context
	now     map[subject.Node]kept // what is remembered once it is on disk
	touched []touch
}

func (rec *recorder) record(s *Store, out *Heard, e entry) error {
	r := e.report
	k := rec.now[r.Node]
	var id int64
	var declared uint64
	err := rec.QueryRowContext(rec.ctx, `SELECT n.id, coalesce(d.seq, 0) FROM node n LEFT JOIN declaration d ON d.node = n.id
		WHERE n.name = ? AND n.removed IS NULL`, string(r.Node)).Scan(&id, &declared)
	if errors.Is(err, sql.ErrNoRows) || err == nil && id != k.id {
		// Removed since; the name may be another machine's by now, whose word comes in its own time.
		out.Known = false
		delete(rec.now, r.Node)
		s.forget(r.Node)
		return nil
	}
	if err != nil {
		return err
	}
	k.written = e.heard
	if out.News = e.news; e.news {
		account := k.account
		if out.Past = r.Apply.Seq < max(declared, account.Seq); !out.Past {
			k.account = Account{r.Apply.Seq, r.Apply.Outcome, r.Apply.Refused, r.Apply.TookMS, e.heard}
			out.Refused = newlyRefused(account, k.account)
		}
		runs, err := rec.placed(s, id, running(r.Modules))
		if err != nil {
			return err
		}
		out.Runs = newlyRunning(k.runs, runs)
		if len(r.Keys) > 0 && !slices.Equal(r.Keys, k.keys) {
			if out.Keyed, err = rec.keyed(s, id, r, e.heard.UnixMilli()); err != nil {
				return err
			}
			if out.Keyed {
				rec.touched = append(rec.touched, touch{node: r.Node})
			}
		}
		k.keys = r.Keys
		top, facts := max(k.top, r.Apply.Seq), factsOf(r)
		if facts != k.facts || top > max(k.top, declared) {
			rec.touched = append(rec.touched, touch{node: r.Node})
		}
		k.runs, k.top, k.facts = runs, top, facts
	}
	rec.now[r.Node] = k
	return putReport(rec.ctx, rec.Tx, id, r, e.heard, k.account, k.top)
}

// running are the modules that run, each with its build.
func running(modules []report.Module) (runs []Runs) {
	for _, m := range modules {
		if m.State == report.Running {
			runs = append(runs, Runs{m.Name, m.Build})
		}
	}
	return runs
}

// placed are those of runs that the mesh knows of: a module assigned to the node, with one of its builds. A
// machine that says otherwise fills nobody's events.
func (rec *recorder) placed(s *Store, node int64, runs []Runs) ([]Runs, error) {
	if len(runs) == 0 {
		return nil, nil
	}
	modules, err := texts(rec.ctx, rec.Tx, `SELECT module FROM assignment WHERE node = ?`, node)
	if err != nil {
		return nil, err
	}
	here := make(map[subject.Module]bool, len(modules))
	for _, m := range modules {
		here[subject.Module(m)] = true
	}
	var known []Runs
	for _, r := range runs {
		if !here[r.Module] {
			continue
		}
		here[r.Module] = false // each once
		switch b, err := s.build(rec.ctx, rec.Tx, r.Build); {
		case err == nil && b.Module == r.Module:
			known = append(known, r)
		case err != nil && !errors.Is(err, ErrUnknown):
			return nil, err
		}
	}
	return known, nil
}

// newlyRunning are those of have that are not in had.
func newlyRunning(had, have []Runs) (runs []Runs) {
	for _, r := range have {
		if !slices.Contains(had, r) {
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
	all, err := s.reported(ctx, ` AND n.name = ?`, string(node))
	if err != nil || len(all) == 0 {
		return Reported{Node: node, Account: Account{Outcome: report.None}}, err
	}
	return all[0], nil
}

// Reports are what is kept of every node that ever spoke, by name.
func (s *Store) Reports(ctx context.Context) ([]Reported, error) {
	return s.reported(ctx, ` ORDER BY n.name`)
}

func (s *Store) reported(ctx context.Context, tail string, args ...any) (all []Reported, err error) {
	err = each(ctx, s.db.Read(), func(r *sql.Rows) error {
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
		s.mu.Lock()
		k := s.kept[x.Node]
		s.mu.Unlock()
		if k.number > x.Report.Number { // it said the same again since
			x.Report.Number, x.Heard = k.number, k.heard
		}
		all = append(all, x)
		return nil
	}, `SELECT n.name, r.heard, r.seq, r.outcome, r.refused, r.took, r.applied, r.body FROM report r JOIN node n ON n.id = r.node WHERE n.removed IS NULL`+tail, args...)
	if err != nil {
		return nil, fmt.Errorf("read the reports: %w", err)
	}
	return all, nil
}
