-- The state of a fleet in SQLite. One row for each target; a batch is one transaction.

-- name: load
SELECT name, due, paused, state, failures, error, polled_at, succeeded_at, failed_at,
       changed_at, interval, type, "group", more
FROM pollwise_fleet_targets WHERE fleet = :fleet;

-- name: load_some
-- :names is a JSON list.
SELECT name, due, paused, state, failures, error, polled_at, succeeded_at, failed_at,
       changed_at, interval, type, "group", more
FROM pollwise_fleet_targets
WHERE fleet = :fleet AND name IN (SELECT value FROM json_each(:names));

-- name: counts
-- By group, state and pause: how many there are, how many of them never succeeded, how many are
-- overdue (as `is_overdue`), the newest success, and polls a second (as `polled_every`). Reads only the
-- index, in its order, and the rows of failing targets.
SELECT "group", state, paused, count(*), count(*) - count(succeeded_at),
       sum(due < :late OR succeeded_at > :ahead),
       max(succeeded_at), sum(coalesce(
           CASE WHEN state <> 'closed' THEN (
               SELECT 1.0 / (f.due - f.polled_at) FROM pollwise_fleet_targets AS f
               WHERE f.fleet = t.fleet AND f.name = t.name AND f.due > f.polled_at
           ) END,
           CASE WHEN interval > 0 THEN 1.0 / interval END))
FROM pollwise_fleet_targets AS t INDEXED BY pollwise_fleet_targets_view
WHERE fleet = :fleet GROUP BY "group", state, paused;

-- name: first_names
-- The names of a page of all targets, by name.
SELECT 0.0, name FROM pollwise_fleet_targets
WHERE fleet = :fleet AND name > :name ORDER BY name LIMIT :limit;

-- name: names
-- The names of a page, with what they are sorted by. Reads only the index.
SELECT place, name FROM (
    SELECT name, "group", CASE
            WHEN paused THEN 'paused'
            WHEN state = 'closed' AND succeeded_at IS NULL THEN 'new'
            ELSE state
        END AS viewed, CASE
            WHEN :sort = 'name' THEN 0.0
            WHEN paused THEN 1e300
            WHEN :sort = 'stale' THEN coalesce(succeeded_at, -1.0)
            ELSE coalesce(due, 1e300)
        END AS place
    FROM pollwise_fleet_targets INDEXED BY pollwise_fleet_targets_view WHERE fleet = :fleet
)
WHERE (:state IS NULL OR viewed = :state)
  AND (:group IS NULL OR coalesce("group", '') = :group)
  AND (:text IS NULL OR instr(lower(name), lower(:text)) > 0)
  AND (place > :place OR place = :place AND name > :name)
ORDER BY place, name LIMIT :limit;

-- name: save
-- Positional parameters, for executemany.
INSERT OR REPLACE INTO pollwise_fleet_targets
    (fleet, name, due, paused, state, failures, error, polled_at, succeeded_at, failed_at,
     changed_at, interval, type, "group", more)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: remove
DELETE FROM pollwise_fleet_targets WHERE fleet = :fleet AND name = :name;

-- name: history_target
-- Positional parameters, for executemany, as in the statements that follow.
INSERT OR IGNORE INTO pollwise_fleet_history_targets (fleet, name) VALUES (?, ?);

-- name: save_rollup
INSERT OR REPLACE INTO pollwise_fleet_rollups
    (target, length, at, up, down, maintenance, figures)
SELECT id, ?, ?, ?, ?, ?, ? FROM pollwise_fleet_history_targets WHERE fleet = ? AND name = ?;

-- name: save_period
INSERT OR REPLACE INTO pollwise_fleet_periods (target, started_at, ended_at, state, reason)
SELECT id, ?, ?, ?, ? FROM pollwise_fleet_history_targets WHERE fleet = ? AND name = ?;

-- name: prune_rollups
-- Keeps the newest roll-ups of a length.
DELETE FROM pollwise_fleet_rollups WHERE target = :id AND length = :length AND at < (
    SELECT at FROM pollwise_fleet_rollups WHERE target = :id AND length = :length
    ORDER BY at DESC LIMIT 1 OFFSET :kept - 1
);

-- name: prune_periods
DELETE FROM pollwise_fleet_periods WHERE target = :id AND started_at < (
    SELECT started_at FROM pollwise_fleet_periods WHERE target = :id
    ORDER BY started_at DESC LIMIT 1 OFFSET :kept - 1
);

-- name: history_ids
-- :names is a JSON list.
SELECT id FROM pollwise_fleet_history_targets
WHERE fleet = :fleet AND name IN (SELECT value FROM json_each(:names));

