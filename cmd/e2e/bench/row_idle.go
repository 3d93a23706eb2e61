package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"

	"mesh/shared/controller"
)

// idleStart says what row 4 looks at.
type idleStart struct {
	Dir string
	For time.Duration
}

// idleSeen is what was seen of one process.
type idleSeen struct{ RSS, Anon, CPU, Wakeups float64 }

// idleAnswer is both sides.
type idleAnswer struct {
	Mesh, Floor idleSeen
	// Applied is the agent right after it had made its 200 files.
	Applied idleSeen
	// Notes are what a reader should know.
	Notes []string
}

// settleFor is how long both sides may come to rest before they are looked at.
const settleFor = 8 * time.Second

// idleRows is row 4. The agent is the real program, so all of it happens in a network namespace of its
// own: whatever it does to a packet filter, it does to that one's.
func idleRows(b *bench, ctx context.Context) ([]score, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("row 4 runs the whole agent in a network namespace of its own, which takes root")
	}
	dir, err := b.folder("idle")
	if err != nil {
		return nil, err
	}
	b.say("row 4: building mesh-agent, then looking at it for %v", b.idleFor)
	if err := b.build(ctx, dir, "./cmd/mesh-agent", "./cmd/e2e/bench/flooridle"); err != nil {
		return nil, err
	}
	inside, err := start(ctx, "idle-inside", func(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET} })
	if err != nil {
		return nil, fmt.Errorf("a network namespace: %w", err)
	}
	defer inside.leave()
	var a idleAnswer
	if err := inside.ask("run", idleStart{dir, b.idleFor}, &a); err != nil {
		return nil, err
	}
	line := func(what, unit string, floor, mesh float64) score {
		return figures(4, "idle agent, 20 modules with 200 files checked each minute: "+what, unit, []float64{floor}, []float64{mesh})
	}
	rss := line("memory (RSS)", "MiB", a.Floor.RSS, a.Mesh.RSS).under(20, "<= 1.5x, 16 MiB")
	applied := line("memory (RSS) after it made them all", "MiB", a.Floor.RSS, a.Applied.RSS).under(20, "<= 1.5x, 16 MiB")
	anon := line("of it anonymous", "MiB", a.Floor.Anon, a.Mesh.Anon)
	anon.Aim = "<= 4 MiB"
	cpu := line("CPU", "%", a.Floor.CPU, a.Mesh.CPU).under(0.05, "<= 0.01 %")
	cpu = cpu.note("looked at for %v; wake-ups a second: mesh %.1f, floor %.1f. The program is the real one, stripped; it runs outside systemd here", b.idleFor, a.Mesh.Wakeups, a.Floor.Wakeups)
	cpu.Notes = append(cpu.Notes, a.Notes...)
	return []score{rss, applied, anon, cpu}, nil
}

// idleInsidePart is the child "idle-inside", which has a network namespace of its own.
func idleInsidePart(ctx context.Context) error {
	return serve(ctx, handlers{"run": on(idleInside)})
}

func idleInside(ctx context.Context, a idleStart) (any, error) {
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return nil, fmt.Errorf("bring up lo: %w", err)
	}
	// One node with twenty modules of ten files: twenty modules have a least of their own, 20 MiB.
	m, err := makeMesh(ctx, a.Dir, shape{Nodes: 1, Each: 20, Kinds: 20, Files: 10, Lines: 30})
	if err != nil {
		return nil, err
	}
	b := &bench{}
	daemon, err := b.startDaemon(ctx, m)
	if err != nil {
		return nil, err
	}
	defer daemon.leave()
	agent, log, err := startAgent(ctx, a.Dir, m)
	if err != nil {
		return nil, err
	}
	defer func() { agent.end() }()
	if err := idlePush(ctx, m); err != nil {
		return nil, fmt.Errorf("%w\nthe agent said: %s", err, tail(log))
	}
	pause(ctx, settleFor)
	var out idleAnswer
	made := memoryOf(agent.pid())
	out.Applied = idleSeen{RSS: made.rss / 1024, Anon: made.anon / 1024}
	// From here on it is an agent that came up and found all in order: files that were only just written
	// are read again by the next look, which is not what every minute is like.
	agent.end()
	if agent, log, err = startAgent(ctx, a.Dir, m); err != nil {
		return nil, err
	}
	floor, floorBus, err := startFloorIdle(ctx, a.Dir)
	if err != nil {
		return nil, err
	}
	defer floorBus.leave()
	defer floor.end()
	pause(ctx, settleFor)
	seen := lookOn(ctx, a.For, agent.pid(), floor.pid())
	out.Mesh, out.Floor = seen[0], seen[1]
	if said := tail(log); said != "" {
		out.Notes = append(out.Notes, "what the agent said: "+said)
	}
	return out, nil
}

