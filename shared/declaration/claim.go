package declaration

import (
	"bytes"
	"encoding/json"
)

// Claimed is the seq that s says it has, with nothing of it verified; 0 when it says none. It is for the
// order in which things are looked at and for the words of a refusal; nothing is decided by it.
func (s Signed) Claimed() uint64 {
	_, body, _ := bytes.Cut(s, []byte{'\n'})
	d := json.NewDecoder(bytes.NewReader(body))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return 0
	}
	for d.More() { // Head comes first in what Join makes, so this ends early
		key, err := d.Token()
		if err != nil {
			return 0
		}
		if key == "seq" {
			var seq uint64
			if d.Decode(&seq) != nil {
				return 0
			}
			return seq
		}
		var skipped json.RawMessage
		if d.Decode(&skipped) != nil {
			return 0
		}
	}
	return 0
}
