package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"path"
	"slices"

	"mesh/shared/refusal"
)

// Network is a network of the engine.
type Network struct {
	Name string
	// Subnet is its range of addresses; the zero Prefix for one that is free when it is made.
	Subnet netip.Prefix
	// Internal: no way out of the machine.
	Internal bool
	// IPv6: addresses of that family too.
	IPv6 bool
	// Labels are what it is marked with.
	Labels map[string]string
}

// Network is the network of that name as the machine has it; nil when it has none. known is false where
// files do not tell: of docker's only that it is there is seen, and podman may keep its networks elsewhere.
func (e *Engine) Network(name string) (n *Network, known bool, err error) {
	if e.kind == Docker {
		st, err := e.root.Stat(path.Join(bridges, Bridge(name)))
		if err != nil || !st.Exists {
			return nil, err == nil, err
		}
		return &Network{Name: name}, false, nil
	}
	b, err := e.root.Read(NetworkFile(name), maxRead)
	if errors.Is(err, fs.ErrNotExist) {
		folder, err := e.root.Stat(podmanNetworks)
		return nil, folder.Exists, err
	}
	if err != nil {
		return nil, false, err
	}
	n, err = parseNetwork(b)
	if err != nil {
		// Podman does not sync it: after a power cut it may be empty. Podman passes such a file over, and writes it
		// anew for the next network of the name.
		return nil, true, nil
	}
	return n, true, nil
}

// NetworkFile is where podman keeps the network of that name.
func NetworkFile(name string) string { return path.Join(podmanNetworks, name+".json") }

// NetworkPath is what is there as long as the network is: podman's file of it, docker's bridge.
func (e *Engine) NetworkPath(name string) string {
	if e.kind == Docker {
		return path.Join(bridges, Bridge(name))
	}
	return NetworkFile(name)
}

// Bridge is the link that docker is told to make for the network: its being there is what shows, without a
// question to the daemon, that the network is.
func Bridge(name string) string {
	sum := sha256.Sum256([]byte(name))
	return "mesh" + hex.EncodeToString(sum[:5]) // 14 of the 15 bytes a link's name may have
}

func parseNetwork(b []byte) (*Network, error) {
	var f struct {
		Name    string `json:"name"`
		Subnets []struct {
			Subnet netip.Prefix `json:"subnet"`
		} `json:"subnets"`
		IPv6     bool              `json:"ipv6_enabled"`
		Internal bool              `json:"internal"`
		Labels   map[string]string `json:"labels"`
	}
	if err := json.Unmarshal(b, &f); err != nil {
		return nil, fmt.Errorf("read a network: %w", err)
	}
	n := &Network{Name: f.Name, Internal: f.Internal, IPv6: f.IPv6, Labels: f.Labels}
	if len(f.Subnets) > 0 {
		n.Subnet = f.Subnets[0].Subnet
	}
	return n, nil
}

// Differs says in words what of want the network is not, or "". A subnet that nobody declared is not compared.
func (n *Network) Differs(want Network) string {
	switch {
	case want.Subnet.IsValid() && n.Subnet != want.Subnet:
		return fmt.Sprintf("its subnet is %v, declared %v", n.Subnet, want.Subnet)
	case n.Internal != want.Internal:
		return fmt.Sprintf("internal is %v, declared %v", n.Internal, want.Internal)
	case n.IPv6 != want.IPv6:
		return fmt.Sprintf("ipv6 is %v, declared %v", n.IPv6, want.IPv6)
	}
	return ""
}

