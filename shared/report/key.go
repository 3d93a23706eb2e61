package report

import "mesh/shared/subject"

// MaxKeys bounds the keys in one report.
const MaxKeys = 1000

// Key is the public key that a machine made for one of its instances; the private half never leaves it.
type Key struct {
	Module subject.Module `json:"module"`
	Key    string         `json:"key"`
}
