package firewall

import (
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mesh/firewall/internal/nfnetlink"
	"mesh/shared/refusal"
	"mesh/shared/rule"
)

// FuzzCompile reads a filter of lines, "outside NAME", "tunnel NAME", "inside NAME", "bridge NAME", or
// "OWNER: RULE". What is taken makes a table whose text holds what it should, and the same again.
func FuzzCompile(f *testing.F) {
	f.Add("outside eth0\noutside up0\ntunnel mesh0\ninside eth1\nbridge up0\nadmin: 22/tcp from anywhere\nvoice: 9000-9010/udp from 10.0.0.0/8, 2001:db8::1")
	f.Add("outside up0\nb: ah from 10.0.0.0/8, ::/0\nb: vrrp from tunnel\nb: 65535/udp from 255.255.255.255")
	f.Add("outside }")
	f.Add("outside up0\nb: 1/tcp from ::/0, 0.0.0.0/0, 128.0.0.0/1")
	f.Fuzz(func(t *testing.T, text string) {
		var filter Filter
		for line := range strings.Lines(text) {
			word, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
			switch word {
			case "outside":
				filter.Outside = append(filter.Outside, rest)
			case "tunnel":
				filter.Tunnel = append(filter.Tunnel, rest)
			case "inside":
				filter.Inside = append(filter.Inside, rest)
			case "bridge":
				filter.Bridges = append(filter.Bridges, rest)
			default:
				a, err := rule.ParseAllow(rest)
				if err != nil {
					return
				}
				a.Owner = strings.TrimSuffix(word, ":")
				filter.Allow = append(filter.Allow, a)
			}
		}
		table, err := Compile(filter)
		if err != nil {
			if refusal.Of(err) == nil {
				t.Errorf("%v is no refusal", err)
			}
			return
		}
		made := table.Text()
		for _, r := range made {
			if r != '\n' && r != '\t' && (r < ' ' || r > '~') {
				t.Fatalf("the text holds %q", r)
			}
		}
		bare := ""
		for i, part := range strings.Split(made, `"`) { // a link may be named }
			if i%2 == 0 {
				bare += part
			}
		}
		if strings.Count(bare, "{") != strings.Count(bare, "}") || strings.Count(made, `"`)%2 != 0 {
			t.Errorf("brackets or quotes do not match:\n%s", made)
		}
		again, err := Compile(filter)
		if err != nil || again.Digest() != table.Digest() {
			t.Errorf("the same filter makes another table: %v", err)
		}
		exchange(nil, TableName, 0, memory{generation: 1, layout: table.layout(0, 0), table: table}, again)
	})
}

// FuzzReadBack: whatever the kernel seems to say, the table is read, compared and told without a panic.
func FuzzReadBack(f *testing.F) {
	table, err := Compile(Filter{Outside: []string{"up0"}, Inside: []string{"lan0"}, Allow: []rule.Allow{
		{Owner: "web", Port: rule.Port{First: 80, Last: 90, Protocol: "tcp"}, From: rule.Anywhere()},
		{Owner: "ha", Protocol: 112, From: rule.From{Tunnel: true}},
		{Owner: "ssh", Port: rule.Port{First: 22, Last: 22, Protocol: "tcp"}, From: rule.Anywhere()},
		{Owner: "peer", Port: rule.Port{First: 22, Last: 22, Protocol: "udp"}, From: rule.From{Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}}},
	}})
	if err != nil {
		f.Fatal(err)
	}
	written := exchange(nil, TableName, 0, memory{generation: 1}, table)
	if why := table.differs(readBytes(written)); why != "" {
		f.Fatalf("what is written reads as another table: %s", why) // so the seeds are a whole table
	}
	for m := range nfnetlink.Messages(written) { // one by one: go test makes long ones short at great length
		var w nfnetlink.Buffer
		w.Begin(m.Type, m.Flags, 0, 0)
		w.B = append(w.B[:16], m.Body...)
		w.Finish()
		f.Add(w.B)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		have := readBytes(b)
		drift := table.drift(have)
		if drift.What == "" {
			return
		}
		for _, layout := range []*found{have, have.outline()} {
			if len(exchange(nil, TableName, 0, memory{generation: 1, layout: layout}, table)) == 0 {
				t.Error("nothing would repair it")
			}
		}
	})
}

// readBytes takes messages for what the kernel lists. A request that makes a thing is written like the
// listing that has it.
func readBytes(b []byte) *found {
	f := &found{}
	counts := counting{words: map[string]string{}, elements: map[string]*Count{}}
	for m := range nfnetlink.Messages(b) {
		switch m.Type &^ (unix.NFNL_SUBSYS_NFTABLES << 8) {
		case unix.NFT_MSG_NEWCHAIN:
			f.addChain(TableName, m)
		case unix.NFT_MSG_NEWSET:
			f.addSet(TableName, m)
		case unix.NFT_MSG_NEWRULE:
			f.addRule(TableName, m)
		case unix.NFT_MSG_NEWOBJ:
			f.addCounter(TableName, m)
			count(m)
		case unix.NFT_MSG_NEWSETELEM:
			elementPrints(m)
			for typ, v := range m.Attributes() {
				if set := f.set(nfnetlink.Text(v)); typ == unix.NFTA_SET_ELEM_LIST_SET && set != nil {
					set.addEntries(m)
					counts.add(set.name, m)
				}
			}
		}
		flowIn(m)
	}
	counts.all()
	return f
}
