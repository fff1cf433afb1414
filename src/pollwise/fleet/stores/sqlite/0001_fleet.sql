-- Version 1: a fleet on one machine. Times are seconds since 1970.

-- The saved state of targets.
CREATE TABLE pollwise_fleet_targets (
    fleet        TEXT NOT NULL,
    name         TEXT NOT NULL,
    due          REAL,
    paused       INTEGER NOT NULL,
    state        TEXT NOT NULL,
    failures     INTEGER NOT NULL,
    error        TEXT,
    polled_at    REAL,
    succeeded_at REAL,
    failed_at    REAL,
    changed_at   REAL,
    interval     REAL,
    more         TEXT NOT NULL,  -- JSON: the last reading, the learned rate of changes
    PRIMARY KEY (fleet, name)
) WITHOUT ROWID;

-- Orders for a fleet that another process runs.
-- asked_by: the command line and its user, or the API and the client's address.
CREATE TABLE pollwise_fleet_orders (
    seq      INTEGER PRIMARY KEY AUTOINCREMENT,
    fleet    TEXT NOT NULL,
    name     TEXT NOT NULL,
    what     TEXT NOT NULL,
    asked_by TEXT NOT NULL
);

-- Settings that were changed while the fleet ran, as JSON.
CREATE TABLE pollwise_fleet_settings (
    fleet TEXT NOT NULL,
    key   TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (fleet, key)
) WITHOUT ROWID;

-- The process that polls a fleet: one at a time. It updates `at` every few seconds.
CREATE TABLE pollwise_fleet_runs (
    fleet TEXT NOT NULL PRIMARY KEY,
    run   TEXT NOT NULL,  -- random, new for each run
    pid   INTEGER NOT NULL,
    host  TEXT NOT NULL,
    at    REAL NOT NULL
) WITHOUT ROWID;

-- The audit log: who changed what through the command line and the API.
CREATE TABLE pollwise_fleet_audit (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    fleet   TEXT NOT NULL,
    at      REAL NOT NULL,
    who     TEXT NOT NULL,
    action  TEXT NOT NULL,
    what    TEXT NOT NULL,
    detail  TEXT NOT NULL,
    address TEXT NOT NULL
);

CREATE INDEX pollwise_fleet_audit_at ON pollwise_fleet_audit (fleet, at);
