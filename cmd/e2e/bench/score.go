package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// score is one line of the scoreboard: a figure of mesh beside the same of its floor.
type score struct {
	Row  int    `json:"row"`
	Work string `json:"work"`
	// Unit is of Floor, Mesh and the samples.
	Unit  string  `json:"unit"`
	Floor float64 `json:"floor"`
	Mesh  float64 `json:"mesh"`
	Ratio float64 `json:"ratio"`
	// FloorCPU and MeshCPU are the processor time of all processes of a side, in milliseconds.
	FloorCPU float64 `json:"floor_cpu_ms,omitempty"`
	MeshCPU  float64 `json:"mesh_cpu_ms,omitempty"`
	CPURatio float64 `json:"cpu_ratio,omitempty"`
	// Bound is the least this row has to reach, Aim what it is meant to reach.
	Bound  string   `json:"bound,omitempty"`
	Aim    string   `json:"aim,omitempty"`
	Met    *bool    `json:"met,omitempty"`
	Rounds int      `json:"rounds,omitempty"`
	Notes  []string `json:"notes,omitempty"`

	FloorSamples []float64 `json:"floor_samples,omitempty"`
	MeshSamples  []float64 `json:"mesh_samples,omitempty"`
}

// compare makes the line of two sides that ran in turn: medians, their ratio, that of the processor time.
func compare(row int, work string, floor, mesh []sample) score {
	s := figures(row, work, "ms", walls(floor), walls(mesh))
	s.FloorCPU, s.MeshCPU = median(cpus(floor)), median(cpus(mesh))
	s.CPURatio = ratio(s.MeshCPU, s.FloorCPU)
	return s
}

// figures makes the line of two lists of figures.
func figures(row int, work, unit string, floor, mesh []float64) score {
	s := score{Row: row, Work: work, Unit: unit, Floor: median(floor), Mesh: median(mesh), Rounds: len(mesh), FloorSamples: floor, MeshSamples: mesh}
	s.Ratio = ratio(s.Mesh, s.Floor)
	return s
}

func ratio(mesh, floor float64) float64 {
	if floor == 0 {
		return 0
	}
	return mesh / floor
}

// within bounds the ratio to the floor.
func (s score) within(times float64, aim string) score {
	s.Bound, s.Aim = fmt.Sprintf("<= %gx", times), aim
	met := s.Ratio > 0 && s.Ratio <= times
	s.Met = &met
	return s
}

// under bounds mesh's own figure.
func (s score) under(most float64, aim string) score {
	s.Bound, s.Aim = fmt.Sprintf("< %g %s", most, s.Unit), aim
	met := s.Mesh < most
	s.Met = &met
	return s
}

func (s score) note(format string, args ...any) score {
	s.Notes = append(s.Notes, fmt.Sprintf(format, args...))
	return s
}

// board is the scoreboard of one run.
type board struct {
	// Idle is the share of the machine that nobody used before the start, 0 to 1.
	Idle   float64  `json:"idle"`
	Warn   string   `json:"warning,omitempty"`
	Scores []score  `json:"scores"`
	Failed []string `json:"failed,omitempty"`
	// Took is the whole run, in seconds.
	Took float64 `json:"took_s"`
}

func (b *board) json(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(b)
}

func (b *board) text(w io.Writer) error {
	var p strings.Builder
	tw := tabwriter.NewWriter(&p, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "ROW\tWORK\tFLOOR\tMESH\tRATIO\tCPU\tLEAST\tMET\tAIM")
	missed := 0
	for _, s := range b.Scores {
		met := "-"
		if s.Met != nil {
			met = map[bool]string{true: "yes", false: "MISSED"}[*s.Met]
			if !*s.Met {
				missed++
			}
		}
		fmt.Fprintf(tw, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", s.Row, s.Work, amount(s.Floor, s.Unit), amount(s.Mesh, s.Unit), times(s.Ratio), times(s.CPURatio), orDash(s.Bound), met, orDash(s.Aim))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	for _, s := range b.Scores {
		for _, n := range s.Notes {
			fmt.Fprintf(&p, "row %d: %s\n", s.Row, n)
		}
	}
	for _, f := range b.Failed {
		fmt.Fprintf(&p, "NOT MEASURED: %s\n", f)
	}
	fmt.Fprintf(&p, "%d lines, %d missed their least, %d rows not measured; %.0f s; the machine was %.0f %% idle at the start\n", len(b.Scores), missed, len(b.Failed), b.Took, 100*b.Idle)
	if b.Warn != "" {
		fmt.Fprintf(&p, "WARNING: %s\n", b.Warn)
	}
	_, err := io.WriteString(w, p.String())
	return err
}

func amount(v float64, unit string) string {
	switch {
	case v == 0:
		return "-"
	case unit == "ms" && v >= 1000:
		return fmt.Sprintf("%.2f s", v/1000)
	case v >= 100:
		return fmt.Sprintf("%.0f %s", v, unit)
	case v >= 1:
		return fmt.Sprintf("%.2f %s", v, unit)
	}
	return fmt.Sprintf("%.4f %s", v, unit)
}

func times(v float64) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2fx", v)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
