package main

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

// mapped is how many KiB of files this process has in memory (RssFile, proc(5)).
func mapped(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "RssFile:")
	n, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestTheProgramsFileIsGivenBack: what is used again comes back by itself.
func TestTheProgramsFileIsGivenBack(t *testing.T) {
	exe, err := os.ReadFile("/proc/self/exe")
	if err != nil || len(exe) == 0 {
		t.Fatal(err)
	}
	before := mapped(t)
	if err := forgetFile(); err != nil {
		t.Fatal(err)
	}
	if after := mapped(t); after >= before {
		t.Errorf("%d KiB of files are mapped, and were %d", after, before)
	}
}

func TestOnlyWhatCannotBeWrittenIsGivenBack(t *testing.T) {
	for line, want := range map[string]bool{
		"00400000-00f8e000 r-xp 00000000 fe:00 1234                       /usr/local/bin/mesh-agent\n":        true,
		"00f8e000-01a00000 r--p 00b8e000 fe:00 1234                       /usr/local/bin/mesh-agent\n":        true,
		"01a00000-01b00000 rw-p 01600000 fe:00 1234                       /usr/local/bin/mesh-agent\n":        false,
		"01b00000-01c00000 ---p 01600000 fe:00 1234                       /usr/local/bin/mesh-agent\n":        false,
		"7f0000000000-7f0000010000 r--s 00000000 fe:00 99                 /var/lib/mesh-agent/state.db-shm\n": false,
		"7f0000000000-7f0000010000 r-xp 00000000 00:00 0                  [vdso]\n":                           false,
		"nonsense\n": false,
	} {
		if _, size, ok := fixed(line, "/usr/local/bin/mesh-agent"); ok != want || ok && size == 0 {
			t.Errorf("%q: %v, %d bytes", line, ok, size)
		}
	}
}
