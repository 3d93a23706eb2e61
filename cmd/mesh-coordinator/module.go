package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"mesh/coordinator/client"
	"mesh/shared/controller"
	"mesh/shared/declaration"
	"mesh/shared/refusal"
	"mesh/shared/subject"
)

func (a *app) module() *cobra.Command {
	return group("module", "What can run: registered modules", "mesh-coordinator module list",
		a.moduleList(), a.moduleCheck(), a.moduleRegister(), a.moduleShow())
}

func (a *app) moduleList() *cobra.Command {
	return asking(a, a.verb(controller.Modules, "list", cobra.NoArgs), controller.Modules, nothing,
		func(r controller.ModulesAnswer) error {
			a.none(len(r.Modules), "no module is registered; register one: mesh-coordinator module register <dir>")
			return writeModules(a.out, r, a.clk.Now())
		})
}

func writeModules(w io.Writer, r controller.ModulesAnswer, now time.Time) error {
	rows := make([][]string, 0, len(r.Modules))
	for _, m := range r.Modules {
		rows = append(rows, []string{string(m.Name), m.Build, ago(now, m.Registered), brings(m), or(names(m.Nodes), "-"), m.Description})
	}
	return table(w, "MODULE | BUILD | REGISTERED | BUNDLE | NODES | WHAT FOR", rows)
}

// brings is what of a module travels to the machines.
func brings(m controller.Module) string {
	if m.Artifact != nil || len(m.Images) == 0 {
		return artifact(m.Artifact)
	}
	named := map[string]bool{}
	for _, i := range m.Images {
		named[i.Name] = true
	}
	if len(named) == 1 {
		return "an image"
	}
	return fmt.Sprintf("%d images", len(named))
}

func artifact(a *declaration.Artifact) string {
	if a == nil {
		return "-"
	}
	return short(a.Digest) + " " + size(a.Size)
}

// names lists a few nodes and counts the rest.
func names(nodes []subject.Node) string {
	const most = 5
	list := make([]string, 0, most+1)
	for i, n := range nodes {
		if i == most {
			list = append(list, fmt.Sprintf("and %d more", len(nodes)-most))
			break
		}
		list = append(list, string(n))
	}
	return strings.Join(list, ", ")
}

func (a *app) moduleCheck() *cobra.Command {
	cmd := &cobra.Command{
		Use: "check <dir>", Short: "Check a module's folder, offline: every problem in one run", Args: cobra.ExactArgs(1),
		Example: "  mesh-coordinator module check ./notes",
		RunE: func(cmd *cobra.Command, given []string) error {
			m, err := client.Check(given[0])
			if err != nil {
				return err
			}
			if r := refusal.Of(client.Built(given[0], m)); r != nil {
				fmt.Fprintf(a.err, "%s is not built yet: %s\n", r.What, r.Why)
			}
			_, err = fmt.Fprintf(a.out, "%s is right\n", m.Module)
			return err
		},
	}
	return cmd
}

func (a *app) moduleRegister() *cobra.Command {
	cmd := a.verb(controller.ModuleRegister, "register <dir>", cobra.ExactArgs(1))
	cmd.Long = "Check a module's folder, pack its bundle, put it and its images on the bus and register all as the module's newest build."
	reason := why(cmd)
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		m, err := client.Check(given[0]) // before anything is asked of the network
		if err == nil {
			err = client.Built(given[0], m)
		}
		if err != nil {
			return err
		}
		c, err := a.connect(cmd.Context())
		if err != nil {
			return err
		}
		defer c.Close()
		answer, err := c.Register(cmd.Context(), given[0], *reason, a.uploading)
		if err != nil {
			return err
		}
		return a.show(cmd, answer, func() error {
			if !answer.Changed {
				fmt.Fprintln(a.err, "it is the newest already")
			}
			_, err := fmt.Fprintf(a.out, "%s %s\n", answer.Module, answer.Build)
			if err == nil && answer.Changed && len(answer.Nodes) > 0 {
				fmt.Fprintf(a.err, "it is assigned to %s; see mesh-coordinator plan, then push\n", names(answer.Nodes))
			}
			return err
		})
	}
	return cmd
}

// uploading says how an upload goes, on a terminal only.
func (a *app) uploading(done, of int) {
	if !a.fancy || of < 8 {
		return
	}
	fmt.Fprintf(a.err, "\rupload %d %%", 100*done/of)
	if done == of {
		fmt.Fprint(a.err, "\r\033[K")
	}
}

