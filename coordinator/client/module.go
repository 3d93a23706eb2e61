package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sync/errgroup"

	"mesh/shared/bundle"
	"mesh/shared/bus"
	"mesh/shared/controller"
	"mesh/shared/credential"
	"mesh/shared/declaration"
	"mesh/shared/manifest"
	"mesh/shared/manifest/yamlfile"
	"mesh/shared/refusal"
	"mesh/shared/subject"
)

const (
	// ManifestFile is the name of the manifest in a module's folder.
	ManifestFile = "module.yaml"
	// inFlight is how many chunks are under way at once: four of 256 KiB go through within the bound of a
	// publish down to about 1 Mbit/s.
	inFlight = 4
	// chunkTries is how often a chunk is tried that the bus did not acknowledge in time.
	chunkTries = 3
)

// Check reads and judges the module in dir, offline (MAN-1). The error is manifest.Problems with
// everything that is wrong.
func Check(dir string) (*manifest.Manifest, error) {
	path := filepath.Join(dir, ManifestFile)
	f, err := os.Open(path)
	if err != nil {
		switch {
		case errors.Is(err, syscall.ENOTDIR):
			return nil, refusal.New("the folder "+dir, "it is a file", "name the folder that holds it: "+filepath.Dir(dir))
		case errors.Is(err, os.ErrNotExist):
			return nil, refusal.New("the folder "+dir, "it holds no "+ManifestFile, "name the folder of a module")
		}
		return nil, err
	}
	defer f.Close() // read only: nothing is lost
	b, err := io.ReadAll(io.LimitReader(f, yamlfile.MaxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	m, err := yamlfile.Parse(path, b)
	if err != nil {
		return nil, err
	}
	return m, nil
}

// Built refuses a module whose bundle's folder is not there yet.
func Built(dir string, m *manifest.Manifest) error {
	if m.Build.Bundle == nil {
		return nil
	}
	out := filepath.Join(dir, m.Build.Bundle.Output)
	if st, err := os.Stat(out); err != nil || !st.IsDir() {
		return refusal.New("the bundle of "+string(m.Module), "it is the folder "+out+", and there is none", "build it first, or correct build.bundle.output in "+filepath.Join(dir, ManifestFile))
	}
	return nil
}

// Register checks the module in dir, puts its bundle on the bus and hands both over. said, when not
// nil, hears how many chunks of how many are there.
func (c *Client) Register(ctx context.Context, dir, why string, said func(done, of int)) (controller.RegisterAnswer, error) {
	m, err := Check(dir)
	if err == nil {
		err = Built(dir, m)
	}
	if err != nil {
		return controller.RegisterAnswer{}, err
	}
	ask := controller.RegisterAsk{Source: "by hand from the folder " + filepath.Base(abs(dir)), Why: why}
	if ask.Manifest, err = json.Marshal(m); err != nil {
		return controller.RegisterAnswer{}, fmt.Errorf("encode the manifest: %w", err)
	}
	if m.Build.Bundle != nil {
		if ask.Artifact, err = c.pack(ctx, filepath.Join(dir, m.Build.Bundle.Output), said); err != nil {
			return controller.RegisterAnswer{}, err
		}
	}
	return Ask[controller.RegisterAnswer](ctx, c, controller.ModuleRegister, ask)
}

// abs is dir with its real last name, for "." too.
func abs(dir string) string {
	if full, err := filepath.Abs(dir); err == nil {
		return full
	}
	return dir
}

// pack packs the folder into a file without a name, and uploads it.
func (c *Client) pack(ctx context.Context, folder string, said func(done, of int)) (*declaration.Artifact, error) {
	f, err := os.CreateTemp("", "mesh-bundle-")
	if err != nil {
		return nil, fmt.Errorf("pack %s: %w", folder, err)
	}
	defer f.Close() // a copy that is thrown away
	if err := os.Remove(f.Name()); err != nil {
		return nil, fmt.Errorf("pack %s: %w", folder, err)
	}
	digest, size, err := bundle.Pack(f, folder)
	if err != nil {
		return nil, fmt.Errorf("pack %s: %w", folder, err)
	}
	a := &declaration.Artifact{Digest: digest, Size: size, Chunks: bundle.Chunks(size)}
	return a, c.Upload(ctx, f, *a, said)
}

// Upload puts a's chunks on the bus, a few at once. A chunk that is there already is as good as done.
func (c *Client) Upload(ctx context.Context, content io.ReaderAt, a declaration.Artifact, said func(done, of int)) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(inFlight)
	arrived := make(chan struct{}, a.Chunks) // one for each chunk: never full
	for n := range a.Chunks {
		g.Go(func() error {
			defer func() { arrived <- struct{}{} }()
			return c.chunk(ctx, content, a, n)
		})
		if said != nil {
			said(len(arrived), a.Chunks)
		}
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("upload the artifact %.12s: %w", a.Digest, err)
	}
	if said != nil {
		said(a.Chunks, a.Chunks)
	}
	return nil
}

func (c *Client) chunk(ctx context.Context, content io.ReaderAt, a declaration.Artifact, n int) error {
	offset, length := bundle.Span(n, a.Size)
	b := make([]byte, length)
	if _, err := content.ReadAt(b, offset); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	for try := 1; ; try++ {
		err := c.conn.Publish(ctx, subject.Chunk(a.Digest, n), b, "")
		switch {
		case err == nil || bus.AlreadyThere(err):
			return nil
		case try == chunkTries || ctx.Err() != nil || errors.Is(err, bus.ErrRefused) || errors.Is(err, bus.ErrAway):
			return err
		}
	}
}

// Assign puts module on node. The values of secrets are sealed here, to the key the node made when it
// was enrolled: the coordinator keeps and sends what it cannot open.
func (c *Client) Assign(ctx context.Context, ask controller.AssignAsk, secrets map[string]string) (controller.AssignAnswer, error) {
	if len(secrets) > 0 {
		node, err := Ask[controller.NodeAnswer](ctx, c, controller.NodeShow, controller.NodeAsk{Node: ask.Node})
		if err != nil {
			return controller.AssignAnswer{}, err
		}
		ask.Secrets = make(map[string]credential.Sealed, len(secrets))
		for key, value := range secrets {
			if ask.Secrets[key], err = credential.Seal(c.rand, node.Curve, ask.Node, ask.Module, key, value); err != nil {
				return controller.AssignAnswer{}, err
			}
		}
	}
	return Ask[controller.AssignAnswer](ctx, c, controller.Assign, ask)
}

// Issue makes the credential of a person: the seed is made here and stays in the file.
func (c *Client) Issue(ctx context.Context, name string, role controller.Role, why string) (credential.File, error) {
	seed, err := credential.NewUser(c.rand)
	if err != nil {
		return credential.File{}, err
	}
	ask := controller.OperatorIssueAsk{Name: name, Role: role, Why: why}
	if ask.Key, err = seed.Public(); err != nil {
		return credential.File{}, err
	}
	answer, err := Ask[controller.OperatorIssueAnswer](ctx, c, controller.OperatorIssue, ask)
	if err != nil {
		return credential.File{}, err
	}
	f := credential.File{Format: credential.Format, Mesh: answer.Mesh, Kind: credential.KindOperator, Name: name, Seed: seed, Bus: answer.Bus}
	return f, f.Check()
}
