package link

import (
	"fmt"
	"testing"

	"mesh/shared/declaration"
)

func signed(seq int) declaration.Signed {
	return fmt.Appendf(nil, "purpose key signature\n"+`{"format":1,"seq":%d}`, seq)
}

func TestMailbox(t *testing.T) {
	sent := func(seq int) func(*mailbox) { return func(m *mailbox) { m.put(Heard{signed(seq), true}) } }
	read := func(seq int) func(*mailbox) { return func(m *mailbox) { m.put(Heard{signed(seq), false}) } }
	taken := func(m *mailbox) { <-m.out }
	for name, tt := range map[string]struct {
		acts   []func(*mailbox)
		seq    int // 0: nothing
		pushed bool
	}{
		"one sent":                                    {[]func(*mailbox){sent(7)}, 7, true},
		"one read back":                               {[]func(*mailbox){read(7)}, 7, false},
		"two sent: the newer":                         {[]func(*mailbox){sent(7), sent(8)}, 8, true},
		"two sent, the newer first":                   {[]func(*mailbox){sent(8), sent(7)}, 8, true},
		"rubbish displaces nothing":                   {[]func(*mailbox){sent(8), func(m *mailbox) { m.put(Heard{[]byte("x"), true}) }}, 8, true},
		"read back the same: it is to be answered":    {[]func(*mailbox){sent(7), read(7)}, 7, true},
		"read back a newer than the one sent":         {[]func(*mailbox){sent(7), read(8)}, 8, true},
		"read back before the stream had it":          {[]func(*mailbox){sent(8), read(7)}, 8, true},
		"the same, when that was taken already":       {[]func(*mailbox){sent(8), taken, read(7)}, 0, false},
		"an older one after another connection":       {[]func(*mailbox){sent(8), taken, (*mailbox).anew, read(7)}, 7, false},
		"sent with an older seq: it is to be refused": {[]func(*mailbox){sent(8), taken, sent(7)}, 7, true},
	} {
		m := newMailbox()
		for _, act := range tt.acts {
			act(m)
		}
		select {
		case h := <-m.out:
			if h.Signed.Claimed() != uint64(tt.seq) || h.Pushed != tt.pushed {
				t.Errorf("%s: got %d, pushed %v, want %d, %v", name, h.Signed.Claimed(), h.Pushed, tt.seq, tt.pushed)
			}
		default:
			if tt.seq != 0 {
				t.Errorf("%s: nothing came", name)
			}
		}
	}
}