func (a *app) moduleShow() *cobra.Command {
	return asking(a, a.verb(controller.ModuleShow, "show <module>", cobra.ExactArgs(1)), controller.ModuleShow,
		func(given []string) (any, error) {
			m, err := subject.ParseModule(given[0])
			return controller.ModuleAsk{Module: m}, err
		},
		func(r controller.ModuleAnswer) error { return writeModule(a.out, r, a.clk.Now()) })
}

func writeModule(w io.Writer, m controller.ModuleAnswer, now time.Time) error {
	if err := facts(w, "module", string(m.Name), "what for", m.Description, "build", m.Build, "registered", since(now, m.Registered),
		"bundle", artifact(m.Artifact), "images", imageList(m.Images), "nodes", or(names(m.Nodes), "none")); err != nil {
		return err
	}
	rows := make([][]string, 0, len(m.Builds))
	for _, b := range m.Builds {
		rows = append(rows, []string{b.ID, ago(now, b.Registered), artifact(b.Artifact), b.Source, imageList(b.Images)})
	}
	return table(w, "BUILD | REGISTERED | BUNDLE | FROM | IMAGES", rows)
}

// imageList is the images of a module in one line.
func imageList(all []controller.ModuleImage) string {
	words := make([]string, len(all))
	for i, m := range all {
		words[i] = fmt.Sprintf("%s (%s, %s, %s)", m.Name, m.Arch, short(m.ID), size(m.Size))
	}
	return or(strings.Join(words, ", "), "-")
}

func (a *app) assign() *cobra.Command {
	cmd := a.verb(controller.Assign, "assign <node> <module>", cobra.ExactArgs(2))
	cmd.Long = "Say that a module runs on a node. Settings that are not named stay as they were. It reaches the machine with the next push.\nSecrets are sealed here, to the machine's own key: nobody else can open them."
	set := cmd.Flags().StringArray("set", nil, "a setting, `key=value`")
	secret := cmd.Flags().StringArray("secret", nil, "a secret, `key=value` or key=@file (one line end at the end of the file is dropped)")
	unset := cmd.Flags().StringArray("unset", nil, "let a setting go back to the manifest's default")
	reason := why(cmd)
	cmd.RunE = func(cmd *cobra.Command, given []string) error {
		ask, err := assignAsk(given)
		if err != nil {
			return err
		}
		ask.Unset, ask.Why = *unset, *reason
		if ask.Settings, err = pairs("--set", *set, plain); err != nil {
			return err
		}
		secrets, err := pairs("--secret", *secret, fileOrPlain)
		if err != nil {
			return err
		}
		c, err := a.connect(cmd.Context())
		if err != nil {
			return err
		}
		defer c.Close()
		answer, err := c.Assign(cmd.Context(), ask, secrets)
		if err != nil {
			return err
		}
		return a.show(cmd, answer, func() error {
			did := "assigned; it reaches the machine with the next push: mesh-coordinator push " + given[0] + " --why …"
			if !answer.Changed {
				did = "it was so already"
			}
			_, err := fmt.Fprintln(a.out, did)
			return err
		})
	}
	return cmd
}

func assignAsk(given []string) (controller.AssignAsk, error) {
	n, err := subject.ParseNode(given[0])
	if err != nil {
		return controller.AssignAsk{}, err
	}
	m, err := subject.ParseModule(given[1])
	return controller.AssignAsk{Node: n, Module: m}, err
}

func plain(v string) (string, error) { return v, nil }

// fileOrPlain reads "@file".
func fileOrPlain(v string) (string, error) {
	path, ok := strings.CutPrefix(v, "@")
	if !ok {
		return v, nil
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return "", refusal.New("the secret in "+path, err.Error(), "name a file you can read")
	}
	return strings.TrimSuffix(string(b), "\n"), nil
}

// pairs reads key=value.
func pairs(flag string, given []string, value func(string) (string, error)) (map[string]string, error) {
	if len(given) == 0 {
		return nil, nil
	}
	out := make(map[string]string, len(given))
	for _, g := range given {
		k, v, ok := strings.Cut(g, "=")
		if !ok || k == "" {
			return nil, refusal.New(flag+" without key=value", "it would set nothing", "write it as "+flag+" key=value")
		}
		if _, twice := out[k]; twice {
			return nil, refusal.New(flag+" "+k, "it is given twice", "give it once")
		}
		var err error
		if out[k], err = value(v); err != nil {
			return nil, err
		}
	}
	return out, nil
}
