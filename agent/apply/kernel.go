package apply

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"mesh/shared/refusal"
)

const (
	sysctls = "/proc/sys"
	modules = "/sys/module"
	// maxBuiltIn bounds the list of modules that are built in.
	maxBuiltIn = 4 << 20
)

// sysctlPath is the file of a setting by its name with dots, in which a slash stands for a dot in a name
// (sysctl.d(5)).
func sysctlPath(key string) string {
	return path.Join(sysctls, strings.NewReplacer(".", "/", "/", ".").Replace(key))
}

// sysctlNow is what the setting is, with single blanks between its fields; ok is false when the kernel has none.
func (e *Engine) sysctlNow(key string) (value string, ok bool) {
	// In one read: the kernel gives nothing more to a second one (proc_dointvec in kernel/sysctl.c).
	b, err := os.ReadFile(filepath.Join(e.root.Path(), sysctlPath(key)))
	return strings.Join(strings.Fields(string(b)), " "), err == nil
}

// setSysctl writes a setting. The agent's sandbox keeps it from /proc/sys (facts/host.md §3), so a transient unit does.
func (r *run) setSysctl(ctx context.Context, key, value string) error {
	if r.cfg.Host.Runner == nil {
		return errNoUnits
	}
	what := "sysctl " + key
	if _, ok := r.sysctlNow(key); !ok {
		return refusal.New(what, "this kernel has no such setting", "load the kernel module that brings it, or take it out of the module")
	}
	unit := "mesh-sysctl_" + strings.NewReplacer("/", "_", "*", "_", "@", "_").Replace(key)
	exit, out, err := r.cfg.Host.Runner.Run(ctx, unit, []string{"/bin/sh", "-c", `printf '%s\n' "$1" >"$2"`, "sh", value, path.Join(r.root.Path(), sysctlPath(key))})
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	now, _ := r.sysctlNow(key)
	if exit != 0 || now != value {
		return refusal.Newf(what, "declare a value that the kernel takes, or take it out of the module", "it is %s after %s was written: %s", now, value, strings.TrimSpace(out))
	}
	return nil
}

// modulePath is there while a kernel module is loaded, or built in with parameters.
func modulePath(name string) string { return path.Join(modules, strings.ReplaceAll(name, "-", "_")) }

// moduleLoaded reports whether the kernel has the module. One that was built in shows in /sys only when it has
// parameters, and is in a list beside the modules else.
func (e *Engine) moduleLoaded(name string) bool {
	if st, err := e.root.Stat(modulePath(name)); err == nil && st.Exists {
		return true
	}
	if e.builtIn == nil {
		e.builtIn = map[string]bool{}
		release, err := os.ReadFile(filepath.Join(e.root.Path(), sysctls, "kernel/osrelease"))
		if err != nil {
			return false
		}
		list, err := e.root.Read(path.Join("/lib/modules", strings.TrimSpace(string(release)), "modules.builtin"), maxBuiltIn)
		if err != nil {
			return false // a machine may have none: a container host without modules of its own
		}
		for line := range strings.Lines(string(list)) {
			base, _, _ := strings.Cut(path.Base(strings.TrimSpace(line)), ".")
			e.builtIn[strings.ReplaceAll(base, "-", "_")] = true
		}
	}
	return e.builtIn[strings.ReplaceAll(name, "-", "_")]
}

// loadModule loads a kernel module.
func (r *run) loadModule(ctx context.Context, name string) error {
	if r.cfg.Host.Runner == nil {
		return errNoUnits
	}
	exit, out, err := r.cfg.Host.Runner.Run(ctx, "mesh-modprobe_"+name, []string{"modprobe", "--", name})
	switch {
	case err != nil:
		return fmt.Errorf("kernel module %s: %w", name, err)
	case exit != 0:
		return refusal.New("kernel module "+name, "modprobe ended with "+fmt.Sprint(exit)+": "+strings.TrimSpace(out),
			"install the kernel's modules package, or take it out of the module")
	case !r.moduleLoaded(name):
		return refusal.New("kernel module "+name, "modprobe took the name, and yet the kernel has no such module: it is another one's alias", "declare the module by its own name")
	}
	return nil
}
