package health_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"mesh/agent/health"
	"mesh/shared/clock"
	"mesh/shared/waitfor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// APP-7: one good answer is enough to be well, and only so many bad ones in a row are enough not to be.
func TestStanding(t *testing.T) {
	for _, tt := range []struct {
		name        string
		asks        string // + well, - not
		known, well bool
	}{
		{"never asked", "", false, false},
		{"one answer", "+", true, true},
		{"getting there", "--", false, false},
		{"slow to begin with", "--+", true, true},
		{"never there", "---", true, false},
		{"a hiccup", "+--+", true, true},
		{"gone", "+---", true, false},
		{"hiccups do not add up", "+--+--", true, true},
		{"back", "+---+", true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var s health.Standing
			for _, a := range tt.asks {
				s = s.Take(map[rune]string{'-': "no answer"}[a], 3)
			}
			if s.Known != tt.known || s.Well != tt.well {
				t.Errorf("after %q it is %+v", tt.asks, s)
			}
			if strings.HasSuffix(tt.asks, "-") && s.Why != "no answer" {
				t.Errorf("it says %q", s.Why)
			}
		})
	}
}

func TestTrial(t *testing.T) {
	begin := time.Unix(1000, 0)
	asked := health.Trial{Began: begin, Within: time.Minute, Asked: true}
	plain := health.Trial{Began: begin, Within: time.Minute}
	up := health.Signs{Up: true}
	for _, tt := range []struct {
		name  string
		trial health.Trial
		signs health.Signs
		after time.Duration
		want  health.Verdict
		says  string
	}{
		{"up and well", asked, up, time.Second, health.Proved, ""},
		{"well at the last moment", asked, up, time.Hour, health.Proved, ""},
		{"up, no answer yet", asked, health.Signs{Up: true, Amiss: "web: refused"}, 59 * time.Second, health.Waits, ""},
		{"up, no answer in time", asked, health.Signs{Up: true, Amiss: "web: refused"}, time.Minute, health.Failed, "it did not get well within 1m0s: web: refused"},
		{"down, and it has time", asked, health.Signs{GaveUp: "web: it failed", Amiss: "x"}, time.Second, health.Waits, ""},
		{"down at the end", asked, health.Signs{GaveUp: "web: it failed", Amiss: "web: it failed"}, time.Minute, health.Failed, "within 1m0s: web: it failed"},
		{"systemd gave it up", plain, health.Signs{GaveUp: "web: it failed", Amiss: "x"}, time.Second, health.Failed, "web: it failed"},
		{"it falls and gets up", plain, health.Signs{Amiss: "web: it ended and is started again"}, time.Second, health.Waits, ""},
		{"it falls and gets up for too long", plain, health.Signs{Amiss: "web: it ended and is started again"}, time.Minute, health.Failed, "started again"},
		{"systemd still starts it", plain, health.Signs{Moving: true, Amiss: "web is activating"}, time.Hour, health.Waits, ""},
		{"it starts for longer than it may", asked, health.Signs{Moving: true, Amiss: "web is activating"}, time.Minute, health.Failed, "activating"},
		{"nobody knows why", asked, health.Signs{}, time.Minute, health.Failed, "it is not up"},
		{"the clock was set back", asked, health.Signs{}, -time.Hour, health.Waits, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			v, why := tt.trial.Judge(tt.signs, begin.Add(tt.after))
			if v != tt.want || !strings.Contains(why, tt.says) || (why == "") != (tt.want != health.Failed) {
				t.Errorf("verdict %d, %q", v, why)
			}
		})
	}
}

// answering is a listener that does with each connection what do says.
func answering(t *testing.T, do func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				do(c)
				_ = c.Close()
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return l.Addr().String()
}

// says answers each connection with a text, once it read something.
func says(text string) func(net.Conn) {
	return func(c net.Conn) {
		_, _ = c.Read(make([]byte, 1024))
		_, _ = c.Write([]byte(text))
	}
}

// prober runs one for the test.
func prober(t *testing.T, run func(context.Context, health.Program) (int, string, error)) *health.Prober {
	t.Helper()
	p := health.New(health.Config{Clock: clock.Real(), Run: run})
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() { defer close(over); _ = p.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-over })
	return p
}

