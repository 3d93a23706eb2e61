package firewall

import (
	"context"
	"errors"
	"fmt"
)

const (
	// trialTable holds rules that are tried beside the table that is (NET-7).
	trialTable = TableName + "-trial"
	// BootTable stands from boot until the agent's own table does. A program loads it, so it has no owner and
	// no owner can take it over: it has another name.
	BootTable = TableName + "-boot"
)

// Try puts t in force beside the table there is: what comes from outside has to pass both, and the table
// there is does not change. Where the kernel knows owned tables (Linux 5.12) the trial ends with this
// process, however that ends; elsewhere with the next EndTrial.
func (d *Driver) Try(ctx context.Context, t Table) error {
	return d.put(ctx, "try", t, d.try)
}

// try has the turn.
func (d *Driver) try(ctx context.Context, t Table) error {
	there, err := d.kernel.has(TableName)
	if err != nil {
		return err
	}
	if !there {
		if err := d.warmOnce(ctx); err != nil {
			return err
		}
	}
	// One of an earlier process may have another owner, or hooks that cannot be changed.
	if err := d.drop(trialTable); err != nil {
		return err
	}
	return errors.Join(d.replace(trialTable, d.trial, t), d.drop(warmUpTable))
}

// Trying reports whether the trial is in force: without an owner anybody may have removed it.
func (d *Driver) Trying(ctx context.Context) (bool, error) {
	give, err := d.take(ctx)
	if err != nil {
		return false, err
	}
	defer give()
	there, err := d.kernel.has(trialTable)
	if err != nil {
		return false, fmt.Errorf("look for the trial of a packet filter: %w", err)
	}
	return there, nil
}

// EndTrial removes what Try loaded, also in an earlier process.
func (d *Driver) EndTrial(ctx context.Context) error { return d.end(ctx, trialTable) }

// DropBoot removes the table loaded at boot, once the agent's own is in force.
func (d *Driver) DropBoot(ctx context.Context) error { return d.end(ctx, BootTable) }

func (d *Driver) end(ctx context.Context, name string) error {
	give, err := d.take(ctx)
	if err != nil {
		return err
	}
	defer give()
	if err := d.drop(name); err != nil {
		return fmt.Errorf("remove table inet %s: %w", name, err)
	}
	return nil
}

// Owned reports whether tables of this Driver are out of everybody else's reach.
func (d *Driver) Owned() bool { return d.flags != 0 }
