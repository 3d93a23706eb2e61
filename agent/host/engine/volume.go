package engine

import (
	"context"
	"path"
)

// Volume is a named volume of the engine.
type Volume struct {
	Name   string
	Labels map[string]string
}

// VolumeFolder is where the volume's data are.
func (e *Engine) VolumeFolder(name string) string {
	if e.kind == Docker {
		return path.Join(dockerStore, "volumes", name, "_data")
	}
	return path.Join(e.graphRoot(), "volumes", name, "_data")
}

// HasVolume reports whether the volume is on the machine; known is false where the engine keeps its volumes
// elsewhere.
func (e *Engine) HasVolume(name string) (there, known bool, err error) {
	folder := e.VolumeFolder(name)
	st, err := e.root.Stat(folder)
	if err != nil || st.Exists {
		return st.Exists, err == nil, err
	}
	all, err := e.root.Stat(path.Dir(path.Dir(folder)))
	return false, all.Exists, err
}

// EnsureVolume makes the volume unless it is there. One whose data are gone although the engine knows it is
// made anew, empty.
func (e *Engine) EnsureVolume(ctx context.Context, v Volume) error {
	if there, _, err := e.HasVolume(v.Name); err != nil || there {
		return err
	}
	create := append(append([]string{"volume", "create"}, labels(v.Labels)...), v.Name)
	exit, _, err := e.try(ctx, "volume-"+v.Name, create...)
	if err != nil {
		return err
	}
	if there, _, err := e.HasVolume(v.Name); err != nil || there {
		return err
	}
	if exit == 0 { // its folder is elsewhere: docker's data-root, a volume plugin
		return nil
	}
	// The engine has a record of it, and no folder.
	if err := e.remove(ctx, "volume", v.Name); err != nil {
		return err
	}
	_, err = e.do(ctx, "volume-"+v.Name, create...)
	return err
}

// RemoveVolume removes the volume and its data; nil when there is none, ErrInUse when a container uses it.
func (e *Engine) RemoveVolume(ctx context.Context, name string) error {
	return e.remove(ctx, "volume", name)
}
