// Package witness says who may have changed something on the machine by hand: who was logged in, who became root, and
// what was installed around a time, as far as the machine wrote it down (APP-19). It proves nothing; it names whom
// to ask.
//
// It reads files alone, the end of those that grow, and starts no process: sessions of logind, the login records
// of wtmp(5), sudo's own timestamps and its lines in auth.log where there is one, the logs of dpkg and apt. The
// journal, which only a program reads, is left out. What cannot be read is left out too. Nothing is kept; the package
// starts no goroutine.
package witness

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"mesh/shared/order"
	"mesh/shared/report"
)

const (
	// window is how long before it was found something may have been changed: systemd and the kernel tell of most
	// changes at once, the rest is found within a minute; a person is logged in for longer.
	window = 15 * time.Minute
	// most bounds what is said, and mostWord each of it in bytes.
	most, mostWord = 6, 200
	// end is how many bytes of the end of a log are read.
	end = 64 << 10
)

// seen is one thing the machine wrote down.
type seen struct {
	at   time.Time
	text string
}

// Around says what the machine whose files are below root knows of who did something before at, the last first. mask
// takes secrets out of what people typed. zone is how the machine writes times in its logs.
func Around(root string, at time.Time, zone *time.Location, mask func(string) string) (who []string) {
	from := at.Add(-window)
	all := slices.Concat(sessions(root, at), logins(root, from, at), becameRoot(root, from, at), sudo(root, from, at, zone),
		packages(root, from, at, zone), apt(root, from, at, zone))
	order.Sort(all, func(a, b seen) int { return cmp.Or(b.at.Compare(a.at), cmp.Compare(a.text, b.text)) })
	for _, s := range all {
		if text := report.Cut(mask(s.text), mostWord); !slices.Contains(who, text) && len(who) < most {
			who = append(who, text)
		}
	}
	return who
}

func clock(t time.Time) string { return t.UTC().Format("15:04 UTC") }

// sessions are those open now, by logind's files.
func sessions(root string, at time.Time) (all []seen) {
	folder := filepath.Join(root, "/run/systemd/sessions")
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if strings.Contains(e.Name(), ".") || len(all) > most { // a pipe that belongs to one
			continue
		}
		f := map[string]string{}
		for line := range strings.Lines(string(tail(filepath.Join(folder, e.Name())))) {
			k, v, _ := strings.Cut(strings.TrimSpace(line), "=")
			f[k] = v
		}
		usec, err := strconv.ParseInt(f["REALTIME"], 10, 64)
		since := time.UnixMicro(usec)
		if err != nil || f["USER"] == "" || f["CLASS"] != "user" || since.After(at) {
			continue
		}
		text := f["USER"] + " is logged in"
		if h := f["REMOTE_HOST"]; h != "" {
			text += " from " + h
		}
		all = append(all, seen{at, text + " since " + day(since, at)})
	}
	return all
}

func day(t, now time.Time) string {
	if now.Sub(t) < 12*time.Hour {
		return clock(t)
	}
	return t.UTC().Format("2006-01-02 15:04 UTC")
}

// record is one of wtmp's, as glibc has it on machines with 64 bits and 32-bit times (utmp(5)).
type record struct {
	Type            int16
	_               int16
	PID             int32
	Line            [32]byte
	ID              [4]byte
	User            [32]byte
	Host            [256]byte
	_               [4]byte
	Session         int32
	Seconds, Micros int32
	_               [36]byte
}

const (
	recordSize = 384
	userCame   = 7
	userWent   = 8
)

// logins are sessions that began, or ended, in the time.
func logins(root string, from, at time.Time) (all []seen) {
	b := tail(filepath.Join(root, "/var/log/wtmp"))
	b = b[len(b)%recordSize:]
	who := map[string]string{} // by line
	for ; len(b) >= recordSize; b = b[recordSize:] {
		var r record
		if binary.Read(bytes.NewReader(b[:recordSize]), binary.LittleEndian, &r) != nil {
			return all
		}
		t, line := time.Unix(int64(r.Seconds), 0), word(r.Line[:])
		inTime := !t.Before(from) && !t.After(at)
		switch r.Type {
		case userCame:
			who[line] = word(r.User[:])
			if host := word(r.Host[:]); host != "" {
				who[line] += " from " + host
			}
			if inTime {
				all = append(all, seen{t, who[line] + " logged in at " + clock(t)})
			}
		case userWent:
			if name := who[line]; name != "" && inTime {
				all = append(all, seen{t, name + " logged out at " + clock(t)})
			}
			delete(who, line)
		}
	}
	return all
}

