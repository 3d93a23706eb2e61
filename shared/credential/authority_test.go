package credential_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"strings"
	"testing"
	"time"

	"mesh/shared/credential"
)

var day = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

func authority(t *testing.T, mesh string) *credential.Authority {
	t.Helper()
	a, err := credential.NewAuthority(rand.Reader, mesh, day)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// forger signs whatever certificate a test needs.
type forger struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func forgerOf(t *testing.T, a *credential.Authority) forger {
	t.Helper()
	text, err := a.KeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	k, _ := pem.Decode([]byte(text))
	key, err := x509.ParseECPrivateKey(k.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	c, _ := pem.Decode([]byte(a.PEM()))
	cert, err := x509.ParseCertificate(c.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return forger{cert, key}
}

// sign makes a certificate for public (a new key when nil).
func (f forger) sign(t *testing.T, public *ecdsa.PublicKey, edit func(*x509.Certificate)) forger {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if public == nil {
		public = &key.PublicKey
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: credential.ServerName}, DNSNames: []string{credential.ServerName},
		NotBefore: day.Add(-time.Hour), NotAfter: day.Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if edit != nil {
		edit(c)
	}
	der, err := x509.CreateCertificate(rand.Reader, c, f.cert, public, f.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return forger{cert, key}
}

func isCA(c *x509.Certificate) {
	c.IsCA, c.BasicConstraintsValid, c.KeyUsage, c.ExtKeyUsage = true, true, x509.KeyUsageCertSign, nil
}

// shake connects a client that pinned bus to a server with this chain.
func shake(t *testing.T, bus credential.Bus, now time.Time, chain tls.Certificate) error {
	t.Helper()
	cfg, err := bus.ClientTLS(func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{chain}})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if c, err := l.Accept(); err == nil {
			_ = c.(*tls.Conn).Handshake() // the client's verdict is what is tested
			_ = c.Close()
		}
	}()
	client, err := tls.Dial("tcp", l.Addr().String(), cfg)
	if err == nil {
		_ = client.Close()
	}
	<-done
	_ = l.Close()
	return err
}

func chain(leaf forger, above ...*x509.Certificate) tls.Certificate {
	out := tls.Certificate{Certificate: [][]byte{leaf.cert.Raw}, PrivateKey: leaf.key}
	for _, c := range above {
		out.Certificate = append(out.Certificate, c.Raw)
	}
	return out
}

func TestTheBusIsRecognized(t *testing.T) {
	mine := authority(t, "mine")
	ca, other := forgerOf(t, mine), forgerOf(t, authority(t, "other"))
	issued, err := mine.Issue(rand.Reader, day)
	if err != nil {
		t.Fatal(err)
	}
	leaf := ca.sign(t, nil, nil)
	between := ca.sign(t, nil, isCA)
	stolenName := other.sign(t, &ca.key.PublicKey, isCA) // the pinned public key, in a certificate of somebody else
	for _, tt := range []struct {
		name     string
		chain    tls.Certificate
		now      time.Time
		ok       bool
		impostor bool
		says     string
	}{
		{name: "as issued", chain: issued, ok: true},
		{name: "a client whose clock is ten years behind", chain: issued, now: day.AddDate(-10, 0, 0), ok: true},
		{name: "a leaf of the pinned authority", chain: chain(leaf, ca.cert), ok: true},
		{name: "the authority is not last", chain: chain(leaf, ca.cert, other.cert), ok: true},
		{name: "another authority", chain: chain(other.sign(t, nil, nil), other.cert), impostor: true},
		{name: "another authority's leaf with the pinned one shown", chain: chain(other.sign(t, nil, nil), ca.cert), impostor: true},
		{name: "the same with both shown", chain: chain(other.sign(t, nil, nil), other.cert, ca.cert), impostor: true},
		{name: "the pinned key in a stranger's certificate", chain: chain(other.sign(t, nil, nil), stolenName.cert), impostor: true},
		{name: "no authority shown", chain: chain(leaf), impostor: true},
		{name: "signed through an intermediate", chain: chain(between.sign(t, nil, nil), between.cert, ca.cert), impostor: true},
		{name: "signed by the bus's own leaf", chain: chain(leaf.sign(t, nil, nil), leaf.cert, ca.cert), impostor: true},
		{name: "the authority itself as leaf", chain: chain(ca), impostor: true},
		{name: "another name", chain: chain(ca.sign(t, nil, func(c *x509.Certificate) { c.DNSNames = []string{"db1.mesh.internal"} }), ca.cert), says: "valid for"},
		{name: "for clients only", chain: chain(ca.sign(t, nil, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }), ca.cert), says: "usage"},
		{name: "an expired leaf", chain: chain(leaf, ca.cert), now: day.Add(48 * time.Hour), says: "expired"},
		{name: "an expired authority", chain: issued, now: day.AddDate(31, 0, 0), says: "expired"},
	} {
		if tt.now.IsZero() {
			tt.now = day
		}
		for how, bus := range map[string]credential.Bus{
			"by its authority": {Addresses: []string{"b:1"}, CA: mine.PEM()},
			"by its pin":       {Addresses: []string{"b:1"}, Pin: mine.Pin()},
		} {
			err := shake(t, bus, tt.now, tt.chain)
			if (err == nil) != tt.ok || errors.Is(err, credential.ErrImpostor) != tt.impostor || err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%s, known %s: %v", tt.name, how, err)
			}
		}
	}
}

func TestABusThatCannotBeToldFromAnImpostorIsRefused(t *testing.T) {
	for name, b := range map[string]credential.Bus{
		"no pin":      {Addresses: []string{"b:1"}},
		"a short pin": {Addresses: []string{"b:1"}, Pin: "abcd"},
		"no PEM":      {Addresses: []string{"b:1"}, CA: "rubbish"},
		"no address":  {Pin: strings.Repeat("ab", 32)},
		"no port":     {Addresses: []string{"192.0.2.1"}, Pin: strings.Repeat("ab", 32)},
	} {
		if _, err := b.ClientTLS(func() time.Time { return day }); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}

func TestAuthoritySurvivesItsFiles(t *testing.T) {
	a := authority(t, "m")
	key, err := a.KeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	b, err := credential.ParseAuthority(a.PEM(), key)
	if err != nil || b.Pin() != a.Pin() {
		t.Fatalf("read back with pin %v, %v", b, err)
	}
	cert, err := b.Issue(rand.Reader, day)
	if err != nil {
		t.Fatal(err)
	}
	if err := shake(t, credential.Bus{Addresses: []string{"b:1"}, Pin: a.Pin()}, day, cert); err != nil {
		t.Errorf("a certificate issued after a restart: %v", err)
	}
	otherKey, err := authority(t, "other").KeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	for name, in := range map[string][2]string{
		"no certificate": {"", key}, "no key": {a.PEM(), ""}, "another's key": {a.PEM(), otherKey}, "the key twice": {key, key},
	} {
		if _, err := credential.ParseAuthority(in[0], in[1]); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}
