package diagnose

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"mesh/shared/clock"
	"mesh/shared/diagnosis"
	"mesh/shared/engine"
	"mesh/shared/refusal"
)

const (
	// piece is how many bytes travel in one answer.
	piece = 256 << 10
	// keep is how long an archive stays for who asks for its pieces.
	keep = 10 * time.Minute
	// gatherBound is for making one.
	gatherBound = 3 * time.Minute
	// waitBound is how long an ask waits for one that is being made.
	waitBound = 5 * time.Second
)

// PiecesConfig is what Pieces work with.
type PiecesConfig struct {
	// File is where an archive is while its pieces are asked for.
	File string
	// Make makes one at a path where there is nothing.
	Make  func(ctx context.Context, file string) error
	Clock clock.Clock
	Rand  io.Reader
}

// Pieces hands an archive out over the bus, piece by piece. One is kept at a time, on disk: the agent's
// memory is for the machine.
type Pieces struct {
	cfg  PiecesConfig
	asks chan *made // to Run: make this one

	mu  sync.Mutex // guards now and its asked
	now *made
}

type made struct {
	id    string
	asked time.Time
	done  chan struct{} // closed once it is made, or was not; then err and size are set
	err   error
	size  int64
}

// NewPieces makes Pieces; Run makes the archives.
func NewPieces(c PiecesConfig) *Pieces { return &Pieces{cfg: c, asks: make(chan *made, 1)} }

// Run makes what is asked for until ctx ends, and leaves no archive behind.
func (p *Pieces) Run(ctx context.Context) error {
	ticks, stop := p.cfg.Clock.Every(time.Minute)
	defer stop()
	for {
		select {
		case <-ctx.Done():
			return p.remove()
		case m := <-p.asks:
			m.err = p.make(ctx, m)
			close(m.done)
		case <-ticks:
			if err := p.forget(); err != nil {
				return err
			}
		}
	}
}

func (p *Pieces) make(ctx context.Context, m *made) error {
	ctx, cancel := context.WithTimeout(ctx, gatherBound)
	defer cancel()
	err := p.remove()
	if err == nil {
		err = p.cfg.Make(ctx, p.cfg.File)
	}
	if err != nil {
		return fmt.Errorf("gather a diagnosis: %w", err)
	}
	m.size, err = diagnosis.Size(p.cfg.File)
	return err
}

func (p *Pieces) remove() error {
	if err := os.Remove(p.cfg.File); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// forget removes an archive that nobody asks for any more.
func (p *Pieces) forget() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.now == nil || p.cfg.Clock.Now().Sub(p.now.asked) < keep {
		return nil
	}
	p.now = nil
	return p.remove()
}

// Ask answers the next piece; of an archive that is still being made, one without a size.
func (p *Pieces) Ask(ctx context.Context, a engine.DiagnoseAsk) (engine.DiagnoseAnswer, error) {
	m, err := p.find(a.Archive)
	if err != nil {
		return engine.DiagnoseAnswer{}, err
	}
	select {
	case <-m.done:
	case <-p.cfg.Clock.After(waitBound):
		return engine.DiagnoseAnswer{Archive: m.id}, nil
	case <-ctx.Done():
		return engine.DiagnoseAnswer{}, ctx.Err()
	}
	if m.err != nil {
		return engine.DiagnoseAnswer{}, m.err
	}
	if a.Offset < 0 || a.Offset > m.size {
		return engine.DiagnoseAnswer{}, refusal.Newf("the arguments", "begin at 0", "offset: %d is beyond its %d bytes", a.Offset, m.size)
	}
	f, err := os.Open(p.cfg.File)
	if err != nil {
		return engine.DiagnoseAnswer{}, err
	}
	b := make([]byte, min(piece, m.size-a.Offset))
	_, err = f.ReadAt(b, a.Offset)
	if err = errors.Join(err, f.Close()); err != nil {
		return engine.DiagnoseAnswer{}, err
	}
	return engine.DiagnoseAnswer{Archive: m.id, Size: m.size, Data: b}, nil
}

// find is the archive called id, or for "" one that is being made, or begun.
func (p *Pieces) find(id string) (*made, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if id != "" {
		if p.now == nil || p.now.id != id {
			return nil, refusal.New("the archive", "it is not here any more", "begin another one")
		}
		p.now.asked = p.cfg.Clock.Now()
		return p.now, nil
	}
	if p.now != nil {
		select {
		case <-p.now.done:
		default:
			return p.now, nil
		}
	}
	var b [12]byte
	if _, err := io.ReadFull(p.cfg.Rand, b[:]); err != nil {
		return nil, fmt.Errorf("name an archive: %w", err)
	}
	m := &made{id: hex.EncodeToString(b[:]), asked: p.cfg.Clock.Now(), done: make(chan struct{})}
	select {
	case p.asks <- m:
	default:
		return nil, refusal.New("the archive", "one is being made, or the agent is stopping", "ask again in a moment")
	}
	p.now = m
	return m, nil
}
