package agent

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"mesh/shared/report"
	"mesh/shared/subject"
)

const (
	// fullEvery is how often a report is sent though nothing is news (NOD-7).
	fullEvery = time.Hour
	// freeDiskGrain is how many bytes free disk must change by to be news: a log line is none.
	freeDiskGrain = 1 << 30
	// maxWords bounds the ways in which one failing module is described.
	maxWords = 16
)

// news judges what is worth a report (NOD-7), by what was reported before.
type news struct {
	key   [sha256.Size]byte
	at    time.Time // of the last report; zero before the first
	disk  int64
	words map[subject.Module][]string // what was said of a module since it failed
}

// is reports whether r says anything new, or an hour has passed, and what said wants to know then. A
// change by hand is news; times and counters are not, nor are problems, each of which is said in a place
// of its own, too.
func (n *news) is(r report.Report, now time.Time) (yes bool, key [sha256.Size]byte, err error) {
	if key, err = n.keyOf(r); err != nil {
		return false, key, err
	}
	change := r.FreeDisk - n.disk
	return n.at.IsZero() || key != n.key || len(r.Drift) > 0 || change >= freeDiskGrain || -change >= freeDiskGrain || now.Sub(n.at) >= fullEvery, key, nil
}

// said notes that r was reported.
func (n *news) said(r report.Report, key [sha256.Size]byte, now time.Time) {
	n.key, n.at, n.disk = key, now, r.FreeDisk
}

func (n *news) keyOf(r report.Report) (key [sha256.Size]byte, err error) {
	r.Number, r.At, r.Apply.TookMS, r.FreeDisk, r.Dropped, r.Drift, r.Problems = 0, 0, 0, 0, 0, nil, nil
	r.Modules = n.plain(r.Modules)
	if r.Apply.Outcome == report.Failed && r.Apply.Refused != nil {
		why := *r.Apply.Refused // a module's, or one that stands still
		if strings.HasPrefix(why.What, "module ") {
			why.Why = ""
		}
		r.Apply.Refused = &why
	}
	if r.Filter != nil {
		f := *r.Filter
		if f.Since = 0; f.Why != "" { // a repair is news, the many of a fight are not
			f.Repairs, f.Repaired = 0, ""
		}
		r.Filter = &f
	}
	b, err := json.Marshal(r)
	if err != nil {
		return key, fmt.Errorf("encode report: %w", err)
	}
	return sha256.Sum256(b), nil
}

// plain is modules without times and counters. A module in a crash loop is seen in turn as ended, as
// failed and as started in vain, one that gets no well answer as refusing and as silent: each is news once
// while it is not well.
func (n *news) plain(modules []report.Module) []report.Module {
	out := slices.Clone(modules)
	words := make(map[subject.Module][]string, len(n.words))
	for i := range out {
		m := &out[i]
		m.Restarts, m.Since = 0, 0
		if m.State == report.Running || m.State == report.Unknown {
			continue
		}
		said := n.words[m.Name]
		if text := withoutDigits(m.Detail); !slices.Contains(said, text) && len(said) < maxWords {
			said = append(said, text)
		}
		words[m.Name] = said
		m.Detail = fmt.Sprint(len(said))
	}
	n.words = words
	return out
}

func withoutDigits(s string) string {
	return strings.Map(func(r rune) rune {
		if '0' <= r && r <= '9' {
			return -1
		}
		return r
	}, s)
}
