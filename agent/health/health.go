// Package health finds out whether what runs is well: by asking an address over HTTP, by opening a TCP
// connection, or by a program that has to end with 0; and it decides when a new build has proved itself or
// has failed to (APP-7). Deciding is a function of values with the time handed in; a Prober does the asking.
//
// A Prober asks side by side within a bound, each ask under its own timeout. HTTP and TCP are asked by the
// agent itself, no process is started for them; with nothing to ask a Prober sleeps. It owns its goroutines:
// they have ended when Run returns. What the answers mean for a module is agent/apply's to say.
package health

import (
	"fmt"
	"strings"
	"time"
)

// Check is one thing that is asked.
type Check struct {
	// Key names what is asked about: a unit in the version it was started with. What was heard about another
	// version says nothing about this one.
	Key string
	// Exactly one of these says how. URL is http or https, Address host:port.
	URL, Address string
	Program      *Program
	// Every is the pause between two asks of what is well, Timeout bounds one.
	Every, Timeout time.Duration
	// Retries is how many asks in a row have to fail before what was well is unhealthy.
	Retries int
}

// Program is a program that is asked by.
type Program struct {
	// Unit tells it from others on the machine.
	Unit string
	Argv []string
	// Name is what it is called in words; "" for the first of Argv.
	Name string
	// User, Directory, Env and EnvFile are those of the process it is beside; "" and nil for none.
	User, Directory string
	Env             []string
	EnvFile         string
	// Container is the container it runs in, "" for none; the other fields above do not count then.
	Container string
}

// Standing is what is known of one Check's thing.
type Standing struct {
	// Known: it was well once, or too many asks in a row failed.
	Known bool
	Well  bool
	// Why says in words what the last ask that failed met.
	Why string
	// misses counts the asks in a row that failed, asks all of them.
	misses, asks int
}

// Take is s after one more ask, which failed with why, or was answered well ("").
func (s Standing) Take(why string, retries int) Standing {
	s.asks++
	if why == "" {
		return Standing{Known: true, Well: true, asks: s.asks}
	}
	s.misses++
	s.Why = why
	if s.misses >= max(retries, 1) {
		s.Known, s.Well = true, false
	}
	return s
}

// differs reports whether somebody who saw s should look again.
func (s Standing) differs(old Standing) bool {
	return s.Known != old.Known || s.Well != old.Well || !s.Well && old.Why == "" && s.Why != ""
}

const (
	// soonest is the pause after the first ask of what is not well yet; it doubles up to latest.
	soonest, latest = 200 * time.Millisecond, 2 * time.Second
	// maxWhy bounds in bytes what is kept of an answer.
	maxWhy = 300
)

// pause is when to ask again: soon while it gets well, so that a new build has not to wait for a whole
// period, and at its pace from then on.
func (s Standing) pause(every time.Duration) time.Duration {
	if s.Well {
		return every
	}
	return min(every, latest, soonest<<min(s.asks, 10))
}

// words makes one short line of what somebody else said.
func words(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < 0x20 || r == 0x7f {
			return ' '
		}
		return r
	}, strings.TrimSpace(text))
	if len(text) > maxWhy {
		text = strings.ToValidUTF8(text[:maxWhy], "") + "…"
	}
	return strings.Join(strings.Fields(text), " ")
}

// Verdict is what became of a new build.
type Verdict int

// The verdicts.
const (
	Waits  Verdict = iota // it may still get well
	Proved                // it is well
	Failed                // it did not get well in its time, or never will
)

// Trial is a new build that has to prove itself.
type Trial struct {
	Began time.Time
	// Within is how long it may take.
	Within time.Duration
	// Asked: its manifest says how its health is told. Of one that says nothing, a unit that systemd gave up
	// counts at once.
	Asked bool
}

// Signs are what is seen of it.
type Signs struct {
	// Up: all that should run runs, and proved that it stays.
	Up bool
	// Moving: something of it is on its way, and systemd bounds how long that takes.
	Moving bool
	// GaveUp says of a unit that systemd starts it no more, and how it ended; "" for none.
	GaveUp string
	// Amiss says what keeps it from being well; "" for nothing.
	Amiss string
}

// Judge says how t stands at now, and why when it failed.
func (t Trial) Judge(s Signs, now time.Time) (v Verdict, why string) {
	late := now.Sub(t.Began) >= t.Within
	switch {
	case s.Up && s.Amiss == "":
		return Proved, ""
	case !t.Asked && s.GaveUp != "":
		return Failed, s.GaveUp
	case !late, !t.Asked && s.Moving:
		return Waits, ""
	}
	why = s.Amiss
	if why == "" {
		why = "it is not up"
	}
	return Failed, fmt.Sprintf("it did not get well within %v: %s", t.Within, why)
}

// Ends is when t is over whatever happens.
func (t Trial) Ends() time.Time { return t.Began.Add(t.Within) }
