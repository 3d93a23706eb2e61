package filter_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mesh/agent/boot"
	"mesh/agent/filter"
	"mesh/shared/refusal"
	"mesh/testbus/netlab"
)

func (r *rig) bootText() string {
	r.t.Helper()
	b, err := os.ReadFile(filepath.Join(r.root, boot.Path))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		r.t.Fatal(err)
	}
	return string(b)
}

func (r *rig) tables() []string {
	r.t.Helper()
	var out []string
	for l := range strings.Lines(r.lab.Host.Run("", "nft", "list", "tables", "inet")) {
		out = append(out, strings.TrimPrefix(strings.TrimSpace(l), "table inet "))
	}
	slices.Sort(out)
	return out
}

// NET-10: what was confirmed stands at the next boot, loaded by nft alone, until the agent's own does.
func TestBootTable(t *testing.T) {
	r := newRig(t)
	r.apply(want("22/tcp", "4222/tcp"), filter.Applied)
	first := r.bootText()
	cut := r.start(t.Context(), want("22/tcp"))
	if r.bootText() != first {
		t.Error("what is being tried would stand at boot")
	}
	if err := r.pass(cut); refusal.Of(err) == nil || r.bootText() != first {
		t.Errorf("%v, or what was refused would stand at boot", err)
	}
	// A boot: no table, no agent; the unit has nft load the file, twice as by a restart of it.
	if out, err := r.lab.Host.Try("", "nft", "delete", "table", "inet", "mesh"); err == nil {
		t.Errorf("anybody may delete the agent's table: %s", out)
	}
	r.driver.Close()
	r.lab.Host.Run("", "nft", "delete", "table", "inet", "mesh") // the documented way back in
	r.open("22", "80", "4222")
	for range 2 {
		r.lab.Host.Run(r.bootText(), "nft", "-f", "-")
	}
	r.open("22", "4222")
	if got := r.tables(); !slices.Equal(got, []string{"mesh-boot"}) {
		t.Errorf("tables %q", got)
	}
	r.restart()
	if err := r.filter.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := r.tables(); !slices.Equal(got, []string{"mesh"}) {
		t.Errorf("the agent took over with the tables %q", got)
	}
	r.open("22", "4222")
	info := func() os.FileInfo {
		i, err := os.Stat(filepath.Join(r.root, boot.Path))
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	before := info()
	r.apply(want("22/tcp", "4222/tcp"), filter.Unchanged)
	if !os.SameFile(before, info()) {
		t.Error("the file was written anew with what it held")
	}
	r.apply(want("22/tcp", "80/tcp", "4222/tcp"), filter.Applied)
	if text := r.bootText(); os.SameFile(before, info()) || !strings.Contains(text, "80") || info().Mode().Perm() != 0o600 {
		t.Errorf("the file is %v %s", info().Mode(), text)
	}
	if s := r.filter.State(); s.BootWhy != "" {
		t.Errorf("it says %q", s.BootWhy)
	}
	if err := os.Remove(filepath.Join(r.root, "/etc/systemd/system/sysinit.target.wants/mesh-filter.service")); err != nil {
		t.Fatal(err)
	}
	r.apply(want("22/tcp", "4222/tcp"), filter.Applied)
	if s := r.filter.State(); !strings.Contains(s.BootWhy, "not enabled") || !s.Loaded {
		t.Errorf("nothing loads it at boot: %+v", s)
	}
	if err := r.filter.Remove(t.Context()); err != nil || r.bootText() != "" {
		t.Errorf("after Remove: %v, %q", err, r.bootText())
	}
}

// The store is lost: what stands at boot is remembered. That is lost too: what is in the kernel is kept,
// whatever is tried. Nothing opens.
func TestLostMemoryOpensNothing(t *testing.T) {
	r := newRig(t)
	r.apply(want("22/tcp", "4222/tcp"), filter.Applied)
	r.store.values = map[string][]byte{}
	r.restart()
	if err := r.filter.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := r.filter.State(); !s.Loaded || len(s.Rules) != 2 {
		t.Errorf("remembered: %+v", s)
	}
	r.apply(want("22/tcp", "4222/tcp"), filter.Unchanged)

	r.store.values = map[string][]byte{}
	if err := r.boot.Remove(); err != nil {
		t.Fatal(err)
	}
	r.restart()
	if err := r.filter.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.open("22", "4222")
	if err := r.pass(r.start(t.Context(), want("22/tcp", "80/tcp"))); refusal.Of(err) == nil {
		t.Errorf("rules that cut the bus off: %v", err)
	}
	r.open("22", "4222")
	if got := r.tables(); !slices.Equal(got, []string{"mesh"}) {
		t.Errorf("tables %q", got)
	}
	done := r.start(t.Context(), want("22/tcp"))
	r.driver.Close() // killed while it tries
	r.open("22", "4222")
	r.restart()
	if err := r.filter.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.pass(done); err == nil {
		t.Error("the killed agent is content")
	}
	r.open("22", "4222")
	r.apply(want("22/tcp", "80/tcp", "4222/tcp"), filter.Applied)
	r.open("22", "80", "4222")
}

// NET-15: what a person declares inside is in force, and is outside again when the word is taken back. The
// way of the default route cannot be declared inside, nor can the tunnel.
func TestInside(t *testing.T) {
	const card = "enp7s0"
	r := newRig(t)
	r.lab.Host.Run("", "ip", "link", "set", netlab.Tunnel, "down")
	r.lab.Host.Run("", "ip", "link", "set", netlab.Tunnel, "name", card)
	r.lab.Host.Run("", "ip", "link", "set", card, "up")
	r.setLinks(filter.Links{Uplinks: []string{netlab.Uplink}, Outside: []string{card, netlab.Uplink}})
	peer := func(open bool) {
		t.Helper()
		limit := never
		if open {
			limit = soon
		}
		if err := r.lab.Peer.Ask("tcp", netlab.HostTunnel4+":80", limit); (err == nil) != open {
			t.Errorf("over the card: %v, want open %v", err, open)
		}
	}
	with := func(inside ...string) filter.Wanted {
		w := want("22/tcp", "4222/tcp")
		w.Inside = inside
		return w
	}
	r.apply(with(), filter.Applied)
	peer(false)
	r.apply(with(card), filter.Applied)
	peer(true)
	if s := r.filter.State(); !slices.Equal(s.Outside, []string{netlab.Uplink}) || len(s.NotInside) != 0 || !strings.Contains(r.bootText(), card) {
		t.Errorf("state %+v", s)
	}
	r.restart()
	if err := r.filter.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	peer(true)
	r.apply(with(card), filter.Unchanged)
	// It becomes the way of a default route: outside, whatever was said.
	r.setLinks(filter.Links{Uplinks: []string{card, netlab.Uplink}, Outside: []string{card, netlab.Uplink}})
	r.apply(with(card), filter.Unchanged)
	peer(false)
	if s := r.filter.State(); !slices.Equal(s.NotInside, []string{card}) || !s.Loaded {
		t.Errorf("state %+v", s)
	}
	r.setLinks(filter.Links{Uplinks: []string{netlab.Uplink}, Outside: []string{card, netlab.Uplink}})
	r.apply(with(card), filter.Unchanged)
	peer(true)
	r.apply(with(netlab.Uplink), filter.Applied)
	peer(false)
	r.open("22", "4222")
	if s := r.filter.State(); !slices.Equal(s.NotInside, []string{netlab.Uplink}) {
		t.Errorf("state %+v", s)
	}
	tunnel := with(card)
	tunnel.Tunnel = []string{card}
	r.apply(tunnel, filter.Applied)
	peer(false)
	r.apply(with(card), filter.Applied)
	peer(true)

	// The lock-out by a wrong inside: the bus is reached over the card, and the word that opened it is taken back.
	r.setProbe(func(context.Context) error { return r.lab.Peer.Ask("tcp", netlab.HostTunnel4+":80", never) })
	if err := r.pass(r.start(t.Context(), with("lan9"))); refusal.Of(err) == nil {
		t.Errorf("a wrong inside: %v", err)
	}
	peer(true)
	r.setProbe(func(context.Context) error { return nil })
	w := with()
	w.Seq = 2
	r.apply(w, filter.Applied)
	peer(false)
	if strings.Contains(r.bootText(), card) && !strings.Contains(r.bootText(), `"outside":["`+card) {
		t.Errorf("still inside at boot: %s", r.bootText())
	}
}
