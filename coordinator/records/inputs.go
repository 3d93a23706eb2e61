package records

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"mesh/shared/declaration"
	"mesh/shared/report"
	"mesh/shared/subject"
)

// Inputs are what a node's declaration is made of, beside the mesh and the builds.
type Inputs struct {
	Node Node
	// Placed are its assignments, by module.
	Placed   []Placed
	Declared Declared
	// Base is the highest seq that is taken: by this node's declarations, by those of a removed node of
	// the same name, which the bus may still hold, or by one the node itself spoke of.
	Base  uint64
	Facts Facts
	// Remove is what a person had removed there (APP-11); nil for nothing. It may name modules that are assigned.
	Remove *declaration.Remove
}

// Placed is an assignment with its settings and secrets as the JSON texts the records hold: at ten
// thousand nodes, decoding them all takes longer than all the rest. Texts decodes one.
type Placed struct {
	Module            subject.Module
	Settings, Secrets string
	// Key is the instance's public key on the bus, "" while none is known.
	Key string
}

// Facts are what composing needs to know of a machine, from its last report.
type Facts struct {
	OS, Arch, Engine string
	Uplinks          int
	Tunnel           string
}

func factsOf(r *report.Report) Facts {
	f := Facts{Uplinks: len(r.Uplinks), Tunnel: r.Tunnel}
	if p := r.Profile; p != nil {
		f.OS, f.Arch, f.Engine = p.OS, p.Arch, p.Engine
	}
	return f
}

const inputColumns = `SELECT n.id, n.name, n.key, n.curve, n.machine_id, n.enrolled, n.removed, n.drift, n.tunnel, n.inside, n.admin, n.asleep_ok, n.converge, n.takes, n.keeps,
	d.seq, d.hash, d.composed, d.sent, d.artifacts, d.before, r.top, r.os, r.arch, r.engine, r.uplinks, r.tunnel
	FROM node n LEFT JOIN declaration d ON d.node = n.id LEFT JOIN report r ON r.node = n.id WHERE n.removed IS NULL`

// inputsRow scans a row of inputColumns.
type inputsRow struct {
	row interface{ Scan(...any) error }
	in  Inputs
}

// Scan lets scanNode read the first columns.
func (x *inputsRow) Scan(node ...any) error {
	var seq, composed, sent, top, uplinks sql.NullInt64
	var hash []byte
	var artifacts, before, os, arch, engine, tunnel sql.NullString
	err := x.row.Scan(append(node, &seq, &hash, &composed, &sent, &artifacts, &before, &top, &os, &arch, &engine, &uplinks, &tunnel)...)
	if err != nil {
		return err
	}
	x.in.Facts = Facts{os.String, arch.String, engine.String, int(uplinks.Int64), tunnel.String}
	x.in.Base = max(uint64(seq.Int64), uint64(top.Int64))
	if !seq.Valid {
		return nil
	}
	d := &x.in.Declared
	d.Seq, d.Composed, d.Sent = uint64(seq.Int64), at(composed.Int64), uint64(sent.Int64)
	copy(d.Hash[:], hash)
	return errors.Join(decodeList(artifacts.String, &d.Artifacts), decodeList(before.String, &d.Before))
}

func decodeList(text string, list *[]string) error {
	if text == "[]" {
		return nil
	}
	return decode(text, list)
}

func scanInputs(row interface{ Scan(...any) error }) (Inputs, error) {
	x := inputsRow{row: row}
	n, err := scanNode(&x)
	x.in.Node = n
	return x.in, err
}

// Inputs returns those of one node.
func (s *Store) Inputs(ctx context.Context, name subject.Node) (Inputs, error) {
	q := s.db.Read()
	in, err := scanInputs(q.QueryRowContext(ctx, inputColumns+` AND n.name = ?`, string(name)))
	if errors.Is(err, sql.ErrNoRows) {
		return Inputs{}, unknownNode(ctx, q, name)
	}
	if err != nil {
		return Inputs{}, fmt.Errorf("read %s: %w", name, err)
	}
	if in.Declared.Seq == 0 {
		var last sql.NullInt64
		if err := q.QueryRowContext(ctx, `SELECT max(d.seq) FROM node n JOIN declaration d ON d.node = n.id WHERE n.name = ?`, string(name)).Scan(&last); err != nil {
			return Inputs{}, fmt.Errorf("read %s: %w", name, err)
		}
		in.Base = max(in.Base, uint64(last.Int64))
	}
	err = each(ctx, q, func(r *sql.Rows) error {
		var p Placed
		err := r.Scan(&p.Module, &p.Settings, &p.Secrets, &p.Key)
		in.Placed = append(in.Placed, p)
		return err
	}, `SELECT a.module, a.settings, a.secrets, coalesce(i.key, '') FROM assignment a LEFT JOIN instance i ON i.node = a.node AND i.module = a.module
		WHERE a.node = ? ORDER BY a.module`, in.Node.id)
	if err != nil {
		return Inputs{}, fmt.Errorf("read the assignments of %s: %w", name, err)
	}
	return in, s.removals(ctx, func(int64) *Inputs { return &in }, ` WHERE node = ?`, in.Node.id)
}

