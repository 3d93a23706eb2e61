package engine

import (
	"testing"
)

// What an engine wrote may be cut off or of a version nobody has seen: it is an error, and nothing worse.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"name":"netx","subnets":[{"subnet":"10.89.0.0/24"}],"labels":{"a":"b"}}`))
	f.Add([]byte("WARN[0000] x\n" + `{"image":"2f","ports":{"80/tcp":[{"HostIp":"","HostPort":"1"}]},"mounts":[{"Type":"volume"}]}`))
	f.Add([]byte(`{"subnets":[{"subnet":"10.89.0.0"}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if n, err := parseNetwork(b); err == nil {
			_ = n.Differs(Network{})
		}
		if c, err := parseContainer(string(b)); err == nil && c.Image == "" {
			t.Errorf("%q has no image", b)
		}
		_, _ = Explain(string(b))
	})
}
