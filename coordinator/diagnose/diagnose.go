// Package diagnose gathers what a maintainer needs of the coordinator's machine into one archive (OPS-5):
// what its verbs say of the mesh, the records in numbers, the journal, systemd's view, the folder it keeps,
// and versions; secrets masked. The records hold secrets only sealed and public keys, so that what is known
// by its value are the coordinator's own keys. It reads, with the coordinator up or down, and changes
// nothing.
package diagnose

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"mesh/coordinator/records"
	"mesh/shared/clock"
	"mesh/shared/controller"
	"mesh/shared/diagnosis"
	"mesh/shared/subject"
)

// journalLines is how many lines of the journal are gathered.
const journalLines = 3000

// Config says where things are.
type Config struct {
	// Dir is the coordinator's folder, Records the path of its records.
	Dir, Records string
	// Ask asks a verb of mesh-controller; nil when there is no credential to ask with, of which Alone says why.
	Ask   func(ctx context.Context, v subject.Verb, args any) (any, error)
	Alone error
	// Machines asks the machines; nil as Ask is.
	Machines Machines
	Version  string
	Clock    clock.Clock
}

// asked are the verbs whose answers are in the archive. None of them says a secret: invitations are listed
// without their lines.
func asked() map[subject.Verb]any {
	return map[subject.Verb]any{
		controller.Status: controller.Nothing{}, controller.Nodes: controller.Nothing{}, controller.Modules: controller.Nothing{}, controller.Seats: controller.Nothing{},
		controller.Invitations: controller.Nothing{}, controller.Operators: controller.Nothing{}, controller.Changes: controller.ChangesAsk{Limit: 500},
	}
}

// Write writes the archive to w.
func Write(ctx context.Context, w io.Writer, c Config) error {
	secrets, errSecrets := keys(c.Dir)
	a := diagnosis.New(w, "mesh-coordinator", diagnosis.NewMask(secrets...), c.Clock)
	all := asked()
	names := make([]subject.Verb, 0, len(all))
	for v := range all {
		names = append(names, v)
	}
	slices.Sort(names)
	for _, v := range names {
		a.JSON(ctx, "verbs/"+string(v)+".json", "what the verb "+string(v)+" answers", func(ctx context.Context) (any, error) {
			if c.Ask == nil {
				return nil, c.Alone
			}
			return c.Ask(ctx, v, all[v])
		})
	}
	a.JSON(ctx, "bans.json", "whether a machine bans another one of the mesh, by what each machine says", c.askBans)
	a.JSON(ctx, "records.json", "the records: how much is in them", func(ctx context.Context) (any, error) { return records.Count(ctx, c.Records) })
	a.Part(ctx, "folder.txt", "what the coordinator keeps on disk, names and sizes", func(context.Context) ([]byte, error) { return diagnosis.Tree(c.Dir) })
	a.Commands(ctx, "versions.txt", "versions", []string{"echo", "mesh-coordinator " + c.Version}, []string{"uname", "-a"}, []string{"cat", "/etc/os-release"}, []string{"systemctl", "--version"}, []string{"nft", "--version"})
	a.Commands(ctx, "journal.txt", "the coordinator's last lines", []string{"journalctl", "--no-pager", "--output=short-iso-precise", fmt.Sprintf("--lines=%d", journalLines), "--unit=mesh-coordinator.service"})
	a.Commands(ctx, "systemd.txt", "systemd's view", []string{"systemctl", "is-system-running"}, []string{"systemctl", "status", "--no-pager", "--full", "--lines=0", "mesh-coordinator.service"},
		[]string{"systemctl", "show", "mesh-coordinator.service"}, []string{"systemctl", "cat", "mesh-coordinator.service"}, []string{"systemctl", "--failed", "--no-pager", "--plain"})
	a.Commands(ctx, "machine.txt", "disk, memory, load, clock, sockets", []string{"df", "-h", c.Dir}, []string{"df", "-i", c.Dir}, []string{"free", "-m"}, []string{"uptime"}, []string{"timedatectl"},
		[]string{"ps", "-o", "pid,rss,etimes,stat,comm", "-C", "mesh-coordinator"}, []string{"ss", "-s"}, []string{"ss", "-tlnp"})
	a.Commands(ctx, "network.txt", "links, addresses, routes", []string{"ip", "address"}, []string{"ip", "route"}, []string{"ip", "-6", "route"})
	if errSecrets != nil {
		a.Part(ctx, "secrets-not-read.txt", "why not every secret is known by its value", func(context.Context) ([]byte, error) { return nil, errSecrets })
	}
	return a.Close()
}

// keys are the contents of the folder's key files and credentials, line by line.
func keys(dir string) (out []string, err error) {
	files, errGlob := os.ReadDir(dir)
	errs := []error{errGlob}
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".key") && !strings.HasSuffix(f.Name(), ".json") {
			continue
		}
		b, err := diagnosis.ReadFile(filepath.Join(dir, f.Name()))
		errs = append(errs, err)
		if strings.HasSuffix(f.Name(), ".key") {
			out = append(out, string(b))
			continue
		}
		out = append(out, diagnosis.Strings(b)...) // the seeds of credentials
	}
	return out, errors.Join(errs...)
}
