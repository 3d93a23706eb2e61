-- Who may have changed a thing by hand, in words (APP-19).
ALTER TABLE drift ADD COLUMN who TEXT NOT NULL DEFAULT '';
