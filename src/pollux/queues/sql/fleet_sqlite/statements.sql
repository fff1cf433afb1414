-- The state of a fleet in SQLite. One row a target; a batch is one transaction.

-- name: load
SELECT name, due, paused, condition, failures, error, polled_at, succeeded_at, failed_at,
       changed_at, interval, more
FROM pollux_fleet_targets WHERE fleet = ?;

-- name: save
-- Positional, for many rows at a time.
INSERT OR REPLACE INTO pollux_fleet_targets
    (fleet, name, due, paused, condition, failures, error, polled_at, succeeded_at, failed_at,
     changed_at, interval, more)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: forget
DELETE FROM pollux_fleet_targets WHERE fleet = ? AND name = ?;

-- name: order
INSERT INTO pollux_fleet_orders (fleet, name, what) VALUES (?, ?, ?);

-- name: orders
SELECT name, what FROM pollux_fleet_orders WHERE fleet = ? ORDER BY seq;

-- name: clear_orders
DELETE FROM pollux_fleet_orders WHERE fleet = ?;

-- name: settings
SELECT key, value FROM pollux_fleet_settings WHERE fleet = ? ORDER BY key;

-- name: keep_setting
INSERT OR REPLACE INTO pollux_fleet_settings (fleet, key, value) VALUES (?, ?, ?);

-- name: forget_setting
DELETE FROM pollux_fleet_settings WHERE fleet = ? AND key = ?;

-- name: run
SELECT run, pid, host, at FROM pollux_fleet_runs WHERE fleet = ?;

-- name: keep_run
INSERT OR REPLACE INTO pollux_fleet_runs (fleet, run, pid, host, at) VALUES (?, ?, ?, ?, ?);

-- name: end_run
DELETE FROM pollux_fleet_runs WHERE fleet = ? AND run = ?;
