package take

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"mesh/shared/report"
)

const (
	// maxCompared bounds in bytes and lines what is compared line by line.
	maxCompared, maxLines = 256 << 10, 600
	// around is how many equal lines stand before and after what differs.
	around = 2
)

// isText reports whether b can be shown line by line.
func isText(b []byte) bool {
	return len(b) <= maxCompared && utf8.Valid(b) && !bytes.ContainsRune(b, 0) && bytes.Count(b, []byte("\n")) < maxLines
}

func lines(b []byte) []string {
	text := strings.TrimSuffix(string(b), "\n")
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

// difference says how have differs from want, line by line: "- " of have alone, "+ " of want alone, "  " of both. What
// is beyond report.MaxDifference lines is counted.
func difference(have, want []byte) []string {
	a, b := lines(have), lines(want)
	all := edits(a, b)
	near := make([]bool, len(all))
	for i, l := range all {
		if l[0] == ' ' {
			continue
		}
		for j := max(0, i-around); j < min(len(all), i+around+1); j++ {
			near[j] = true
		}
	}
	var out []string
	for i, l := range all {
		switch {
		case near[i]:
			out = append(out, l)
		case i > 0 && near[i-1]:
			out = append(out, "  …")
		}
	}
	if len(out) == 0 && !bytes.Equal(have, want) {
		out = []string{"  only the end of the last line differs"}
	}
	if n := len(out) - report.MaxDifference; n > 0 {
		out = append(out[:report.MaxDifference-1], fmt.Sprintf("… and %d more lines", n+1))
	}
	return out
}

// edits is the shortest way from a to b, by the longest common subsequence of lines.
func edits(a, b []string) (out []string) {
	length := make([][]uint16, len(a)+1)
	for i := range length {
		length[i] = make([]uint16, len(b)+1)
	}
	for i, x := range slices.Backward(a) {
		for j, y := range slices.Backward(b) {
			if x == y {
				length[i][j] = length[i+1][j+1] + 1
			} else {
				length[i][j] = max(length[i+1][j], length[i][j+1])
			}
		}
	}
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			out = append(out, "  "+a[i])
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && length[i+1][j] >= length[i][j+1]:
			out = append(out, "- "+a[i])
			i++
		default:
			out = append(out, "+ "+b[j])
			j++
		}
	}
	return out
}
