-- The state of a fleet in SQLite. One row for each target; a batch is one transaction.

-- name: load
SELECT name, due, paused, state, failures, error, polled_at, succeeded_at, failed_at,
       changed_at, interval, more
FROM pollwise_fleet_targets WHERE fleet = :fleet;

-- name: save
-- Positional parameters, for executemany.
INSERT OR REPLACE INTO pollwise_fleet_targets
    (fleet, name, due, paused, state, failures, error, polled_at, succeeded_at, failed_at,
     changed_at, interval, more)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: remove
DELETE FROM pollwise_fleet_targets WHERE fleet = :fleet AND name = :name;

-- name: order
INSERT INTO pollwise_fleet_orders (fleet, name, what, asked_by) VALUES (:fleet, :name, :what, :by);

-- name: orders
SELECT name, what, asked_by FROM pollwise_fleet_orders WHERE fleet = :fleet ORDER BY seq;

-- name: clear_orders
DELETE FROM pollwise_fleet_orders WHERE fleet = :fleet;

-- name: settings
SELECT key, value FROM pollwise_fleet_settings WHERE fleet = :fleet ORDER BY key;

-- name: keep_setting
INSERT OR REPLACE INTO pollwise_fleet_settings (fleet, key, value)
VALUES (:fleet, :key, :value);

-- name: remove_setting
DELETE FROM pollwise_fleet_settings WHERE fleet = :fleet AND key = :key;

-- name: count
SELECT count(*) FROM pollwise_fleet_targets WHERE fleet = :fleet;

-- name: run
SELECT run, pid, host, at FROM pollwise_fleet_runs WHERE fleet = :fleet;

-- name: keep_run
INSERT OR REPLACE INTO pollwise_fleet_runs (fleet, run, pid, host, at)
VALUES (:fleet, :run, :pid, :host, :at);

-- name: end_run
DELETE FROM pollwise_fleet_runs WHERE fleet = :fleet AND run = :run;

-- name: audit
INSERT INTO pollwise_fleet_audit (fleet, at, who, action, what, detail, address)
VALUES (:fleet, :now, :who, :action, :what, :detail, :address);

-- name: prune_audit
DELETE FROM pollwise_fleet_audit WHERE fleet = :fleet AND at <= :before;

-- name: list_audit
SELECT who, action, what, detail, address, id, at FROM pollwise_fleet_audit
WHERE fleet = :fleet AND id < :before ORDER BY id DESC LIMIT :limit;
