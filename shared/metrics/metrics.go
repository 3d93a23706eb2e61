// Package metrics is the Prometheus text format (version 0.0.4) and an endpoint for it on loopback (OPS-4).
// It is written by hand: what a daemon says of itself are some thirty numbers that it has anyway, read when
// somebody asks; prometheus/client_golang would bring the agent, which has to stay small, a registry,
// histograms and protocol buffers that nothing here uses. Nothing is counted for its sake, and with no endpoint
// nothing runs. The endpoint speaks as much HTTP/1.1 as a scrape needs, one answer a connection: net/http's
// server would make the agent half a megabyte larger. Serve owns its goroutines.
package metrics

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"mesh/shared/clock"
	"mesh/shared/order"
	"mesh/shared/refusal"
)

// Kind is a metric's type.
type Kind string

// The kinds that are used.
const (
	Counter Kind = "counter"
	Gauge   Kind = "gauge"
)

// Metric is one family of samples with the same name.
type Metric struct {
	// Name follows the format's rules and this house's: mesh_…, a unit at the end, _total for a counter.
	Name string
	Help string
	Kind Kind
	// Samples may be empty: then the family is left out.
	Samples []Sample
}

// Sample is one value.
type Sample struct {
	// Labels are name and value in turn.
	Labels []string
	Value  float64
}

// One is a metric with one sample and these labels, name and value in turn.
func One(name, help string, kind Kind, value float64, labels ...string) Metric {
	return Metric{name, help, kind, []Sample{{labels, value}}}
}

// Bool is 1 for true.
func Bool(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Write writes all in the text format, in the order given.
func Write(w io.Writer, all []Metric) error {
	var b bytes.Buffer
	for _, m := range all {
		if len(m.Samples) == 0 {
			continue
		}
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n", m.Name, helpText.Replace(m.Help), m.Name, m.Kind)
		for _, s := range m.Samples {
			b.WriteString(m.Name)
			for i := 0; i+1 < len(s.Labels); i += 2 {
				sep := ","
				if i == 0 {
					sep = "{"
				}
				b.WriteString(sep + s.Labels[i] + `="` + labelText.Replace(strings.ToValidUTF8(s.Labels[i+1], "\uFFFD")) + `"`)
			}
			if len(s.Labels) > 1 {
				b.WriteByte('}')
			}
			b.WriteByte(' ')
			b.WriteString(number(s.Value))
			b.WriteByte('\n')
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}

var (
	helpText  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	labelText = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)

func number(v float64) string {
	switch {
	case math.IsInf(v, 1):
		return "+Inf"
	case math.IsInf(v, -1):
		return "-Inf"
	case math.IsNaN(v):
		return "NaN"
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}

// Process are the numbers of this process, under the names that everybody gives them. What /proc does not
// tell is left out.
func Process() []Metric {
	out := []Metric{One("go_goroutines", "Goroutines that exist.", Gauge, float64(runtime.NumGoroutine()))}
	if b, err := os.ReadFile("/proc/self/stat"); err == nil {
		// After the last ")": the name of the program may hold anything (proc(5)).
		if f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:])); len(f) > 21 {
			user, errU := strconv.ParseFloat(f[11], 64)
			system, errS := strconv.ParseFloat(f[12], 64)
			pages, errP := strconv.ParseFloat(f[21], 64)
			if errors.Join(errU, errS, errP) == nil {
				out = append(out, One("process_cpu_seconds_total", "CPU time spent, user and system.", Counter, (user+system)/clockTicks),
					One("process_resident_memory_bytes", "Memory in RAM.", Gauge, pages*float64(os.Getpagesize())))
			}
		}
	}
	if fds, err := os.ReadDir("/proc/self/fd"); err == nil {
		out = append(out, One("process_open_fds", "Open files.", Gauge, float64(len(fds))))
	}
	return out
}

// clockTicks is the kernel's USER_HZ, 100 on every architecture mesh is built for.
const clockTicks = 100

// Config says what is served.
type Config struct {
	// Gather gives the metrics now, within its context.
	Gather func(context.Context) ([]Metric, error)
	// Well returns why the daemon cannot do its work, nil when it can.
	Well func(context.Context) error
	Log  *slog.Logger
}

// Listen opens the endpoint at address, host:port on loopback: it has no lock, and is for who is on the
// machine.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	at, err := netip.ParseAddrPort(address)
	if err != nil || !at.Addr().IsLoopback() {
		return nil, refusal.New(fmt.Sprintf("metrics at %q", address), "they are served on loopback only, and this is no address there", "write 127.0.0.1:9463 or [::1]:9463; to reach it from elsewhere use a tunnel or a proxy of your own")
	}
	var l net.ListenConfig
	return l.Listen(ctx, "tcp", at.String())
}

// keepPause is the pause before an endpoint that could not be opened is tried again.
const keepPause = 30 * time.Second

// Keep serves at address until ctx ends. An address that is taken, or none, is said once and tried again: a
// daemon does not end for it.
func Keep(ctx context.Context, clk clock.Clock, address string, c Config) error {
	said := ""
	for {
		l, err := Listen(ctx, address)
		if err == nil {
			c.Log.Info("metrics are served", "address", l.Addr().String())
			err = Serve(ctx, l, c)
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && err.Error() != said {
			said = err.Error()
			c.Log.Warn("metrics are not served, trying again", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-clk.After(keepPause):
		}
	}
}

// Sorted is samples in the order of their labels: a scrape differs from the one before by its values only.
func Sorted(samples []Sample) []Sample {
	order.Sort(samples, func(a, b Sample) int { return slices.Compare(a.Labels, b.Labels) })
	return samples
}
