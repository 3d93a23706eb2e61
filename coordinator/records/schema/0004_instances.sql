-- Modules on the bus: the public key that a machine made for each of its instances (MEM-4), and the calls of the
-- coordinator's verbs with their answers (CAL-1).

CREATE TABLE instance (
  node   INTEGER NOT NULL REFERENCES node,
  module TEXT NOT NULL REFERENCES module,
  key    TEXT NOT NULL UNIQUE,
  heard  INTEGER NOT NULL,
  PRIMARY KEY (node, module)
) STRICT, WITHOUT ROWID;

CREATE TABLE call (
  id       TEXT PRIMARY KEY,
  caller   TEXT NOT NULL,            -- the principal's label, as the bus authenticated it
  verb     TEXT NOT NULL,
  args     TEXT NOT NULL,            -- JSON, cut when it is long; secrets are sealed in it
  began    INTEGER NOT NULL,
  ended    INTEGER,                  -- NULL while it runs
  state    TEXT NOT NULL,            -- running, answered, refused, failed, abandoned
  answer   TEXT NOT NULL DEFAULT '', -- JSON as it was given, cut at 64 KiB
  bytes    INTEGER NOT NULL DEFAULT 0 -- of the whole answer
) STRICT;
CREATE INDEX call_began ON call (began);
CREATE INDEX call_running ON call (state) WHERE state = 'running';
