package foreign

import (
	"fmt"
	"slices"
)

// Judge says which chains of rs refuse, whose they are, and what becomes of them.
func Judge(rs Ruleset) Report {
	r := Report{Tables: []TableLine{}, Refusing: []Refusing{}, Bypass: slices.Clone(rs.Bypass), NotUnderstood: slices.Clone(rs.NotUnderstood)}
	w := look(rs.Tables, persistent, rs.Served)
	for i := range rs.Tables {
		t := &rs.Tables[i]
		line := TableLine{Family: t.Family, Table: t.Name, Flags: t.Flags}
		if t.XT {
			line.SharedBy = "iptables-nft"
		}
		r.Tables = append(r.Tables, line)
		refusing, held := w.judge(t)
		r.Refusing = append(r.Refusing, refusing...)
		r.Held = append(r.Held, held...)
	}
	w = look(rs.Legacy, ferm, nil)
	for i := range rs.Legacy {
		t := &rs.Legacy[i]
		r.LegacyTables = append(r.LegacyTables, TableLine{Family: t.Family, Table: t.Name})
		refusing, held := w.judge(t)
		for _, one := range refusing {
			one.XTables, one.Priority, one.Base, one.Policy, one.Hooks = "legacy", nil, false, "", nil
			r.Legacy = append(r.Legacy, one)
		}
		r.Held = append(r.Held, held...)
	}
	return r
}

const (
	whyUnreached = "no base chain leads to it"
	whyDormant   = "the table is dormant"
)

func (w world) judge(t *Table) (refusing []Refusing, held []Held) {
	maps := map[string]*Map{}
	for i := range t.Maps {
		maps[t.Maps[i].Name] = &t.Maps[i]
	}
	hooks := reach(t, maps)
	dormant := slices.Contains(t.Flags, "dormant")
	h := w.at(t)
	for i := range t.Chains {
		c := &t.Chains[i]
		how := refusals(c, maps)
		if len(how) == 0 {
			continue
		}
		owners := h.ownersOf(withMaps(c, maps))
		switch {
		case dormant:
			held = append(held, Held{t.Family, t.Name, c.Name, whyDormant, owners})
			continue
		case len(hooks[i]) == 0:
			held = append(held, Held{t.Family, t.Name, c.Name, whyUnreached, owners})
			continue
		}
		one := Refusing{Family: t.Family, Table: t.Name, Chain: c.Name, Base: c.Base, Hooks: hooks[i], How: how, Owner: owners}
		if c.Base {
			one.Priority, one.Policy = &c.Priority, c.Policy
		}
		for _, owner := range owners {
			kind := kindOf(owner)
			one.Kind = append(one.Kind, kind)
			one.Fate = append(one.Fate, fateOf(kind))
		}
		refusing = append(refusing, one)
	}
	return refusing, held
}

// reach finds for each chain the hooks from which packets come to it, sorted, through jumps and
// verdict maps.
func reach(t *Table, maps map[string]*Map) [][]string {
	at := make(map[string]int, len(t.Chains))
	for i, c := range t.Chains {
		at[c.Name] = i
	}
	hooks := make([][]string, len(t.Chains))
	for i := range t.Chains {
		if !t.Chains[i].Base {
			continue
		}
		hook := t.Chains[i].Hook
		todo := []int{i}
		lead := func(chain string) {
			if j, ok := at[chain]; ok && chain != "" {
				todo = append(todo, j)
			}
		}
		for len(todo) > 0 {
			j := todo[len(todo)-1]
			todo = todo[:len(todo)-1]
			if slices.Contains(hooks[j], hook) {
				// Another base chain at this hook has been here, and gone on from here.
				continue
			}
			hooks[j] = append(hooks[j], hook)
			for _, a := range t.Chains[j].Acts {
				lead(a.Chain)
				if m := maps[a.Map]; m != nil {
					for _, b := range m.Acts {
						lead(b.Chain)
					}
				}
			}
		}
	}
	for i := range hooks {
		slices.Sort(hooks[i])
	}
	return hooks
}

// withMaps is c with what its verdict maps refuse among its own acts.
func withMaps(c *Chain, maps map[string]*Map) *Chain {
	var more []Act
	for _, a := range c.Acts {
		if m := maps[a.Map]; m != nil {
			for _, b := range m.Acts {
				if b.refuses() {
					more = append(more, Act{Word: b.Word, Hint: a.Hint, Count: a.Count * b.Count})
				}
			}
		}
	}
	if more == nil {
		return c
	}
	all := *c
	all.Acts = slices.Concat(c.Acts, more)
	return &all
}

// refusals are the ways c refuses: its policy, then its rules' ways with how many each.
func refusals(c *Chain, maps map[string]*Map) []string {
	var how []string
	count := map[string]int{}
	for _, a := range withMaps(c, maps).Acts {
		if a.refuses() {
			count[a.Word] += a.Count
		}
	}
	for word, n := range count {
		how = append(how, fmt.Sprintf("%s x%d", word, n))
	}
	slices.Sort(how)
	if c.Base && c.Policy == "drop" {
		how = slices.Insert(how, 0, "policy drop")
	}
	return how
}
