package installer

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"mesh/shared/refusal"
)

// agentPrograms begins the paths of agents that came in a bundle (docs/upgrading.md).
const agentPrograms = agentFolder + "/agent/"

// place is one file that a run puts on the machine, and how it was before.
type place struct {
	m    Machine
	path string
	mode fs.FileMode

	looked bool
	there  bool
	was    []byte
	wasPut fs.FileMode
	// link is where it led: an agent that changed itself left a link to its program.
	link string
	// folder is the uppermost folder that was made for it.
	folder string
	// Changed says that the file is not what it was.
	changed bool
}

func (m Machine) place(path string, mode fs.FileMode) *place {
	return &place{m: m, path: path, mode: mode}
}

// look reads what is there, once.
func (p *place) look() error {
	if p.looked {
		return nil
	}
	at := p.m.at(p.path)
	st, err := os.Lstat(at)
	if to, e := os.Readlink(at); e == nil && strings.HasPrefix(to, agentPrograms) {
		p.link = to
		if st, err = os.Stat(p.m.at(to)); err == nil {
			at = p.m.at(to)
		}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case !st.Mode().IsRegular():
		kind := "no file"
		if to, err := os.Readlink(at); err == nil {
			kind = "a link to " + to
		}
		return refusal.New("to write "+p.path, "it is "+kind+", which mesh did not put there", "remove it and run the same command again")
	default:
		if p.was, err = os.ReadFile(at); err != nil {
			return err
		}
		p.there, p.wasPut = true, st.Mode().Perm()
	}
	p.looked = true
	return nil
}

// put makes the file so, whole and lasting, and says whether it had to.
func (p *place) put(content []byte) (changed bool, err error) {
	if err := p.look(); err != nil {
		return false, err
	}
	if p.there && !p.changed && p.wasPut == p.mode && bytes.Equal(p.was, content) {
		return false, nil
	}
	if err := p.makeFolder(); err != nil {
		return false, err
	}
	put, err := replace(p.m.at(p.path), content, p.mode)
	p.changed = p.changed || put // a disk that is full leaves the file as it was, and could not take it back
	return true, err
}

func (p *place) makeFolder() error {
	folder := filepath.Dir(p.path)
	for f := folder; f != "/"; f = filepath.Dir(f) {
		if _, err := os.Stat(p.m.at(f)); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		p.folder = f
	}
	mode := fs.FileMode(0o755)
	if p.mode&0o077 == 0 {
		mode = 0o700 // a folder for what is secret is closed too
	}
	return os.MkdirAll(p.m.at(folder), mode)
}

// undo puts back what was there before.
func (p *place) undo() error {
	if p.changed && p.link != "" {
		return relink(p.m.at(p.path), p.link)
	}
	if p.changed && p.there {
		_, err := replace(p.m.at(p.path), p.was, p.wasPut)
		return err
	}
	if p.changed {
		if err := remove(p.m.at(p.path)); err != nil {
			return err
		}
	}
	for f := filepath.Dir(p.path); p.folder != "" && len(f) >= len(p.folder); f = filepath.Dir(f) {
		if os.Remove(p.m.at(f)) != nil {
			break // something else is in it now
		}
	}
	return nil
}

// replace writes a file under another name, syncs it, renames it into place and syncs the folder.
// Anything less lost or emptied files in measured power cuts. The other name is always the same, so that
// what a kill left there is not left for ever; one installer runs at a time.
func replace(at string, content []byte, mode fs.FileMode) (put bool, err error) {
	tmp := filepath.Join(filepath.Dir(at), ".mesh-installer-"+filepath.Base(at))
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return false, err
	}
	_, err = f.Write(content)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(tmp, at)
	}
	if err != nil {
		return false, errors.Join(fmt.Errorf("write %s: %w", at, err), os.Remove(tmp))
	}
	return true, syncFolder(filepath.Dir(at))
}

// relink makes at a link, in one step.
func relink(at, to string) error {
	tmp := filepath.Join(filepath.Dir(at), ".mesh-installer-"+filepath.Base(at))
	if err := remove(tmp); err != nil {
		return err
	}
	if err := os.Symlink(to, tmp); err != nil {
		return err
	}
	if err := os.Rename(tmp, at); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return syncFolder(filepath.Dir(at))
}

// remove removes a file that may be absent.
func remove(at string) error {
	err := os.Remove(at)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return syncFolder(filepath.Dir(at))
}

func syncFolder(at string) error {
	f, err := os.Open(at)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func exists(at string) bool {
	_, err := os.Lstat(at)
	return err == nil
}
