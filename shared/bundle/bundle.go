// Package bundle is the archive form of a folder that travels to the machines: a tar in gzip, named
// by the SHA-256 of its bytes. Pack makes the same bytes of the same files on any machine; Unpack
// takes hostile ones and writes nothing outside the folder it was given (APP-13). Both hold every
// entry against the same rules, so what was packed can be unpacked.
//
// The package moves bytes only. Fetching chunks, syncing, and putting the unpacked folder in its
// place by rename are the agent's (facts/host.md §1.4); storing chunks is the coordinator's.
package bundle

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"regexp"
	"sync"

	"mesh/shared/refusal"
)

// ChunkSize is the size in bytes of each piece of a bundle on the bus; the last one may be shorter.
const ChunkSize = 256 << 10

// Limits bounds what is unpacked.
type Limits struct {
	MaxBytes int64 // of all files together, unpacked
	MaxFiles int   // entries of any kind
	MaxPath  int   // bytes of a name or of a link's target
}

// Default is what Pack keeps to and a machine takes, unless something smaller is asked of it.
func Default() Limits { return Limits{MaxBytes: 4 << 30, MaxFiles: 100_000, MaxPath: 1024} }

// Chunks is how many chunks size bytes make.
func Chunks(size int64) int { return int((size + ChunkSize - 1) / ChunkSize) }

// Span is where chunk n of size bytes begins, and how long it is; it is empty past the end.
func Span(n int, size int64) (offset, length int64) {
	offset = int64(n) * ChunkSize
	return offset, max(0, min(ChunkSize, size-offset))
}

var digestForm = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-f]{64}$`) })

// CheckDigest says why s cannot be the digest of a bundle, or nil. A digest stands in subjects and in
// paths, so it is checked before it is used in one.
func CheckDigest(s string) error {
	if digestForm().MatchString(s) {
		return nil
	}
	return refusal.New(fmt.Sprintf("the digest %.80q", s), "a digest is SHA-256 as 64 lower-case hex digits", "take it as module register printed it")
}

// Verify reads r to its end and refuses it when its digest is another.
func Verify(r io.Reader, digest string) error {
	if err := CheckDigest(digest); err != nil {
		return err
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, r); err != nil {
		return fmt.Errorf("verify bundle %s: %w", digest, err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != digest {
		return Differs(digest, got)
	}
	return nil
}

// Differs refuses a bundle whose bytes have another digest than its name.
func Differs(digest, got string) error {
	return refusal.New("the bundle "+digest, "its bytes have the digest "+got, "fetch it again; if it stays so, register the module again")
}
