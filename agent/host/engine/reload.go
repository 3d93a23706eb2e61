package engine

import (
	"context"
	"net/netip"
	"strconv"
	"strings"
)

// ReloadNetwork has the engine write its packet filter rules for a running container anew: they are gone after
// somebody's "nft flush ruleset", and podman does not notice (facts/host.md §4.7). Docker has no such word: its
// proxy answers meanwhile, and its own restart writes them.
func (e *Engine) ReloadNetwork(ctx context.Context, container string) error {
	if e.kind != Podman {
		return nil
	}
	_, err := e.do(ctx, "reload-"+container, "network", "reload", container)
	return err
}

// Published is a port that a running container publishes.
type Published struct {
	Container string
	// Protocol is "tcp", "udp" or "sctp".
	Protocol string
	// Address is the one it is published on, unspecified for all.
	Address netip.Addr
	Port    uint16
}

// mostPublished bounds Published.
const mostPublished = 10000

// Published are the ports that podman's running containers publish; docker's are not asked for. It starts a
// process.
func (e *Engine) Published(ctx context.Context) ([]Published, error) {
	if e.kind != Podman {
		return nil, nil
	}
	out, err := e.do(ctx, "published", "ps", "--format", "{{.Names}}\t{{.Ports}}")
	if err != nil {
		return nil, err
	}
	return parsePublished(out), nil
}

// parsePublished reads lines of "web	0.0.0.0:8080->80/tcp, 0.0.0.0:9000-9010->9000-9010/udp".
func parsePublished(out string) (all []Published) {
	for line := range strings.Lines(out) {
		name, ports, ok := strings.Cut(strings.TrimSpace(line), "\t")
		if !ok {
			continue
		}
		for part := range strings.SplitSeq(ports, ",") {
			from, to, ok := strings.Cut(strings.TrimSpace(part), "->")
			at := strings.LastIndexByte(from, ':')
			if !ok || at < 0 {
				continue
			}
			p := Published{Container: name, Address: netip.IPv4Unspecified()}
			if a, err := netip.ParseAddr(strings.Trim(from[:at], "[]")); err == nil {
				p.Address = a
			}
			_, p.Protocol, _ = strings.Cut(to, "/")
			first, last, ranged := strings.Cut(from[at+1:], "-")
			if !ranged {
				last = first
			}
			low, errLow := strconv.ParseUint(first, 10, 16)
			high, errHigh := strconv.ParseUint(last, 10, 16)
			if errLow != nil || errHigh != nil {
				continue
			}
			for port := low; port <= high && len(all) < mostPublished; port++ {
				p.Port = uint16(port)
				all = append(all, p)
			}
		}
	}
	return all
}