// EnsureNetwork makes the network unless it is there. taken are ranges that are in use on the machine, as its
// routes say: the engine itself looks at addresses and at its own networks only, and would cut off what a
// route leads to (facts/host.md §4.7).
func (e *Engine) EnsureNetwork(ctx context.Context, n Network, taken []netip.Prefix) error {
	have, _, err := e.Network(n.Name)
	if err != nil || have != nil {
		return err
	}
	if n.Subnet.IsValid() {
		if by, ok := overlaps(n.Subnet, taken); ok {
			return refusal.New("network "+n.Name, fmt.Sprintf("its subnet %v is in use on this machine: %v leads there", n.Subnet, by), "declare another subnet, or none")
		}
	} else if n.Subnet, err = e.free(taken); err != nil {
		return err
	}
	args := []string{"network", "create", "--driver=bridge", "--subnet=" + n.Subnet.String()}
	if n.Internal {
		args = append(args, "--internal")
	}
	if n.IPv6 {
		args = append(args, "--ipv6")
	}
	if e.kind == Docker {
		args = append(args, "--opt=com.docker.network.bridge.name="+Bridge(n.Name))
	}
	exit, out, err := e.try(ctx, "network-"+n.Name, append(append(args, labels(n.Labels)...), n.Name)...)
	if err != nil || exit == 0 {
		return err
	}
	if have, _, look := e.Network(n.Name); look == nil && have != nil { // an earlier try was cut short
		return nil
	}
	return e.failed([]string{"network", "create", n.Name}, exit, out)
}

func labels(all map[string]string) (args []string) {
	for _, k := range slices.Sorted(maps.Keys(all)) {
		args = append(args, "--label="+k+"="+all[k])
	}
	return args
}

// pools are where networks without a declared subnet come from: podman's own default pool first, then what few
// use.
var pools = [...]netip.Prefix{netip.MustParsePrefix("10.89.0.0/16"), netip.MustParsePrefix("172.29.0.0/16"), netip.MustParsePrefix("192.168.0.0/16")}

// free is the first range of the pools that nothing on the machine uses.
func (e *Engine) free(taken []netip.Prefix) (netip.Prefix, error) {
	all, err := e.Networks() // docker's show as routes
	if err != nil {
		return netip.Prefix{}, err
	}
	used := slices.Clone(taken)
	for _, n := range all {
		used = append(used, n.Subnet)
	}
	for _, pool := range pools {
		base := pool.Addr().As4()
		for i := range 256 {
			base[2] = byte(i)
			p := netip.PrefixFrom(netip.AddrFrom4(base), 24)
			if _, in := overlaps(p, used); !in {
				return p, nil
			}
		}
	}
	return netip.Prefix{}, refusal.New("a network", fmt.Sprintf("no subnet of %v is free on this machine", pools), "declare a subnet")
}

// Networks are podman's networks, as far as files tell; docker's are not seen.
func (e *Engine) Networks() (out []Network, err error) {
	if e.kind == Docker {
		return nil, nil
	}
	names, err := e.root.List(podmanNetworks)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, name := range names {
		if path.Ext(name) != ".json" {
			continue
		}
		b, err := e.root.Read(path.Join(podmanNetworks, name), maxRead)
		if err != nil {
			continue // it goes at this moment
		}
		if n, err := parseNetwork(b); err == nil {
			out = append(out, *n)
		}
	}
	return out, err
}

// overlaps finds one of taken that shares addresses with p. A default route is no use of all addresses.
func overlaps(p netip.Prefix, taken []netip.Prefix) (netip.Prefix, bool) {
	for _, t := range taken {
		if t.IsValid() && t.Bits() > 0 && t.Overlaps(p) {
			return t, true
		}
	}
	return netip.Prefix{}, false
}

// RemoveNetwork removes the network; nil when there is none, and ErrInUse when a container still uses it.
func (e *Engine) RemoveNetwork(ctx context.Context, name string) error {
	return e.remove(ctx, "network", name)
}

// ErrInUse: something still uses what was to be removed.
var ErrInUse = errors.New("it is in use")

func (e *Engine) remove(ctx context.Context, kind, name string) error {
	exit, out, err := e.try(ctx, kind+"-"+name, kind, "rm", name)
	switch {
	case err != nil || exit == 0 || absent(out):
		return err
	case inUse(exit, out):
		return fmt.Errorf("remove %s %s: %w: %s", kind, name, ErrInUse, lastLine(out))
	}
	return e.failed([]string{kind, "rm", name}, exit, out)
}
