// Command hello is the sample module's program. "serve" answers every request with the greeting of a
// configuration file; "tick" adds a mark to a file, for the timer.
package main

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "hello:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return errors.New("usage: hello serve|tick <file>")
	}
	switch args[0] {
	case "serve":
		return serve(args[1])
	case "tick":
		return tick(args[1])
	}
	return fmt.Errorf("no such command: %s", args[0])
}

// serve reads the file again at every request, so whoever edits it by hand sees what that does, until
// mesh puts it right.
func serve(file string) error {
	conf, err := read(file)
	if err != nil {
		return err
	}
	return http.ListenAndServe(conf["listen"], http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conf, err := read(file)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprintf(w, "%s, this is %s\n", conf["greeting"], conf["node"])
	}))
}

func tick(file string) error {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	_, err = f.WriteString(".\n")
	return errors.Join(err, f.Close())
}

// read takes lines of "key = value".
func read(file string) (map[string]string, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	conf := map[string]string{}
	for line := range strings.Lines(string(b)) {
		if key, value, ok := strings.Cut(line, "="); ok {
			conf[strings.TrimSpace(key)] = strings.TrimSpace(value)
		}
	}
	return conf, nil
}
