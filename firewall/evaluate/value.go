package evaluate

import "bytes"

// knowledge says of one byte of a packet what is known.
type knowledge uint8

const (
	sure   knowledge = iota
	source           // of the address of somebody no rule names
	vague            // not known
)

// value is bytes of a packet, or computed from them.
type value struct {
	b []byte
	k []knowledge
}

func fixed(b ...byte) value { return value{b, make([]knowledge, len(b))} }

func unknownValue(n int) value {
	v := value{make([]byte, n), make([]knowledge, n)}
	for i := range v.k {
		v.k[i] = vague
	}
	return v
}

// registers are the 64 bytes nf_tables computes in: four of 16 bytes, or sixteen of 4.
type registers struct {
	b [64]byte
	k [64]knowledge
}

// at is where register n begins; false for one that holds no data.
func registerAt(n uint32) (int, bool) {
	switch {
	case n >= 1 && n <= 4:
		return int(n-1) * 16, true
	case n >= 8 && n < 24:
		return int(n-8) * 4, true
	}
	return 0, false
}

// put stores v, padded with zeros to whole words as the kernel does.
func (r *registers) put(n uint32, v value) {
	at, ok := registerAt(n)
	if !ok {
		return
	}
	for i := range (len(v.b) + 3) &^ 3 {
		if at+i >= len(r.b) {
			return
		}
		r.b[at+i], r.k[at+i] = 0, sure
		if i < len(v.b) {
			r.b[at+i], r.k[at+i] = v.b[i], v.k[i]
		}
	}
}

// get reads n bytes.
func (r *registers) get(reg uint32, n int) value {
	at, ok := registerAt(reg)
	if !ok || n < 0 || at+n > len(r.b) {
		return unknownValue(max(0, min(n, 64)))
	}
	return value{bytes.Clone(r.b[at : at+n]), append([]knowledge(nil), r.k[at:at+n]...)}
}

// truth is an answer to a condition.
type truth uint8

const (
	no truth = iota
	yes
	perhaps   // not known
	mostlyNo  // no, but for senders that the rule names, or that come too often
	mostlyYes // yes, but for those
)

func truthOf(b bool) truth {
	if b {
		return yes
	}
	return no
}

// not turns t around.
func (t truth) not() truth {
	switch t {
	case no:
		return yes
	case yes:
		return no
	case mostlyNo:
		return mostlyYes
	case mostlyYes:
		return mostlyNo
	}
	return t
}

// and is both: the more doubtful of two that are not no.
func (t truth) and(o truth) truth {
	switch {
	case t == no || o == no:
		return no
	case t == perhaps || o == perhaps:
		return perhaps
	case t == mostlyNo || o == mostlyNo:
		return mostlyNo
	case t == mostlyYes || o == mostlyYes:
		return mostlyYes
	}
	return yes
}

// equal says whether v is b in its first bytes.
func (v value) equal(b []byte) truth {
	if len(b) > len(v.b) {
		return perhaps
	}
	answer := yes
	for i := range b {
		switch {
		case v.k[i] == sure && v.b[i] != b[i]:
			return no
		case v.k[i] == vague:
			answer = perhaps
		case v.k[i] == source && answer == yes:
			answer = mostlyNo
		}
	}
	return answer
}

func (v value) sure() bool { return !v.has(source) && !v.has(vague) }

func (v value) has(k knowledge) bool {
	for _, x := range v.k {
		if x == k {
			return true
		}
	}
	return false
}

// compare is memcmp of v with b; ok is false when that is not known.
func (v value) compare(b []byte) (order int, ok bool) {
	for i := range b {
		if i >= len(v.b) || v.k[i] != sure {
			return 0, false
		}
		if v.b[i] != b[i] {
			if v.b[i] < b[i] {
				return -1, true
			}
			return 1, true
		}
	}
	return 0, true
}
