-- What a person had removed from a node beside what is not declared any more (APP-11): the data of a module that
-- was taken off it, and, under the module '', strays. things is a JSON list of ids.

CREATE TABLE removal (
  node   INTEGER NOT NULL REFERENCES node,
  module TEXT    NOT NULL,
  things TEXT    NOT NULL,
  PRIMARY KEY (node, module)
) STRICT, WITHOUT ROWID;
