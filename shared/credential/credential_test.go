package credential_test

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mesh/shared/credential"
	"mesh/shared/refusal"
)

func user(t *testing.T) credential.Seed {
	t.Helper()
	s, err := credential.NewUser(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSeedsHideThemselves(t *testing.T) {
	s := user(t)
	for _, text := range []string{fmt.Sprint(s), fmt.Sprintf("%v %+v %#v %s", s, s, s, s), s.LogValue().String()} {
		if strings.Contains(text, string(s[:8])) {
			t.Errorf("a seed shows in %q", text)
		}
	}
}

func TestSignatures(t *testing.T) {
	a, err := credential.NewSigner(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	b, err := credential.NewSigner(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	again, err := credential.ParseSigner(a.Seed())
	if err != nil {
		t.Fatal(err)
	}
	text := []byte("text")
	sig := again.Sign("declaration", text)
	if !a.Verifier().Verify("declaration", text, sig) {
		t.Error("a good signature was refused")
	}
	for name, ok := range map[string]bool{
		"another purpose": a.Verifier().Verify("ask", text, sig),
		"another key":     b.Verifier().Verify("declaration", text, sig),
		"another text":    a.Verifier().Verify("declaration", []byte("Text"), sig),
		"a cut signature": a.Verifier().Verify("declaration", text, sig[:20]),
		"no key":          credential.Verifier("").Verify("declaration", text, sig),
	} {
		if ok {
			t.Errorf("%s was believed", name)
		}
	}
}

func TestASecretOpensForItsNodeModuleAndKeyOnly(t *testing.T) {
	mine, err := credential.NewCurve(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := credential.NewCurve(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	public, err := mine.Public()
	if err != nil {
		t.Fatal(err)
	}
	s, err := credential.Seal(rand.Reader, public, "db1", "notes", "password", "hunter2")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(s), "hunter2") {
		t.Error("the sealed form shows the secret")
	}
	if v, err := s.Open(mine, "db1", "notes", "password"); err != nil || v != "hunter2" {
		t.Errorf("Open = %q, %v", v, err)
	}
	if _, err := s.Open(stranger, "db1", "notes", "password"); err == nil {
		t.Error("a stranger opened it")
	}
	if _, err := s.Open(mine, "db1", "other", "password"); err == nil {
		t.Error("another module opened it")
	}
	if _, err := s.Open(mine, "db1", "notes", "token"); err == nil {
		t.Error("another key opened it")
	}
	if _, err := credential.Sealed("x").Open(mine, "db1", "notes", "password"); err == nil {
		t.Error("rubbish opened")
	}
}

func invitation(t *testing.T) credential.Invitation {
	return credential.Invitation{Format: 1, Mesh: "m", ID: "abc123", Node: "db1", Seed: user(t),
		Bus: credential.Bus{Addresses: []string{"192.0.2.1:4222"}, Pin: strings.Repeat("ab", 32)}, Expires: 1}
}

func TestInvitationLine(t *testing.T) {
	in := invitation(t)
	line, err := in.Encode()
	if err != nil {
		t.Fatal(err)
	}
	out, err := credential.ParseInvitation("  " + line + "\n")
	if err != nil || out.Node != in.Node || out.Seed != in.Seed || out.Bus.Pin != in.Bus.Pin {
		t.Fatalf("read back %+v, %v", out, err)
	}
	for name, tt := range map[string]struct{ line, says string }{
		"cut":          {line[:len(line)-5], "cut or mistyped"},
		"mistyped":     {strings.Replace(line, line[20:22], "zz", 1), "cut or mistyped"},
		"something":    {"hello", "starts with"},
		"empty":        {"", "starts with"},
		"only a start": {"mesh1-", "cut or mistyped"},
	} {
		_, err := credential.ParseInvitation(tt.line)
		if r := refusal.Of(err); r == nil || !strings.Contains(r.Why, tt.says) || r.Do == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	in.Node = "db.1"
	line, err = in.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := credential.ParseInvitation(line); err == nil || !strings.Contains(err.Error(), "dot") {
		t.Errorf("a node name with a dot: %v", err)
	}
}

func TestCredentialFile(t *testing.T) {
	f := credential.File{Format: 1, Mesh: "m", Kind: credential.KindOperator, Name: "ada", Seed: user(t),
		Bus: credential.Bus{Addresses: []string{"[2001:db8::1]:4222"}, Pin: strings.Repeat("ab", 32)}}
	b, err := f.Encode()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "ada.cred")
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := credential.Load(path); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a credential that others may read: %v", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := credential.Load(path)
	if err != nil || got.Principal() != "operator-ada" || got.Seed != f.Seed {
		t.Errorf("Load = %+v, %v", got, err)
	}
}

func FuzzInvitation(f *testing.F) {
	s, err := credential.NewUser(rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	line, err := credential.Invitation{Format: 1, Mesh: "m", ID: "a", Node: "n", Seed: s, Bus: credential.Bus{Addresses: []string{"h:1"}, Pin: strings.Repeat("ab", 32)}}.Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(line)
	f.Add("mesh1-")
	f.Fuzz(func(t *testing.T, line string) {
		i, err := credential.ParseInvitation(line)
		if err == nil && (i.Node == "" || len(i.Bus.Addresses) == 0) {
			t.Errorf("took an incomplete invitation %+v", i)
		}
	})
}

func FuzzFile(f *testing.F) {
	f.Add([]byte(`{"format":1,"mesh":"m","kind":"node","name":"a","seed":"x","bus":{"addresses":["a:1"],"pin":""}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if c, err := credential.Decode(b); err == nil && c.Check() != nil {
			t.Errorf("took %+v", c)
		}
	})
}

func TestASignatureHasOneSpelling(t *testing.T) {
	s, err := credential.NewSigner(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	text := []byte("text")
	sig := s.Sign("p", text)
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	for _, last := range alphabet {
		other := sig[:len(sig)-1] + string(last)
		if other != sig && s.Verifier().Verify("p", text, other) {
			t.Errorf("%q is taken besides %q", other, sig)
		}
	}
	for _, other := range []string{sig + "=", sig + "\n", " " + sig, sig[:4] + "\n" + sig[4:]} {
		if s.Verifier().Verify("p", text, other) {
			t.Errorf("%q is taken besides %q", other, sig)
		}
	}
}

func TestOnlyABusUsersSeedIsACredential(t *testing.T) {
	curve, err := credential.NewCurve(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	f := credential.File{Format: 1, Mesh: "m", Kind: credential.KindNode, Name: "db1", Seed: curve,
		Bus: credential.Bus{Addresses: []string{"192.0.2.1:4222"}, Pin: strings.Repeat("ab", 32)}}
	if err := f.Check(); err == nil || !strings.Contains(err.Error(), "of a bus user") {
		t.Errorf("a curve key as credential: %v", err)
	}
	i := invitation(t)
	i.Seed = curve
	line, err := i.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := credential.ParseInvitation(line); err == nil || !strings.Contains(err.Error(), "of a bus user") {
		t.Errorf("a curve key in an invitation: %v", err)
	}
}

func FuzzOpenSealed(f *testing.F) {
	curve, err := credential.NewCurve(rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	public, err := curve.Public()
	if err != nil {
		f.Fatal(err)
	}
	s, err := credential.Seal(rand.Reader, public, "n", "m", "k", "v")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(s))
	f.Add(public + ".")
	f.Add(public + ".eGt2MQ")
	f.Fuzz(func(t *testing.T, text string) {
		if v, err := credential.Sealed(text).Open(curve, "n", "m", "k"); err == nil && v != "v" {
			t.Errorf("%q opened as %q", text, v)
		}
	})
}
