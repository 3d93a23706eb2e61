package upgrade

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"mesh/shared/bundle"
	"mesh/shared/refusal"
)

const (
	// programs is the folder of the agent's programs below the state directory.
	programs = "agent"
	// placed begins the name of the folder of a program that was placed by hand.
	placed = "placed-"
	// storeCopy is the store as it was before the upgrade.
	storeCopy = "state-before.db"

	fallbackService = "mesh-agent-fallback.service"
	fallbackTimer   = "mesh-agent-fallback.timer"
	unitFolder      = "/etc/systemd/system"
)

// change tries the wanted agent: everything that could go wrong before the switch goes wrong before it.
func (u *Upgrader) change(ctx context.Context, want Agent, rec record) error {
	if err := u.cfg.makeFolder(); err != nil {
		return err
	}
	release, err := lock(ctx, u.cfg.Dir)
	if err != nil {
		return err
	}
	defer release()
	to, err := u.bring(want)
	if err != nil {
		return err
	}
	if err := u.speaks(ctx, to); err != nil {
		return err
	}
	from, err := u.keep()
	if err != nil {
		return err
	}
	next := record{State: Trying, From: from, To: to, Tries: 1, AtMS: u.cfg.Clock.Now().UnixMilli(), WindowMS: u.cfg.Window.Milliseconds()}
	if rec.To.Bundle == to.Bundle && rec.State != Confirmed {
		next.Tries = rec.Tries + 1
		if rec.State == Trying { // it was not come to the switch
			next.Tries = rec.Tries
		}
	}
	if err := u.copyStore(ctx); err != nil {
		return err
	}
	if err := u.write(next); err != nil {
		return err
	}
	if err := u.arm(ctx, from); err != nil {
		return err
	}
	if err := link(u.cfg.at(Program), to.Program); err != nil {
		return err
	}
	u.cfg.Log.Info("the agent is changed; this one ends", "bundle", to.Bundle, "from", from.Program)
	_, err = u.cfg.Units.Restart(ctx, Service)
	if ctx.Err() != nil {
		return nil // that is what it is like
	}
	return err
}

func (c *Config) at(path string) string { return filepath.Join(c.Root, path) }

// makeFolder makes the folder of programs. People run the agent's commands from there.
func (c *Config) makeFolder() error {
	at := filepath.Join(c.Dir, programs)
	if err := os.MkdirAll(at, 0o711); err != nil {
		return err
	}
	return os.Chmod(at, 0o711) // whatever the umask
}

// bring copies the program out of its bundle, whose folder goes with the module.
func (u *Upgrader) bring(want Agent) (Agent, error) {
	if err := bundle.CheckDigest(want.Bundle); err != nil {
		return Agent{}, err
	}
	to := Agent{Program: filepath.Join(u.cfg.Dir, programs, want.Bundle, filepath.Base(Program)), Bundle: want.Bundle}
	return to, copyProgram(want.Program, to.Program)
}

// keep is the program that runs, kept where it stays: one that was placed by hand is copied, since the link
// takes its place.
func (u *Upgrader) keep() (Agent, error) {
	if digest := u.Bundle(); digest != "" {
		return Agent{Program: u.cfg.Self, Bundle: digest}, nil
	}
	if strings.HasPrefix(u.cfg.Self, filepath.Join(u.cfg.Dir, programs, placed)) {
		return Agent{Program: u.cfg.Self}, nil
	}
	sum, err := sumOf("/proc/self/exe") // whatever lies at its path by now
	if err != nil {
		return Agent{}, err
	}
	from := Agent{Program: filepath.Join(u.cfg.Dir, programs, placed+sum[:12], filepath.Base(Program))}
	return from, copyProgram("/proc/self/exe", from.Program)
}

// speaks refuses a program that cannot even say its version on this machine.
func (u *Upgrader) speaks(ctx context.Context, a Agent) error {
	exit, out, err := u.cfg.Units.Run(ctx, "mesh-agent-try", []string{a.Program, "--version"})
	if err != nil {
		return fmt.Errorf("try the new agent: %w", err)
	}
	if exit != 0 || !strings.Contains(out, "mesh-agent") {
		return refusal.Newf("the agent from bundle "+a.Bundle[:12], "build it for this machine, and register the module again",
			"asked for its version, it ends with status %d and says %.200q", exit, out)
	}
	return nil
}

// copyStore keeps the store as it is: a newer agent may change its form, which this one could not read.
func (u *Upgrader) copyStore(ctx context.Context) error {
	at := filepath.Join(u.cfg.Dir, programs, storeCopy)
	if err := remove(at); err != nil {
		return err
	}
	if err := u.cfg.Copy(ctx, at); err != nil {
		return fmt.Errorf("copy the store: %w", err)
	}
	return syncFile(at)
}

