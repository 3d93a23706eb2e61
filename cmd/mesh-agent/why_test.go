package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"mesh/agent/exposure"
	"mesh/testbus/netlab"
)

// NET-12: without a daemon, in any namespace, with an exit code to go by.
func TestWhyCommand(t *testing.T) {
	lab := netlab.New(t)
	lab.Host.Run("table inet x {\nchain input {\ntype filter hook input priority 0; policy drop;\ntcp dport 22 accept\ntcp dport 80 meta cgroup 7 accept\n}\n}\n", "nft", "-f", "-")
	state := t.TempDir() // no store: this machine is in no mesh
	for line, want := range map[string]struct {
		code  int
		words string
	}{
		"why tcp 22":                  {0, "22/tcp from anybody over up0: let in"},
		"why tcp 23":                  {1, "the policy drop of inet x input"},
		"why tcp 80":                  {2, "depends on meta cgroup 7, in inet x input"},
		"why tcp 23 from 203.0.113.9": {1, "23/tcp from 203.0.113.9 over up0: REFUSED"},
		"why tcp":                     {2, "it does not say which port"},
		"why tcp 1 from nowhere0":     {2, "this machine has no such link"},
		"why":                         {2, "why tcp 22 from"},
		"show exposure":               {0, "no packet filter of mesh is in force here"},
		"show exposure --json":        {0, `"filtered": false`},
		"bans":                        {0, "nobody is banned here"},
		"bans nobody":                 {1, "is no address"},
		"bans --json":                 {0, `"bans": []`},
		"why tcp 22 from 10.99.0.2":   {0, "over mesh0: let in"},
	} {
		var out, errs bytes.Buffer
		code := -1
		lab.Host.Do(func() {
			code = run(t.Context(), append(strings.Fields(line), "--state-dir", state, "--run-dir", state), &out, &errs)
		})
		if text := out.String() + errs.String(); code != want.code || !strings.Contains(text, want.words) {
			t.Errorf("%s: exit %d, want %d with %q:\n%s", line, code, want.code, want.words, text)
		}
	}
	out, err := in(t, lab.Host, "why", "tcp", "22", "--json", "--state-dir", state)
	var w exposure.Why
	if err != nil || json.Unmarshal([]byte(out), &w) != nil || w.Verdict != "accepted" || len(w.Ways) != 2 || w.Ways[0].Answer.Passed[0].Chain != "input" {
		t.Errorf("%v: %s", err, out)
	}
}
