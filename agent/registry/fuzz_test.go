package registry

import (
	"net/netip"
	"strings"
	"testing"
)

// FuzzRange: whatever stands in the header, the range begins inside the blob.
func FuzzRange(f *testing.F) {
	for _, s := range []string{"", "bytes=0-", "bytes=5-9", "bytes=-5", "bytes=1-2,3-4", "bytes=18446744073709551616-", "bytes= 5-"} {
		f.Add(s, int64(10))
	}
	f.Fuzz(func(t *testing.T, header string, size int64) {
		if size < 1 {
			return
		}
		from, part := rangeFrom(header, size)
		if from < 0 || from >= size || !part && from != 0 || part && !strings.HasPrefix(strings.TrimSpace(header), "bytes=") {
			t.Errorf("%q of %d: %d, %v", header, size, from, part)
		}
	})
}

// FuzzOwner: a table of the kernel's that is not understood names nobody.
func FuzzOwner(f *testing.F) {
	const head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	f.Add(head + "   0: 0100007F:1F90 0100007F:0016 01 00000000:00000000 00:00000000 00000000  1000        0 1 1 0 20 4 30 10 -1\n")
	f.Add("")
	f.Fuzz(func(t *testing.T, table string) {
		uid, err := ownerIn(strings.NewReader(table), netip.MustParseAddrPort("127.0.0.1:8080"), netip.MustParseAddrPort("127.0.0.1:22"))
		if err == nil && !strings.Contains(table, "0100007F:1F90") && !strings.Contains(table, "7F000001:1F90") {
			t.Errorf("%d of %q", uid, table)
		}
	})
}
