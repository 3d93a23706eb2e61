package manifest

// Container is a container, kept running by systemd as the service `mesh-<module>-<name>.service`.
type Container struct {
	// Its image: `built` or `built:<name>` for one of `build.images`, or a reference with a registry and a
	// digest, such as `docker.io/library/redis@sha256:…`. A tag is refused: it is another image tomorrow.
	Image string `json:"image,omitempty" mesh:"required"`
	// Its name in the engine. Left out, it is `mesh-<module>-<name>`.
	Name string `json:"name,omitempty"`
	// What the image's entry point is given. No shell reads it, and nothing in it is replaced.
	Command []string `json:"command,omitempty"`
	// The program that is started instead of the image's, with its first arguments.
	Entrypoint []string `json:"entrypoint,omitempty"`
	// Environment variables. Placeholders are filled; one with a secret never stands in a command line.
	Env map[string]string `json:"env,omitempty"`
	// Files of the machine with variables, one `NAME=value` a line, as the engine reads them.
	EnvFiles []string `json:"env-files,omitempty"`
	// The user in the container, a name or a number, with a group after a colon if wanted.
	User string `json:"user,omitempty"`
	// The folder in the container it runs in. Left out, it is the image's.
	Directory string `json:"directory,omitempty"`
	// Whether its root file system cannot be written.
	ReadOnly bool `json:"read-only,omitempty" default:"false"`
	// Kernel capabilities beside or instead of the engine's usual ones.
	Capabilities Capabilities `json:"capabilities,omitzero"`
	// Devices of the machine, such as `/dev/ttyUSB0`, or `/dev/ttyUSB0:/dev/modem:rw`.
	Devices []string `json:"devices,omitempty"`
	// Folders in memory.
	Tmpfs []Tmpfs `json:"tmpfs,omitempty"`
	// Bounds.
	Limits Limits `json:"limits,omitzero"`
	// When it is started again after it ended.
	Restart Restart `json:"restart,omitempty" default:"always"`
	// The signal that asks it to end. Left out, it is the image's, or SIGTERM.
	StopSignal string `json:"stop-signal,omitempty"`
	// How long it may take to end before it is killed.
	StopTimeout Duration `json:"stop-timeout,omitempty" default:"10s"`
	// Labels on the container. Those that begin with `mesh.` are mesh's own.
	Labels map[string]string `json:"labels,omitempty"`
	// How much it may write into the journal.
	Log Log `json:"log,omitzero"`
	// Ports of the machine that lead into it. `firewall.allow` says who may come.
	Ports []Port `json:"ports,omitempty"`
	// What is mounted into it.
	Volumes []Mount `json:"volumes,omitempty"`
	// Networks it is on, of `run.networks`. `host` alone is the machine's own network, `none` alone is none.
	// Left out, it is the engine's usual one.
	Networks []string `json:"networks,omitempty"`
	// Processes and containers of this module that are started before this one.
	After []string `json:"after,omitempty"`
	// Processes and containers of this module's earlier builds that this one takes over from: they run until
	// this one is up.
	Replaces []string `json:"replaces,omitempty"`
	// How it is told to be well.
	Health *Health `json:"health,omitempty"`
}

// Capabilities are kernel capabilities (capabilities(7)), with or without `CAP_` before the name.
type Capabilities struct {
	// What it gets besides the usual ones.
	Add []string `json:"add,omitempty"`
	// What it does not get. `all` is everything.
	Drop []string `json:"drop,omitempty"`
}

// Tmpfs is a folder in memory.
type Tmpfs struct {
	// Where it is in the container.
	At string `json:"at,omitempty" mesh:"required"`
	// How much it holds at most, such as `64M`.
	Size Size `json:"size,omitempty"`
}

// Limits bound what a container may take. Where the kernel has no such controller they are not enforced.
type Limits struct {
	// Memory, such as `512M`.
	Memory Size `json:"memory,omitempty"`
	// Processors, such as `1.5`.
	CPUs Number `json:"cpus,omitempty"`
	// Processes and threads.
	Pids Number `json:"pids,omitempty"`
}

