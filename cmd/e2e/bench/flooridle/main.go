// Command flooridle is the smallest agent there can be: one connection to the bus with TLS and a key, one
// open SQLite file, one subscription, and nothing to do until its input ends. It links what an agent has
// to link.
//
//	flooridle ADDRESS SEEDS.json FILE.db
package main

import (
	"crypto/tls"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"os"

	_ "github.com/coreos/go-systemd/v22/dbus" // linked only: an agent speaks to systemd
	_ "github.com/google/nftables"            // linked only: an agent drives the packet filter
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	_ "modernc.org/sqlite" // the driver "sqlite"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: flooridle ADDRESS SEEDS.json FILE.db")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(address, seeds, file string) error {
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=journal_mode(wal)&_pragma=synchronous(full)")
	if err != nil {
		return err
	}
	db.SetMaxOpenConns(1)
	if _, err := db.Exec("create table if not exists resource(kind text, name text, state text, detail text, primary key(kind, name))"); err != nil {
		return err
	}
	nc, err := connect(address, seeds)
	if err != nil {
		return err
	}
	defer nc.Close()
	if _, err := nc.Subscribe("floor.decl.node-00000", func(*nats.Msg) {}); err != nil {
		return err
	}
	if err := nc.Flush(); err != nil {
		return err
	}
	fmt.Println("ready")
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func connect(address, seeds string) (*nats.Conn, error) {
	b, err := os.ReadFile(seeds)
	if err != nil {
		return nil, err
	}
	var all []string
	if err := json.Unmarshal(b, &all); err != nil {
		return nil, err
	}
	kp, err := nkeys.FromSeed([]byte(all[0]))
	if err != nil {
		return nil, err
	}
	public, err := kp.PublicKey()
	if err != nil {
		return nil, err
	}
	return nats.Connect("tls://"+address, nats.Nkey(public, kp.Sign), nats.Secure(&tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13}))
}
