// Package disk is a disk with a volatile cache, for tests of what a power cut leaves: an ext4 whose device
// notes every write and every flush, and replays of that note up to any point, in which what was written after the
// last flush survived wholly, not at all, or in random pieces (facts/host.md §1.3).
//
// The device is a loop device over a file that this process answers for itself, through FUSE: so the writes are
// those the kernel's own ext4 makes, in its order, with the flushes of its journal. A replay is mounted the same
// way, over memory, and ext4 recovers it by itself. It models a disk that is honest: what it called flushed stays,
// and a piece of 4 KiB is written whole or not. It cannot model one that lies about flushes, nor a torn piece.
//
// Root is needed, and loop devices, /dev/fuse and mkfs.ext4. It is for tests and cmd/e2e only.
package disk

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"mesh/shared/clock"
)

// piece is what survives whole or not at all.
const piece = 4096

// Kind is of what happened to a disk.
type Kind string

// The kinds.
const (
	Write Kind = "write" // into its cache
	Flush Kind = "flush" // all before is there to stay
	Mark  Kind = "mark"  // what the test had to say
)

// Record is one thing that happened to a disk.
type Record struct {
	Kind Kind
	Off  int64  // of a Write
	Data []byte // of a Write
	Text string // of a Mark
}

// Make returns a new ext4 of size bytes.
func Make(dir string, size int64) ([]byte, error) {
	at := filepath.Join(dir, "new.img")
	if err := os.WriteFile(at, nil, 0o600); err != nil {
		return nil, err
	}
	if err := os.Truncate(at, size); err != nil {
		return nil, err
	}
	mkfs, err := exec.LookPath("mkfs.ext4")
	if err != nil {
		mkfs = "/usr/sbin/mkfs.ext4" // not in the path of every user
	}
	// Everything is laid out at once: an ext4 that goes on making its tables would write of itself.
	if out, err := exec.Command(mkfs, "-q", "-F", "-b", "4096", "-J", "size=4", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard", at).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("mkfs.ext4 (package e2fsprogs): %w: %s", err, out)
	}
	image, err := os.ReadFile(at)
	return image, cmp.Or(err, os.Remove(at))
}

// Mounted is an image as a folder.
type Mounted struct {
	Dir  string
	loop *os.File
	file *os.File
}

// Mount mounts a copy of image, in memory, at the folder dir with ext4's options; Content is what became of it.
func Mount(image []byte, dir, options string) (*Mounted, error) {
	fd, err := unix.MemfdCreate("mesh-disk", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memory for a disk: %w", err)
	}
	f := os.NewFile(uintptr(fd), "mesh-disk")
	if err := writeHoles(f, image); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	m, err := mount(f, dir, options)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return m, nil
}

// writeHoles leaves out what is zero.
func writeHoles(f *os.File, image []byte) error {
	if err := f.Truncate(int64(len(image))); err != nil {
		return err
	}
	var zero [64 << 10]byte
	for off := 0; off < len(image); off += len(zero) {
		part := image[off:min(off+len(zero), len(image))]
		if bytes.Equal(part, zero[:len(part)]) {
			continue
		}
		if _, err := f.WriteAt(part, int64(off)); err != nil {
			return err
		}
	}
	return nil
}

func mount(f *os.File, dir, options string) (*Mounted, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	loop, err := attach(f)
	if err != nil {
		return nil, err
	}
	if err := unix.Mount(loop.Name(), dir, "ext4", unix.MS_NOATIME, options); err != nil {
		return nil, errors.Join(fmt.Errorf("mount %s: %w", loop.Name(), err), loop.Close())
	}
	return &Mounted{dir, loop, f}, nil
}