// arm has systemd run the program of before unless it is disarmed in time, after a restart of the machine too.
func (u *Upgrader) arm(ctx context.Context, from Agent) error {
	service := fmt.Sprintf(`# Made by mesh-agent while it tries another agent; it goes by itself.
[Unit]
Description=mesh: back to the agent of before, since the new one did not report

[Service]
Type=oneshot
ExecStart="%s" --state-dir "%s" fall-back --unless-confirmed
`, from.Program, u.cfg.Dir)
	timer := fmt.Sprintf(`# Made by mesh-agent while it tries another agent; it goes by itself.
[Unit]
Description=mesh: how long the new agent has for its first report

[Timer]
OnActiveSec=%ds
AccuracySec=1s

[Install]
WantedBy=timers.target
`, max(1, int(u.cfg.Window.Seconds())))
	for name, text := range map[string]string{fallbackService: service, fallbackTimer: timer} {
		if err := put(filepath.Join(u.cfg.at(unitFolder), name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	if err := u.cfg.Units.Reload(ctx); err != nil {
		return err
	}
	if _, err := u.cfg.Units.Enable(ctx, []string{fallbackTimer}); err != nil {
		return err
	}
	_, err := u.cfg.Units.Restart(ctx, fallbackTimer) // its time begins now, if it was there already
	return err
}

// disarm removes the timer and its service.
func (u *Upgrader) disarm(ctx context.Context) error {
	_, err := u.cfg.Units.Disable(ctx, []string{fallbackTimer})
	if _, e := u.cfg.Units.Stop(ctx, fallbackTimer); e != nil {
		err = errors.Join(err, e)
	}
	for _, name := range []string{fallbackTimer, fallbackService} {
		err = errors.Join(err, remove(filepath.Join(u.cfg.at(unitFolder), name)))
	}
	return errors.Join(err, u.cfg.Units.Reload(ctx))
}

// tidy removes the programs but the two of the record, and the copy of the store.
func (u *Upgrader) tidy(r record) error {
	at := filepath.Join(u.cfg.Dir, programs)
	entries, err := os.ReadDir(at)
	if err != nil {
		return err
	}
	stay := []string{filepath.Dir(r.From.Program), filepath.Dir(r.To.Program), filepath.Dir(u.cfg.Self)}
	errs := []error{remove(filepath.Join(at, storeCopy))}
	for _, e := range entries {
		if folder := filepath.Join(at, e.Name()); e.IsDir() && !slices.Contains(stay, folder) {
			errs = append(errs, os.RemoveAll(folder))
		}
	}
	return errors.Join(errs...)
}

// copyProgram makes to a copy of from that lasts, unless it is one.
func copyProgram(from, to string) error {
	want, err := sumOf(from)
	if errors.Is(err, fs.ErrNotExist) {
		return refusal.New("the agent from its bundle", "there is no "+filepath.Base(from)+" in its bin", "put it there and register the module again")
	}
	if err != nil {
		return err
	}
	if have, err := sumOf(to); err == nil && have == want {
		return nil
	}
	folder := filepath.Dir(to)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	if err := os.Chmod(folder, 0o755); err != nil { // whatever the umask
		return err
	}
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // only read
	return errors.Join(place(to, in, 0o755), syncFolder(filepath.Dir(folder)))
}

func sumOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // only read
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// put writes a file whole and lasting.
func put(at string, content []byte, mode fs.FileMode) error {
	return place(at, strings.NewReader(string(content)), mode)
}

// place writes beside, syncs, renames and syncs the folder (facts/host.md §1.4).
func place(at string, content io.Reader, mode fs.FileMode) (err error) {
	tmp := filepath.Join(filepath.Dir(at), ".mesh-"+filepath.Base(at)+".new")
	if err := remove(tmp); err != nil {
		return err
	}
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	if err == nil {
		err = f.Chmod(mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(tmp, at)
	}
	if err != nil {
		return errors.Join(err, remove(tmp))
	}
	return syncFolder(filepath.Dir(at))
}

// link makes at a link to target, in one step for who looks.
func link(at, target string) error {
	if have, err := os.Readlink(at); err == nil && have == target {
		return nil
	}
	tmp := filepath.Join(filepath.Dir(at), ".mesh-"+filepath.Base(at)+".new")
	if err := remove(tmp); err != nil {
		return err
	}
	if err := os.Symlink(target, tmp); err != nil {
		return err
	}
	if err := os.Rename(tmp, at); err != nil {
		return errors.Join(err, remove(tmp))
	}
	return syncFolder(filepath.Dir(at))
}

func remove(at string) error {
	if err := os.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func syncFile(at string) error {
	f, err := os.Open(at)
	if err != nil {
		return err
	}
	return errors.Join(unix.Fsync(int(f.Fd())), f.Close(), syncFolder(filepath.Dir(at)))
}

func syncFolder(at string) error {
	f, err := os.Open(at)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
