package engine

import (
	"fmt"
	"strings"

	"mesh/shared/refusal"
)

// The exit statuses that podman run and docker run have of their own (podman-run(1)).
const (
	ExitEngine  = 125 // the engine itself failed
	ExitNoStart = 126 // the command in the container cannot be invoked; podman: also a port in use
	ExitNoWord  = 127 // the command is not in the container
)

// failed turns what the engine said into a refusal that says what to do (APP-14).
func (e *Engine) failed(args []string, exit int, out string) error {
	what := string(e.kind) + " " + strings.Join(args, " ")
	last := lastLine(out)
	why, do := Explain(out)
	if why == "" {
		why, do = fmt.Sprintf("it ended with status %d: %s", exit, last), "look at the machine; it is tried again by itself"
	}
	return refusal.New(what, why, do)
}

// faults are words of the engines and what they mean to a person, the most telling first.
var faults = [...]struct {
	words   []string
	why, do string
}{
	{[]string{"address already in use", "port is already allocated", "cannot expose port", "bind: address already"},
		"a port it publishes is in use on this machine", "see who has it with ss -ltnp, end that or publish another port"},
	{[]string{"no space left on device"}, "the disk is full", "free some space; it is tried again by itself"},
	{[]string{"read-only file system"}, "the file system is read-only", "look at the disk (dmesg) and mount it writable"},
	{[]string{"cannot connect to the docker daemon", "is the docker daemon running", "cannot connect to podman"},
		"the engine's daemon does not answer", "systemctl start docker, and see journalctl -u docker"},
	{[]string{"image not known", "no such image", "unable to find image", "does not resolve to an image"},
		"the engine has no such image any more", "it is fetched again by itself; if it does not come, see whether the registry has it"},
	{[]string{"unable to find network", "network not found"}, "a network it is on is not there", "declare it under run.networks, or make it"},
	{[]string{"manifest unknown", "name unknown", "repository does not exist", "requested access to the resource is denied", "unauthorized"},
		"the registry does not have it, or gives it to nobody", "check name and digest of the image, and log the machine in where a registry asks for it"},
	{[]string{"no such host", "dial tcp", "connection refused", "i/o timeout", "tls handshake", "network is unreachable", "temporary failure in name resolution"},
		"the registry cannot be reached", "it is tried again by itself; see whether this machine reaches the registry"},
	{[]string{"subnet", "is already used", "pool overlaps"}, "the network's subnet is in use on this machine", "declare another subnet, or none"},
	{[]string{"error setting cgroup config", "pids.max", "memory.max", "memory.swap.max", "cpu.max"},
		"the kernel of this machine has no controller for one of its limits", "take limits out of the container, or turn the controller on (cgroup_enable= on the kernel's command line)"},
	{[]string{"no such file or directory", "statfs", "bind source path does not exist"},
		"a folder or device it mounts is not on this machine", "declare the folder under run.directories, or mount another"},
	{[]string{"permission denied", "operation not permitted"}, "the kernel or a security module forbids it", "see dmesg and the journal of the unit"},
}

// Explain says what the words of an engine mean, and what to do; empty when nothing better is known than the
// words themselves.
func Explain(out string) (why, do string) {
	low := strings.ToLower(out)
	for _, f := range faults {
		for _, w := range f.words {
			if strings.Contains(low, w) {
				return f.why + ": " + lastLine(out), f.do
			}
		}
	}
	return "", ""
}

// Status says in words what one of the engine's own exit statuses means; empty for a program's.
func Status(exit int) string {
	switch exit {
	case ExitEngine:
		return "the engine could not make it"
	case ExitNoStart:
		return "its program cannot be started, or a port it publishes is in use"
	case ExitNoWord:
		return "its program is not in the image"
	}
	return ""
}

// absent and inUse know the two answers that are no failure of a removal.
func absent(out string) bool {
	low := strings.ToLower(out)
	for _, w := range []string{"no such", "image not known", "network not found", "not found", "no container with"} {
		if strings.Contains(low, w) {
			return true
		}
	}
	return false
}

func inUse(exit int, out string) bool {
	low := strings.ToLower(out)
	return exit == 2 || strings.Contains(low, "being used") || strings.Contains(low, "in use") || strings.Contains(low, "has active endpoints")
}

func lastLine(out string) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	s := strings.TrimSpace(lines[len(lines)-1])
	s = strings.TrimPrefix(s, "Error: ")
	if len(s) > 300 {
		s = s[:300] + "…"
	}
	return s
}
