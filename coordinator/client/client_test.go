package client_test

import (
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mesh/coordinator/client"
	"mesh/shared/clock"
	"mesh/shared/controller"
	"mesh/shared/credential"
	"mesh/shared/manifest"
	"mesh/shared/refusal"
)

func file(t *testing.T, name string) credential.File {
	t.Helper()
	seed, err := credential.NewUser(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return credential.File{Format: credential.Format, Mesh: "m", Kind: credential.KindOperator, Name: name, Seed: seed,
		Bus: credential.Bus{Addresses: []string{"192.0.2.1:4222"}, Pin: strings.Repeat("ab", 32)}}
}

func save(t *testing.T, path string, f credential.File) {
	t.Helper()
	if err := client.SaveCredential(path, f); err != nil {
		t.Fatal(err)
	}
}

func TestFindTakesTheFirstThereIs(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"flag", "env", "etc", "home"} {
		save(t, at(name), file(t, name))
	}
	for _, tt := range []struct {
		name   string
		places client.Places
		want   string
	}{
		{"all", client.Places{Flag: at("flag"), Env: at("env"), Etc: at("etc"), Home: at("home")}, "flag"},
		{"no flag", client.Places{Env: at("env"), Etc: at("etc"), Home: at("home")}, "env"},
		{"neither named", client.Places{Etc: at("etc"), Home: at("home")}, "etc"},
		{"only home", client.Places{Etc: at("none"), Home: at("home")}, "home"},
		{"one that is named has to be there", client.Places{Flag: at("none"), Etc: at("etc")}, ""},
		{"none", client.Places{Etc: at("none")}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, err := client.Find(tt.places)
			if tt.want == "" {
				if refusal.Of(err) == nil {
					t.Errorf("found %q, %v", f.Name, err)
				}
				return
			}
			if err != nil || f.Name != tt.want {
				t.Errorf("found %q, %v, want %q", f.Name, err, tt.want)
			}
		})
	}
	if err := os.Chmod(at("etc"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Find(client.Places{Etc: at("etc"), Home: at("home")}); refusal.Of(err) == nil || !strings.Contains(err.Error(), "chmod") {
		t.Errorf("a credential that others may read: %v", err)
	}
}

func TestSaveCredentialKeepsWhatIsThere(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "ada.json")
	if err := client.CheckFree(path); err != nil {
		t.Error(err)
	}
	f := file(t, "ada")
	save(t, path, f)
	save(t, path, f) // the same again is no error
	if err := client.SaveCredential(path, file(t, "eve")); refusal.Of(err) == nil {
		t.Errorf("another credential was written over it: %v", err)
	}
	if err := client.CheckFree(path); refusal.Of(err) == nil {
		t.Errorf("a path that is taken: %v", err)
	}
	st, err := os.Stat(path)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	if got, err := credential.Load(path); err != nil || got.Seed != f.Seed {
		t.Errorf("read back %q, %v", got.Name, err)
	}
}

func TestOnlyPeopleAsk(t *testing.T) {
	f := file(t, "db1")
	f.Kind = credential.KindNode
	if _, err := client.Connect(t.Context(), f, client.Options{Clock: clock.Real()}); refusal.Of(err) == nil || !strings.Contains(err.Error(), "node db1") {
		t.Errorf("a node's credential: %v", err)
	}
}

func TestCheck(t *testing.T) {
	dir := t.TempDir()
	if _, err := client.Check(dir); refusal.Of(err) == nil {
		t.Errorf("an empty folder: %v", err)
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, client.ManifestFile), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("module: notes\ncolour: red\nbuild: {bundle: {output: ../out}}\n")
	_, err := client.Check(dir)
	var all manifest.Problems
	if !errors.As(err, &all) || len(all) != 2 || all[0].Line != 2 || !strings.HasSuffix(all[0].File, "module.yaml") {
		t.Errorf("two problems: %v", err)
	}
	write("module: notes\nbuild: {bundle: {output: dist}}\n")
	m, err := client.Check(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Built(dir, m); refusal.Of(err) == nil || !strings.Contains(err.Error(), "build it first") {
		t.Errorf("a bundle that is not built: %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, "dist"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := client.Built(dir, m); err != nil {
		t.Error(err)
	}
}

func TestSortPush(t *testing.T) {
	all := []controller.PushNode{{Node: "d", State: controller.PushApplied}, {Node: "c", State: controller.PushSent}, {Node: "b", State: controller.PushFailed}, {Node: "a", State: controller.PushApplied}}
	client.SortPush(all)
	got := ""
	for _, n := range all {
		got += string(n.Node)
	}
	if got != "bcad" {
		t.Errorf("sorted as %s, want the trouble first", got)
	}
}
