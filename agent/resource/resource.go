// Package resource turns a declaration into what shall be on the machine: users, folders, files,
// bundles, systemd units, what containers need and settings of the kernel, each with an id, its content and what has to be there before it. It is the
// agent, not the coordinator, that does so (design §6), as a function of values: the same declaration
// and the same secrets give the same resources. It reads and writes nothing.
//
// What this agent cannot read at all refuses the declaration (Decode, APP-1). What is wrong inside one
// module, a setting nobody set or a secret sealed to another key, fails that module and no other.
package resource

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"

	"mesh/shared/declaration"
	"mesh/shared/subject"
)

// Kind says what a resource is.
type Kind string

// The kinds of files and of what runs; the others stand beside their types.
const (
	KindUser   Kind = "user"
	KindDir    Kind = "dir"
	KindBundle Kind = "bundle"
	KindFile   Kind = "file"
	KindUnit   Kind = "unit"
)

// UnitFolder is where mesh's units are.
const UnitFolder = "/etc/systemd/system"

// Resource is one thing that shall be on the machine. At most one of the pointers is set, as Kind says; of a
// group, a kernel module and a volume there is no more to say than the name in the id.
type Resource struct {
	// ID is "user:notes", "dir:/srv/notes", "bundle:notes/<digest>", "file:/etc/notes.conf" or
	// "unit:mesh-notes-web.service".
	ID     string
	Module subject.Module
	Kind   Kind
	// Needs are ids of resources of the same declaration that have to be in order before this one.
	Needs []string

	User   *User
	Dir    *Dir
	Bundle *Bundle
	File   *File
	Unit   *Unit

	Link      *Link
	Sysctl    *Sysctl
	Network   *Network
	Image     *Image
	Container *Container
}

// User is a system user with a group of its name.
type User struct {
	Name, Home, Shell string
	Groups            []string
}

// Dir is a folder.
type Dir struct {
	Path         string
	Mode         fs.FileMode
	Owner, Group string
	// Data: it stays when it is not declared any more.
	Data bool
	// Implied: nobody declared it, but something declared is in it. What is there stays as it is; what
	// is missing is made.
	Implied bool
}

// Bundle is an artifact unpacked in Folder.
type Bundle struct {
	Artifact declaration.Artifact
	// Folder is the absolute path its files are in.
	Folder string
}

// File is a file with its content.
type File struct {
	Path         string
	Content      []byte
	Sum          string // of Content
	Mode         fs.FileMode
	Owner, Group string
	// Private: a secret stands in it.
	Private bool
}

// Unit is a systemd unit.
type Unit struct {
	Name    string
	Content []byte
	Sum     string // of Content
	// Enabled: started at boot. Started: kept running.
	Enabled, Started bool
	// Ends: it may end by itself and well, and is not started again for that; a oneshot, or a process
	// whose restart policy is not "always".
	Ends bool
	// Once: it is started for each new Trigger and then left alone, even when it failed.
	Once bool
	// Container is the name of the container it is, Uses the ids of the networks and volumes of it.
	Container string
	Uses      []string
	// Replaces are units that run until this one is up.
	Replaces []string
	// Health says how it is told to be well; nil when its manifest does not say.
	Health *Health
	// Trigger changes when it has to be started anew: with its text, the bundle, and the module's files
	// and settings. Secrets enter it sealed, never opened.
	Trigger string
}

// Path is where the unit's file is.
func (u *Unit) Path() string { return UnitFolder + "/" + u.Name }

// Sum is the SHA-256 of b in lower-case hex.
func Sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

// ID makes the id of a thing.
func ID(kind Kind, name string) string { return string(kind) + ":" + name }

// BundleID is the id of a module's bundle. The module stands in it, for two may have the same one.
func BundleID(module subject.Module, digest string) string {
	return ID(KindBundle, string(module)+"/"+digest)
}

// Text is what the ledger keeps of how r was declared: content and all else that could differ. It tells
// a new declaration from a change by hand.
func (r *Resource) Text() string {
	switch r.Kind {
	case KindUser:
		return fmt.Sprintf("%s %s %v", r.User.Home, r.User.Shell, r.User.Groups)
	case KindDir:
		return fmt.Sprintf("%v %s:%s", r.Dir.Mode, r.Dir.Owner, r.Dir.Group)
	case KindBundle:
		return r.Bundle.Artifact.Digest
	case KindFile:
		return fmt.Sprintf("%s %v %s:%s", r.File.Sum, r.File.Mode, r.File.Owner, r.File.Group)
	case KindLink:
		return r.Link.Target
	case KindSysctl:
		return r.Sysctl.Value
	case KindNetwork:
		return fmt.Sprintf("subnet=%s internal=%v ipv6=%v", r.Network.Subnet, r.Network.Internal, r.Network.IPv6)
	case KindImage:
		return r.Image.Word()
	case KindGroup, KindModule, KindVolume, KindContainer:
		return "declared"
	case KindUnit:
		return fmt.Sprintf("%s enabled=%v started=%v", r.Unit.Sum, r.Unit.Enabled, r.Unit.Started)
	}
	panic("resource " + r.ID + " has no kind")
}
