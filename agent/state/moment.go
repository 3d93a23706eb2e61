package state

import (
	"context"
	"database/sql"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The bounds of the moments kept (NOD-15). The newest of each part outlives both.
const (
	MaxMoments     = 4000
	MaxMomentBytes = 1 << 20
	// momentSlack is how many moments come between two looks at the bounds.
	momentSlack = 64
	// A part that changes all the time has momentBurst moments, and then one each momentEvery: it pushes nothing
	// else out of the history.
	momentBurst = 20
	momentEvery = 3 * time.Minute
)

// momentsFrom is the key of the first moment from which on everything is known.
const momentsFrom = "moment.from"

// Moment is how one part of the machine was from At on.
type Moment struct {
	// N orders moments.
	N  int64
	At time.Time
	// Part names it: "filter", "module/notes".
	Part string
	// Body is JSON; empty says that the part is no more.
	Body []byte
}

// part is what is known of a part without reading.
type part struct {
	sum    uint64
	at     int64
	gone   bool
	spent  int       // moments not yet paid back
	filled time.Time // when spent was last reckoned
	held   []byte    // comes later: the part changed too often
	holds  bool
}

// moments is the mirror of the newest moments.
type moments struct {
	seed  maphash.Seed
	parts map[string]*part // nil before the first use
}

// Remember keeps how parts of the machine are from now on; what is as it was costs nothing. With whole, parts
// that are not among them are no more. It is written with the next write.
func (s *Store) Remember(ctx context.Context, now time.Time, parts map[string][]byte, whole bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.loadMoments(ctx); err != nil {
		return fmt.Errorf("read the moments: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		s.moment(name, parts[name], now)
	}
	if whole {
		for name, p := range s.moments.parts {
			if _, is := parts[name]; !is && !p.gone {
				s.moment(name, nil, now)
			}
		}
	}
	return nil
}

// Since is when each part came to be as it is, in Unix milliseconds. It costs no query.
func (s *Store) Since() map[string]int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[string]int64, len(s.moments.parts))
	for name, p := range s.moments.parts {
		if !p.gone {
			out[name] = p.at
		}
	}
	return out
}

// moment stages one that is news. It holds mu.
func (s *Store) moment(name string, body []byte, now time.Time) {
	p := s.moments.parts[name]
	if p == nil {
		if len(body) == 0 {
			return
		}
		p = &part{gone: true, filled: now}
		s.moments.parts[name] = p
	}
	p.held, p.holds = nil, false
	sum := maphash.Bytes(s.moments.seed, body)
	if p.gone == (len(body) == 0) && p.sum == sum {
		return
	}
	if !p.pay(now) {
		p.held, p.holds = slices.Clone(body), true
		return
	}
	p.sum, p.at, p.gone = sum, now.UnixMilli(), len(body) == 0
	if s.staged == nil {
		s.staged = &staged{put: map[string]Row{}, gone: map[string]bool{}, before: s.modules}
	}
	s.staged.moments = append(s.staged.moments, Moment{At: now, Part: name, Body: body})
	s.staged.moments = s.staged.moments[max(0, len(s.staged.moments)-MaxMoments):] // on a disk that takes nothing
}

// pay says whether the part may have another moment. A clock that was set back pays nothing back.
func (p *part) pay(now time.Time) bool {
	if back := now.Sub(p.filled) / momentEvery; back > 0 {
		p.spent, p.filled = max(0, p.spent-int(min(back, momentBurst))), now
	} else if back < 0 {
		p.filled = now
	}
	if p.spent >= momentBurst {
		return false
	}
	p.spent++
	return true
}

// release stages what was held and is due. It holds mu.
func (s *Store) release() {
	now := time.Time{}
	for name, p := range s.moments.parts {
		if !p.holds {
			continue
		}
		if now.IsZero() {
			now = s.clock.Now()
		}
		s.moment(name, p.held, now)
	}
}

// loadMoments holds mu.
func (s *Store) loadMoments(ctx context.Context) error {
	if s.moments.parts != nil {
		return nil
	}
	newest, err := query(ctx, s.db(), scanMoment, `SELECT n, at, part, body FROM moment WHERE n IN (SELECT max(n) FROM moment GROUP BY part)`)
	if err != nil {
		return err
	}
	s.moments = moments{seed: maphash.MakeSeed(), parts: make(map[string]*part, len(newest))}
	for _, m := range newest {
		s.moments.parts[m.Part] = &part{sum: maphash.Bytes(s.moments.seed, m.Body), at: m.At.UnixMilli(), gone: len(m.Body) == 0, filled: m.At}
	}
	return nil
}

func scanMoment(rows *sql.Rows) (m Moment, err error) {
	var at int64
	err = rows.Scan(&m.N, &at, &m.Part, &m.Body)
	m.At = time.UnixMilli(at).UTC()
	return m, err
}

func putMoments(ctx context.Context, tx *sql.Tx, all []Moment) error {
	for _, m := range all {
		if m.Body == nil {
			m.Body = []byte{}
		}
		res, err := tx.ExecContext(ctx, `INSERT INTO moment (at, part, body) VALUES (?, ?, ?)`, m.At.UnixMilli(), m.Part, m.Body)
		if err != nil {
			return err
		}
		n, err := res.LastInsertId()
		if err == nil && n%momentSlack == 0 {
			err = trimMoments(ctx, tx, n)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// trimMoments forgets what is beyond the bounds, but for each part the moment that was the newest of it where
// the rest begins: from there on everything is still known.
func trimMoments(ctx context.Context, tx *sql.Tx, newest int64) error {
	from := newest - MaxMoments + 1
	var heavy sql.NullInt64
	if err := tx.QueryRowContext(ctx, `SELECT max(n) FROM (SELECT n, sum(length(body) + length(part)) OVER (ORDER BY n DESC) AS sum FROM moment) WHERE sum > ?`,
		MaxMomentBytes).Scan(&heavy); err != nil {
		return err
	}
	if from = max(from, min(heavy.Int64+1, newest)); from <= 1 {
		return nil
	}
	if _, err := tx.ExecContext(ctx, `DELETE FROM moment WHERE n < ?1 AND (length(body) = 0 OR
		EXISTS (SELECT 1 FROM moment AS m WHERE m.part = moment.part AND m.n > moment.n AND m.n <= ?1))`, from); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, `INSERT OR REPLACE INTO meta (key, value) VALUES (?, CAST(? AS BLOB))`, momentsFrom, strconv.FormatInt(from, 10))
	return err
}

// Moments are all that are kept, oldest first; from is the number of the first from which on everything is
// known: what is older is how a part was then. A store that never had any has none.
func (s *Store) Moments(ctx context.Context) (all []Moment, from int64, err error) {
	if s.tidy != nil {
		if err := s.Flush(ctx); err != nil {
			return nil, 0, err
		}
	}
	all, err = query(ctx, s.db(), scanMoment, `SELECT n, at, part, body FROM moment ORDER BY n`)
	if err != nil && strings.Contains(err.Error(), "no such table") { // an agent of before wrote it
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read the moments: %w", err)
	}
	b, _, err := s.Meta(ctx, momentsFrom)
	if err != nil {
		return nil, 0, err
	}
	if from, err = strconv.ParseInt(string(b), 10, 64); err != nil { // never trimmed, or rotten
		from = 0
	}
	return all, from, nil
}
