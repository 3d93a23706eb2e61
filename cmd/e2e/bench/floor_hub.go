package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"
)

// The floor of the bus: a NATS server in this process with TLS 1.3 and an nkey for every user, one
// account, one stream that keeps the last message of a subject.

// floorStart says which floor a child is.
type floorStart struct {
	Dir, Listen string
	Shape       shape
	// Users is how many users are on the list, each with Subjects subjects.
	Users, Subjects int
}

// floorLoad is what is to be published or written.
type floorLoad struct {
	Dir     string
	N, Size int
}

type floorHub struct {
	srv    *server.Server
	cfg    floorStart
	cert   tls.Certificate
	own    nkeys.KeyPair
	seeds  []string
	publik []string
	nc     *nats.Conn
	js     jetstream.JetStream
}

func floorSubject(i int) string { return fmt.Sprintf("floor.decl.node-%05d", i) }
func floorReport(i int) string  { return fmt.Sprintf("floor.report.node-%05d", i) }

// floorSeeds is the file of the users' seeds; it is made once, so a hub that starts again knows them.
func floorSeeds(dir string) string { return filepath.Join(dir, "seeds.json") }

func startFloorHub(a floorStart) (h *floorHub, err error) {
	h = &floorHub{cfg: a}
	if h.cert, err = floorCertificate(); err != nil {
		return nil, err
	}
	if h.own, err = nkeys.CreateUser(); err != nil {
		return nil, err
	}
	if err := h.users(); err != nil {
		return nil, err
	}
	opts, err := h.options()
	if err != nil {
		return nil, err
	}
	if h.srv, err = server.NewServer(opts); err != nil {
		return nil, err
	}
	h.srv.Start()
	if !h.srv.ReadyForConnections(time.Minute) {
		return nil, fmt.Errorf("the server on %s takes no connections", a.Listen)
	}
	return h, h.connect()
}

func (h *floorHub) users() error {
	if b, err := os.ReadFile(floorSeeds(h.cfg.Dir)); err == nil {
		if err := json.Unmarshal(b, &h.seeds); err != nil {
			return err
		}
	}
	for len(h.seeds) < h.cfg.Users {
		kp, err := nkeys.CreateUser()
		if err != nil {
			return err
		}
		seed, err := kp.Seed()
		if err != nil {
			return err
		}
		h.seeds = append(h.seeds, string(seed))
	}
	for _, s := range h.seeds {
		kp, err := nkeys.FromSeed([]byte(s))
		if err != nil {
			return err
		}
		public, err := kp.PublicKey()
		if err != nil {
			return err
		}
		h.publik = append(h.publik, public)
	}
	b, err := json.Marshal(h.seeds)
	if err != nil {
		return err
	}
	return os.WriteFile(floorSeeds(h.cfg.Dir), b, 0o600)
}

// options are made anew each time: the server keeps those it is given.
func (h *floorHub) options() (*server.Options, error) {
	host, port, err := net.SplitHostPort(h.cfg.Listen)
	if err != nil {
		return nil, err
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return nil, err
	}
	own, err := h.own.PublicKey()
	if err != nil {
		return nil, err
	}
	o := &server.Options{Host: host, Port: n, NoSigs: true, NoLog: true, MaxConn: 65536, MaxPayload: 4 << 20, JetStream: true, StoreDir: filepath.Join(h.cfg.Dir, "floor-js"),
		AuthTimeout: 30, TLSTimeout: 30, TLS: true, TLSConfig: &tls.Config{Certificates: []tls.Certificate{h.cert}, MinVersion: tls.VersionTLS13}}
	o.Nkeys = append(o.Nkeys, &server.NkeyUser{Nkey: own})
	for i, key := range h.publik {
		o.Nkeys = append(o.Nkeys, &server.NkeyUser{Nkey: key, Permissions: floorRights(i, h.cfg.Subjects)})
	}
	return o, nil
}

// floorRights are what user i needs, filled up to a number of subjects.
func floorRights(i, subjects int) *server.Permissions {
	publish, subscribe := []string{floorReport(i), "$JS.API.DIRECT.GET.FLOOR." + floorSubject(i)}, []string{floorSubject(i), fmt.Sprintf("_INBOX.node-%05d.>", i)}
	for k := 0; len(publish)+len(subscribe) < subjects; k++ {
		if k%2 == 0 {
			publish = append(publish, fmt.Sprintf("floor.up.node-%05d.part%d", i, k))
		} else {
			subscribe = append(subscribe, fmt.Sprintf("floor.down.node-%05d.part%d", i, k))
		}
	}
	return &server.Permissions{Publish: &server.SubjectPermission{Allow: publish}, Subscribe: &server.SubjectPermission{Allow: subscribe}}
}

func (h *floorHub) connect() (err error) {
	own, err := h.own.PublicKey()
	if err != nil {
		return err
	}
	if h.nc, err = nats.Connect("", nats.InProcessServer(h.srv), nats.Nkey(own, h.own.Sign)); err != nil {
		return err
	}
	if h.js, err = jetstream.New(h.nc, jetstream.WithPublishAsyncMaxPending(4096)); err != nil {
		return err
	}
	_, err = h.js.CreateOrUpdateStream(context.Background(), jetstream.StreamConfig{Name: "FLOOR", Subjects: []string{"floor.decl.*"}, MaxMsgsPerSubject: 1,
		Storage: jetstream.FileStorage, AllowDirect: true})
	return err
}

func (h *floorHub) stop() {
	h.nc.Close()
	h.srv.Shutdown()
	h.srv.WaitForShutdown()
}

func (h *floorHub) publishOne(ctx context.Context, subject string, body []byte) error {
	_, err := h.js.Publish(ctx, subject, body)
	return err
}

// publishAll publishes to the last acknowledgement.
func (h *floorHub) publishAll(a floorLoad) (took, error) {
	body := make([]byte, a.Size)
	if _, err := rand.Read(body); err != nil {
		return took{}, err
	}
	return afresh(func() error {
		for i := range a.N {
			if _, err := h.js.PublishAsync(floorSubject(i), body, jetstream.WithStallWait(time.Minute)); err != nil {
				return err
			}
		}
		<-h.js.PublishAsyncComplete()
		return nil
	})
}

// rawWrite is what the disk takes for the same bytes, with one sync.
func rawWrite(a floorLoad) (took, error) {
	body := make([]byte, a.Size)
	if _, err := rand.Read(body); err != nil {
		return took{}, err
	}
	path := filepath.Join(a.Dir, "raw")
	defer func() { _ = os.Remove(path) }() // the whole folder goes at the end anyway
	return afresh(func() error {
		f, err := os.Create(path)
		if err != nil {
			return err
		}
		for range a.N {
			if _, err := f.Write(body); err != nil {
				return err
			}
		}
		if err := f.Sync(); err != nil {
			return err
		}
		return f.Close()
	})
}

func floorCertificate() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	t := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "floor"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}

// floorClient are the options of user i.
func floorClient(seed, name string) ([]nats.Option, error) {
	kp, err := nkeys.FromSeed([]byte(strings.TrimSpace(seed)))
	if err != nil {
		return nil, err
	}
	public, err := kp.PublicKey()
	if err != nil {
		return nil, err
	}
	return []nats.Option{nats.Nkey(public, kp.Sign), nats.Secure(&tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13}), nats.CustomInboxPrefix("_INBOX." + name),
		nats.Timeout(time.Minute), nats.NoReconnect(), nats.ReconnectBufSize(-1)}, nil
}
