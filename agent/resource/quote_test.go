package resource_test

import (
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"mesh/shared/manifest"
)

// words reads a value back as systemd does (systemd.syntax(7), systemd.unit(5) "Specifiers",
// systemd.service(5) "Command lines").
func words(t *rapid.T, line string, variables bool) (out []string) {
	var word strings.Builder
	in, quoted := false, false
	for i := 0; i < len(line); i++ {
		c := line[i]
		switch {
		case c == '"':
			quoted, in = !quoted, true
		case c == ' ' && !quoted:
			if in {
				out, in = append(out, word.String()), false
				word.Reset()
			}
		case c == '\\':
			i++
			in = true
			switch line[i] {
			case 'x':
				n, err := strconv.ParseUint(line[i+1:i+3], 16, 8)
				if err != nil {
					t.Fatalf("%q: %v", line, err)
				}
				word.WriteByte(byte(n))
				i += 2
			case '"', '\\':
				word.WriteByte(line[i])
			default:
				t.Fatalf("%q: unknown escape \\%c", line, line[i])
			}
		case c == '%' || c == '$' && variables && len(out) > 0:
			i++
			if i == len(line) || line[i] != c {
				t.Fatalf("%q: a lone %c", line, c)
			}
			in = true
			word.WriteByte(c)
		default:
			in = true
			word.WriteByte(c)
		}
	}
	if quoted {
		t.Fatalf("%q: a quote is not closed", line)
	}
	if in {
		out = append(out, word.String())
	}
	return out
}

// Whatever stands in a manifest that passes its check is one word of the unit and nothing else.
func TestUnitsHoldArgumentsAndVariablesAsTheyAre(t *testing.T) {
	text := rapid.StringOf(rapid.OneOf(rapid.Rune(), rapid.SampledFrom([]rune(` "'\%$;#=[]{}`+"`\t"))))
	rapid.Check(t, func(rt *rapid.T) {
		args := rapid.SliceOfN(text, 0, 4).Draw(rt, "args")
		value := text.Draw(rt, "value")
		m := manifest.Manifest{Module: "m", Run: manifest.Run{Processes: map[string]manifest.Process{
			"p": {Exec: append([]string{"/bin/" + strings.Trim(text.Draw(rt, "program"), "/.")}, args...), Env: map[string]string{"V": value}}}}}
		if m.Check() != nil || strings.Contains(value, "${") {
			rt.Skip("not a manifest")
		}
		unit := string(expand(t, input(t, module(t, m)))["unit:mesh-m-p.service"].Unit.Content)
		got := map[string]string{}
		for line := range strings.Lines(unit) {
			if k, v, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "="); ok {
				if _, twice := got[k]; twice {
					rt.Fatalf("%s stands twice in\n%s", k, unit)
				}
				got[k] = v
			}
		}
		if len(got) != 12 {
			rt.Fatalf("%d settings in\n%s", len(got), unit)
		}
		exec := m.Run.Processes["p"].Exec
		if back := words(rt, got["ExecStart"], true); strings.Join(back, "\x00") != strings.Join(exec, "\x00") {
			rt.Fatalf("ExecStart=%s is read as %q, want %q", got["ExecStart"], back, exec)
		}
		if back := words(rt, got["Environment"], false); len(back) != 1 || back[0] != "V="+value {
			rt.Fatalf("Environment=%s is read as %q, want %q", got["Environment"], back, value)
		}
	})
}
