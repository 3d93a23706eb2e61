// Package keys holds what the coordinator alone may know, as files of mode 0600 in a folder of mode
// 0700: the mesh's certificate authority, the bus's certificate, the key that signs declarations, and
// the coordinator's own bus user. Init makes the folder whole, with the records in it, or not at all;
// Load reads it and renews the bus's certificate when its end is near. The package starts no
// goroutines and keeps no file open.
package keys

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"mesh/shared/credential"
	"mesh/shared/refusal"
)

// The files in the coordinator's folder.
const (
	RecordsFile     = "records.db"
	BusFolder       = "bus" // of JetStream
	authorityFile   = "ca.pem"
	authorityKey    = "ca.key"
	signerFile      = "signer.key"
	certificateFile = "bus.pem"
	certificateKey  = "bus.key"
	coordinatorFile = "coordinator.json"
	// OperatorFile is the credential of the first operator.
	OperatorFile = "operator.json"
)

// renewBefore is how long before its end the bus's certificate is made anew.
const renewBefore = 180 * 24 * time.Hour

// Keys are the coordinator's.
type Keys struct {
	Authority   *credential.Authority
	Certificate tls.Certificate
	Signer      *credential.Signer
	// Coordinator is its own bus user, connected inside the process.
	Coordinator credential.File
	// Renewed: the bus's certificate was made anew by this Load.
	Renewed bool
}

// Load reads the keys in dir. A bus certificate that is missing, not of this authority, or near its
// end is made anew.
func Load(dir string, now time.Time, rand io.Reader) (*Keys, error) {
	k, err := load(dir, now, rand)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", refusal.New("the coordinator's keys in "+dir, "the folder does not hold them",
			"name the right folder, or make a mesh: mesh-installer genesis"), err)
	}
	if err != nil {
		return nil, fmt.Errorf("load the coordinator's keys: %w", err)
	}
	return k, nil
}

func load(dir string, now time.Time, rand io.Reader) (*Keys, error) {
	var texts [4]string
	for i, name := range []string{authorityFile, authorityKey, signerFile, coordinatorFile} {
		b, err := readPrivate(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		texts[i] = string(b)
	}
	k := &Keys{}
	var err error
	if k.Authority, err = credential.ParseAuthority(texts[0], texts[1]); err != nil {
		return nil, fmt.Errorf("%s: %w", authorityFile, err)
	}
	if k.Signer, err = credential.ParseSigner(credential.Seed(bytes.TrimSpace([]byte(texts[2])))); err != nil {
		return nil, fmt.Errorf("%s: %w", signerFile, err)
	}
	if k.Coordinator, err = credential.Decode([]byte(texts[3])); err != nil {
		return nil, fmt.Errorf("%s: %w", coordinatorFile, err)
	}
	if k.Coordinator.Kind != credential.KindCoordinator {
		return nil, refusal.Newf("the file "+coordinatorFile, "restore it from a backup", "it is a credential of the kind %s", k.Coordinator.Kind)
	}
	return k, k.certificate(dir, now, rand)
}

// readPrivate reads a file that only its owner may read.
func readPrivate(path string) ([]byte, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if st.Mode().Perm()&0o077 != 0 {
		return nil, refusal.Newf("the file "+path, "chmod 600 "+path, "others may read it (mode %04o)", st.Mode().Perm())
	}
	return os.ReadFile(path)
}

// certificate reads the bus's certificate or makes it anew.
func (k *Keys) certificate(dir string, now time.Time, rand io.Reader) error {
	cert, err := tls.LoadX509KeyPair(filepath.Join(dir, certificateFile), filepath.Join(dir, certificateKey))
	if err == nil && k.good(cert, now) {
		k.Certificate = cert
		return nil
	}
	if k.Certificate, err = k.Authority.Issue(rand, now); err != nil {
		return err
	}
	k.Renewed = true
	return writeCertificate(dir, k.Certificate)
}

// good says whether cert is of this authority and far from its end.
func (k *Keys) good(cert tls.Certificate, now time.Time) bool {
	leaf, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil || now.Add(renewBefore).After(leaf.NotAfter) {
		return false
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(k.Authority.PEM()))
	_, err = leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: credential.ServerName, CurrentTime: leaf.NotBefore})
	return err == nil
}

func writeCertificate(dir string, cert tls.Certificate) error {
	var chain bytes.Buffer
	for _, der := range cert.Certificate {
		if err := pem.Encode(&chain, &pem.Block{Type: "CERTIFICATE", Bytes: der}); err != nil {
			return err
		}
	}
	der, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		return fmt.Errorf("encode the bus's key: %w", err)
	}
	// Killed between the two, the next start finds a pair that does not fit and makes it anew.
	if err := writePrivate(filepath.Join(dir, certificateKey), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})); err != nil {
		return err
	}
	return writePrivate(filepath.Join(dir, certificateFile), chain.Bytes())
}

// writePrivate writes a file whole, synced, of mode 0600.
func writePrivate(path string, text []byte) (err error) {
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if _, err = f.Write(text); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(path+".new"))
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(path))
}

func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