func certificate(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"elsewhere.example"}}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func TestAsks(t *testing.T) {
	cert := certificate(t)
	secure := answering(t, func(c net.Conn) {
		s := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{cert}})
		says("HTTP/1.1 204 No Content\r\n\r\n")(s)
		_ = s.Close()
	})
	var heard atomic.Value
	good := answering(t, func(c net.Conn) {
		b := make([]byte, 1024)
		n, _ := c.Read(b)
		heard.Store(string(b[:n]))
		_, _ = c.Write([]byte("HTTP/1.1 200 OK\r\n\r\nwell"))
	})
	hangs := answering(t, func(c net.Conn) { _, _ = c.Read(make([]byte, 1024)); _, _ = c.Read(make([]byte, 1)) })
	nobody := func() string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		return l.Addr().String()
	}()
	p := prober(t, func(ctx context.Context, x health.Program) (int, string, error) {
		switch x.Argv[0] {
		case "good":
			return 0, "all is well\n", nil
		case "hangs":
			<-ctx.Done()
			return 0, "", ctx.Err()
		}
		return 7, "first\nthe \x1b[31mdatabase is away\n\n", nil
	})
	for _, tt := range []struct {
		name  string
		check health.Check
		why   string // "" is well
	}{
		{"http", health.Check{URL: "http://" + good + "/healthz?a=b"}, ""},
		{"http, moved", health.Check{URL: "http://" + answering(t, says("HTTP/1.0 302 Found\r\nLocation: /x\r\n\r\n"))}, ""},
		{"http, failing", health.Check{URL: "http://" + answering(t, says("HTTP/1.1 503 Service Unavailable\r\n\r\n"))}, "it answers 503 Service Unavailable"},
		{"http, of something else", health.Check{URL: "http://" + answering(t, says("SSH-2.0-OpenSSH\r\n"))}, "what answers speaks no HTTP: SSH-2.0-OpenSSH"},
		{"http, closed at once", health.Check{URL: "http://" + answering(t, func(c net.Conn) { _, _ = c.Read(make([]byte, 1024)) })}, "closed without an answer"},
		{"http, endless", health.Check{URL: "http://" + answering(t, func(c net.Conn) {
			_, _ = c.Read(make([]byte, 1024))
			_, _ = c.Write([]byte(strings.Repeat("x", 1<<20)))
		})}, "closed without an answer"},
		{"http, hanging", health.Check{URL: "http://" + hangs}, "no answer in time"},
		{"http, nobody there", health.Check{URL: "http://" + nobody}, "connection refused"},
		{"https with a certificate of another", health.Check{URL: "https://" + secure + "/"}, ""},
		{"tcp", health.Check{Address: hangs}, ""},
		{"tcp, nobody there", health.Check{Address: nobody}, "connection refused"},
		{"program", health.Check{Program: &health.Program{Argv: []string{"good"}}}, ""},
		{"program, failing", health.Check{Program: &health.Program{Argv: []string{"bad"}}}, "bad ended with 7: the  [31mdatabase is away"},
		{"program, hanging", health.Check{Program: &health.Program{Argv: []string{"hangs"}}}, "hangs was not over in time and was killed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := tt.check
			c.Key, c.Every, c.Timeout, c.Retries = tt.name, time.Hour, 300*time.Millisecond, 1
			p.Add(c)
			p.Wait(t.Context(), c.Key)
			s := p.Standing(c.Key)
			tt.why = strings.ReplaceAll(tt.why, "the  [31m", "the [31m")
			if !s.Known || s.Well != (tt.why == "") || !strings.Contains(s.Why, tt.why) {
				t.Errorf("%+v, want %q", s, tt.why)
			}
		})
	}
	t.Cleanup(func() {
		if h, _ := heard.Load().(string); !strings.HasPrefix(h, "GET /healthz?a=b HTTP/1.1\r\nHost: "+good+"\r\n") {
			t.Errorf("it asked %q", h)
		}
	})
}

// What is asked of is asked at its pace, soon while it is not well; it is said when that changes, and what
// nobody watches any more is not asked.
func TestProberFollows(t *testing.T) {
	var mu sync.Mutex
	exits, asked := map[string]int{"a": 1}, map[string]int{}
	clk := clock.NewFake(time.Unix(0, 0))
	p := health.New(health.Config{Clock: clk, Run: func(_ context.Context, x health.Program) (int, string, error) {
		mu.Lock()
		defer mu.Unlock()
		asked[x.Argv[0]]++
		return exits[x.Argv[0]], "", nil
	}})
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() { defer close(over); _ = p.Run(ctx) }()
	defer func() { cancel(); <-over }()
	check := func(name string) health.Check {
		return health.Check{Key: name, Program: &health.Program{Argv: []string{name}}, Every: 10 * time.Second, Timeout: time.Second, Retries: 3}
	}
	count := func(name string) int {
		mu.Lock()
		defer mu.Unlock()
		return asked[name]
	}
	// step moves the clock until something holds.
	step := func(what string, by time.Duration, until func() bool) {
		t.Helper()
		waitfor.True(t, what, 20*time.Second, func() (bool, any) {
			if until() {
				return true, nil
			}
			clk.Advance(by)
			return false, p.Standing("a")
		})
	}
	p.Watch([]health.Check{check("a")})
	step("a to be known", 100*time.Millisecond, func() bool { return p.Standing("a").Known })
	if n := count("a"); n != 3 {
		t.Errorf("it was asked %d times before it was called unhealthy", n)
	}
	if past := clk.Now().Sub(time.Unix(0, 0)); past > 5*time.Second {
		t.Errorf("that took %v", past)
	}
	<-p.Changed()
	news := p.News()
	mu.Lock()
	exits["a"] = 0
	mu.Unlock()
	step("a to be well", 100*time.Millisecond, func() bool { return p.Standing("a").Well })
	<-p.Changed()
	if p.News() == news {
		t.Error("it is no news")
	}
	n, at := count("a"), clk.Now()
	step("a to be asked again", 500*time.Millisecond, func() bool { return count("a") > n })
	if past := clk.Now().Sub(at); past < 8*time.Second {
		t.Errorf("what is well was asked again after %v", past)
	}
	p.Watch([]health.Check{check("b")})
	step("b to be well", 100*time.Millisecond, func() bool { return p.Standing("b").Well })
	if s := p.Standing("a"); s.Known {
		t.Errorf("of a it is still known %+v", s)
	}
	n = count("a")
	b := count("b")
	step("b to be asked some times", time.Second, func() bool { return count("b") > b+2 })
	if count("a") != n {
		t.Error("a is still asked")
	}
}
