// Package client is the asking side of the seat mesh-controller: what the command line does besides
// flags and printing. It finds the operator's credential, connects, asks verbs, packs and uploads a
// module's bundle, seals secrets so that the coordinator never sees them, and follows a push. It works
// from any machine that reaches the bus. It owns its connection until Close.
package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"mesh/shared/bus"
	"mesh/shared/clock"
	"mesh/shared/controller"
	"mesh/shared/credential"
	"mesh/shared/refusal"
	"mesh/shared/subject"
	"mesh/shared/verb"
)

// AskBound is how long one question waits for its answer: a little more than the holder may take.
const AskBound = verb.Bound + 2*time.Second

// Client is a connection to the mesh as one operator.
type Client struct {
	// Credential is whose client this is.
	Credential credential.File
	conn       *bus.Conn
	clk        clock.Clock
	rand       io.Reader
}

// Options are the parts a client stands on.
type Options struct {
	Clock clock.Clock
	Rand  io.Reader
	Log   *slog.Logger
}

// Connect tries once: a command says at once that the bus is away.
func Connect(ctx context.Context, f credential.File, o Options) (*Client, error) {
	if f.Kind != credential.KindOperator {
		return nil, refusal.Newf("this credential", "use an operator's: mesh-coordinator operator issue <name> on a machine that has one", "it is of the %s %s, and only people ask the coordinator", f.Kind, f.Name)
	}
	conn, err := bus.Connect(ctx, bus.Options{Bus: f.Bus, Seed: f.Seed, Principal: f.Principal(), Name: "mesh-coordinator of " + f.Name, Once: true, Clock: o.Clock, Log: o.Log})
	if err != nil {
		return nil, err
	}
	return &Client{Credential: f, conn: conn, clk: o.Clock, rand: o.Rand}, nil
}

// Close ends the connection.
func (c *Client) Close() { c.conn.Close() }

// Ask asks v and decodes the answer as R.
func Ask[R any](ctx context.Context, c *Client, v subject.Verb, args any) (R, error) {
	var answer R
	whole := ctx
	ctx, cancel := context.WithTimeout(ctx, AskBound)
	defer cancel()
	err := verb.Call(ctx, c.conn, subject.Controller, v, args, &answer)
	if on := (verb.Running{}); errors.As(err, &on) {
		err = c.later(whole, on.Call, &answer)
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		err = fmt.Errorf("%w: %s did not answer %s within %v", ErrNoAnswer, subject.Controller, v, AskBound)
	case errors.Is(err, bus.ErrRefused):
		err = fmt.Errorf("%w: %w", bus.ErrRefused, c.mayNot(v))
	}
	return answer, err
}

// mayNot says in people's words what the bus did: it let the subject of v not pass.
func (c *Client) mayNot(v subject.Verb) error {
	line, ok := controller.Find(v)
	if !ok {
		return refusal.New("the verb "+string(v), "the bus lets "+c.Credential.Name+" not ask it", "see what can be asked: mesh-coordinator tool list")
	}
	return refusal.Newf("the verb "+string(v), "have somebody do it who has that role, or ask an admin for it: mesh-coordinator operator issue <name> --role "+string(line.Least),
		"it takes the role %s, and the credential of %s has less", line.Least, c.Credential.Name)
}

// ErrNoAnswer is met by errors.Is when the holder is there and did not answer in time: what was asked
// may have been done.
var ErrNoAnswer = errors.New("no answer")

// ErrNoCredential is met by errors.Is when there is no credential to ask with, so nothing can be told.
var ErrNoCredential = errors.New("no credential")

// Places are where a credential is looked for, in order.
type Places struct {
	Flag string // --credential
	Env  string // $MESH_CREDENTIAL
	Etc  string // /etc/mesh/operator.json
	Home string // ~/.config/mesh/operator.json, "" without a home
}

// Find loads the first credential there is. One that was named must be there.
func Find(p Places) (credential.File, error) {
	for _, named := range []string{p.Flag, p.Env} {
		if named != "" {
			return load(named)
		}
	}
	var looked []string
	closed := false
	for _, path := range []string{p.Etc, p.Home} {
		if path == "" {
			continue
		}
		f, err := load(path)
		switch {
		case err == nil:
			return f, nil
		case errors.Is(err, fs.ErrPermission):
			closed = true
		case !errors.Is(err, fs.ErrNotExist):
			return credential.File{}, err
		}
		looked = append(looked, path)
	}
	do := "run this as root on the coordinator's machine, or name yours with --credential or $MESH_CREDENTIAL; an admin makes one: mesh-coordinator operator issue <name>"
	if closed {
		do = "run this as root, or name your own with --credential or $MESH_CREDENTIAL"
	}
	return credential.File{}, fmt.Errorf("%w: %w", ErrNoCredential, refusal.New("to ask the coordinator", "there is no credential to read at "+strings.Join(looked, " or "), do))
}

func load(path string) (credential.File, error) {
	f, err := credential.Load(path)
	switch r := refusal.Of(err); {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		return f, fmt.Errorf("%w: %w: %w", ErrNoCredential, err, refusal.New("the credential "+path, unwrapPath(err), "name the right file with --credential or $MESH_CREDENTIAL"))
	case r != nil && !strings.Contains(r.What, path): // which of the places it was
		why := r.Why
		if r.What != "the credential file" {
			why = r.What + ": " + r.Why
		}
		return f, fmt.Errorf("%w: %w", ErrNoCredential, refusal.New("the credential "+path, why, r.Do))
	case err != nil:
		return f, fmt.Errorf("%w: %w", ErrNoCredential, err)
	}
	return f, nil
}

func unwrapPath(err error) string {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err.Error()
	}
	return err.Error()
}

// CheckFree refuses a path where there is something already.
func CheckFree(path string) error {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return refusal.New("to write the credential to "+path, "there is a file already", "name another with --out")
	}
	return nil
}

// SaveCredential writes f whole to path, mode 0600, and never over another file that is there.
func SaveCredential(path string, f credential.File) error {
	b, err := f.Encode()
	if err != nil {
		return fmt.Errorf("save credential: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("save credential: %w", err)
	}
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, b) {
			return nil // written before
		}
		return refusal.New("to write the credential to "+path, "there is a file already", "name another with --out")
	}
	if err != nil {
		return fmt.Errorf("save credential: %w", err)
	}
	_, err = out.Write(b)
	if err = errors.Join(err, out.Sync(), out.Close()); err != nil {
		return fmt.Errorf("save credential %s: %w", path, err)
	}
	return nil
}
