package registry_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"mesh/agent/registry"
	"mesh/shared/bundle"
	"mesh/shared/bus"
	"mesh/shared/clock"
	"mesh/shared/declaration"
	"mesh/shared/waitfor"
)

// store stands in for the bus: blobs by digest, and what goes wrong with them.
type store struct {
	mu      sync.Mutex
	content map[string][]byte
	asked   []string // "<first of digest> from <chunk>"
	// breaks, when set, is asked before each chunk.
	breaks func(digest string, chunk int) error
}

func (s *store) fetch(_ context.Context, a declaration.Artifact, from int, w io.Writer) error {
	s.mu.Lock()
	content, breaks := s.content[a.Digest], s.breaks
	s.asked = append(s.asked, fmt.Sprintf("%.4s from %d", a.Digest, from))
	s.mu.Unlock()
	if content == nil {
		return bus.ErrNone
	}
	for n := from; n < a.Chunks; n++ {
		if breaks != nil {
			if err := breaks(a.Digest, n); err != nil {
				return err
			}
		}
		at, length := bundle.Span(n, a.Size)
		if _, err := w.Write(content[at : at+length]); err != nil {
			return err
		}
	}
	return nil
}

func (s *store) put(b []byte) declaration.Artifact {
	sum := sha256.Sum256(b)
	a := declaration.Artifact{Digest: hex.EncodeToString(sum[:]), Size: int64(len(b)), Chunks: bundle.Chunks(int64(len(b)))}
	s.content[a.Digest] = b
	return a
}

func noise(n int, seed byte) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b) // it never fails
	return b
}

// bed is an offer of an image with one layer of size bytes.
type bed struct {
	*registry.Offer
	store *store
	image *declaration.Image
	layer []byte
	clock *clock.Fake
}

