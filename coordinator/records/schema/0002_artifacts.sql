-- A module's container images, and which artifacts on the bus were found to have their digest.

ALTER TABLE build ADD COLUMN images TEXT NOT NULL DEFAULT '[]'; -- JSON list, as declarations have them

CREATE TABLE artifact (
  digest   TEXT PRIMARY KEY,
  size     INTEGER NOT NULL,
  chunks   INTEGER NOT NULL,
  verified INTEGER NOT NULL          -- when its bytes were read and had the digest
) STRICT;
