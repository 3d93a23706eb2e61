package controller

import (
	"time"

	"mesh/shared/declaration"
)

// MostArtifacts is how many artifacts one question may name: sixteen images of all their layers.
const MostArtifacts = 2100

// ArtifactReadyAsk asks which of these the bus lacks, before and after they are put there.
type ArtifactReadyAsk struct {
	Artifacts []declaration.Artifact `json:"artifacts"`
}

// ArtifactReadyAnswer says what is still to be put on the bus. What was there and had other bytes than its
// digest says was taken off, and is lacking.
type ArtifactReadyAnswer struct {
	Lacking []ArtifactLack `json:"lacking"`
	// Checking are the digests of those that are being read: ask again.
	Checking []string `json:"checking,omitempty"`
}

// ArtifactLack is an artifact that the bus does not hold whole.
type ArtifactLack struct {
	Digest string `json:"digest"`
	// Have is how many of its first chunks are there already.
	Have int `json:"have"`
}

// Artifact is one line about an artifact on the bus.
type Artifact struct {
	Digest string `json:"digest"`
	// Size and Chunks are 0 when no build names it.
	Size   int64 `json:"size"`
	Chunks int   `json:"chunks"`
	// Have is how many of its chunks are there.
	Have int `json:"have"`
	// Build is one that needs it. What has none and is not Needed is removed after a day.
	Build  string `json:"build,omitempty"`
	Needed bool   `json:"needed"`
	// Checked is when its bytes were read and had the digest.
	Checked time.Time `json:"checked,omitzero"`
}

// ArtifactsAnswer is everything in the stream ARTIFACTS.
type ArtifactsAnswer struct {
	Artifacts []Artifact `json:"artifacts"`
	// More counts those that are not listed: an answer has to fit one message.
	More int `json:"more,omitempty"`
}

// ArtifactVerifyAnswer says how reading every artifact goes.
type ArtifactVerifyAnswer struct {
	// Running: ask again.
	Running bool `json:"running"`
	Done    int  `json:"done"`
	Of      int  `json:"of"`
	// Wrong had other bytes than their digests say, and were taken off the bus.
	Wrong []string `json:"wrong,omitempty"`
	// Failed could not be read.
	Failed []string `json:"failed,omitempty"`
}
