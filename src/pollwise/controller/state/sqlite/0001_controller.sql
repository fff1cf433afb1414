-- Version 1: what the controller keeps beside the queue, in the queue's own file.
-- Times are seconds since 1970. JSON is text.

-- What jobs of a kind ask of a worker; hash is '' when they ask for nothing.
CREATE TABLE pollwise_controller_requirements (
    kind     TEXT NOT NULL,
    hash     TEXT NOT NULL,
    requires TEXT NOT NULL,
    used_at  REAL NOT NULL,
    PRIMARY KEY (kind, hash)
) WITHOUT ROWID;

-- registered_by: 'token:' and the id of the token that it registered with.
CREATE TABLE pollwise_controller_workers (
    id               TEXT    PRIMARY KEY,
    name             TEXT    NOT NULL,
    capabilities     TEXT    NOT NULL,
    slots            INTEGER NOT NULL,
    token_hash       TEXT    NOT NULL UNIQUE,
    token_expires_at REAL,
    registered_at    REAL    NOT NULL,
    registered_by    TEXT    NOT NULL,
    last_seen        REAL    NOT NULL,
    drain            INTEGER NOT NULL,
    address          TEXT    NOT NULL
) WITHOUT ROWID;

CREATE TABLE pollwise_controller_tokens (
    id           TEXT PRIMARY KEY,
    name         TEXT NOT NULL,
    scope        TEXT NOT NULL,
    hash         TEXT NOT NULL UNIQUE,
    created_at   REAL NOT NULL,
    created_by   TEXT NOT NULL,
    expires_at   REAL,
    revoked_at   REAL,
    last_used_at REAL
) WITHOUT ROWID;

-- The tokens of the workers that registered with a revoked token end with it.
CREATE TRIGGER pollwise_controller_tokens_revoked
AFTER UPDATE OF revoked_at ON pollwise_controller_tokens
BEGIN
    UPDATE pollwise_controller_workers
    SET token_expires_at = min(coalesce(token_expires_at, new.revoked_at), new.revoked_at)
    WHERE registered_by = 'token:' || new.id;
END;

CREATE TABLE pollwise_controller_audit (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    at      REAL NOT NULL,
    who     TEXT NOT NULL,
    action  TEXT NOT NULL,
    what    TEXT NOT NULL,
    detail  TEXT NOT NULL,
    address TEXT NOT NULL
);

CREATE INDEX pollwise_controller_audit_at ON pollwise_controller_audit (at);

-- A folder has the files and the log of a job, or the inputs of a job to come.
-- job: '' for inputs whose job is not known (yet).
-- written_at: of a log, up to 10 s before its last append.
-- size: bytes of the log; part: the newest run that wrote it; received: the bytes which that run
-- sent; cut: the log has reached its limit.
CREATE TABLE pollwise_controller_folders (
    folder     TEXT    PRIMARY KEY,
    job        TEXT    NOT NULL,
    written_at REAL    NOT NULL,
    size       INTEGER NOT NULL DEFAULT 0,
    part       INTEGER NOT NULL DEFAULT 0,
    received   INTEGER NOT NULL DEFAULT 0,
    cut        INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;

CREATE INDEX pollwise_controller_folders_written ON pollwise_controller_folders (written_at);

CREATE TABLE pollwise_controller_artefacts (
    folder       TEXT    NOT NULL,
    name         TEXT    NOT NULL,
    blob         TEXT    NOT NULL,
    size         INTEGER NOT NULL,
    sha256       TEXT    NOT NULL,
    input        INTEGER NOT NULL,
    content_type TEXT    NOT NULL,
    created_at   REAL    NOT NULL,
    created_by   TEXT    NOT NULL,
    PRIMARY KEY (folder, input, name)
) WITHOUT ROWID;

CREATE TABLE pollwise_controller_log_bytes (
    folder TEXT    NOT NULL,
    start  INTEGER NOT NULL,
    data   BLOB    NOT NULL,
    PRIMARY KEY (folder, start)
);

CREATE TRIGGER pollwise_controller_folders_forgotten AFTER DELETE ON pollwise_controller_folders
BEGIN
    DELETE FROM pollwise_controller_artefacts WHERE folder = old.folder;
    DELETE FROM pollwise_controller_log_bytes WHERE folder = old.folder;
END;
