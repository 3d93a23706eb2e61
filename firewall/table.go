package firewall

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// Table is a compiled table: a value that Text prints and Driver loads. Make it with Compile.
type Table struct {
	sets     []set
	counters []string // by name: a count outlives every change of the rules that name it, and an agent's restart
	chains   []chain
	openings []*opening
	digest   string // of Text
}

// A set holds keys of one kind. In an interval set an element is a range of keys. In a counted set each element
// is a declared rule, or a part of one: it counts what is found in it (Linux 5.7), and the rule's words are its
// comment. The count goes on as long as the element stays.
type set struct {
	name                     string
	kind                     kind
	interval, merge, counted bool
	elements                 []element // sorted, without overlap
}

type element struct {
	first, last []byte // last is of use in interval sets only
	text        string
	words       string // in a counted set
}

// kind is the type of a set's keys, with what nft and the kernel call it.
type kind struct {
	name   string
	key    uint32 // nft's number for it, so that its listing reads right
	size   uint32
	native bool // byte order of the key: without it nft lists link names as empty
}

var (
	kindLink     = kind{"ifname", nftables.TypeIFName.GetNFTMagic(), 16, true}
	kindLinkPair = kind{"ifname . ifname", nftables.TypeIFName.GetNFTMagic()<<nftables.SetConcatTypeBits | nftables.TypeIFName.GetNFTMagic(), 32, true}
	kindPort     = kind{"inet_service", nftables.TypeInetService.GetNFTMagic(), 2, false}
	kindIPv4     = kind{"ipv4_addr", nftables.TypeIPAddr.GetNFTMagic(), 4, false}
	kindIPv6     = kind{"ipv6_addr", nftables.TypeIP6Addr.GetNFTMagic(), 16, false}
	kindPeer4    = kind{"ipv4_addr . inet_service", nftables.TypeIPAddr.GetNFTMagic()<<nftables.SetConcatTypeBits | nftables.TypeInetService.GetNFTMagic(), 8, false}
	kindPeer6    = kind{"ipv6_addr . inet_service", nftables.TypeIP6Addr.GetNFTMagic()<<nftables.SetConcatTypeBits | nftables.TypeInetService.GetNFTMagic(), 20, false}
	kindICMP     = kind{"icmp_type", nftables.TypeICMPType.GetNFTMagic(), 1, false}
	kindICMPv6   = kind{"icmpv6_type", nftables.TypeICMP6Type.GetNFTMagic(), 1, false}
)

type hook uint8

const (
	hookNone hook = iota
	hookInput
	hookForward
)

func (h hook) String() string { return [...]string{"none", "input", "forward"}[h] }

// number is the hook's in the kernel.
func (h hook) number() uint32 {
	if h == hookForward {
		return unix.NF_INET_FORWARD
	}
	return unix.NF_INET_LOCAL_IN
}

// priority stands after every common filter chain (facts of the field: bans at -10 and -1, iptables,
// docker and libvirt at 0, foomuuri 5, firewalld 10), so our counter of refused packets counts only
// what nobody else had refused.
const priority = 15

const filterType = string(nftables.ChainTypeFilter)

type chain struct {
	name  string
	hook  hook // hookNone: reached by a jump
	lines []line
}

// line is one rule: all of match, then limit, log, counter, verdict, each where given.
type line struct {
	match   []term
	limit   *limit
	log     string
	counter string // its name
	verdict verdict
	comment string
}

// term loads parts of a packet into registers and compares them: with value (after mask, where
// given), with all from value to last, or by looking them up in set. A term without text is one nft adds
// by itself.
type term struct {
	text              string
	loads             []load
	mask, value, last []byte
	set               string
	not               bool
}

type loadKind uint8

const (
	loadMeta loadKind = iota
	loadCT
	loadPayload
)

// load is one part of a packet or of its conntrack entry. Several stand side by side in the registers.
type load struct {
	kind     loadKind
	key      uint32 // of meta or ct, or the base of a payload
	directed bool   // ct: in the original direction
	offset   uint32 // payload
	size     uint32 // in bytes; needed of a payload, and of what others stand beside
}

const (
	perSecond = 1
	perMinute = 60
)

type limit struct {
	rate, unit uint64
	burst      uint32
}

func (l limit) String() string {
	unit := "second"
	if l.unit == perMinute {
		unit = "minute"
	}
	return fmt.Sprintf("limit rate %d/%s burst %d packets", l.rate, unit, l.burst)
}

