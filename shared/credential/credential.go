// Package credential holds the keys of mesh and the forms they travel in: NKEYs of bus users, curve
// keys that secrets are sealed to, the coordinator's signing key, the credential file of a principal
// and the invitation line. A private seed is made where it is used and never travels; an invitation
// is the one exception, and may do nothing but ask to be let in (design §5).
package credential

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nkeys"

	"mesh/shared/refusal"
	"mesh/shared/strict"
	"mesh/shared/subject"
)

// Seed is a private key in NKEYS form ("SU…" a bus user, "SX…" a curve key). It hides itself in logs.
type Seed string

// String hides the seed.
func (s Seed) String() string { return "(seed)" }

// GoString hides the seed from %#v.
func (s Seed) GoString() string { return "(seed)" }

// LogValue hides the seed.
func (s Seed) LogValue() slog.Value { return slog.StringValue("(seed)") }

// NewUser makes the key of a bus user from rand.
func NewUser(rand io.Reader) (Seed, error) { return newSeed(rand, nkeys.PrefixByteUser) }

// NewCurve makes the key that secrets for one node are sealed to.
func NewCurve(rand io.Reader) (Seed, error) { return newSeed(rand, nkeys.PrefixByteCurve) }

func newSeed(rand io.Reader, kind nkeys.PrefixByte) (Seed, error) {
	kp, err := nkeys.CreatePairWithRand(kind, rand)
	if err != nil {
		return "", fmt.Errorf("make a key: %w", err)
	}
	b, err := kp.Seed()
	return Seed(b), err
}

// Public is the public half: what the user list and the records hold.
func (s Seed) Public() (string, error) {
	kp, err := s.pair()
	if err != nil {
		return "", err
	}
	return kp.PublicKey()
}

// Sign answers the bus's challenge.
func (s Seed) Sign(nonce []byte) ([]byte, error) {
	kp, err := s.pair()
	if err != nil {
		return nil, err
	}
	return kp.Sign(nonce)
}

// ofUser reports whether s is the seed of a bus user: the bus lets no other kind in.
func (s Seed) ofUser() bool {
	key, err := s.Public()
	return err == nil && CheckUserKey(key) == nil
}

func (s Seed) pair() (nkeys.KeyPair, error) {
	if strings.HasPrefix(string(s), "SX") {
		return nkeys.FromCurveSeed([]byte(s))
	}
	return nkeys.FromSeed([]byte(s))
}

// CheckUserKey refuses what is no public key of a bus user.
func CheckUserKey(key string) error {
	if !nkeys.IsValidPublicUserKey(key) {
		return refusal.New("the bus key "+strconv.Quote(key), "it is no public NKEY of a user (U…)", "make it with the mesh installer")
	}
	return nil
}

// CheckCurveKey refuses what is no public curve key.
func CheckCurveKey(key string) error {
	if !nkeys.IsValidPublicCurveKey(key) {
		return refusal.New("the curve key "+strconv.Quote(key), "it is no public curve NKEY (X…)", "make it with the mesh installer")
	}
	return nil
}

// Signer signs declarations. Agents pin its Verifier at enrolment: who owns the bus does not own the
// machines (design §6).
type Signer struct{ key ed25519.PrivateKey }

// Verifier is the public half of a Signer, in base64url.
type Verifier string

// NewSigner makes a signing key from rand.
func NewSigner(rand io.Reader) (*Signer, error) {
	_, key, err := ed25519.GenerateKey(rand)
	if err != nil {
		return nil, fmt.Errorf("make a signing key: %w", err)
	}
	return &Signer{key}, nil
}

// ParseSigner reads what Signer.Seed wrote.
func ParseSigner(s Seed) (*Signer, error) {
	b, err := base64.RawURLEncoding.DecodeString(string(s))
	if err != nil || len(b) != ed25519.SeedSize {
		return nil, errors.New("the signing key is not 32 bytes of base64url")
	}
	return &Signer{ed25519.NewKeyFromSeed(b)}, nil
}

// Seed is the private half, to be kept in a file of mode 0600.
func (s *Signer) Seed() Seed { return Seed(base64.RawURLEncoding.EncodeToString(s.key.Seed())) }

// Verifier is the public half.
func (s *Signer) Verifier() Verifier {
	return Verifier(base64.RawURLEncoding.EncodeToString(s.key.Public().(ed25519.PublicKey)))
}

