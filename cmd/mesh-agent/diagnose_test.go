package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mesh/agent"
	"mesh/agent/state"
	"mesh/shared/clock"
	"mesh/shared/credential"
)

// Secrets stand wherever they could: none of them is in the archive (OPS-5).
func TestDiagnoseMasksSecrets(t *testing.T) {
	h := newHost(t)
	h.store() // and a credential
	root, bin := t.TempDir(), t.TempDir()
	cred, err := credential.Load(filepath.Join(h.state, agent.CredentialFile))
	if err != nil {
		t.Fatal(err)
	}
	const sealedValue, multi, url, setting, inFile = "correct horse/battery+staple", "-----BEGIN X-----\nplantedline1\nplantedline2", "urlplanted77", "settingplanted88", "fileplanted99"
	public, err := cred.Curve.Public()
	if err != nil {
		t.Fatal(err)
	}
	seal := func(key, value string) credential.Sealed {
		t.Helper()
		s, err := credential.Seal(rand.Reader, public, "db1", "notes", key, value)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	body, err := json.Marshal(map[string]any{"format": 1, "seq": 9, "node": "db1", "modules": []any{map[string]any{
		"name": "notes", "settings": map[string]string{"db_password": setting, "greeting": "hello"},
		"secrets":  map[string]any{"db": seal("db", sealedValue), "tls": seal("tls", multi)},
		"manifest": map[string]any{"run": map[string]any{"files": []any{map[string]string{"path": "/etc/notes.conf", "content": "x = " + inFile}}, "env": map[string]string{"API_TOKEN": "envplanted66"}}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	s, err := state.Open(t.Context(), state.Config{Path: filepath.Join(h.state, agent.StateFile), Clock: clock.Real(), Rand: rand.Reader, Log: slog.New(slog.DiscardHandler)})
	if err == nil {
		_, err = s.Accept(t.Context(), 9, "d9", append([]byte("mesh-declaration/1 key signature\n"), body...), nil)
		err = errors.Join(err, s.AddProblem(t.Context(), "psql: "+sealedValue+" is wrong"), s.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	seed, curve := string(cred.Seed), string(cred.Curve)
	other, err := credential.NewUser(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	planted := []string{sealedValue, "plantedline1", "plantedline2", url, setting, inFile, "envplanted66", seed, curve, string(other), base64.StdEncoding.EncodeToString([]byte(sealedValue))}
	// Every program says every secret, and so do the units.
	text := strings.Join([]string{"line with " + sealedValue + " in it", multi, "postgres://notes:" + url + "@db1/notes", "seed " + seed + " " + curve + " " + string(other),
		`Environment="DB_PASSWORD=` + setting + `" "API_TOKEN=envplanted66"`, base64.StdEncoding.EncodeToString([]byte(sealedValue))}, "\n")
	for _, p := range []string{"journalctl", "systemctl", "nft", "ip", "ss", "df", "free", "uptime", "timedatectl", "ps", "podman", "docker", "uname"} {
		if err := os.WriteFile(filepath.Join(bin, p), []byte("#!/bin/sh\necho this is "+p+"\ncat <<'END'\n"+text+"\nEND\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	if err := errors.Join(os.MkdirAll(filepath.Join(root, "etc/systemd/system"), 0o755), os.WriteFile(filepath.Join(root, "etc/systemd/system/mesh-notes-web.service"), []byte("[Service]\n"+text), 0o644),
		os.WriteFile(filepath.Join(root, "etc/os-release"), []byte("ID=debian\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "d.tar.gz")
	var out, said bytes.Buffer
	if code := run(t.Context(), []string{"diagnose", "--state-dir", h.state, "--run-dir", h.run, "--root", root, "--output", file}, &out, &said); code != 0 || out.String() != file+"\n" {
		t.Fatalf("exit %d: %s%s", code, out.String(), said.String())
	}
	got := unpack(t, file)
	all := ""
	for name, part := range got {
		all += "\n== " + name + "\n" + part
	}
	for _, secret := range planted {
		if i := strings.Index(all, secret); i >= 0 {
			t.Errorf("a secret is in the archive: …%s…", all[max(0, i-80):min(len(all), i+len(secret)+20)])
		}
	}
	for name, want := range map[string]string{
		"mesh-agent-db1/CONTENTS": "declaration.json", "mesh-agent-db1/declaration.json": `"greeting": "hello"`, "mesh-agent-db1/journal-mesh.txt": "this is journalctl",
		"mesh-agent-db1/firewall.nft": "this is nft", "mesh-agent-db1/systemd.txt": "this is systemctl", "mesh-agent-db1/network.txt": "this is ip", "mesh-agent-db1/state.json": `"accepted"`,
		"mesh-agent-db1/versions.txt": "ID=debian", "mesh-agent-db1/units.txt": "mesh-notes-web.service", "mesh-agent-db1/show.json": `"node": "db1"`, "mesh-agent-db1/folders.txt": "state.db", "mesh-agent-db1/credential.json": "192.0.2.1:4222",
	} {
		if !strings.Contains(got[name], want) {
			t.Errorf("%s does not say %q: %.400s", name, want, got[name])
		}
	}
	if n := len(got["mesh-agent-db1/secrets-not-read.txt"]); n > 0 {
		t.Errorf("secrets were not read: %s", got["mesh-agent-db1/secrets-not-read.txt"])
	}
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the archive is %v, %v", st.Mode(), err)
	}
	if code := run(t.Context(), []string{"diagnose", "--state-dir", h.state, "--run-dir", h.run, "--root", root, "--output", file}, &out, &said); code != 1 || !strings.Contains(said.String(), "there is a file already") {
		t.Errorf("over a file: exit %d, %s", code, said.String())
	}
}

// A machine in no mesh gets an archive all the same: that is what somebody wants to know about it.
func TestDiagnoseOfAMachineInNoMesh(t *testing.T) {
	h := newHost(t)
	file := filepath.Join(t.TempDir(), "d.tar.gz")
	var out, said bytes.Buffer
	if code := run(t.Context(), []string{"diagnose", "--state-dir", h.state, "--run-dir", h.run, "--output", file}, &out, &said); code != 0 {
		t.Fatalf("exit %d: %s", code, said.String())
	}
	got := unpack(t, file)
	if !strings.Contains(got["mesh-agent/CONTENTS"], "NOT WHOLE") || !strings.Contains(got["mesh-agent/show.json"], "in no mesh") {
		t.Errorf("%s\n%s", got["mesh-agent/CONTENTS"], got["mesh-agent/show.json"])
	}
}

func unpack(t *testing.T, file string) map[string]string {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	gz, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	var names []string
	for tr := tar.NewReader(gz); ; {
		head, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		out[head.Name] = string(b)
		names = append(names, head.Name)
	}
	if !slices.ContainsFunc(names, func(n string) bool { return strings.HasSuffix(n, "/CONTENTS") }) {
		t.Errorf("no CONTENTS among %v", names)
	}
	return out
}
