package usage

import (
	"errors"
	"testing"

	"github.com/spf13/cobra"
)

func TestWrong(t *testing.T) {
	run := func(*cobra.Command, []string) error { return nil }
	root := &cobra.Command{Use: "tool", Args: cobra.NoArgs, RunE: run, SilenceErrors: true, SilenceUsage: true}
	node := &cobra.Command{Use: "node", Args: cobra.NoArgs, RunE: run}
	invite := &cobra.Command{Use: "invite <node>", Args: cobra.ExactArgs(1), RunE: run}
	invite.Flags().Duration("valid", 0, "")
	node.AddCommand(invite)
	root.AddCommand(node)
	for _, tt := range []struct {
		name string
		args []string
		want string
	}{
		{"a slip is answered with the word", []string{"nodes"}, `wrong usage: unknown command "nodes" for "tool"` + "\n" + `do: did you mean "node"? See tool --help`},
		{"one level down too", []string{"node", "inviet"}, `wrong usage: unknown command "inviet" for "tool node"` + "\n" + `do: did you mean "invite"? See tool node --help`},
		{"a word nothing is like", []string{"frobnicate"}, `wrong usage: unknown command "frobnicate" for "tool"` + "\n" + `do: see tool --help`},
		{"too few arguments", []string{"node", "invite"}, "wrong usage: accepts 1 arg(s), received 0\ndo: write tool node invite <node>; see tool node invite --help"},
		{"a flag nobody knows", []string{"node", "invite", "x", "--dry-run"}, "wrong usage: unknown flag: --dry-run\ndo: write tool node invite <node>; see tool node invite --help"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root.SetArgs(tt.args)
			cmd, err := root.ExecuteContextC(t.Context())
			if err == nil {
				t.Fatal("it was taken")
			}
			if got := Wrong(cmd, err); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
	if got := Wrong(root, errors.New("one\ntwo")); got != "wrong usage: one; two\ndo: see tool --help" {
		t.Errorf("an error of two lines: %q", got)
	}
}
