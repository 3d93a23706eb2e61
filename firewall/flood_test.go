package firewall_test

import (
	"encoding/binary"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mesh/firewall"
	"mesh/shared/waitfor"
	"mesh/testbus/netlab"
)

// A flow under way before the very first load lives on (NET-6): the warm-up lets conntrack see it.
func TestFirstLoadCutsNoFlow(t *testing.T) {
	lab := netlab.New(t)
	lab.Host.Serve("tcp", "[::]:3000")
	c, err := lab.Outside.Dial("tcp", "203.0.113.1:3000", soon)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var packets atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := netlab.Echo(c, soon); err != nil {
				t.Errorf("after %d words the flow ended: %v", packets.Load(), err)
				return
			}
			packets.Add(1)
		}
	})
	d := open(t, lab.Host)
	loaded := make(chan error, 1)
	go lab.Host.Do(func() { loaded <- d.Load(t.Context(), compile(t, firewall.Filter{Outside: []string{netlab.Uplink}})) })
	if err := waitfor.Value(t, "the first load", 10*time.Second, loaded); err != nil {
		t.Fatal(err)
	}
	at := packets.Load()
	waitfor.True(t, "words after the load", 5*time.Second, func() (bool, any) { return packets.Load() > at+100, packets.Load() })
	close(stop)
	wg.Wait()
	if err := lab.Outside.Ask("tcp", "203.0.113.1:3000", never); err == nil {
		t.Error("a new flow to the undeclared port is let in")
	}
}

// NET-6: while the table is replaced over and over, nothing leaks to a closed port, nothing is
// lost for an open one, and a flow that stands goes on.
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
		compile(t, firewall.Filter{Outside: []string{netlab.Uplink, "up1"}, Tunnel: []string{"mesh0"}, Allow: sample(t).Allow[:5]}),
	}
	load(t, d, tables[0])
	flow, err := lab.Outside.Dial("tcp", "203.0.113.1:22", soon)
	if err != nil {
		t.Fatal(err)
	}
	defer flow.Close()

	stop := make(chan struct{})
	var wg sync.WaitGroup
	var words, refused int64
	wg.Go(func() { // the flood: every packet a flow of its own, so that none rides on another's
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
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := netlab.Echo(flow, soon); err != nil {
				t.Errorf("the flow ended after %d words: %v", words, err)
				return
			}
			words++
		}
	})
	for i := range 400 {
		load(t, d, tables[i%2])
	}
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
	t.Logf("%d packets to each port, %d words over the flow, none lost or leaked (%d sockets short)", sent.Load(), words, refused)
}
