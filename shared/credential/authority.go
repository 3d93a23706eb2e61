package credential

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"time"
)

const (
	// ServerName is the one name the bus's certificate carries. Clients ask for it whatever address they
	// dial, so that moving the bus to another address needs no new certificate.
	ServerName = "bus.mesh.internal"

	authorityLife = 30 * 365 * 24 * time.Hour
	serverLife    = 5 * 365 * 24 * time.Hour
	// backdate starts every certificate a while ago: machines whose clock is behind still take it.
	backdate = 48 * time.Hour
)

// Authority is the mesh's own certificate authority, made at genesis and pinned at enrolment.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority makes the CA of the mesh with this id.
func NewAuthority(rand io.Reader, mesh string, now time.Time) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand)
	if err != nil {
		return nil, fmt.Errorf("make the CA key: %w", err)
	}
	t := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "mesh " + mesh},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(authorityLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand, t, t, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("make the CA: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make the CA: %w", err)
	}
	return &Authority{cert, key}, nil
}

// ParseAuthority reads what PEM and KeyPEM wrote.
func ParseAuthority(certPEM, keyPEM string) (*Authority, error) {
	c, _ := pem.Decode([]byte(certPEM))
	k, _ := pem.Decode([]byte(keyPEM))
	if c == nil || k == nil {
		return nil, errors.New("the CA is not PEM")
	}
	cert, err := x509.ParseCertificate(c.Bytes)
	if err != nil {
		return nil, fmt.Errorf("parse the CA: %w", err)
	}
	key, err := x509.ParseECPrivateKey(k.Bytes)
	if err != nil {
		return nil, fmt.Errorf("parse the CA key: %w", err)
	}
	if public, ok := cert.PublicKey.(*ecdsa.PublicKey); !ok || !public.Equal(&key.PublicKey) {
		return nil, errors.New("the CA's key is not that of its certificate")
	}
	return &Authority{cert, key}, nil
}

// PEM is the CA's certificate.
func (a *Authority) PEM() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw}))
}

// KeyPEM is the CA's private key, to be kept in a file of mode 0600.
func (a *Authority) KeyPEM() (string, error) {
	b, err := x509.MarshalECPrivateKey(a.key)
	return string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: b})), err
}

// Pin is what invitations carry of the CA.
func (a *Authority) Pin() string { return Pin(a.cert) }

// Issue makes the bus's certificate. Its chain holds the CA too, so that a machine that knows only the
// pin can recognize it.
func (a *Authority) Issue(rand io.Reader, now time.Time) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make the bus's key: %w", err)
	}
	t := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: ServerName}, DNSNames: []string{ServerName},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(serverLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand, t, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make the bus's certificate: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der, a.cert.Raw}, PrivateKey: key}, nil
}

// ClientTLS recognizes the bus by its CA, or by the pin while the CA is not known yet. now is asked at
// each connect. A machine whose clock is behind the certificate's start takes it as started: the
// certificate says who the bus is, and a node without the right time must reach it too (NOD-14).
func (b Bus) ClientTLS(now func() time.Time) (*tls.Config, error) {
	if err := b.Check(); err != nil {
		return nil, err
	}
	pin := b.Pin
	if b.CA != "" {
		p, err := PinOf(b.CA)
		if err != nil {
			return nil, err
		}
		pin = p
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		ServerName: ServerName,
		// The check below replaces the usual one: the root is known by its key alone.
		InsecureSkipVerify: true,
		VerifyConnection:   func(cs tls.ConnectionState) error { return verifyPinned(cs, pin, now()) },
	}, nil
}

// ErrImpostor is met by errors.Is when the bus is not the one that was pinned.
var ErrImpostor = errors.New("the bus does not have the certificate authority this machine pinned")

func verifyPinned(cs tls.ConnectionState, pin string, now time.Time) error {
	if len(cs.PeerCertificates) == 0 {
		return ErrImpostor
	}
	leaf := cs.PeerCertificates[0]
	for _, ca := range cs.PeerCertificates[1:] {
		if Pin(ca) != pin {
			continue
		}
		roots := x509.NewCertPool()
		roots.AddCert(ca)
		for _, c := range []*x509.Certificate{ca, leaf} {
			if now.Before(c.NotBefore) {
				now = c.NotBefore
			}
		}
		_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: ServerName, CurrentTime: now})
		var unknown x509.UnknownAuthorityError
		if errors.As(err, &unknown) {
			return fmt.Errorf("%w: it shows that authority, which did not sign its certificate", ErrImpostor)
		}
		if err != nil {
			return fmt.Errorf("the bus's certificate: %w", err)
		}
		return nil
	}
	return ErrImpostor
}