// AllInputs returns those of every node, by name.
func (s *Store) AllInputs(ctx context.Context) ([]Inputs, error) {
	q := s.db.Read()
	var all []Inputs
	byID := make(map[int64]int)
	err := each(ctx, q, func(r *sql.Rows) error {
		in, err := scanInputs(r)
		byID[in.Node.id] = len(all)
		all = append(all, in)
		return err
	}, inputColumns+` ORDER BY n.name`)
	if err != nil {
		return nil, fmt.Errorf("read the nodes: %w", err)
	}
	taken := make(map[subject.Node]uint64)
	err = each(ctx, q, func(r *sql.Rows) error {
		var name subject.Node
		var seq uint64
		err := r.Scan(&name, &seq)
		taken[name] = seq
		return err
	}, `SELECT n.name, max(d.seq) FROM node n JOIN declaration d ON d.node = n.id WHERE n.removed IS NOT NULL GROUP BY n.name`)
	if err != nil {
		return nil, fmt.Errorf("read the archive: %w", err)
	}
	for i := range all {
		all[i].Base = max(all[i].Base, taken[all[i].Node.Name])
	}
	if err := s.placeAll(ctx, all, byID); err != nil {
		return nil, err
	}
	if err := s.keyAll(ctx, all, byID); err != nil {
		return nil, err
	}
	return all, s.removals(ctx, func(id int64) *Inputs {
		if k, here := byID[id]; here {
			return &all[k]
		}
		return nil
	}, "")
}

// The assignments of a node come as one text: a row through database/sql costs more than all SQLite
// does for it. JSON texts and module names hold no control characters, so these two can part them.
const (
	unit  = "\x1f"
	group = "\x1e"
)

// placeAll reads all assignments, in two halves side by side.
func (s *Store) placeAll(ctx context.Context, all []Inputs, byID map[int64]int) error {
	var middle int64
	if len(all) > 0 {
		var lowest, highest int64 = 1 << 62, 0
		for id := range byID {
			lowest, highest = min(lowest, id), max(highest, id)
		}
		middle = lowest + (highest-lowest)/2
	}
	var wg sync.WaitGroup
	var errs [2]error
	for i, where := range []string{`node <= ?`, `node > ?`} {
		wg.Add(1)
		go func() { // ends with its query
			defer wg.Done()
			errs[i] = each(ctx, s.db.Read(), func(r *sql.Rows) error {
				var id int64
				var text string
				if err := r.Scan(&id, &text); err != nil {
					return err
				}
				if k, here := byID[id]; here {
					all[k].Placed = place(text)
				}
				return nil
			}, `SELECT node, group_concat(module || char(31) || settings || char(31) || secrets, char(30) ORDER BY module)
				FROM assignment WHERE `+where+` GROUP BY node`, middle)
		}()
	}
	wg.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		return fmt.Errorf("read the assignments: %w", err)
	}
	return nil
}

// place takes apart the text of one node's assignments; the parts share its memory.
func place(text string) []Placed {
	out := make([]Placed, 0, strings.Count(text, group)+1)
	for part := range strings.SplitSeq(text, group) {
		module, rest, _ := strings.Cut(part, unit)
		settings, secrets, _ := strings.Cut(rest, unit)
		out = append(out, Placed{Module: subject.Module(module), Settings: settings, Secrets: secrets})
	}
	return out
}

// Texts decodes a JSON object of texts as the records hold it; nil for an empty one. Plain texts, the
// usual case, share the memory of text.
func Texts[V ~string](text string) (map[string]V, error) {
	if text == "{}" || text == "" {
		return nil, nil
	}
	if m, ok := plainTexts[V](text); ok {
		return m, nil
	}
	var m map[string]V
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		return nil, fmt.Errorf("the records hold %q: %w", clip(text), err)
	}
	return m, nil
}

// plainTexts reads {"k":"v",…} as encoding/json writes it, as long as nothing in it is escaped.
func plainTexts[V ~string](s string) (map[string]V, bool) {
	if len(s) < 2 || s[0] != '{' || s[len(s)-1] != '}' || strings.IndexByte(s, '\\') >= 0 {
		return nil, false
	}
	m := make(map[string]V, strings.Count(s, `":"`))
	s = s[1 : len(s)-1]
	for {
		key, rest, ok := quoted(s)
		if !ok || !strings.HasPrefix(rest, ":") {
			return nil, false
		}
		value, rest, ok := quoted(rest[1:])
		if !ok {
			return nil, false
		}
		m[key] = V(value)
		if rest == "" {
			return m, true
		}
		if rest[0] != ',' {
			return nil, false
		}
		s = rest[1:]
	}
}

// quoted reads the string that s begins with; s holds no backslash.
func quoted(s string) (text, rest string, ok bool) {
	if s == "" || s[0] != '"' {
		return "", "", false
	}
	end := strings.IndexByte(s[1:], '"')
	if end < 0 {
		return "", "", false
	}
	return s[1 : end+1], s[end+2:], true
}
