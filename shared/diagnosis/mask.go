package diagnosis

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// masked stands in the place of a secret.
const masked = "(masked)"

// shortest is the length in bytes below which a known value is not looked for: it would be found everywhere.
const shortest = 4

// Mask takes secrets out of texts: values that are known to be secret, in whatever of their usual spellings,
// and what by its look is one: NKEY seeds, private keys, passwords in addresses and beside words such as
// "password".
type Mask struct {
	known []string // longest first
	looks []look
}

// look is a rule for what is a secret by its look. It is held against the lines alone in which one of the
// words stands, in lower case: rules are slow, and most lines hold nothing.
type look struct {
	words []string
	rule  *regexp.Regexp
	with  []byte
}

// NewMask makes a Mask that knows these values, and each line of one that has several.
func NewMask(values ...string) *Mask {
	m := &Mask{looks: looks()}
	seen := map[string]bool{}
	add := func(s string) {
		if len(s) >= shortest && !seen[s] {
			seen[s] = true
			m.known = append(m.known, s)
		}
	}
	for _, v := range values {
		for _, s := range append(strings.Split(v, "\n"), v) {
			s = strings.TrimSpace(s)
			add(s)
			if len(s) < shortest {
				continue
			}
			add(inJSON(s, true))
			add(inJSON(s, false))
			add(url.QueryEscape(s))
			add(url.PathEscape(s))
			add(hex.EncodeToString([]byte(s)))
			for _, e := range []*base64.Encoding{base64.StdEncoding, base64.RawStdEncoding, base64.URLEncoding, base64.RawURLEncoding} {
				add(e.EncodeToString([]byte(s)))
			}
		}
	}
	slices.SortFunc(m.known, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
	return m
}

// inJSON is s as it stands between quotes.
func inJSON(s string, html bool) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(html)
	if err := e.Encode(s); err != nil {
		return s
	}
	return strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(b.String()), `"`), `"`)
}

func looks() []look {
	l := func(rule, with string, words ...string) look {
		return look{words, regexp.MustCompile(rule), []byte(with)}
	}
	return []look{
		l(`S[ACNOUX][A-Z2-7]{56}`, masked, "sa", "sc", "sn", "so", "su", "sx"), // seeds of NKEYs
		l(`AGE-SECRET-KEY-1[0-9A-Z]{50,70}`, masked, "age-secret-key-"),
		l(`([a-zA-Z][a-zA-Z0-9+.-]*://[^\s/:@"']*):[^\s/@"']+@`, `${1}:`+masked+`@`, "://"),
		l(`(?i)\b(bearer|basic)\s+[a-z0-9._~+/=-]{8,}`, `${1} `+masked, "bearer", "basic"),
		// --token …, then password=…, "DB_PASSWORD": "…": the value ends where a quote, a comma or the line does.
		l(`(?i)(--?[a-z-]*(?:password|passwd|secret|token|api-key)[a-z-]*[= ])([^\s"']+)`, `${1}`+masked, "passw", "secret", "token", "api-key"),
		l(`(?i)((?:passw(?:or)?d|passphrase|secret|token|api[_-]?key|private[_-]?key|credential)[a-z0-9_.-]*\\?["']?\s*[=:]\s*\\?["']?)([^\s"'\\,;&}\])]+)`, `${1}`+masked,
			"passw", "passphrase", "secret", "token", "api", "private", "credential"),
	}
}

// inPEM finds private keys, which have several lines.
var inPEM = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(-----END [A-Z ]*PRIVATE KEY-----|$)`)
})

// Bytes is b without secrets.
func (m *Mask) Bytes(b []byte) []byte {
	for _, k := range m.known {
		b = bytes.ReplaceAll(b, []byte(k), []byte(masked))
	}
	if bytes.Contains(b, []byte("PRIVATE KEY-----")) {
		b = inPEM().ReplaceAll(b, []byte(masked))
	}
	out := make([]byte, 0, len(b)+len(b)/64)
	for line := range bytes.Lines(b) {
		out = append(out, m.line(line)...)
	}
	return out
}

func (m *Mask) line(line []byte) []byte {
	lower := bytes.ToLower(line)
	for _, l := range m.looks {
		if slices.ContainsFunc(l.words, func(w string) bool { return bytes.Contains(lower, []byte(w)) }) {
			line = l.rule.ReplaceAll(line, l.with)
		}
	}
	return line
}

// Text is s without secrets.
func (m *Mask) Text(s string) string { return string(m.Bytes([]byte(s))) }

// secretNames are what a field that holds a secret is called.
var secretNames = [...]string{"password", "passwd", "passphrase", "secret", "token", "apikey", "api_key", "api-key", "private", "credential", "seed", "key"}

// SecretName reports whether a field called name holds a secret by its name.
func SecretName(name string) bool {
	name = strings.ToLower(name)
	return slices.ContainsFunc(secretNames[:], func(s string) bool { return strings.Contains(name, s) })
}

// Masked is what stands for a secret.
func Masked() string { return masked }
