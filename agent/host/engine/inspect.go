package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"mesh/shared/order"
)

// Container is a container as the engine has it: the facts that a person compares before it is taken (APP-9).
type Container struct {
	Name string
	// ID is the engine's, the same whatever its name becomes.
	ID string
	// Image is the ID of its image, ImageName by what name it was started.
	Image, ImageName string
	// Status is "running", "exited", "created" and so on.
	Status  string
	Created time.Time
	Labels  map[string]string
	// Networks are the names of those it is on, Ports what it publishes ("80/tcp -> 0.0.0.0:8080"), Mounts what
	// is mounted ("volume data at /data", "/srv/x at /x, read only").
	Networks, Ports, Mounts []string
	// Unit is the systemd unit that owns it, where the engine knows.
	Unit string
	// Restart is its restart policy, AutoRemove whether it goes when it ends (--rm).
	Restart    string
	AutoRemove bool
	// Volumes are the names of the volumes it mounts, with those that nobody named.
	Volumes []string
	// Data are the volumes and folders that it can write to.
	Data []Data
	// Command is by what it was made, where the engine keeps that (podman): there may be secrets in it.
	Command []string
}

// Data is where in a container data are, and what has them: a volume by its name, or a folder.
type Data struct {
	At, Source string
	Volume     bool
}

// Anonymous are those of its volumes that the engine named, and would remove with it.
func (c Container) Anonymous() (names []string) {
	for _, v := range c.Volumes {
		if len(v) == 64 && strings.Trim(v, "0123456789abcdef") == "" {
			names = append(names, v)
		}
	}
	return names
}

// ErrNoContainer: the engine has no container of that name.
var ErrNoContainer = errors.New("no such container")

// inspectFormat asks for what Container holds, and no more: of the whole answer only the end would fit.
const inspectFormat = `{"image":{{json .Image}},"config":{{json .Config.Labels}},"created":{{json .Created}},"status":{{json .State.Status}},` +
	`"ports":{{json .NetworkSettings.Ports}},"networks":{{json .NetworkSettings.Networks}},"mounts":{{json .Mounts}},"id":{{json .ID}},` +
	`"restart":{{json .HostConfig.RestartPolicy.Name}},"remove":{{json .HostConfig.AutoRemove}},"name":%s,"command":%s}`

// Inspect asks the engine about one container. It starts a process: it is for what files leave open.
func (e *Engine) Inspect(ctx context.Context, name string) (Container, error) {
	imageName, command := "{{json .ImageName}}", "{{json .Config.CreateCommand}}"
	if e.kind == Docker {
		imageName, command = "{{json .Config.Image}}", "null"
	}
	exit, out, err := e.try(ctx, "inspect-"+name, "container", "inspect", "--format", fmt.Sprintf(inspectFormat, imageName, command), name)
	switch {
	case err != nil:
		return Container{}, err
	case exit != 0 && absent(out):
		return Container{}, fmt.Errorf("container %s: %w", name, errors.Join(ErrNoContainer, fs.ErrNotExist))
	case exit != 0:
		return Container{}, e.failed([]string{"container", "inspect", name}, exit, out)
	}
	c, err := parseContainer(out)
	c.Name = name
	return c, err
}

func parseContainer(out string) (Container, error) {
	var f struct {
		ID       string            `json:"id"`
		Restart  string            `json:"restart"`
		Remove   bool              `json:"remove"`
		Command  []string          `json:"command"`
		Image    string            `json:"image"`
		Labels   map[string]string `json:"config"`
		Created  string            `json:"created"`
		Status   string            `json:"status"`
		Name     string            `json:"name"`
		Networks map[string]any    `json:"networks"`
		Ports    map[string][]struct {
			HostIP   string `json:"HostIp"`
			HostPort string
		} `json:"ports"`
		Mounts []struct {
			Type, Name, Source, Destination string
			RW                              bool
		} `json:"mounts"`
	}
	from := strings.IndexByte(out, '{') // warnings may stand before it
	if from < 0 {
		return Container{}, fmt.Errorf("inspect a container: %q is no answer", lastLine(out))
	}
	if err := json.NewDecoder(strings.NewReader(out[from:])).Decode(&f); err != nil {
		return Container{}, fmt.Errorf("inspect a container: %w", err)
	}
	c := Container{Image: "sha256:" + strings.TrimPrefix(f.Image, "sha256:"), ImageName: f.Name, Status: f.Status, Labels: f.Labels, Unit: f.Labels["PODMAN_SYSTEMD_UNIT"],
		ID: f.ID, Restart: f.Restart, AutoRemove: f.Remove, Command: f.Command}
	if t, err := time.Parse(time.RFC3339Nano, f.Created); err == nil {
		c.Created = t.UTC()
	}
	for n := range f.Networks {
		c.Networks = append(c.Networks, n)
	}
	for port, to := range f.Ports {
		for _, t := range to {
			host := t.HostIP
			if host == "" { // podman's word for all addresses
				host = "0.0.0.0"
			}
			c.Ports = append(c.Ports, port+" -> "+host+":"+t.HostPort)
		}
	}
	for _, m := range f.Mounts {
		what := m.Source + " at " + m.Destination
		if m.Type == "volume" {
			what = "volume " + m.Name + " at " + m.Destination
			c.Volumes = append(c.Volumes, m.Name)
		}
		source := m.Source
		if m.Type == "volume" {
			source = m.Name
		}
		if m.RW && m.Type != "tmpfs" {
			c.Data = append(c.Data, Data{m.Destination, source, m.Type == "volume"})
		}
		if !m.RW {
			what += ", read only"
		}
		c.Mounts = append(c.Mounts, what)
	}
	slices.Sort(c.Networks)
	slices.Sort(c.Ports)
	slices.Sort(c.Mounts)
	order.Sort(c.Data, func(a, b Data) int { return strings.Compare(a.At, b.At) })
	return c, nil
}
