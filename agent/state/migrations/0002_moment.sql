-- How the machine was: each row is one part of it from then on, until the next row of that part. An empty
-- body says that the part is no more. n orders, no clock does.
CREATE TABLE moment (
  n    INTEGER PRIMARY KEY,
  at   INTEGER NOT NULL,
  part TEXT    NOT NULL,
  body BLOB    NOT NULL
) STRICT;
