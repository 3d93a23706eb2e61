package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"mesh/shared/controller"
	"mesh/shared/credential"
	"mesh/shared/manifest"
	"mesh/shared/manifest/yamlfile"
	"mesh/shared/refusal"
)

// ManifestFile is the name of the manifest in a module's folder.
const ManifestFile = "module.yaml"

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

// Built refuses a module whose bundle's folder or whose images are not there yet.
func Built(dir string, m *manifest.Manifest) error {
	for _, name := range slices.Sorted(maps.Keys(m.Build.Images)) {
		from := filepath.Join(dir, m.Build.Images[name].From)
		if _, err := os.Stat(from); err != nil {
			return refusal.New("the image "+name+" of "+string(m.Module), "it is "+from+", and there is none", "build it first, or correct build.images."+name+".from in "+filepath.Join(dir, ManifestFile))
		}
	}
	if m.Build.Bundle == nil {
		return nil
	}
	out := filepath.Join(dir, m.Build.Bundle.Output)
	if m.Holds(manifest.NodeEngine) {
		program := filepath.Join(out, manifest.AgentProgram)
		if st, err := os.Stat(program); err != nil || !st.Mode().IsRegular() || st.Mode()&0o111 == 0 {
			return refusal.New("the bundle of "+string(m.Module), "it is an agent's, and "+program+" is no program", "put the agent of the release there, and let it be run: chmod +x")
		}
	}
	if st, err := os.Stat(out); err != nil || !st.IsDir() {
		return refusal.New("the bundle of "+string(m.Module), "it is the folder "+out+", and there is none", "build it first, or correct build.bundle.output in "+filepath.Join(dir, ManifestFile))
	}
	return nil
}

// Register checks the module in dir, puts what of its bundle and images the bus lacks there, and hands all
// over. said, when not nil, hears how many chunks of how many are there.
func (c *Client) Register(ctx context.Context, dir, why string, said func(done, of int)) (_ controller.RegisterAnswer, err error) {
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
	var l cargo
	defer func() { err = errors.Join(err, l.close()) }()
	if m.Build.Bundle != nil {
		if ask.Artifact, err = l.pack(filepath.Join(dir, m.Build.Bundle.Output)); err != nil {
			return controller.RegisterAnswer{}, err
		}
	}
	if ask.Images, err = l.images(ctx, dir, m); err != nil {
		return controller.RegisterAnswer{}, err
	}
	if err := c.deliver(ctx, &l, said); err != nil {
		return controller.RegisterAnswer{}, err
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