func begin(t *testing.T, size int) *bed {
	t.Helper()
	b := &bed{store: &store{content: map[string][]byte{}}, layer: noise(size, 1), clock: clock.NewFake(time.Unix(1e9, 0))}
	config := b.store.put([]byte(`{"architecture":"amd64"}`))
	b.image = &declaration.Image{Name: "web", Arch: "amd64", ID: config.Digest, Type: declaration.OCIManifest,
		Blobs: []declaration.Artifact{b.store.put([]byte(`{"schemaVersion":2}`)), config, b.store.put(b.layer)}}
	var err error
	r := registry.New(registry.Config{Fetch: b.store.fetch, Clock: b.clock, Log: slog.New(slog.DiscardHandler)})
	if b.Offer, err = r.Offer(t.Context(), "mesh/notes-web", b.image); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func (b *bed) url(kind string, n int) string {
	return "http://" + b.Address() + "/v2/mesh/notes-web/" + kind + "/sha256:" + b.image.Blobs[n].Digest
}

func (b *bed) ask(t *testing.T, method, url, span string) (*http.Response, []byte, error) {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if span != "" {
		q.Header.Set("Range", span)
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(q)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	return resp, got, err
}

// What an engine asks, in its order: is this a registry, the manifest by its digest, then each blob.
func TestAPull(t *testing.T) {
	b := begin(t, 3*bundle.ChunkSize+7)
	if want := b.Address() + "/mesh/notes-web@sha256:" + b.image.Blobs[0].Digest; b.Reference() != want || !strings.HasPrefix(want, "127.0.0.1:") {
		t.Errorf("reference %s, want %s", b.Reference(), want)
	}
	if resp, _, err := b.ask(t, "GET", "http://"+b.Address()+"/v2/", ""); err != nil || resp.StatusCode != 200 || resp.Header.Get("Docker-Distribution-Api-Version") != "registry/2.0" {
		t.Fatalf("%v, %v", resp, err)
	}
	for _, method := range []string{"HEAD", "GET"} {
		for i, kind := range []string{"manifests", "blobs", "blobs"} {
			resp, got, err := b.ask(t, method, b.url(kind, i), "")
			if err != nil || resp.StatusCode != 200 {
				t.Fatalf("%s %s %d: %v, %v", method, kind, i, resp, err)
			}
			blob := b.image.Blobs[i]
			want := b.store.content[blob.Digest]
			if method == "HEAD" {
				want = nil
			}
			if !bytes.Equal(got, want) || resp.ContentLength != blob.Size || resp.Header.Get("Docker-Content-Digest") != "sha256:"+blob.Digest {
				t.Errorf("%s %s %d: %d bytes of %d, %v", method, kind, i, len(got), len(want), resp.Header)
			}
			if kind == "manifests" && resp.Header.Get("Content-Type") != declaration.OCIManifest {
				t.Errorf("the manifest's type is %s", resp.Header.Get("Content-Type"))
			}
		}
	}
	var all int64
	for _, blob := range b.image.Blobs {
		all += blob.Size
	}
	if b.Bytes() != all || b.Err() != nil {
		t.Errorf("%d bytes came over the bus, want %d; %v", b.Bytes(), all, b.Err())
	}
}

func TestNothingElseIsServed(t *testing.T) {
	b := begin(t, 10)
	for url, want := range map[string]int{
		"/": 404, "/v2/_catalog": 404, "/v2/mesh/notes-web/tags/list": 404, "/v2/mesh/notes-web/manifests/latest": 404,
		"/v2/mesh/other/blobs/sha256:" + b.image.Blobs[1].Digest:         404,
		"/v2/mesh/notes-web/blobs/sha256:" + strings.Repeat("0a", 32):    404,
		"/v2/mesh/notes-web/blobs/../../../etc/passwd":                   404,
		"/v2/mesh/notes-web/manifests/sha256:" + b.image.Blobs[1].Digest: 404,
		"/v2/mesh/notes-web/blobs/" + b.image.Blobs[1].Digest:            404,
		"/v2/mesh/notes-web/blobs/sha256:" + b.image.Blobs[1].Digest:     200,
	} {
		resp, _, err := b.ask(t, "GET", "http://"+b.Address()+url, "")
		if err != nil || resp.StatusCode != want {
			t.Errorf("%s: %v, %v, want %d", url, resp, err, want)
		}
	}
	for _, method := range []string{"PUT", "POST", "PATCH", "DELETE"} {
		if resp, _, err := b.ask(t, method, b.url("blobs", 1), ""); err != nil || resp.StatusCode != 405 {
			t.Errorf("%s: %v, %v", method, resp, err)
		}
	}
}

// APP-13: whatever came on the way, an engine never holds a whole blob that is not the one named.
func TestWrongBytesAreNeverWhole(t *testing.T) {
	for _, size := range []int{1, 3000, bundle.ChunkSize, 3 * bundle.ChunkSize} {
		b := begin(t, size)
		wrong := bytes.Clone(b.layer)
		wrong[0] ^= 1
		b.store.content[b.image.Blobs[2].Digest] = wrong
		for _, span := range []string{"", "bytes=0-", fmt.Sprintf("bytes=%d-", size/2)} {
			resp, got, err := b.ask(t, "GET", b.url("blobs", 2), span)
			if err == nil || len(got) >= size {
				t.Errorf("%d bytes, %q: %v and %d bytes came whole", size, span, resp.Status, len(got))
			}
		}
		if err := b.Err(); err == nil || !strings.Contains(err.Error(), "its bytes have the digest") {
			t.Errorf("the reason is %v", err)
		}
	}
	b := begin(t, 10)
	b.store.content[b.image.Blobs[0].Digest] = []byte(`{"schemaVersion":3}`)
	if resp, got, err := b.ask(t, "GET", b.url("manifests", 0), ""); err != nil || resp.StatusCode != 502 {
		t.Errorf("a wrong manifest: %v, %s, %v", resp, got, err)
	}
	delete(b.store.content, b.image.Blobs[2].Digest)
	if _, got, err := b.ask(t, "GET", b.url("blobs", 2), ""); err == nil {
		t.Errorf("a blob the bus does not hold: %q", got)
	}
	if !errors.Is(b.Err(), bus.ErrNone) {
		t.Errorf("the reason is %v", b.Err())
	}
}

// A link that breaks makes the answer wait; no chunk travels twice.
func TestALinkThatBreaks(t *testing.T) {
	b := begin(t, 6*bundle.ChunkSize)
	broken := map[int]int{2: 3, 5: 1} // how often before which chunk
	b.store.breaks = func(_ string, chunk int) error {
		if broken[chunk] == 0 {
			return nil
		}
		broken[chunk]--
		return bus.ErrAway
	}
	type answer struct {
		got []byte
		err error
	}
	done := make(chan answer, 1)
	go func() {
		_, got, err := b.ask(t, "GET", b.url("blobs", 2), "")
		done <- answer{got, err}
	}()
	for range 4 {
		waitfor.True(t, "the answer to wait for the link", 10*time.Second, func() (bool, any) { return b.clock.Waiting() > 0, b.clock.Waiting() })
		b.clock.Advance(15 * time.Second)
	}
	if a := <-done; a.err != nil || !bytes.Equal(a.got, b.layer) {
		t.Errorf("%d bytes, %v", len(a.got), a.err)
	}
	if b.Bytes() != int64(len(b.layer)) {
		t.Errorf("%d bytes travelled for %d", b.Bytes(), len(b.layer))
	}
}

// A bus that gives nothing any more ends the answer, so that the engine and the apply come to an end.
func TestALinkThatStaysAway(t *testing.T) {
	b := begin(t, 2*bundle.ChunkSize)
	b.store.breaks = func(_ string, chunk int) error {
		if chunk > 0 {
			return bus.ErrAway
		}
		return nil
	}
	done := make(chan error, 1)
	go func() {
		_, _, err := b.ask(t, "GET", b.url("blobs", 2), "")
		done <- err
	}()
	for over := false; !over; {
		waitfor.True(t, "the answer to wait or to end", 10*time.Second, func() (bool, any) {
			select {
			case err := <-done:
				over = true
				if err == nil {
					t.Error("it came whole")
				}
			default:
			}
			return over || b.clock.Waiting() > 0, b.clock.Waiting()
		})
		b.clock.Advance(time.Minute)
	}
	if !errors.Is(b.Err(), bus.ErrAway) || !strings.Contains(b.Err().Error(), "no chunk of blob") {
		t.Errorf("the reason is %v", b.Err())
	}
}

// An engine that broke off goes on where it was: what it has does not travel again, and the whole is
// checked all the same.
func TestARangeGoesOn(t *testing.T) {
	b := begin(t, 40*bundle.ChunkSize+100)
	if _, _, err := b.ask(t, "GET", b.url("blobs", 2), ""); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		span  string
		from  int
		chunk int // fetched from
	}{
		{"bytes=%d-", 39*bundle.ChunkSize + 5, 39},
		{"bytes=%d-", 39 * bundle.ChunkSize, 39},
		{"bytes=%d-", 40*bundle.ChunkSize + 99, 40},
		{"bytes=%d-", 100, 0}, // no mark is so old
	} {
		b.store.asked = nil
		resp, got, err := b.ask(t, "GET", b.url("blobs", 2), fmt.Sprintf(tt.span, tt.from))
		if err != nil || resp.StatusCode != 206 || !bytes.Equal(got, b.layer[tt.from:]) {
			t.Errorf("from %d: %v, %d bytes, %v", tt.from, resp, len(got), err)
		}
		if want := fmt.Sprintf("bytes %d-%d/%d", tt.from, len(b.layer)-1, len(b.layer)); resp.Header.Get("Content-Range") != want {
			t.Errorf("from %d: range %q, want %q", tt.from, resp.Header.Get("Content-Range"), want)
		}
		if want := fmt.Sprintf("%.4s from %d", b.image.Blobs[2].Digest, tt.chunk); len(b.store.asked) != 1 || b.store.asked[0] != want {
			t.Errorf("from %d: asked for %v, want %s", tt.from, b.store.asked, want)
		}
	}
	for _, span := range []string{"bytes=0-5", "bytes=-5", "bytes=5-10,20-30", "bytes=99999999999-", "items=5-", "bytes=a-", "bytes=+5-"} {
		if resp, got, err := b.ask(t, "GET", b.url("blobs", 2), span); err != nil || resp.StatusCode != 200 || !bytes.Equal(got, b.layer) {
			t.Errorf("%s: %v, %d bytes, %v", span, resp, len(got), err)
		}
	}
}

// Nobody but root reads images over loopback.
func TestOtherUsersAreNotAnswered(t *testing.T) {
	b := begin(t, 10)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for uid, want := range map[uint32]string{0: "answered", 65534: "not answered"} {
		// The file is opened here: another user may not reach it where the test binary lies.
		f, err := os.Open(self)
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "/proc/self/fd/3", "-test.run=^$")
		cmd.ExtraFiles = []*os.File{f}
		cmd.Env = []string{"ASK=" + b.url("blobs", 1)}
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		out, err := cmd.CombinedOutput()
		if err := errors.Join(err, f.Close()); err != nil || strings.TrimSpace(string(out)) != want {
			t.Errorf("uid %d: %q, %v, want %s", uid, out, err, want)
		}
	}
}

