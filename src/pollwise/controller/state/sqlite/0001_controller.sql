-- Version 1: what the controller keeps beside the queue, in the queue's own file.
--
-- Every change of a run, a log or an artefact is made in one transaction with a look at its job.
-- Times are seconds since 1970.

-- retired: it is about to be forgotten, and its artefacts may be gone.
-- What may be long stands at the end: nobody reads past it who does not ask for it.
CREATE TABLE pollwise_controller_jobs (
    id            TEXT    PRIMARY KEY NOT NULL,
    kind          TEXT    NOT NULL,
    state        TEXT    NOT NULL,
    requires_hash TEXT    NOT NULL,
    priority      INTEGER NOT NULL,
    "key"         TEXT,
    "unique"      TEXT,
    delay_s       REAL    NOT NULL,
    timeout_s     REAL,
    attempts      INTEGER NOT NULL,
    created_by  TEXT    NOT NULL,
    round         INTEGER NOT NULL,
    attempt       INTEGER NOT NULL,
    queue_id      TEXT,
    progress      REAL,
    worker_id     TEXT,
    cancel        INTEGER NOT NULL,
    ended_by      TEXT,
    created_at  REAL    NOT NULL,
    changed_at    REAL    NOT NULL,
    started_at    REAL,
    finished_at   REAL,
    exit_code     INTEGER,
    retired       INTEGER NOT NULL DEFAULT 0,
    payload_bytes INTEGER NOT NULL,
    result_bytes  INTEGER NOT NULL,
    message       TEXT,
    error         TEXT,
    requires      TEXT    NOT NULL,
    inputs        TEXT    NOT NULL,
    payload       TEXT    NOT NULL,
    result        TEXT
);

CREATE UNIQUE INDEX pollwise_controller_jobs_unique ON pollwise_controller_jobs ("unique")
    WHERE "unique" IS NOT NULL;
CREATE INDEX pollwise_controller_jobs_state ON pollwise_controller_jobs (state, id);
CREATE INDEX pollwise_controller_jobs_kind ON pollwise_controller_jobs (kind, id);
CREATE INDEX pollwise_controller_jobs_worker ON pollwise_controller_jobs (worker_id, id)
    WHERE worker_id IS NOT NULL;
CREATE INDEX pollwise_controller_jobs_waiting
    ON pollwise_controller_jobs (kind, requires_hash, state, created_at)
    WHERE state IN ('putting', 'ready', 'leased');
CREATE INDEX pollwise_controller_jobs_stuck ON pollwise_controller_jobs (changed_at)
    WHERE state = 'putting';
CREATE INDEX pollwise_controller_jobs_finished ON pollwise_controller_jobs (finished_at)
    WHERE finished_at IS NOT NULL;

CREATE TABLE pollwise_controller_runs (
    job_id       TEXT    PRIMARY KEY,
    worker_id    TEXT    NOT NULL,
    queue_id     TEXT    NOT NULL,
    token        INTEGER NOT NULL,
    claimed_as   TEXT    NOT NULL,
    queue_kind   TEXT    NOT NULL,
    round        INTEGER NOT NULL,
    attempt      INTEGER NOT NULL,
    until        REAL    NOT NULL,
    "key"        TEXT,
    receipt      TEXT    NOT NULL,
    delivered_at REAL    NOT NULL,
    heard_of_at  REAL
) WITHOUT ROWID;

CREATE INDEX pollwise_controller_runs_worker ON pollwise_controller_runs (worker_id, delivered_at);
CREATE INDEX pollwise_controller_runs_until ON pollwise_controller_runs (until);

CREATE TABLE pollwise_controller_requirements (
    kind     TEXT NOT NULL,
    hash     TEXT NOT NULL,
    requires TEXT NOT NULL,
    used_at  REAL NOT NULL,
    PRIMARY KEY (kind, hash)
) WITHOUT ROWID;

CREATE TABLE pollwise_controller_workers (
    id               TEXT    PRIMARY KEY,
    name             TEXT    NOT NULL,
    capabilities     TEXT    NOT NULL,
    slots            INTEGER NOT NULL,
    token_hash       TEXT    NOT NULL,
    token_expires_at REAL,
    registered_at    REAL    NOT NULL,
    registered_by    TEXT    NOT NULL,
    last_seen        REAL    NOT NULL,
    drain            INTEGER NOT NULL,
    address          TEXT    NOT NULL
) WITHOUT ROWID;

CREATE UNIQUE INDEX pollwise_controller_workers_token ON pollwise_controller_workers (token_hash);

CREATE TABLE pollwise_controller_tokens (
    id           TEXT PRIMARY KEY,
    name         TEXT NOT NULL,
    scope        TEXT NOT NULL,
    hash         TEXT NOT NULL,
    created_at   REAL NOT NULL,
    created_by   TEXT NOT NULL,
    expires_at   REAL,
    revoked_at   REAL,
    last_used_at REAL
) WITHOUT ROWID;

CREATE UNIQUE INDEX pollwise_controller_tokens_hash ON pollwise_controller_tokens (hash);

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

CREATE TABLE pollwise_controller_artefacts (
    job_id       TEXT    NOT NULL,
    input        INTEGER NOT NULL,
    name         TEXT    NOT NULL,
    blob         TEXT    NOT NULL,
    size         INTEGER NOT NULL,
    sha256       TEXT    NOT NULL,
    content_type TEXT    NOT NULL,
    created_at   REAL    NOT NULL,
    created_by   TEXT    NOT NULL,
    PRIMARY KEY (job_id, input, name)
) WITHOUT ROWID;

-- size: bytes kept; part: the newest run that wrote; received: bytes that it sent.
CREATE TABLE pollwise_controller_logs (
    job_id   TEXT    PRIMARY KEY,
    size     INTEGER NOT NULL,
    part     INTEGER NOT NULL,
    received INTEGER NOT NULL,
    cut      INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE pollwise_controller_log_bytes (
    job_id TEXT    NOT NULL,
    start  INTEGER NOT NULL,
    size   INTEGER NOT NULL,
    data   BLOB    NOT NULL,
    PRIMARY KEY (job_id, start)
);

CREATE TRIGGER pollwise_controller_jobs_forgotten AFTER DELETE ON pollwise_controller_jobs
BEGIN
    DELETE FROM pollwise_controller_runs WHERE job_id = old.id;
    DELETE FROM pollwise_controller_logs WHERE job_id = old.id;
    DELETE FROM pollwise_controller_log_bytes WHERE job_id = old.id;
    DELETE FROM pollwise_controller_artefacts WHERE job_id = old.id;
END;
