// Package systemd drives the machine's service manager over D-Bus: units are started, stopped, enabled,
// looked at and judged, and programs run as transient units. It decides nothing and writes no unit files.
//
// The D-Bus libraries do not reconnect: after a restart of dbus or a re-execution of systemd every call
// fails for ever, waits never end and subscriptions are gone. A Conn dials again by itself, on the system
// bus first and on systemd's private socket where there is no bus, repeats what the break interrupted,
// bounds every wait, and looks at the unit's state afterwards: a job's result proves little ("done" also
// comes for a service that died at once, and for one whose condition was false).
//
// A Conn may be used by several goroutines. It dials with the first call and starts no goroutine of its
// own but the libraries', which Close ends; Events runs one until its context ends.
package systemd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	sdbus "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"

	"mesh/shared/clock"
)

// The classes of what can go wrong, for errors.Is.
var (
	// ErrUnavailable: neither the bus nor systemd can be reached. Try again.
	ErrUnavailable = errors.New("systemd cannot be reached")
	// ErrNoUnit: systemd knows no such unit.
	ErrNoUnit = errors.New("no such unit")
	// ErrBadUnit: the unit's file cannot be loaded as it is.
	ErrBadUnit = errors.New("the unit's file is not valid")
	// ErrMasked: the unit is masked; a person has forbidden it.
	ErrMasked = errors.New("the unit is masked")
)

const (
	busName     = "org.freedesktop.systemd1"
	managerPath = dbus.ObjectPath("/org/freedesktop/systemd1")
	manager     = busName + ".Manager"
	properties  = "org.freedesktop.DBus.Properties"

	privateSocket = "/run/systemd/private"
)

// The bounds of single calls. A reload reads all unit files: 5.4 s were seen, systemd's own bound is 90 s.
const (
	callTimeout   = 30 * time.Second
	reloadTimeout = 2 * time.Minute
)

// Conn is a connection that outlives those it is made of.
type Conn struct {
	clock clock.Clock
	// busAddress and private are where to dial.
	busAddress, private string
	// slot holds the session, or nil; whoever takes it out is the one who may dial.
	slot chan *session
	// asking bounds the units whose properties are asked for at once.
	asking chan struct{}
}

// maxAsking keeps the questions under way below what dbus-daemon lets one connection have (128 on the
// system bus): the one too many is refused. A unit is some 17 of them.
const maxAsking = 4

// session is one life of the connection.
type session struct {
	*sdbus.Conn
	calls, signals *dbus.Conn
	onBus          bool
	end            context.CancelFunc
}

// New returns a Conn. It dials with its first call.
func New(clk clock.Clock) *Conn {
	address := os.Getenv("DBUS_SYSTEM_BUS_ADDRESS")
	if address == "" {
		address = "unix:path=/run/dbus/system_bus_socket"
	}
	c := &Conn{clock: clk, busAddress: address, private: "unix:path=" + privateSocket, slot: make(chan *session, 1), asking: make(chan struct{}, maxAsking)}
	c.slot <- nil
	return c
}

// Close ends the connections. A later call dials anew.
func (c *Conn) Close() {
	s := <-c.slot
	if s != nil {
		s.close()
	}
	c.slot <- nil
}

// session returns the living session, or dials one.
func (c *Conn) session(ctx context.Context) (*session, error) {
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case s := <-c.slot:
		if s != nil && s.alive() {
			c.slot <- s
			return s, nil
		}
		if s != nil {
			s.close()
		}
		s, err := c.dial(ctx)
		c.slot <- s
		return s, err
	}
}

func (c *Conn) dial(ctx context.Context) (*session, error) {
	s, busErr := dial(ctx, c.busAddress, true)
	if busErr == nil {
		return s, nil
	}
	s, err := dial(ctx, c.private, false)
	if err != nil {
		return nil, fmt.Errorf("%w: %w; %w", ErrUnavailable, busErr, err)
	}
	return s, nil
}

// dial connects to address. The session outlives ctx, which bounds the dialling only.
func dial(ctx context.Context, address string, onBus bool) (*session, error) {
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, end)
	bound := time.AfterFunc(callTimeout, end)
	defer bound.Stop()
	var conns []*dbus.Conn
	sd, err := sdbus.NewConnection(func() (*dbus.Conn, error) {
		conn, err := connect(life, address, onBus)
		if err == nil {
			conns = append(conns, conn)
		}
		return conn, err
	})
	if !stop() && err == nil {
		sd.Close()
		err = ctx.Err()
	}
	if err != nil {
		end()
		return nil, fmt.Errorf("dial %s: %w", address, err)
	}
	return &session{Conn: sd, calls: conns[0], signals: conns[1], onBus: onBus, end: end}, nil
}

