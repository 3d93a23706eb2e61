// Package diagnosis writes one .tar.gz that a maintainer can use (OPS-5): named parts, each a text of
// bounded size gathered in bounded time, with secrets masked in every one of them before it is written. A
// part that cannot be had says why in its place, and CONTENTS names them all: what could not be seen is
// never taken for well. What the parts are is for the programs to say.
//
// The package owns no goroutine that outlives a call.
package diagnosis

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/klauspost/compress/gzip"

	"mesh/shared/clock"
)

const (
	// MostPart bounds one part in bytes.
	MostPart = 1 << 20
	// MostTotal bounds all of them before they are packed.
	MostTotal = 12 << 20
	// PartBound is how long one part may take.
	PartBound = 10 * time.Second
	// killBound is how long a program may take to die.
	killBound = time.Second
)

// Archive is being written.
type Archive struct {
	mask   *Mask
	folder string
	at     time.Time
	clk    clock.Clock
	gz     *gzip.Writer
	tw     *tar.Writer

	contents bytes.Buffer
	total    int
	err      error
}

// New begins an archive whose parts are in folder. Close ends it.
func New(w io.Writer, folder string, mask *Mask, clk clock.Clock) *Archive {
	gz := gzip.NewWriter(w)
	return &Archive{mask: mask, folder: folder, at: clk.Now(), clk: clk, gz: gz, tw: tar.NewWriter(gz)}
}

// Part writes what get gives as name. An error of get is written in its place, and a panic of its too: a
// machine that needs a diagnosis is one on which something unforeseen happened.
func (a *Archive) Part(ctx context.Context, name, what string, get func(context.Context) ([]byte, error)) {
	if a.err != nil {
		return
	}
	bound, cancel := context.WithTimeout(ctx, PartBound)
	defer cancel()
	began := a.clk.Now()
	b, err := guarded(bound, get)
	took := a.clk.Now().Sub(began).Round(time.Millisecond)
	note := ""
	if err != nil {
		note = ": NOT WHOLE: " + a.mask.Text(strings.ReplaceAll(err.Error(), "\n", "; "))
		b = append(b, "\n(not whole: "+err.Error()+")\n"...)
	}
	b = a.mask.Bytes(b)
	if room := min(MostPart, max(0, MostTotal-a.total)); len(b) > room {
		b = append([]byte(fmt.Sprintf("(the last %d of %d bytes)\n", room, len(b))), b[len(b)-room:]...)
		note += ": only the end of it"
	}
	a.total += len(b)
	fmt.Fprintf(&a.contents, "%-28s %s (%d bytes, %v)%s\n", name, what, len(b), took, note)
	a.write(name, b)
}

func guarded(ctx context.Context, get func(context.Context) ([]byte, error)) (b []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("a fault of the program that gathers it: %v", p)
		}
	}()
	return get(ctx)
}

// JSON writes a value.
func (a *Archive) JSON(ctx context.Context, name, what string, get func(context.Context) (any, error)) {
	a.Part(ctx, name, what, func(ctx context.Context) ([]byte, error) {
		v, err := get(ctx)
		if err != nil {
			return nil, err
		}
		b, err := json.MarshalIndent(v, "", "  ")
		return append(b, '\n'), err
	})
}

// Commands writes what programs say, one after the other.
func (a *Archive) Commands(ctx context.Context, name, what string, commands ...[]string) {
	a.Part(ctx, name, what, func(ctx context.Context) ([]byte, error) {
		var out bytes.Buffer
		var errs []error
		for _, argv := range commands {
			fmt.Fprintf(&out, "$ %s\n", strings.Join(argv, " "))
			b, err := Run(ctx, argv)
			out.Write(b)
			out.WriteByte('\n')
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", argv[0], err))
			}
		}
		return out.Bytes(), errors.Join(errs...)
	})
}

// Run runs a program and returns the last of what it says, MostPart bytes at most, until ctx ends.
func Run(ctx context.Context, argv []string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "SYSTEMD_COLORS=0", "SYSTEMD_PAGER=", "PAGER=cat")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = killBound
	var out last
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && ctx.Err() == nil {
		err = nil // systemctl status says so of a unit that is down; the text says more
		fmt.Fprintf(&out, "(%s)\n", exit)
	}
	return out.bytes(), err
}

