package coordinator

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"mesh/shared/clock"
)

// notifier speaks to systemd (sd_notify(3)); without a socket it says nothing.
type notifier struct{ socket string }

func (n notifier) say(state string) error {
	if n.socket == "" {
		return nil
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: n.socket, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("tell systemd %s: %w", state, err)
	}
	_, err = c.Write([]byte(state))
	return errors.Join(err, c.Close())
}

// watch says that the program is alive, twice in each interval, while well holds. Without an interval it
// only waits for the end.
func (n notifier) watch(ctx context.Context, clk clock.Clock, interval time.Duration, well func(context.Context) error) error {
	if interval <= 0 || n.socket == "" {
		<-ctx.Done()
		return nil
	}
	tick, stop := clk.Every(interval / 2)
	defer stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick:
		}
		if err := well(ctx); err != nil {
			continue // systemd ends what stays silent, and starts it again
		}
		if err := n.say("WATCHDOG=1"); err != nil {
			return err
		}
	}
}
