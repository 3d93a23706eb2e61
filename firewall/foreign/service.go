package foreign

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Served are the tables that nftables.service loads on the machine whose files begin at root, as
// "inet filter": those its file names, when the unit is enabled. Nothing in a table itself says that
// it came from there. Put them into Ruleset.Served before Judge.
func Served(root string) []string {
	enabled, err := filepath.Glob(filepath.Join(root, "etc/systemd/system/*.wants/nftables.service"))
	if err != nil || len(enabled) == 0 {
		return nil
	}
	return tablesIn(ServiceText(root))
}

// serviceFile is what nftables.service loads; its includes are looked for in serviceFolder (nft(8)).
const (
	serviceFile   = "/etc/nftables.conf"
	serviceFolder = "/etc"
	// mostServiceText bounds what is read of it and its includes, in bytes, and how deep they go.
	mostServiceText  = 8 << 20
	mostServiceDepth = 16
)

// ServiceText is the file that nftables.service loads on the machine whose files begin at root, with what it
// includes in place; empty when it cannot be read.
func ServiceText(root string) string {
	var b strings.Builder
	include(&b, root, serviceFile, 0)
	return b.String()
}

// ServiceTables are the tables named in text.
func ServiceTables(text string) []string { return tablesIn(text) }

// include adds the files that pattern names. What cannot be read is left out: nft itself would stop there.
func include(b *strings.Builder, root, pattern string, depth int) {
	files, err := filepath.Glob(filepath.Join(root, pattern))
	if err != nil || depth > mostServiceDepth {
		return
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil || b.Len()+len(text) > mostServiceText {
			continue
		}
		for line := range strings.Lines(string(text)) {
			words := strings.Fields(line)
			if len(words) < 2 || words[0] != "include" {
				b.WriteString(line)
				continue
			}
			name := strings.Trim(words[1], `"';`)
			if !filepath.IsAbs(name) {
				name = filepath.Join(serviceFolder, name)
			}
			include(b, root, name, depth+1)
		}
		b.WriteByte('\n')
	}
}

// tablesIn finds the tables an nft file opens with "table [family] name {".
func tablesIn(file string) []string {
	var tables []string
	for line := range strings.Lines(file) {
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(strings.ReplaceAll(line, "{", " { "))
		if len(words) < 2 || words[0] != "table" {
			continue
		}
		family := "ip"
		if slices.Contains([]string{"ip", "ip6", "inet", "arp", "bridge", "netdev"}, words[1]) && len(words) > 2 && words[2] != "{" {
			family, words = words[1], words[1:]
		}
		tables = addWord(tables, family+" "+words[1])
	}
	return tables
}