// Log bounds what a program writes into the journal.
type Log struct {
	// How many lines within `per`; what is more is dropped, and the journal says how many. Left out, the
	// journal's own bound holds.
	Lines Number `json:"lines,omitempty"`
	// The time that `lines` is for.
	Per Duration `json:"per,omitempty" default:"30s"`
}

// Port is a port of the machine that leads into a container.
type Port struct {
	// The port in the container.
	Container Number `json:"container,omitempty" mesh:"required"`
	// The port of the machine. Left out, it is the one in the container.
	Publish Number `json:"publish,omitempty"`
	// The protocol.
	Protocol PortProtocol `json:"protocol,omitempty" default:"tcp"`
	// The address of the machine it listens on. Left out, it is every one.
	Address string `json:"address,omitempty"`
}

// PortProtocol is a protocol with ports.
type PortProtocol string

// Words lists the protocols.
func (PortProtocol) Words() []string { return []string{"tcp", "udp"} }

// Mount is something mounted into a container: a volume, or a folder or file of the machine.
type Mount struct {
	// The volume, by name. It keeps what is in it when the module goes; `run.volumes` may say more about it.
	Name string `json:"name,omitempty"`
	// The folder or file of the machine, instead of a volume.
	Path string `json:"path,omitempty"`
	// Where it is in the container.
	At string `json:"at,omitempty" mesh:"required"`
	// Whether it cannot be written there.
	ReadOnly bool `json:"read-only,omitempty" default:"false"`
}

// Network is a network between containers.
type Network struct {
	// Its name in the engine. Left out, it is `mesh-<module>-<name>`.
	Name string `json:"name,omitempty"`
	// Its range of addresses, such as `10.89.7.0/24`. Left out, mesh takes one that is free on the machine.
	Subnet string `json:"subnet,omitempty"`
	// Whether nothing leads out of it.
	Internal bool `json:"internal,omitempty" default:"false"`
	// Whether it has IPv6 addresses too.
	IPv6 bool `json:"ipv6,omitempty" default:"false"`
	// Whether somebody else makes it: mesh joins it and never makes or removes it.
	External bool `json:"external,omitempty" default:"false"`
}

// Volume is where containers keep data. It stays when the module is unassigned.
type Volume struct {
	// Its name in the engine. Left out, it is `mesh-<module>-<name>`.
	Name string `json:"name,omitempty"`
}

// Health says how a thing is told to be well: by exactly one of `http`, `tcp`, `command` and `systemd`.
type Health struct {
	// An address to ask from the machine; any answer from 200 to 399 is well.
	HTTP string `json:"http,omitempty"`
	// A `host:port` that has to take a connection from the machine.
	TCP string `json:"tcp,omitempty"`
	// A program that has to end with 0: in the container, or beside the process as its user.
	Command []string `json:"command,omitempty"`
	// Whether it is well as long as systemd calls its service active; nothing is asked then.
	Systemd bool `json:"systemd,omitempty" default:"false"`
	// How often it is asked.
	Every Duration `json:"every,omitempty" default:"10s"`
	// How long a new build may take to get well before the last good one takes its place again.
	Within Duration `json:"within,omitempty" default:"60s"`
	// How long one ask may take.
	Timeout Duration `json:"timeout,omitempty" default:"5s"`
	// How many asks in a row have to fail before what was well is called unhealthy.
	Retries Number `json:"retries,omitempty" default:"3"`
}

// Link is a symbolic link.
type Link struct {
	// Where it is: an absolute path.
	Path string `json:"path,omitempty" mesh:"required"`
	// Where it leads, absolute or relative to its own folder. It need not be there.
	Target string `json:"target,omitempty" mesh:"required"`
}

// Group is a group of the machine. It stays when the module is unassigned.
type Group struct{}

// Duration is a time span: a whole number and `ms`, `s`, `m` or `h`.
type Duration string

// Size is a number of bytes: a whole number, with `K`, `M` or `G` for 1024, 1024² or 1024³ of them.
type Size string

// Number is a number as it is written.
type Number string