// last keeps the last MostPart bytes that were written.
type last struct {
	b       []byte
	dropped int
}

func (l *last) Write(p []byte) (int, error) {
	l.b = append(l.b, p...)
	if over := len(l.b) - 2*MostPart; over > 0 {
		l.trim()
	}
	return len(p), nil
}

func (l *last) trim() {
	if over := len(l.b) - MostPart; over > 0 {
		l.b = append(l.b[:0], l.b[over:]...)
		l.dropped += over
	}
}

func (l *last) bytes() []byte {
	l.trim()
	if l.dropped == 0 {
		return l.b
	}
	_, whole, _ := bytes.Cut(l.b, []byte("\n")) // half a secret could stand in half a line
	return append([]byte(fmt.Sprintf("(%d bytes before are left out)\n", l.dropped+len(l.b)-len(whole))), whole...)
}

// File writes a file; one that is not there is no error.
func (a *Archive) File(ctx context.Context, name, what, file string) {
	a.Part(ctx, name, what, func(context.Context) ([]byte, error) { return ReadFile(file) })
}

// ReadFile reads a file's first MostPart bytes, and says so of one that is not there.
func ReadFile(file string) ([]byte, error) {
	f, err := os.Open(file)
	if errors.Is(err, os.ErrNotExist) {
		return []byte("(there is no " + file + ")\n"), nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, MostPart))
	if len(b) == MostPart { // half a secret could stand in half a line
		b = append(b[:bytes.LastIndexByte(b, '\n')+1], "(the rest is left out)\n"...)
	}
	return b, err
}

func (a *Archive) write(name string, b []byte) {
	err := a.tw.WriteHeader(&tar.Header{Name: path.Join(a.folder, name), Mode: 0o600, Size: int64(len(b)), ModTime: a.at, Format: tar.FormatPAX})
	if err == nil {
		_, err = a.tw.Write(b)
	}
	if err != nil {
		a.err = fmt.Errorf("write %s: %w", name, err)
	}
}

// Close writes CONTENTS and ends the archive.
func (a *Archive) Close() error {
	head := "What is in this archive, made at " + a.at.UTC().Format(time.RFC3339) + ".\nSecrets are masked as " + masked + "; look through it before you hand it on all the same.\n\n"
	if a.err == nil {
		a.write("CONTENTS", append([]byte(head), a.contents.Bytes()...))
	}
	return errors.Join(a.err, a.tw.Close(), a.gz.Close())
}

// Create writes an archive at file, which must not be there yet, for its owner alone. A half one is removed.
func Create(file string, fill func(io.Writer) error) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = fill(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(file))
	}
	return nil
}

// Size is how many bytes the archive at file has.
func Size(file string) (int64, error) {
	st, err := os.Stat(file)
	if err != nil {
		return 0, err
	}
	return st.Size(), nil
}

// mostFiles bounds the list of what is on disk.
const mostFiles = 5000

// Tree lists a folder: sizes, modes and names, no contents.
func Tree(folder string) ([]byte, error) {
	var out bytes.Buffer
	n := 0
	err := filepath.WalkDir(folder, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			fmt.Fprintf(&out, "%s: %v\n", path, err)
			return nil
		}
		if n++; n > mostFiles {
			fmt.Fprintf(&out, "(more than %d)\n", mostFiles)
			return filepath.SkipAll
		}
		if i, err := d.Info(); err == nil {
			fmt.Fprintf(&out, "%s %10d %s %s\n", i.Mode(), i.Size(), i.ModTime().UTC().Format("2006-01-02T15:04:05Z"), strings.TrimPrefix(path, folder))
		}
		return nil
	})
	return out.Bytes(), err
}

// Strings are the strings of the values in a JSON text, such as a credential: to be masked wherever they
// stand. What is short, or says where something is, is none of them.
func Strings(text []byte) (out []string) {
	var v any
	if json.Unmarshal(text, &v) != nil {
		return []string{string(text)} // whatever it is
	}
	var walk func(name string, v any)
	walk = func(name string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, x := range v {
				walk(k, x)
			}
		case []any:
			for _, x := range v {
				walk(name, x)
			}
		case string:
			if SecretName(name) || name == "curve" {
				out = append(out, v)
			}
		}
	}
	walk("", v)
	return out
}
