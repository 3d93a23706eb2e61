package foreign_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mesh/firewall/foreign"
	"mesh/testbus/netlab"
)

// NET-13: while others write their rules anew a listing comes back short, and the kernel says no error. What is
// read is one state, or says that it is a mix. The window in which it once was neither is narrow; that it is shut,
// TestACommitUnderWayIsWaitedFor of nfnetlink shows each time.
func TestReadWhileOthersWrite(t *testing.T) {
	const chains, each = 50, 60
	s := netlab.NewSpace(t, "host")
	var b strings.Builder
	b.WriteString("table inet busy\ndelete table inet busy\ntable inet busy {\n")
	for i := range chains {
		fmt.Fprintf(&b, "chain c%d {\n%s}\n", i, strings.Repeat("tcp dport 1 drop\n", each))
	}
	b.WriteString("}\n")
	file := filepath.Join(t.TempDir(), "busy.nft")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Run("", "nft", "-f", file)
	written := make(chan struct{})
	go func() {
		defer close(written)
		for range 15 {
			if out, err := s.Try("", "nft", "-f", file); err != nil {
				t.Error(out, err)
				return
			}
		}
	}()
	defer func() { <-written }()
	whole, mixed := 0, 0
	for busy := true; busy; {
		select {
		case <-written:
			busy = false
		default:
		}
		var rs foreign.Ruleset
		var err error
		s.Do(func() { rs, err = foreign.Read(t.Context()) })
		if err != nil {
			t.Fatal(err)
		}
		if len(rs.NotUnderstood) > 0 {
			mixed++
			continue
		}
		whole++
		rules := 0
		for _, table := range rs.Tables {
			for _, c := range table.Chains {
				rules += c.Rules
			}
		}
		if rules != chains*each {
			t.Fatalf("%d of %d rules are read as all there are", rules, chains*each)
		}
	}
	if whole == 0 {
		t.Error("not one reading was whole: this test shows nothing")
	}
	t.Logf("%d readings were whole, %d said that they are a mix", whole, mixed)
}
