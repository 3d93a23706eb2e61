// Command bench prints the scoreboard: what mesh takes for a piece of work beside what the work itself
// takes on this machine. Every row has a floor, a program without any of mesh's code (the files named
// floor_*.go and the folders floor*), and both run in turn in one run after a round to warm up, so only
// ratios count. A bound that is missed is said and is no failure of the program.
//
//	go run ./cmd/e2e/bench                   # all rows
//	go run ./cmd/e2e/bench --rows 1,3 --json
//
// The parts of a row live in processes of their own, which are this program again (child.go). All files
// are below one temporary folder, which is removed at the end.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
)

// restless is the share of idle time below which figures are not to be trusted.
const restless = 0.80

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	code := run(ctx, os.Args[1:])
	stop()
	os.Exit(code)
}

// run is the whole program: a child when the first word names one, else the scoreboard.
func run(ctx context.Context, args []string) int {
	raiseFiles()
	if len(args) > 0 {
		if part, ok := parts()[args[0]]; ok {
			if err := part(ctx); err != nil {
				fmt.Fprintf(os.Stderr, "%s: %v\n", args[0], err)
				return 1
			}
			return 0
		}
	}
	b, err := parse(args)
	if errors.Is(err, pflag.ErrHelp) {
		return 0
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	if err := b.scoreboard(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// bench is one run.
type bench struct {
	rows   []int
	json   bool
	rounds int
	// dir holds everything a row leaves while it runs.
	dir, keep string
	// profiles is where processor profiles of mesh's parts go; empty: none.
	profiles string

	agents, nodes, storm, users, connected int
	bundle                                 int // MB
	idleFor                                time.Duration
}

func parse(args []string) (*bench, error) {
	b := &bench{}
	f := pflag.NewFlagSet("bench", pflag.ContinueOnError)
	rows := f.String("rows", "", "rows to run, such as 1,3; empty: all")
	f.BoolVar(&b.json, "json", false, "print JSON")
	f.IntVar(&b.rounds, "rounds", 5, "rounds a row, after one to warm up")
	f.StringVar(&b.keep, "dir", "", "where the temporary folder is made; it decides which disk is measured")
	f.StringVar(&b.profiles, "profile", "", "folder for processor profiles of mesh's parts")
	f.IntVar(&b.agents, "agents", 2000, "agents of rows 1 to 3")
	f.IntVar(&b.nodes, "nodes", 10_000, "nodes of rows 7 to 9")
	f.IntVar(&b.storm, "storm", 5000, "agents of rows 12 and 14")
	f.IntVar(&b.users, "users", 10_000, "users of row 13")
	f.IntVar(&b.connected, "connected", 1000, "users of row 13 that are connected")
	f.IntVar(&b.bundle, "bundle", 500, "size of the bundle of row 15 in MB; that row runs only when it is named")
	f.DurationVar(&b.idleFor, "idle", 62*time.Second, "how long row 4 looks on")
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("refused: the argument %q\ndo: name rows with --rows; see --help", f.Arg(0))
	}
	return b, b.choose(*rows)
}

// choose reads --rows.
func (b *bench) choose(rows string) error {
	for word := range strings.SplitSeq(rows, ",") {
		if word = strings.TrimSpace(word); word == "" {
			continue
		}
		n, err := strconv.Atoi(word)
		if err != nil || !slices.ContainsFunc(table(), func(r row) bool { return slices.Contains(r.numbers, n) }) {
			return fmt.Errorf("refused: row %q\ndo: choose from %s", word, known())
		}
		b.rows = append(b.rows, n)
	}
	return nil
}

func known() string {
	var all []string
	for _, r := range table() {
		for _, n := range r.numbers {
			all = append(all, strconv.Itoa(n))
		}
	}
	return strings.Join(all, ", ")
}

// row is one or more rows of the scoreboard that share their parts.
type row struct {
	numbers []int
	run     func(b *bench, ctx context.Context) ([]score, error)
}

// minutes are rows that take so long that they run only when --rows names them.
var minutes = [...]int{15}

// wants says whether a row was asked for.
func (b *bench) wants(n int) bool {
	return slices.Contains(b.rows, n) || len(b.rows) == 0 && !slices.Contains(minutes[:], n)
}

func (b *bench) scoreboard(ctx context.Context, out io.Writer) (err error) {
	if b.dir, err = os.MkdirTemp(b.keep, "mesh-bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	began := time.Now()
	res := &board{Idle: idle(ctx, 2*time.Second), Scores: []score{}}
	if res.Idle < restless {
		res.Warn = fmt.Sprintf("the machine was only %.0f %% idle at the start: other work takes part in these figures", 100*res.Idle)
		b.say("WARNING: %s", res.Warn)
	}
	for _, r := range table() {
		if !slices.ContainsFunc(r.numbers, b.wants) {
			continue
		}
		t := time.Now()
		scores, err := r.run(b, ctx)
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted: %w", ctx.Err())
		}
		if err != nil {
			res.Failed = append(res.Failed, fmt.Sprintf("rows %v: %v", r.numbers, err))
			b.say("rows %v: %v", r.numbers, err)
		}
		for _, s := range scores {
			if b.wants(s.Row) {
				res.Scores = append(res.Scores, s)
			}
		}
		b.say("rows %v took %.0f s", r.numbers, time.Since(t).Seconds())
	}
	slices.SortStableFunc(res.Scores, func(x, y score) int { return x.Row - y.Row })
	res.Took = time.Since(began).Seconds()
	if b.json {
		return res.json(out)
	}
	return res.text(out)
}

// say tells the person who waits what goes on.
func (b *bench) say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "bench: "+format+"\n", args...)
}

// folder makes a folder for one part of a row.
func (b *bench) folder(name string) (string, error) { return os.MkdirTemp(b.dir, name+"-") }

// raiseFiles lets this process and its children hold as many files as the machine allows.
func raiseFiles() {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) != nil {
		return
	}
	if want := (unix.Rlimit{Cur: 1 << 19, Max: 1 << 19}); l.Max < want.Max && unix.Setrlimit(unix.RLIMIT_NOFILE, &want) == nil {
		return
	}
	l.Cur = l.Max
	_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &l) // what is too little is said when a socket cannot be made
}

// files is how many files one process may hold.
func files() int {
	var l unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &l) != nil {
		return 1024
	}
	return int(min(l.Cur, 1<<20))
}
