package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"mesh/agent/host/file"
)

// Where the engines keep what they know. Podman's places can be moved by storage.conf, docker's by
// daemon.json; what is not found there is not known, and the ledger is believed.
const (
	podmanStore    = "/var/lib/containers/storage"
	podmanConf     = "/etc/containers/storage.conf"
	podmanNetworks = "/etc/containers/networks"
	dockerStore    = "/var/lib/docker"
	bridges        = "/sys/class/net"
)

// maxRead bounds what is read of one of the engine's files.
const maxRead = 64 << 20

// Files are the paths whose content tells which images the engine has. Whoever sees them unchanged knows that
// none came or went.
func (e *Engine) Files() []string {
	if e.kind == Docker {
		return nil
	}
	if at := e.storeFile("images"); at != "" {
		return []string{at}
	}
	return nil
}

// graphRoot is where podman keeps images, layers and volumes.
func (e *Engine) graphRoot() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.store != "" {
		return e.store
	}
	e.store = podmanStore
	if b, err := e.root.Read(podmanConf, maxRead); err == nil {
		for line := range strings.Lines(string(b)) {
			key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
			if v := strings.Trim(strings.TrimSpace(value), `"'`); ok && strings.TrimSpace(key) == "graphroot" && path.IsAbs(v) {
				e.store = path.Clean(v)
			}
		}
	}
	return e.store
}

// drivers are containers/storage's that a server may have.
var drivers = [...]string{"overlay", "vfs", "btrfs", "zfs"}

// storeFile is the path of containers/storage's list of images or containers; empty when there is none yet.
func (e *Engine) storeFile(what string) string {
	for _, d := range drivers {
		at := path.Join(e.graphRoot(), d+"-"+what, what+".json")
		if st, err := e.root.Stat(at); err == nil && st.Exists {
			return at
		}
	}
	return ""
}

// imagesSeen is the list of images as it was read last.
type imagesSeen struct {
	at    string
	print file.Fingerprint
	known map[string]bool // by ID and by manifest digest, both "sha256:…"
}

// HasImage reports whether the image is on the machine; known is false where files do not tell.
func (e *Engine) HasImage(i Image) (there, known bool, err error) {
	if e.kind == Docker {
		return e.dockerHasImage(i)
	}
	at := e.storeFile("images")
	if at == "" {
		store, err := e.root.Stat(e.graphRoot())
		return false, store.Exists, err
	}
	all, err := e.podmanImages(at)
	if err != nil {
		return false, false, err
	}
	if i.ID != "" {
		return all[i.ID], true, nil
	}
	return all[i.Digest], true, nil
}

func (e *Engine) podmanImages(at string) (map[string]bool, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s := e.images; s.known != nil && s.at == at && e.root.Unchanged(at, s.print) {
		return s.known, nil
	}
	e.images = imagesSeen{}
	st, err := e.root.Stat(at)
	if err != nil {
		return nil, err
	}
	b, err := e.root.Read(at, maxRead)
	if err != nil {
		return nil, err
	}
	var list []struct {
		ID      string            `json:"id"`
		Digest  string            `json:"digest"`
		BigData map[string]string `json:"big-data-digests"`
	}
	if len(b) > 0 {
		if err := json.Unmarshal(b, &list); err != nil {
			return nil, fmt.Errorf("read %s: %w", at, err)
		}
	}
	known := make(map[string]bool, 2*len(list))
	for _, i := range list {
		known["sha256:"+i.ID], known[i.Digest] = true, true
		for name, digest := range i.BigData { // an index's digest is kept beside the one of the machine's own manifest
			if strings.HasPrefix(name, "manifest") {
				known[digest] = true
			}
		}
	}
	e.images = imagesSeen{at: at, print: st.Fingerprint, known: known}
	return known, nil
}

// dockerHasImage looks into the graph driver's store; with containerd's there is nothing to see.
func (e *Engine) dockerHasImage(i Image) (there, known bool, err error) {
	store := path.Join(dockerStore, "image")
	entries, err := e.root.List(store)
	if errors.Is(err, fs.ErrNotExist) {
		return false, false, nil
	}
	if err != nil {
		return false, false, err
	}
	for _, driver := range entries {
		st, err := e.root.Stat(path.Join(store, driver, "imagedb/content/sha256"))
		if err != nil || !st.Exists {
			continue
		}
		known = true
		at := path.Join(store, driver, "imagedb/content/sha256", strings.TrimPrefix(i.ID, "sha256:"))
		if i.ID == "" {
			return e.dockerTagged(path.Join(store, driver, "repositories.json"), i)
		}
		if st, err := e.root.Stat(at); err == nil && st.Exists {
			return true, true, nil
		}
	}
	return false, known, nil
}

// dockerTagged looks the reference up among docker's names.
func (e *Engine) dockerTagged(at string, i Image) (there, known bool, err error) {
	b, err := e.root.Read(at, maxRead)
	if errors.Is(err, fs.ErrNotExist) {
		return false, true, nil
	}
	var all struct {
		Repositories map[string]map[string]string
	}
	if err == nil {
		err = json.Unmarshal(b, &all)
	}
	if err != nil {
		return false, false, fmt.Errorf("read %s: %w", at, err)
	}
	for _, refs := range all.Repositories {
		for ref := range refs {
			if strings.HasSuffix(ref, "@"+i.Digest) {
				return true, true, nil
			}
		}
	}
	return false, true, nil
}

// Containers are the names of the containers that are on the machine, running or not; known is false where
// files do not tell.
func (e *Engine) Containers() (names []string, known bool, err error) {
	if e.kind == Docker {
		return e.dockerContainers()
	}
	at := e.storeFile("containers")
	if at == "" {
		return nil, true, nil
	}
	b, err := e.root.Read(at, maxRead)
	if err != nil {
		return nil, false, err
	}
	var list []struct {
		Names []string `json:"names"`
	}
	if len(b) > 0 {
		if err := json.Unmarshal(b, &list); err != nil {
			return nil, false, fmt.Errorf("read %s: %w", at, err)
		}
	}
	for _, c := range list {
		names = append(names, c.Names...)
	}
	slices.Sort(names)
	return slices.Compact(names), true, nil
}

func (e *Engine) dockerContainers() (names []string, known bool, err error) {
	folder := path.Join(dockerStore, "containers")
	ids, err := e.root.List(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	for _, id := range ids {
		b, err := e.root.Read(path.Join(folder, id, "config.v2.json"), maxRead)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it goes at this moment
		}
		var c struct{ Name string }
		if err == nil {
			err = json.Unmarshal(b, &c)
		}
		if err != nil {
			return nil, false, fmt.Errorf("read container %s: %w", id, err)
		}
		names = append(names, strings.TrimPrefix(c.Name, "/"))
	}
	slices.Sort(names)
	return names, true, nil
}
