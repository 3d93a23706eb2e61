package keys

import (
	"context"
	"encoding/base32"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"mesh/coordinator/records"
	"mesh/shared/clock"
	"mesh/shared/credential"
	"mesh/shared/refusal"
	"mesh/shared/subject"
)

// InitOptions say what mesh is made.
type InitOptions struct {
	// Mesh is its name, for people.
	Mesh string
	// Addresses are where the bus is reached, host:port.
	Addresses []string
	// Operator is the name of the first operator, an admin.
	Operator string
	Clock    clock.Clock
	Rand     io.Reader
}

// Made is the answer of Init.
type Made struct {
	// MeshID is the new mesh's id.
	MeshID string
	// Operator is the first operator's credential.
	Operator credential.File
	// Already: the mesh was there, and nothing was changed.
	Already bool
}

// Init makes a mesh in dir: keys, records with the mesh and its first operator, and that operator's
// credential in OperatorFile. It is made beside and moved into place, so a kill at any instant leaves
// all of it or none. dir may be there when it is empty. Asked again it changes nothing and gives the
// same answer; another mesh in the folder is refused.
func Init(ctx context.Context, dir string, o InitOptions) (Made, error) {
	if err := o.check(); err != nil {
		return Made{}, err
	}
	dir = filepath.Clean(dir)
	if made, there, err := already(ctx, dir, o); there || err != nil {
		return made, err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return Made{}, fmt.Errorf("make the mesh in %s: %w", dir, err)
	}
	beside := dir + ".new" // of an Init that was killed, if it is there: nothing in it was ever used
	if err := os.RemoveAll(beside); err != nil {
		return Made{}, fmt.Errorf("make the mesh in %s: %w", dir, err)
	}
	made, err := o.make(ctx, beside)
	if err == nil {
		err = moveInto(beside, dir)
	}
	if err != nil {
		return Made{}, errors.Join(fmt.Errorf("make the mesh in %s: %w", dir, err), os.RemoveAll(beside))
	}
	return made, nil
}

func (o InitOptions) check() error {
	if err := subject.Check("mesh", o.Mesh); err != nil {
		return err
	}
	if err := subject.Check("operator", o.Operator); err != nil {
		return err
	}
	// Any pin will do: only the addresses are in question here.
	return credential.Bus{Addresses: o.Addresses, Pin: strings.Repeat("00", 32)}.Check()
}

// already looks at what is in dir. A folder with other things in it is refused.
func already(ctx context.Context, dir string, o InitOptions) (Made, bool, error) {
	found, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) || err == nil && len(found) == 0 {
		return Made{}, false, nil
	}
	if err != nil {
		return Made{}, false, fmt.Errorf("look for a mesh in %s: %w", dir, err)
	}
	what := "a new mesh in " + dir
	if _, err := os.Stat(filepath.Join(dir, coordinatorFile)); err != nil {
		return Made{}, false, refusal.Newf(what, "empty the folder, or name another", "there are other things in it (%s, …)", found[0].Name())
	}
	store, err := records.Open(ctx, filepath.Join(dir, RecordsFile), records.Options{Clock: o.Clock, Rand: o.Rand})
	if err != nil {
		return Made{}, false, err
	}
	m, err := store.Mesh(ctx)
	if err = errors.Join(err, store.Close()); err != nil {
		return Made{}, false, fmt.Errorf("look for a mesh in %s: %w", dir, err)
	}
	if m.Name != o.Mesh {
		return Made{}, false, refusal.Newf(what, "use that mesh, or name another folder", "the mesh %s (%s) is in it", m.Name, m.ID)
	}
	made := Made{MeshID: m.ID, Already: true}
	b, err := readPrivate(filepath.Join(dir, OperatorFile))
	if errors.Is(err, os.ErrNotExist) { // taken away, as a careful person does
		return made, true, nil
	}
	if err != nil {
		return Made{}, false, err
	}
	made.Operator, err = credential.Decode(b)
	return made, true, err
}

