package firewall

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"mesh/firewall/internal/nfnetlink"
	"mesh/shared/rule"
)

// Count is what one counter of mesh's table has counted (NET-12): a declared rule in the manifest's words,
// "web: 443/tcp from anywhere", or something of the table's own, such as "refused". A count goes on over
// every change of the table and over the agent's restarts, and ends with its rule, and with the machine's
// run. A rule counts the first packet of a flow; the others are "part of a known flow".
type Count struct {
	// Name is the counter's in the table.
	Name string `json:"name"`
	// What it counts, in words; long lists of addresses are cut short.
	What string `json:"what"`
	// Declared says that it is a declared rule's.
	Declared bool   `json:"declared,omitempty"`
	Packets  uint64 `json:"packets"`
	Bytes    uint64 `json:"bytes"`
}

// Counts reads the counters of mesh's table in the network namespace of the calling thread, those of the
// table's own first, then in the order of the rules. Without a table there are none. It needs
// CAP_NET_ADMIN and no Driver, and disturbs none.
func Counts(ctx context.Context) ([]Count, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s, err := nfnetlink.Open()
	if err != nil {
		return nil, fmt.Errorf("read packet counts: %w", err)
	}
	defer s.Close()
	k := kernel{s}
	var all []Count
	var words map[string]string
	_, err = k.steady(func() error {
		all, words = nil, map[string]string{}
		err := s.List(unix.NFT_MSG_GETOBJ, unix.NFPROTO_INET, func(m nfnetlink.Message) {
			if c, ok := count(m); ok {
				all = append(all, c)
			}
		}, TableName)
		if err != nil {
			return err
		}
		return s.List(unix.NFT_MSG_GETRULE, unix.NFPROTO_INET, func(m nfnetlink.Message) {
			if name, comment := counted(m); name != "" {
				words[name] = comment
			}
		}, TableName)
	})
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	if err != nil {
		return nil, fmt.Errorf("read packet counts: %w", err)
	}
	for _, c := range ownCounts {
		words[c.name] = c.words
	}
	for i := range all {
		all[i].What = cmp.Or(words[all[i].Name], all[i].Name)
	}
	return all, nil
}

// counted is the counter a rule names, and the rule's comment.
func counted(m nfnetlink.Message) (name, words string) {
	for typ, v := range m.Attributes() {
		switch typ {
		case unix.NFTA_RULE_USERDATA:
			words = comment(v)
		case unix.NFTA_RULE_EXPRESSIONS:
			for _, item := range nfnetlink.Attributes(v) {
				if kind, data := expression(item); kind == "objref" {
					for typ, v := range nfnetlink.Attributes(data) {
						if typ == unix.NFTA_OBJREF_IMM_NAME {
							name = nfnetlink.Text(v)
						}
					}
				}
			}
		}
	}
	return name, words
}

// count reads one counter of mesh's table.
func count(m nfnetlink.Message) (c Count, ok bool) {
	var of string
	var kind uint32
	for typ, v := range m.Attributes() {
		switch typ {
		case unix.NFTA_OBJ_TABLE:
			of = nfnetlink.Text(v)
		case unix.NFTA_OBJ_NAME:
			c.Name = nfnetlink.Text(v)
		case unix.NFTA_OBJ_TYPE:
			kind = nfnetlink.Number(v)
		case unix.NFTA_OBJ_DATA:
			for typ, v := range nfnetlink.Attributes(v) {
				switch typ {
				case unix.NFTA_COUNTER_PACKETS:
					c.Packets = nfnetlink.Number64(v)
				case unix.NFTA_COUNTER_BYTES:
					c.Bytes = nfnetlink.Number64(v)
				}
			}
		}
	}
	c.Declared = len(c.Name) > 2 && c.Name[:2] == rulePrefix
	return c, of == TableName && kind == objectCounter
}

// rulePrefix begins the names of the counters of declared rules.
const rulePrefix = "r_"

// Rule is the declared rule whose counter has this name: where Count.What cuts a list of addresses short,
// this has it whole.
func (t Table) Rule(counter string) (a rule.Allow, ok bool) {
	for _, c := range t.counters {
		if c.name == counter && c.allow != nil {
			return *c.allow, true
		}
	}
	return rule.Allow{}, false
}
