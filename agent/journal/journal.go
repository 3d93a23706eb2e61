// Package journal reads lines of units from the machine's journal for who asks over the bus (APP-16). It is
// read by journalctl, since its files cannot be read without CGO or a second implementation of their format.
// A read that follows calls it again and again, each time behind the last line: in the sandbox that the agent
// is in, "journalctl --follow" of systemd 252 waits for ever and says nothing. What runs ends with the read. A
// reader asks for batch after batch, and each ask
// acknowledges the one before: nothing is read ahead but a few lines, so that a slow reader slows journalctl
// and holds no memory here, and a read whose reader is silent for engine.LogsIdle ends.
//
// A Reader owns a goroutine for each read; Run ends them all.
package journal

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"mesh/shared/clock"
	"mesh/shared/engine"
	"mesh/shared/refusal"
)

const (
	// most is how many reads may be open at once on one machine.
	most = 8
	// ahead is how many lines of a read wait here for its reader.
	ahead = 16
	// linger is how long a batch that has a line waits for more: journalctl hands them on in one go.
	linger = 20 * time.Millisecond
	// killBound is how long journalctl may take to die.
	killBound = 2 * time.Second
	// againMin and againMax bound the pause before one that follows looks again: it grows while there is nothing.
	againMin, againMax = 200 * time.Millisecond, time.Second
)

// Config is what a Reader works with.
type Config struct {
	// Command is how journalctl is called; nil for "journalctl".
	Command []string
	Clock   clock.Clock
	Rand    io.Reader
	Log     *slog.Logger
}

// Ask is what a read is about.
type Ask struct {
	// Units are systemd's; at least one.
	Units []string
	engine.LogsAsk
}

// Reader holds the reads that are open.
type Reader struct {
	cfg    Config
	opened chan struct{} // capacity 1: a read was opened

	mu    sync.Mutex // guards reads and closed
	reads map[string]*read
	// closed is set when Run ended: nothing is opened any more.
	closed bool
	ended  sync.WaitGroup
}

// read is one reader's, and the lines that wait for it.
type read struct {
	id     string
	cancel context.CancelFunc
	lines  chan entry // closed when there are no more
	why    string     // what ended it before its time; set before lines is closed

	turn sync.Mutex // held by the ask that takes lines; guards next and last
	next uint64
	last engine.LogsAnswer

	asked time.Time // when its reader was heard last; guarded by Reader.mu
	busy  int       // asks under way; guarded by Reader.mu
}

// New makes a Reader; Run has to run for reads to end by themselves.
func New(c Config) *Reader {
	if len(c.Command) == 0 {
		c.Command = []string{"journalctl"}
	}
	return &Reader{cfg: c, opened: make(chan struct{}, 1), reads: map[string]*read{}}
}

// Run ends reads whose reader fell silent, and all of them when ctx ends.
func (r *Reader) Run(ctx context.Context) error {
	for {
		var look <-chan time.Time // while there is something to look at: a machine at rest is not woken
		if r.Open() > 0 {
			look = r.cfg.Clock.After(time.Second)
		}
		select {
		case <-ctx.Done():
			r.mu.Lock()
			r.closed = true
			for _, x := range r.reads {
				x.cancel()
			}
			r.mu.Unlock()
			r.ended.Wait()
			return nil
		case <-r.opened:
		case <-look:
			r.sweep()
		}
	}
}

func (r *Reader) sweep() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.cfg.Clock.Now()
	for id, x := range r.reads {
		if x.busy == 0 && now.Sub(x.asked) >= engine.LogsIdle {
			x.cancel()
			delete(r.reads, id)
			r.cfg.Log.Debug("a read of the journal ended: its reader is silent", "read", id)
		}
	}
}

// Open is how many reads are open.
func (r *Reader) Open() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.reads)
}

