package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"mesh/agent/show"
	"mesh/shared/metrics"
	"mesh/shared/report"
)

// totals are what the loop counts; it owns them.
type totals struct {
	passes, failed, steps, drift uint64
	took, last                   time.Duration // of passes
}

// count notes how a pass went.
func (t *totals) count(d done) {
	t.passes++
	if d.err != nil {
		t.failed++
		return
	}
	t.steps += uint64(d.result.Steps)
	t.drift += uint64(len(d.result.Drift))
	t.took += d.result.Took
	t.last = d.result.Took
}

// wellBound is how long the loop may take to answer before the agent is called not well.
const wellBound = 2 * time.Second

// well says why the agent cannot do its work; nil when it can. A module that fails is no fault of the agent's:
// show and the metrics say it.
func (a *Agent) well(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, wellBound)
	defer cancel()
	var broken *note
	if err := a.onLoop(ctx, func(*waiting) { broken = a.view.broken }); err != nil {
		return fmt.Errorf("the agent's loop does not answer: %w", err)
	}
	if broken != nil {
		return broken.why
	}
	return nil
}

// serveMetrics answers on loopback until ctx ends (OPS-4).
func (a *Agent) serveMetrics(ctx context.Context) error {
	return metrics.Keep(ctx, a.cfg.Clock, a.cfg.Metrics, metrics.Config{Gather: a.gather, Well: a.well, Log: a.cfg.Log})
}

func (a *Agent) gather(ctx context.Context) ([]metrics.Metric, error) {
	var d *show.Document
	var errGather error
	var t totals
	var repairs float64
	err := a.onLoop(ctx, func(*waiting) {
		d, errGather = show.Gather(ctx, a.store, a.runtime())
		t, repairs = a.totals, float64(a.filterState().Repairs)
	})
	if err = errors.Join(err, errGather); err != nil {
		return nil, err
	}
	seconds := func(ms int64) float64 { return float64(ms) / 1000 }
	outcomes := []metrics.Sample{}
	for _, o := range []report.Outcome{report.None, report.Applying, report.Applied, report.Failed, report.Refused} {
		outcomes = append(outcomes, metrics.Sample{Labels: []string{"outcome", string(o)}, Value: metrics.Bool(d.Declaration.Outcome == o)})
	}
	out := []metrics.Metric{
		metrics.One("mesh_agent_info", "The agent, its node and its mesh.", metrics.Gauge, 1, "version", d.Agent.Version, "node", string(d.Node), "mesh", d.Mesh),
		metrics.One("mesh_bus_up", "Whether the bus is reached.", metrics.Gauge, metrics.Bool(d.Bus.Up)),
		metrics.One("mesh_bus_changed_timestamp_seconds", "When the bus came or went.", metrics.Gauge, seconds(d.Bus.Since)),
		metrics.One("mesh_declaration_seq", "The declaration held.", metrics.Gauge, float64(d.Declaration.Seq)),
		metrics.One("mesh_declaration_accepted_timestamp_seconds", "When it was accepted.", metrics.Gauge, seconds(d.Declaration.Accepted)),
		{Name: "mesh_declaration_outcome", Help: "How it stands with the declaration: 1 for what is so.", Kind: metrics.Gauge, Samples: outcomes},
		metrics.One("mesh_apply_passes_total", "Passes over the machine, looks among them.", metrics.Counter, float64(t.passes)),
		metrics.One("mesh_apply_failed_passes_total", "Passes that could not be made at all.", metrics.Counter, float64(t.failed)),
		metrics.One("mesh_apply_steps_total", "Acts on the machine.", metrics.Counter, float64(t.steps)),
		metrics.One("mesh_apply_seconds_total", "Time spent in passes.", metrics.Counter, t.took.Seconds()),
		metrics.One("mesh_apply_last_seconds", "How long the last pass took.", metrics.Gauge, t.last.Seconds()),
		metrics.One("mesh_drift_total", "Changes by hand that were found.", metrics.Counter, float64(t.drift)),
		metrics.One("mesh_drift_left", "Changes by hand that stay as they are, now.", metrics.Gauge, float64(len(d.Left))),
		metrics.One("mesh_strays", "Units with mesh's mark that nothing declares, now.", metrics.Gauge, float64(len(d.Strays))),
		metrics.One("mesh_outbox_messages", "Messages that wait for the bus.", metrics.Gauge, float64(d.Outbox.Depth)),
		metrics.One("mesh_outbox_dropped_total", "Messages that were given up for newer ones.", metrics.Counter, float64(d.Outbox.Dropped)),
		metrics.One("mesh_report_number", "The last report that was made.", metrics.Gauge, float64(a.made.Load())),
		metrics.One("mesh_free_disk_bytes", "What is left where the agent keeps its state.", metrics.Gauge, float64(d.FreeDisk)),
		metrics.One("mesh_journal_reads", "Reads of the journal over the bus that are open.", metrics.Gauge, float64(a.journal.Open())),
	}
	out = append(out, modules(d.Modules)...)
	if d.Filter != nil {
		out = append(out, metrics.One("mesh_filter_loaded", "Whether the packet filter is in force as declared.", metrics.Gauge, metrics.Bool(d.Filter.Loaded && d.Filter.Why == "")),
			metrics.One("mesh_filter_repairs_total", "Repairs of the packet filter.", metrics.Counter, repairs))
	}
	return append(out, a.serve.Metrics()...), nil
}

func modules(all []report.Module) []metrics.Metric {
	running := metrics.Metric{Name: "mesh_module_running", Help: "Whether the module runs as declared.", Kind: metrics.Gauge}
	restarts := metrics.Metric{Name: "mesh_module_restarts", Help: "Restarts of its services by systemd since they were last started by hand or by mesh.", Kind: metrics.Gauge}
	since := metrics.Metric{Name: "mesh_module_state_timestamp_seconds", Help: "Since when it is in its state.", Kind: metrics.Gauge}
	for _, m := range all {
		name := []string{"module", string(m.Name)}
		running.Samples = append(running.Samples, metrics.Sample{Labels: append(name, "build", m.Build, "state", string(m.State)), Value: metrics.Bool(m.State == report.Running)})
		restarts.Samples = append(restarts.Samples, metrics.Sample{Labels: name, Value: float64(m.Restarts)})
		since.Samples = append(since.Samples, metrics.Sample{Labels: name, Value: float64(m.Since) / 1000})
	}
	return []metrics.Metric{running, restarts, since}
}
