// Command web tells every caller the address it sees, on each port named.
package main

import (
	"fmt"
	"net"
	"os"
)

func main() {
	for _, port := range os.Args[1:] {
		l, err := net.Listen("tcp", ":"+port)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		go serve(l)
	}
	select {}
}

func serve(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		host, _, err := net.SplitHostPort(c.RemoteAddr().String())
		if err == nil {
			fmt.Fprintln(c, host)
		}
		c.Close()
	}
}
