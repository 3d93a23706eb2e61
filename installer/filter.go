package installer

import (
	"context"
	"errors"
	"path/filepath"

	"mesh/installer/unit"
)

// bootFilter is the unit that has the packet filter stand before the network (NET-10). The agent writes what
// it loads; the unit itself is never started by the installer, for the agent's own table is there then.
type bootFilter struct {
	i    *Installer
	file *place
	// enabled and rewritten: this run did that.
	enabled, rewritten bool
}

func (i *Installer) bootFilter() *bootFilter {
	return &bootFilter{i: i, file: i.Machine.place(filepath.Join(unit.Folder, unit.FilterName), 0o644)}
}

// lay writes and enables the unit.
func (f *bootFilter) lay() Step {
	return Step{What: "have the packet filter stand before the network at boot (" + unit.FilterName + ")",
		Do: func(ctx context.Context) (string, error) {
			changed, err := f.file.put([]byte(unit.Filter()))
			if err != nil {
				return "", err
			}
			s := &service{i: f.i, unit: unit.FilterName}
			state, err := s.show(ctx)
			if err != nil {
				return "", err
			}
			if changed || state["NeedDaemonReload"] == "yes" {
				f.rewritten = true
				if _, err := f.i.Machine.Run(ctx, "systemctl", "daemon-reload"); err != nil {
					return "", err
				}
			}
			said := "the packet filter stands before the network at boot"
			if state["UnitFileState"] != "enabled" {
				f.enabled = true
				if _, err := f.i.Machine.Run(ctx, "systemctl", "enable", "--quiet", unit.FilterName); err != nil {
					return "", err
				}
				said = ""
			}
			if !f.i.Machine.hasNft() {
				said = unit.FilterName + " has no nft to load the packet filter with at boot: it stands only once the agent runs; install the package nftables"
			}
			return said, nil
		},
		Undo: func(ctx context.Context) error {
			var errs []error
			if f.enabled {
				_, err := f.i.Machine.Run(ctx, "systemctl", "disable", "--quiet", unit.FilterName)
				errs = append(errs, err)
			}
			errs = append(errs, f.file.undo())
			if f.rewritten {
				_, err := f.i.Machine.Run(ctx, "systemctl", "daemon-reload")
				errs = append(errs, err)
			}
			return errors.Join(errs...)
		}}
}

// hasNft looks where systemd looks for programs.
func (m Machine) hasNft() bool {
	for _, folder := range []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"} {
		if exists(m.at(filepath.Join(folder, "nft"))) {
			return true
		}
	}
	return false
}
