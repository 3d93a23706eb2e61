-- What people said about things on a node that mesh did not put there (APP-10, APP-18): a JSON list of words
-- {module, id, at, who, why, back, things, downgrade, replace}, the newest of each module.

ALTER TABLE node ADD COLUMN takes TEXT NOT NULL DEFAULT '[]';
