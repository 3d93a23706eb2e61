package registry

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
)

// mostHead bounds the head of a request in bytes.
const mostHead = 16 << 10

// talk answers the requests of one connection, one after the other. That is all of HTTP/1.1 that a pull needs
// (RFC 9112): requests without a body, answers of a known length. The standard library's server would make
// the agent half a megabyte larger.
func (o *Offer) talk(ctx context.Context, c net.Conn) {
	head := &io.LimitedReader{R: c}
	in := bufio.NewReaderSize(head, 4<<10)
	for {
		head.N = mostHead
		q, err := http.ReadRequest(in)
		w := &answer{conn: c}
		if err != nil || q.ContentLength != 0 || len(q.TransferEncoding) > 0 {
			// Also who tries TLS first, as engines do, hears that this is none.
			_ = w.refuse(http.StatusBadRequest, "UNSUPPORTED", "that is no request for a part of an image") // the connection ends anyway
			return
		}
		w.head = q.Method == http.MethodHead
		if err := o.serve(ctx, w, q); err != nil || q.Close {
			return
		}
	}
}

// answer is the answer to one request.
type answer struct {
	conn net.Conn
	head bool // only the head is asked for
	// broken: who asked takes no more.
	broken bool
}

// Write sends a part of the body.
func (w *answer) Write(b []byte) (int, error) {
	n, err := w.conn.Write(b)
	w.broken = w.broken || err != nil
	return n, err
}

// start sends the head. Fields are whole lines, made of what was checked.
func (w *answer) start(code int, kind string, size int64, fields ...string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "HTTP/1.1 %d %s\r\nDocker-Distribution-Api-Version: registry/2.0\r\nContent-Type: %s\r\nContent-Length: %d\r\n", code, http.StatusText(code), kind, size)
	for _, f := range fields {
		b.WriteString(f + "\r\n")
	}
	b.WriteString("\r\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// whole sends a whole answer.
func (w *answer) whole(code int, kind string, body []byte, fields ...string) error {
	err := w.start(code, kind, int64(len(body)), fields...)
	if err == nil && !w.head {
		_, err = w.Write(body)
	}
	return err
}

// refuse sends an error in the specification's words.
func (w *answer) refuse(code int, name, why string) error {
	type one struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	b, err := json.Marshal(map[string][]one{"errors": {{name, why}}})
	if err != nil {
		return err
	}
	return w.whole(code, "application/json", b)
}
