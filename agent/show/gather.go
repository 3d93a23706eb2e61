package show

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"mesh/agent/state"
	"mesh/shared/refusal"
	"mesh/shared/report"
	"mesh/shared/subject"
)

// How much of the past the Document carries.
const (
	lastProblems = 10
	lastDrift    = 10
)

// Runtime is what only the running daemon knows.
type Runtime struct {
	Node subject.Node
	Mesh string
	// Agent is the program that asks: the daemon, or with it down the command.
	Agent       report.Agent
	Daemon      Daemon
	Bus         Bus
	Declaration Declaration
	Uplinks     []string
	Tunnel      string
	Filter      *report.Filter
	Converge    *report.Converge
	Exposed     []string
	Strays      []string
	Left        []report.Drift
	Held        []report.Held
	Taken       []report.Take
	FreeDisk    int64
	Profile     *report.Profile
	// Sending is how many messages of the outbox are on their way.
	Sending int
	At      int64
}

// Gather makes a Document from the store and what the daemon knows.
func Gather(ctx context.Context, s *state.Store, r Runtime) (*Document, error) {
	d := &Document{Format: Format, Node: r.Node, Mesh: r.Mesh, At: r.At, Agent: r.Agent, Daemon: r.Daemon, Bus: r.Bus, Declaration: r.Declaration,
		Modules: s.Modules(), Uplinks: r.Uplinks, Tunnel: r.Tunnel, Filter: r.Filter, Converge: r.Converge, Exposed: r.Exposed, Strays: r.Strays, Left: r.Left, Held: r.Held, Taken: r.Taken, FreeDisk: r.FreeDisk, Profile: r.Profile}
	var err error
	if d.Drift, err = s.Drift(ctx, lastDrift); err != nil {
		return nil, fmt.Errorf("read drift: %w", err)
	}
	if d.Problems, err = s.Problems(ctx, lastProblems); err != nil {
		return nil, fmt.Errorf("read problems: %w", err)
	}
	d.Outbox.Depth = max(0, s.Depth()-r.Sending)
	if d.Outbox.Dropped, err = s.Dropped(ctx); err != nil {
		return nil, fmt.Errorf("read the outbox: %w", err)
	}
	if d.Declaration.Outcome == "" {
		if err := fromHistory(ctx, s, &d.Declaration); err != nil {
			return nil, err
		}
	}
	d.fill()
	return d, nil
}

// fromHistory says how the last apply went, for a daemon that is down.
func fromHistory(ctx context.Context, s *state.Store, d *Declaration) error {
	d.Seq, _ = s.Newest()
	d.Outcome = report.None
	if at := s.NewestAt(); !at.IsZero() {
		d.Accepted = at.UnixMilli()
	}
	past, err := s.History(ctx, 1)
	if err != nil || len(past) == 0 {
		return err
	}
	last := past[0]
	d.Outcome, d.TookMS = last.Outcome, last.Took.Milliseconds()
	if last.Seq != d.Seq {
		d.RefusedSeq = last.Seq
	}
	if last.Why != "" {
		d.Refused = unfold(last.Why)
	}
	return nil
}

// unfold makes of a refusal in one line, as the history has it, a refusal.
func unfold(line string) *refusal.Refusal {
	line, do, _ := strings.Cut(strings.TrimPrefix(line, "refused: "), "; do: ")
	what, why, _ := strings.Cut(line, ": ")
	return &refusal.Refusal{What: what, Why: why, Do: do}
}

// fill makes empty lists of missing ones: a list is never null in the JSON.
func (d *Document) fill() {
	if d.Modules == nil {
		d.Modules = []report.Module{}
	}
	if d.Uplinks == nil {
		d.Uplinks = []string{}
	}
	if d.Drift == nil {
		d.Drift = []report.Drift{}
	}
	if d.Left == nil {
		d.Left = []report.Drift{}
	}
	if d.Strays == nil {
		d.Strays = []string{}
	}
	if d.Problems == nil {
		d.Problems = []report.Problem{}
	}
}

// Write lays d at path for the command to read: whole by rename, not synced, since /run does not
// outlive a power cut anyway.
func (d *Document) Write(path string) error {
	b, err := json.Marshal(d)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	tmp := filepath.Join(filepath.Dir(path), ".mesh-"+filepath.Base(path))
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.Write(append(b, '\n'))
	// Whatever the umask: everybody at the machine may look.
	if err := errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// ErrDown is met by errors.Is when no daemon stands behind the Document at that path.
var ErrDown = errors.New("the agent is not running")

// Read reads the Document of a running daemon.
func Read(path string) (*Document, error) {
	d, err := read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrDown
	}
	if err != nil {
		return nil, err
	}
	if started, err := startedAt(d.Daemon.PID); err != nil || started != d.Daemon.Started {
		return nil, ErrDown
	}
	return d, nil
}

func read(path string) (*Document, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var d Document
	if err := json.Unmarshal(b, &d); err != nil {
		return nil, fmt.Errorf("%s is not understood: %w", path, err)
	}
	return &d, nil
}

// closing is how long a daemon may take from its last Document to the last write of its store.
const closing = 5 * time.Second

// Last is what a daemon that is down said last of what the store holds too: it is read in half the time. ok
// is false when it left nothing, or the store was written later. r is for what only a running daemon knows.
func Last(path, store string, r Runtime) (d *Document, ok bool) {
	said, err := os.Stat(path)
	if err != nil {
		return nil, false
	}
	for _, suffix := range []string{"", "-wal"} {
		if written, err := os.Stat(store + suffix); err == nil && written.ModTime().Sub(said.ModTime()) > closing {
			return nil, false
		} else if err != nil && suffix == "" {
			return nil, false // another mesh's, or gone
		}
	}
	if d, err = read(path); err != nil || d.Format != Format || d.Node != r.Node || d.Mesh != r.Mesh {
		return nil, false
	}
	d.At, d.Agent, d.Daemon, d.Bus, d.Profile = r.At, r.Agent, Daemon{}, Bus{}, nil
	d.Uplinks, d.Tunnel, d.Filter, d.Exposed, d.Strays, d.Left, d.Held, d.Taken, d.FreeDisk = nil, "", nil, nil, nil, nil, nil, nil, 0
	d.Declaration.Drift = ""
	d.fill()
	return d, true
}

// Self is this process, for the Document of a daemon.
func Self() (Daemon, error) {
	pid := os.Getpid()
	at, err := startedAt(pid)
	return Daemon{Up: true, PID: pid, Started: at}, err
}

// startedAt is field 22 of /proc/<pid>/stat: with the pid it names one life of a process (proc(5)).
func startedAt(pid int) (uint64, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, err
	}
	// The second field is a name in parentheses that may hold anything; the third follows the last ')'.
	i := bytes.LastIndexByte(b, ')')
	f := strings.Fields(string(b[i+1:]))
	if i < 0 || len(f) < 20 {
		return 0, fmt.Errorf("/proc/%d/stat is not understood", pid)
	}
	return strconv.ParseUint(f[19], 10, 64)
}
