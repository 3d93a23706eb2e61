// Package diagnose gathers what a maintainer needs of this machine into one archive (OPS-5): what show says,
// the declaration held, the store in numbers, the journal, the packet filter, the links, systemd's view, and
// versions; secrets masked, which are known here: the node's own keys, and what its declarations sealed to
// it. It reads, with the daemon up or down, and changes nothing.
package diagnose

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"mesh/agent/state"
	"mesh/shared/clock"
	"mesh/shared/credential"
	"mesh/shared/diagnosis"
	"mesh/shared/subject"
)

// The numbers of what is gathered.
const (
	journalLines = 3000
	kernelLines  = 200
	pastLines    = 200
)

// Config says where things are.
type Config struct {
	// Store is the path of the agent's store, Credential of the node's, Root where paths begin.
	Store, Credential, Root string
	// Show gives what "mesh-agent show --json" prints.
	Show func(context.Context) (any, error)
	// Foreign gives what "mesh-agent firewall read --json" prints; nil for nothing.
	Foreign func(context.Context) (any, error)
	Version string
	Clock   clock.Clock
}

// Write writes the archive to w.
func Write(ctx context.Context, w io.Writer, c Config) error {
	g := gatherer{Config: c}
	g.read(ctx)
	name := "mesh-agent"
	if g.cred.Name != "" {
		name += "-" + g.cred.Name
	}
	a := diagnosis.New(w, name, diagnosis.NewMask(g.secrets()...), c.Clock)
	a.JSON(ctx, "show.json", "what mesh-agent show says", c.Show)
	a.JSON(ctx, "declaration.json", "the declaration held, without secrets and contents of files", g.declaration)
	a.JSON(ctx, "state.json", "the agent's store: how much is in it, and its last entries", g.state)
	a.JSON(ctx, "credential.json", "who this node is and where its bus is", g.identity)
	a.Commands(ctx, "versions.txt", "versions", []string{"echo", "mesh-agent " + c.Version}, []string{"uname", "-a"}, []string{"cat", filepath.Join(c.Root, "etc/os-release")},
		[]string{"systemctl", "--version"}, []string{"nft", "--version"}, []string{"podman", "--version"}, []string{"docker", "--version"})
	a.Commands(ctx, "journal-mesh.txt", "the last lines of mesh's units", []string{"journalctl", "--no-pager", "--output=short-iso-precise", "--lines=" + fmt.Sprint(journalLines), "--unit=mesh-agent.service", "--unit=mesh-*"})
	a.Commands(ctx, "journal-kernel.txt", "the kernel's last lines", []string{"journalctl", "--no-pager", "--output=short-iso-precise", "--dmesg", "--lines=" + fmt.Sprint(kernelLines)})
	a.Commands(ctx, "systemd.txt", "systemd's view", []string{"systemctl", "is-system-running"}, []string{"systemctl", "list-units", "--all", "--no-pager", "--plain", "mesh-*"},
		[]string{"systemctl", "--failed", "--no-pager", "--plain"}, []string{"systemctl", "show", "mesh-agent.service"}, []string{"systemctl", "status", "--no-pager", "--full", "--lines=0", "mesh-*"})
	a.Part(ctx, "units.txt", "the text of mesh's units", g.units)
	a.Commands(ctx, "firewall.nft", "every packet filter rule of nftables", []string{"nft", "list", "ruleset"})
	if c.Foreign != nil {
		a.JSON(ctx, "firewall.json", "what refuses traffic here, and whose it is", c.Foreign)
	}
	a.Commands(ctx, "network.txt", "links, addresses, routes", []string{"ip", "-details", "address"}, []string{"ip", "-4", "route", "show", "table", "all"}, []string{"ip", "-6", "route", "show", "table", "all"}, []string{"ip", "rule"}, []string{"ss", "-tulnp"})
	a.Commands(ctx, "machine.txt", "disk, memory, load, clock", []string{"df", "-h"}, []string{"df", "-i"}, []string{"free", "-m"}, []string{"uptime"}, []string{"timedatectl"}, []string{"ps", "-o", "pid,rss,etimes,stat,comm", "-C", "mesh-agent"})
	a.Commands(ctx, "containers.txt", "containers of mesh", []string{"podman", "ps", "--all", "--filter", "label=mesh.module", "--no-trunc"})
	a.Part(ctx, "folders.txt", "what the agent keeps on disk", func(context.Context) ([]byte, error) { return diagnosis.Tree(filepath.Dir(c.Store)) })
	if g.broken != nil {
		a.Part(ctx, "secrets-not-read.txt", "why not every secret is known by its value", func(context.Context) ([]byte, error) { return nil, g.broken })
	}
	return a.Close()
}

// gatherer is what several parts need.
type gatherer struct {
	Config
	cred     credential.File
	accepted []state.Accepted
	broken   error
}

// read reads who this node is and what it holds. What cannot be read is said in a part.
func (g *gatherer) read(ctx context.Context) {
	var errs []error
	b, err := os.ReadFile(g.Credential)
	if err == nil {
		err = json.Unmarshal(b, &g.cred) // of a rotten one, too, what is there must be masked
	}
	errs = append(errs, err)
	if store, err := g.open(ctx); err != nil {
		errs = append(errs, err)
	} else {
		g.accepted, err = store.Accepted(ctx)
		errs = append(errs, err, store.Close())
	}
	g.broken = errors.Join(errs...)
}