func idlePush(ctx context.Context, m *mesh) error {
	c, err := operator(ctx, m.Operator)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = pushAll(ctx, c, controller.PushAsk{All: true, Why: "row 4"}, time.Minute)
	return err
}

// program is a program that runs until it is told to end.
type program struct {
	cmd *exec.Cmd
	in  io.Closer
}

func (p *program) pid() int { return p.cmd.Process.Pid }

func (p *program) end() {
	if p.in != nil {
		_ = p.in.Close() // the floor's word to end
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended already
	t := time.AfterFunc(5*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer t.Stop()
	_ = p.cmd.Wait() // it was told to end
}

// startAgent starts the real program with the credential of the mesh's node.
func startAgent(ctx context.Context, dir string, m *mesh) (p *program, log string, err error) {
	f, err := loadFleet(m.Nodes)
	if err != nil {
		return nil, "", err
	}
	root, state, run := filepath.Join(dir, "root"), filepath.Join(dir, "agent"), filepath.Join(dir, "run")
	if err := makeRoot(root); err != nil {
		return nil, "", err
	}
	cred, err := f.file(0).Encode()
	if err != nil {
		return nil, "", err
	}
	err = errors.Join(os.MkdirAll(state, 0o700), os.MkdirAll(run, 0o755), os.WriteFile(filepath.Join(state, "credential.json"), cred, 0o600))
	if err != nil {
		return nil, "", err
	}
	log = filepath.Join(dir, "agent.log")
	out, err := os.Create(log)
	if err != nil {
		return nil, "", err
	}
	defer out.Close() // the child has its own
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "mesh-agent"), "--state-dir", state, "--run-dir", run, "--root", root, "run")
	cmd.Stderr = out
	return &program{cmd: cmd}, log, cmd.Start()
}

// startFloorIdle starts a bare server and the smallest agent.
func startFloorIdle(ctx context.Context, dir string) (*program, *child, error) {
	listen, err := freeAddress()
	if err != nil {
		return nil, nil, err
	}
	server, err := start(ctx, "floor-bus")
	if err != nil {
		return nil, nil, err
	}
	if err := server.ask("start", floorStart{Dir: dir, Listen: listen, Users: 1, Subjects: 6}, nil); err != nil {
		server.leave()
		return nil, nil, err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "flooridle"), listen, floorSeeds(dir), filepath.Join(dir, "flooridle.db"))
	cmd.Stderr = os.Stderr
	p := &program{cmd: cmd}
	in, err := cmd.StdinPipe()
	if err == nil {
		p.in = in
		var out io.ReadCloser
		if out, err = cmd.StdoutPipe(); err == nil {
			if err = cmd.Start(); err == nil {
				_, err = bufio.NewReader(out).ReadString('\n') // "ready"
			}
		}
	}
	if err != nil {
		server.leave()
		return nil, nil, fmt.Errorf("flooridle: %w", err)
	}
	return p, server, nil
}

// lookOn watches processes at rest.
func lookOn(ctx context.Context, d time.Duration, pids ...int) []idleSeen {
	cpu, woken := make([]time.Duration, len(pids)), make([]int64, len(pids))
	for i, pid := range pids {
		cpu[i], woken[i] = cpuOf(pid), wakeups(pid)
	}
	began := time.Now()
	pause(ctx, d)
	took := time.Since(began)
	out := make([]idleSeen, len(pids))
	for i, pid := range pids {
		m := memoryOf(pid)
		out[i] = idleSeen{RSS: m.rss / 1024, Anon: m.anon / 1024, CPU: 100 * float64(cpuOf(pid)-cpu[i]) / float64(took), Wakeups: float64(wakeups(pid)-woken[i]) / took.Seconds()}
	}
	return out
}

// tail is the end of a log, in one line.
func tail(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-4):], " | ")
}