// Sign signs the SHA-256 of text under a purpose, so that a signature for one cannot stand for another.
// Ed25519 itself would read a text twice, with a slower hash.
func (s *Signer) Sign(purpose string, text []byte) string {
	return base64.RawURLEncoding.EncodeToString(ed25519.Sign(s.key, purposed(purpose, text)))
}

// Verify reports whether signature is v's over text for purpose. A signature has one spelling, where
// base64 would take several.
func (v Verifier) Verify(purpose string, text []byte, signature string) bool {
	key, err := base64.RawURLEncoding.DecodeString(string(v))
	sig, errSig := base64.RawURLEncoding.DecodeString(signature)
	return err == nil && errSig == nil && base64.RawURLEncoding.EncodeToString(sig) == signature && len(key) == ed25519.PublicKeySize && ed25519.Verify(key, purposed(purpose, text), sig)
}

func purposed(purpose string, text []byte) []byte {
	sum := sha256.Sum256(text)
	b := make([]byte, 0, len(purpose)+1+len(sum))
	b = append(b, purpose...)
	b = append(b, 0)
	return append(b, sum[:]...)
}

// Bus is where the bus is and by what authority it is recognized.
type Bus struct {
	// Addresses are host:port, tried in turn.
	Addresses []string `json:"addresses"`
	// CA is the mesh's own certificate authority in PEM.
	CA string `json:"ca,omitempty"`
	// Pin is the SHA-256 of the CA's public key in hex: enough to recognize the CA before it is known.
	Pin string `json:"pin"`
}

// Check refuses a Bus nobody could connect to.
func (b Bus) Check() error {
	if len(b.Addresses) == 0 {
		return refusal.New("a bus without an address", "nobody could connect to it", "ask for a new credential")
	}
	for _, a := range b.Addresses {
		if host, port, err := net.SplitHostPort(a); err != nil || host == "" || port == "" {
			return refusal.New("the bus address "+strconv.Quote(a), "it is not host:port", `write it as "192.0.2.1:4222" or "[2001:db8::1]:4222"`)
		}
	}
	if b.CA == "" {
		if n, err := hex.DecodeString(b.Pin); err != nil || len(n) != sha256.Size {
			return refusal.New("a bus without a CA pin", "it could not be told from an impostor", "ask for a new credential")
		}
	}
	return nil
}

// PinOf is the SHA-256 of the public key of a PEM certificate, in hex (RFC 7469 §2.4 without the base64).
func PinOf(caPEM string) (string, error) {
	block, _ := pem.Decode([]byte(caPEM))
	if block == nil {
		return "", errors.New("the CA is not PEM")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return "", fmt.Errorf("parse the CA: %w", err)
	}
	return Pin(cert), nil
}

// Pin is the SHA-256 of cert's public key, in hex.
func Pin(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:])
}

// Format is the version of the credential file and the invitation.
const Format = 1

// Kinds of credential files.
const (
	KindNode        = "node"
	KindOperator    = "operator"
	KindCoordinator = "coordinator"
)

// File is the credential of one principal, kept in a file of mode 0600.
type File struct {
	Format int    `json:"format"`
	Mesh   string `json:"mesh"` // id of the mesh
	Kind   string `json:"kind"`
	Name   string `json:"name"`
	// Node is the machine of an instance, whose Name is its module's; empty for others.
	Node subject.Node `json:"node,omitempty"`
	Seed Seed         `json:"seed"`
	// Curve opens secrets sealed to a node; empty for others.
	Curve Seed `json:"curve,omitempty"`
	// Signer is whose declarations a node believes.
	Signer Verifier `json:"signer,omitempty"`
	Bus    Bus      `json:"bus"`
}

// Principal is the label of the file's owner on the bus, part of its inbox.
func (f File) Principal() string {
	switch f.Kind {
	case KindCoordinator:
		return KindCoordinator
	case KindInstance:
		return f.instanceLabel()
	}
	return f.Kind + "-" + f.Name
}

// Check refuses an incomplete credential.
func (f File) Check() error {
	if f.Format != Format {
		return refusal.Newf("a credential of another format", "use the mesh program of the release that wrote it", "it says format %d, this program reads %d", f.Format, Format)
	}
	if err := subject.Check(f.Kind, f.Name); err != nil {
		return err
	}
	if f.Kind == KindInstance {
		if err := subject.Check("node", string(f.Node)); err != nil {
			return err
		}
	}
	if !f.Seed.ofUser() {
		return refusal.New("the credential of "+f.Name, "its seed is no NKEY of a bus user", "ask for a new credential")
	}
	return f.Bus.Check()
}

