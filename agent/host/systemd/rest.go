package systemd

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"

	"github.com/godbus/dbus/v5"
)

// Stopping reports whether the machine is being shut down or restarted (systemctl is-system-running says
// "stopping"). It is asked while that is under way, when the bus may be gone: systemd's own socket answers.
func (c *Conn) Stopping(ctx context.Context) (bool, error) {
	stopping := false
	err := c.do(ctx, "state of the system", callTimeout, func(ctx context.Context, s *session) error {
		var state dbus.Variant
		err := s.calls.Object(busName, managerPath).CallWithContext(ctx, properties+".Get", 0, manager, "SystemState").Store(&state)
		if err == nil {
			stopping = state.Value() == "stopping"
		}
		return err
	})
	return stopping, err
}

// Why a machine rests.
const (
	Suspend  = "suspend"
	Shutdown = "shutdown"
)

// logind's names (org.freedesktop.login1(5)).
const (
	loginName    = "org.freedesktop.login1"
	loginPath    = dbus.ObjectPath("/org/freedesktop/login1")
	loginManager = loginName + ".Manager"
)

// The pause before logind is looked for again, where there is none.
const (
	loginPauseMin = time.Second
	loginPauseMax = 2 * time.Minute
)

// Rests calls tell when logind says that the machine is about to suspend or shut down, and again when it is
// back, until ctx ends. It holds a delay inhibitor, so that the machine waits for tell to return, though never
// longer than its InhibitDelayMaxSec= (5 s). Where there is no logind nothing is ever told.
func (c *Conn) Rests(ctx context.Context, tell func(why string, begins bool)) error {
	for pause := loginPauseMin; ; pause = min(2*pause, loginPauseMax) {
		if began := c.clock.Now(); c.rest(ctx, tell) == nil || c.clock.Now().Sub(began) > loginPauseMax {
			pause = loginPauseMin
		}
		select {
		case <-ctx.Done():
			return nil
		case <-c.clock.After(pause):
		}
	}
}

// rest listens on a connection of its own until that or ctx ends.
func (c *Conn) rest(ctx context.Context, tell func(why string, begins bool)) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn, err := connect(ctx, c.busAddress, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	for _, member := range []string{"PrepareForSleep", "PrepareForShutdown"} {
		rule := "type='signal',sender='" + loginName + "',path='" + string(loginPath) + "',interface='" + loginManager + "',member='" + member + "'"
		if err := conn.BusObject().CallWithContext(ctx, "org.freedesktop.DBus.AddMatch", 0, rule).Err; err != nil {
			return err
		}
	}
	signals := make(chan *dbus.Signal, signalBuffer)
	conn.Signal(signals)
	held, err := inhibit(ctx, conn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, held.Close()) }()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-conn.Context().Done():
			return conn.Context().Err()
		case s, ok := <-signals:
			if !ok {
				return nil
			}
			why, begins := resting(s)
			if why == "" {
				continue
			}
			tell(why, begins)
			if begins {
				err = held.Close()
			} else {
				held, err = inhibit(ctx, conn)
			}
			if err != nil && !errors.Is(err, os.ErrClosed) {
				return err
			}
		}
	}
}

// resting reads a signal; "" for any other.
func resting(s *dbus.Signal) (why string, begins bool) {
	if len(s.Body) != 1 || s.Path != loginPath {
		return "", false
	}
	begins, ok := s.Body[0].(bool)
	switch {
	case !ok:
		return "", false
	case s.Name == loginManager+".PrepareForSleep":
		return Suspend, begins
	case s.Name == loginManager+".PrepareForShutdown":
		return Shutdown, begins
	}
	return "", false
}

// inhibit delays a rest until the file is closed. It does not start logind.
func inhibit(ctx context.Context, conn *dbus.Conn) (*os.File, error) {
	var fd dbus.UnixFD
	err := conn.Object(loginName, loginPath).CallWithContext(ctx, loginManager+".Inhibit", dbus.FlagNoAutoStart,
		"sleep:shutdown", "mesh-agent", "says good-bye", "delay").Store(&fd)
	if err != nil {
		return nil, err
	}
	syscall.CloseOnExec(int(fd))
	return os.NewFile(uintptr(fd), "inhibitor"), nil
}