-- name: forget_rollups
DELETE FROM pollwise_fleet_rollups WHERE target = :id;

-- name: forget_periods
DELETE FROM pollwise_fleet_periods WHERE target = :id;

-- name: forget_target
DELETE FROM pollwise_fleet_history_targets WHERE id = :id;

-- name: rollups
SELECT h.name, r.at, r.up, r.down, r.maintenance, CASE WHEN :figures THEN r.figures END
FROM pollwise_fleet_history_targets AS h
JOIN pollwise_fleet_rollups AS r ON r.target = h.id AND r.length = :length AND r.at >= :since
WHERE h.fleet = :fleet AND h.name IN (SELECT value FROM json_each(:names))
ORDER BY h.name, r.at;

-- name: spent
-- :names is a JSON list, :windows one of [length, first, last]. The targets as in `load`, with a JSON list
-- of the sums for each window; in one statement, so that no hour is missed or counted twice.
SELECT t.name, due, paused, state, failures, error, polled_at, succeeded_at, failed_at,
       changed_at, interval, type, "group", more,
       (SELECT json_group_array(json_array(up, down, maintenance)) FROM (
           SELECT total(r.up) AS up, total(r.down) AS down, total(r.maintenance) AS maintenance
           FROM json_each(:windows) AS w LEFT JOIN pollwise_fleet_rollups AS r
               ON r.target = h.id AND r.length = w.value ->> 0
                  AND r.at BETWEEN w.value ->> 1 AND w.value ->> 2
           GROUP BY w.key ORDER BY w.key
       ))
FROM pollwise_fleet_targets AS t
LEFT JOIN pollwise_fleet_history_targets AS h ON h.fleet = t.fleet AND h.name = t.name
WHERE t.fleet = :fleet AND t.name IN (SELECT value FROM json_each(:names));

-- name: periods
-- :names is a JSON list, or NULL for all.
SELECT h.name, p.state, p.started_at, p.ended_at, p.reason
FROM pollwise_fleet_periods AS p
JOIN pollwise_fleet_history_targets AS h ON h.id = p.target
WHERE h.fleet = :fleet AND (:names IS NULL OR h.name IN (SELECT value FROM json_each(:names)))
  AND p.ended_at > :since AND p.started_at < :before AND (:state IS NULL OR p.state = :state)
ORDER BY p.started_at DESC LIMIT :limit;

-- name: incidents
-- As `periods`, of all targets that were down, by their index.
SELECT h.name, p.state, p.started_at, p.ended_at, p.reason
FROM pollwise_fleet_periods AS p INDEXED BY pollwise_fleet_incidents
JOIN pollwise_fleet_history_targets AS h ON h.id = p.target
WHERE p.state = 'down' AND h.fleet = :fleet AND p.ended_at > :since AND p.started_at < :before
ORDER BY p.started_at DESC LIMIT :limit;

-- name: order
INSERT INTO pollwise_fleet_orders (fleet, name, what, asked_by) VALUES (:fleet, :name, :what, :by);

-- name: orders
SELECT name, what, asked_by FROM pollwise_fleet_orders WHERE fleet = :fleet ORDER BY seq;

-- name: pending
-- The oldest orders that nobody took yet; :names is a JSON list, or NULL for all.
SELECT name, what, asked_by FROM pollwise_fleet_orders
WHERE fleet = :fleet AND (:names IS NULL OR name IN (SELECT value FROM json_each(:names)))
ORDER BY seq LIMIT 1000;

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

-- name: definitions
-- The definitions that changed after :since; removed ones too, unless all are asked for.
SELECT name, definition, version, defined_by, at FROM pollwise_fleet_definitions
WHERE fleet = :fleet AND version > :since AND (:since > 0 OR definition IS NOT NULL)
ORDER BY version, name;

-- name: definitions_version
SELECT coalesce(max(version), 0) FROM pollwise_fleet_definitions WHERE fleet = :fleet;

-- name: definition_versions
-- The versions of these definitions; :names is a JSON list.
SELECT name, version FROM pollwise_fleet_definitions
WHERE fleet = :fleet AND definition IS NOT NULL
  AND name IN (SELECT value FROM json_each(:names));

-- name: count_definitions
SELECT count(*) FROM pollwise_fleet_definitions WHERE fleet = :fleet AND definition IS NOT NULL;

-- name: define
INSERT OR REPLACE INTO pollwise_fleet_definitions (fleet, name, definition, version, defined_by, at)
VALUES (:fleet, :name, :definition, :version, :by, :now);

