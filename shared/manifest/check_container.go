package manifest

import (
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

var (
	// A registry has a dot, a port or the name localhost: without one, engines ask where to look or guess.
	imageRef   = late(`^([a-z0-9-]+(\.[a-z0-9-]+)+(:[0-9]{1,5})?|[a-z0-9.-]+:[0-9]{1,5}|localhost)(/[a-z0-9]+([._-]+[a-z0-9]+)*)+@sha256:[0-9a-f]{64}$`)
	engineName = late(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$`)
	userInside = late(`^[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?$`)
	capability = late(`^[A-Za-z_]+$`)
	signal     = late(`^(SIG)?[A-Z][A-Z0-9]*([+-][0-9]+)?$`)
	labelKey   = late(`^[A-Za-z0-9][A-Za-z0-9._/-]*$`)
	span       = late(`^[1-9][0-9]{0,6}(ms|s|m|h)$`)
	bytesOf    = late(`^[1-9][0-9]{0,11}[KMG]?$`)
	cpusOf     = late(`^([1-9][0-9]{0,3}|0)(\.[0-9]{1,3})?$`)
	sysctlKey  = late(`^[a-z0-9_]+([./][A-Za-z0-9_:@*-]+)+$`)
	kernelName = late(`^[A-Za-z0-9_-]{1,55}$`)
)

// ownNetworks are the words for a network that is no network of the module.
var ownNetworks = []string{HostNetwork, NoNetwork}

// The words for the machine's own network, and for none at all.
const (
	HostNetwork = "host"
	NoNetwork   = "none"
)

func (c *checker) containers() {
	for _, name := range slices.Sorted(maps.Keys(c.m.Run.Containers)) {
		c.container(name, c.m.Run.Containers[name])
	}
	for _, name := range slices.Sorted(maps.Keys(c.m.Run.Networks)) {
		n, at := c.m.Run.Networks[name], Join("run.networks", name)
		c.engineName(at, n.Name)
		if slices.Contains(ownNetworks, name) {
			c.say(at, "%s is a word of its own; expected another name", name)
		}
		if p, err := netip.ParsePrefix(n.Subnet); n.Subnet != "" && (err != nil || p.Masked() != p || p.Bits() == 0) {
			c.say(at+".subnet", "%q: expected a range of addresses, such as 10.89.7.0/24", clip(n.Subnet))
		}
		if n.External && (n.Subnet != "" || n.Internal || n.IPv6) {
			c.say(at+".external", "somebody else makes it, so only its name can be said here")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.m.Run.Volumes)) {
		c.engineName(Join("run.volumes", name), c.m.Run.Volumes[name].Name)
	}
}

func (c *checker) engineName(at, name string) {
	if name != "" && !engineName().MatchString(name) {
		c.say(at+".name", "%q: expected letters, digits and _ . -, a letter or digit first, at most 63", clip(name))
	}
}

func (c *checker) container(name string, k Container) {
	at := Join("run.containers", name)
	c.engineName(at, k.Name)
	c.imageWord(at+".image", k.Image)
	for i, a := range k.Command {
		c.word(Index(at+".command", i), a)
	}
	for i, a := range k.Entrypoint {
		c.word(Index(at+".entrypoint", i), a)
	}
	c.env(at, k.Env)
	c.envOfEngine(at, k.Env)
	for i, f := range k.EnvFiles {
		c.absolute(Index(at+".env-files", i), f)
	}
	c.form(at+".user", k.User, userInside().MatchString, "a user or user:group, by name or number")
	if k.Directory != "" {
		c.absolute(at+".directory", k.Directory)
	}
	for i, w := range k.Capabilities.Add {
		c.form(Index(at+".capabilities.add", i), w, capability().MatchString, "a capability such as NET_ADMIN")
	}
	for i, w := range k.Capabilities.Drop {
		c.form(Index(at+".capabilities.drop", i), w, capability().MatchString, "a capability such as NET_RAW, or all")
	}
	for i, d := range k.Devices {
		c.device(Index(at+".devices", i), d)
	}
	c.form(at+".limits.memory", string(k.Limits.Memory), bytesOf().MatchString, sizeWant)
	c.form(at+".limits.cpus", string(k.Limits.CPUs), cpusOf().MatchString, "a number of processors, such as 1.5")
	c.number(at+".limits.pids", k.Limits.Pids, 1, 1<<22)
	c.form(at+".stop-signal", k.StopSignal, signal().MatchString, "a signal such as SIGTERM")
	c.span(at+".stop-timeout", k.StopTimeout)
	for _, l := range slices.Sorted(maps.Keys(k.Labels)) {
		switch {
		case !labelKey().MatchString(l) || control(k.Labels[l]):
			c.say(Join(at+".labels", l), "expected a label of letters, digits and . _ / -, and one line of text")
		case strings.HasPrefix(l, "mesh."):
			c.say(Join(at+".labels", l), "labels that begin with mesh. are mesh's own; expected another")
		}
	}
	c.number(at+".log.lines", k.Log.Lines, 1, 10_000_000)
	c.span(at+".log.per", k.Log.Per)
	c.ports(at, k)
	c.mounts(at, k)
	c.joins(at, k)
	c.order(at, name, k.After, k.Replaces)
	c.health(at, k.Health)
}

const sizeWant = "a number of bytes, such as 512M"

func (c *checker) imageWord(at, word string) {
	switch {
	case word == "": // said already
	case word == Built || strings.HasPrefix(word, Built+":"):
		if _, ok := c.m.BuiltImage(word); !ok {
			c.say(at, "%q is no image of build.images%s", clip(word), didYouMean(strings.TrimPrefix(word, Built+":"), slices.Sorted(maps.Keys(c.m.Build.Images))))
		}
	case !imageRef().MatchString(word):
		c.say(at, "%q: expected built, built:<name>, or an image with its registry and digest and no tag, such as docker.io/library/redis@sha256:…", clip(word))
	}
}

// word checks one argument.
func (c *checker) word(at, s string) {
	switch {
	case control(s):
		c.say(at, "holds a control character; expected one line of text")
	case strings.Contains(s, "${setting:") || strings.Contains(s, "${secret:") || strings.Contains(s, "${node:"):
		c.say(at, "placeholders are filled in env and in the content of files and units, not here")
	}
}

// envOfEngine refuses secrets in variables that the engine's own program reads: it is given them too.
func (c *checker) envOfEngine(at string, env map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(env)) {
		own := slices.Contains([]string{"PATH", "HOME", "TMPDIR", "USER", "SHELL", "NOTIFY_SOCKET"}, name)
		for _, prefix := range []string{"LD_", "CONTAINER", "PODMAN_", "DOCKER_", "XDG_", "DBUS_", "BUILDAH_", "REGISTRY_", "STORAGE_", "GO"} {
			own = own || strings.HasPrefix(name, prefix)
		}
		if own && c.secretIn(env[name]) {
			c.say(Join(at+".env", name), "the engine reads this variable itself, so no secret can be in it; put the secret into a file")
		}
	}
}

func (c *checker) absolute(at, p string) {
	if !path.IsAbs(p) || path.Clean(p) != p || control(p) || len(p) > 4000 {
		c.say(at, "%q: expected an absolute path without . , .. , doubled slashes or one at the end", clip(p))
	}
}

// colonless is absolute for a path that stands among others with colons or commas between them.
func (c *checker) colonless(at, p string) {
	c.absolute(at, p)
	if strings.ContainsAny(p, ":,") {
		c.say(at, "%q: the engine takes no colon or comma in it", clip(p))
	}
}

func (c *checker) form(at, s string, ok func(string) bool, want string) {
	if s != "" && !ok(s) {
		c.say(at, "%q: expected %s", clip(s), want)
	}
}

func (c *checker) number(at string, n Number, least, most int) {
	if n == "" {
		return
	}
	if i, err := strconv.Atoi(string(n)); err != nil || i < least || i > most || strconv.Itoa(i) != string(n) {
		c.say(at, "%q: expected a whole number from %d to %d", clip(string(n)), least, most)
	}
}

func (c *checker) span(at string, d Duration) {
	c.form(at, string(d), span().MatchString, "a time such as 30s, 5m or 1h")
}

// within checks a time span that has bounds.
func (c *checker) within(at string, d Duration, least, most time.Duration) {
	c.span(at, d)
	if !span().MatchString(string(d)) {
		return
	}
	if t, err := time.ParseDuration(string(d)); err != nil || t < least || t > most {
		c.say(at, "%q: expected a time from %v to %v", clip(string(d)), least, most)
	}
}

func (c *checker) device(at, d string) {
	parts := strings.Split(d, ":")
	ok := len(parts) <= 3 && strings.HasPrefix(parts[0], "/dev/")
	for i, p := range parts {
		last := i > 0 && i == len(parts)-1 && p != "" && strings.Trim(p, "rwm") == ""
		ok = ok && !control(p) && (last || i < 2 && path.IsAbs(p) && path.Clean(p) == p)
	}
	if !ok {
		c.say(at, "%q: expected /dev/<name>, with :/dev/<name inside> and :rwm if wanted", clip(d))
	}
}

func (c *checker) ports(at string, k Container) {
	if len(k.Ports) > 0 && (slices.Contains(k.Networks, HostNetwork) || slices.Contains(k.Networks, NoNetwork)) {
		c.say(at+".ports", "a container on the network host or none publishes nothing")
	}
	seen := map[string]bool{}
	for i, p := range k.Ports {
		here := Index(at+".ports", i)
		c.number(here+".container", p.Container, 1, 65535)
		c.number(here+".publish", p.Publish, 1, 65535)
		if _, err := netip.ParseAddr(p.Address); p.Address != "" && err != nil {
			c.say(here+".address", "%q: expected an address, such as 127.0.0.1", clip(p.Address))
		}
		key := p.Word()
		if seen[key] {
			c.say(here, "%s stands here twice", clip(key))
		}
		seen[key] = true
	}
}

func (c *checker) mounts(at string, k Container) {
	seen := map[string]bool{}
	twice := func(here, p string) {
		if seen[p] {
			c.say(here+".at", "%s stands here twice", clip(p))
		}
		seen[p] = true
	}
	for i, v := range k.Volumes {
		here := Index(at+".volumes", i)
		switch {
		case (v.Name == "") == (v.Path == ""):
			c.say(here, "expected either name, for a volume, or path, for a folder of the machine")
		case v.Path != "":
			c.colonless(here+".path", v.Path)
		default:
			named(c, here+".name", "volume", map[string]bool{v.Name: true})
		}
		if v.At != "" {
			c.colonless(here+".at", v.At)
		}
		twice(here, v.At)
	}
	for i, t := range k.Tmpfs {
		here := Index(at+".tmpfs", i)
		if t.At != "" {
			c.colonless(here+".at", t.At)
		}
		c.form(here+".size", string(t.Size), bytesOf().MatchString, sizeWant)
		twice(here, t.At)
	}
}

func (c *checker) joins(at string, k Container) {
	all := slices.Sorted(maps.Keys(c.m.Run.Networks))
	for i, n := range k.Networks {
		here := Index(at+".networks", i)
		switch {
		case slices.Contains(ownNetworks, n) && len(k.Networks) > 1:
			c.say(here, "%s stands alone", n)
		case !slices.Contains(ownNetworks, n) && !slices.Contains(all, n):
			c.say(here, "%q is not under run.networks; expected one of it, host or none%s", clip(n), didYouMean(n, all))
		case slices.Contains(k.Networks[:i], n):
			c.say(here, "%q stands here twice", n)
		}
	}
}

func (c *checker) health(at string, h *Health) {
	if h == nil {
		return
	}
	at += ".health"
	ways := 0
	for _, is := range []bool{h.HTTP != "", h.TCP != "", len(h.Command) > 0, h.Systemd} {
		if is {
			ways++
		}
	}
	if ways != 1 {
		c.say(at, "expected exactly one of http, tcp, command and systemd")
	}
	if u, err := url.Parse(h.HTTP); h.HTTP != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		c.say(at+".http", "%q: expected an address such as http://127.0.0.1:8080/healthz", clip(h.HTTP))
	}
	if h.TCP != "" {
		host, port, ok := strings.Cut(h.TCP, ":")
		if i := strings.LastIndexByte(h.TCP, ':'); ok {
			host, port = h.TCP[:i], h.TCP[i+1:]
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 || host == "" || control(host) {
			c.say(at+".tcp", "%q: expected host:port, such as 127.0.0.1:5432", clip(h.TCP))
		}
	}
	for i, w := range h.Command {
		c.word(Index(at+".command", i), w)
	}
	c.within(at+".every", h.Every, time.Second, time.Hour)
	c.within(at+".within", h.Within, time.Second, 24*time.Hour)
	c.within(at+".timeout", h.Timeout, 100*time.Millisecond, time.Minute)
	c.number(at+".retries", h.Retries, 1, 100)
}

// kernel checks groups, sysctls and kernel modules.
func (c *checker) kernel() {
	for _, name := range slices.Sorted(maps.Keys(c.m.Run.Groups)) {
		at := Join("run.groups", name)
		if !userName().MatchString(name) {
			c.say(at, "expected the name of a group: a-z, 0-9, _ and -, at most 31 characters, no digit first")
		} else if slices.Contains(usersOfMachine, name) {
			c.say(at, "every machine has this group; it need not be declared")
		}
	}
	for _, key := range slices.Sorted(maps.Keys(c.m.Run.Sysctls)) {
		at, value := Join("run.sysctls", key), c.m.Run.Sysctls[key]
		switch {
		case !sysctlKey().MatchString(key) || strings.Contains(key, "..") || strings.Contains(key, "*"):
			c.say(at, "expected the name of a kernel setting, such as net.ipv4.ip_forward")
		case value == "" || control(strings.ReplaceAll(value, "\t", "")) || len(value) > 1000:
			c.say(at, "expected a value in one line")
		}
	}
	for i, name := range c.m.Run.KernelModules {
		at := Index("run.kernel-modules", i)
		c.form(at, name, kernelName().MatchString, "the name of a kernel module, such as wireguard")
		if name == "" || slices.Contains(c.m.Run.KernelModules[:i], name) {
			c.say(at, "%s", fmt.Sprintf("%q is empty or stands here twice", clip(name)))
		}
	}
}
