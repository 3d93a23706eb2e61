package registry

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"mesh/shared/bundle"
	"mesh/shared/bus"
	"mesh/shared/declaration"
	"mesh/shared/refusal"
)

const (
	// mostManifest bounds a manifest, which is held in memory; engines take 4 MiB.
	mostManifest = 4 << 20
	// stallBound is how long an answer waits for a bus that gives nothing.
	stallBound = 10 * time.Minute
	// pauseMin and pauseMax bound the pause before a chunk is asked for again.
	pauseMin, pauseMax = 250 * time.Millisecond, 15 * time.Second
)

var nameForm = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*$`)
})

// checkName holds name against the specification's form of a repository.
func checkName(name string) error {
	if len(name) > 200 || !nameForm().MatchString(name) {
		return fmt.Errorf("%q is no name of a repository", name)
	}
	return nil
}

// serve answers what a pull asks: is there a registry, the manifest, a blob.
func (o *Offer) serve(ctx context.Context, w *answer, q *http.Request) error {
	if q.Method != http.MethodGet && q.Method != http.MethodHead {
		return w.refuse(http.StatusMethodNotAllowed, "UNSUPPORTED", "this registry is only read")
	}
	if q.URL.Path == "/v2/" || q.URL.Path == "/v2" {
		return w.whole(http.StatusOK, "application/json", []byte("{}"))
	}
	rest, ok := strings.CutPrefix(q.URL.Path, "/v2/"+o.name+"/")
	kind, digest, found := strings.Cut(rest, "/")
	if !ok || !found || kind != "manifests" && kind != "blobs" {
		return w.refuse(http.StatusNotFound, "NAME_UNKNOWN", "there is nothing else here than "+o.name)
	}
	hexed, isSum := strings.CutPrefix(digest, "sha256:")
	blob, known := o.blobs[hexed]
	switch {
	case !isSum || !known:
		return w.refuse(http.StatusNotFound, "BLOB_UNKNOWN", "the image has no such part")
	case kind == "manifests" && hexed != o.image.Digest():
		return w.refuse(http.StatusNotFound, "MANIFEST_UNKNOWN", "that is no manifest")
	case kind == "manifests":
		return o.manifest(ctx, w, blob)
	}
	return o.blob(ctx, w, q, blob)
}

func digestField(a declaration.Artifact) string { return "Docker-Content-Digest: sha256:" + a.Digest }

// manifest answers from memory, once the bytes are known to be right.
func (o *Offer) manifest(ctx context.Context, w *answer, a declaration.Artifact) error {
	if w.head {
		return w.start(http.StatusOK, o.image.Type, a.Size, digestField(a))
	}
	var b bytes.Buffer
	err := errTooLarge
	if a.Size <= mostManifest {
		err = o.stream(ctx, a, 0, &b)
	}
	if err != nil {
		o.failed(err)
		return w.refuse(http.StatusBadGateway, "UNKNOWN", err.Error())
	}
	return w.whole(http.StatusOK, o.image.Type, b.Bytes(), digestField(a))
}

var errTooLarge = errors.New("the image's manifest is larger than an engine takes")

// blob streams. An answer that breaks off has fewer bytes than it announced, and the connection ends.
func (o *Offer) blob(ctx context.Context, w *answer, q *http.Request, a declaration.Artifact) error {
	from, part := rangeFrom(q.Header.Get("Range"), a.Size)
	code, fields := http.StatusOK, []string{digestField(a), "Accept-Ranges: bytes"}
	if part {
		code, fields = http.StatusPartialContent, append(fields, fmt.Sprintf("Content-Range: bytes %d-%d/%d", from, a.Size-1, a.Size))
	}
	if !w.head {
		select {
		case o.room <- struct{}{}:
			defer func() { <-o.room }()
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	err := w.start(code, "application/octet-stream", a.Size-from, fields...)
	if err != nil || w.head {
		return err
	}
	if err = o.stream(ctx, a, from, w); err != nil && !w.broken && ctx.Err() == nil {
		o.failed(err)
		o.r.cfg.Log.Warn("an image's blob could not be served", "image", o.name, "blob", a.Digest, "err", err)
	}
	return err
}

// rangeFrom reads the one form of a range that is served: from somewhere to the end (RFC 9110 §14.2). Any
// other is passed over, as a server may, and the whole is served: only a blob's end tells that it is right.
func rangeFrom(header string, size int64) (from int64, part bool) {
	spec, ok := strings.CutPrefix(strings.TrimSpace(header), "bytes=")
	first, last, dash := strings.Cut(spec, "-")
	if !ok || !dash || !digits(first) {
		return 0, false
	}
	n, err := strconv.ParseInt(first, 10, 64)
	if err != nil || n >= size {
		return 0, false
	}
	if last != "" {
		end, err := strconv.ParseInt(last, 10, 64)
		if !digits(last) || err == nil && end < size-1 {
			return 0, false
		}
	}
	return n, true
}

func digits(s string) bool {
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool { return r < '0' || r > '9' })
}

// stream writes blob a from byte number from on to w, through breaks of the link.
func (o *Offer) stream(ctx context.Context, a declaration.Artifact, from int64, w io.Writer) error {
	s := o.begin(a, from, w)
	pause, lastAt, lastNews := pauseMin, s.next, o.r.cfg.Clock.Now()
	for {
		err := o.r.cfg.Fetch(ctx, a, s.next, s)
		switch {
		case err == nil && s.next == a.Chunks:
			return nil
		case err == nil:
			return fmt.Errorf("blob %.12s ended after %d of %d chunks", a.Digest, s.next, a.Chunks)
		case s.final || ctx.Err() != nil || errors.Is(err, bus.ErrNone) || errors.Is(err, bus.ErrRefused):
			return err
		}
		now := o.r.cfg.Clock.Now()
		if s.next > lastAt {
			pause, lastAt, lastNews = pauseMin, s.next, now
		} else if now.Sub(lastNews) > stallBound {
			return fmt.Errorf("no chunk of blob %.12s came for %v: %w", a.Digest, stallBound, err)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-o.r.cfg.Clock.After(pause):
		}
		pause = min(2*pause, pauseMax)
	}
}

// mark is the state of a blob's hash before a chunk.
type mark struct {
	chunk int
	state []byte
}

// mostMarks is how many are kept of a blob: an engine that broke off had less than these chunks on their way
// to it.
const mostMarks = 32

// sink takes a blob's chunks in their order, hashes all and lets out what was asked for.
type sink struct {
	o     *Offer
	a     declaration.Artifact
	w     io.Writer
	sum   hash.Hash
	next  int   // the chunk that comes next
	skip  int64 // bytes before the first that is asked for
	final bool  // it is of no use to fetch on
}

// begin goes on from the newest mark that is not past from, so that its hash is of the whole blob.
func (o *Offer) begin(a declaration.Artifact, from int64, w io.Writer) *sink {
	s := &sink{o: o, a: a, w: w, sum: sha256.New(), skip: from}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, m := range o.marks[a.Digest] {
		if at := int64(m.chunk) * bundle.ChunkSize; at <= from && m.chunk > s.next {
			if s.sum.(encoding.BinaryUnmarshaler).UnmarshalBinary(m.state) == nil {
				s.next, s.skip = m.chunk, from-at
			}
		}
	}
	return s
}

// Write takes one chunk. The last one is written only when the digest is right.
func (s *sink) Write(b []byte) (int, error) {
	s.o.moved.Add(int64(len(b)))
	s.sum.Write(b) // a hash never fails
	s.next++
	if s.next == s.a.Chunks {
		if got := hex.EncodeToString(s.sum.Sum(nil)); got != s.a.Digest {
			s.final = true
			s.o.forget(s.a.Digest)
			return 0, refusal.New("blob "+s.a.Digest+" of an image", "its bytes have the digest "+got, "register the module again: mesh-coordinator module register <dir>")
		}
	} else {
		s.o.keep(s.a.Digest, s.next, s.sum)
	}
	out := b
	if s.skip > 0 {
		n := min(s.skip, int64(len(out)))
		out, s.skip = out[n:], s.skip-n
	}
	if _, err := s.w.Write(out); err != nil {
		s.final = true // who asked is gone
		return 0, err
	}
	return len(b), nil
}

func (o *Offer) keep(digest string, chunk int, sum hash.Hash) {
	state, err := sum.(encoding.BinaryMarshaler).MarshalBinary()
	if err != nil {
		return // it is hashed from the start, should it come to that
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	all := append(o.marks[digest], mark{chunk, state})
	if len(all) > mostMarks {
		all = all[1:]
	}
	o.marks[digest] = all
}

func (o *Offer) forget(digest string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.marks, digest)
}
