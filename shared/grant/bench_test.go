package grant_test

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"testing"

	"mesh/shared/credential"
	"mesh/shared/grant"
)

// BenchmarkCompose10k composes the user list of ten thousand nodes with two artifacts each.
func BenchmarkCompose10k(b *testing.B) {
	ps := make([]grant.Principal, 10_000)
	for i := range ps {
		s, err := credential.NewUser(rand.Reader)
		if err != nil {
			b.Fatal(err)
		}
		key, err := s.Public()
		if err != nil {
			b.Fatal(err)
		}
		var d [32]byte
		d[0], d[1] = byte(i), byte(i>>8)
		ps[i] = grant.Principal{Kind: grant.Node, Name: fmt.Sprintf("n%d", i), Key: key, Artifacts: []string{hex.EncodeToString(d[:]), hex.EncodeToString(d[:])}}
	}
	l, _, err := grant.Compose(ps)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("compose", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, _, err := grant.Compose(ps); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("digest", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if l.Digest() == "" {
				b.Fatal("no digest")
			}
		}
	})
}
