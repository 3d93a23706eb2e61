package declaration

import (
	"bytes"
	"encoding/json"
	"strconv"
)

// Claimed is the seq that s says it has, with nothing of it verified; 0 when it says none. It is for the
// order in which things are looked at and for the words of a refusal; nothing is decided by it.
func (s Signed) Claimed() uint64 {
	_, body, _ := bytes.Cut(s, []byte{'\n'})
	if seq, ok := seqOfHead(body); ok {
		return seq
	}
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

// seqOfHead is Claimed for what Join makes, whose head is short and plain; every agent asks at every push.
func seqOfHead(body []byte) (seq uint64, ok bool) {
	const headMost = 256
	before, after, found := bytes.Cut(body[:min(len(body), headMost)], []byte(`,"seq":`))
	if !found || !bytes.HasPrefix(before, []byte(`{"format":`)) || bytes.IndexByte(before, '\\') >= 0 ||
		bytes.Count(before, []byte{'{'}) > 1 || bytes.IndexByte(before, '[') >= 0 || bytes.Count(before, []byte{'"'})%2 != 0 {
		return 0, false // it may be inside of something
	}
	digits, _, found := bytes.Cut(after, []byte{','})
	if !found {
		return 0, false
	}
	seq, err := strconv.ParseUint(string(digits), 10, 64)
	return seq, err == nil
}
