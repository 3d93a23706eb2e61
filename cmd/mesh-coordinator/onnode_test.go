package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mesh/coordinator/client"
	"mesh/shared/clock"
	"mesh/shared/diagnosis"
	"mesh/shared/engine"
	"mesh/shared/refusal"
	"mesh/shared/report"
)

// mesh makes a mesh that nobody serves yet, and says where its state and its first operator's credential are.
func mesh(t *testing.T) (state, cred string) {
	t.Helper()
	dir := t.TempDir()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	state, cred = filepath.Join(dir, "state"), filepath.Join(dir, "operator.json")
	if _, said, code := try(t, &app{}, "init", "--dir", state, "--name", "home", "--address", address, "--listen", address, "--out", cred); code != exitWell {
		t.Fatal(said)
	}
	return state, cred
}

func TestANodeThatCannotAnswerIsSaidAtOnce(t *testing.T) {
	state, cred := mesh(t)
	serve(t, state)
	as := &app{places: client.Places{Env: cred}}
	began := clock.Real().Now()
	for _, args := range [][]string{{"logs", "db9", "notes"}, {"logs", "db9", "notes", "-f"}, {"node", "apply-now", "db9"}, {"node", "restart", "db9", "notes", "--why", "x"}, {"node", "ask", "db9", "show"}, {"diagnose", "db9", "--output", filepath.Join(t.TempDir(), "x")}} {
		if out, said, code := try(t, as, args...); code != exitNotWell || out != "" || !strings.HasPrefix(said, "refused: ") || !strings.Contains(said, "db9") || strings.Count(said, "\n") != 2 {
			t.Errorf("%v: exit %d, %q, %q", args, code, out, said)
		}
	}
	if took := clock.Real().Now().Sub(began); took > 8*time.Second {
		t.Errorf("it took %v: a timeout was waited for (SEA-11)", took)
	}
	viewer := filepath.Join(t.TempDir(), "vi.json")
	if _, said, code := try(t, as, "operator", "issue", "vi", "--role", "viewer", "--out", viewer); code != exitWell {
		t.Fatal(said)
	}
	for _, args := range [][]string{{"logs", "db9", "notes"}, {"node", "restart", "db9", "notes", "--why", "x"}, {"node", "ask", "db9", "report"}} {
		if _, said, code := try(t, &app{places: client.Places{Env: viewer}}, args...); code != exitNotWell || !strings.Contains(said, "it takes the role operator, and the credential of vi has less") {
			t.Errorf("a viewer, %v: exit %d, %q", args, code, said)
		}
	}
	for _, args := range [][]string{{"logs", "db.9", "notes"}, {"logs", "db9", "No"}, {"logs", "db9", "notes", "--since", "yesterdayish"}, {"node", "ask", "db9", "show", "{"}} {
		if _, said, code := try(t, as, args...); code != exitNotWell || !strings.HasPrefix(said, "refused: ") {
			t.Errorf("%v: exit %d, %q", args, code, said)
		}
	}
}

