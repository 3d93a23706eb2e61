package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/spf13/cobra"

	"mesh/coordinator/client"
	"mesh/shared/controller"
	"mesh/shared/manifest"
	"mesh/shared/refusal"
	"mesh/shared/subject"
)

// call is "mesh-coordinator call": any verb of any seat or module.
func (a *app) call() *cobra.Command {
	cmd := &cobra.Command{Use: "call <seat|module>.<verb> [node] [json|key=value…]", Short: "Ask a verb of a seat or module, and print its answer", Args: cobra.MinimumNArgs(1),
		Example: "  mesh-coordinator call mesh-controller.status\n  mesh-coordinator call node-engine.facts db1\n  mesh-coordinator call notes.prune db1 days=30\n  mesh-coordinator call notes.prune '{\"days\": 30}'"}
	a.clientFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		c, err := a.connect(cmd.Context())
		if err != nil {
			return err
		}
		defer c.Close()
		all, err := client.Ask[controller.ToolsAnswer](cmd.Context(), c, controller.Tools, controller.Nothing{})
		if err != nil {
			return err
		}
		t, n, args, err := callArgs(all.Tools, given)
		if err != nil {
			return err
		}
		answer, err := c.AskTool(cmd.Context(), t, n, args)
		if err != nil {
			return err
		}
		return indented(a.out, answer)
	}
	cmd.ValidArgsFunction = a.completeCall
	cmd.AddCommand(a.callShow())
	return cmd
}

// callArgs takes the command's words apart: the verb, the machine it is asked of, and its argument, which is held
// against the verb's schema (SEA-10).
func callArgs(tools []controller.Tool, given []string) (t controller.Tool, n subject.Node, args json.RawMessage, err error) {
	if t, err = findTool(tools, given[0]); err != nil {
		return t, n, nil, err
	}
	words := given[1:]
	if mayName := t.PerNode || t.Module != ""; mayName && len(words) > 0 && !strings.ContainsAny(words[0], "={") {
		if n, err = subject.ParseNode(words[0]); err != nil {
			return t, n, nil, err
		}
		words = words[1:]
	}
	if t.PerNode && n == "" {
		return t, n, nil, refusal.New("the verb "+given[0], "it is asked of one machine, and none is named", "name it: mesh-coordinator call "+given[0]+" <node>")
	}
	if args, err = argument(t, words); err != nil {
		return t, n, nil, err
	}
	return t, n, args, fits(t, args)
}

func holder(t controller.Tool) string {
	if t.Seat != "" {
		return string(t.Seat)
	}
	return string(t.Module)
}

func findTool(tools []controller.Tool, name string) (controller.Tool, error) {
	var known []string
	for _, t := range tools {
		full := holder(t) + "." + string(t.Verb)
		if full == name {
			return t, nil
		}
		known = append(known, full)
	}
	do := "list them: mesh-coordinator tool list"
	if s := manifest.Suggest(name, known); s != "" {
		do = fmt.Sprintf("did you mean %q?", s)
	}
	return controller.Tool{}, refusal.New("the verb "+name, "no seat and no module has it", do)
}

// argument is the JSON that words are: one JSON text, or key=value pairs whose values the schema gives a type.
func argument(t controller.Tool, words []string) (json.RawMessage, error) {
	if len(words) == 0 {
		return json.RawMessage("{}"), nil
	}
	if strings.HasPrefix(words[0], "{") {
		if len(words) > 1 || !json.Valid([]byte(words[0])) {
			return nil, refusal.New("the argument", "it is no JSON object", `write '{"key": "value"}' as one word, or key=value words`)
		}
		return json.RawMessage(words[0]), nil
	}
	var schema struct {
		Properties map[string]struct {
			Type any `json:"type"`
		} `json:"properties"`
	}
	if len(t.Schema) > 0 {
		if err := json.Unmarshal(t.Schema, &schema); err != nil {
			return nil, fmt.Errorf("the schema of %s: %w", t.Verb, err)
		}
	}
	args := map[string]any{}
	for _, w := range words {
		key, value, ok := strings.Cut(w, "=")
		if !ok || key == "" {
			return nil, refusal.Newf("the argument", "write key=value, or a JSON object", "%q is neither", w)
		}
		args[key] = value
		if p, known := schema.Properties[key]; known && json.Valid([]byte(value)) && !isText(p.Type) {
			args[key] = json.RawMessage(value)
		}
	}
	return json.Marshal(args)
}

