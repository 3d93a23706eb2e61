// Command floorshow is the floor of a command that reads an agent's state: a static program opens a
// SQLite file, runs one query and prints 200 rows. With -make it makes the file first.
package main

import (
	"bufio"
	"database/sql"
	"errors"
	"fmt"
	"os"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

func main() {
	run := show
	if len(os.Args) == 3 && os.Args[1] == "-make" {
		run = fill
	}
	if err := run(os.Args[len(os.Args)-1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func fill(path string) (err error) {
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=journal_mode(wal)")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if _, err := db.Exec("create table resource(kind text, name text, state text, detail text, primary key(kind, name))"); err != nil {
		return err
	}
	tx, err := db.Begin()
	if err != nil {
		return err
	}
	for i := range 200 {
		if _, err := tx.Exec("insert into resource values('file', ?, 'ok', 'applied at revision 12')", fmt.Sprintf("resource-%03d", i)); err != nil {
			return errors.Join(err, tx.Rollback())
		}
	}
	return tx.Commit()
}

func show(path string) error {
	db, err := sql.Open("sqlite", "file:"+path+"?mode=ro&_pragma=query_only(1)")
	if err != nil {
		return err
	}
	rows, err := db.Query("select kind, name, state, detail from resource order by kind, name")
	if err != nil {
		return err
	}
	w := bufio.NewWriter(os.Stdout)
	for rows.Next() {
		var kind, name, state, detail sql.RawBytes
		if err := rows.Scan(&kind, &name, &state, &detail); err != nil {
			return err
		}
		fmt.Fprintf(w, "%s %s %s %s\n", kind, name, state, detail)
	}
	return errors.Join(rows.Err(), w.Flush())
}