// make writes everything into the new folder dir.
func (o InitOptions) make(ctx context.Context, dir string) (Made, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return Made{}, err
	}
	now := o.Clock.Now()
	id, err := newID(o.Rand)
	if err != nil {
		return Made{}, err
	}
	ca, err := credential.NewAuthority(o.Rand, id, now)
	if err != nil {
		return Made{}, err
	}
	signer, err := credential.NewSigner(o.Rand)
	if err != nil {
		return Made{}, err
	}
	bus := credential.Bus{Addresses: o.Addresses, CA: ca.PEM(), Pin: ca.Pin()}
	coordinator, _, err := o.user(id, credential.KindCoordinator, credential.KindCoordinator, bus)
	if err != nil {
		return Made{}, err
	}
	operator, operatorKey, err := o.user(id, credential.KindOperator, o.Operator, bus)
	if err != nil {
		return Made{}, err
	}
	if err := writeAll(dir, ca, signer, coordinator, operator); err != nil {
		return Made{}, err
	}
	cert, err := ca.Issue(o.Rand, now)
	if err != nil {
		return Made{}, err
	}
	if err := writeCertificate(dir, cert); err != nil {
		return Made{}, err
	}
	m := records.Mesh{ID: id, Name: o.Mesh, Bus: bus, Signer: signer.Verifier()}
	first := records.Operator{Name: o.Operator, Key: operatorKey, Role: records.RoleAdmin}
	return Made{MeshID: id, Operator: operator}, o.record(ctx, filepath.Join(dir, RecordsFile), m, first)
}

func newID(rand io.Reader) (string, error) {
	var b [10]byte
	if _, err := io.ReadFull(rand, b[:]); err != nil {
		return "", fmt.Errorf("make the mesh's id: %w", err)
	}
	return strings.ToLower(base32.StdEncoding.EncodeToString(b[:])), nil
}

func (o InitOptions) user(mesh, kind, name string, bus credential.Bus) (credential.File, string, error) {
	seed, err := credential.NewUser(o.Rand)
	if err != nil {
		return credential.File{}, "", err
	}
	key, err := seed.Public()
	return credential.File{Format: credential.Format, Mesh: mesh, Kind: kind, Name: name, Seed: seed, Bus: bus}, key, err
}

func writeAll(dir string, ca *credential.Authority, signer *credential.Signer, coordinator, operator credential.File) error {
	caKey, err := ca.KeyPEM()
	if err != nil {
		return err
	}
	own, err := coordinator.Encode()
	if err != nil {
		return err
	}
	first, err := operator.Encode()
	if err != nil {
		return err
	}
	for name, text := range map[string][]byte{
		authorityFile: []byte(ca.PEM()), authorityKey: []byte(caKey), signerFile: []byte(string(signer.Seed()) + "\n"),
		coordinatorFile: own, OperatorFile: first,
	} {
		if err := writePrivate(filepath.Join(dir, name), text); err != nil {
			return err
		}
	}
	return os.Mkdir(filepath.Join(dir, BusFolder), 0o700)
}

func (o InitOptions) record(ctx context.Context, path string, m records.Mesh, first records.Operator) error {
	store, err := records.Open(ctx, path, records.Options{Clock: o.Clock, Rand: o.Rand})
	if err != nil {
		return err
	}
	err = store.CreateMesh(ctx, records.By{Who: "genesis", Why: "the mesh is made"}, m, first)
	return errors.Join(err, store.Close())
}

// moveInto puts the finished folder in the place of dir, which is absent or empty (rename(2); os.Rename
// refuses a folder that is there, even an empty one).
func moveInto(from, dir string) error {
	if err := syncFolder(from); err != nil {
		return err
	}
	if err := unix.Rename(from, dir); err != nil {
		if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
			return refusal.New("a new mesh in "+dir, "something came into the folder meanwhile", "look into it and try again")
		}
		return &os.LinkError{Op: "rename", Old: from, New: dir, Err: err}
	}
	return syncFolder(filepath.Dir(dir))
}
