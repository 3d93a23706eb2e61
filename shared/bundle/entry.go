package bundle

import (
	"archive/tar"
	"fmt"
	"path"
	"strings"
	"unicode/utf8"

	"mesh/shared/refusal"
)

// guard holds the entries of one archive against the rules, in their order.
type guard struct {
	limits Limits
	kinds  map[string]byte // what each name became
	bytes  int64
}

// What a name became. A folder that only a deeper name told of may still have its own entry.
const (
	isFile, isLink, isDir, isImplied = 'f', 'l', 'd', 'i'
)

func newGuard(l Limits) *guard { return &guard{limits: l, kinds: map[string]byte{}} }

// admit returns the name below the root under which h may be made, or the refusal.
func (g *guard) admit(h *tar.Header) (string, error) {
	name := h.Name
	if h.Typeflag == tar.TypeDir {
		name = strings.TrimSuffix(name, "/")
	}
	kind, why := kindOf(h)
	switch {
	case why != "":
	case badName(name, g.limits.MaxPath) != "":
		why = badName(name, g.limits.MaxPath)
	case h.Mode&0o7000 != 0:
		why = "it would have the setuid, setgid or sticky bit"
	case kind == isLink:
		why = badTarget(name, h.Linkname, g.limits.MaxPath)
	}
	if why == "" {
		why = g.place(name, kind)
	}
	if why == "" && h.Size > g.limits.MaxBytes-g.bytes {
		why = fmt.Sprintf("with it the files have more than %d bytes", g.limits.MaxBytes)
	}
	if why != "" {
		return "", refusal.New(fmt.Sprintf("the entry %.200q of the bundle", h.Name), why, "leave it out of the folder, and pack that again")
	}
	g.bytes += h.Size
	return name, nil
}

// kindOf takes plain files, folders and symbolic links. A hard link would have to be resolved, and
// nothing needs one.
func kindOf(h *tar.Header) (kind byte, why string) {
	switch h.Typeflag {
	case tar.TypeReg:
		for key := range h.PAXRecords {
			if strings.HasPrefix(key, "GNU.sparse.") {
				return 0, "it is a sparse file"
			}
		}
		return isFile, ""
	case tar.TypeDir:
		return isDir, ""
	case tar.TypeSymlink:
		return isLink, ""
	case tar.TypeLink:
		return 0, "it is a hard link"
	case tar.TypeChar, tar.TypeBlock:
		return 0, "it is a device"
	case tar.TypeFifo:
		return 0, "it is a fifo"
	}
	return 0, "it is no file, folder or symbolic link"
}

func badName(name string, most int) string {
	switch {
	case name == "" || name == ".":
		return "it has no name"
	case len(name) > most:
		return fmt.Sprintf("its name has %d bytes; at most %d are taken", len(name), most)
	case path.IsAbs(name):
		return "its name is an absolute path"
	case name == ".." || strings.HasPrefix(name, "../") || strings.Contains(name, "/../") || strings.HasSuffix(name, "/.."):
		return "its name climbs with .."
	case path.Clean(name) != name:
		return "its name is not in its plain form, " + path.Clean(name)
	case odd(name):
		return "its name holds a control character or is no UTF-8"
	}
	for part := range strings.SplitSeq(name, "/") {
		if len(part) > 255 {
			return "a part of its name has more than 255 bytes"
		}
	}
	return ""
}

func odd(s string) bool {
	return !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return r < 0x20 || r == 0x7f })
}

// badTarget says why a link may not point to target. A target may begin with as many ".." as its
// folder is deep, and then go down by name. No ".." may come later: after a name that is itself a
// link, it would climb from where that link points. As every link keeps to this and no name has a
// link above it, none leads out, whichever others it passes.
func badTarget(name, target string, most int) string {
	const out = "it is a link that leads out of the bundle"
	switch {
	case target == "" || len(target) > most || odd(target):
		return "it is a link with an empty, too long or odd target"
	case path.IsAbs(target):
		return "it is a link to an absolute path"
	}
	down, up := strings.TrimSuffix(target, "/"), 0
	for down == ".." || strings.HasPrefix(down, "../") {
		down = strings.TrimPrefix(strings.TrimPrefix(down, ".."), "/")
		up++
	}
	switch {
	case up > strings.Count(name, "/"):
		return out
	case strings.Contains("/"+down+"/", "/../"):
		return "it is a link whose target has .. after a name"
	}
	return ""
}

// place takes name for kind. Whatever is above it has to be a folder: below a file there is nothing,
// and below a link one would write where it points.
func (g *guard) place(name string, kind byte) string {
	for up := path.Dir(name); up != "."; up = path.Dir(up) {
		switch g.kinds[up] {
		case isLink:
			return fmt.Sprintf("it is below the link %q", up)
		case isFile:
			return fmt.Sprintf("it is below the file %q", up)
		case 0:
			g.kinds[up] = isImplied
		}
	}
	if had := g.kinds[name]; had != 0 && !(had == isImplied && kind == isDir) {
		return "the name is there already"
	}
	g.kinds[name] = kind
	if len(g.kinds) > g.limits.MaxFiles {
		return fmt.Sprintf("with it there are more than %d entries", g.limits.MaxFiles)
	}
	return ""
}
