package strict

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

type leaf struct {
	Port int             `json:"port"`
	Raw  json.RawMessage `json:"raw,omitempty"`
}

type tree struct {
	Name  string          `json:"name"`
	List  []leaf          `json:"list,omitempty"`
	Named map[string]leaf `json:"named,omitempty"`
	Ptr   *tree           `json:"ptr,omitempty"`
}

// slowly is the walk with encoding/json's own reader.
func slowly(data []byte) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	return walk(dec, reflect.TypeFor[tree](), nil, 0)
}

func quickly(data []byte) error {
	w := walker{data: data}
	return w.value(reflect.TypeFor[tree](), nil, 0)
}

func both(t *testing.T, text []byte) {
	t.Helper()
	if !json.Valid(text) || !utf8.Valid(text) { // what Decode lets through to the walk
		return
	}
	if a, b := fmt.Sprint(slowly(text)), fmt.Sprint(quickly(text)); a != b {
		t.Errorf("%q: encoding/json's reader says %s, the quick walk %s", text, a, b)
	}
}

var texts = []string{
	`{}`, ` [ ] `, `"x"`, `-1.5e3`, `null`, `true`, `{"name":"a","list":[{"port":1},{"port":2,"raw":{"any":[1,{"x":null}]}}]}`,
	"{ \"name\" :\t\"a\" ,\n\"named\" : { \"k\" : { \"port\" : 1 } , \"l\":{} } }", `{"name":"a\"},{\\","list":[]}`, `{"na\u006de":"x","name":"y"}`,
	`{"ptr":{"ptr":{"ptr":null}}}`, `{"list":[{"prt":1}]}`, `{"named":{"x":{"y":1}}}`, `{"NAME":1}`, `{"list":[{"raw":{"a":1,"a":2}}]}`, `{"":1}`,
	`{"named":{` + strings.Repeat(`"k":{},`, 1) + `"k":{}}}`, `{"list":[[[[]]],[]]}`, `[{"name":1},2,"]"]`,
}

func TestBothWalksAgree(t *testing.T) {
	for _, text := range texts {
		both(t, []byte(text))
	}
	many := make([]string, 40)
	for i := range many {
		many[i] = fmt.Sprintf(`"k%d":{}`, i)
	}
	both(t, []byte(`{"named":{`+strings.Join(many, ",")+`}}`))
	both(t, []byte(`{"named":{`+strings.Join(many, ",")+`,"k39":{}}}`))
	both(t, []byte(`{"named":{`+strings.Join(many, ",")+`,"k3":{}}}`))
	for depth := MaxDepth - 2; depth < MaxDepth+3; depth++ {
		both(t, []byte(strings.Repeat(`{"ptr":`, depth)+`1`+strings.Repeat("}", depth)))
		both(t, []byte(`{"list":[{"raw":`+strings.Repeat("[", depth)+strings.Repeat("]", depth)+`}]}`))
	}
}

func FuzzBothWalks(f *testing.F) {
	for _, text := range texts {
		f.Add([]byte(text))
	}
	f.Fuzz(both)
}

func BenchmarkDecode(b *testing.B) {
	v := tree{Name: "x", Named: map[string]leaf{}}
	for i := range 40 {
		v.Named[fmt.Sprint(i)] = leaf{Port: i, Raw: json.RawMessage(`{"content":"` + strings.Repeat(`setting = value\n`, 9) + `"}`)}
	}
	text, err := json.Marshal(v)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		var v tree
		if err := Decode(text, &v); err != nil {
			b.Fatal(err)
		}
	}
}
