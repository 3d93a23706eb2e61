package systemd

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/godbus/dbus/v5"
)

// Event hints that a unit may have changed. With Unit empty anything may have: events were lost.
type Event struct{ Unit string }

const (
	// signalBuffer is how many signals may wait; where it is full the library waits with a goroutine each.
	signalBuffer = 256
	// pendingLimit is how many units wait for the reader before they become one event for all.
	pendingLimit = 1024

	redialMin = time.Second
	redialMax = 30 * time.Second
)

// match narrows what the bus sends to the state of units, so that nobody else's changes wake the agent.
// The sub-state subscription of the library asks back for each signal and floods itself: not used.
const match = "type='signal',sender='" + busName + "',interface='" + properties + "',member='PropertiesChanged'," +
	"path_namespace='/org/freedesktop/systemd1/unit',arg0='" + busName + ".Unit'"

// Events sends a hint for each unit whose state changed, each unit once however often it did since the
// last was taken. It never loses one: where the connection broke, it is made again and an Event for all
// is sent; the first Event, once watching began, is one for all too. Truth comes from List. The channel closes when ctx ends.
func (c *Conn) Events(ctx context.Context) <-chan Event {
	out := make(chan Event)
	go func() {
		defer close(out)
		c.watch(ctx, out)
	}()
	return out
}

// watch serves one session after the other.
func (c *Conn) watch(ctx context.Context, out chan<- Event) {
	var pending queue
	for wait := redialMin; ctx.Err() == nil; {
		s, signals, err := c.subscribe(ctx)
		if err != nil {
			select {
			case <-ctx.Done():
				return
			case <-c.clock.After(wait):
			}
			wait = min(2*wait, redialMax)
			continue
		}
		wait = redialMin
		pending.all()
		c.pass(ctx, s, signals, &pending, out)
	}
}

func (c *Conn) subscribe(ctx context.Context) (*session, chan *dbus.Signal, error) {
	signals := make(chan *dbus.Signal, signalBuffer)
	var on *session
	err := c.do(ctx, "subscribe to systemd", callTimeout, func(ctx context.Context, s *session) error {
		if s.onBus {
			if err := s.signals.BusObject().CallWithContext(ctx, "org.freedesktop.DBus.AddMatch", 0, match).Err; err != nil {
				return err
			}
		}
		s.signals.Signal(signals)
		on = s
		err := s.signals.Object(busName, managerPath).CallWithContext(ctx, manager+".Subscribe", 0).Err
		var remote dbus.Error
		if errors.As(err, &remote) && remote.Name == busName+".AlreadySubscribed" {
			return nil // a watch before this one on the same session
		}
		return err
	})
	if err != nil && on != nil {
		on.signals.RemoveSignal(signals)
	}
	return on, signals, err
}

// pass hands signals on until the session or ctx ends.
func (c *Conn) pass(ctx context.Context, s *session, signals chan *dbus.Signal, pending *queue, out chan<- Event) {
	defer s.signals.RemoveSignal(signals)
	for {
		var next Event
		to := out
		if e, ok := pending.first(); ok {
			next = e
		} else {
			to = nil // nothing to send: that case never fires
		}
		select {
		case <-ctx.Done():
			return
		case to <- next:
			pending.drop()
		case signal, ok := <-signals:
			if !ok || !s.alive() {
				return
			}
			if unit := unitOf(signal); unit != "" {
				pending.add(unit)
			}
		case <-s.signals.Context().Done():
			return
		case <-s.calls.Context().Done():
			return
		}
	}
}

// unitOf names the unit a signal is about; "" for other signals.
func unitOf(signal *dbus.Signal) string {
	if signal.Name != properties+".PropertiesChanged" || len(signal.Body) == 0 || signal.Body[0] != busName+".Unit" {
		return ""
	}
	name, ok := strings.CutPrefix(string(signal.Path), string(managerPath)+"/unit/")
	if !ok {
		return ""
	}
	return unescape(name)
}

// unescape undoes the escaping of object paths: _2e is a dot.
func unescape(path string) string {
	if path == "_" {
		return ""
	}
	var b strings.Builder
	for i := 0; i < len(path); i++ {
		if path[i] == '_' && i+2 < len(path) {
			if hi, lo := hexDigit(path[i+1]), hexDigit(path[i+2]); hi >= 0 && lo >= 0 {
				b.WriteByte(byte(hi<<4 | lo))
				i += 2
				continue
			}
		}
		b.WriteByte(path[i])
	}
	return b.String()
}

func hexDigit(c byte) int { return strings.IndexByte("0123456789abcdef", c) }

// queue holds units that wait for the reader, in order, each once.
type queue struct{ units []string }

func (q *queue) add(unit string) {
	switch {
	case len(q.units) > 0 && q.units[0] == "", slices.Contains(q.units, unit):
	case len(q.units) >= pendingLimit:
		q.all()
	default:
		q.units = append(q.units, unit)
	}
}

// all makes one event for everything of what waits.
func (q *queue) all() { q.units = append(q.units[:0], "") }

func (q *queue) first() (Event, bool) {
	if len(q.units) == 0 {
		return Event{}, false
	}
	return Event{Unit: q.units[0]}, true
}

func (q *queue) drop() { q.units = slices.Delete(q.units, 0, 1) }
