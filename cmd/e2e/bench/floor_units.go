package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"
)

// The floor of what an apply has systemd do: the files of units written, one daemon-reload, and the starts side by
// side over the same D-Bus; and a shell script that does with install and one systemctl what a first apply does.

const floorUnitFolder = "/etc/systemd/system"

type floorUnits struct{ conn *dbus.Conn }

func (f *floorUnits) text(version int) string {
	return fmt.Sprintf("[Unit]\nDescription=floor\n[Service]\nType=exec\nEnvironment=VERSION=%d\nExecStart=/usr/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n", version)
}

func (f *floorUnits) name(i int) string { return fmt.Sprintf("floor-u%02d.service", i) }

// change writes n units anew, has systemd read them, and starts them anew.
func (f *floorUnits) change(ctx context.Context, n, version int) error {
	for i := range n {
		p := filepath.Join(floorUnitFolder, f.name(i))
		if err := errors.Join(os.WriteFile(p+".new", []byte(f.text(version)), 0o644), os.Rename(p+".new", p)); err != nil {
			return err
		}
	}
	if err := f.conn.ReloadContext(ctx); err != nil {
		return err
	}
	return f.restart(ctx, n)
}

// restart starts n units anew, all at once.
func (f *floorUnits) restart(ctx context.Context, n int) error {
	done := make(chan string, n)
	for i := range n {
		if _, err := f.conn.RestartUnitContext(ctx, f.name(i), "replace", done); err != nil {
			return err
		}
	}
	for range n {
		select {
		case r := <-done:
			if r != "done" {
				return fmt.Errorf("a start came to %q", r)
			}
		case <-time.After(30 * time.Second):
			return errors.New("a start took more than 30 s")
		}
	}
	return nil
}

// script writes the shell script of a first apply into dir, with what it installs.
func (f *floorUnits) script(dir string, files, units int) (apply, undo string, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", "", err
	}
	var b strings.Builder
	b.WriteString("set -e\nmkdir -p /etc/bench-floor\n")
	for i := range files {
		p := filepath.Join(dir, fmt.Sprintf("f%03d", i))
		if err := os.WriteFile(p, []byte(passContent(i)), 0o644); err != nil {
			return "", "", err
		}
		fmt.Fprintf(&b, "install -m 0644 -o root -g root %s /etc/bench-floor/\n", p)
	}
	var names []string
	for i := range units {
		name := fmt.Sprintf("floor-f%02d.service", i)
		names = append(names, name)
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(f.text(0)), 0o644); err != nil {
			return "", "", err
		}
		fmt.Fprintf(&b, "install -m 0644 -o root -g root %s %s/\n", p, floorUnitFolder)
	}
	all := strings.Join(names, " ")
	fmt.Fprintf(&b, "systemctl --quiet enable --now %s\n", all)
	apply, undo = filepath.Join(dir, "apply.sh"), filepath.Join(dir, "undo.sh")
	undoText := fmt.Sprintf("set -e\nsystemctl --quiet disable --now %s\ncd %s && rm %s\nrm -r /etc/bench-floor\nsystemctl daemon-reload\n", all, floorUnitFolder, all)
	return apply, undo, errors.Join(os.WriteFile(apply, []byte(b.String()), 0o755), os.WriteFile(undo, []byte(undoText), 0o755))
}

func runScript(ctx context.Context, path string) error {
	if out, err := exec.CommandContext(ctx, "sh", path).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", path, err, out)
	}
	return nil
}
