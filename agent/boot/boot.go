// Package boot keeps the file from which the packet filter stands before the network at boot, agent or no
// agent (NET-10): the unit mesh-filter.service hands it to nft. What is written is whole, synced, and only
// written when it is other than before. The agent's own memory of the filter stands in it as a remark, so
// that it outlives the store.
//
// The package changes one file, starts no goroutine and never talks to the kernel.
package boot

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"

	"mesh/agent/host/file"
	"mesh/firewall"
	"mesh/shared/refusal"
)

// Path is the file. The unit that loads it names it too.
const Path = "/var/lib/mesh-agent/filter.nft"

// loader is the unit that loads the file at boot, where systemd has it once it is enabled.
const loader = "/etc/systemd/system/sysinit.target.wants/mesh-filter.service"

// maxSize bounds what is read back: ten thousand rules are a tenth of it.
const maxSize = 64 << 20

const (
	head = "# Made by mesh-agent: the packet filter confirmed last, which mesh-filter.service loads at boot, before the network.\n# It gives way to the agent's own table. Take it away with: nft delete table inet " + firewall.BootTable + "\n"
	mark = "# memory: "
)

// File is the file below root.
type File struct {
	root *file.Root
}

// New is the file below root, "/" on a machine. Its folder is there already.
func New(root *file.Root) *File { return &File{root: root} }

// Keep has table loaded at the next boot and note, one line, beside it. It reports whether anything had to
// change.
func (f *File) Keep(table firewall.Table, note []byte) (changed bool, err error) {
	text := table.BootText()
	if text == "" {
		return false, errors.New("keep the packet filter for the boot: an empty table")
	}
	if bytes.IndexByte(note, '\n') >= 0 {
		return false, errors.New("keep the packet filter for the boot: a note of several lines")
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s%s%s\n%s", head, mark, note, text)
	changed, err = f.root.Write(file.Spec{Path: Path, Content: b.Bytes(), Mode: 0o600})
	if err != nil {
		return false, fmt.Errorf("keep the packet filter for the boot: %w", err)
	}
	return changed, nil
}

// Loaded says why the file would not be loaded at the next boot, or nil.
func (f *File) Loaded() error {
	s, err := f.root.Observe(loader)
	if err != nil {
		return fmt.Errorf("look for the unit that loads the packet filter at boot: %w", err)
	}
	if !s.Exists {
		return refusal.New("the packet filter before the network at boot", "mesh-filter.service is not enabled on this machine",
			"run mesh-installer enrol on it, which lays what is missing")
	}
	return nil
}

// Recall returns the note kept last, or nil when there is none.
func (f *File) Recall() ([]byte, error) {
	b, err := f.root.Read(Path, maxSize)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("recall the packet filter of the boot: %w", err)
	}
	for line := range bytes.Lines(b) {
		if note, ok := bytes.CutPrefix(line, []byte(mark)); ok {
			return bytes.TrimSpace(note), nil
		}
		if !bytes.HasPrefix(line, []byte("#")) {
			break
		}
	}
	return nil, nil
}

// Remove has nothing of mesh's loaded at boot any more.
func (f *File) Remove() error {
	if _, err := f.root.Remove(Path); err != nil {
		return fmt.Errorf("forget the packet filter of the boot: %w", err)
	}
	return nil
}
