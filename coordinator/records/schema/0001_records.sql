-- The coordinator's records. Times are Unix milliseconds, UTC. A released file never changes.

CREATE TABLE mesh (
  one       INTEGER PRIMARY KEY CHECK (one = 1),
  id        TEXT NOT NULL,
  name      TEXT NOT NULL,
  addresses TEXT NOT NULL,           -- JSON list of host:port
  ca        TEXT NOT NULL,           -- PEM, public
  signer    TEXT NOT NULL,           -- whose declarations the nodes believe, public
  created   INTEGER NOT NULL
) STRICT;

CREATE TABLE node (
  id         INTEGER PRIMARY KEY,
  name       TEXT NOT NULL,
  key        TEXT NOT NULL,
  curve      TEXT NOT NULL,
  machine_id TEXT NOT NULL,
  enrolled   INTEGER NOT NULL,
  removed    INTEGER,                -- archived since; the name is free again
  drift      TEXT NOT NULL,
  tunnel     TEXT NOT NULL,
  inside     TEXT NOT NULL,          -- JSON list of links
  admin      TEXT NOT NULL,          -- JSON list of openings, the way in for people
  asleep_ok  INTEGER NOT NULL CHECK (asleep_ok IN (0, 1))
) STRICT;
CREATE UNIQUE INDEX node_name ON node (name) WHERE removed IS NULL;
CREATE UNIQUE INDEX node_key ON node (key) WHERE removed IS NULL;
CREATE UNIQUE INDEX node_machine ON node (machine_id) WHERE removed IS NULL;
CREATE INDEX node_archive ON node (name);

CREATE TABLE invitation (
  id       TEXT PRIMARY KEY,
  node     TEXT NOT NULL,
  key      TEXT NOT NULL UNIQUE,
  made     INTEGER NOT NULL,
  expires  INTEGER NOT NULL,
  revoked  INTEGER,
  used     INTEGER,
  used_by  TEXT NOT NULL DEFAULT '', -- public key of the machine that used it
  used_for INTEGER REFERENCES node,
  answer   TEXT NOT NULL DEFAULT ''  -- kept, so that a lost answer can be given again
) STRICT;

CREATE TABLE operator (
  id      INTEGER PRIMARY KEY,
  name    TEXT NOT NULL,
  key     TEXT NOT NULL,
  role    TEXT NOT NULL,
  made    INTEGER NOT NULL,
  revoked INTEGER
) STRICT;
CREATE UNIQUE INDEX operator_name ON operator (name) WHERE revoked IS NULL;
CREATE UNIQUE INDEX operator_key ON operator (key) WHERE revoked IS NULL;

CREATE TABLE module (
  name  TEXT PRIMARY KEY,
  build TEXT NOT NULL REFERENCES build DEFERRABLE INITIALLY DEFERRED -- the current one
) STRICT;

CREATE TABLE build (
  id       TEXT PRIMARY KEY,         -- build-<unix nanoseconds>
  module   TEXT NOT NULL REFERENCES module,
  manifest TEXT NOT NULL,            -- JSON, checked when it came in
  digest   TEXT NOT NULL,            -- of the artifact, '' without one
  size     INTEGER NOT NULL,
  chunks   INTEGER NOT NULL,
  source   TEXT NOT NULL,
  at       INTEGER NOT NULL
) STRICT;
CREATE INDEX build_module ON build (module, at);

CREATE TABLE assignment (
  node     INTEGER NOT NULL REFERENCES node,
  module   TEXT NOT NULL REFERENCES module,
  settings TEXT NOT NULL,            -- JSON object of texts
  secrets  TEXT NOT NULL,            -- JSON object of sealed texts
  PRIMARY KEY (node, module)
) STRICT, WITHOUT ROWID;
CREATE INDEX assignment_module ON assignment (module);

-- The last declaration composed for a node. Its text stands apart: this row is read and written often.
CREATE TABLE declaration (
  node      INTEGER PRIMARY KEY REFERENCES node,
  seq       INTEGER NOT NULL,
  hash      BLOB NOT NULL,
  composed  INTEGER NOT NULL,
  sent      INTEGER NOT NULL,        -- the last seq that was put on the bus, 0: none
  artifacts TEXT NOT NULL,           -- JSON list of the digests it names
  before    TEXT NOT NULL            -- those of the declaration before it, which the node may still run
) STRICT;

CREATE TABLE declaration_text (
  node   INTEGER PRIMARY KEY REFERENCES node,
  packed BLOB NOT NULL               -- the signed text, packed with S2
) STRICT;

CREATE TABLE send (
  id     INTEGER PRIMARY KEY,
  node   INTEGER NOT NULL REFERENCES node,
  seq    INTEGER NOT NULL,
  at     INTEGER NOT NULL,
  push   TEXT NOT NULL,
  builds TEXT NOT NULL               -- JSON object, module to build
) STRICT;
CREATE INDEX send_node ON send (node, id);

CREATE TABLE report (
  node    INTEGER PRIMARY KEY REFERENCES node,
  number  INTEGER NOT NULL,          -- 0: nothing heard yet, only the profile of the enrolment
  heard   INTEGER NOT NULL,
  -- the account of the apply, which a report about an older declaration leaves alone
  seq     INTEGER NOT NULL,
  outcome TEXT NOT NULL,
  refused TEXT NOT NULL,             -- JSON, '' when nothing was refused
  took    INTEGER NOT NULL,
  applied INTEGER NOT NULL,          -- when this account was heard
  -- what composing needs of the machine, taken out of the body
  top     INTEGER NOT NULL,          -- the highest seq the node ever spoke of
  os      TEXT NOT NULL,
  arch    TEXT NOT NULL,
  engine  TEXT NOT NULL,
  uplinks INTEGER NOT NULL,          -- how many it named
  tunnel  TEXT NOT NULL,
  body    TEXT NOT NULL              -- JSON, the last report whole
) STRICT;

CREATE TABLE change (
  id     INTEGER PRIMARY KEY AUTOINCREMENT,
  at     INTEGER NOT NULL,
  who    TEXT NOT NULL CHECK (who <> ''),
  what   TEXT NOT NULL,
  object TEXT NOT NULL,
  node   TEXT NOT NULL,              -- '' when no node is concerned
  module TEXT NOT NULL,              -- '' when no module is concerned
  why    TEXT NOT NULL
) STRICT;
CREATE INDEX change_node ON change (node, id);
CREATE INDEX change_module ON change (module, id);
CREATE TRIGGER change_keeps BEFORE UPDATE ON change
  BEGIN SELECT RAISE(ABORT, 'the journal of changes is only appended to'); END;
CREATE TRIGGER change_stays BEFORE DELETE ON change
  BEGIN SELECT RAISE(ABORT, 'the journal of changes is only appended to'); END;
