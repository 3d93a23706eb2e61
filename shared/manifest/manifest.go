// Package manifest is what a module says of itself: the types behind module.yaml, the rules they keep
// (Check), and the placeholders in their texts (Expand, Fill). The JSON form of a Manifest travels
// inside the declaration to the agents, which decode it strictly and check it again, so nothing is
// ever half understood. Fields are only added, and left out of the JSON when empty.
//
// Reading YAML is mesh/shared/manifest/yamlfile, so that the agent links no YAML reader. The doc
// comments of the types here are the reference for users: docs/manifest.md and
// docs/module.schema.json are generated from them (MAN-3). The package does no I/O.
package manifest

import (
	"mesh/shared/membership"
	"mesh/shared/rule"
	"mesh/shared/subject"
)

// Manifest describes a module.
//
// The tag json gives a field its key, in YAML and in JSON; the tag mesh says "required"; the tag
// default what holds when the key is left out.
type Manifest struct {
	// The name of the module: a-z, 0-9 and inner hyphens, at most 40 characters.
	Module subject.Module `json:"module,omitempty" mesh:"required"`
	// One line for people: what the module is for.
	Description string `json:"description,omitempty"`
	// What a new build does: `record` waits for a hand, `roll` is rolled out by a plan.
	Upgrade Upgrade `json:"upgrade,omitempty" default:"record"`
	// How the module's artifact is made.
	Build Build `json:"build,omitzero"`
	// What runs on a machine.
	Run Run `json:"run,omitzero"`
	// The seats of the mesh that the module holds.
	Seats Seats `json:"seats,omitzero"`
	// The verbs that the module answers on the bus, by name.
	Tools map[string]Tool `json:"tools,omitempty"`
	// The events that the module says on the bus.
	Events []subject.Event `json:"events,omitempty"`
	// The verbs of others that the module asks: `seat:<seat>.<verb>` or `module:<module>.<verb>`, with `*` for
	// every verb.
	Invokes []membership.Reach `json:"invokes,omitempty"`
	// What the instances on several machines are to each other: `interchangeable` ones answer together at the
	// module's plain address, of `distinct` ones each only at its own, unless there is one alone.
	Instances Instances `json:"instances,omitempty" default:"distinct"`
	// What the machine's packet filter lets in for the module.
	Firewall Firewall `json:"firewall,omitzero"`
	// What a machine must be for the module to run there.
	Needs Needs `json:"needs,omitzero"`
	// The settings an assignment may give, by name. Only these can stand in `${setting:…}`.
	Settings map[string]Setting `json:"settings,omitempty"`
	// The secrets an assignment must give, by name. Only these can stand in `${secret:…}`.
	Secrets map[string]Secret `json:"secrets,omitempty"`
}

// Upgrade is what a new build of a module does.
type Upgrade string

// The upgrade policies.
const (
	Record Upgrade = "record"
	Roll   Upgrade = "roll"
)

// Words lists the policies.
func (Upgrade) Words() []string { return []string{string(Record), string(Roll)} }

// Build says how the module's artifact is made.
type Build struct {
	// The bundle: a folder of files that is packed, sent to the machines and unpacked there.
	Bundle *Bundle `json:"bundle,omitempty"`
	// Container images that were built before, by name. A container names one as `built:<name>`, or as
	// `built` when there is only one. They travel to the machines over the bus, layer by layer.
	Images map[string]Image `json:"images,omitempty"`
}

// Image is a container image in a file or a folder beside module.yaml.
type Image struct {
	// Where it is, below the folder of module.yaml: a folder in the OCI image layout, or an archive as
	// `podman save --format oci-archive`, `podman save` and `docker save` write it.
	From string `json:"from,omitempty" mesh:"required"`
}

// Bundle is a folder of files that travels to the machines.
type Bundle struct {
	// The folder to pack, below the folder of module.yaml.
	Output string `json:"output,omitempty" mesh:"required"`
}