func TestMain(m *testing.M) {
	if url := os.Getenv("ASK"); url != "" {
		resp, err := http.Get(url)
		if err != nil {
			fmt.Println("not answered")
			return
		}
		resp.Body.Close()
		fmt.Println("answered")
		return
	}
	os.Exit(m.Run())
}

// The usual address first, so that images keep their names; two at once are apart.
func TestOffersSideBySide(t *testing.T) {
	a, b := begin(t, 10), begin(t, 20)
	if a.Address() == b.Address() {
		t.Errorf("both are at %s", a.Address())
	}
	for _, x := range []*bed{a, b} {
		if _, got, err := x.ask(t, "GET", x.url("blobs", 2), ""); err != nil || !bytes.Equal(got, x.layer) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if again := begin(t, 10); again.Address() != a.Address() && a.Address() == "127.0.0.1:41786" {
		t.Errorf("it was at %s, and now at %s", a.Address(), again.Address())
	}
}

func TestAnOfferThatCannotBe(t *testing.T) {
	b := begin(t, 10)
	r := registry.New(registry.Config{Fetch: b.store.fetch, Clock: b.clock, Log: slog.New(slog.DiscardHandler)})
	for _, name := range []string{"", "/x", "x/", "X", "a b", "../x", strings.Repeat("a", 300)} {
		if o, err := r.Offer(t.Context(), name, b.image); err == nil {
			t.Errorf("%q is served at %s", name, o.Address())
		}
	}
	bad := *b.image
	bad.ID = strings.Repeat("00", 32)
	if _, err := r.Offer(t.Context(), "mesh/x", &bad); err == nil {
		t.Error("an image whose id is no blob of it is served")
	}
}

// One connection carries several requests; what is no request ends it with a word.
func TestRequestsOfAConnection(t *testing.T) {
	b := begin(t, 100)
	talk := func(text string) string {
		t.Helper()
		c, err := net.Dial("tcp", b.Address())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(c)
		if err != nil && !errors.Is(err, syscall.ECONNRESET) {
			t.Fatal(err)
		}
		return string(got)
	}
	blob := "/v2/mesh/notes-web/blobs/sha256:" + b.image.Blobs[1].Digest
	get := func(method, more string) string {
		return method + " " + blob + " HTTP/1.1\r\nHost: x\r\n" + more + "\r\n"
	}
	if got := talk(get("GET", "") + get("HEAD", "") + get("GET", "Connection: close\r\n")); strings.Count(got, "HTTP/1.1 200 OK") != 3 || strings.Count(got, `{"architecture":"amd64"}`) != 2 {
		t.Errorf("three requests: %q", got)
	}
	for name, text := range map[string]string{
		"a hello of TLS":   "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
		"rubbish":          "what is this\r\n\r\n",
		"a body":           get("GET", "Content-Length: 3\r\n") + "abc",
		"a body in chunks": get("GET", "Transfer-Encoding: chunked\r\n") + "0\r\n\r\n",
		"a head too large": "GET / HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 20<<10) + "\r\n\r\n",
	} {
		if got := talk(text); got != "" && !strings.HasPrefix(got, "HTTP/1.1 400 Bad Request\r\n") {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// Close breaks off what is under way and leaves nothing behind.
func TestCloseBreaksOff(t *testing.T) {
	b := begin(t, 4*bundle.ChunkSize)
	hold := make(chan struct{})
	b.store.breaks = func(_ string, chunk int) error {
		if chunk == 1 {
			<-hold
		}
		return nil
	}
	done := make(chan error, 1)
	go func() {
		_, _, err := b.ask(t, "GET", b.url("blobs", 2), "")
		done <- err
	}()
	waitfor.True(t, "a chunk to come", 10*time.Second, func() (bool, any) { return b.Bytes() > 0, b.Bytes() })
	closed := make(chan error, 1)
	go func() { closed <- b.Close() }()
	if err := waitfor.Value(t, "the answer to break off", 10*time.Second, done); err == nil {
		t.Error("it came whole")
	}
	close(hold)
	if err := waitfor.Value(t, "the offer to close", 10*time.Second, closed); err != nil {
		t.Error(err)
	}
}
