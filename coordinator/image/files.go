package image

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
)

// files are those of a folder or of an archive.
type files interface {
	has(name string) bool
	// open gives the content and size of a plain file.
	open(name string) (io.ReaderAt, int64, error)
	close() error
}

func missing(name string) error {
	return wrong("it has no "+clip(name), "build or save the image anew")
}

// folder is an OCI layout in a folder; nothing outside of it is read.
type folder struct {
	root  *os.Root
	files map[string]*os.File
}

func openFolder(path string) (*folder, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	return &folder{root, map[string]*os.File{}}, nil
}

func (f *folder) has(name string) bool {
	st, err := f.root.Stat(name)
	return err == nil && st.Mode().IsRegular()
}

func (f *folder) open(name string) (io.ReaderAt, int64, error) {
	if !f.has(name) { // before it is opened: a pipe would wait
		return nil, 0, missing(name)
	}
	file := f.files[name]
	if file == nil {
		var err error
		if file, err = f.root.Open(name); err != nil {
			return nil, 0, err
		}
		f.files[name] = file
	}
	st, err := file.Stat()
	if err != nil {
		return nil, 0, err
	}
	return file, st.Size(), nil
}

func (f *folder) close() error {
	errs := []error{}
	for _, file := range f.files {
		errs = append(errs, file.Close())
	}
	return errors.Join(append(errs, f.root.Close())...)
}

// archive is a tar whose entries are read where they lie.
type archive struct {
	file  *os.File
	spans map[string]span
}

type span struct{ at, size int64 }

func openArchive(at string) (*archive, error) {
	f, err := os.Open(at)
	if err != nil {
		return nil, err
	}
	a := &archive{f, nil}
	if a.spans, err = index(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return a, nil
}

// index finds where each plain file of a tar lies. Links of docker's older archives lead to other entries.
func index(f io.ReadSeeker) (map[string]span, error) {
	spans, links := map[string]span{}, map[string]string{}
	tr := tar.NewReader(f)
	for n := 0; ; n++ {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, wrong("it is no tar archive, or a damaged one: "+err.Error(), `write it with "podman save --format oci-archive -o image.tar <image>"; one that is compressed has to be unpacked first`)
		}
		if n >= maxEntries {
			return nil, wrong(fmt.Sprintf("the archive has more than %d entries", maxEntries), "save one image alone")
		}
		name := path.Clean(strings.TrimPrefix(h.Name, "./"))
		switch h.Typeflag {
		case tar.TypeReg:
			at, err := f.Seek(0, io.SeekCurrent) // the reader has read the header and nothing ahead
			if err != nil {
				return nil, err
			}
			if sparse(h) {
				return nil, wrong("the entry "+clip(name)+" is a sparse file", "save the image anew")
			}
			spans[name] = span{at, h.Size}
		case tar.TypeSymlink, tar.TypeLink:
			to := h.Linkname
			if h.Typeflag == tar.TypeSymlink {
				to = path.Join(path.Dir(name), to)
			}
			links[name] = path.Clean(to)
		}
	}
	for name, to := range links {
		if s, ok := spans[to]; ok {
			spans[name] = s
		}
	}
	return spans, nil
}

func sparse(h *tar.Header) bool {
	for k := range h.PAXRecords {
		if strings.HasPrefix(k, "GNU.sparse.") {
			return true
		}
	}
	return false
}

func (a *archive) has(name string) bool {
	_, ok := a.spans[name]
	return ok
}

func (a *archive) open(name string) (io.ReaderAt, int64, error) {
	s, ok := a.spans[name]
	if !ok {
		return nil, 0, missing(name)
	}
	return io.NewSectionReader(a.file, s.at, s.size), s.size, nil
}

func (a *archive) close() error {
	if err := a.file.Close(); err != nil && !errors.Is(err, fs.ErrClosed) {
		return err
	}
	return nil
}