type verdict struct {
	word  string
	code  int32
	chain string
}

// The codes are those of linux/netfilter.h and linux/netfilter/nf_tables.h.
var (
	accept = verdict{word: "accept", code: 1}
	drop   = verdict{word: "drop", code: 0}
)

func jump(chain string) verdict { return verdict{"jump " + chain, unix.NFT_JUMP, chain} }
func goTo(chain string) verdict { return verdict{"goto " + chain, unix.NFT_GOTO, chain} }

// Digest names the content of t: equal digests are equal tables.
func (t Table) Digest() string { return t.digest }

func digest(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// Text is t as `nft -f` reads it, for a first load and for every later one: it changes the table in
// place and in one transaction.
func (t Table) Text() string { return t.text(TableName) }

// BootText is Text for the table that stands from boot until the agent's own does (NET-10).
func (t Table) BootText() string { return t.text(BootTable) }

func (t Table) text(name string) string {
	if len(t.chains) == 0 {
		return ""
	}
	var b strings.Builder
	lines := 0
	for _, c := range t.chains {
		lines += len(c.lines)
	}
	for _, s := range t.sets {
		lines += len(s.elements) / 3
	}
	b.Grow(4096 + 256*lines)
	fmt.Fprintf(&b, "table inet %s\nflush table inet %[1]s\ntable inet %[1]s {\n", name)
	for _, s := range t.sets {
		s.print(&b, false)
	}
	for _, c := range t.counters {
		for _, part := range [...]string{"\tcounter ", c, " {\n\t}\n"} {
			b.WriteString(part)
		}
	}
	b.WriteString("}\n")
	for _, s := range t.sets {
		fmt.Fprintf(&b, "flush set inet %s %s\n", name, s.name)
	}
	fmt.Fprintf(&b, "table inet %s {\n", name)
	for _, s := range t.sets {
		s.print(&b, true)
	}
	for _, c := range t.chains {
		fmt.Fprintf(&b, "\tchain %s {\n", c.name)
		if c.hook != hookNone {
			fmt.Fprintf(&b, "\t\ttype filter hook %v priority filter + %d; policy accept;\n", c.hook, priority)
		}
		for _, l := range c.lines {
			l.print(&b)
		}
		b.WriteString("\t}\n")
	}
	b.WriteString("}\n")
	return b.String()
}

func (s set) print(b *strings.Builder, full bool) {
	fmt.Fprintf(b, "\tset %s {\n\t\ttype %s\n", s.name, s.kind.name)
	if s.interval {
		b.WriteString("\t\tflags interval\n")
	}
	if s.merge {
		b.WriteString("\t\tauto-merge\n")
	}
	if s.counted {
		b.WriteString("\t\tcounter\n")
	}
	switch {
	case !full || len(s.elements) == 0:
	case s.counted: // a line for each
		b.WriteString("\t\telements = {\n")
		for i, e := range s.elements {
			if i > 0 {
				b.WriteString(",\n")
			}
			for _, part := range [...]string{"\t\t\t", e.text, " comment \"", e.words, "\""} {
				b.WriteString(part)
			}
		}
		b.WriteString("\n\t\t}\n")
	default:
		b.WriteString("\t\telements = { ")
		for i, e := range s.elements {
			if i > 0 {
				b.WriteString(", ")
			}
			b.WriteString(e.text)
		}
		b.WriteString(" }\n")
	}
	b.WriteString("\t}\n")
}

// print writes the rule in nft's words. No text in it needs escaping: Compile takes only what does not.
func (l line) print(b *strings.Builder) {
	begin := "\t\t"
	words := func(parts ...string) {
		b.WriteString(begin)
		for _, p := range parts {
			b.WriteString(p)
		}
		begin = " "
	}
	for _, m := range l.match {
		if m.text != "" {
			words(m.text)
		}
	}
	if l.limit != nil {
		words(l.limit.String())
	}
	if l.log != "" {
		words("log prefix \"", l.log, "\" group ", strconv.Itoa(LogGroup))
	}
	if l.counter != "" {
		words("counter name \"", l.counter, "\"")
	}
	if l.verdict.word != "" {
		words(l.verdict.word)
	}
	if l.comment != "" {
		words("comment \"", l.comment, "\"")
	}
	b.WriteByte('\n')
}
