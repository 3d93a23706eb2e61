package engine

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"mesh/shared/refusal"
)

// ImageMade is when an image that is on the machine was made, and its ID.
func (e *Engine) ImageMade(ctx context.Context, word string) (made time.Time, id string, err error) {
	out, err := e.do(ctx, "image-"+short(word), "image", "inspect", "--format", `{{.ID}} {{json .Created}}`, word)
	if err != nil {
		return time.Time{}, "", err
	}
	fields := strings.Fields(lastLine(out))
	if len(fields) != 2 {
		return time.Time{}, "", fmt.Errorf("inspect image %s: %q is no answer", word, lastLine(out))
	}
	made, err = time.Parse(time.RFC3339Nano, strings.Trim(fields[1], `"`))
	if err != nil {
		return time.Time{}, "", fmt.Errorf("inspect image %s: %w", word, err)
	}
	return made.UTC(), "sha256:" + strings.TrimPrefix(fields[0], "sha256:"), nil
}

// OnNetwork are the containers on a network, running or not, sorted.
func (e *Engine) OnNetwork(ctx context.Context, network string) ([]string, error) {
	out, err := e.do(ctx, "on-"+network, "ps", "--all", "--filter", "network="+network, "--format", "{{.Names}}")
	if err != nil {
		return nil, err
	}
	names := strings.Fields(out)
	slices.Sort(names)
	return names, nil
}

// Stop asks a container to end, in its own way and time; nil when it is not there or does not run.
func (e *Engine) Stop(ctx context.Context, container string) error {
	exit, out, err := e.try(ctx, "stop-"+container, "stop", container)
	if err != nil || exit == 0 || absent(out) {
		return err
	}
	return e.failed([]string{"stop", container}, exit, out)
}

// Start starts a container that is there.
func (e *Engine) Start(ctx context.Context, container string) error {
	return e.outlive(ctx, "start-"+container, "start", container)
}

// outlive runs the engine's program so that a container it starts stays up when the program's unit ends: within one,
// which it knows by this variable, podman leaves what watches the container in the unit's own cgroup
// (libpod/oci_conmon_linux.go).
func (e *Engine) outlive(ctx context.Context, what string, args ...string) error {
	if e.kind != Podman {
		_, err := e.do(ctx, what, args...)
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, actBound)
	defer cancel()
	argv := append([]string{"/usr/bin/env", "-u", "INVOCATION_ID", e.program}, args...)
	exit, out, err := e.run.Run(bounded, UnitPrefix+unitSafe(what), argv)
	if err == nil && exit != 0 {
		err = e.failed(args, exit, out)
	}
	return err
}

// Rename gives a container another name, running or not.
func (e *Engine) Rename(ctx context.Context, container, to string) error {
	_, err := e.do(ctx, "rename-"+container, "rename", container, to)
	return err
}

// RemoveKeepingData ends and removes a container, and keeps every volume of it, named or not; nil when there is none.
func (e *Engine) RemoveKeepingData(ctx context.Context, container string) error {
	exit, out, err := e.try(ctx, "rm-"+container, "rm", "-f", container)
	if err != nil || exit == 0 || absent(out) {
		return err
	}
	return e.failed([]string{"rm", container}, exit, out)
}

// StartsAtBoot reports whether the engine, or a unit of its package, starts the container at boot as long as it
// bears its restart policy, also when it was stopped: podman-restart.service, docker's daemon.
func (c Container) StartsAtBoot() bool { return c.Restart == "always" || c.Restart == "unless-stopped" }

// SetRestart changes a container's restart policy; only docker can.
func (e *Engine) SetRestart(ctx context.Context, container, policy string) error {
	if e.kind != Docker {
		return fmt.Errorf("%s changes no restart policy", e.kind)
	}
	_, err := e.do(ctx, "update-"+container, "update", "--restart="+policy, container)
	return err
}

// CanMakeAgain reports whether MakeAgain could make it once it is gone.
func (e *Engine) CanMakeAgain(c Container) bool { return e.kind == Podman && again(c) != nil }

// MakeAgain makes a container that is gone as it was made before, started when it ran. Its volumes are those it
// had, as far as they have a name.
func (e *Engine) MakeAgain(ctx context.Context, c Container) error {
	words := again(c)
	if e.kind != Podman || words == nil {
		return refusal.New("container "+c.Name, "it is gone, and the engine did not keep by what it was made",
			"make it by hand: image "+c.ImageName+", mounts "+strings.Join(c.Mounts, " and "))
	}
	if c.Status == "running" {
		words = append([]string{"run", "--detach"}, words...)
	} else {
		words = append([]string{"create"}, words...)
	}
	if err := e.outlive(ctx, "again-"+c.Name, words...); err != nil {
		return err
	}
	now, err := e.Inspect(ctx, c.Name)
	if err == nil && now.Image != c.Image {
		err = refusal.Newf("container "+c.Name, "tag the image as it was, remove the container and give it back again",
			"it was made again by its own command, and %s is another image now (%s, it was %s)", c.ImageName, short(now.Image), short(c.Image))
	}
	return err
}

// flags are clusters of podman run's one-letter switches.
var flags = regexp.MustCompile(`^-[ditP]+$`)

// again are the words after "run" or "create" by which c was made, without those that only detach; nil when they
// are not known.
func again(c Container) []string {
	i := slices.IndexFunc(c.Command, func(w string) bool { return w == "run" || w == "create" })
	if i < 0 || i > 3 || i+1 == len(c.Command) {
		return nil
	}
	words := []string{}
	options := true
	for _, w := range c.Command[i+1:] {
		if options && !strings.HasPrefix(w, "-") && isImage(w, c) {
			options = false
		}
		if options {
			switch {
			case w == "--detach" || w == "--detach=true" || w == "--replace" || w == "--replace=true":
				continue
			case strings.HasPrefix(w, "--cidfile") || strings.HasPrefix(w, "--conmon-pidfile"):
				return nil // a unit's; it is the unit that makes it again
			case flags.MatchString(w):
				if w = strings.ReplaceAll(w, "d", ""); w == "-" {
					continue
				}
			}
		}
		words = append(words, w)
	}
	return words
}

// isImage reports whether a word of c's command is its image.
func isImage(w string, c Container) bool {
	return w == c.ImageName || strings.HasSuffix(c.ImageName, "/"+w) || strings.HasSuffix(c.ImageName, "/"+w+":latest") ||
		c.ImageName == w+":latest" || strings.HasPrefix(c.Image, "sha256:"+strings.TrimPrefix(w, "sha256:")) && len(w) >= 12
}

// IsNoContainer reports whether err says that there is no such container.
func IsNoContainer(err error) bool { return errors.Is(err, ErrNoContainer) }
