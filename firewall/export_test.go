package firewall

// Reread is d without its memory of what it saw: its next look reads the kernel.
func Reread(d *Driver) *Driver {
	d.last = memory{}
	return d
}
