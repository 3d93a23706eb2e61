// Package usage says what was wrong with a command line, the same in all programs of mesh: two lines,
// the second with the form the command takes or the word that was probably meant. It prints nothing and
// chooses no exit code; that is the program's.
package usage

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// slips is how many letters a word may be away from the command that is offered for it.
const slips = 2

// Wrong is what to tell whoever called cmd in a way it does not take; err is cobra's.
func Wrong(cmd *cobra.Command, err error) string {
	what := strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; ")
	help := cmd.CommandPath() + " --help"
	if word, ok := unknown(what); ok {
		cmd.SuggestionsMinimumDistance = slips
		if near := cmd.SuggestionsFor(word); len(near) > 0 {
			return fmt.Sprintf("wrong usage: %s\ndo: did you mean %q? See %s", what, near[0], help)
		}
	}
	if !strings.Contains(cmd.Use, " ") { // there is no form to show
		return fmt.Sprintf("wrong usage: %s\ndo: see %s", what, help)
	}
	return fmt.Sprintf("wrong usage: %s\ndo: write %s; see %s", what, strings.TrimSuffix(cmd.UseLine(), " [flags]"), help)
}

// unknown is the word that is no command, from cobra's words.
func unknown(what string) (string, bool) {
	rest, ok := strings.CutPrefix(what, `unknown command "`)
	word, _, closed := strings.Cut(rest, `"`)
	return word, ok && closed
}
