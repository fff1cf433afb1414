-- Version 3: the history of targets: finished periods, and roll-ups of hours and days.
--
-- Rows name their target by a number, because a target has hundreds of them.

CREATE TABLE pollwise_fleet_history_targets (
    id    INTEGER PRIMARY KEY,
    fleet TEXT NOT NULL,
    name  TEXT NOT NULL,
    UNIQUE (fleet, name)
);

-- length: 0 for an hour, 1 for a day. at: hours or days since 1970.
-- up, down, maintenance: milliseconds in each state. figures: what its polls gave, packed.
CREATE TABLE pollwise_fleet_rollups (
    target      INTEGER NOT NULL,
    length      INTEGER NOT NULL,
    at          INTEGER NOT NULL,
    up          INTEGER NOT NULL,
    down        INTEGER NOT NULL,
    maintenance INTEGER NOT NULL,
    figures     BLOB NOT NULL,
    PRIMARY KEY (target, length, at)
) WITHOUT ROWID;

CREATE TABLE pollwise_fleet_periods (
    target     INTEGER NOT NULL,
    started_at REAL NOT NULL,
    ended_at   REAL NOT NULL,
    state      TEXT NOT NULL,
    reason     TEXT NOT NULL,
    PRIMARY KEY (target, started_at)
) WITHOUT ROWID;

CREATE INDEX pollwise_fleet_incidents
    ON pollwise_fleet_periods (started_at) WHERE state = 'down';