func word(b []byte) string {
	b, _, _ = bytes.Cut(b, []byte{0})
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return -1
		}
		return r
	}, string(b))
}

// becameRoot are the people whose sudo asked for a password in the time: sudo touches a file for each.
func becameRoot(root string, from, at time.Time) (all []seen) {
	folder := filepath.Join(root, "/run/sudo/ts")
	entries, err := os.ReadDir(folder)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && !info.ModTime().Before(from) && !info.ModTime().After(at) {
			all = append(all, seen{info.ModTime(), e.Name() + " used sudo at " + clock(info.ModTime())})
		}
	}
	return all
}

// sudo are its lines in auth.log: "2026-01-02T03:04:05.6+00:00 host sudo: anna : TTY=… ; COMMAND=…", or with the time
// as syslog had it before.
func sudo(root string, from, at time.Time, zone *time.Location) (all []seen) {
	for line := range strings.Lines(string(tail(filepath.Join(root, "/var/log/auth.log")))) {
		before, rest, ok := strings.Cut(strings.TrimSpace(line), "sudo:")
		_, command, is := strings.Cut(rest, "COMMAND=")
		name, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
		t, known := syslogTime(before, at, zone)
		if !ok || !is || !known || t.Before(from) || t.After(at) {
			continue
		}
		all = append(all, seen{t, fmt.Sprintf("%s ran as root at %s: %s", name, clock(t), word([]byte(command)))})
	}
	return all
}

func syslogTime(line string, now time.Time, zone *time.Location) (time.Time, bool) {
	first, _, _ := strings.Cut(line, " ")
	if t, err := time.Parse(time.RFC3339Nano, first); err == nil {
		return t, true
	}
	if len(line) < len(time.Stamp) {
		return time.Time{}, false
	}
	t, err := time.ParseInLocation(time.Stamp, line[:len(time.Stamp)], zone)
	return t.AddDate(now.In(zone).Year(), 0, 0), err == nil
}

// packages are what dpkg installed, changed or removed.
func packages(root string, from, at time.Time, zone *time.Location) (all []seen) {
	for line := range strings.Lines(string(tail(filepath.Join(root, "/var/log/dpkg.log")))) {
		f := strings.Fields(line)
		if len(f) < 4 || !slices.Contains([]string{"install", "upgrade", "remove", "purge"}, f[2]) {
			continue
		}
		if t, err := time.ParseInLocation(time.DateTime, f[0]+" "+f[1], zone); err == nil && !t.Before(from) && !t.After(at) {
			all = append(all, seen{t, "dpkg: " + f[2] + " " + f[3] + " at " + clock(t)})
		}
	}
	return all
}

// apt are the commands of people that apt wrote down.
func apt(root string, from, at time.Time, zone *time.Location) (all []seen) {
	var began time.Time
	var command, by string
	for line := range strings.Lines(string(tail(filepath.Join(root, "/var/log/apt/history.log"))) + "\n\n") {
		k, v, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch k {
		case "Start-Date":
			began, _ = time.ParseInLocation(time.DateTime, strings.Join(strings.Fields(v), " "), zone)
		case "Commandline":
			command = v
		case "Requested-By":
			by = " by " + v
		case "":
			if command != "" && !began.Before(from) && !began.After(at) {
				all = append(all, seen{began, "apt: " + command + by + " at " + clock(began)})
			}
			began, command, by = time.Time{}, "", ""
		}
	}
	return all
}

// tail is the end of a file, from the beginning of a line on where it is one of lines; nothing when it cannot be read.
func tail(path string) []byte {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer func() { _ = f.Close() }() // only read
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil
	}
	b := make([]byte, min(info.Size(), end))
	if _, err := f.ReadAt(b, info.Size()-int64(len(b))); err != nil && !errors.Is(err, io.EOF) {
		return nil
	}
	return b
}
