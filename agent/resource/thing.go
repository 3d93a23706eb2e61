package resource

import (
	"net/netip"

	"mesh/shared/declaration"
)

// The kinds of what is neither a file nor a unit.
const (
	KindGroup   Kind = "group"
	KindLink    Kind = "link"
	KindSysctl  Kind = "sysctl"
	KindModule  Kind = "kernel-module"
	KindNetwork Kind = "network"
	KindVolume  Kind = "volume"
	KindImage   Kind = "image"
	// KindContainer is the name of a container in the engine. The container itself is its unit's to start and to
	// end; this is what mesh holds of it, so that no other is replaced by it and nothing of it stays.
	KindContainer Kind = "container"
)

// Link is a symbolic link.
type Link struct{ Path, Target string }

// Sysctl is a setting of the kernel, by its name with dots.
type Sysctl struct{ Key, Value string }

// Network is a network of the container engine.
type Network struct {
	Name string
	// Subnet is the zero Prefix where none was declared.
	Subnet         netip.Prefix
	Internal, IPv6 bool
}

// Image is a container image.
type Image struct {
	// Name and Digest are those of a reference: "docker.io/library/redis", "sha256:…". Of an image that the mesh
	// carries, Name is empty.
	Name, Digest string
	// ID is its identity where it is known, "sha256:…".
	ID string
	// Carried is the image as it travels over the bus; nil for one that the engine pulls by its name.
	Carried *declaration.Image
}

// Word is what a container is started from, and what the engine is told to remove.
func (i *Image) Word() string {
	if i.ID != "" {
		return i.ID
	}
	return i.Name + "@" + i.Digest
}

// Container is the name of a container in the engine.
type Container struct {
	Name string
	// Unit is what starts and ends it.
	Unit string
	// Image is what it is started from. Networks, Ports and Mounts are what else a person compares, in the words of
	// engine.Container; Sources are the volumes and folders by where in the container they are.
	Image                   *Image
	Networks, Ports, Mounts []string
	Sources                 map[string]string
}

// Engine is the machine's container engine, as units name it; the zero Engine is podman in its usual place.
type Engine struct {
	Docker  bool
	Program string
}

func (e Engine) program() string {
	switch {
	case e.Program != "":
		return e.Program
	case e.Docker:
		return "/usr/bin/docker"
	}
	return "/usr/bin/podman"
}