func connect(ctx context.Context, address string, onBus bool) (*dbus.Conn, error) {
	conn, err := dbus.Dial(address, dbus.WithContext(ctx))
	if err != nil {
		return nil, err
	}
	// The uid as a number spares a look into the user database.
	err = conn.Auth([]dbus.Auth{dbus.AuthExternal(strconv.Itoa(os.Geteuid()))})
	if err == nil && onBus { // the private socket has no bus driver to greet
		err = conn.Hello()
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

func (s *session) alive() bool { return s.Connected() }

func (s *session) close() {
	s.Close()
	s.end()
}

// do calls f with a living session. When the session breaks under it f is called once more with a new
// one, so f must bear to be repeated.
func (c *Conn) do(ctx context.Context, what string, bound time.Duration, f func(context.Context, *session) error) error {
	for try := 0; ; try++ {
		s, err := c.session(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		bounded, cancel := context.WithTimeout(ctx, bound)
		err = f(bounded, s)
		silent := bounded.Err() != nil && ctx.Err() == nil
		cancel()
		if err == nil {
			return nil
		}
		if silent {
			s.close() // a peer that does not answer is as good as gone
			return fmt.Errorf("%s: %w: no answer in %v: %w", what, ErrUnavailable, bound, err)
		}
		if s.alive() || ctx.Err() != nil || try > 0 {
			return fmt.Errorf("%s: %w", what, classed(err, s))
		}
	}
}

// classed adds the class that a D-Bus error name stands for.
func classed(err error, s *session) error {
	var remote dbus.Error
	if !errors.As(err, &remote) {
		if !s.alive() {
			return fmt.Errorf("%w: %w", ErrUnavailable, err)
		}
		return err
	}
	switch strings.TrimPrefix(remote.Name, busName+".") {
	case "NoSuchUnit":
		return fmt.Errorf("%w: %w", ErrNoUnit, err)
	case "BadUnitSetting", "LoadFailed":
		return fmt.Errorf("%w: %w", ErrBadUnit, err)
	case "UnitMasked":
		return fmt.Errorf("%w: %w", ErrMasked, err)
	case "org.freedesktop.DBus.Error.ServiceUnknown", "org.freedesktop.DBus.Error.NameHasNoOwner",
		"org.freedesktop.DBus.Error.Disconnected", "org.freedesktop.DBus.Error.NoReply":
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return err
}

// Reload makes systemd read its unit files anew (daemon-reload). It costs 0.4 s and more: write all files first.
func (c *Conn) Reload(ctx context.Context) error {
	return c.do(ctx, "reload systemd", reloadTimeout, func(ctx context.Context, s *session) error {
		return s.ReloadContext(ctx)
	})
}

// Enable makes the units start at boot and reports whether links changed; then a Reload must follow. All
// units in one call cost what one does.
func (c *Conn) Enable(ctx context.Context, units []string) (changed bool, err error) {
	if len(units) == 0 {
		return false, nil
	}
	err = c.do(ctx, "enable "+strings.Join(units, " "), callTimeout, func(ctx context.Context, s *session) error {
		_, changes, err := s.EnableUnitFilesContext(ctx, units, false, true)
		changed = len(changes) > 0
		return err
	})
	return changed, err
}

// Disable is the opposite of Enable.
func (c *Conn) Disable(ctx context.Context, units []string) (changed bool, err error) {
	if len(units) == 0 {
		return false, nil
	}
	err = c.do(ctx, "disable "+strings.Join(units, " "), callTimeout, func(ctx context.Context, s *session) error {
		changes, err := s.DisableUnitFilesContext(ctx, units, false)
		changed = len(changes) > 0
		return err
	})
	return changed, err
}

// ResetFailed makes systemd forget that the unit failed, and how often it was started of late: without it
// a unit that hit its start limit cannot be started again. A unit that is not loaded has nothing to forget.
func (c *Conn) ResetFailed(ctx context.Context, unit string) error {
	err := c.do(ctx, "reset "+unit, callTimeout, func(ctx context.Context, s *session) error {
		return s.ResetFailedUnitContext(ctx, unit)
	})
	if errors.Is(err, ErrNoUnit) {
		return nil
	}
	return err
}

// BusNames lists the names owned on the system bus. It starts no service, and fails where there is no bus.
func (c *Conn) BusNames(ctx context.Context) (names []string, err error) {
	err = c.do(ctx, "list bus names", callTimeout, func(ctx context.Context, s *session) error {
		if !s.onBus {
			return fmt.Errorf("%w: this is systemd's private socket", ErrUnavailable)
		}
		return s.calls.BusObject().CallWithContext(ctx, "org.freedesktop.DBus.ListNames", 0).Store(&names)
	})
	return names, err
}
