// Package broker runs a NATS server inside this process from a composed user list: the coordinator's
// embedded bus, and the real server of every test (BUS-1). It imports the server, so the agent never
// imports it. Users are handed over as values, never as text: a reload then costs a fifth
// (facts/performance.md §3i), and nobody is disconnected by it.
package broker

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"mesh/shared/clock"
	"mesh/shared/credential"
	"mesh/shared/declaration"
	"mesh/shared/grant"
	"mesh/shared/subject"
)

const (
	// MaxPayload is the largest message in bytes: a signed declaration with room to spare.
	MaxPayload = 2 * declaration.MaxSize
	// ready bounds the start of the server, and its stop when the start failed.
	ready = 30 * time.Second
	// MaxConnections bounds what the bus takes on.
	MaxConnections = 64 << 10
	// MaxSubscriptions bounds what one connection may make the bus remember.
	MaxSubscriptions = 4 << 10
)

// Config says how the server runs.
type Config struct {
	// Listen is host:port; port 0 takes a free one; empty listens on no port at all.
	Listen string
	// Store is the folder of JetStream.
	Store string
	// Certificate is the bus's; nil runs without TLS, for floors in benchmarks only.
	Certificate *tls.Certificate
	Log         *slog.Logger
	// SyncEach syncs every stored message before it is acknowledged. The coordinator's records can say
	// everything again, so the default does not (facts/performance.md §5.8).
	SyncEach bool
	// Room is how many bytes the streams may hold together; 0 takes three quarters of the disk.
	Room int64
	// Clock is the real one when nil.
	Clock clock.Clock
}

// Broker is a running server. Stop ends it.
type Broker struct {
	cfg  Config
	srv  *server.Server
	port int
	room int64 // what the streams may hold, in bytes; a reload cannot change it

	mu     sync.Mutex // guards the fields below, and lets one reload run at a time
	digest string
	force  []grant.User // the list in force, sorted by key: what is on it was checked
}

// Start runs a server with list and waits until it takes connections.
func Start(ctx context.Context, cfg Config, list grant.List) (*Broker, error) {
	b, err := start(ctx, cfg, list)
	if err != nil {
		return nil, fmt.Errorf("start the bus on %q: %w", cfg.Listen, err)
	}
	return b, nil
}

func start(ctx context.Context, cfg Config, list grant.List) (*Broker, error) {
	if cfg.Clock == nil {
		cfg.Clock = clock.Real()
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	b := &Broker{cfg: cfg}
	var err error
	if b.room = cfg.Room; b.room == 0 {
		if b.room, err = roomIn(cfg.Store); err != nil {
			return nil, err
		}
	}
	opts, err := b.options(list)
	if err != nil {
		return nil, err
	}
	if b.srv, err = server.NewServer(opts); err != nil {
		return nil, err
	}
	log := newAdapter(cfg.Log, cfg.Clock)
	b.srv.SetLoggerV2(log, false, false, false)
	b.srv.Start()
	if err := b.wait(ctx, log.fatal); err != nil {
		sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ready)
		defer cancel()
		return nil, errors.Join(err, b.Stop(sctx))
	}
	if a, ok := b.srv.Addr().(*net.TCPAddr); ok {
		b.port = a.Port
	}
	b.digest, b.force = list.Digest(), list.Users
	return b, nil
}

