package records_test

import (
	"crypto/rand"
	"encoding/json"
	"maps"
	"testing"

	"mesh/coordinator/records"
	"mesh/shared/refusal"
)

type cryptoRand struct{}

func (cryptoRand) Read(b []byte) (int, error) { return rand.Read(b) }

// FuzzTexts holds the fast reader of settings against encoding/json.
func FuzzTexts(f *testing.F) {
	for _, s := range []string{`{}`, ``, `{"a":"b"}`, `{"a":"b","c":"d"}`, `{"a":"\u0041"}`, `{"a":"b",}`, `{"a":1}`, `{"a":"b"}x`, `{"a":"ü"}`,
		`{"a":"b" , "c":"d"}`, `{"a":"b","a":"c"}`, "{\"a\":\"\x01\"}", `{"a":"b""c":"d"}`, "{\"a\":\"\xff\"}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var want map[string]string
		errWant := json.Unmarshal([]byte(text), &want)
		if errWant != nil {
			want = map[string]string{"text": text}
		}
		b, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(b, &want); err != nil { // no text but UTF-8 is kept
			t.Fatal(err)
		}
		got, err := records.Texts[string](string(b)) // as the records write it
		if err != nil || !maps.Equal(got, want) {
			t.Errorf("%q: %v, %v, want %v", b, got, err, want)
		}
		if got, err := records.Texts[string](text); err != nil && errWant == nil && text != "" {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	})
}

// FuzzRegister: a manifest from outside is taken or refused in words.
func FuzzRegister(f *testing.F) {
	for _, s := range []string{`{"module":"web"}`, `{"module":"web","run":{"files":[{"path":"/etc/web","content":"${setting:port}"}]},"settings":{"port":{}}}`,
		`{"module":"","x":1}`, `[]`, `{"module":"web","build":{"bundle":{"output":"dist"}}}`} {
		f.Add([]byte(s))
	}
	m := newMesh(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		b, _, err := m.store.Register(t.Context(), by, records.Registration{Manifest: text})
		if err != nil && refusal.Of(err) == nil {
			t.Errorf("%q: %v is no refusal", text, err)
		}
		if err == nil {
			if back, err := m.store.Build(t.Context(), b.ID); err != nil || string(back.Text) != string(b.Text) {
				t.Errorf("%q: read back %v, %v", text, back, err)
			}
		}
	})
}
