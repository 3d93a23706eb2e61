package manifest

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"mesh/shared/order"
)

// Problem is one thing wrong in a manifest. Line and Col count from 1 and are 0 for a manifest that
// did not come from a file; Path says where in the manifest, Want what is wrong and what was expected.
type Problem struct {
	File string `json:"file,omitempty"`
	Line int    `json:"line,omitempty"`
	Col  int    `json:"col,omitempty"`
	Path string `json:"path,omitempty"`
	Want string `json:"want"`
}

// String is the problem in one line, in the form editors jump to.
func (p Problem) String() string {
	var b strings.Builder
	if p.File != "" {
		b.WriteString(p.File + ":")
	}
	if p.Line > 0 {
		fmt.Fprintf(&b, "%d:%d:", p.Line, p.Col)
	}
	if b.Len() > 0 {
		b.WriteByte(' ')
	}
	if p.Path != "" {
		b.WriteString(p.Path + ": ")
	}
	return b.String() + p.Want
}

// Problems is everything wrong in one manifest. It is an error only when it is not empty.
type Problems []Problem

// Error is one problem a line.
func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// Err is ps in the order of the file (of the paths, without one), or nil when there is none.
func (ps Problems) Err() error {
	if len(ps) == 0 {
		return nil
	}
	order.Sort(ps, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col), cmp.Compare(a.Path, b.Path), cmp.Compare(a.Want, b.Want))
	})
	return ps
}

// Join is the path of key below path: run.processes.web, run.units["notes.service"].
func Join(path, key string) string {
	if !plainKey(key) {
		return path + "[" + strconv.Quote(key) + "]"
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

// Index is the path of element i below path: run.files[0].
func Index(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// Suggest returns the one of known that word was probably meant to be, or "". Upper case and _ count
// as slips too.
func Suggest(word string, known []string) string {
	best, least := "", 1+min(2, len(word)/3)
	fold := strings.ReplaceAll(strings.ToLower(word), "_", "-")
	for _, k := range known {
		d := distance(fold, strings.ReplaceAll(strings.ToLower(k), "_", "-"))
		if d < least {
			best, least = k, d
		}
	}
	return best
}

// didYouMean is Suggest as the end of a sentence.
func didYouMean(word string, known []string) string {
	if s := Suggest(word, known); s != "" {
		return fmt.Sprintf("; did you mean %q?", s)
	}
	return ""
}

// distance counts the letters to add, drop, change or swap with a neighbour. Long words are not worth
// comparing: nothing mesh knows is longer than 64 bytes.
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 64
	}
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		before, last, row = last, row, before
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
	}
	return row[len(b)]
}

// plainKey reports whether a key can stand in a path as it is.
func plainKey(key string) bool {
	for i := range len(key) {
		c := key[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' && c != '-' {
			return false
		}
	}
	return key != ""
}
