-- Version 4: alerts and maintenance windows. Times are seconds since 1970.
--
-- Notices are records of the outbox "fleet-NAME-alerts" in the same file.

-- rule: which rule of its target opened it. since: when its condition began to hold.
-- sent: how often it was sent.
CREATE TABLE pollwise_fleet_alerts (
    fleet           TEXT NOT NULL,
    id              TEXT NOT NULL,  -- sorted by when they opened
    target          TEXT NOT NULL,
    "group"         TEXT,
    rule            TEXT NOT NULL,
    "when"          TEXT NOT NULL,
    severity        TEXT NOT NULL,
    state           TEXT NOT NULL,  -- open or closed
    since           REAL NOT NULL,
    opened_at       REAL NOT NULL,
    closed_at       REAL,
    summary         TEXT NOT NULL,
    acknowledged_at REAL,
    acknowledged_by TEXT,
    note            TEXT NOT NULL DEFAULT '',
    sent            INTEGER NOT NULL,
    last_sent_at    REAL,
    PRIMARY KEY (fleet, id)
) WITHOUT ROWID;

CREATE INDEX pollwise_fleet_alerts_open ON pollwise_fleet_alerts (fleet, id) WHERE state = 'open';

CREATE INDEX pollwise_fleet_alerts_target ON pollwise_fleet_alerts (fleet, target, id);

CREATE INDEX pollwise_fleet_alerts_closed ON pollwise_fleet_alerts (fleet, closed_at)
    WHERE closed_at IS NOT NULL;

-- Times in which alerts are held back.
-- targets, groups: JSON lists of names; both empty for all targets.
-- every: when it recurs, such as "Sat,Sun 02:00-04:00 Europe/Zurich"; NULL for once.
-- starts_at, ends_at: of a window that does not recur; of one that does, its first and last time.
CREATE TABLE pollwise_fleet_maintenance (
    fleet     TEXT NOT NULL,
    id        TEXT NOT NULL,
    targets   TEXT NOT NULL DEFAULT '[]',
    groups    TEXT NOT NULL DEFAULT '[]',
    every     TEXT,
    starts_at REAL,
    ends_at   REAL,
    note      TEXT NOT NULL DEFAULT '',
    made_by   TEXT NOT NULL DEFAULT '',
    made_at   REAL NOT NULL,
    PRIMARY KEY (fleet, id)
) WITHOUT ROWID;
