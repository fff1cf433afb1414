-- Version 1: how far the sources of `pollwise.sources` have come.
--
-- name: of the source. cursor: JSON of its own. saved_at: seconds since 1970.

CREATE TABLE pollwise_cursors (
    name     TEXT NOT NULL PRIMARY KEY,
    cursor   TEXT NOT NULL,
    saved_at REAL NOT NULL
) WITHOUT ROWID;