// wait returns once the server takes connections, or at once what it calls fatal: it says so in its log
// only, and would leave us waiting.
func (b *Broker) wait(ctx context.Context, fatal <-chan string) error {
	done := make(chan bool, 1)
	go func() { done <- b.srv.ReadyForConnections(ready) }() // ends by its own bound
	select {
	case why := <-fatal:
		return errors.New(why)
	case ok := <-done:
		select {
		case why := <-fatal:
			return errors.New(why)
		default:
		}
		if !ok {
			return fmt.Errorf("it took no connections within %v: is the folder on a slow or full disk?", ready)
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Apply makes list the one in force and reports whether it differed: an unchanged list causes no
// reload. A list that is refused leaves the running one in force.
func (b *Broker) Apply(list grant.List) (changed bool, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	digest := list.Digest()
	if digest == b.digest {
		return false, nil
	}
	opts, err := b.options(list)
	if err != nil {
		return false, fmt.Errorf("reload the bus's users: %w", err)
	}
	if err := b.srv.ReloadOptions(opts); err != nil {
		return false, fmt.Errorf("reload the bus's users: %w", err)
	}
	b.digest, b.force = digest, list.Users
	return true, nil
}

// Digest is that of the list in force.
func (b *Broker) Digest() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.digest
}

// Address is where the server can be reached from this machine, "" when it listens on no port.
func (b *Broker) Address() string {
	if b.port == 0 {
		return ""
	}
	host, _, err := net.SplitHostPort(b.cfg.Listen)
	if a, e := netip.ParseAddr(host); err != nil || host == "" || e == nil && a.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, strconv.Itoa(b.port))
}

// Room is how many bytes the streams may hold on disk together.
func (b *Broker) Room() int64 { return b.room }

// InProcess lets a client in this process connect without a socket.
func (b *Broker) InProcess() nats.InProcessConnProvider { return b.srv }

// Connections is how many clients are connected.
func (b *Broker) Connections() int { return b.srv.NumClients() }

// Stop ends the server and waits until it has written everything, or until ctx ends.
func (b *Broker) Stop(ctx context.Context) error {
	done := make(chan struct{})
	go func() { // ends with the server
		b.srv.Shutdown()
		b.srv.WaitForShutdown()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop the bus: %w", ctx.Err())
	}
}

// options makes fresh options each time: the server keeps and changes those it is given. Accounts come
// from a short text, since only the parser builds imports; users are values.
func (b *Broker) options(list grant.List) (*server.Options, error) {
	opts := &server.Options{}
	if err := opts.ProcessConfigString(accountsText(list.Seats)); err != nil {
		return nil, fmt.Errorf("accounts: %w", err)
	}
	opts.ServerName = "mesh"
	opts.NoSigs = true
	opts.NoLog = true // it has ours
	opts.MaxPayload = MaxPayload
	opts.MaxPending = 64 << 20
	opts.MaxConn = MaxConnections
	opts.MaxSubs = MaxSubscriptions
	opts.JetStream = true
	opts.StoreDir = b.cfg.Store
	opts.JetStreamMaxStore = b.room
	opts.SyncAlways = b.cfg.SyncEach
	opts.AuthTimeout = 10 // seconds: a storm of TLS handshakes on two cores needs more than the default 2
	if err := b.listen(opts); err != nil {
		return nil, err
	}
	if b.cfg.Certificate != nil {
		opts.TLS = true
		opts.TLSConfig = &tls.Config{Certificates: []tls.Certificate{*b.cfg.Certificate}, MinVersion: tls.VersionTLS13}
		opts.TLSTimeout = 10
	}
	var err error
	if opts.Nkeys, err = users(list, opts.Accounts, b.force); err != nil {
		return nil, err
	}
	return opts, nil
}

// users are list's, checked: values pass the server's parser by, and what it would refuse there it takes
// for rights to everything here. No user would be no password for anybody. What is in checked, sorted by
// key, is not checked again.
func users(list grant.List, in []*server.Account, checked []grant.User) ([]*server.NkeyUser, error) {
	if len(list.Users) == 0 {
		return nil, grant.ErrEmpty
	}
	accounts := make(map[grant.Account]*server.Account, len(in))
	for _, a := range in {
		accounts[grant.Account(a.Name)] = a
	}
	seen := make(map[string]struct{}, len(list.Users))
	out := make([]*server.NkeyUser, len(list.Users))
	// Made together: one by one they are most of what a reload costs here.
	made := make([]struct {
		user      server.NkeyUser
		rights    server.Permissions
		publish   server.SubjectPermission
		subscribe server.SubjectPermission
	}, len(list.Users))
	for i, u := range list.Users {
		if _, twice := seen[u.Key]; twice {
			return nil, fmt.Errorf("the key of %s is on the list twice", u.Principal)
		}
		seen[u.Key] = struct{}{}
		account := accounts[u.Account]
		if account == nil {
			return nil, fmt.Errorf("%s is in the account %q, which the bus does not have", u.Principal, u.Account)
		}
		for len(checked) > 0 && checked[0].Key < u.Key {
			checked = checked[1:]
		}
		if len(checked) == 0 || !same(checked[0], u) {
			if err := check(u); err != nil {
				return nil, err
			}
		}
		m := &made[i]
		m.publish.Allow, m.subscribe.Allow = u.Publish, u.Subscribe
		m.rights = server.Permissions{Publish: &m.publish, Subscribe: &m.subscribe}
		m.user = server.NkeyUser{Nkey: u.Key, Account: account, Permissions: &m.rights}
		out[i] = &m.user
	}
	return out, nil
}

// same reports whether nothing that check looks at differs.
func same(a, b grant.User) bool {
	return a.Key == b.Key && slices.Equal(a.Publish, b.Publish) && slices.Equal(a.Subscribe, b.Subscribe)
}

func check(u grant.User) error {
	if err := credential.CheckUserKey(u.Key); err != nil {
		return fmt.Errorf("%s: %w", u.Principal, err)
	}
	if len(u.Publish) == 0 || len(u.Subscribe) == 0 {
		return fmt.Errorf("the rights of %s are an empty list, which the server takes for everything", u.Principal)
	}
	for _, s := range u.Publish {
		if !server.IsValidSubject(s) {
			return fmt.Errorf("%s may publish %q, which is no subject", u.Principal, s)
		}
	}
	for _, s := range u.Subscribe {
		sub, queue, _ := strings.Cut(s, " ")
		if !server.IsValidSubject(sub) || strings.Contains(queue, " ") {
			return fmt.Errorf("%s may subscribe %q, which is no subject", u.Principal, s)
		}
	}
	return nil
}

func (b *Broker) listen(opts *server.Options) error {
	if b.cfg.Listen == "" {
		opts.DontListen = true
		return nil
	}
	host, port, err := net.SplitHostPort(b.cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen on %q: %w", b.cfg.Listen, err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		return fmt.Errorf("listen on %q: %w", b.cfg.Listen, err)
	}
	opts.Host, opts.Port = host, n
	if n == 0 {
		opts.Port = server.RANDOM_PORT
		if b.port != 0 {
			opts.Port = b.port // a reload must not move it
		}
	}
	return nil
}

// accountsText is the accounts with their exports and imports, as the server's configuration has them.
func accountsText(seats []grant.Seat) string {
	exports, imports := map[grant.Account]string{}, map[grant.Account]string{}
	for _, e := range grant.Exports(seats...) {
		kind, more, share := "service", "", ""
		if e.Stream {
			kind = "stream"
		}
		if e.Many {
			more = ", response_type: stream"
		}
		if e.Share {
			share = ", share: true"
		}
		at, local := e.Subject, ""
		if e.Served {
			at, local = subject.Served(e.Subject), fmt.Sprintf(", to: %q", e.Subject)
		}
		exports[e.From] += fmt.Sprintf("{%s: %q%s}\n", kind, at, more)
		for _, to := range e.To {
			imports[to] += fmt.Sprintf("{%s: {account: %s, subject: %q}%s%s}\n", kind, e.From, at, local, share)
		}
	}
	var b strings.Builder
	b.WriteString("accounts {\n")
	for _, a := range []grant.Account{grant.Core, grant.Fleet, grant.People} {
		streams := ""
		if a == grant.Core {
			streams = "jetstream: enabled, "
		}
		fmt.Fprintf(&b, "%s { %sexports: [\n%s], imports: [\n%s] }\n", a, streams, exports[a], imports[a])
	}
	b.WriteString("}\n")
	return b.String()
}
