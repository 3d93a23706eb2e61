package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"mesh/firewall"
	"mesh/firewall/foreign"
	"mesh/shared/clock"
	"mesh/shared/rule"
)

// filterer drives mesh's table in a network namespace of its own.
type filterer struct {
	space  string
	driver *firewall.Driver
	tables []firewall.Table
	files  []string // the same as text
	at     int
}

// atOnce is a clock whose waits are over: the first load on a machine waits two seconds.
type atOnce struct{ clock.Clock }

func (atOnce) After(time.Duration) <-chan time.Time {
	c := make(chan time.Time, 1)
	c <- time.Time{}
	return c
}

// filterPart is the child "mesh-filter".
func filterPart(ctx context.Context) error {
	space, err := netspace()
	if err != nil {
		return err
	}
	f := &filterer{space: space}
	if f.driver, err = firewall.Open(firewall.WithClock(atOnce{clock.Real()})); err != nil {
		return err
	}
	err = serve(ctx, handlers{
		// "rules" makes tables of n rules, all of them others, and loads one.
		"rules": on(func(ctx context.Context, n int) (any, error) {
			if err := f.make(manyRules(n, 1000), manyRules(n, 10_000)); err != nil {
				return nil, err
			}
			return f.entry(), f.turn(ctx)
		}),
		"replace": on(func(ctx context.Context, n int) (any, error) { return many(n, func() error { return f.turn(ctx) }) }),
		// "again" loads what is in force.
		"again": on(func(ctx context.Context, n int) (any, error) {
			return many(n, func() error { return f.driver.Load(ctx, f.now()) })
		}),
		"look": on(func(ctx context.Context, n int) (any, error) { return many(n, func() error { return f.look(ctx) }) }),
		// "compile" makes the table of n rules.
		"compile": on(func(_ context.Context, n int) (any, error) {
			filter := manyRules(n, 1000)
			return measured(func() error { _, err := firewall.Compile(filter); return err })
		}),
		"addresses": on(func(ctx context.Context, n int) (any, error) { return f.addresses(ctx, n) }),
		"texts":     on(func(_ context.Context, dir string) (any, error) { return nil, f.texts(dir) }),
	})
	return errors.Join(err, f.driver.Close())
}

// nftPart is the child "floor-nft": nft itself, in a namespace of its own.
func nftPart(ctx context.Context) error {
	if _, err := netspace(); err != nil {
		return err
	}
	f, lines := &filterer{}, &filterer{}
	return serve(ctx, handlers{
		"texts": on(func(_ context.Context, files []string) (any, error) { f.files = files; return nil, f.nft(ctx) }),
		"nft":   on(func(ctx context.Context, n int) (any, error) { return many(n, func() error { return f.nft(ctx) }) }),
		// "lines" makes texts in which each of n rules is a rule of the kernel's, and "linear" loads one.
		"lines": on(func(ctx context.Context, n int) (any, error) {
			return nil, lines.lines(ctx, n, filepath.Dir(f.files[0]))
		}),
		"linear": on(func(ctx context.Context, n int) (any, error) { return many(n, func() error { return lines.nft(ctx) }) }),
	})
}

// lines makes two texts of n rules, all of them others, and loads one; dir takes them.
func (l *filterer) lines(ctx context.Context, n int, dir string) error {
	l.files = nil
	for i, port := range []int{1000, 10_000} {
		var b strings.Builder
		b.WriteString("table inet linear\nflush table inet linear\ntable inet linear {\n\tchain input {\n\t\ttype filter hook input priority 0; policy accept;\n")
		for i := range n {
			fmt.Fprintf(&b, "\t\tmeta l4proto tcp ct original proto-dst %d counter accept comment \"m%d: %[1]d/tcp from anywhere\"\n", port+i, i)
		}
		b.WriteString("\t}\n}\n")
		l.files = append(l.files, filepath.Join(dir, fmt.Sprintf("linear-%d.nft", i)))
		if err := os.WriteFile(l.files[i], []byte(b.String()), 0o600); err != nil {
			return err
		}
	}
	return l.nft(ctx)
}

// foreignPart is the child "mesh-foreign": a reading of everybody's rules.
func foreignPart(ctx context.Context) error {
	if _, err := netspace(); err != nil {
		return err
	}
	return serve(ctx, handlers{
		"enter": on(func(_ context.Context, space string) (any, error) { return nil, inside(space) }),
		"read": on(func(ctx context.Context, n int) (any, error) {
			return many(n, func() error {
				rs, err := foreign.Read(ctx)
				if err == nil && len(foreign.Judge(rs).Refusing) == 0 {
					err = errors.New("nothing refuses")
				}
				return err
			})
		}),
		// "weigh" is a reading in a process that has done nothing else: what it holds more at its peak, in KiB.
		"weigh": on(func(ctx context.Context, _ nothing) (any, error) {
			if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
				return nil, err
			}
			before := memoryOf(os.Getpid()).peak
			_, err := foreign.Read(ctx)
			return memoryOf(os.Getpid()).peak - before, err
		}),
	})
}

// manyRules is a filter with n rules, each of another module.
func manyRules(n, port int) firewall.Filter {
	f := firewall.Filter{Outside: []string{"up0"}}
	for i := range n {
		p := uint16(port + i)
		f.Allow = append(f.Allow, rule.Allow{Owner: fmt.Sprintf("m%d", i), Port: rule.Port{First: p, Last: p, Protocol: "tcp"}, From: rule.Anywhere()})
	}
	return f
}

func (f *filterer) make(filters ...firewall.Filter) error {
	f.tables = nil
	for _, filter := range filters {
		t, err := firewall.Compile(filter)
		if err != nil {
			return err
		}
		f.tables = append(f.tables, t)
	}
	return nil
}

func (f *filterer) now() firewall.Table { return f.tables[f.at%len(f.tables)] }

func (f *filterer) turn(ctx context.Context) error {
	f.at++
	return f.driver.Load(ctx, f.now())
}

func (f *filterer) look(ctx context.Context) error {
	why, err := f.driver.Differs(ctx, f.now())
	if err == nil && why != "" {
		err = errors.New(why)
	}
	return err
}

// entry is what another process needs to read the table.
func (f *filterer) entry() rawEntry {
	e := rawEntry{Space: f.space}
	for line := range strings.Lines(f.tables[0].Text()) {
		if words := strings.Fields(line); len(words) == 5 && words[0] == "flush" && words[1] == "set" {
			e.Sets = append(e.Sets, words[4])
		}
	}
	return e
}

// addresses loads a rule from n single addresses into a table without it.
func (f *filterer) addresses(ctx context.Context, n int) (took, error) {
	with, without := manyRules(1, 80), manyRules(1, 80)
	var words []string
	for i := range n {
		words = append(words, fmt.Sprintf("10.%d.%d.1", i/256, i%256))
	}
	from, err := rule.ParseFrom(strings.Join(words, ","))
	if err != nil {
		return took{}, err
	}
	with.Allow[0].From = from
	if err := f.make(without, with); err != nil {
		return took{}, err
	}
	f.at = 1
	if err := f.turn(ctx); err != nil {
		return took{}, err
	}
	return measured(func() error { return f.turn(ctx) })
}

func (f *filterer) texts(dir string) error {
	for i, t := range f.tables {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.nft", i)), []byte(t.Text()), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (f *filterer) nft(ctx context.Context) error {
	f.at++
	out, err := exec.CommandContext(ctx, "nft", "-f", f.files[f.at%len(f.files)]).CombinedOutput()
	if err != nil {
		return fmt.Errorf("nft: %w: %s", err, out)
	}
	return nil
}
