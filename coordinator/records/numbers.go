package records

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"

	"mesh/shared/sqlite"
)

// Numbers is how many rows each table of the records has, and what the schema is.
type Numbers struct {
	Bytes  int64          `json:"bytes"`
	Schema int            `json:"schema"`
	Rows   map[string]int `json:"rows"`
}

// Count reads the Numbers of the records at path, whether a coordinator has them open or not. It writes nothing.
func Count(ctx context.Context, path string) (out Numbers, err error) {
	st, err := os.Stat(path)
	if err != nil {
		return out, err
	}
	out.Bytes = st.Size()
	dir, err := fs.Sub(schema, "schema")
	if err != nil {
		return out, err
	}
	db, err := sqlite.Open(ctx, path, sqlite.Options{ID: ApplicationID, Migrations: dir, ReadOnly: true})
	if err != nil {
		return out, err
	}
	err = out.read(ctx, db)
	return out, errors.Join(err, db.Close())
}

func (n *Numbers) read(ctx context.Context, db *sqlite.DB) error {
	if err := db.Read().QueryRowContext(ctx, `PRAGMA user_version`).Scan(&n.Schema); err != nil {
		return err
	}
	rows, err := db.Read().QueryContext(ctx, `SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name`)
	if err != nil {
		return err
	}
	var names []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return errors.Join(err, rows.Close())
		}
		names = append(names, name)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return err
	}
	n.Rows = make(map[string]int, len(names))
	for _, name := range names { // of our own schema
		var count int
		if err := db.Read().QueryRowContext(ctx, `SELECT count(*) FROM "`+strings.ReplaceAll(name, `"`, `""`)+`"`).Scan(&count); err != nil {
			return err
		}
		n.Rows[name] = count
	}
	return nil
}