// attach makes f a block device, which goes when nothing uses it any more.
func attach(f *os.File) (*os.File, error) {
	ctl, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("loop devices are needed: %w", err)
	}
	defer ctl.Close() // only asked
	for range 100 {
		n, err := unix.IoctlRetInt(int(ctl.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("a free loop device: %w", err)
		}
		loop, err := os.OpenFile(fmt.Sprintf("/dev/loop%d", n), os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		config := unix.LoopConfig{Fd: uint32(f.Fd()), Size: 512, Info: unix.LoopInfo64{Flags: unix.LO_FLAGS_AUTOCLEAR}}
		err = unix.IoctlLoopConfigure(int(loop.Fd()), &config)
		if err == nil {
			return loop, nil
		}
		if err := errors.Join(loop.Close(), ignore(err, unix.EBUSY)); err != nil { // somebody else was faster
			return nil, fmt.Errorf("make a loop device: %w", err)
		}
	}
	return nil, errors.New("no loop device is free for long enough")
}

func ignore(err, what error) error {
	if errors.Is(err, what) {
		return nil
	}
	return err
}

// Close unmounts; nothing may be open on it.
func (m *Mounted) Close() error {
	return errors.Join(m.unmount(), m.file.Close())
}

// Content unmounts and returns the image.
func (m *Mounted) Content() ([]byte, error) {
	if err := m.unmount(); err != nil {
		return nil, err
	}
	st, err := m.file.Stat()
	if err != nil {
		return nil, err
	}
	image := make([]byte, st.Size())
	_, err = m.file.ReadAt(image, 0)
	return image, errors.Join(err, m.file.Close())
}

func (m *Mounted) unmount() error {
	return errors.Join(unmount(m.Dir), m.loop.Close())
}

// unmount waits a moment: a process that another goroutine starts holds for an instant what this one had open.
func unmount(dir string) (err error) {
	for range 200 {
		if err = unix.Unmount(dir, 0); !errors.Is(err, unix.EBUSY) {
			break
		}
		<-clock.Real().After(10 * time.Millisecond)
	}
	return err
}

// Recorder is a mounted disk all of whose writes and flushes are noted.
type Recorder struct {
	*Mounted
	cover   string
	ended   <-chan struct{}
	mu      sync.Mutex // guards what follows
	records []Record
	stopped bool
	base    []byte
}

// Note mounts image below dir, at Recorder.Dir, and notes what happens to it until Stop.
func Note(image []byte, dir, options string) (*Recorder, error) {
	r := &Recorder{cover: filepath.Join(dir, "device"), base: image}
	if err := os.WriteFile(r.cover, nil, 0o600); err != nil {
		return nil, err
	}
	s := &served{content: slices.Clone(image), write: r.wrote, sync: func() { r.add(Record{Kind: Flush}) }}
	var err error
	if r.ended, err = s.serve(r.cover); err != nil {
		return nil, err
	}
	// Past Go's poller, which would ask the file whether it can be polled while nobody here is free to answer.
	fd, err := unix.Open(r.cover, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		f := os.NewFile(uintptr(fd), r.cover)
		r.Mounted, err = mount(f, filepath.Join(dir, "disk"), options)
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}
	if err != nil {
		return nil, errors.Join(err, unix.Unmount(r.cover, unix.MNT_DETACH))
	}
	return r, nil
}

func (r *Recorder) wrote(off int64, b []byte) {
	r.add(Record{Kind: Write, Off: off, Data: slices.Clone(b)})
}

func (r *Recorder) add(rec Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.stopped {
		r.records = append(r.records, rec)
	}
}

// Mark notes that something was said at this point.
func (r *Recorder) Mark(text string) { r.add(Record{Kind: Mark, Text: text}) }

// Stop ends the note, then unmounts. Nothing may be open on the disk.
func (r *Recorder) Stop() (*Log, error) {
	r.mu.Lock()
	r.stopped = true
	log := &Log{Base: r.base, Records: r.records}
	r.mu.Unlock()
	err := r.Close()
	if e := unmount(r.cover); e != nil {
		return nil, errors.Join(err, e)
	}
	<-r.ended
	return log, err
}

// Log is what happened to a disk.
type Log struct {
	Base    []byte
	Records []Record
}

// Keep is what a power cut leaves of what was written after the last flush.
type Keep string

// The ways.
const (
	Nothing    Keep = "nothing"
	Everything Keep = "everything"
	Pieces     Keep = "pieces" // about half of the pieces, each whole
)

// Cut is one power cut.
type Cut struct {
	// At is how many records had happened.
	At   int
	Keep Keep
	// Seed says which pieces.
	Seed uint64
}

// Cuts replays a log. Cut must be asked with an At that never goes back.
type Cuts struct {
	log     *Log
	flushed []byte
	done    int // records that are in flushed
}

// Cuts begins a replay.
func (l *Log) Cuts() *Cuts { return &Cuts{log: l, flushed: slices.Clone(l.Base)} }

// Image is the disk as the cut leaves it.
func (c *Cuts) Image(cut Cut) []byte {
	last := c.done
	for i := c.done; i < cut.At; i++ {
		if c.log.Records[i].Kind == Flush {
			last = i + 1
		}
	}
	for _, r := range c.log.Records[c.done:last] {
		copy(c.flushed[r.Off:], r.Data)
	}
	c.done = last
	image := slices.Clone(c.flushed)
	rnd := rand.New(rand.NewPCG(cut.Seed, uint64(cut.At)))
	for _, r := range c.log.Records[last:cut.At] {
		if cut.Keep == Nothing {
			break
		}
		for off := 0; off < len(r.Data); off += piece {
			if cut.Keep == Everything || rnd.IntN(2) == 0 {
				copy(image[r.Off+int64(off):], r.Data[off:min(off+piece, len(r.Data))])
			}
		}
	}
	return image
}
