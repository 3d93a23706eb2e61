package resource

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"

	"mesh/shared/credential"
	"mesh/shared/declaration"
	"mesh/shared/membership"
	"mesh/shared/strict"
	"mesh/shared/subject"
)

// The files that make an instance a principal of the bus, in a folder of its own (MEM-2).
const (
	CredentialFile = "credential.json"
	MembershipFile = "membership.json"
)

// InstanceVar is the environment variable that tells a process where they are.
const InstanceVar = "MESH_INSTANCE"

// checkMembership reads the membership of m strictly: it is laid down as it stands, and what this agent does
// not know it would hand on unread.
func checkMembership(d *declaration.Declaration, m declaration.Module) error {
	var of membership.Membership
	if err := strict.Decode(m.Membership, &of); err != nil {
		return err
	}
	if of.Format != membership.Format || of.Mesh != d.Mesh || of.Node != d.Node || of.Module != m.Name {
		return fmt.Errorf("it is of format %d, and of %s on %s in mesh %s", of.Format, of.Module, of.Node, of.Mesh)
	}
	return nil
}

// InstanceFolder is where the files of the instance of m are.
func (in Input) InstanceFolder(m subject.Module) string {
	return path.Join(path.Dir(in.BundleDir), "instances", string(m))
}

// instance adds the credential and the membership of the instance. Only who runs its programs may read the
// credential.
func (e *expander) instance() error {
	if len(e.module.Membership) == 0 {
		return nil
	}
	if e.in.Instance == nil {
		return errors.New("no key of the machine to make the instance's from")
	}
	seed, err := e.in.Instance(e.module.Name)
	if err != nil {
		return err
	}
	d := e.in.Declaration
	secret, err := credential.InstanceFile(d.Mesh, d.Node, e.module.Name, seed, d.Bus).Encode()
	if err != nil {
		return fmt.Errorf("encode the credential of %s: %w", e.module.Name, err)
	}
	var open membership.Membership
	if err := json.Unmarshal(e.module.Membership, &open); err != nil {
		return fmt.Errorf("the membership of %s: %w", e.module.Name, err)
	}
	text, err := json.MarshalIndent(open, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the membership of %s: %w", e.module.Name, err)
	}
	folder := e.in.InstanceFolder(e.module.Name)
	var folders []string
	for p := folder; p != "/"; p = path.Dir(p) {
		folders = append(folders, p)
	}
	slices.Reverse(folders)
	for _, p := range folders {
		e.add(Resource{ID: ID(KindDir, p), Kind: KindDir, Needs: e.folder(p), Dir: &Dir{Path: p, Mode: 0o755, Owner: "root", Group: "root", Implied: true}})
	}
	owner := e.runsAs()
	e.laid(path.Join(folder, CredentialFile), secret, 0o600, owner, true)
	e.laid(path.Join(folder, MembershipFile), append(text, '\n'), 0o644, "root", false)
	return nil
}

func (e *expander) laid(at string, content []byte, mode uint32, owner string, private bool) {
	e.add(Resource{ID: ID(KindFile, at), Kind: KindFile, Needs: append(e.owners(owner), e.folder(at)...),
		File: &File{Path: at, Content: content, Sum: Sum(content), Mode: fs.FileMode(mode), Owner: owner, Group: "root", Private: private}})
}

// runsAs is the one user whom all programs of the module run as; root when there are several, or none.
func (e *expander) runsAs() string {
	users := map[string]bool{}
	for _, p := range e.filled.Run.Processes {
		users[p.RunsAs()] = true
	}
	for _, t := range e.filled.Run.Timers {
		users[t.RunsAs()] = true
	}
	if len(users) != 1 {
		return "root"
	}
	for u := range users {
		return u
	}
	return "root"
}

// withInstance is env with the place of the instance's files, which a module may say otherwise.
func (e *expander) withInstance(env map[string]string) map[string]string {
	if _, set := env[InstanceVar]; set || len(e.module.Membership) == 0 {
		return env
	}
	more := make(map[string]string, len(env)+1)
	for k, v := range env {
		more[k] = v
	}
	more[InstanceVar] = e.in.InstanceFolder(e.module.Name)
	return more
}
