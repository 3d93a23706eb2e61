package firewall_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mesh/firewall"
	"mesh/shared/clock"
	"mesh/shared/waitfor"
	"mesh/testbus/netlab"
)

// download is a connection of host to outside over which only outside speaks.
type download struct{ host, outside net.Conn }

func startDownload(t *testing.T, lab *netlab.Lab) download {
	t.Helper()
	var l net.Listener
	var err error
	lab.Outside.Do(func() { l, err = net.Listen("tcp", netlab.Outside4+":7100") })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	accepted := make(chan net.Conn, 1)
	go func() {
		if c, err := l.Accept(); err == nil {
			accepted <- c
		}
	}()
	c, err := lab.Host.Dial("tcp", netlab.Outside4+":7100", soon)
	if err != nil {
		t.Fatal(err)
	}
	d := download{c, waitfor.Value(t, "the connection", soon, accepted)}
	t.Cleanup(func() { d.host.Close(); d.outside.Close() })
	return d
}

// word sends one and waits until it is there.
func (d download) word(limit time.Duration) error {
	if _, err := d.outside.Write([]byte("word")); err != nil {
		return err
	}
	stop := time.AfterFunc(limit, func() { d.host.Close() })
	defer stop.Stop()
	_, err := io.ReadFull(d.host, make([]byte, 4))
	return err
}

// NET-6: a download that is under way before the very first load, on a machine that tracks no connections,
// lives on: the warm-up lets conntrack see it. The table alone would cut it.
func TestFirstLoadCutsNoFlow(t *testing.T) {
	table := compile(t, firewall.Filter{Outside: []string{netlab.Uplink}})
	bare := netlab.New(t)
	cut := startDownload(t, bare)
	if err := cut.word(soon); err != nil {
		t.Fatal(err)
	}
	bare.Host.Run(table.Text(), "nft", "-f", "-")
	if err := cut.word(never); err == nil {
		t.Error("without a warm-up the download lives: this test shows nothing")
	}

	lab := netlab.New(t)
	flow := startDownload(t, lab)
	lab.Host.Serve("tcp", "[::]:3000")
	fake := clock.NewFake(time.Unix(0, 0))
	var d *firewall.Driver
	var err error
	lab.Host.Do(func() { d, err = firewall.Open(firewall.WithClock(fake)) })
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	loaded := make(chan error, 1)
	go lab.Host.Do(func() { loaded <- d.Load(t.Context(), table) })
	waitfor.True(t, "the warm-up", soon, func() (bool, any) { return fake.Waiting() == 1, fake.Waiting() })
	if err := flow.word(soon); err != nil {
		t.Fatal(err)
	}
	fake.Advance(2 * time.Second)
	if err := waitfor.Value(t, "the first load", soon, loaded); err != nil {
		t.Fatal(err)
	}
	if err := flow.word(soon); err != nil {
		t.Errorf("the download ended with the first load: %v", err)
	}
	if err := lab.Outside.Ask("tcp", "203.0.113.1:3000", never); err == nil {
		t.Error("a new flow to the undeclared port is let in")
	}
}

// NET-6: while the table is replaced over and over, others flush everything they may, and the table goes
// from one owner to the next, nothing leaks to a closed port, nothing is lost for an open one, and a flow
// that stands goes on.
func TestReplacementsLeakNothing(t *testing.T) {
	lab := netlab.New(t)
	var closed, open_, sent atomic.Int64
	count := func(address string, n *atomic.Int64) {
		lab.Host.Do(func() {
			c, err := net.ListenPacket("udp", address)
			if err != nil {
				t.Error(err)
				return
			}
			c.(*net.UDPConn).SetReadBuffer(8 << 20)
			t.Cleanup(func() { c.Close() })
			go func() {
				b := make([]byte, 64)
				for {
					if _, _, err := c.ReadFrom(b); err != nil {
						return
					}
					n.Add(1)
				}
			}()
		})
	}
	count("203.0.113.1:3000", &closed)
	count("203.0.113.1:5353", &open_)
	lab.Host.Serve("tcp", "[::]:22")
	d := open(t, lab.Host)
	tables := []firewall.Table{
		compile(t, firewall.Filter{Outside: []string{netlab.Uplink}, Allow: sample(t).Allow}),
		compile(t, firewall.Filter{Outside: []string{netlab.Uplink, "up1"}, Tunnel: []string{"mesh0"}, Inside: []string{"lan9"}, Allow: sample(t).Allow[:5]}),
	}
	load(t, d, tables[0])
	lab.Container.Serve("tcp", "[::]:80")
	lab.Host.Run(engine, "nft", "-f", "-")
	half, stop := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	var words, published, refused int64
	talk(t, &wg, lab, "203.0.113.1:22", &words, stop)
	var talking sync.WaitGroup
	talk(t, &talking, lab, "203.0.113.1:8080", &published, half) // a flush would take its translation away
	wg.Go(func() {                                               // the flood: every packet a flow of its own, so that none rides on another's
		lab.Outside.Do(func() {
			b := make([]byte, 8)
			for i := uint64(0); ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				for _, port := range []int{3000, 5353} {
					c, err := net.DialUDP("udp", nil, &net.UDPAddr{IP: net.ParseIP(netlab.HostOutside4), Port: port})
					if err != nil {
						refused++
						continue
					}
					binary.BigEndian.PutUint64(b, i)
					if _, err := c.Write(b); err == nil && port == 5353 {
						sent.Add(1)
					}
					c.Close()
				}
			}
		})
	})
	const loads = 500
	began := clock.Real().Now()
	for i := range loads {
		if i%5 == 0 {
			firewall.Reread(d) // the whole is written, not what differs alone
		}
		if i == loads/2 {
			close(half)
			talking.Wait()
		}
		if i%25 == 0 && i >= loads/2 {
			lab.Host.Run("", "nft", "flush", "ruleset") // of somebody else: an owned table stands
		}
		if i == loads/2 { // the agent dies, and the next one takes over
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			d = open(t, lab.Host)
		}
		load(t, d, tables[i%2])
	}
	took := clock.Real().Now().Sub(began)
	waitfor.True(t, "a flood worth the name", 30*time.Second, func() (bool, any) {
		load(t, d, tables[0])
		return sent.Load() > 10000, sent.Load()
	})
	close(stop)
	wg.Wait()
	waitfor.True(t, "every packet to the open port", 10*time.Second, func() (bool, any) {
		return open_.Load() == sent.Load(), fmt.Sprintf("%d of %d", open_.Load(), sent.Load())
	})
	if closed.Load() != 0 {
		t.Errorf("%d packets of about %d leaked to the closed port", closed.Load(), sent.Load())
	}
	t.Logf("%d loads in %v: %d packets to each port, %d and %d words over flows, none lost or leaked (%d sockets short)",
		loads, took.Round(time.Millisecond), sent.Load(), words, published, refused)
}

// talk keeps a flow from outside busy until stop, and counts its words; read them when wg is done.
func talk(t *testing.T, wg *sync.WaitGroup, lab *netlab.Lab, to string, words *int64, stop <-chan struct{}) {
	t.Helper()
	flow, err := lab.Outside.Dial("tcp", to, soon)
	if err != nil {
		t.Fatal(err)
	}
	wg.Go(func() {
		defer flow.Close()
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := netlab.Echo(flow, soon); err != nil {
				t.Errorf("the flow to %s ended after %d words: %v", to, *words, err)
				return
			}
			*words++
		}
	})
}
