package evaluate_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mesh/firewall/evaluate"
	"mesh/testbus/netlab"
)

// processor is the time the calling thread has had.
func processor(t testing.TB) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &u); err != nil {
		t.Error(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// Rule sets of 10,000 rules and 20,000 addresses are read whole and evaluated within bounds: half a second and
// 48 MiB for the reading, 0.2 s for a packet that passes all of it, race detector and all.
func TestLargeRuleSets(t *testing.T) {
	var b strings.Builder
	b.WriteString("*filter\n:INPUT ACCEPT [0:0]\n")
	for i := range 500 {
		fmt.Fprintf(&b, ":people-%d - [0:0]\n", i)
	}
	for i := range 500 {
		fmt.Fprintf(&b, "-A INPUT -p tcp -m multiport --dports %d,443 -j people-%d\n", i+1000, i)
		for j := range 19 {
			fmt.Fprintf(&b, "-A people-%d -s 10.%d.%d.0/24 -p tcp -m tcp --dport %d -m conntrack --ctstate NEW -m comment --comment \"rule %d\" -j %s\n", i, i%256, j, j+1, j, []string{"DROP", "ACCEPT"}[j%2])
		}
	}
	b.WriteString("COMMIT\n")
	s := netlab.NewSpace(t, "host")
	s.Run(b.String(), "iptables-nft-restore")
	var list []string
	for i := range 20000 {
		list = append(list, fmt.Sprintf("10.%d.%d.%d", i/65536, i/256%256, i%256))
	}
	s.Run("table ip crowdsec {\nset crowdsec-blacklists {\ntype ipv4_addr\nflags interval\nelements = { "+strings.Join(list, ", ")+" }\nauto-merge\n}\nchain crowdsec-chain {\ntype filter hook input priority -10\nip saddr @crowdsec-blacklists drop\n}\n}\n", "nft", "-f", "-")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	took, first := time.Hour, time.Hour
	s.Do(func() {
		used := processor(t)
		readHere(t)
		took = processor(t) - used
	})
	runtime.ReadMemStats(&after)
	rs := readAll(t, s)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var a evaluate.Answer
	for range 3 {
		e := evaluate.New(&rs, world())
		used := processor(t)
		a = e.Evaluate(one("eth0", tcp, 443))
		first = min(first, processor(t)-used)
	}
	allocated := (after.TotalAlloc - before.TotalAlloc) >> 10
	t.Logf("read whole in %v of processor, %d KiB allocated; one packet in %v", took, allocated, first)
	if a.Verdict != evaluate.Accepted || took > 500*time.Millisecond || allocated > 48<<10 || first > 200*time.Millisecond {
		t.Errorf("%s; read in %v, %d KiB; a packet took %v", a.Verdict, took, allocated, first)
	}
}
