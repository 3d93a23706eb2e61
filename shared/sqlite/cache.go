package sqlite

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"strings"

	modernc "modernc.org/sqlite"
)

// cacheSize is how many prepared statements a connection keeps. A store's packages have fewer than that;
// one that makes up its texts starts over now and then.
const cacheSize = 96

// connector opens connections that keep their prepared statements: parsing and planning the few texts a
// store uses took a third of an agent's time for a report.
type connector struct{ driver.Connector }

func newConnector(dsn string) (driver.Connector, error) {
	c, err := modernc.NewConnector(dsn)
	return connector{c}, err
}

// Connect opens a connection.
func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	raw, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	full, ok := raw.(fullConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("the SQLite driver's connection is a %T without all that is needed", raw), raw.Close())
	}
	return &conn{fullConn: full, kept: map[string]*kept{}}, nil
}

// fullConn is what database/sql looks for in a connection, and the driver has.
type fullConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
	driver.SessionResetter
	driver.Validator
}

// conn is a connection; database/sql uses it from one goroutine at a time.
type conn struct {
	fullConn
	kept map[string]*kept
}

// kept is a prepared statement.
type kept struct {
	driver.Stmt
	busy bool // its rows are being read
}

// Unwrap gives the driver's connection to what looks for it.
func (c *conn) Unwrap() driver.Conn { return c.fullConn }

// keepable says whether a text may be prepared once for many uses. Others are not: a PRAGMA acts while it
// is prepared, and a script is no single statement.
func keepable(query string) bool {
	query = strings.TrimLeft(query, " \t\r\n")
	if strings.Contains(query, ";") || len(query) < 6 {
		return false
	}
	switch strings.ToUpper(query[:6]) {
	case "SELECT", "INSERT", "UPDATE", "DELETE":
		return true
	}
	return false
}

// statement is the kept one of query, nil when it cannot be used now.
func (c *conn) statement(ctx context.Context, query string) (*kept, error) {
	if k := c.kept[query]; k != nil {
		if k.busy {
			return nil, nil
		}
		return k, nil
	}
	if !keepable(query) {
		return nil, nil
	}
	if len(c.kept) >= cacheSize {
		if err := c.drop(); err != nil {
			return nil, err
		}
	}
	s, err := c.fullConn.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	k := &kept{Stmt: s}
	c.kept[query] = k
	return k, nil
}

// drop closes every statement that is not in use.
func (c *conn) drop() error {
	var errs []error
	for q, k := range c.kept {
		if !k.busy {
			delete(c.kept, q)
			errs = append(errs, k.Close())
		}
	}
	return errors.Join(errs...)
}

// PrepareContext lends the kept statement of query.
func (c *conn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	k, err := c.statement(ctx, query)
	if err != nil {
		return nil, err
	}
	if k == nil {
		return c.fullConn.PrepareContext(ctx, query)
	}
	return lent{c, query}, nil
}

// lent is a kept statement in the hands of somebody who prepared it: it is closed with the connection.
type lent struct {
	c     *conn
	query string
}

// Close gives it back.
func (lent) Close() error { return nil }

// NumInput is not known, as with the driver's own.
func (lent) NumInput() int { return -1 }

// Exec is not used: there is ExecContext.
func (lent) Exec([]driver.Value) (driver.Result, error) { return nil, driver.ErrSkip }

// Query is not used: there is QueryContext.
func (lent) Query([]driver.Value) (driver.Rows, error) { return nil, driver.ErrSkip }

// ExecContext runs it.
func (l lent) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	return l.c.ExecContext(ctx, l.query, args)
}

// QueryContext runs it and returns its rows.
func (l lent) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return l.c.QueryContext(ctx, l.query, args)
}

// ExecContext runs query.
func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	k, err := c.statement(ctx, query)
	if err != nil {
		return nil, err
	}
	if k == nil {
		return c.fullConn.ExecContext(ctx, query, args)
	}
	return k.Stmt.(driver.StmtExecContext).ExecContext(alone(ctx), args)
}

// QueryContext runs query and returns its rows.
func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	k, err := c.statement(ctx, query)
	if err != nil {
		return nil, err
	}
	if k == nil {
		return c.fullConn.QueryContext(ctx, query, args)
	}
	r, err := k.Stmt.(driver.StmtQueryContext).QueryContext(alone(ctx), args)
	if err != nil {
		return nil, err
	}
	k.busy = true
	return &rows{r, k}, nil
}

// alone spares a statement the driver's watcher, a goroutine that would interrupt it when ctx ends: a
// store's statements are over in less time than it takes to start one. A ctx that has ended already was
// seen by database/sql, and reading rows ends with ctx all the same.
func alone(ctx context.Context) context.Context { return context.WithoutCancel(ctx) }

// rows are those of a kept statement, which is free again when they are closed.
type rows struct {
	driver.Rows
	of *kept
}

// Close ends the reading.
func (r *rows) Close() error {
	r.of.busy = false
	return r.Rows.Close()
}

// Close closes the connection and its statements.
func (c *conn) Close() error {
	err := c.drop()
	return errors.Join(err, c.fullConn.Close())
}
