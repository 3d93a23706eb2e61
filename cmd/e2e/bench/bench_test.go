package main

import (
	"bytes"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestMain lets this test program be the children of a run, as the program itself is.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && parts()[os.Args[1]] != nil {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestRowsWithFew runs rows with a few agents and nodes: the figures mean nothing, but every part has to
// do its work.
func TestRowsWithFew(t *testing.T) {
	for _, tt := range []struct {
		name, rows string
		lines      []int
	}{
		{"pushes", "1,2,3", []int{1, 2, 3, 3}},
		{"a pass", "5", []int{5, 5}},
		{"composing and publishing", "7,8,9", []int{7, 7, 7, 8, 8, 9, 9}},
		{"the packet filter", "10", []int{10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10}},
		{"the bus goes and comes", "12", []int{12}},
		{"machines join", "13", []int{13, 13}},
		{"memory", "14", []int{14}},
		{"a bundle", "15", []int{15, 15}},
		{"an image", "16", []int{16, 16}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, err := parse([]string{"--json", "--rounds", "1", "--rows", tt.rows, "--dir", t.TempDir(),
				"--agents", "6", "--nodes", "60", "--storm", "20", "--bundle", "2", "--users", "30", "--connected", "10"})
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			if err := b.scoreboard(t.Context(), &out); err != nil {
				t.Fatal(err)
			}
			var got board
			if err := json.Unmarshal(out.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
			if len(got.Failed) > 0 {
				t.Errorf("not measured: %q", got.Failed)
			}
			var lines []int
			for _, s := range got.Scores {
				lines = append(lines, s.Row)
				if s.Mesh <= 0 {
					t.Errorf("row %d, %s: mesh took %v %s", s.Row, s.Work, s.Mesh, s.Unit)
				}
			}
			if !slices.Equal(lines, tt.lines) {
				t.Errorf("lines of rows %v, want %v", lines, tt.lines)
			}
			if left, err := os.ReadDir(b.keep); err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
}

func TestBoardSaysWhatIsMissed(t *testing.T) {
	ms := func(v ...float64) (all []sample) {
		for _, x := range v {
			all = append(all, sample{time.Duration(x * float64(time.Millisecond)), time.Duration(x * float64(time.Millisecond))})
		}
		return all
	}
	b := board{Idle: 0.97, Took: 61, Scores: []score{
		compare(1, "push", ms(1000, 900, 1100), ms(1800, 5000, 1900)).within(2, "<= 1.2x"),
		compare(2, "again", ms(10), ms(25)).within(2, "<= 1.3x").note("why"),
		figures(5, "pass", "ms", []float64{2}, []float64{3.5}).under(4, ""),
	}, Failed: []string{"rows [4]: no root"}}
	var out bytes.Buffer
	if err := b.text(&out); err != nil {
		t.Fatal(err)
	}
	want := `ROW  WORK   FLOOR     MESH      RATIO  CPU    LEAST   MET     AIM
1    push   1.00 s    1.90 s    1.90x  1.90x  <= 2x   yes     <= 1.2x
2    again  10.00 ms  25.00 ms  2.50x  2.50x  <= 2x   MISSED  <= 1.3x
5    pass   2.00 ms   3.50 ms   1.75x  -      < 4 ms  yes     -
row 2: why
NOT MEASURED: rows [4]: no root
3 lines, 1 missed their least, 1 rows not measured; 61 s; the machine was 97 % idle at the start
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

func TestRowsAreChosen(t *testing.T) {
	for _, tt := range []struct {
		args    []string
		rows    []int
		refused string
	}{
		{nil, nil, ""},
		{[]string{"--rows", "1, 3"}, []int{1, 3}, ""},
		{[]string{"--rows", "99"}, nil, `row "99"`},
		{[]string{"--rows", "x"}, nil, `row "x"`},
		{[]string{"3"}, nil, `argument "3"`},
	} {
		b, err := parse(tt.args)
		if tt.refused != "" {
			if err == nil || !strings.Contains(err.Error(), tt.refused) || !strings.Contains(err.Error(), "\ndo: ") {
				t.Errorf("%q: %v", tt.args, err)
			}
			continue
		}
		if err != nil || !slices.Equal(b.rows, tt.rows) {
			t.Errorf("%q: rows %v, %v", tt.args, b.rows, err)
		}
	}
}

func TestQuantiles(t *testing.T) {
	v := []float64{5, 1, 4, 2, 3}
	if m, q := median(v), quantile(v, 0.99); m != 3 || q != 5 {
		t.Errorf("median %v, p99 %v", m, q)
	}
	if m := median([]float64{1, 2, 3, 10}); m != 2.5 {
		t.Errorf("median of four is %v", m)
	}
	if median(nil) != 0 || quantile(nil, 0.5) != 0 || ratio(1, 0) != 0 {
		t.Error("nothing is not 0")
	}
}
