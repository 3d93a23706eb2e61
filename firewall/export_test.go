package firewall

import "context"

// WatchLate is Watch with the smallest receive buffer there is, which nobody reads until meanwhile returned.
func WatchLate(ctx context.Context, d *Driver, meanwhile func()) (<-chan Event, error) {
	fd, err := watchSocket(1)
	if err != nil {
		return nil, err
	}
	meanwhile()
	return d.watch(ctx, fd)
}

// Reread is d without its memory of what it saw: its next look reads the kernel.
func Reread(d *Driver) *Driver {
	d.last = memory{}
	return d
}