// isText reports whether a schema's type takes a string.
func isText(t any) bool {
	if all, ok := t.([]any); ok {
		return slices.ContainsFunc(all, isText)
	}
	return t == "string"
}

// fits holds args against the verb's schema; the refusal names the field.
func fits(t controller.Tool, args json.RawMessage) error {
	if len(t.Schema) == 0 {
		return nil
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(t.Schema, &s); err != nil {
		return fmt.Errorf("the schema of %s: %w", t.Verb, err)
	}
	rules, err := s.Resolve(nil)
	if err != nil {
		return fmt.Errorf("the schema of %s: %w", t.Verb, err)
	}
	var v map[string]any
	if err := json.Unmarshal(args, &v); err != nil {
		return refusal.New("the argument", "it is no JSON object", "write key=value, or a JSON object")
	}
	if err := rules.Validate(v); err != nil {
		return refusal.Newf("the argument of "+holder(t)+"."+string(t.Verb), "see its schema: mesh-coordinator tool list --json", "%v", oneLine(err.Error()))
	}
	return nil
}

func indented(w io.Writer, answer json.RawMessage) error {
	if len(answer) == 0 {
		answer = json.RawMessage("{}")
	}
	var b bytes.Buffer
	if err := json.Indent(&b, answer, "", "  "); err != nil {
		return fmt.Errorf("the answer is no JSON: %w", err)
	}
	b.WriteByte('\n')
	_, err := w.Write(b.Bytes())
	return err
}

// completeCall offers verbs, then nodes; nothing when the mesh cannot be asked.
func (a *app) completeCall(cmd *cobra.Command, given []string, _ string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), 3*time.Second)
	defer cancel()
	c, err := a.connect(ctx)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer c.Close()
	var out []string
	switch len(given) {
	case 0:
		all, err := client.Ask[controller.ToolsAnswer](ctx, c, controller.Tools, controller.Nothing{})
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		for _, t := range all.Tools {
			out = append(out, holder(t)+"."+string(t.Verb)+"\t"+t.Description)
		}
	case 1:
		all, err := client.Ask[controller.NodesAnswer](ctx, c, controller.Nodes, controller.Nothing{})
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		for _, n := range all.Nodes {
			out = append(out, string(n.Name))
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

func (a *app) callShow() *cobra.Command {
	cmd := a.verb(controller.CallShow, "show <call>", cobra.ExactArgs(1))
	return asking(a, cmd, controller.CallShow, func(given []string) (any, error) { return controller.CallShowAsk{ID: given[0]}, nil },
		func(c controller.Call) error { return writeCall(a.out, c) })
}

func writeCall(w io.Writer, c controller.Call) error {
	fmt.Fprintf(w, "%s: %s of %s, %s\n", c.ID, c.Verb, c.Caller, c.State)
	fmt.Fprintf(w, "began %s", c.Began.UTC().Format(time.RFC3339))
	if !c.Ended.IsZero() {
		fmt.Fprintf(w, ", took %v", time.Duration(c.TookMS)*time.Millisecond)
	}
	fmt.Fprintln(w)
	if len(c.Args) > 0 {
		fmt.Fprintf(w, "asked with %s\n", c.Args)
	}
	if len(c.Answer) == 0 {
		if c.State == controller.CallRunning {
			return nil
		}
		_, err := fmt.Fprintf(w, "its answer had %d bytes and is not kept\n", c.Bytes)
		return err
	}
	return indented(w, c.Answer)
}

func (a *app) calls() *cobra.Command {
	cmd := a.verb(controller.Calls, "calls", cobra.NoArgs)
	limit := cmd.Flags().Int("limit", 50, "how many, at most 1000")
	of := cmd.Flags().String("verb", "", "only of this verb")
	caller := cmd.Flags().String("caller", "", "only of this principal, such as operator-ada")
	return asking(a, cmd, controller.Calls,
		func([]string) (any, error) {
			return controller.CallsAsk{Limit: *limit, Verb: subject.Verb(*of), Caller: *caller}, nil
		},
		func(r controller.CallsAnswer) error {
			rows := make([][]string, 0, len(r.Calls))
			for _, c := range r.Calls {
				rows = append(rows, []string{c.ID, ago(a.clk.Now(), c.Began), c.Caller, string(c.Verb), c.State, (time.Duration(c.TookMS) * time.Millisecond).String()})
			}
			return table(a.out, "CALL | AGO | WHO | ASKED | STATE | TOOK", rows)
		})
}
