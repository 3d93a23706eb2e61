package coordinator

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"mesh/coordinator/keys"
	"mesh/shared/metrics"
)

// serveMetrics answers on loopback until ctx ends (OPS-4).
func (c *Coordinator) serveMetrics(ctx context.Context) error {
	return metrics.Keep(ctx, c.cfg.Clock, c.cfg.Metrics, metrics.Config{Gather: c.gather, Well: c.well, Log: c.cfg.Log})
}

func (c *Coordinator) gather(ctx context.Context) ([]metrics.Metric, error) {
	status, counts, err := c.verbs.Overview(ctx)
	if err != nil {
		return nil, err
	}
	n := status.Counts
	states := metrics.Metric{Name: "mesh_nodes", Help: "Nodes by how they are.", Kind: metrics.Gauge}
	for state, count := range counts {
		states.Samples = append(states.Samples, metrics.Sample{Labels: []string{"state", string(state)}, Value: float64(count)})
	}
	metrics.Sorted(states.Samples)
	gauge := func(name, help string, v float64) metrics.Metric { return metrics.One(name, help, metrics.Gauge, v) }
	counter := func(name, help string, v float64) metrics.Metric {
		return metrics.One(name, help, metrics.Counter, v)
	}
	out := []metrics.Metric{
		metrics.One("mesh_coordinator_info", "The coordinator and its mesh.", metrics.Gauge, 1, "version", c.cfg.Version, "mesh", status.Mesh, "name", status.Name),
		gauge("mesh_well", "Whether nothing is wrong that the coordinator knows of.", metrics.Bool(status.Well)),
		gauge("mesh_problems", "What is wrong, as mesh-coordinator status lists it.", float64(len(status.Problems))),
		states,
		gauge("mesh_modules", "Modules registered.", float64(n.Modules)),
		gauge("mesh_assignments", "Modules on nodes.", float64(n.Assignments)),
		gauge("mesh_operators", "People let in.", float64(n.Operators)),
		gauge("mesh_status_seconds", "How long it took to compose the status.", float64(status.TookMS)/1000),
	}
	if st, err := os.Stat(filepath.Join(c.cfg.Dir, keys.RecordsFile)); err == nil {
		out = append(out, gauge("mesh_records_bytes", "The file of the records.", float64(st.Size())))
	}
	out = append(out, c.verbs.Metrics()...)
	bus, err := c.broker.Numbers()
	if err != nil {
		return out, errors.Join(err, ctx.Err())
	}
	return append(out,
		gauge("mesh_bus_connections", "Connections to the bus.", float64(bus.Connections)),
		gauge("mesh_bus_subscriptions", "Subscriptions on it.", float64(bus.Subscriptions)),
		counter("mesh_bus_in_messages_total", "Messages it was given.", float64(bus.InMessages)),
		counter("mesh_bus_out_messages_total", "Messages it handed on.", float64(bus.OutMessages)),
		counter("mesh_bus_in_bytes_total", "Bytes it was given.", float64(bus.InBytes)),
		counter("mesh_bus_out_bytes_total", "Bytes it handed on.", float64(bus.OutBytes)),
		counter("mesh_bus_slow_consumers_total", "Connections it gave up because they read too slowly.", float64(bus.SlowConsumers)),
		gauge("mesh_bus_streams", "Streams.", float64(bus.Streams)),
		gauge("mesh_bus_consumers", "Consumers.", float64(bus.Consumers)),
		gauge("mesh_bus_stored_messages", "Messages kept.", float64(bus.StoreMessages)),
		gauge("mesh_bus_stored_bytes", "Bytes kept.", float64(bus.StoreBytes)),
		gauge("mesh_bus_store_room_bytes", "Bytes that may be kept.", float64(bus.StoreReserve)),
		counter("mesh_bus_api_errors_total", "Asks of the stream API that it refused.", float64(bus.APIErrors)),
	), nil
}
