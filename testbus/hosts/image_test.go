package hosts

import (
	"errors"
	"io/fs"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"mesh/shared/refusal"
)

func TestMentions(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       bool
	}{
		{"one-line form", "deb http://mirror/debian bookworm main\n", true},
		{"deb822 form", "Types: deb\nSuites: bookworm bookworm-updates\n", true},
		{"only in a comment", "# deb http://mirror/debian bookworm main\n", false},
		{"another suite", "deb http://mirror/debian trixie main\n", false},
		{"only its updates", "Suites: bookworm-updates\n", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := mentions([]byte(tt.text), "bookworm"); got != tt.want {
				t.Errorf("mentions = %v, want %v", got, tt.want)
			}
		})
	}
}

func TestCarriedOptions(t *testing.T) {
	dump := strings.Join([]string{
		`APT::Architecture "amd64";`,
		`Acquire::http "";`,
		`Acquire::http::Proxy "http://proxy.test:3128";`,
		`Acquire::https::CaInfo "/etc/ssl/own.pem";`,
		`Acquire::http::Proxy::mirror.test "DIRECT";`,
		`Acquire::Check-Valid-Until "false";`,
		`Acquire::GzipIndexes "true";`,
		`DPkg::Post-Invoke:: "rm -f /var/cache/apt/archives/*.deb";`,
	}, "\n")
	want := []string{
		`Acquire::http::Proxy "http://proxy.test:3128"`,
		`Acquire::https::CaInfo "/etc/ssl/own.pem"`,
		`Acquire::http::Proxy::mirror.test "DIRECT"`,
		`Acquire::Check-Valid-Until "false"`,
	}
	if got := carriedOptions(dump); !slices.Equal(got, want) {
		t.Errorf("carriedOptions = %q\nwant %q", got, want)
	}
}

func TestRefused(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	for name, dir := range map[string]string{"no hosts": t.TempDir(), "a colon in the folder": t.TempDir() + "/a:b"} {
		n := 0
		if strings.Contains(dir, ":") {
			n = 1
		}
		bed, err := Start(t.Context(), dir, n, log)
		var refused *refusal.Refusal
		if bed != nil || !errors.As(err, &refused) {
			t.Errorf("%s: %v; want a refusal", name, err)
		}
	}
	if _, err := Open(t.TempDir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("open an empty folder: %v", err)
	}
}
