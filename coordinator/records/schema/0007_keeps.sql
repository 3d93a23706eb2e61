-- What was changed by hand on a node and stays for a while (APP-19): a JSON list of {thing, until, at, who, why}.

ALTER TABLE node ADD COLUMN keeps TEXT NOT NULL DEFAULT '[]';
