package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"mesh/agent"
	"mesh/agent/plan"
	"mesh/shared/clock"
	"mesh/shared/credential"
	"mesh/shared/declaration"
)

// planCommand is "mesh-agent plan": the steps a declaration would take here, and why each.
func planCommand(at *places) *cobra.Command {
	var file string
	var asJSON bool
	cmd := &cobra.Command{
		Use: "plan [--file FILE]", Short: "Print the steps a declaration would take on this machine, and take none", Args: cobra.NoArgs,
		Long: `Print the steps that a signed declaration would take on this machine, in their order and each with its reason, and
what is in the way of it. Without --file it is the declaration that this machine holds: the steps of the next look.
Nothing is changed, and nothing is fetched.`,
		Example: "  mesh-agent plan\n  mesh-agent plan --file declaration.signed --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			cred, err := credential.Load(filepath.Join(at.state, agent.CredentialFile))
			if err != nil {
				return fmt.Errorf("%w\ndo: enrol this machine: mesh-installer enrol <line>", err)
			}
			var signed declaration.Signed
			if file != "" {
				if signed, err = readWhole(cmd.InOrStdin(), file); err != nil {
					return err
				}
			}
			store, err := shower{at: *at, clk: clock.Real()}.open(cmd.Context())
			if err != nil {
				return err
			}
			defer store.Close() // read only: nothing is lost
			p, err := agent.Preview(cmd.Context(), cred, store, at.state, at.root, signed)
			if err != nil {
				return err
			}
			if asJSON {
				return printPlanJSON(cmd.OutOrStdout(), p)
			}
			return printPlan(cmd.OutOrStdout(), p)
		},
	}
	cmd.Flags().StringVar(&file, "file", "", "the file of a signed declaration, - for standard input")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// planned is one step as JSON.
type planned struct {
	Module string `json:"module,omitempty"`
	Step   string `json:"step"`
	Thing  string `json:"thing"`
	Why    string `json:"why"`
}

func printPlanJSON(w io.Writer, p plan.Plan) error {
	out := struct {
		Steps   []planned         `json:"steps"`
		Refused map[string]string `json:"refused,omitempty"`
		Found   []planned         `json:"found,omitempty"`
	}{Steps: []planned{}, Refused: map[string]string{}}
	for _, s := range p.Steps {
		out.Steps = append(out.Steps, planned{string(s.Module), string(s.Op), s.ID, s.Reason})
	}
	for _, of := range []map[string]error{text(p.Unknown), text(p.Failed)} {
		for m, err := range of {
			out.Refused[m] = err.Error()
		}
	}
	for _, f := range p.Found {
		out.Found = append(out.Found, planned{string(f.Module), "", f.ID, f.What})
	}
	return json.NewEncoder(w).Encode(out)
}

func text[M ~string](of map[M]error) map[string]error {
	out := make(map[string]error, len(of))
	for m, err := range of {
		out[string(m)] = err
	}
	return out
}

// printPlan prints what is in the way first, then the steps.
func printPlan(w io.Writer, p plan.Plan) error {
	for _, of := range []map[string]error{text(p.Failed), text(p.Unknown)} {
		for _, m := range slices.Sorted(maps.Keys(of)) {
			if _, err := fmt.Fprintln(w, of[m]); err != nil {
				return err
			}
		}
	}
	if len(p.Steps) == 0 {
		_, err := fmt.Fprintln(w, "nothing to do")
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "MODULE\tSTEP\tTHING\tWHY")
	for _, s := range p.Steps {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\n", s.Module, s.Op, s.Name(), s.Reason)
	}
	return tw.Flush()
}
