package agent

import (
	"encoding/json"
	"fmt"
	"slices"

	"mesh/agent/filter"
	"mesh/shared/declaration"
	"mesh/shared/report"
)

// lastProblems is how many problems a report carries.
const lastProblems = 5

// freeDiskGrain is how many bytes free disk must change by to be news: a log line is none.
const freeDiskGrain = 1 << 30

// newsKey is equal for reports of which the second is no news (NOD-7): times, counters and small
// changes of free disk are left out. A module that is restarted over and over is news once.
func newsKey(r report.Report) (string, error) {
	r.Number, r.At, r.Apply.TookMS = 0, 0, 0
	r.Modules = slices.Clone(r.Modules)
	for i := range r.Modules {
		r.Modules[i].Restarts = 0
	}
	r.FreeDisk /= freeDiskGrain
	if r.Filter != nil {
		f := *r.Filter
		f.Since = 0
		r.Filter = &f
	}
	b, err := json.Marshal(r)
	if err != nil {
		return "", fmt.Errorf("encode report: %w", err)
	}
	return string(b), nil
}

// filterWords is the packet filter as report and show say it; nil when none was ever declared here.
func filterWords(declared *declaration.Filter, s filter.State) *report.Filter {
	if declared == nil && !s.Loaded && len(s.Rules) == 0 {
		return nil
	}
	out := &report.Filter{Loaded: s.Loaded, Repairs: s.Repairs}
	if !s.Since.IsZero() {
		out.Since = s.Since.UnixMilli()
	}
	for _, a := range s.Rules {
		out.Rules = append(out.Rules, a.String())
	}
	switch {
	case s.LastRefusal != nil:
		out.Why = s.LastRefusal.Error()
	case s.Fought:
		out.Why = fmt.Sprintf("%s undoes mesh's repairs (%s); it is repaired once a minute", s.LastRepairBy, s.LastDrift)
	case !s.Loaded && len(s.Rules) > 0:
		out.Why = "the kernel's table is not as it should be: " + s.LastDrift
	case !s.Loaded:
		out.Why = "it is declared and not put in force yet"
	}
	return out
}
