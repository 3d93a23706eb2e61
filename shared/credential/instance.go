package credential

import (
	"crypto/hmac"
	"crypto/sha256"
	"fmt"

	"github.com/nats-io/nkeys"

	"mesh/shared/membership"
	"mesh/shared/subject"
)

// KindInstance is the credential of a module on a machine.
const KindInstance = "instance"

// Instance is the key of the instance of m on the machine whose own key s is. It is made from that key, on the
// machine, so that there is nothing to keep and nothing to lose: the public half alone travels. Another
// enrolment of the machine gives other keys.
func (s Seed) Instance(mesh string, m subject.Module) (Seed, error) {
	pair, err := s.pair()
	if err != nil {
		return "", fmt.Errorf("the key of %s: %w", m, err)
	}
	defer pair.Wipe()
	own, err := pair.Seed()
	if err != nil {
		return "", fmt.Errorf("the key of %s: %w", m, err)
	}
	h := hmac.New(sha256.New, own)
	h.Write([]byte("mesh-instance/1\x00" + mesh + "\x00" + string(m))) // a hash never fails
	seed, err := nkeys.EncodeSeed(nkeys.PrefixByteUser, h.Sum(nil))
	if err != nil {
		return "", fmt.Errorf("the key of %s: %w", m, err)
	}
	return Seed(seed), nil
}

// InstanceFile is the credential of the instance of m on n.
func InstanceFile(mesh string, n subject.Node, m subject.Module, seed Seed, bus Bus) File {
	return File{Format: Format, Mesh: mesh, Kind: KindInstance, Name: string(m), Node: n, Seed: seed, Bus: bus}
}

func (f File) instanceLabel() string { return membership.Label(f.Node, subject.Module(f.Name)) }