-- name: prune_definitions
DELETE FROM pollwise_fleet_definitions
WHERE fleet = :fleet AND definition IS NULL AND at <= :before;

-- name: keep_alert
-- Positional parameters, for executemany. A closed alert stays closed; what people noted stays, and
-- so does the summary.
INSERT INTO pollwise_fleet_alerts
    (fleet, id, target, "group", rule, "when", severity, state, since, opened_at, closed_at,
     summary, sent, last_sent_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (fleet, id) DO UPDATE SET
    state = excluded.state, closed_at = excluded.closed_at, sent = excluded.sent,
    last_sent_at = excluded.last_sent_at
    WHERE pollwise_fleet_alerts.state = 'open';

-- name: prune_alerts
DELETE FROM pollwise_fleet_alerts WHERE fleet = :fleet AND closed_at <= :before;

-- name: prune_alerts_of
-- The oldest closed alerts of a target, above :most.
DELETE FROM pollwise_fleet_alerts
WHERE fleet = :fleet AND target = :target AND state = 'closed' AND id <= (
    SELECT id FROM pollwise_fleet_alerts
    WHERE fleet = :fleet AND target = :target AND state = 'closed'
    ORDER BY id DESC LIMIT 1 OFFSET :most
);

-- name: open_alerts
SELECT id, target, "group", rule, "when", severity, state, since, opened_at, closed_at, summary,
       acknowledged_at, acknowledged_by, note, sent, last_sent_at
FROM pollwise_fleet_alerts
WHERE fleet = :fleet AND state = 'open'
  AND (:group IS NULL OR "group" = :group) AND (:after IS NULL OR id < :after)
ORDER BY id DESC LIMIT :limit;

-- name: alerts_of
SELECT id, target, "group", rule, "when", severity, state, since, opened_at, closed_at, summary,
       acknowledged_at, acknowledged_by, note, sent, last_sent_at
FROM pollwise_fleet_alerts
WHERE fleet = :fleet AND target = :target AND (:state IS NULL OR state = :state)
  AND (:group IS NULL OR "group" = :group) AND (:after IS NULL OR id < :after)
ORDER BY id DESC LIMIT :limit;

-- name: alerts
SELECT id, target, "group", rule, "when", severity, state, since, opened_at, closed_at, summary,
       acknowledged_at, acknowledged_by, note, sent, last_sent_at
FROM pollwise_fleet_alerts
WHERE fleet = :fleet AND (:state IS NULL OR state = :state)
  AND (:group IS NULL OR "group" = :group) AND (:after IS NULL OR id < :after)
ORDER BY id DESC LIMIT :limit;

-- name: alerts_by_id
-- :ids is a JSON list.
SELECT id, target, "group", rule, "when", severity, state, since, opened_at, closed_at, summary,
       acknowledged_at, acknowledged_by, note, sent, last_sent_at
FROM pollwise_fleet_alerts
WHERE fleet = :fleet AND id IN (SELECT value FROM json_each(:ids)) ORDER BY id DESC;

-- name: acknowledge
UPDATE pollwise_fleet_alerts
SET acknowledged_at = :now, acknowledged_by = :by, note = :note
WHERE fleet = :fleet AND state = 'open' AND id = :id;

-- name: close_alerts_of
UPDATE pollwise_fleet_alerts SET state = 'closed', closed_at = :now
WHERE fleet = :fleet AND target = :name AND state = 'open';

-- name: maintenance
SELECT id, targets, groups, every, starts_at, ends_at, note, made_by, made_at
FROM pollwise_fleet_maintenance WHERE fleet = :fleet ORDER BY made_at, id;

-- name: keep_maintenance
-- Nothing is written for a new window above :most.
INSERT INTO pollwise_fleet_maintenance
    (fleet, id, targets, groups, every, starts_at, ends_at, note, made_by, made_at)
SELECT :fleet, :id, :targets, :groups, :every, :starts_at, :ends_at, :note, :made_by, :made_at
WHERE (SELECT count(*) FROM pollwise_fleet_maintenance WHERE fleet = :fleet AND id <> :id) < :most
ON CONFLICT (fleet, id) DO UPDATE SET
    targets = excluded.targets, groups = excluded.groups, every = excluded.every,
    starts_at = excluded.starts_at, ends_at = excluded.ends_at, note = excluded.note;

-- name: remove_maintenance
DELETE FROM pollwise_fleet_maintenance WHERE fleet = :fleet AND id = :id;

-- name: prune_maintenance
DELETE FROM pollwise_fleet_maintenance WHERE fleet = :fleet AND ends_at <= :before;