func TestSince(t *testing.T) {
	now := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	for s, want := range map[string]time.Time{"90m": now.Add(-90 * time.Minute), "7d": now.AddDate(0, 0, -7), "2026-01-30": now.Add(-36 * time.Hour), "2026-01-31T11:00:00Z": now.Add(-time.Hour), "2026-01-31 11:30": now.Add(-30 * time.Minute)} {
		if got, err := sinceMS(s, now); err != nil || got != want.UnixMilli() {
			t.Errorf("%s: %v, %v", s, time.UnixMilli(got).UTC(), err)
		}
	}
	if got, err := sinceMS("", now); got != 0 || err != nil {
		t.Errorf("none: %d, %v", got, err)
	}
	for _, bad := range []string{"-1h", "0d", "x", "2026-13-01"} {
		if _, err := sinceMS(bad, now); refusal.Of(err) == nil {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestLinesDriveNoTerminal(t *testing.T) {
	var b bytes.Buffer
	batch := []engine.LogLine{{AtMS: 1_700_000_000_123, Unit: "mesh-notes-web.service", Text: "hi\x1b[2J there\nthere\tand ü"}, {AtMS: 1_700_000_000_124, Unit: "init.scope", Text: "long", Cut: true}}
	if err := writeLines(&b, "notes", batch, false); err != nil {
		t.Fatal(err)
	}
	at := time.UnixMilli(1_700_000_000_123).Format("2006-01-02 15:04:05.000")
	if got := strings.SplitN(b.String(), "\n", 2); got[0] != at+" web: hi·[2J there there\tand ü" || !strings.HasSuffix(got[1], " init.scope: long …\n") {
		t.Errorf("%q", b.String())
	}
	b.Reset()
	if err := writeLines(&b, "notes", batch[:1], true); err != nil || b.String() != `{"at":"2023-11-14T22:13:20.123Z","unit":"mesh-notes-web.service","priority":0,"text":"hi\u001b[2J there\nthere\tand ü"}`+"\n" {
		t.Errorf("%q, %v", b.String(), err)
	}
}

func TestHowAPassWentIsSaid(t *testing.T) {
	for want, r := range map[string]engine.ApplyAnswer{
		"declaration 4 applied: 2 steps in 12ms\n  file:/etc/x: content differs (repaired)\n  file:/etc/y: content differs (stays so)\n": {Seq: 4, Outcome: report.Applied, Steps: 2, TookMS: 12,
			Differed: []report.Drift{{Thing: "file:/etc/x", What: "content differs", Repaired: true}, {Thing: "file:/etc/y", What: "content\ndiffers"}}},
		"nothing is declared for it yet\n": {Outcome: report.None},
		"declaration 4: the pass takes long and goes on; see how it went: mesh-coordinator node show\n": {Seq: 4, Running: true},
	} {
		var b bytes.Buffer
		if err := writeApply(&b, r); err != nil || b.String() != want {
			t.Errorf("%q, %v", b.String(), err)
		}
	}
	if err := writeApply(io.Discard, engine.ApplyAnswer{Seq: 4, Outcome: report.Failed, Refused: &refusal.Refusal{What: "a", Why: "b", Do: "c"}}); refusal.Of(err) == nil {
		t.Errorf("%v", err)
	}
}

// None of the coordinator's keys is in the archive, whoever says them; it is made with the coordinator up and
// down (OPS-5).
func TestDiagnoseMasksTheCoordinatorsKeys(t *testing.T) {
	state, cred := mesh(t)
	planted := []string{}
	for _, name := range []string{"signer.key", "ca.key", "bus.key", "coordinator.json", "operator.json"} {
		b, err := os.ReadFile(filepath.Join(state, name))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, ".json") {
			planted = append(planted, diagnosis.Strings(b)...)
			continue
		}
		for line := range strings.Lines(string(b)) {
			if line = strings.TrimSpace(line); len(line) > 20 && !strings.HasPrefix(line, "-----") {
				planted = append(planted, line)
			}
		}
	}
	if len(planted) < 4 {
		t.Fatalf("only %d secrets are known: this test is blind", len(planted))
	}
	bin := t.TempDir()
	for _, p := range []string{"journalctl", "systemctl", "nft", "ip", "ss", "df", "free", "uptime", "timedatectl", "ps", "uname"} {
		if err := os.WriteFile(filepath.Join(bin, p), []byte("#!/bin/sh\necho this is "+p+"\ncat <<'END'\n"+strings.Join(planted, "\nsays: ")+"\nEND\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	diagnose := func(name string) map[string]string {
		t.Helper()
		file := filepath.Join(t.TempDir(), name)
		out, said, code := try(t, &app{places: client.Places{Env: cred}}, "diagnose", "--dir", state, "--output", file)
		if code != exitWell || out != file+"\n" {
			t.Fatalf("exit %d, %q, %q", code, out, said)
		}
		return unpack(t, file)
	}
	down := diagnose("down.tar.gz")
	if !strings.Contains(down["mesh-coordinator/verbs/status.json"], "not whole") || !strings.Contains(down["mesh-coordinator/records.json"], `"node": 0`) {
		t.Errorf("down: %s\n%s", down["mesh-coordinator/verbs/status.json"], down["mesh-coordinator/records.json"])
	}
	serve(t, state)
	out, _, code := try(t, &app{places: client.Places{Env: cred}}, "node", "invite", "db1")
	if code != exitWell {
		t.Fatal("no invitation")
	}
	planted = append(planted, strings.TrimSpace(out))
	all := ""
	for name, text := range diagnose("up.tar.gz") {
		all += "\n== " + name + "\n" + text
	}
	for _, secret := range planted {
		if i := strings.Index(all, secret); i >= 0 {
			t.Errorf("a secret is in the archive: %.200s", all[max(0, i-100):])
		}
	}
	for _, want := range []string{`"name": "home"`, `"node": "db1"`, "this is journalctl", "records.db", "CONTENTS"} {
		if !strings.Contains(all, want) {
			t.Errorf("nothing says %s", want)
		}
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
	for tr := tar.NewReader(gz); ; {
		head, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
		out[head.Name] = string(b)
	}
}
