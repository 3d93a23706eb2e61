package apply_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mesh/testbus/disk"
)

// diskSize holds a machine of these lives; the smaller, the quicker a cut is made.
const diskSize = 24 << 20

// options are how the disk is mounted: as Debian does, and as careless as ext4 can be, where nothing but a sync
// puts a file's content before its name.
var options = []string{"", "data=writeback,noauto_da_alloc"}

// cuts is a machine whose change was noted, write by write.
type cuts struct {
	*machine
	options string
	log     *disk.Log
	replay  *disk.Cuts
	mount   string
}

// newCuts lives the change on a disk with a volatile cache and notes it.
func newCuts(t *testing.T, l lives, options string) *cuts {
	t.Helper()
	folder := memoryFolder(t)
	c := &cuts{options: options, mount: filepath.Join(folder, "disk")}
	image, err := disk.Make(folder, diskSize)
	must(t, err)
	m, err := disk.Mount(image, c.mount, options)
	must(t, err)
	c.machine = newMachine(t, l, c.mount)
	// The base is how it begins, at the place where it is lived.
	c.again(t)
	must(t, os.RemoveAll(c.start))
	image, err = m.Content()
	must(t, err)

	c.paper = filepath.Join(folder, "paper")
	must(t, os.Mkdir(c.paper, 0o755))
	r, err := disk.Note(image, folder, options)
	must(t, err)
	for _, memory := range []string{"systemd.json", "calls", "engine"} { // it goes on beside the disk
		text, err := os.ReadFile(filepath.Join(c.dir, memory))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		must(t, err)
		must(t, os.WriteFile(filepath.Join(c.paper, memory), text, 0o644))
	}
	c.noted(t, r)
	c.log, err = r.Stop()
	must(t, err)
	c.replay = c.log.Cuts()
	return c
}

// noted runs the child on the disk; each word of its is noted where it was said.
func (c *cuts) noted(t *testing.T, r *disk.Recorder) {
	t.Helper()
	cmd := command(t, c.dir, 0)
	cmd.Env = append(cmd.Env, waitsEnv+"=1", paperEnv+"="+c.paper)
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	cmd.Stderr = os.Stderr
	must(t, cmd.Start())
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "mark: ") {
			r.Mark(lines.Text())
			if _, err := io.WriteString(in, "\n"); err != nil {
				t.Fatal(err)
			}
		}
	}
	must(t, lines.Err())
	must(t, cmd.Wait())
}

// at is the machine after a cut: what the agent said until then, and the disk.
func (c *cuts) at(t *testing.T, cut disk.Cut) (kind string) {
	t.Helper()
	var h told
	for _, r := range c.log.Records[:cut.At] {
		if r.Kind == disk.Mark {
			h.hear(r.Text)
		}
	}
	m, err := disk.Mount(c.replay.Image(cut), c.mount, c.options)
	if err != nil {
		t.Errorf("the disk cannot be mounted: %v", err)
		return "no disk"
	}
	defer func() { must(t, m.Close()) }()
	return c.judge(t, h)
}

func (c *cuts) words(cut disk.Cut) string {
	return fmt.Sprintf("power cut after %d of %d writes and flushes, of what was not flushed survives %s (mounted %q)", cut.At, len(c.log.Records), cut.Keep, c.options)
}
