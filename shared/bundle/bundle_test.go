package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"mesh/shared/refusal"
)

// tree writes files (name -> content), folders (name with a slash at its end) and links (content with
// "-> " in front).
func tree(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		target, link := strings.CutPrefix(content, "-> ")
		var err error
		switch {
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(at, 0o755)
		case link:
			err = os.Symlink(target, at)
		default:
			err = os.WriteFile(at, []byte(content), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func pack(t testing.TB, dir string) ([]byte, string) {
	t.Helper()
	var b bytes.Buffer
	digest, size, err := Pack(&b, dir)
	if err != nil {
		t.Fatal(err)
	}
	if size != int64(b.Len()) {
		t.Fatalf("Pack says %d bytes and wrote %d", size, b.Len())
	}
	if err := Verify(bytes.NewReader(b.Bytes()), digest); err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), digest
}

func unpack(t testing.TB, b []byte, l Limits) (string, error) {
	t.Helper()
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	return dir, Unpack(t.Context(), bytes.NewReader(b), root, l)
}

var sample = map[string]string{
	"bin/hello": "#!/bin/sh\n", "etc/": "", "share/a/b/c.txt": "c", "share/a-b.txt": "", "current": "-> share/a", "share/a/up": "-> ../../bin/hello",
	"umlaut-ä": "ä", strings.Repeat("long/", 30) + "name": "x",
}

// The same files are the same bytes, whatever their times and modes beyond "may be run", in whichever
// order they were made. A change of this digest is a change of format: every module is delivered anew.
func TestPackIsTheSameEverywhere(t *testing.T) {
	const want = "ed994614ba967175acbb81a84c1898ada23788bd46978d2c1e9ae234f6b9da0e"
	for range 3 { // each with its own order of a Go map
		dir := tree(t, sample)
		if err := os.Chmod(filepath.Join(dir, "bin/hello"), 0o4711); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(dir, "share"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(filepath.Join(dir, "umlaut-ä"), time.Unix(1, 0), time.Unix(1e9, 5)); err != nil {
			t.Fatal(err)
		}
		if _, digest := pack(t, dir); digest != want {
			t.Errorf("digest %s, want %s", digest, want)
		}
	}
}

func TestUnpackGivesBackWhatWasPacked(t *testing.T) {
	dir := tree(t, sample)
	if err := os.Chmod(filepath.Join(dir, "bin/hello"), 0o700); err != nil {
		t.Fatal(err)
	}
	b, digest := pack(t, dir)
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	back, err := unpack(t, b, Default())
	if err != nil {
		t.Fatal(err)
	}
	if _, again := pack(t, back); again != digest {
		t.Errorf("packed again it is %s, was %s", again, digest)
	}
	for name, mode := range map[string]fs.FileMode{"bin/hello": 0o755, "umlaut-ä": 0o644, "etc": 0o755 | fs.ModeDir, "share/a": 0o755 | fs.ModeDir} {
		if info, err := os.Stat(filepath.Join(back, name)); err != nil || info.Mode() != mode {
			t.Errorf("%s has mode %v, want %v (%v)", name, info.Mode(), mode, err)
		}
	}
	files, size, err := Inspect(t.Context(), bytes.NewReader(b), Default())
	if want := len("#!/bin/sh\n") + len("c") + len("ä") + len("x"); err != nil || size != int64(want) || files != 42 {
		t.Errorf("Inspect = %d entries, %d bytes, %v; want 42, %d", files, size, err, want)
	}
}

func TestPackRefuses(t *testing.T) {
	fifo := tree(t, map[string]string{"a": "a"})
	if err := syscall.Mkfifo(filepath.Join(fifo, "f"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ name, dir, want string }{
		{"nothing", t.TempDir(), "has nothing in it\ndo: build the module first"},
		{"a link out", tree(t, map[string]string{"d/l": "-> ../../x"}), `"d/l" of the bundle: it is a link that leads out of the bundle`},
		{"an absolute link", tree(t, map[string]string{"l": "-> /etc/passwd"}), `"l" of the bundle: it is a link to an absolute path`},
		{"a control character", tree(t, map[string]string{"a\nb": "x"}), `"a\nb" of the bundle: its name holds a control character`},
		{"a fifo", fifo, `"f" of the bundle: it is a fifo`},
	} {
		_, _, err := Pack(io.Discard, tt.dir)
		if err == nil || !strings.Contains(err.Error(), tt.want) || refusal.Of(err) == nil {
			t.Errorf("%s: %v, want %s", tt.name, err, tt.want)
		}
	}
	if _, _, err := Pack(io.Discard, filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder that is not there: %v", err)
	}
}

// archive makes a bundle of headers; a regular file's content is Size letters x.
func archive(t testing.TB, hs ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range hs {
		if h.Mode == 0 && h.Typeflag != tar.TypeXGlobalHeader {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := io.CopyN(w, endless{}, h.Size); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

type endless struct{}

func (endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = 'x'
	}
	return len(b), nil
}

func zip(t testing.TB, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func file(name string, size int64) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size}
}

func link(name, target string) tar.Header {
	return tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}
}

func folder(name string) tar.Header { return tar.Header{Typeflag: tar.TypeDir, Name: name + "/"} }

type hostile struct {
	name    string
	headers []tar.Header
	want    string // "" is taken
}

func hostiles() []hostile {
	return []hostile{
		{"plain", []tar.Header{folder("a"), file("a/b", 3)}, ""},
		{"folders that have no entry", []tar.Header{file("a/b/c", 3), folder("a"), file("a/d", 1)}, ""},
		{"a link inside", []tar.Header{folder("a"), link("a/l", "../b"), file("b", 1)}, ""},
		{"a link to the root", []tar.Header{folder("a"), link("a/l", "..")}, ""},
		{"an absolute path", []tar.Header{file("/etc/x", 1)}, `"/etc/x" of the bundle: its name is an absolute path`},
		{"a path that climbs", []tar.Header{file("../x", 1)}, "its name climbs with .."},
		{"a path that climbs later", []tar.Header{file("a/../../x", 1)}, "its name climbs with .."},
		{"the folder above", []tar.Header{folder("..")}, "its name climbs with .."},
		{"the folder itself", []tar.Header{folder(".")}, "it has no name"},
		{"a path with a dot", []tar.Header{file("./x", 1)}, "its name is not in its plain form, x"},
		{"a link out", []tar.Header{link("l", "../x")}, "it is a link that leads out of the bundle"},
		{"a link to all", []tar.Header{link("l", "/")}, "it is a link to an absolute path"},
		{"a link out through names", []tar.Header{folder("a"), link("a/l", "b/../../../x")}, "it is a link whose target has .. after a name"},
		{"a link out through a link", []tar.Header{folder("a"), folder("a/b"), link("a/b/d", "../.."), link("e", "a/b/d/../x")}, "whose target has .. after a name"},
		{"writing through a link", []tar.Header{folder("a"), link("l", "a"), file("l/x", 1)}, `"l/x" of the bundle: it is below the link "l"`},
		{"writing deep through a link", []tar.Header{folder("a"), link("l", "a"), file("l/x/y/z", 1)}, `it is below the link "l"`},
		{"a file over a link", []tar.Header{link("l", "x"), file("l", 1)}, "the name is there already"},
		{"a file below a file", []tar.Header{file("a", 1), file("a/b", 1)}, `it is below the file "a"`},
		{"twice", []tar.Header{file("a", 1), file("a", 1)}, "the name is there already"},
		{"a folder twice", []tar.Header{folder("a"), folder("a")}, "the name is there already"},
		{"a link over an implied folder", []tar.Header{file("a/b", 1), link("a", "c")}, "the name is there already"},
		{"a hard link", []tar.Header{{Typeflag: tar.TypeLink, Name: "h", Linkname: "/etc/passwd"}}, "it is a hard link"},
		{"a device", []tar.Header{{Typeflag: tar.TypeChar, Name: "null", Devmajor: 1, Devminor: 3}}, "it is a device"},
		{"a disk", []tar.Header{{Typeflag: tar.TypeBlock, Name: "sda", Devmajor: 8}}, "it is a device"},
		{"a fifo", []tar.Header{{Typeflag: tar.TypeFifo, Name: "f"}}, "it is a fifo"},
		{"a global header", []tar.Header{{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"path": "/x"}}}, "it is no file, folder or symbolic link"},
		{"setuid", []tar.Header{{Typeflag: tar.TypeReg, Name: "su", Mode: 0o4755}}, "it would have the setuid, setgid or sticky bit"},
		{"a setgid folder", []tar.Header{{Typeflag: tar.TypeDir, Name: "d/", Mode: 0o2755}}, "it would have the setuid, setgid or sticky bit"},
		{"a control character", []tar.Header{file("a\x1b[2J", 1)}, "its name holds a control character"},
		{"a long name", []tar.Header{file(strings.Repeat("a/", 200)+"b", 1)}, "its name has 401 bytes; at most 128 are taken"},
		{"one file too large", []tar.Header{file("a", 5000)}, "with it the files have more than 4096 bytes"},
		{"files too large together", []tar.Header{file("a", 4000), file("b", 97)}, `"b" of the bundle: with it the files have more than 4096 bytes`},
		{"too many", []tar.Header{file("a/b/c/d/e/f/g/h/i", 0)}, "with it there are more than 8 entries"},
	}
}

func small() Limits { return Limits{MaxBytes: 4096, MaxFiles: 8, MaxPath: 128} }

// APP-13: what would leave the folder, or is more than was agreed, is refused by name, and nothing
// stands outside afterwards.
func TestUnpackRefuses(t *testing.T) {
	for _, tt := range hostiles() {
		t.Run(tt.name, func(t *testing.T) {
			b := zip(t, archive(t, tt.headers...))
			dir, err := unpack(t, b, small())
			_, _, seen := Inspect(t.Context(), bytes.NewReader(b), small())
			if tt.want == "" && err == nil && seen == nil {
				contained(t, dir, small())
				return
			}
			if tt.want == "" || err == nil || refusal.Of(err) == nil || !strings.Contains(err.Error(), tt.want) || fmt.Sprint(seen) != err.Error() {
				t.Errorf("Unpack: %v\nInspect: %v\nwant: %q", err, seen, tt.want)
			}
			contained(t, dir, small())
		})
	}
}

func TestUnpackRefusesDamage(t *testing.T) {
	good := zip(t, archive(t, file("a", 1000), file("b", 1000)))
	plain := archive(t, file("a", 1))
	for _, tt := range []struct {
		name string
		b    []byte
		want string
	}{
		{"nothing", nil, "it is cut short"},
		{"no gzip", []byte("hello, this is no archive"), "it is damaged, or no gzip"},
		{"no tar", zip(t, bytes.Repeat([]byte("no tar "), 200)), "what it holds is no tar"},
		{"a bad checksum", append(slices.Clone(good[:len(good)-8]), 0, 0, 0, 0, 0, 0, 0, 0), "it is damaged, or no gzip"},
		{"more behind the gzip", append(slices.Clone(good), 'x'), "something follows after its end"},
		{"a second gzip", append(slices.Clone(good), good...), "something follows after its end"},
		{"more behind the tar", zip(t, append(slices.Clone(plain), "more"...)), "something follows after its end"},
		{"zeros without end", zip(t, append(slices.Clone(plain), make([]byte, 1<<20)...)), "it unpacks to more than it may"},
	} {
		if _, err := unpack(t, tt.b, small()); err == nil || refusal.Of(err) == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %s", tt.name, err, tt.want)
		}
	}
	for cut := range len(good) {
		if _, _, err := Inspect(t.Context(), bytes.NewReader(good[:cut]), small()); err == nil || refusal.Of(err) == nil {
			t.Fatalf("cut after %d of %d bytes: %v", cut, len(good), err)
		}
	}
}

// Other people's tars are filled with zeros to a block of 10240 bytes.
func TestUnpackTakesPadding(t *testing.T) {
	if _, err := unpack(t, zip(t, append(archive(t, file("a", 1)), make([]byte, 8192)...)), small()); err != nil {
		t.Error(err)
	}
}

// A failing disk or connection is no damage: the caller decides by the error itself.
func TestUnpackPassesOtherErrors(t *testing.T) {
	b := zip(t, archive(t, file("a", 1)))
	broken := errors.New("the connection broke")
	_, _, err := Inspect(t.Context(), io.MultiReader(bytes.NewReader(b[:20]), readerFunc(func([]byte) (int, error) { return 0, broken })), small())
	if !errors.Is(err, broken) || refusal.Of(err) != nil {
		t.Errorf("a broken reader: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := Inspect(ctx, bytes.NewReader(b), small()); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled context: %v", err)
	}
	dir := tree(t, map[string]string{"a": "was here"})
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := Unpack(t.Context(), bytes.NewReader(b), root, small()); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a file in the way: %v", err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "a")); err != nil || string(got) != "was here" {
		t.Errorf("the file in the way is now %q, %v", got, err)
	}
}

func TestChunks(t *testing.T) {
	for size, want := range map[int64]int{0: 0, 1: 1, ChunkSize: 1, ChunkSize + 1: 2, 10 * ChunkSize: 10} {
		if got := Chunks(size); got != want {
			t.Errorf("Chunks(%d) = %d, want %d", size, got, want)
		}
		var sum int64
		for n := range Chunks(size) {
			offset, length := Span(n, size)
			if offset != sum || length < 1 || length > ChunkSize {
				t.Errorf("Span(%d, %d) = %d, %d", n, size, offset, length)
			}
			sum += length
		}
		if _, past := Span(want, size); sum != size || past != 0 {
			t.Errorf("chunks of %d hold %d, and %d past the end", size, sum, past)
		}
	}
}

func TestVerify(t *testing.T) {
	const digest = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824" // of "hello"
	if err := Verify(strings.NewReader("hello"), digest); err != nil {
		t.Error(err)
	}
	for _, d := range []string{"", "../x", strings.ToUpper(digest), digest + "0", digest + "\n"} {
		if err := Verify(strings.NewReader("hello"), d); refusal.Of(err) == nil {
			t.Errorf("the digest %q: %v", d, err)
		}
	}
	if err := Verify(strings.NewReader("hellO"), digest); err == nil || !strings.Contains(err.Error(), "its bytes have the digest ") {
		t.Error(err)
	}
}

// contained holds what Unpack left against its promises.
func contained(t testing.TB, dir string, l Limits) {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	var size int64
	entries := 0
	err = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		entries++
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch mode := info.Mode(); {
		case mode&fs.ModeSymlink != 0:
			name, err := filepath.Rel(dir, p)
			if err != nil {
				return err
			}
			// A root says so also where the link's end is not there; it has no error to compare with.
			if _, err := root.Stat(name); err != nil && strings.Contains(err.Error(), "escapes") {
				return fmt.Errorf("the link %s leads out: %w", name, err)
			}
		case !mode.IsRegular() && !mode.IsDir() || mode&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky) != 0:
			return fmt.Errorf("%s has mode %v", p, mode)
		case mode.IsRegular():
			size += info.Size()
		}
		return nil
	})
	if err != nil || size > l.MaxBytes || entries > l.MaxFiles {
		t.Fatalf("%d entries, %d bytes of at most %+v: %v", entries, size, l, err)
	}
}

// FuzzUnpack feeds tars, wrapped in gzip so that the fuzzer reaches past it, and raw bytes.
func FuzzUnpack(f *testing.F) {
	for _, h := range hostiles() {
		f.Add(archive(f, h.headers...), true)
	}
	good := zip(f, archive(f, file("a", 10)))
	f.Add(good, false)
	f.Add(good[:len(good)/2], false)
	f.Add([]byte("no gzip"), false)
	f.Add([]byte("no tar"), true)
	f.Fuzz(func(t *testing.T, b []byte, wrap bool) {
		if wrap {
			b = zip(t, b)
		}
		above := t.TempDir()
		dir := filepath.Join(above, "in")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		root, err := os.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		err = Unpack(t.Context(), bytes.NewReader(b), root, small())
		if beside, errBeside := os.ReadDir(above); errBeside != nil || len(beside) != 1 {
			t.Fatalf("it left its folder: %v %v", beside, errBeside)
		}
		contained(t, dir, small())
		if err != nil {
			return
		}
		if len(b) > 0 {
			if _, _, err := Inspect(t.Context(), bytes.NewReader(b), small()); err != nil {
				t.Fatalf("unpacked, and yet: %v", err)
			}
		}
	})
}