// cursorRule is what systemd gives out (sd_journal_get_cursor(3)).
var cursorRule = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9=;]{1,300}$`) })

// Begin starts a read and answers its first batch.
func (r *Reader) Begin(ctx context.Context, a Ask) (engine.LogsAnswer, error) {
	if err := check(a); err != nil {
		return engine.LogsAnswer{}, err
	}
	var id [12]byte
	if _, err := io.ReadFull(r.cfg.Rand, id[:]); err != nil {
		return engine.LogsAnswer{}, fmt.Errorf("name a read: %w", err)
	}
	now := r.cfg.Clock.Now()
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	x := &read{id: hex.EncodeToString(id[:]), cancel: cancel, lines: make(chan entry, ahead), asked: now}
	if err := r.start(life, x, a, now); err != nil {
		cancel()
		return engine.LogsAnswer{}, err
	}
	wait := engine.MaxLogsWait
	if a.Follow {
		wait = time.Second // the reader learns soon that it is connected
	}
	return r.Next(ctx, engine.LogsNextAsk{Read: x.id, WaitMS: wait.Milliseconds()})
}

func check(a Ask) error {
	if a.Lines < 0 || a.Lines > engine.MostLines {
		return refusal.Newf("the arguments", fmt.Sprintf("ask for at most %d, or since a time", engine.MostLines), "lines: %d", a.Lines)
	}
	if a.After != "" && !cursorRule().MatchString(a.After) {
		return refusal.New("the arguments", "after: it is no cursor of a journal", "use the one of an answer")
	}
	return nil
}

// arguments are journalctl's.
func arguments(a Ask) []string {
	args := []string{"--output=json", "--output-fields=MESSAGE,_SYSTEMD_UNIT,UNIT,PRIORITY", "--all", "--no-pager", "--quiet"}
	switch {
	case a.After != "":
		args = append(args, "--after-cursor="+a.After)
	case a.SinceMS > 0:
		args = append(args, fmt.Sprintf("--since=@%d.%03d", a.SinceMS/1000, a.SinceMS%1000))
	}
	if a.Lines > 0 && a.After == "" {
		args = append(args, "--lines="+strconv.Itoa(a.Lines))
	} else if a.After == "" && a.SinceMS == 0 {
		args = append(args, "--lines=1")
	}
	for _, u := range a.Units {
		args = append(args, "--unit="+u)
	}
	return args
}

// start takes x in and reads for it.
func (r *Reader) start(ctx context.Context, x *read, a Ask, now time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return refusal.New("the read", "the agent is stopping", "ask again in a moment")
	case len(r.reads) >= most:
		return refusal.Newf("the read", "end one, or wait: one whose reader is gone ends within seconds", "%d are open on this machine, and more would slow it", most)
	}
	r.reads[x.id] = x
	select {
	case r.opened <- struct{}{}:
	default:
	}
	r.ended.Go(func() { // ends with ctx, or with the last line
		defer close(x.lines)
		defer x.cancel()
		for pause := againMin; ; pause = min(2*pause, againMax) {
			last, err := r.once(ctx, x, a)
			if err != nil && ctx.Err() == nil {
				x.why = err.Error()
			}
			if err != nil || !a.Follow {
				return
			}
			if last != "" {
				a.After, pause = last, againMin
			} else if a.After == "" && a.Lines > 0 { // there was none yet: from the beginning of the read
				a.SinceMS, a.Lines = now.UnixMilli(), 0
			}
			select {
			case <-ctx.Done():
				return
			case <-r.cfg.Clock.After(pause):
			}
		}
	})
	return nil
}

// once has journalctl say what there is and hands it on; it returns the last line's cursor, "" for none.
func (r *Reader) once(ctx context.Context, x *read, a Ask) (last string, err error) {
	argv := append(slices.Clone(r.cfg.Command), arguments(a)...)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var said tail
	cmd.Stderr = &said
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = killBound
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return "", fmt.Errorf("read the journal: %w", err)
	}
	for s := newScanner(out); ctx.Err() == nil; {
		line, err := s.next()
		if err != nil {
			break
		}
		select {
		case x.lines <- line:
			last = line.cursor
		case <-ctx.Done():
		}
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return last, ctx.Err()
	case errors.As(err, &exit) && said.words() == "": // newer ones exit so where there are no lines
		return last, nil
	case err != nil:
		return last, fmt.Errorf("journalctl: %w%s", err, said.words())
	}
	return last, nil
}

// Next answers the batch asked for, or the one before again.
func (r *Reader) Next(ctx context.Context, a engine.LogsNextAsk) (engine.LogsAnswer, error) {
	r.mu.Lock()
	x := r.reads[a.Read]
	if x != nil {
		x.busy++
	}
	r.mu.Unlock()
	if x == nil {
		return engine.LogsAnswer{}, ErrEnded
	}
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		x.busy--
		x.asked = r.cfg.Clock.Now()
	}()
	x.turn.Lock()
	defer x.turn.Unlock()
	switch {
	case x.next > 0 && a.Batch == x.next-1:
		return x.last, nil
	case a.Batch != x.next:
		return engine.LogsAnswer{}, refusal.Newf("the arguments", "ask for the batch that the last answer names", "batch: %d is not next, %d is", a.Batch, x.next)
	}
	wait := min(time.Duration(max(a.WaitMS, 0))*time.Millisecond, engine.MaxLogsWait)
	x.last = x.batch(ctx, r.cfg.Clock, wait)
	x.next++
	x.last.Read, x.last.Next = x.id, x.next
	return x.last, nil
}

// ErrEnded is met by errors.Is when there is no such read: its reader was silent, or the agent began anew.
var ErrEnded = refusal.New("the read", "it is not open here: its reader was silent for too long, or the agent has begun anew", "begin one, after the cursor of the last answer")

// batch gathers lines: it waits for the first, and takes what follows at once.
func (x *read) batch(ctx context.Context, clk clock.Clock, wait time.Duration) engine.LogsAnswer {
	a := engine.LogsAnswer{Lines: []engine.LogLine{}}
	size, over := 0, clk.After(wait)
	for len(a.Lines) < engine.BatchLines && size < engine.BatchBytes {
		select {
		case l, ok := <-x.lines:
			if !ok {
				a.Done, a.Why = true, x.why
				return a
			}
			if len(a.Lines) == 0 {
				over = clk.After(linger)
			}
			a.Lines, a.Cursor = append(a.Lines, l.LogLine), l.cursor
			size += l.size()
			continue
		case <-over:
		case <-ctx.Done():
		}
		break
	}
	return a
}

// tail keeps the first bytes of what journalctl complains of.
type tail struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

const mostComplaint = 500

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.b.Write(p[:min(len(p), max(0, mostComplaint-t.b.Len()))])
	return len(p), nil
}

func (t *tail) words() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := bytes.TrimSpace(t.b.Bytes()); len(s) > 0 {
		return ": " + string(s)
	}
	return ""
}
