package metrics

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

const (
	// gatherBound is how long an answer may take to make, connectionBound how long a connection may last.
	gatherBound, connectionBound = 5 * time.Second, 15 * time.Second
	// most is how many connections are served at once; one more waits in the kernel.
	most = 4
	// mostHead bounds a request in bytes.
	mostHead = 8 << 10
)

// Serve answers GET /metrics and GET /healthz on l until ctx ends, and closes l.
func Serve(ctx context.Context, l net.Listener, c Config) (err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = l.Close() }) // Accept says what is to be said
	defer stop()
	room := make(chan struct{}, most)
	var open sync.WaitGroup
	defer open.Wait()
	for {
		select {
		case room <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return errors.Join(fmt.Errorf("serve metrics: %w", err), l.Close())
		}
		open.Go(func() { // ends within connectionBound, or with ctx
			defer func() { <-room }()
			if err := serveOne(ctx, conn, c); err != nil && ctx.Err() == nil {
				c.Log.Debug("metrics", "err", err)
			}
		})
	}
}

// serveOne answers one request and closes conn.
func serveOne(ctx context.Context, conn net.Conn, c Config) (err error) {
	ctx, cancel := context.WithTimeout(ctx, connectionBound)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer func() {
		if stop() {
			err = errors.Join(err, conn.Close())
		}
	}()
	method, path, err := head(conn)
	if err != nil {
		return err
	}
	gather, cancelGather := context.WithTimeout(ctx, gatherBound)
	defer cancelGather()
	status, kind, body := answer(gather, method, path, c)
	if _, err := fmt.Fprintf(conn, "HTTP/1.1 %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n", status, kind, len(body)); err != nil {
		return err
	}
	if method != "HEAD" {
		_, err = conn.Write(body)
	}
	return err
}

// head reads a request up to its empty line.
func head(conn io.Reader) (method, path string, err error) {
	r := bufio.NewReader(io.LimitReader(conn, mostHead))
	for first := true; ; first = false {
		line, err := r.ReadString('\n')
		if err != nil {
			return "", "", fmt.Errorf("read a request: %w", err)
		}
		line = strings.TrimRight(line, "\r\n")
		switch {
		case first:
			words := strings.Split(line, " ")
			if len(words) != 3 || !strings.HasPrefix(words[2], "HTTP/1.") || strings.ContainsAny(line, "\r\n") {
				return "", "", errors.New("read a request: it is no HTTP/1.1")
			}
			path, _, _ = strings.Cut(words[1], "?")
			method = words[0]
		case line == "":
			return method, path, nil
		}
	}
}

func answer(ctx context.Context, method, path string, c Config) (status, kind string, body []byte) {
	const plain = "text/plain; charset=utf-8"
	said := func(status, text string) (string, string, []byte) { return status, plain, []byte(text + "\n") }
	switch {
	case method != "GET" && method != "HEAD":
		return said("405 Method Not Allowed", "only GET")
	case path == "/healthz":
		if err := c.Well(ctx); err != nil {
			return said("503 Service Unavailable", err.Error())
		}
		return said("200 OK", "well")
	case path != "/metrics":
		return said("404 Not Found", "there are /metrics and /healthz")
	}
	all, err := c.Gather(ctx)
	if err != nil {
		return said("503 Service Unavailable", err.Error())
	}
	var b bytes.Buffer
	if err := Write(&b, append(all, Process()...)); err != nil {
		return said("503 Service Unavailable", err.Error())
	}
	return "200 OK", "text/plain; version=0.0.4; charset=utf-8", b.Bytes()
}
