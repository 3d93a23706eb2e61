package agent

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"time"

	"mesh/agent/show"
)

// listenAgain is the pause after a connection that could not be taken, as when no file can be opened.
const listenAgain = time.Second

// listen opens the socket that show asks at; nil when there is none. The lock sees to it that no other daemon
// answers there.
func (a *Agent) listen() net.Listener {
	if a.cfg.Run == "" {
		return nil
	}
	l, err := show.Listen(filepath.Join(a.cfg.Run, show.Socket))
	if err != nil {
		a.cfg.Log.Error("nobody can ask how this machine is; it is laid down instead", "err", err)
		return nil
	}
	return l
}

// answerShow answers one after the other. What is told fits the socket's buffer, so nobody waits for who does not
// read.
func (a *Agent) answerShow(ctx context.Context, l net.Listener) error {
	defer context.AfterFunc(ctx, func() { _ = l.Close() })() // it ends Accept; the name stays, and nobody answers there
	for ctx.Err() == nil {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			break
		}
		if err != nil {
			a.cfg.Log.Warn("nobody can ask how this machine is; it is tried again", "err", err)
			select {
			case <-ctx.Done():
			case <-a.cfg.Clock.After(listenAgain):
			}
			continue
		}
		if err := a.tell(ctx, conn); err != nil && ctx.Err() == nil {
			a.cfg.Log.Debug("how this machine is could not be told", "err", err)
		}
	}
	return nil
}

func (a *Agent) tell(ctx context.Context, conn net.Conn) error {
	var d *show.Document
	var gather error
	if err := a.onLoop(ctx, func(*waiting) { d, gather = a.document(ctx) }); err != nil || gather != nil {
		return errors.Join(err, gather, conn.Close())
	}
	return show.Answer(ctx, conn, d)
}
