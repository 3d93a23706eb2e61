package nfnetlink_test

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"mesh/firewall/internal/nfnetlink"
	"mesh/testbus/netlab"
)

func open(t *testing.T, s *netlab.Space) *nfnetlink.Socket {
	t.Helper()
	var socket *nfnetlink.Socket
	var err error
	s.Do(func() { socket, err = nfnetlink.Open() })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	return socket
}

// What Buffer writes, the walk finds again.
func TestWrittenIsRead(t *testing.T) {
	var w nfnetlink.Buffer
	w.Nft(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE, unix.NFPROTO_INET)
	w.Str(1, "mesh")
	w.U32(2, 70000)
	w.U64(3, 1<<40)
	at := w.Open(4)
	w.Value(5, []byte{1, 2, 3})
	w.Shut(at)
	w.Finish()
	n := 0
	for m := range nfnetlink.Messages(w.B) {
		n++
		if m.Type != unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWRULE || m.Flags != unix.NLM_F_REQUEST|unix.NLM_F_CREATE || m.Family() != unix.NFPROTO_INET || m.Seq != 1 {
			t.Errorf("the message reads as %+v", m)
		}
		for typ, v := range m.Attributes() {
			switch typ {
			case 1:
				if nfnetlink.Text(v) != "mesh" {
					t.Errorf("the text reads as %q", v)
				}
			case 2:
				if nfnetlink.Number(v) != 70000 {
					t.Errorf("the number reads as %d", nfnetlink.Number(v))
				}
			case 3:
				if nfnetlink.Number64(v) != 1<<40 {
					t.Errorf("the long number reads as %d", nfnetlink.Number64(v))
				}
			case 4:
				for typ, v := range nfnetlink.Attributes(v) {
					for inner, v := range nfnetlink.Attributes(v) {
						if typ != 5 || inner != unix.NFTA_DATA_VALUE || string(v) != "\x01\x02\x03" {
							t.Errorf("the value reads as %d %d %v", typ, inner, v)
						}
					}
				}
			default:
				t.Errorf("attribute %d", typ)
			}
		}
	}
	if n != 1 {
		t.Errorf("%d messages", n)
	}
}

// A no carries the kernel's number and undoes the whole batch.
func TestCommitIsAllOrNothing(t *testing.T) {
	s := netlab.NewSpace(t, "host")
	socket := open(t, s)
	batch := func(generation uint32, chain string) []byte {
		var w nfnetlink.Buffer
		w.BeginBatch(generation)
		w.Nft(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, unix.NFPROTO_INET)
		w.Str(unix.NFTA_TABLE_NAME, "one")
		w.Finish()
		if chain != "" {
			w.Nft(unix.NFT_MSG_DELCHAIN, 0, unix.NFPROTO_INET)
			w.Str(unix.NFTA_CHAIN_TABLE, "one")
			w.Str(unix.NFTA_CHAIN_NAME, chain)
			w.Finish()
		}
		w.EndBatch()
		return w.B
	}
	before, err := socket.Generation()
	if err != nil {
		t.Fatal(err)
	}
	var kernel *nfnetlink.KernelError
	if err := socket.Commit(batch(0, "none")); !errors.Is(err, unix.ENOENT) || !errors.As(err, &kernel) {
		t.Errorf("a batch with an error: %v", err)
	}
	if tables := s.Run("", "nft", "list", "tables"); tables != "" {
		t.Errorf("half a batch was applied: %s", tables)
	}
	if err := socket.Commit(batch(before+7, "")); !errors.Is(err, unix.ERESTART) {
		t.Errorf("a batch for another generation: %v", err)
	}
	if err := socket.Commit(batch(before, "")); err != nil {
		t.Error(err)
	}
	if after, err := socket.Generation(); err != nil || after == before {
		t.Errorf("generation %d after %d, %v", after, before, err)
	}
}

// A commit under way is waited for: what is listed after it is not half of one state and half of another. The
// kernel counts a commit before what it changes is seen, so the number alone would not tell.
func TestACommitUnderWayIsWaitedFor(t *testing.T) {
	s := netlab.NewSpace(t, "host")
	socket := open(t, s)
	generation, err := socket.Generation()
	if err != nil {
		t.Fatal(err)
	}
	for number, want := range map[uint32]bool{generation: true, generation + 7: false} {
		if ok, err := socket.Settled(number); ok != want || err != nil {
			t.Errorf("generation %d is in force: asked for %d the answer is %v, %v", generation, number, ok, err)
		}
	}
	if now, err := socket.Generation(); now != generation || err != nil {
		t.Errorf("asking made generation %d of %d, %v", now, generation, err)
	}
	written := make(chan struct{})
	go func() {
		defer close(written)
		rules := "table inet busy { chain c {\n" + strings.Repeat("tcp dport 1 drop\n", 5000) + "}; }"
		if out, err := s.Try(rules, "nft", "-f", "-"); err != nil {
			t.Error(out, err)
		}
	}()
	waited := 0
	for busy := true; busy; {
		select {
		case <-written:
			busy = false
		default:
		}
		generation, err := socket.Generation()
		if err != nil {
			t.Fatal(err)
		}
		ok, err := socket.Settled(generation)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			waited++
		}
	}
	// The commit holds off others for far longer than lies between the two questions, so that it was waited for.
	if waited == 0 {
		t.Error("nothing waited for the commit")
	}
}

// An answer nobody waited for is not taken for the next one's.
func TestLeftoversAreSkipped(t *testing.T) {
	s := netlab.NewSpace(t, "host")
	s.Run("add table ip a; add table ip b; add table ip c", "nft", "-f", "-")
	socket := open(t, s)
	count := func(messages *int) func(nfnetlink.Message) { return func(nfnetlink.Message) { *messages++ } }
	err := func() (err error) { // gives up at the first message
		defer func() {
			if recover() != nil {
				err = errors.New("given up")
			}
		}()
		return socket.List(unix.NFT_MSG_GETTABLE, unix.NFPROTO_UNSPEC, func(nfnetlink.Message) { panic("enough") })
	}()
	if err == nil {
		t.Fatal("the listing was not given up")
	}
	n := 0
	if err := socket.List(unix.NFT_MSG_GETTABLE, unix.NFPROTO_IPV4, count(&n)); err != nil || n != 3 {
		t.Errorf("%d tables, %v, want 3", n, err)
	}
	if id, err := socket.Generation(); err != nil || id == 0 {
		t.Errorf("generation %d, %v", id, err)
	}
}

func FuzzMessages(f *testing.F) {
	var w nfnetlink.Buffer
	w.Nft(unix.NFT_MSG_NEWRULE, 0, unix.NFPROTO_INET)
	w.Str(1, "mesh")
	w.Value(2, []byte{1})
	w.Finish()
	f.Add(w.B)
	f.Add([]byte{20, 0, 0, 0, 2, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		total := 0
		for m := range nfnetlink.Messages(b) {
			total += 16 + len(m.Body)
			_ = m.Err()
			for _, v := range m.Attributes() {
				_, _, _ = nfnetlink.Text(v), nfnetlink.Number(v), nfnetlink.Number64(v)
			}
		}
		if total > len(b) {
			t.Errorf("%d bytes of messages in %d", total, len(b))
		}
	})
}
