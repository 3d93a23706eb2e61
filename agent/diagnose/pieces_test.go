package diagnose

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"mesh/shared/clock"
	"mesh/shared/engine"
	"mesh/shared/refusal"
	"mesh/shared/waitfor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const soon = 10 * time.Second

func TestPieces(t *testing.T) {
	archive := make([]byte, 2*piece+1234)
	if _, err := rand.Read(archive); err != nil {
		t.Fatal(err)
	}
	file, clk := filepath.Join(t.TempDir(), "d.tar.gz"), clock.NewFake(clock.Real().Now())
	gate, made := make(chan error), 0
	p := NewPieces(PiecesConfig{File: file, Clock: clk, Rand: rand.Reader, Make: func(ctx context.Context, file string) error {
		made++
		select {
		case err := <-gate:
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
		f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_, err = f.Write(archive)
		return errors.Join(err, f.Close())
	}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	// One that takes long is answered without a size, and who asks too gets the same.
	first := make(chan engine.DiagnoseAnswer, 2)
	for range 2 {
		go func() {
			a, err := p.Ask(t.Context(), engine.DiagnoseAsk{})
			if err != nil {
				t.Error(err)
			}
			first <- a
		}()
	}
	var a engine.DiagnoseAnswer
	for range 2 {
		waitfor.True(t, "an answer", soon, func() (bool, any) { clk.Advance(waitBound); return len(first) > 0, nil })
		b := <-first
		if b.Size != 0 || b.Archive == "" || a.Archive != "" && a.Archive != b.Archive {
			t.Fatalf("%+v, %+v", a, b)
		}
		a = b
	}
	gate <- nil
	var got []byte
	for {
		b, err := p.Ask(t.Context(), engine.DiagnoseAsk{Archive: a.Archive, Offset: int64(len(got))})
		if err != nil {
			t.Fatal(err)
		}
		if got = append(got, b.Data...); int64(len(got)) >= b.Size {
			break
		}
	}
	if !bytes.Equal(got, archive) || made != 1 {
		t.Errorf("%d of %d bytes, made %d times", len(got), len(archive), made)
	}
	for _, bad := range []engine.DiagnoseAsk{{Archive: "x"}, {Archive: a.Archive, Offset: -1}, {Archive: a.Archive, Offset: 1 << 40}} {
		if _, err := p.Ask(t.Context(), bad); refusal.Of(err) == nil {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	// It is gone when nobody asks any more.
	waitfor.True(t, "the archive to be forgotten", soon, func() (bool, any) {
		clk.Advance(time.Minute)
		_, err := os.Stat(file)
		return errors.Is(err, os.ErrNotExist), err
	})
	if _, err := p.Ask(t.Context(), engine.DiagnoseAsk{Archive: a.Archive}); refusal.Of(err) == nil {
		t.Errorf("a forgotten one: %v", err)
	}
	// One that cannot be made is said, and the end of the agent ends one that is being made.
	fails := make(chan error, 1)
	go func() { _, err := p.Ask(t.Context(), engine.DiagnoseAsk{}); fails <- err }()
	no := errors.New("no disk")
	gate <- no
	if err := waitfor.Value(t, "the failure", soon, fails); !errors.Is(err, no) {
		t.Errorf("%v", err)
	}
	go func() { _, err := p.Ask(t.Context(), engine.DiagnoseAsk{}); fails <- err }()
	waitfor.True(t, "the last to begin", soon, func() (bool, any) {
		p.mu.Lock()
		defer p.mu.Unlock()
		select {
		case <-p.now.done:
			return false, nil
		default:
			return len(p.asks) == 0, nil
		}
	})
	cancel()
	if err := waitfor.Value(t, "its end", soon, fails); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if err := waitfor.Value(t, "the end", soon, ended); err != nil {
		t.Error(err)
	}
}
