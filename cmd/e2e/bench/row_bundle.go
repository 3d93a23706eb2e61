package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"mesh/coordinator/client"
	"mesh/shared/bundle"
	"mesh/shared/controller"
	"mesh/shared/declaration"
	"mesh/shared/manifest/yamlfile"
)

// bundleRows is row 15. The bundle comes over TLS from the coordinator's own bus, in a process of its own.
func bundleRows(b *bench, ctx context.Context) (_ []score, err error) {
	dir, err := b.folder("bundle")
	if err != nil {
		return nil, err
	}
	// Its files are large: they do not wait for the end of the run.
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	b.say("row 15: making a bundle of %d MB and putting it on the bus", b.bundle)
	p, err := b.newBundles(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer p.leave()
	before, err := p.agent.settle()
	if err != nil {
		return nil, err
	}
	floor, mesh, err := inTurn(ctx, b.rounds, p.floor(ctx), p.bring)
	if err != nil {
		return nil, err
	}
	after := memoryOf(p.agent.pid())
	s := compare(15, fmt.Sprintf("a bundle of %d MB, from the bus to switched in place", p.size/1e6), floor, mesh).within(1.3, "<= 1.3x")
	s = s.note("the floor reads the archive with cat | sha256sum, then tar -xz, then one syncfs; mesh fetches it over TLS as well, and indexes what it unpacked. Its CPU is the agent's alone")
	m := figures(15, "what the agent's memory grows by meanwhile (peak)", "MiB", nil, []float64{(after.peak - before.rss) / 1024}).under(16, "< 16 MiB")
	return []score{s, m}, nil
}

// bundles is what row 15 works with.
type bundles struct {
	dir, archive string
	size         int64
	daemon       *child
	agent        *child
}

func (b *bench) newBundles(ctx context.Context, dir string) (_ *bundles, err error) {
	p := &bundles{dir: dir}
	defer func() {
		if err != nil {
			p.leave()
		}
	}()
	module := filepath.Join(dir, "module")
	if err := makeFiles(filepath.Join(module, "dist"), int64(b.bundle)*1e6); err != nil {
		return nil, err
	}
	text := "module: " + string(bundleModule) + "\nbuild: {bundle: {output: dist}}\n"
	if _, err := yamlfile.Parse("module.yaml", []byte(text)); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(module, "module.yaml"), []byte(text), 0o644); err != nil {
		return nil, err
	}
	m, err := makeMesh(ctx, dir, shape{Nodes: 1})
	if err != nil {
		return nil, err
	}
	if p.daemon, err = b.startDaemon(ctx, m); err != nil {
		return nil, err
	}
	a, err := p.deliver(ctx, m, module)
	if err != nil {
		return nil, err
	}
	if p.agent, err = start(ctx, "mesh-bundle"); err != nil {
		return nil, err
	}
	return p, p.agent.ask("start", bundleStart{Dir: filepath.Join(dir, "agent"), Fleet: m.Nodes, Artifact: *a}, nil)
}

// deliver registers the module as a person does and lets the node fetch it; the floor gets the same archive.
func (p *bundles) deliver(ctx context.Context, m *mesh, module string) (_ *declaration.Artifact, err error) {
	p.archive = filepath.Join(p.dir, "archive.tar.gz")
	f, err := os.Create(p.archive)
	if err != nil {
		return nil, err
	}
	_, p.size, err = bundle.Pack(f, filepath.Join(module, "dist"))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	c, err := operator(ctx, m.Operator)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if _, err := c.Register(ctx, module, "bench", nil); err != nil {
		return nil, err
	}
	if _, err := c.Assign(ctx, controller.AssignAsk{Node: nodeName(0), Module: bundleModule}, nil); err != nil {
		return nil, err
	}
	show, err := client.Ask[controller.ModuleAnswer](ctx, c, controller.ModuleShow, controller.ModuleAsk{Module: bundleModule})
	if err != nil {
		return nil, err
	}
	// The user list is renewed a moment after the assignment.
	pause(ctx, 2*time.Second)
	return show.Artifact, os.RemoveAll(module)
}

func (p *bundles) floor(ctx context.Context) func(int) (sample, error) {
	return func(int) (sample, error) { return floorBundle(ctx, p.archive, p.dir) }
}

func (p *bundles) bring(int) (s sample, err error) {
	var t took
	if err := p.agent.ask("bring", nothing{}, &t); err != nil {
		return s, err
	}
	s = sample{wall: time.Duration(t.WallMS * float64(time.Millisecond)), cpu: time.Duration(t.CPUMS * float64(time.Millisecond))}
	return s, p.agent.ask("drop", nothing{}, nil)
}

func (p *bundles) leave() {
	p.agent.leave()
	p.daemon.leave()
}

// makeFiles writes files that an archive of them makes about size bytes of: programs and texts, three parts
// that cannot be packed and one that can.
func makeFiles(dir string, size int64) error {
	noise := rand.NewChaCha8([32]byte{15})
	const block = 64 << 10
	buf := make([]byte, block)
	for n, packed := 0, int64(0); packed < size; n++ {
		at := filepath.Join(dir, "share", strconv.Itoa(n%20), fmt.Sprintf("file-%04d", n))
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			return err
		}
		f, err := os.Create(at)
		if err != nil {
			return err
		}
		for k := 0; k < 48 && packed < size && err == nil; k++ {
			if k%4 == 3 {
				buf = buf[:0]
				for line := 0; len(buf) < block-64; line++ {
					buf = fmt.Appendf(buf, "option %d of the program = %x\n", line, noise.Uint64()%100_000)
				}
				packed += int64(len(buf)) / 4
			} else {
				buf = buf[:block]
				_, err = noise.Read(buf)
				packed += block
			}
			if err == nil {
				_, err = f.Write(buf)
			}
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}
