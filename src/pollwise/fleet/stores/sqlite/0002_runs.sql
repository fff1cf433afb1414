-- Who polls a fleet: one process at a time, which says so again every few seconds.
CREATE TABLE pollwise_fleet_runs (
    fleet TEXT NOT NULL PRIMARY KEY,
    run   TEXT NOT NULL,  -- made up anew for each run
    pid   INTEGER NOT NULL,
    host  TEXT NOT NULL,
    at    REAL NOT NULL
) WITHOUT ROWID;
