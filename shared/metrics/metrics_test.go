package metrics

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"mesh/shared/clock"
	"mesh/shared/refusal"
	"mesh/shared/waitfor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestWrite(t *testing.T) {
	var b bytes.Buffer
	err := Write(&b, []Metric{
		One("mesh_up", "Whether it is up.\nAnd \\ more.", Gauge, 1),
		{Name: "mesh_none", Help: "x", Kind: Gauge},
		{Name: "mesh_modules", Help: "Modules.", Kind: Gauge, Samples: Sorted([]Sample{{[]string{"module", "b", "state", "running"}, 2.5}, {[]string{"module", `a"\` + "\n\xff", "state", "failed"}, math.Inf(1)}})},
		One("mesh_bytes_total", "Bytes.", Counter, 1e15),
	})
	want := `# HELP mesh_up Whether it is up.\nAnd \\ more.
# TYPE mesh_up gauge
mesh_up 1
# HELP mesh_modules Modules.
# TYPE mesh_modules gauge
mesh_modules{module="a\"\\\n�",state="failed"} +Inf
mesh_modules{module="b",state="running"} 2.5
# HELP mesh_bytes_total Bytes.
# TYPE mesh_bytes_total counter
mesh_bytes_total 1e+15
`
	if err != nil || b.String() != want {
		t.Errorf("%v\n%s", err, b.String())
	}
}

func TestProcess(t *testing.T) {
	for _, m := range Process() {
		if len(m.Samples) != 1 || m.Samples[0].Value < 0 || m.Name == "process_resident_memory_bytes" && (m.Samples[0].Value < 1<<20 || m.Samples[0].Value > 1<<34) {
			t.Errorf("%+v", m)
		}
	}
	if n := len(Process()); n != 4 {
		t.Errorf("%d metrics of this process", n)
	}
}

func TestLoopbackOnly(t *testing.T) {
	for _, bad := range []string{"", "0.0.0.0:9463", ":9463", "192.0.2.1:9463", "localhost:9463", "[::]:9463", "127.0.0.1"} {
		if l, err := Listen(t.Context(), bad); refusal.Of(err) == nil {
			t.Errorf("%q: %v", bad, err)
			if l != nil {
				_ = l.Close()
			}
		}
	}
}

func TestServe(t *testing.T) {
	l, err := Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ill := make(chan error, 1)
	ill <- nil
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	hang := make(chan struct{})
	go func() {
		ended <- Serve(ctx, l, Config{Log: slog.New(slog.DiscardHandler),
			Gather: func(ctx context.Context) ([]Metric, error) {
				select {
				case <-hang:
					return nil, ctx.Err()
				default:
					return []Metric{One("mesh_up", "Up.", Gauge, 1)}, nil
				}
			},
			Well: func(context.Context) error { err := <-ill; ill <- errors.New("no disk"); return err }})
	}()
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	get := func(method, path string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, "http://"+l.Addr().String()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		if err = errors.Join(err, resp.Body.Close()); err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(b)
	}
	line := regexp.MustCompile(`^(# (HELP|TYPE) [a-z_]+ .+|[a-z_]+(\{.*\})? [0-9.e+-]+)$`)
	code, text := get("GET", "/metrics")
	for l := range strings.Lines(text) {
		if !line.MatchString(strings.TrimSuffix(l, "\n")) {
			t.Errorf("not in the format: %q", l)
		}
	}
	if code != 200 || !strings.Contains(text, "\nmesh_up 1\n") || !strings.Contains(text, "\nprocess_resident_memory_bytes ") {
		t.Errorf("%d\n%s", code, text)
	}
	if code, text := get("GET", "/healthz"); code != 200 || text != "well\n" {
		t.Errorf("%d %q", code, text)
	}
	if code, text := get("GET", "/healthz"); code != 503 || !strings.Contains(text, "no disk") {
		t.Errorf("%d %q", code, text)
	}
	if code, _ := get("POST", "/metrics"); code != 405 {
		t.Errorf("POST: %d", code)
	}
	if code, _ := get("GET", "/debug/pprof/"); code != 404 {
		t.Errorf("another path: %d", code)
	}
	close(hang)
	cancel()
	if err := waitfor.Value(t, "the end", 10*time.Second, ended); err != nil {
		t.Error(err)
	}
}

// A port that is taken ends no daemon: it is tried again.
func TestKeepTriesAgain(t *testing.T) {
	taken, err := Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	clk := clock.NewFake(clock.Real().Now())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- Keep(ctx, clk, taken.Addr().String(), Config{Log: slog.New(slog.DiscardHandler), Well: func(context.Context) error { return nil },
			Gather: func(context.Context) ([]Metric, error) { return nil, nil }})
	}()
	clk.Advance(keepPause)
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	waitfor.True(t, "the endpoint", 10*time.Second, func() (bool, any) {
		clk.Advance(keepPause)
		resp, err := client.Get("http://" + taken.Addr().String() + "/healthz")
		if err != nil {
			return false, err
		}
		return resp.Body.Close() == nil && resp.StatusCode == 200, resp.Status
	})
	cancel()
	if err := waitfor.Value(t, "the end", 10*time.Second, ended); err != nil {
		t.Error(err)
	}
}

func FuzzHead(f *testing.F) {
	f.Add("GET /metrics?x HTTP/1.1\r\nHost: a\r\n\r\n")
	f.Add("GET  HTTP/1.1\n\n")
	f.Fuzz(func(t *testing.T, s string) {
		method, path, err := head(strings.NewReader(s))
		if err == nil && (strings.ContainsAny(method+path, " \r\n") || len(method)+len(path) > mostHead) {
			t.Errorf("%q is read as %q %q", s, method, path)
		}
	})
}
