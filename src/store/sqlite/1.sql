-- Rowid tables, appended to, with small unique indexes beside them: rows carry bodies, which have no place in a tree
-- that is ordered by random keys.

CREATE TABLE docs (
    kind TEXT NOT NULL,
    id TEXT NOT NULL,
    version INTEGER NOT NULL,
    parent TEXT,
    due INTEGER,
    body BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX docs_key ON docs (kind, id);
CREATE INDEX docs_parent ON docs (kind, parent, id) WHERE parent IS NOT NULL;
CREATE INDEX docs_due ON docs (due, kind, id) WHERE due IS NOT NULL;

CREATE TABLE entries (
    subject TEXT NOT NULL,
    seq INTEGER NOT NULL,
    hash TEXT NOT NULL,
    published BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX entries_place ON entries (subject, seq);

CREATE TABLE counts (
    window TEXT NOT NULL,
    at INTEGER NOT NULL,
    expires INTEGER NOT NULL
) STRICT;
CREATE INDEX counts_window ON counts (window, at);
CREATE INDEX counts_expires ON counts (expires);

-- status, headers and body are NULL while the request is being executed.
CREATE TABLE keys (
    scope TEXT NOT NULL,
    key TEXT NOT NULL,
    digest BLOB NOT NULL,
    status INTEGER,
    headers TEXT,
    body BLOB,
    expires INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX keys_key ON keys (key, scope);
CREATE INDEX keys_expires ON keys (expires);

-- What the health check writes.
CREATE TABLE health (
    beats INTEGER NOT NULL
) STRICT;
INSERT INTO health VALUES (0);