// Run is what runs on a machine.
type Run struct {
	// Long-running programs, by name. Each becomes the service `mesh-<module>-<name>.service`.
	Processes map[string]Process `json:"processes,omitempty"`
	// Programs that run at times, by name. Each becomes `mesh-<module>-<name>.timer` and a service.
	Timers map[string]Timer `json:"timers,omitempty"`
	// Systemd units in their own words, by full name, such as `notes.service`, `notes.timer` or `notes.socket`.
	Units map[string]Unit `json:"units,omitempty"`
	// Files with their content.
	Files []File `json:"files,omitempty"`
	// Directories.
	Directories []Directory `json:"directories,omitempty"`
	// Symbolic links.
	Links []Link `json:"links,omitempty"`
	// System users, by name, each with a group of the same name.
	Users map[string]User `json:"users,omitempty"`
	// Groups of the machine, by name, for users and files.
	Groups map[string]Group `json:"groups,omitempty"`
	// Containers, by name. Each becomes the service `mesh-<module>-<name>.service`.
	Containers map[string]Container `json:"containers,omitempty"`
	// Networks between containers, by name.
	Networks map[string]Network `json:"networks,omitempty"`
	// What is to be said about the volumes that containers mount, by name. One that nothing is to be said about
	// need not stand here.
	Volumes map[string]Volume `json:"volumes,omitempty"`
	// Settings of the kernel, such as `net.ipv4.ip_forward`, and their values. What a setting was before comes
	// back when the module goes.
	Sysctls map[string]string `json:"sysctls,omitempty"`
	// Kernel modules that are loaded, now and at boot. They stay loaded when the module goes.
	KernelModules []string `json:"kernel-modules,omitempty"`
}

// Process is a long-running program.
type Process struct {
	// The program and its arguments. A first element with a leading slash is a program of the
	// machine, any other one of the bundle. No shell reads it, and nothing in it is replaced.
	Exec []string `json:"exec,omitempty" mesh:"required"`
	// Environment variables. Placeholders are filled.
	Env map[string]string `json:"env,omitempty"`
	// The user it runs as: one of `run.users`, or one the machine has.
	User string `json:"user,omitempty" default:"root"`
	// Processes and containers of this module that are started before this one.
	After []string `json:"after,omitempty"`
	// Processes and containers of this module's earlier builds that this one takes over from: they run until
	// this one is up.
	Replaces []string `json:"replaces,omitempty"`
	// How it is told to be well.
	Health *Health `json:"health,omitempty"`
	// When it is started again after it ended.
	Restart Restart `json:"restart,omitempty" default:"always"`
	// The folder it runs in: absolute, or below the bundle. Left out, it is the bundle's folder, or
	// `/` in a module without a bundle.
	Directory string `json:"directory,omitempty"`
}

// Restart says when a process is started again after it ended.
type Restart string

// The restart policies.
const (
	Always    Restart = "always"
	OnFailure Restart = "on-failure"
	Never     Restart = "no"
)

// Words lists the policies.
func (Restart) Words() []string { return []string{string(Always), string(OnFailure), string(Never)} }

// Timer is a program that runs at times.
type Timer struct {
	// The program and its arguments, as in a process.
	Exec []string `json:"exec,omitempty" mesh:"required"`
	// When it runs, as systemd's OnCalendar: `*-*-* 03:00`, `Mon..Fri 08:00`, `hourly`.
	Calendar string `json:"calendar,omitempty" mesh:"required"`
	// Environment variables. Placeholders are filled.
	Env map[string]string `json:"env,omitempty"`
	// The user it runs as, as in a process.
	User string `json:"user,omitempty" default:"root"`
	// The folder it runs in, as in a process.
	Directory string `json:"directory,omitempty"`
}

// Unit is a systemd unit in its own words.
type Unit struct {
	// The text of the unit. The placeholders `${setting:…}` and `${node:…}` are filled; a secret is
	// refused, for everybody on a machine can read its units.
	Content string `json:"content,omitempty" mesh:"required"`
	// Whether it is started at boot.
	Enabled bool `json:"enabled,omitempty" default:"false"`
	// Whether it is kept running.
	Started bool `json:"started,omitempty" default:"false"`
}

