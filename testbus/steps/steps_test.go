package steps_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mesh/testbus/steps"
)

const childEnv = "MESH_TEST_STEPS"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		if err := steps.Obey(os.NewFile(steps.Socket, "steps")); err != nil {
			panic(err)
		}
		if err := child(dir); err != nil {
			fmt.Println("error:", err)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func child(dir string) error {
	tmp := filepath.Join(dir, "tmp")
	if err := os.WriteFile(tmp, []byte("0123456789"), 0o600); err != nil {
		return err
	}
	if err := os.Rename(tmp, filepath.Join(dir, "done")); err != nil {
		return err
	}
	return os.WriteFile("/proc/self/comm", []byte("elsewhere"), 0) // is not below the folder
}

func follow(t *testing.T, dir string, decide func(steps.Step) steps.Answer) (out string, err error) {
	t.Helper()
	var b strings.Builder
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), childEnv+"="+dir), &b, &b
	err = steps.Follow(cmd, []string{dir}, decide)
	return b.String(), err
}

func TestEachStepIsSeen(t *testing.T) {
	dir := t.TempDir()
	var got []string
	out, err := follow(t, dir, func(s steps.Step) steps.Answer {
		got = append(got, fmt.Sprintf("%d %s %s %d", s.N, s.Call, filepath.Base(s.Path), s.Size))
		return steps.Answer{}
	})
	if want := []string{"1 create tmp 0", "2 write tmp 10", "3 rename tmp 0"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v %s", got, err, out)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "done")); err != nil || string(b) != "0123456789" {
		t.Errorf("%q, %v", b, err)
	}
}

func TestKilledTornAndRefused(t *testing.T) {
	for _, tt := range []struct {
		at     int
		answer steps.Answer
		tmp    string // "-" for not there
		killed bool
	}{
		{1, steps.Answer{Kill: true}, "-", true}, {2, steps.Answer{Kill: true}, "", true}, {2, steps.Answer{Kill: true, Tear: true}, "01234", true},
		{3, steps.Answer{Kill: true}, "0123456789", true}, {2, steps.Answer{Err: unix.ENOSPC}, "", false},
	} {
		dir := t.TempDir()
		out, err := follow(t, dir, func(s steps.Step) steps.Answer {
			if s.N == tt.at {
				return tt.answer
			}
			return steps.Answer{}
		})
		if killed := err != nil && strings.Contains(err.Error(), "signal: killed"); killed != tt.killed || err != nil && !killed {
			t.Errorf("%+v: %v %s", tt, err, out)
		}
		if full := strings.Contains(out, "no space left"); full != (tt.answer.Err != 0) {
			t.Errorf("%+v: it said %q", tt, out)
		}
		b, err := os.ReadFile(filepath.Join(dir, "tmp"))
		if os.IsNotExist(err) {
			b = []byte("-")
		}
		if string(b) != tt.tmp {
			t.Errorf("%+v: there is %q", tt, b)
		}
		if _, err := os.Stat(filepath.Join(dir, "done")); err == nil {
			t.Errorf("%+v: it went on", tt)
		}
	}
}
