package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"mesh/agent/apply"
	"mesh/agent/boot"
	"mesh/agent/converge"
	"mesh/agent/exposure"
	"mesh/agent/filter"
	"mesh/agent/host/engine"
	"mesh/agent/host/file"
	hostlink "mesh/agent/host/link"
	"mesh/agent/host/profile"
	"mesh/agent/host/systemd"
	"mesh/agent/resource"
	"mesh/agent/state"
	"mesh/agent/witness"
	"mesh/firewall"
	"mesh/firewall/foreign"
	"mesh/shared/clock"
	"mesh/shared/declaration"
	"mesh/shared/diagnosis"
	"mesh/shared/report"
)

// unitMark begins the name of every unit mesh makes.
const unitMark = "mesh-"

// OnHost makes the edges of a real machine below root: files, systemd over D-Bus, netlink and nftables. A
// part that is not there (a kernel without nftables) is said and left out; the rest works.
func OnHost(root string, log *slog.Logger) func(context.Context, *state.Store, func(context.Context) error) (Machine, error) {
	return func(ctx context.Context, s *state.Store, probe func(context.Context) error) (Machine, error) {
		clk := clock.Real()
		files, err := file.OpenRoot(root)
		if err != nil {
			return Machine{}, fmt.Errorf("open %s: %w", root, err)
		}
		units := systemd.New(clk)
		profile := profiler(root, units)
		now := profile(ctx)
		m := Machine{Profile: after(now, profile), Host: apply.Host{Files: files, Units: units, Runner: units, Programs: units, Taken: hostlink.Taken,
			Witness: func(at time.Time) []string { return witness.Around(root, at, time.Local, mask) },
			Machine: resource.Machine{Arch: now.Arch, OS: now.OS, Engine: now.Engine != ""}}}
		closers := []func() error{files.Close, func() error { units.Close(); return nil }}
		changed := make(chan struct{}, 1) // one look pending is enough
		m.Changed = changed
		links, err := hostlink.Watch(ctx, clk, func(err error) { log.Warn("links are looked at once a minute only", "err", err) })
		if err != nil {
			log.Warn("links are looked at once a minute only", "err", err)
			links = nil
		}
		relinked := make(chan struct{}, 1)
		driver, err := firewall.Open(firewall.WithClock(clk))
		if err != nil {
			log.Error("there is no packet filter on this machine", "err", err)
			if e := s.AddProblem(ctx, fmt.Sprintf("no packet filter: %v", err)); e != nil {
				log.Error("a problem could not be remembered", "err", e)
			}
		} else {
			closers = append(closers, driver.Close)
			m.Filter = filter.New(filter.Config{Kernel: driver, Store: s, Boot: boot.New(files), Clock: clk, Log: log, Links: filter.ReadLinks, LinksChanged: relinked, Probe: probe})
		}
		m.Exposed = (&exposure.Watch{Root: root, Clock: clk, Engine: func() (exposure.Engine, error) { return engine.Find(files, units) }, Log: log}).Differences
		m.Converge = converger(s, units, files, m.Filter, log)
		m.Events = func(ctx context.Context) error {
			var wg sync.WaitGroup
			defer wg.Wait()
			if links != nil {
				wg.Go(func() { spread(ctx, links, relinked, changed) })
			}
			if m.Filter != nil {
				wg.Go(func() { flushes(ctx, clk, driver, changed, log) })
			}
			return hint(ctx, units, changed)
		}
		m.Rests = units.Rests
		m.Stopping = func(ctx context.Context) bool {
			stopping, err := units.Stopping(ctx)
			if err != nil {
				log.Debug("whether the machine stops is not known", "err", err)
			}
			return stopping
		}
		m.Close = func() error {
			var errs []error
			for i := len(closers) - 1; i >= 0; i-- {
				errs = append(errs, closers[i]())
			}
			return errors.Join(errs...)
		}
		return m, nil
	}
}

// flushes has the machine looked at when somebody took chains of others away: ports of containers may be gone
// with them. Without the kernel's word the minute's look has to do.
func flushes(ctx context.Context, clk clock.Clock, driver *firewall.Driver, changed chan<- struct{}, log *slog.Logger) {
	events, err := driver.Watch(ctx)
	if err != nil {
		log.Warn("rules of others are looked at once a minute only", "err", err)
		return
	}
	exposure.Flushed(ctx, clk, events, func() { poke(changed) })
}

// converger hands over the packet filter; what f confirms by confirms that.
func converger(s *state.Store, units *systemd.Conn, files *file.Root, f *filter.Filter, log *slog.Logger) *converge.Converger {
	c := converge.Config{Store: s, Run: units, Units: units, Files: files, Read: foreign.ReadWith, Signature: foreign.Signature, Clock: clock.Real(), Log: log}
	if f != nil {
		c.Window = f
	}
	return converge.New(c)
}

// mask takes out what is a secret by its look. Its rules are made when they are needed, which is seldom.
func mask(s string) string { return diagnosis.NewMask().Text(s) }

// after is profile, whose first answer was found already.
func after(first *report.Profile, profile func(context.Context) *report.Profile) func(context.Context) *report.Profile {
	return func(ctx context.Context) *report.Profile {
		if p := first; p != nil {
			first = nil
			return p
		}
		return profile(ctx)
	}
}

// hint turns systemd's words about mesh's own units into looks at the machine (APP-6).
func hint(ctx context.Context, units *systemd.Conn, changed chan<- struct{}) error {
	for e := range units.Events(ctx) {
		if strings.HasPrefix(e.Unit, engine.UnitPrefix) {
			continue // the agent itself has the engine do something
		}
		if e.Unit == "" || strings.HasPrefix(e.Unit, unitMark) {
			poke(changed)
		}
	}
	return nil
}

// spread tells of changed links the packet filter, which follows them, and the loop, which says so.
func spread(ctx context.Context, links <-chan struct{}, to ...chan<- struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case _, ok := <-links:
			if !ok {
				return
			}
			for _, c := range to {
				poke(c)
			}
		}
	}
}

// poke leaves word unless there is one already.
func poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// filterEdge puts a declaration's packet filter in force.
type filterEdge struct {
	f        *filter.Filter
	converge *converge.Converger
}

// Apply leaves the machine's filter alone when none is declared (NET-3).
func (e filterEdge) Apply(ctx context.Context, d *declaration.Declaration) error {
	if d.Filter == nil {
		return nil
	}
	w := filter.Wanted{Allow: d.Filter.Allow, Inside: d.Filter.Inside, Seq: d.Seq}
	if d.Filter.Tunnel != "" {
		w.Tunnel = []string{d.Filter.Tunnel}
	}
	if _, err := e.f.Apply(ctx, w); err != nil || e.converge == nil {
		return err
	}
	// mesh's own is in force and confirmed: what else filters may give way, or come back (NET-9).
	wish := converge.Wish{Seq: d.Seq}
	if c := d.Filter.Converge; c != nil {
		wish.ID, wish.Retire = c.ID, c.Retire
	}
	return e.converge.Apply(ctx, wish)
}

func profiler(root string, units *systemd.Conn) func(context.Context) *report.Profile {
	return func(ctx context.Context) *report.Profile {
		s := profile.Source{Root: root, BusNames: units.BusNames}
		if links, routes, err := hostlink.Read(ctx); err == nil {
			for _, up := range hostlink.Uplinks(hostlink.Outside(links, routes)) {
				for _, l := range links {
					if l.Name == up && s.UplinkName == "" {
						s.UplinkIndex, s.UplinkName = l.Index, l.Name
					}
				}
			}
		}
		p := profile.Detect(ctx, s)
		return &p
	}
}
