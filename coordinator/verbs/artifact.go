package verbs

import (
	"context"
	"slices"
	"time"

	"mesh/coordinator/artifact"
	"mesh/coordinator/records"
	"mesh/shared/controller"
	"mesh/shared/declaration"
	"mesh/shared/refusal"
)

// newsWithin is how long an answer waits for artifacts to be read; who asked asks again.
const newsWithin = 4 * time.Second

// artifacts is what the verbs ask of *artifact.Keeper.
type artifacts interface {
	Ready(ctx context.Context, all []declaration.Artifact, wait time.Duration) ([]artifact.Lack, []string, error)
	List(ctx context.Context) ([]artifact.Line, error)
	Verify(ctx context.Context, wait time.Duration) (artifact.Progress, error)
	Hold(ctx context.Context) (give func(), err error)
}

const registerAgain = "register the folder again: mesh-coordinator module register <dir>"

// sound refuses artifacts that could not exist.
func sound(all []declaration.Artifact) error {
	if len(all) > controller.MostArtifacts {
		return refusal.Newf("the artifacts", "split the module", "there are %d, at most %d are taken at once", len(all), controller.MostArtifacts)
	}
	for _, a := range all {
		if err := a.Check(); err != nil {
			return refusal.New("the artifact", err.Error(), registerAgain)
		}
	}
	return nil
}

func (s *Server) artifactReady(ctx context.Context, _ records.By, ask controller.ArtifactReadyAsk) (controller.ArtifactReadyAnswer, error) {
	out := controller.ArtifactReadyAnswer{Lacking: []controller.ArtifactLack{}}
	if err := sound(ask.Artifacts); err != nil {
		return out, err
	}
	lacking, checking, err := s.cfg.Artifacts.Ready(ctx, ask.Artifacts, newsWithin)
	for _, l := range lacking {
		out.Lacking = append(out.Lacking, controller.ArtifactLack(l))
	}
	out.Checking = checking
	return out, err
}

// onBus refuses artifacts that are not all there and right: no machine could fetch them.
func (s *Server) onBus(ctx context.Context, all []declaration.Artifact) error {
	if err := sound(all); err != nil {
		return err
	}
	lacking, checking, err := s.cfg.Artifacts.Ready(ctx, all, newsWithin)
	switch {
	case err != nil:
		return err
	case len(lacking) > 0:
		return refusal.Newf("the artifact "+lacking[0].Digest, registerAgain, "the bus holds %d of its %d chunks, or held other bytes, which were taken off; that is so of %d artifacts in all",
			lacking[0].Have, chunksOf(all, lacking[0].Digest), len(lacking))
	case len(checking) > 0:
		return refusal.Newf("the artifact "+checking[0], "ask again in a moment", "it is still being read, and %d in all", len(checking))
	}
	return nil
}

// mostLines bounds one list of artifacts.
const mostLines = 5000

func (s *Server) listArtifacts(ctx context.Context, _ records.By, _ controller.Nothing) (controller.ArtifactsAnswer, error) {
	out := controller.ArtifactsAnswer{Artifacts: []controller.Artifact{}}
	all, err := s.cfg.Artifacts.List(ctx)
	if len(all) > mostLines {
		out.More = len(all) - mostLines
		all = all[:mostLines]
	}
	for _, l := range all {
		out.Artifacts = append(out.Artifacts, controller.Artifact{Digest: l.Digest, Size: l.Size, Chunks: l.Chunks, Have: l.Have, Build: l.Build, Needed: l.Needed, Checked: l.Checked})
	}
	return out, err
}

func (s *Server) verifyArtifacts(ctx context.Context, _ records.By, _ controller.Nothing) (controller.ArtifactVerifyAnswer, error) {
	p, err := s.cfg.Artifacts.Verify(ctx, newsWithin)
	return controller.ArtifactVerifyAnswer{Running: p.Running, Done: p.Done, Of: p.Of, Wrong: p.Wrong, Failed: p.Failed}, err
}

func chunksOf(all []declaration.Artifact, digest string) int {
	i := slices.IndexFunc(all, func(a declaration.Artifact) bool { return a.Digest == digest })
	if i < 0 {
		return 0
	}
	return all[i].Chunks
}
