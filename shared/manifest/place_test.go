package manifest

import (
	"strings"
	"testing"
)

// A path by another name is the same path.
func TestAPathByAnotherName(t *testing.T) {
	for _, tt := range []struct {
		files []string
		says  string // "" for a manifest that is taken
	}{
		{[]string{"/run/x"}, ""},
		{[]string{"/var/run/x"}, ""},
		{[]string{"/var/runner/x", "/run/ner/x"}, ""},
		{[]string{"/run/x", "/var/run/x"}, "is declared by run.files[0] already"},
		{[]string{"/var/lock/x", "/run/lock/x"}, "is declared by run.files[0] already"},
		{[]string{"/run/x", "/var/run/x/y"}, "is below the file"},
		{[]string{"/run/mesh-agent/status.json"}, "it is mesh's own"},
		{[]string{"/var/run/mesh-agent/status.json"}, "it is mesh's own"},
		{[]string{"/var/run/systemd/x"}, "it is systemd's"},
		{[]string{"/usr/local/bin/mesh-agent"}, "it is mesh's own"},
		{[]string{"/usr/local/bin/mesh-agents"}, ""},
	} {
		m := Manifest{Module: "m"}
		for _, p := range tt.files {
			m.Run.Files = append(m.Run.Files, File{Path: p})
		}
		err := m.Check()
		if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%v: %v, want %q", tt.files, err, tt.says)
		}
	}
}
