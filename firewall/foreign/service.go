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
	b, err := os.ReadFile(filepath.Join(root, "etc/nftables.conf"))
	if err != nil {
		return nil
	}
	return tablesIn(string(b))
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
