package agent

import (
	"sync"

	"mesh/shared/credential"
	"mesh/shared/report"
	"mesh/shared/subject"
)

// keyring has the keys of the machine's instances, which are made from its own; making one costs some 30 µs.
type keyring struct {
	own  credential.Seed
	mesh string

	mu   sync.Mutex // guards made
	made map[subject.Module]madeKey
}

type madeKey struct {
	seed   credential.Seed
	public string
}

func newKeyring(f credential.File) *keyring {
	return &keyring{own: f.Seed, mesh: f.Mesh, made: map[subject.Module]madeKey{}}
}

func (k *keyring) key(m subject.Module) (madeKey, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if one, ok := k.made[m]; ok {
		return one, nil
	}
	seed, err := k.own.Instance(k.mesh, m)
	if err != nil {
		return madeKey{}, err
	}
	public, err := seed.Public()
	if err != nil {
		return madeKey{}, err
	}
	k.made[m] = madeKey{seed, public}
	return k.made[m], nil
}

func (k *keyring) seed(m subject.Module) (credential.Seed, error) {
	one, err := k.key(m)
	return one.seed, err
}

// instanceKeys are the public keys of the instances here that use the bus: the coordinator lets them in by them.
func (a *Agent) instanceKeys() (all []report.Key) {
	d := a.engine.Declared()
	if d == nil {
		return nil
	}
	for i := range d.Modules {
		m := &d.Modules[i]
		if len(m.Membership) == 0 || len(all) == report.MaxKeys {
			continue
		}
		one, err := a.keys.key(m.Name)
		if err != nil {
			a.cfg.Log.Error("the key of an instance cannot be made", "module", m.Name, "err", err)
			continue
		}
		all = append(all, report.Key{Module: m.Name, Key: one.public})
	}
	return all
}
