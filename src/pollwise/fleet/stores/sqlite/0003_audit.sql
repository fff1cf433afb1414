-- Who left an order: the command line and whose it was, the API and from where.
ALTER TABLE pollwise_fleet_orders ADD COLUMN asked_by TEXT NOT NULL DEFAULT '';

-- Who changed what, by the command line and the API.
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
