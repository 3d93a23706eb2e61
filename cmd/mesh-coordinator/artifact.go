package main

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"mesh/coordinator/client"
	"mesh/shared/controller"
	"mesh/shared/refusal"
)

func (a *app) artifact() *cobra.Command {
	return group("artifact", "What lies on the bus for the machines: bundles, and the layers of images", "mesh-coordinator artifact list",
		a.artifactList(), a.artifactVerify())
}

func (a *app) artifactList() *cobra.Command {
	cmd := a.verb(controller.Artifacts, "list", cobra.NoArgs)
	cmd.Long = "List the bundles and the parts of images on the bus, and a build that needs each. What no build needs is removed after a day."
	return asking(a, cmd, controller.Artifacts, nothing,
		func(r controller.ArtifactsAnswer) error {
			a.none(len(r.Artifacts), "nothing is on the bus; a module with a bundle or an image brings it there: mesh-coordinator module register <dir>")
			if r.More > 0 {
				fmt.Fprintf(a.err, "and %d more\n", r.More)
			}
			return writeArtifacts(a.out, r, a.clk.Now())
		})
}

func writeArtifacts(w io.Writer, r controller.ArtifactsAnswer, now time.Time) error {
	rows := make([][]string, 0, len(r.Artifacts))
	for _, x := range r.Artifacts {
		state := "right"
		switch {
		case x.Chunks == 0:
			state = fmt.Sprintf("%d chunks", x.Have)
		case x.Have < x.Chunks:
			state = fmt.Sprintf("%d of %d chunks", x.Have, x.Chunks)
		case x.Checked.IsZero():
			state = "not read yet"
		}
		needed := x.Build
		switch {
		case needed == "" && x.Needed:
			needed = "a declaration"
		case needed == "":
			needed = "nothing"
		}
		bytes := "-"
		if x.Size > 0 {
			bytes = size(x.Size)
		}
		rows = append(rows, []string{short(x.Digest), bytes, state, ago(now, x.Checked), needed})
	}
	return table(w, "ARTIFACT | SIZE | STATE | READ | NEEDED BY", rows)
}

func (a *app) artifactVerify() *cobra.Command {
	cmd := a.verb(controller.ArtifactVerify, "verify", cobra.NoArgs)
	cmd.Long = "Read every bundle and layer on the bus again and hold it against its digest. What is damaged is taken off, and has to be registered again."
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := a.connect(cmd.Context())
		if err != nil {
			return err
		}
		defer c.Close()
		var answer controller.ArtifactVerifyAnswer
		for first := true; first || answer.Running; first = false {
			if answer, err = client.Ask[controller.ArtifactVerifyAnswer](cmd.Context(), c, controller.ArtifactVerify, controller.Nothing{}); err != nil {
				return err
			}
			if a.fancy && answer.Running {
				fmt.Fprintf(a.err, "\rread %d of %d", answer.Done, answer.Of)
			}
		}
		if a.fancy {
			fmt.Fprint(a.err, "\r\033[K")
		}
		if err := a.show(cmd, answer, func() error {
			_, err := fmt.Fprintf(a.out, "%d artifacts were read, %d were damaged\n", answer.Done, len(answer.Wrong))
			return err
		}); err != nil {
			return err
		}
		if len(answer.Wrong) > 0 {
			return refusal.Newf("artifact "+short(answer.Wrong[0]), "register the modules again that mesh-coordinator status names", "it is damaged and was taken off the bus, and %d in all", len(answer.Wrong))
		}
		if len(answer.Failed) > 0 {
			return fmt.Errorf("%d artifacts could not be read, the first is %s", len(answer.Failed), answer.Failed[0])
		}
		return nil
	}
	return cmd
}
