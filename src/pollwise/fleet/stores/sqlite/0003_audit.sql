-- Who gave an order: the command line and its user, or the API and the client's address.
ALTER TABLE pollwise_fleet_orders ADD COLUMN asked_by TEXT NOT NULL DEFAULT '';

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