// Encode is the file's text.
func (f File) Encode() ([]byte, error) {
	b, err := json.MarshalIndent(f, "", "  ")
	return append(b, '\n'), err
}

// Decode reads a credential file.
func Decode(b []byte) (File, error) {
	var f File
	if err := strict.Decode(b, &f); err != nil {
		return File{}, refusal.New("the credential file", err.Error(), "ask for a new one: mesh-coordinator operator issue <name>")
	}
	return f, f.Check()
}

// Load reads the credential at path and refuses one that others may read.
func Load(path string) (File, error) {
	st, err := os.Stat(path)
	if err != nil {
		return File{}, fmt.Errorf("read credential: %w", err)
	}
	if st.Mode().Perm()&0o077 != 0 {
		return File{}, refusal.Newf("the credential "+path, "chmod 600 "+path, "others may read it (mode %04o)", st.Mode().Perm())
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return File{}, fmt.Errorf("read credential: %w", err)
	}
	f, err := Decode(b)
	if err != nil {
		return File{}, fmt.Errorf("credential %s: %w", path, err)
	}
	return f, nil
}

// Invitation lets one machine ask to be let in (NOD-1).
type Invitation struct {
	Format  int          `json:"format"`
	Mesh    string       `json:"mesh"`
	ID      string       `json:"id"`
	Node    subject.Node `json:"node"`
	Seed    Seed         `json:"seed"`
	Bus     Bus          `json:"bus"` // no CA, its pin only: the line is pasted by hand
	Expires int64        `json:"expires"`
}

// Principal is the invitation's label on the bus.
func (i Invitation) Principal() string { return "invitation-" + i.ID }

// ExpiresAt is when the coordinator stops taking it, by the coordinator's clock.
func (i Invitation) ExpiresAt() time.Time { return time.UnixMilli(i.Expires) }

const invitationPrefix = "mesh1-"

// Encode is the line to paste. Its last eight characters check the rest, so that a cut paste is named
// as such before anything is tried.
func (i Invitation) Encode() (string, error) {
	b, err := json.Marshal(i)
	if err != nil {
		return "", fmt.Errorf("encode invitation: %w", err)
	}
	body := base64.RawURLEncoding.EncodeToString(b)
	return invitationPrefix + body + checksum(body), nil
}

func checksum(body string) string {
	sum := sha256.Sum256([]byte(body))
	return hex.EncodeToString(sum[:4])
}

// ParseInvitation reads the pasted line.
func ParseInvitation(line string) (Invitation, error) {
	const do = `copy the whole line again, or make a new one: mesh-coordinator node invite <name>`
	line = strings.TrimSpace(line)
	body, ok := strings.CutPrefix(line, invitationPrefix)
	if !ok {
		return Invitation{}, refusal.New("the invitation", "an invitation starts with "+strconv.Quote(invitationPrefix), do)
	}
	if len(body) < 9 || checksum(body[:len(body)-8]) != body[len(body)-8:] {
		return Invitation{}, refusal.New("the invitation", "it is cut or mistyped: its checksum does not fit", do)
	}
	b, err := base64.RawURLEncoding.DecodeString(body[:len(body)-8])
	if err != nil {
		return Invitation{}, refusal.New("the invitation", "it is not base64url", do)
	}
	var i Invitation
	if err := strict.Decode(b, &i); err != nil {
		return Invitation{}, refusal.New("the invitation", err.Error(), "use the installer of the release that made it, or make a new one")
	}
	if i.Format != Format {
		return Invitation{}, refusal.Newf("the invitation", "use the installer of the release that made it", "it says format %d, this program reads %d", i.Format, Format)
	}
	if _, err := subject.ParseNode(string(i.Node)); err != nil {
		return Invitation{}, err
	}
	if err := subject.Check("invitation", i.ID); err != nil {
		return Invitation{}, err
	}
	if !i.Seed.ofUser() {
		return Invitation{}, refusal.New("the invitation", "its key is no NKEY of a bus user", do)
	}
	return i, i.Bus.Check()
}
