-- The process that polls a fleet: one at a time. It updates `at` every few seconds.
CREATE TABLE pollwise_fleet_runs (
    fleet TEXT NOT NULL PRIMARY KEY,
    run   TEXT NOT NULL,  -- random, new for each run
    pid   INTEGER NOT NULL,
    host  TEXT NOT NULL,
    at    REAL NOT NULL
) WITHOUT ROWID;
