package witness_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"mesh/agent/witness"
	"mesh/shared/diagnosis"
)

var at = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// record is one of wtmp's.
func record(kind int16, line, user, host string, when time.Time) []byte {
	b := make([]byte, 384)
	binary.LittleEndian.PutUint16(b, uint16(kind))
	copy(b[8:40], line)
	copy(b[44:76], user)
	copy(b[76:332], host)
	binary.LittleEndian.PutUint32(b[340:], uint32(when.Unix()))
	return b
}

// APP-19: whoever may have done it is named, from what the machine wrote down, and nobody of another time.
func TestAround(t *testing.T) {
	root := t.TempDir()
	put := func(p, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(p)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, p), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got := witness.Around(root, at, time.UTC, diagnosis.NewMask().Text); got != nil {
		t.Errorf("a machine without logs says %q", got)
	}
	session := "# This is private data. Do not parse.\nUID=1000\nUSER=%s\nACTIVE=1\nCLASS=%s\nREMOTE_HOST=%s\nREALTIME=%d\n"
	put("/run/systemd/sessions/3", fmt.Sprintf(session, "anna", "user", "192.0.2.7", at.Add(-time.Hour).UnixMicro()))
	put("/run/systemd/sessions/4", fmt.Sprintf(session, "root", "manager", "", at.Add(-time.Hour).UnixMicro()))
	put("/run/systemd/sessions/3.ref", "")
	put("/var/log/wtmp", string(bytes.Join([][]byte{record(7, "pts/0", "anna", "192.0.2.7", at.Add(-time.Hour)), record(7, "pts/1", "bert", "192.0.2.8", at.Add(-10*time.Minute)),
		record(8, "pts/1", "", "", at.Add(-2*time.Minute)), record(7, "pts/2", "later", "", at.Add(time.Hour))}, nil)))
	put("/var/log/auth.log", "2026-03-01T11:57:00.5+00:00 db1 sudo:     bert : TTY=pts/1 ; PWD=/root ; USER=root ; COMMAND=/usr/bin/env password=hunter2 systemctl edit notes\n"+
		"Mar  1 11:30:00 db1 sudo:  anna : TTY=pts/0 ; COMMAND=/bin/too-early\nMar  1 11:56:00 db1 sshd[1]: nothing of sudo's\n")
	put("/var/log/dpkg.log", "2026-03-01 11:58:00 status installed x\n2026-03-01 11:58:01 upgrade nginx:amd64 1.1 1.2\n2026-03-01 09:00:00 install old:amd64 <none> 1\n")
	put("/var/log/apt/history.log", "\nStart-Date: 2026-03-01  11:58:00\nCommandline: apt install nginx\nRequested-By: bert (1001)\nUpgrade: nginx\nEnd-Date: 2026-03-01  11:58:02\n")
	put("/run/sudo/ts/carl", "")
	if err := os.Chtimes(filepath.Join(root, "/run/sudo/ts/carl"), at, at.Add(-30*time.Second)); err != nil {
		t.Fatal(err)
	}
	got := witness.Around(root, at, time.UTC, diagnosis.NewMask().Text)
	want := []string{"anna is logged in from 192.0.2.7 since 11:00 UTC", "carl used sudo at 11:59 UTC", "dpkg: upgrade nginx:amd64 at 11:58 UTC",
		"apt: apt install nginx by bert (1001) at 11:58 UTC", "bert from 192.0.2.8 logged out at 11:58 UTC", "bert ran as root at 11:57 UTC: /usr/bin/env password=(masked) systemctl edit notes"}
	slices.Sort(want)
	sorted := slices.Sorted(slices.Values(got))
	if !slices.Equal(sorted, want) {
		t.Errorf("it says\n%s\nwant\n%s", strings.Join(sorted, "\n"), strings.Join(want, "\n"))
	}
}

// What others write into logs is data: of any kind and length.
func FuzzAround(f *testing.F) {
	f.Add([]byte("Mar  1 11:57:00 x sudo: a : COMMAND=b\n"))
	f.Add(record(7, "pts/0", "a", "b", at))
	f.Fuzz(func(t *testing.T, text []byte) {
		root := t.TempDir()
		for _, p := range []string{"/var/log/wtmp", "/var/log/auth.log", "/var/log/dpkg.log", "/var/log/apt/history.log", "/run/systemd/sessions/1"} {
			if err := os.MkdirAll(filepath.Join(root, filepath.Dir(p)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(root, p), text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		for _, w := range witness.Around(root, at, time.UTC, func(s string) string { return s }) {
			if len(w) > 200 || strings.ContainsAny(w, "\n\x1b") {
				t.Errorf("it says %q", w)
			}
		}
	})
}
