-- The saved state of targets. Times are seconds since 1970.
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
CREATE TABLE pollwise_fleet_orders (
    seq   INTEGER PRIMARY KEY AUTOINCREMENT,
    fleet TEXT NOT NULL,
    name  TEXT NOT NULL,
    what  TEXT NOT NULL
);

-- Settings that were changed while the fleet ran, as JSON.
CREATE TABLE pollwise_fleet_settings (
    fleet TEXT NOT NULL,
    key   TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (fleet, key)
) WITHOUT ROWID;
