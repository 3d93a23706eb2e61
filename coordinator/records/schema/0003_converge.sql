-- Whose a node's packet filter is (NET-9): JSON {id, at, who, why, retire} of the word that handed it to mesh,
-- '' while it is not handed over.

ALTER TABLE node ADD COLUMN converge TEXT NOT NULL DEFAULT '';
