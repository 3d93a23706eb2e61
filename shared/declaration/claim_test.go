package declaration_test

import (
	"testing"

	"mesh/shared/declaration"
)

func TestClaimed(t *testing.T) {
	for text, want := range map[string]uint64{
		"x y z\n" + `{"format":1,"mesh":"m","node":"n","seq":41,"bus":{}}`:  41,
		"x y z\n" + `{"colour":{"seq":3},"seq":7}`:                          7,
		"x y z\n" + `{"format":1,"seq":12,"cut o`:                           12,
		"x y z\n" + `{"seq":-1}`:                                            0,
		"x y z\n" + `{"seq":"9"}`:                                           0,
		"x y z\n" + `{"format":1}`:                                          0,
		"x y z\n" + `["seq",1]`:                                             0,
		"x y z\n" + `{"a"`:                                                  0,
		"x y z\n" + `{"format":1,"mesh":{"a":1,"seq":3,"b":2},"seq":7}`:     7,
		"x y z\n" + `{"format":1,"mesh":"\",\"seq\":3,","seq":8,"bus":{}}`:  8,
		"x y z\n" + `{"format":1,"mesh":["a","seq",3],"seq":9,"bus":{}}`:    9,
		"x y z\n" + `{"format":1,"mesh":"m","node":"n","seq":4.5,"bus":{}}`: 0,
		"x y z\n" + `{"format":1,"mesh":"m","node":"n","seq":1e3,"bus":{}}`: 0,
		"no line": 0,
		"":        0,
	} {
		if got := declaration.Signed(text).Claimed(); got != want {
			t.Errorf("%q claims %d, want %d", text, got, want)
		}
	}
}

func BenchmarkClaimed(b *testing.B) {
	s := declaration.Signed("x y z\n" + `{"format":1,"mesh":"0123456789","node":"db1","seq":41,"bus":{}}`)
	for b.Loop() {
		if s.Claimed() != 41 {
			b.Fatal("another seq")
		}
	}
}
