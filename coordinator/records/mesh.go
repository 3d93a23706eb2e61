package records

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"mesh/shared/credential"
	"mesh/shared/refusal"
)

// Mesh is the one mesh these records are of.
type Mesh struct {
	ID   string
	Name string
	// Bus is where the bus is and its CA: every credential and declaration takes it from here (BUS-13).
	Bus credential.Bus
	// Signer is whose declarations the nodes believe.
	Signer  credential.Verifier
	Created time.Time
}

// ErrNoMesh is met by errors.Is when the records are empty.
var ErrNoMesh = errors.New("the records hold no mesh")

// CreateMesh writes the mesh and its first operator. Records that hold a mesh refuse another.
func (s *Store) CreateMesh(ctx context.Context, by By, m Mesh, first Operator) error {
	if err := m.Bus.Check(); err != nil {
		return err
	}
	return s.act(ctx, by, "create the mesh "+m.Name, func(t *tx) error {
		if have, err := meshRow(ctx, t); err == nil {
			return refusal.Newf("a second mesh in these records", "use another folder", "they hold %s (%s)", have.Name, have.ID)
		} else if !errors.Is(err, ErrNoMesh) {
			return err
		}
		if err := t.exec(`INSERT INTO mesh (one, id, name, addresses, ca, signer, created) VALUES (1, ?, ?, ?, ?, ?, ?)`,
			m.ID, m.Name, encode(m.Bus.Addresses), m.Bus.CA, string(m.Signer), t.now.UnixMilli()); err != nil {
			return err
		}
		if err := t.note("create", "mesh "+m.Name, "", ""); err != nil {
			return err
		}
		t.touch(touch{all: true})
		return t.addOperator(first)
	})
}

// Mesh returns the mesh, or ErrNoMesh.
func (s *Store) Mesh(ctx context.Context) (Mesh, error) { return meshRow(ctx, s.db.Read()) }

func meshRow(ctx context.Context, q querier) (Mesh, error) {
	var m Mesh
	var addresses string
	var created int64
	err := q.QueryRowContext(ctx, `SELECT id, name, addresses, ca, signer, created FROM mesh`).
		Scan(&m.ID, &m.Name, &addresses, &m.Bus.CA, &m.Signer, &created)
	if errors.Is(err, sql.ErrNoRows) {
		return Mesh{}, ErrNoMesh
	}
	if err != nil {
		return Mesh{}, fmt.Errorf("read the mesh: %w", err)
	}
	if err := decode(addresses, &m.Bus.Addresses); err != nil {
		return Mesh{}, err
	}
	if m.Bus.Pin, err = credential.PinOf(m.Bus.CA); err != nil {
		return Mesh{}, fmt.Errorf("read the mesh: %w", err)
	}
	m.Created = at(created)
	return m, nil
}

// SetAddresses moves the bus: everything composed from now on names the new addresses (BUS-13).
func (s *Store) SetAddresses(ctx context.Context, by By, addresses []string) error {
	return s.act(ctx, by, "set the bus's addresses", func(t *tx) error {
		m, err := meshRow(ctx, t)
		if err != nil {
			return err
		}
		if slices.Equal(m.Bus.Addresses, addresses) {
			return nil
		}
		m.Bus.Addresses = addresses
		if err := m.Bus.Check(); err != nil {
			return err
		}
		t.touch(touch{all: true})
		if err := t.exec(`UPDATE mesh SET addresses = ?`, encode(addresses)); err != nil {
			return err
		}
		return t.note("set addresses", "mesh "+m.Name, "", "")
	})
}
