package installer

import (
	"context"
	"testing"

	"mesh/shared/credential"
	"mesh/shared/grant"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// member makes the machine a node of a mesh.
func member(t testing.TB, b *bed, mesh, node string) {
	t.Helper()
	seed, err := credential.NewUser(b.Machine.Rand)
	must(t, err)
	curve, err := credential.NewCurve(b.Machine.Rand)
	must(t, err)
	f := credential.File{Format: credential.Format, Mesh: mesh, Kind: credential.KindNode, Name: node, Seed: seed, Curve: curve, Signer: "signer",
		Bus: credential.Bus{Addresses: []string{"192.0.2.1:4222"}, Pin: "00000000000000000000000000000000000000000000000000000000000000ab"}}
	text, err := f.Encode()
	must(t, err)
	b.writeAt(b.at(credentialFile), string(text), 0o600)
}

// principal is the machine's own bus user.
func principal(t testing.TB, b *bed) grant.Principal {
	t.Helper()
	f := b.credential()
	key, err := f.Seed.Public()
	must(t, err)
	return grant.Principal{Kind: grant.Node, Name: f.Name, Key: key}
}

type ctx = context.Context