func (g *gatherer) open(ctx context.Context) (*state.Store, error) {
	if _, err := os.Stat(g.Store); err != nil {
		return nil, err
	}
	return state.OpenReadOnly(ctx, g.Store, g.Clock)
}

// secrets are the values that are known to be secret on this machine.
func (g *gatherer) secrets() []string {
	out := []string{string(g.cred.Seed), string(g.cred.Curve)}
	for _, a := range g.accepted {
		var d struct {
			Modules []struct {
				Name     subject.Module               `json:"name"`
				Secrets  map[string]credential.Sealed `json:"secrets"`
				Settings map[string]string            `json:"settings"`
			} `json:"modules"`
		}
		_, body, _ := bytes.Cut(a.Signed, []byte{'\n'})
		if err := json.Unmarshal(body, &d); err != nil {
			g.broken = errors.Join(g.broken, fmt.Errorf("declaration %d: %w", a.Seq, err))
			continue
		}
		for _, m := range d.Modules {
			for key, sealed := range m.Secrets {
				v, err := sealed.Open(g.cred.Curve, subject.Node(g.cred.Name), m.Name, key)
				if err != nil {
					g.broken = errors.Join(g.broken, fmt.Errorf("secret %s of %s: %w", key, m.Name, err))
				}
				out = append(out, v)
			}
			for key, v := range m.Settings {
				if diagnosis.SecretName(key) {
					out = append(out, v)
				}
			}
		}
	}
	return out
}

// declaration is the one held. The signature is no secret, and of no use here.
func (g *gatherer) declaration(context.Context) (any, error) {
	if len(g.accepted) == 0 {
		return "none is held", nil
	}
	_, body, _ := bytes.Cut(g.accepted[0].Signed, []byte{'\n'})
	var v any
	if err := json.Unmarshal(body, &v); err != nil {
		return nil, err
	}
	return bare(v, ""), nil
}

// bare is v without secrets and without the contents of files: a maintainer needs neither.
func bare(v any, name string) any {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			if name == "secrets" {
				v[k] = diagnosis.Masked()
				continue
			}
			v[k] = bare(x, k)
		}
	case []any:
		for i, x := range v {
			v[i] = bare(x, name)
		}
	case string:
		switch {
		case name == "content":
			sum := sha256.Sum256([]byte(v))
			return fmt.Sprintf("(%d bytes, SHA-256 %s)", len(v), hex.EncodeToString(sum[:]))
		case diagnosis.SecretName(name):
			return diagnosis.Masked()
		}
	}
	return v
}

// state is the store in numbers.
func (g *gatherer) state(ctx context.Context) (any, error) {
	store, err := g.open(ctx)
	if err != nil {
		return nil, err
	}
	type row struct {
		ID, Module string
		Phase      state.Phase
		Made, Keep bool
	}
	var out struct {
		Notes    []string     `json:"notes"`
		Outbox   int          `json:"outbox"`
		Dropped  uint64       `json:"dropped"`
		Accepted []uint64     `json:"accepted"`
		Ledger   []row        `json:"ledger"`
		Modules  any          `json:"modules"`
		History  []state.Past `json:"history"`
		Problems any          `json:"problems"`
		Drift    any          `json:"drift"`
	}
	out.Notes, out.Outbox, out.Modules = store.Notes(), store.Depth(), store.Modules()
	for _, a := range g.accepted {
		out.Accepted = append(out.Accepted, a.Seq)
	}
	rows, errLedger := store.Ledger(ctx)
	for _, r := range rows {
		out.Ledger = append(out.Ledger, row{r.ID, r.Module, r.Phase, r.Made, r.Keep})
	}
	var errDropped, errPast, errProblems, errDrift error
	out.Dropped, errDropped = store.Dropped(ctx)
	out.History, errPast = store.History(ctx, pastLines)
	out.Problems, errProblems = store.Problems(ctx, pastLines)
	out.Drift, errDrift = store.Drift(ctx, pastLines)
	return out, errors.Join(errLedger, errDropped, errPast, errProblems, errDrift, store.Close())
}

// identity is the credential without its keys.
func (g *gatherer) identity(context.Context) (any, error) {
	return struct {
		Mesh, Kind, Name string
		Addresses        []string
		Pin              string
	}{g.cred.Mesh, string(g.cred.Kind), g.cred.Name, g.cred.Bus.Addresses, g.cred.Bus.Pin}, nil
}

// units are the texts of mesh's units.
func (g *gatherer) units(context.Context) ([]byte, error) {
	folder := filepath.Join(g.Root, "etc/systemd/system")
	files, err := filepath.Glob(filepath.Join(folder, "mesh-*"))
	if err != nil {
		return nil, err
	}
	slices.Sort(files)
	var out bytes.Buffer
	var errs []error
	for _, f := range files {
		if st, err := os.Stat(f); err != nil || !st.Mode().IsRegular() {
			continue // a drop-in's folder, or gone by now
		}
		b, err := diagnosis.ReadFile(f)
		errs = append(errs, err)
		fmt.Fprintf(&out, "# %s\n%s\n", f, b)
	}
	return out.Bytes(), errors.Join(errs...)
}
