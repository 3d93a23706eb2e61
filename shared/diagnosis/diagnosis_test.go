package diagnosis

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mesh/shared/clock"
)

func parts(t *testing.T, b []byte) map[string]string {
	t.Helper()
	gz, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for tr := tar.NewReader(gz); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		if h.Mode != 0o600 {
			t.Errorf("%s is %o", h.Name, h.Mode)
		}
		out[h.Name] = string(text)
	}
}

func TestMask(t *testing.T) {
	const known = `p"ä<ss word/+`
	m := NewMask(known, "first line\nsecond line", "abc")
	inJSON, err := json.Marshal(map[string]string{"x": known})
	if err != nil {
		t.Fatal(err)
	}
	for text, secret := range map[string]string{
		"psql says " + known + " is wrong":               known,
		string(inJSON):                                   "ss word",
		base64.StdEncoding.EncodeToString([]byte(known)): base64.StdEncoding.EncodeToString([]byte(known)),
		"log of second line only":                        "second line",
		"seed SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY in clear": "SUACSSL3",
		"-----BEGIN EC PRIVATE KEY-----\nMHcCAQEE\n-----END EC PRIVATE KEY-----":   "MHcCAQEE",
		"-----BEGIN PRIVATE KEY-----\nMHcCAQEE and the end is cut":                 "MHcCAQEE",
		"postgres://notes:hunter22@db1:5432/notes":                                 "hunter22",
		"DB_PASSWORD=hunter22 x":                       "hunter22",
		`"db_password": "hunter22",`:                   "hunter22",
		`Environment="API_TOKEN=hunter22"`:             "hunter22",
		"run --db-password hunter22 --port 80":         "hunter22",
		"Authorization: Bearer hunter22hunter22":       "hunter22hunter22",
		"AGE-SECRET-KEY-1" + strings.Repeat("QZ9", 19): "QZ9QZ9",
		`{\"client_secret\":\"hunter22\"}`:             "hunter22",
	} {
		if got := m.Text(text); strings.Contains(got, secret) || !strings.Contains(got, masked) {
			t.Errorf("%s\nis masked as %s", text, got)
		}
	}
	for _, plain := range []string{"abc is too short to be looked for", "192.0.2.1:4222 is an address", "the key of n1 is not known", "declaration 41 applied"} {
		if got := m.Text(plain); got != plain {
			t.Errorf("%q became %q", plain, got)
		}
	}
}

func TestAPartThatFailsIsSaidAndBounded(t *testing.T) {
	var b bytes.Buffer
	a := New(&b, "d", NewMask("hunter22"), clock.Real())
	a.Part(t.Context(), "broken", "what", func(context.Context) ([]byte, error) { return []byte("half"), errors.New("no hunter22 disk") })
	a.Part(t.Context(), "fault", "what", func(context.Context) ([]byte, error) { panic("at hunter22") })
	a.Part(t.Context(), "large", "what", func(context.Context) ([]byte, error) { return bytes.Repeat([]byte("x"), 3*MostPart), nil })
	a.Commands(t.Context(), "said", "what", []string{"sh", "-c", "echo out hunter22; exit 3"}, []string{"no-such-program"})
	a.Commands(t.Context(), "endless", "what", []string{"sh", "-c", "i=0; while [ $i -lt 80000 ]; do i=$((i+1)); echo line $i of many; done"})
	for i := range 14 {
		a.Part(t.Context(), fmt.Sprint("more", i), "what", func(context.Context) ([]byte, error) { return bytes.Repeat([]byte("y"), MostPart), nil })
	}
	a.JSON(t.Context(), "value.json", "what", func(context.Context) (any, error) { return map[string]int{"a": 1}, nil })
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	got, total := parts(t, b.Bytes()), 0
	for name, text := range got {
		if total += len(text); len(text) > MostPart+100 || strings.Contains(text, "hunter22") {
			t.Errorf("%s has %d bytes, or a secret", name, len(text))
		}
	}
	if total > MostTotal+100_000 {
		t.Errorf("%d bytes in all", total)
	}
	for name, want := range map[string]string{"d/broken": "half\n(not whole: no (masked) disk)", "d/fault": "a fault of the program", "d/said": "(exit status 3)", "d/endless": "line 80000 of many"} {
		if !strings.Contains(got[name], want) {
			t.Errorf("%s: %.300s", name, got[name])
		}
	}
	if !strings.HasPrefix(got["d/endless"], "(") || !strings.Contains(got["d/CONTENTS"], "broken") || strings.Count(got["d/CONTENTS"], "NOT WHOLE") != 3 {
		t.Errorf("%.80s\n%s", got["d/endless"], got["d/CONTENTS"])
	}
}

func TestCreateLeavesNoHalfFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "d.tar.gz")
	if err := Create(file, func(w io.Writer) error { _, err := w.Write([]byte("x")); return errors.Join(err, errors.New("no")) }); err == nil {
		t.Error("no error")
	}
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a half file is left: %v", err)
	}
	if err := Create(file, func(io.Writer) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
	if err := Create(file, func(io.Writer) error { return nil }); !errors.Is(err, os.ErrExist) {
		t.Errorf("over a file that is there: %v", err)
	}
}

func FuzzMask(f *testing.F) {
	f.Add("a text with hunter22 in it")
	m := NewMask("hunter22")
	f.Fuzz(func(t *testing.T, s string) {
		if strings.Contains(m.Text(s), "hunter22") {
			t.Errorf("%q became %q", s, m.Text(s))
		}
	})
}
