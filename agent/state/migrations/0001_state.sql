-- What an agent has to know across restarts. Times are Unix milliseconds, UTC. Every page that a commit
-- touches is written whole: so no index that a question does not need, and no AUTOINCREMENT.

-- The last ones accepted, in slots that are used in turn. padded is the text and zeros up to a length that
-- the next one of a slot is likely to have too: a row of the same length is written over where it stands.
CREATE TABLE declaration (
  slot     INTEGER PRIMARY KEY,
  seq      INTEGER NOT NULL,
  accepted INTEGER NOT NULL,
  size     INTEGER NOT NULL,
  digest   TEXT    NOT NULL,
  padded   BLOB    NOT NULL
) STRICT;

-- Everything mesh put on the machine, or is about to. mark guards the fields that allow a removal.
CREATE TABLE ledger (
  id           TEXT    PRIMARY KEY,
  module       TEXT    NOT NULL,
  kind         TEXT    NOT NULL,
  phase        TEXT    NOT NULL CHECK (phase IN ('intended', 'done')),
  made         INTEGER NOT NULL CHECK (made IN (0, 1)),
  keep         INTEGER NOT NULL CHECK (keep IN (0, 1)),
  sum          TEXT    NOT NULL,
  want         TEXT    NOT NULL,
  trigger      TEXT    NOT NULL,
  want_trigger TEXT    NOT NULL,
  at           INTEGER NOT NULL,
  mark         TEXT    NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE outbox (
  n       INTEGER PRIMARY KEY,
  id      TEXT    NOT NULL,
  subject TEXT    NOT NULL,
  kind    TEXT    NOT NULL,
  body    BLOB    NOT NULL,
  at      INTEGER NOT NULL
) STRICT;

CREATE TABLE module (
  name     TEXT    PRIMARY KEY,
  build    TEXT    NOT NULL,
  state    TEXT    NOT NULL,
  detail   TEXT    NOT NULL,
  since    INTEGER NOT NULL,
  restarts INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE problem (
  n    INTEGER PRIMARY KEY,
  at   INTEGER NOT NULL,
  text TEXT    NOT NULL
) STRICT;

CREATE TABLE history (
  n       INTEGER PRIMARY KEY,
  seq     INTEGER NOT NULL,
  outcome TEXT    NOT NULL,
  why     TEXT    NOT NULL,
  steps   INTEGER NOT NULL,
  took    INTEGER NOT NULL,
  at      INTEGER NOT NULL
) STRICT;

CREATE TABLE drift (
  n        INTEGER PRIMARY KEY,
  module   TEXT    NOT NULL,
  thing    TEXT    NOT NULL,
  what     TEXT    NOT NULL,
  repaired INTEGER NOT NULL,
  at       INTEGER NOT NULL
) STRICT;

CREATE TABLE meta (
  key   TEXT PRIMARY KEY,
  value BLOB NOT NULL
) STRICT, WITHOUT ROWID;
