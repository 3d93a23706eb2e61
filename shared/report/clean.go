package report

import (
	"bytes"
	"reflect"
	"strings"
	"unicode"
)

// A report is written by a machine that may be in somebody else's hands, and read by people on a terminal:
// what would move the cursor, colour the screen or turn the line around is replaced. Journal lines carry
// such things in all honesty, so they are no reason to refuse a report.

// clean cleans every string in v, a pointer, when its JSON text holds anything to clean.
func clean(text []byte, v any) {
	if suspicious(text) {
		cleanValue(reflect.ValueOf(v).Elem())
	}
}

// Clean replaces in every string below v, a pointer to an answer of a machine, what does not belong on a
// terminal.
func Clean(v any) { cleanValue(reflect.ValueOf(v).Elem()) }

// suspicious says whether JSON text may hold what clean replaces: escaped, or as itself from U+007F on.
func suspicious(text []byte) bool {
	if bytes.ContainsAny(text, "\x7f") || bytes.ContainsFunc(text, func(r rune) bool { return r > 0x7f && !harmless(r) }) {
		return true
	}
	for i := 0; i+1 < len(text); i++ {
		if text[i] != '\\' {
			continue
		}
		i++ // what is escaped, be it another backslash
		if c := text[i]; c == 'u' || c == 'b' || c == 'f' || c == 'r' {
			return true
		}
	}
	return false
}

func harmless(r rune) bool {
	return r == '\n' || r == '\t' || !unicode.IsControl(r) && !unicode.Is(unicode.Bidi_Control, r) && r != '\u2028' && r != '\u2029'
}

func cleanValue(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		s := v.String()
		if c := strings.Map(func(r rune) rune {
			if harmless(r) {
				return r
			}
			return unicode.ReplacementChar
		}, s); c != s {
			v.SetString(c)
		}
	case reflect.Pointer:
		if !v.IsNil() {
			cleanValue(v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			cleanValue(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			cleanValue(v.Field(i))
		}
	}
}
