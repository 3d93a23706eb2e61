package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"time"

	"golang.org/x/sys/unix"
)

// child is a part of a measurement in a process of its own, so that its processor time and memory can
// be told apart: this program again, under a word that starts with "floor-" or "mesh-". It is asked
// over its standard input and answers over its standard output, one JSON line each. When its input
// ends it leaves, so none outlives this process.
type child struct {
	name string
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *json.Decoder
	stop context.CancelFunc
}

// ask and its answer, on the wire.
type (
	question struct {
		Do  string          `json:"do"`
		Arg json.RawMessage `json:"arg,omitempty"`
	}
	reply struct {
		Answer json.RawMessage `json:"answer,omitempty"`
		Err    string          `json:"err,omitempty"`
	}
)

// start starts a child of this program; change may change how.
func start(ctx context.Context, name string, change ...func(*exec.Cmd)) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	c := &child{name: name, cmd: exec.CommandContext(ctx, self, name), stop: cancel}
	c.cmd.Stderr = os.Stderr
	for _, fn := range change {
		fn(c.cmd)
	}
	if c.in, err = c.cmd.StdinPipe(); err == nil {
		var out io.ReadCloser
		if out, err = c.cmd.StdoutPipe(); err == nil {
			c.out = json.NewDecoder(bufio.NewReaderSize(out, 1<<20))
			err = c.cmd.Start()
		}
	}
	if err != nil {
		cancel()
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return c, nil
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// ask has the child do something and waits for its answer.
func (c *child) ask(do string, arg, answer any) error {
	if err := c.tell(do, arg); err != nil {
		return err
	}
	return c.answer(do, answer)
}

func (c *child) tell(do string, arg any) error {
	b, err := json.Marshal(arg)
	if err != nil {
		return fmt.Errorf("ask %s to %s: %w", c.name, do, err)
	}
	line, err := json.Marshal(question{do, b})
	if err != nil {
		return fmt.Errorf("ask %s to %s: %w", c.name, do, err)
	}
	if _, err := c.in.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("ask %s to %s: %w", c.name, do, err)
	}
	return nil
}

func (c *child) answer(do string, answer any) error {
	var r reply
	if err := c.out.Decode(&r); err != nil {
		return fmt.Errorf("%s, asked to %s, is gone: %w", c.name, do, err)
	}
	if r.Err != "" {
		return fmt.Errorf("%s, asked to %s: %s", c.name, do, r.Err)
	}
	if answer == nil {
		return nil
	}
	if err := json.Unmarshal(r.Answer, answer); err != nil {
		return fmt.Errorf("%s, asked to %s: %w", c.name, do, err)
	}
	return nil
}

// askAll has all children do something at once.
func askAll(all []*child, do string, arg func(i int) any) error {
	var errs []error
	for i, c := range all {
		errs = append(errs, c.tell(do, arg(i)))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, c := range all {
		errs = append(errs, c.answer(do, nil))
	}
	return errors.Join(errs...)
}

// leave ends the child in order and, when it does not go, by force.
func (c *child) leave() {
	if c == nil {
		return
	}
	_ = c.in.Close() // that is the word to leave
	t := time.AfterFunc(10*time.Second, c.stop)
	defer t.Stop()
	defer c.stop()
	_ = c.cmd.Wait() // how it ended tells nothing more: it has answered all it was asked
}

// kill ends the child as a power cut would.
func (c *child) kill() {
	_ = unix.Kill(c.pid(), unix.SIGKILL) // it may be gone already
	c.leave()
}

// settle has the child give back what memory it can, so that what is read then is what it needs.
func (c *child) settle() (memory, error) {
	if err := c.ask("settle", nil, nil); err != nil {
		return memory{}, err
	}
	return memoryOf(c.pid()), nil
}

// handlers are what a child can be asked.
type handlers map[string]func(ctx context.Context, arg json.RawMessage) (any, error)

// on makes a handler of a function with a typed argument.
func on[A any](fn func(context.Context, A) (any, error)) func(context.Context, json.RawMessage) (any, error) {
	return func(ctx context.Context, raw json.RawMessage) (any, error) {
		var a A
		if len(raw) > 0 && string(raw) != "null" {
			if err := json.Unmarshal(raw, &a); err != nil {
				return nil, err
			}
		}
		return fn(ctx, a)
	}
}

// nothing is the argument and the answer of what needs none.
type nothing struct{}

// serve answers questions until the input ends. It is a child's main.
func serve(ctx context.Context, h handlers) error {
	ctx, cancel := signal.NotifyContext(ctx, unix.SIGTERM)
	defer cancel()
	h["settle"] = on(func(context.Context, nothing) (any, error) {
		runtime.GC()
		debug.FreeOSMemory()
		return nil, nil
	})
	var p profile
	h["profile"] = on(func(_ context.Context, file string) (any, error) { return nil, p.write(file) })
	in := json.NewDecoder(bufio.NewReaderSize(os.Stdin, 1<<20))
	out := json.NewEncoder(os.Stdout)
	for {
		var q question
		if err := in.Decode(&q); err != nil {
			pprof.StopCPUProfile()
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := out.Encode(h.answer(ctx, q)); err != nil {
			return err
		}
	}
}

func (h handlers) answer(ctx context.Context, q question) (r reply) {
	fn, ok := h[q.Do]
	if !ok {
		return reply{Err: "there is no such thing to do"}
	}
	v, err := fn(ctx, q.Arg)
	if err == nil && v != nil {
		r.Answer, err = json.Marshal(v)
	}
	if err != nil {
		r.Err = err.Error()
	}
	return r
}

// profile is the file of the processor profile under way.
type profile string

// write writes a processor profile to file from now on; an empty name ends it. What was allocated until then,
// and until the end, goes beside it: "go tool pprof -base" tells them apart.
func (p *profile) write(file string) error {
	pprof.StopCPUProfile()
	if file == "" {
		return allocations(string(*p) + ".allocs")
	}
	*p = profile(file)
	if err := allocations(file + ".before"); err != nil {
		return err
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	return pprof.StartCPUProfile(f) // the file is closed with the process
}

func allocations(file string) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	return errors.Join(pprof.Lookup("allocs").WriteTo(f, 0), f.Close())
}
