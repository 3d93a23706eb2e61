package boot_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"mesh/agent/boot"
	"mesh/agent/host/file"
	"mesh/firewall"
	"mesh/shared/rule"
	"mesh/testbus/netlab"
)

// NET-10: what is kept loads with nft alone, also with two thousand rules and a note as long; it is written
// only when it is other, and its note is given back.
func TestKeep(t *testing.T) {
	dir := t.TempDir()
	at := filepath.Join(dir, boot.Path)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		t.Fatal(err)
	}
	root, err := file.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	f := boot.New(root)
	if note, err := f.Recall(); note != nil || err != nil {
		t.Errorf("of nothing: %q, %v", note, err)
	}
	want := firewall.Filter{Outside: []string{"up0", "wan-1.20"}, Tunnel: []string{"wg0"}, Inside: []string{"enp2s0"}}
	for i := range 2000 {
		from, err := rule.ParseFrom(fmt.Sprintf("10.%d.%d.0/24", i/256, i%256))
		if err != nil {
			t.Fatal(err)
		}
		want.Allow = append(want.Allow, rule.Allow{Owner: fmt.Sprintf("m%d", i), Port: rule.Port{First: uint16(1000 + i), Last: uint16(1000 + i), Protocol: "tcp"}, From: from})
	}
	table, err := firewall.Compile(want)
	if err != nil {
		t.Fatal(err)
	}
	note := bytes.Repeat([]byte(`{"a":1}`), 60_000)
	for n := range 2 {
		if changed, err := f.Keep(table, note); err != nil || changed != (n == 0) {
			t.Errorf("time %d: changed %v, %v", n+1, changed, err)
		}
	}
	if got, err := f.Recall(); !bytes.Equal(got, note) || err != nil {
		t.Errorf("it recalls %d bytes of %d, %v", len(got), len(note), err)
	}
	host := netlab.NewSpace(t, "host")
	host.Run("", "nft", "-f", at)
	host.Run("", "nft", "-f", at)
	if out := host.Run("", "nft", "list", "tables"); out != "table inet "+firewall.BootTable+"\n" {
		t.Errorf("tables %q", out)
	}
	if _, err := f.Keep(table, []byte("a\nb")); err == nil {
		t.Error("a note of two lines would end up as rules")
	}
	if _, err := f.Keep(firewall.Table{}, nil); err == nil {
		t.Error("an empty table is kept")
	}
	for range 2 {
		if err := f.Remove(); err != nil {
			t.Error(err)
		}
	}
	if note, err := f.Recall(); note != nil || err != nil {
		t.Errorf("after Remove: %q, %v", note, err)
	}
}
