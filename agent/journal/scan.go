package journal

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"mesh/shared/engine"
)

const (
	// buffer is for one read, and longest what is kept of one entry as journalctl writes it: bytes that are
	// no text come as numbers, some four bytes each.
	buffer  = 32 << 10
	longest = 8 * engine.MostText
)

// entry is a line and where it stands in the journal.
type entry struct {
	engine.LogLine
	cursor string
}

// size is what e takes in an answer: what JSON escapes takes six bytes.
func (e entry) size() int {
	n := len(e.Unit) + len(e.Text) + 100
	for i := range len(e.Text) {
		if c := e.Text[i]; c < ' ' || c == '<' || c == '>' || c == '&' || c == 0x7f || c == '"' || c == '\\' {
			n += 5
		}
	}
	return n
}

// scanner reads what "journalctl --output=json" writes: an object a line.
type scanner struct{ in *bufio.Reader }

func newScanner(in io.Reader) *scanner { return &scanner{bufio.NewReaderSize(in, buffer)} }

// next is the next line; io.EOF after the last. What is no entry is passed over.
func (s *scanner) next() (entry, error) {
	for {
		text, cut, err := s.line()
		if err != nil {
			return entry{}, err
		}
		if e, ok := parse(text, cut); ok {
			return e, nil
		}
	}
}

// line is one line, of which no more than longest is kept.
func (s *scanner) line() (text []byte, cut bool, err error) {
	for {
		part, err := s.in.ReadSlice('\n')
		if room := longest - len(text); len(part) > room {
			part, cut = part[:room], true
		}
		text = append(text, part...)
		switch {
		case err == nil:
			return text, cut, nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(text) > 0: // killed in the middle of a line
			return nil, false, io.EOF
		default:
			return nil, false, err
		}
	}
}

// raw is what journalctl writes of an entry (systemd's JSON format): a field with bytes that are no text is
// a list of numbers, one that is there several times a list of those.
type raw struct {
	Cursor   string          `json:"__CURSOR"`
	At       string          `json:"__REALTIME_TIMESTAMP"`
	Message  json.RawMessage `json:"MESSAGE"`
	Unit     json.RawMessage `json:"UNIT"`
	Of       json.RawMessage `json:"_SYSTEMD_UNIT"`
	Priority json.RawMessage `json:"PRIORITY"`
}

// parse reads one entry. Of one that was cut the cursor is known, which comes first, and little else.
func parse(text []byte, cut bool) (entry, bool) {
	var r raw
	if cut {
		head, _, found := strings.Cut(string(text[:min(len(text), 600)]), `","`)
		_, cursor, has := strings.Cut(head, `"__CURSOR":"`)
		if !found || !has {
			return entry{}, false
		}
		return entry{engine.LogLine{Text: "(a line of more than " + strconv.Itoa(longest) + " bytes)", Priority: info, Cut: true}, cursor}, true
	}
	if err := json.Unmarshal(text, &r); err != nil || r.Cursor == "" {
		return entry{}, false
	}
	e := entry{engine.LogLine{Text: field(r.Message), Unit: field(r.Unit), Priority: info}, r.Cursor}
	if e.Unit == "" {
		e.Unit = field(r.Of)
	}
	if us, err := strconv.ParseInt(r.At, 10, 64); err == nil {
		e.AtMS = us / 1000
	}
	if p, err := strconv.Atoi(field(r.Priority)); err == nil && p >= 0 && p <= 7 {
		e.Priority = p
	}
	if len(e.Text) > engine.MostText {
		end := engine.MostText
		for end > 0 && !utf8.RuneStart(e.Text[end]) {
			end--
		}
		e.Text, e.Cut = e.Text[:end], true
	}
	return e, true
}

// info is syslog's priority of a line that says none.
const info = 6

// field is a field's text: of several the first, of bytes that are no text what is.
func field(b json.RawMessage) string {
	if len(b) == 0 {
		return ""
	}
	switch b[0] {
	case '"':
		var s string
		if json.Unmarshal(b, &s) == nil {
			return strings.ToValidUTF8(s, "\uFFFD")
		}
	case '[':
		var bytes []uint16 // not []byte, which is base64
		if json.Unmarshal(b, &bytes) == nil {
			s := make([]byte, len(bytes))
			for i, c := range bytes {
				s[i] = byte(c)
			}
			return strings.ToValidUTF8(string(s), "\uFFFD")
		}
		var several []json.RawMessage
		if json.Unmarshal(b, &several) == nil && len(several) > 0 {
			return field(several[0])
		}
	}
	return ""
}