// File is a file with its content.
type File struct {
	// Where it is: an absolute path.
	Path string `json:"path,omitempty" mesh:"required"`
	// Its permissions, four octal digits.
	Mode Mode `json:"mode,omitempty" default:"0644"`
	// The user that owns it: one of `run.users`, or one the machine has.
	Owner string `json:"owner,omitempty" default:"root"`
	// Its group.
	Group string `json:"group,omitempty" default:"root"`
	// What stands in it. Placeholders are filled. Left out, the file is empty.
	Content string `json:"content,omitempty"`
}

// Directory is a directory.
type Directory struct {
	// Where it is: an absolute path.
	Path string `json:"path,omitempty" mesh:"required"`
	// Its permissions, four octal digits.
	Mode Mode `json:"mode,omitempty" default:"0755"`
	// The user that owns it: one of `run.users`, or one the machine has.
	Owner string `json:"owner,omitempty" default:"root"`
	// Its group.
	Group string `json:"group,omitempty" default:"root"`
	// Whether it holds data, which stays when the module is unassigned.
	Data bool `json:"data,omitempty" default:"false"`
}

// User is a system user: no password, no login unless a shell is named.
type User struct {
	// Its home. Mesh does not make it: declare it under `run.directories` if it has to be there.
	Home string `json:"home,omitempty" default:"/nonexistent"`
	// Its shell.
	Shell string `json:"shell,omitempty" default:"/usr/sbin/nologin"`
	// Groups of the machine it belongs to besides its own.
	Groups []string `json:"groups,omitempty"`
}

// Seats are roles in the mesh.
type Seats struct {
	// The seats that the module holds. `node-engine` is the agent's: the program `bin/mesh-agent` of the
	// bundle becomes the agent of the machines that the module is assigned to.
	Claims []Claim `json:"claims,omitempty"`
}

// Claim is a seat that a module can hold.
type Claim string

// NodeEngine is the agent's own seat.
const NodeEngine Claim = "node-engine"

// Words lists the seats that a module can hold.
func (Claim) Words() []string { return []string{string(NodeEngine)} }

// Firewall is what the packet filter lets in.
type Firewall struct {
	// The openings. What is not here is closed.
	Allow []Allow `json:"allow,omitempty"`
}

// Allow is one opening.
type Allow struct {
	// A port or a range of ports: `80/tcp`, `9000-9010/udp`. Either this or `protocol` is there.
	Port rule.Port `json:"port,omitzero"`
	// A protocol without ports, whole, by name or number: `vrrp`, `esp`, `ah`, `gre`, `ospf`, `sctp`, `6in4`, `112`.
	Protocol rule.Protocol `json:"protocol,omitzero"`
	// Who may come: `anywhere`, `tunnel` (the other machines of the mesh), or addresses and prefixes
	// with commas between them.
	From rule.From `json:"from" mesh:"required"`
}

// Needs is what a machine must be.
type Needs struct {
	// Processor architectures, any of these.
	Arch []Arch `json:"arch,omitempty"`
	// Whether a container engine must be there. A module with containers needs one anyway.
	Engine bool `json:"engine,omitempty" default:"false"`
	// Operating systems, any of these, as ID in /etc/os-release: `debian`, `ubuntu`.
	OS []string `json:"os,omitempty"`
}

// Arch is a processor architecture in Go's words.
type Arch string

// Words lists the architectures.
func (Arch) Words() []string {
	return []string{"amd64", "arm64", "arm", "386", "ppc64le", "riscv64", "s390x"}
}

// Setting is something an assignment may set.
type Setting struct {
	// What it is when the assignment does not set it. A setting that has none must be set.
	Default *string `json:"default,omitempty"`
	// For people: what it does.
	Description string `json:"description,omitempty"`
}

// Secret is something an assignment must set and nobody may read.
type Secret struct {
	// For people: what it is.
	Description string `json:"description,omitempty"`
}

// Mode is a file's permissions as four octal digits, kept as written.
type Mode string
