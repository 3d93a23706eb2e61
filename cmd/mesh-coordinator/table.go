package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// table prints rows under a header, aligned. A cell is one line.
func table(w io.Writer, header string, rows [][]string) error {
	var aligned bytes.Buffer
	tw := tabwriter.NewWriter(&aligned, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, strings.ReplaceAll(header, " | ", "\t"))
	for _, r := range rows {
		for i, cell := range r {
			r[i] = oneLine(cell)
		}
		fmt.Fprintln(tw, strings.Join(r, "\t")) // empty cells too: a row without them would end the column
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	for line := range strings.Lines(aligned.String()) {
		if _, err := fmt.Fprintln(w, strings.TrimRight(line, " \n")); err != nil {
			return err
		}
	}
	return nil
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// ago is how long before now t was, in one unit.
func ago(now, t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	switch d := now.Sub(t); {
	case d < time.Second:
		return "now"
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}

// since is ago in a sentence.
func since(now, t time.Time) string {
	switch said := ago(now, t); said {
	case "never", "now":
		return said
	default:
		return said + " ago"
	}
}

// left is how long until t.
func left(now, t time.Time) string {
	if !t.After(now) {
		return "over"
	}
	// To the nearest minute: an hour that was given a moment ago reads as an hour.
	return ago(now.Add(t.Sub(now).Round(time.Minute)), now)
}

// or is s, or other when it is empty.
func or(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

func plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// size in the unit people read.
func size(n int64) string {
	switch {
	case n < 1<<10:
		return fmt.Sprintf("%d B", n)
	case n < 1<<20:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	case n < 1<<30:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}

func short(digest string) string {
	if len(digest) > 12 {
		return digest[:12]
	}
	return digest
}
