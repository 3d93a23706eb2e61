package nfnetlink

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// Buffer is netlink messages being written. Begin starts a message and Finish ends it; what stands
// between them are its attributes. What writes them is called and not copied, since hundreds of places write.
type Buffer struct {
	// B is what was written. A caller that sets it to B[:0] writes over it.
	B   []byte
	seq uint32
	msg int // where the newest message begins
}

// Begin starts a message of a subsystem (its number << 8 | the message's, or a number of netlink's own).
func (w *Buffer) Begin(typ uint16, flags uint16, family byte, resource uint16) {
	w.seq++
	w.msg = len(w.B)
	w.B = append(w.B, 0, 0, 0, 0)
	w.B = binary.NativeEndian.AppendUint16(w.B, typ)
	w.B = binary.NativeEndian.AppendUint16(w.B, unix.NLM_F_REQUEST|flags)
	w.B = binary.NativeEndian.AppendUint32(w.B, w.seq)
	w.B = append(w.B, 0, 0, 0, 0, family, unix.NFNETLINK_V0)
	w.B = binary.BigEndian.AppendUint16(w.B, resource)
}

// Nft starts a message of nf_tables.
//
//go:noinline
func (w *Buffer) Nft(typ uint16, flags uint16, family byte) {
	w.Begin(unix.NFNL_SUBSYS_NFTABLES<<8|typ, flags, family, 0)
}

// Finish ends the message.
func (w *Buffer) Finish() {
	binary.NativeEndian.PutUint32(w.B[w.msg:], uint32(len(w.B)-w.msg))
}

// Acknowledge asks for an answer to the newest message.
func (w *Buffer) Acknowledge() {
	at := w.msg + 6
	binary.NativeEndian.PutUint16(w.B[at:], binary.NativeEndian.Uint16(w.B[at:])|unix.NLM_F_ACK)
}

// BeginBatch starts a transaction of nf_tables. Given the generation it was made for, the kernel
// refuses it with ERESTART when another one is in force; 0 leaves that out.
func (w *Buffer) BeginBatch(generation uint32) {
	w.Begin(unix.NFNL_MSG_BATCH_BEGIN, 0, 0, unix.NFNL_SUBSYS_NFTABLES)
	if generation != 0 {
		w.U32(unix.NFNL_BATCH_GENID, generation)
	}
	w.Finish()
}

// EndBatch ends the transaction; the message before it is acknowledged, so that Commit has an answer.
func (w *Buffer) EndBatch() {
	w.Acknowledge()
	w.Begin(unix.NFNL_MSG_BATCH_END, 0, 0, unix.NFNL_SUBSYS_NFTABLES)
	w.Finish()
}

// Bytes writes an attribute.
//
//go:noinline
func (w *Buffer) Bytes(typ uint16, v []byte) {
	w.B = binary.NativeEndian.AppendUint16(w.B, uint16(4+len(v)))
	w.B = binary.NativeEndian.AppendUint16(w.B, typ)
	w.B = append(w.B, v...)
	w.pad()
}

// Str writes an attribute that is a string, with its end.
//
//go:noinline
func (w *Buffer) Str(typ uint16, s string) {
	w.B = binary.NativeEndian.AppendUint16(w.B, uint16(5+len(s)))
	w.B = binary.NativeEndian.AppendUint16(w.B, typ)
	w.B = append(append(w.B, s...), 0)
	w.pad()
}

// U32 writes an attribute that is a number of 4 bytes.
//
//go:noinline
func (w *Buffer) U32(typ uint16, v uint32) {
	w.B = binary.NativeEndian.AppendUint16(w.B, 8)
	w.B = binary.NativeEndian.AppendUint16(w.B, typ)
	w.B = binary.BigEndian.AppendUint32(w.B, v)
}

// U64 writes an attribute that is a number of 8 bytes.
//
//go:noinline
func (w *Buffer) U64(typ uint16, v uint64) {
	w.B = binary.NativeEndian.AppendUint16(w.B, 12)
	w.B = binary.NativeEndian.AppendUint16(w.B, typ)
	w.B = binary.BigEndian.AppendUint64(w.B, v)
}

func (w *Buffer) pad() {
	for len(w.B)%4 != 0 {
		w.B = append(w.B, 0)
	}
}

// Open starts an attribute that holds others; Shut(at) ends it.
//
//go:noinline
func (w *Buffer) Open(typ uint16) (at int) {
	at = len(w.B)
	w.B = append(w.B, 0, 0)
	w.B = binary.NativeEndian.AppendUint16(w.B, typ|unix.NLA_F_NESTED)
	return at
}

// Shut ends the attribute that Open started at at.
func (w *Buffer) Shut(at int) { binary.NativeEndian.PutUint16(w.B[at:], uint16(len(w.B)-at)) }

// Value writes an attribute that holds one value of nf_tables.
//
//go:noinline
func (w *Buffer) Value(typ uint16, v []byte) {
	at := w.Open(typ)
	w.Bytes(unix.NFTA_DATA_VALUE, v)
	w.Shut(at)
}
