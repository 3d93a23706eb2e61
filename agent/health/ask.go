package health

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

// maxHead bounds what is read of an answer: its first line is enough.
const maxHead = 4 << 10

// tcp opens a connection and closes it.
func tcp(ctx context.Context, address string) string {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return plain(ctx, err)
	}
	_ = c.Close() // it was open
	return ""
}

// get asks over HTTP/1.1 and reads the status line: net/http's client would make the agent a tenth larger.
// The certificate of an https address is not checked: the machine asks itself, mostly by an address that no
// certificate has, and sends nothing that is secret.
func get(ctx context.Context, address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return words(err.Error())
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"https": "443"}[u.Scheme]
	}
	if port == "" {
		port = "80"
	}
	c, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	if err != nil {
		return plain(ctx, err)
	}
	// The deadline of ctx, which also breaks off what hangs.
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	defer func() { _ = c.Close() }() // nothing more is asked of it
	if u.Scheme == "https" {
		c = tls.Client(c, &tls.Config{ServerName: u.Hostname(), InsecureSkipVerify: true})
	}
	_, err = io.WriteString(c, "GET "+u.RequestURI()+" HTTP/1.1\r\nHost: "+u.Host+"\r\nUser-Agent: mesh-agent\r\nAccept: */*\r\nConnection: close\r\n\r\n")
	if err != nil {
		return plain(ctx, err)
	}
	line, err := bufio.NewReaderSize(io.LimitReader(c, maxHead), 512).ReadString('\n')
	if err != nil {
		return plain(ctx, err)
	}
	return judgeStatus(line)
}

// judgeStatus reads a status line (RFC 9112, 4).
func judgeStatus(line string) string {
	proto, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
	code, _, _ := strings.Cut(rest, " ")
	n, err := strconv.Atoi(code)
	if !strings.HasPrefix(proto, "HTTP/1.") || err != nil || len(code) != 3 {
		return "what answers speaks no HTTP: " + words(line)
	}
	if n < 200 || n > 399 {
		return "it answers " + words(rest)
	}
	return ""
}

// plain says without addresses and ports of a moment what went wrong: the same trouble in the same words.
func plain(ctx context.Context, err error) string {
	var op *net.OpError
	switch {
	case ctx.Err() != nil, errors.Is(err, os.ErrDeadlineExceeded):
		return "no answer in time"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the connection was closed without an answer"
	case errors.As(err, &op):
		err = op.Err
	}
	var sys *os.SyscallError
	if errors.As(err, &sys) {
		err = sys.Err
	}
	return words(err.Error())
}

// program runs what is asked by.
func (p *Prober) program(ctx context.Context, x *Program) string {
	name := cmp.Or(x.Name, x.Argv[0])
	if p.cfg.Run == nil {
		return "there is nobody to run " + name
	}
	exit, out, err := p.cfg.Run(ctx, *x)
	switch {
	case ctx.Err() != nil:
		return name + " was not over in time and was killed"
	case err != nil:
		return words(err.Error())
	case exit == 0:
		return ""
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if last := words(lines[len(lines)-1]); last != "" {
		return fmt.Sprintf("%s ended with %d: %s", name, exit, last)
	}
	return fmt.Sprintf("%s ended with %d", name, exit)
}
