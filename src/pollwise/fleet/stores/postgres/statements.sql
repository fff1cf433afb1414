-- name: load
SELECT name, due, paused, state, failures, error, polled_at, succeeded_at, failed_at,
       changed_at, "interval", type, "group", more
FROM {schema}.fleet_targets
WHERE fleet = $1 AND ($2::text[] IS NULL OR name = ANY ($2::text[])) ORDER BY name

-- name: counts
-- By group, state and pause: how many there are, how many of them never succeeded, how many are
-- overdue (as `is_overdue`), the newest success, and polls a second (as `polled_every`).
WITH clock AS MATERIALIZED (SELECT {schema}.fleet_now($3::double precision) AS now)
SELECT "group", state, paused, count(*), count(*) - count(succeeded_at),
       count(*) FILTER (WHERE due < (SELECT now FROM clock) - $2::double precision
                        OR succeeded_at > (SELECT now FROM clock) + $2::double precision),
       max(succeeded_at), sum(CASE
           WHEN state <> 'closed' AND due > polled_at THEN 1.0 / (due - polled_at)
           WHEN "interval" > 0 THEN 1.0 / "interval"
       END)
FROM {schema}.fleet_targets WHERE fleet = $1 GROUP BY 1, 2, 3

-- name: first_names
-- The names of a page of all targets, by name.
SELECT 0.0::double precision, name FROM {schema}.fleet_targets
WHERE fleet = $1 AND name > $2 ORDER BY name LIMIT $3::integer

-- name: names
-- The names of a page, with what they are sorted by. Nothing is prepared, so each call has a plan of its own:
-- few targets of a state are found by the index.
SELECT place, name FROM (
    SELECT name, CASE
            WHEN $5::text = 'name' THEN 0.0
            WHEN paused THEN 1e300
            WHEN $5::text = 'stale' THEN coalesce(succeeded_at, -1.0)
            ELSE coalesce(due, 1e300)
        END AS place
    FROM {schema}.fleet_targets
    WHERE fleet = $1
      AND ($2::text IS NULL OR paused = ($2::text = 'paused'))
      AND ($2::text IS NULL OR $2::text = 'paused'
           OR state = CASE $2::text WHEN 'new' THEN 'closed' ELSE $2::text END)
      AND ($2::text IS NULL OR $2::text NOT IN ('new', 'closed')
           OR (succeeded_at IS NULL) = ($2::text = 'new'))
      AND ($3::text IS NULL OR "group" = $3::text OR ($3::text = '' AND "group" IS NULL))
      AND ($4::text IS NULL OR strpos(lower(name), lower($4::text)) > 0)
) AS viewed_targets
WHERE (place, name) > ($6::double precision, $7::text)
ORDER BY place, name LIMIT $8::integer

-- name: pending
-- The oldest orders that nobody took yet.
SELECT name, what, asked_by FROM {schema}.fleet_orders
WHERE fleet = $1 AND ($2::text[] IS NULL OR name = ANY ($2::text[])) ORDER BY seq LIMIT 1000

-- name: figures
-- By state, in one pass over the targets: how many there are, are paused, never succeeded, and are overdue.
WITH clock AS MATERIALIZED (SELECT {schema}.fleet_now($3::double precision) AS now)
SELECT state, count(*), count(*) FILTER (WHERE paused),
       count(*) FILTER (WHERE succeeded_at IS NULL),
       count(*) FILTER (
           WHERE NOT paused AND (due < (SELECT now FROM clock) - $2::double precision
                                 OR succeeded_at > (SELECT now FROM clock) + $2::double precision)
       )
FROM {schema}.fleet_targets WHERE fleet = $1 GROUP BY state

-- name: dead
SELECT name FROM {schema}.fleet_targets
WHERE fleet = $1 AND state = 'dead' ORDER BY name LIMIT $2::integer

-- name: stalest
SELECT name, {schema}.fleet_now($2::double precision) - succeeded_at FROM {schema}.fleet_targets
WHERE fleet = $1 AND succeeded_at IS NOT NULL AND NOT paused ORDER BY succeeded_at LIMIT 1

-- name: save
SELECT {schema}.fleet_save($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)

-- name: rollups
SELECT h.name, r.at, r.up, r.down, r.maintenance, CASE WHEN $5::boolean THEN r.figures END
FROM {schema}.fleet_history_targets AS h
JOIN {schema}.fleet_past AS r
    ON r.target = h.id AND r.length = $3::smallint AND r.at >= $4::integer
WHERE h.fleet = $1 AND h.name = ANY ($2::text[])
ORDER BY h.name, r.at

-- name: spent
-- The targets as in `load`, with a JSON list of the sums for each window; in one statement, so that no hour
-- is missed or counted twice. $3 to $5: the length, the first and the last place of each window.
SELECT t.name, due, paused, state, failures, error, polled_at, succeeded_at, failed_at,
       changed_at, "interval", type, "group", more,
       (SELECT json_agg(json_build_array(up, down, maintenance) ORDER BY place)::text FROM (
           SELECT w.place, coalesce(sum(r.up), 0) AS up, coalesce(sum(r.down), 0) AS down,
                  coalesce(sum(r.maintenance), 0) AS maintenance
           FROM unnest($3::integer[], $4::integer[], $5::integer[])
               WITH ORDINALITY AS w (length, first, last, place)
           LEFT JOIN {schema}.fleet_past AS r
               ON r.target = h.id AND r.length = w.length AND r.at BETWEEN w.first AND w.last
           GROUP BY w.place
       ) AS sums)
FROM {schema}.fleet_targets AS t
LEFT JOIN {schema}.fleet_history_targets AS h ON h.fleet = t.fleet AND h.name = t.name
WHERE t.fleet = $1 AND t.name = ANY ($2::text[])

-- name: periods
SELECT h.name, p.state, p.started_at, p.ended_at, p.reason
FROM {schema}.fleet_periods AS p JOIN {schema}.fleet_history_targets AS h ON h.id = p.target
WHERE h.fleet = $1 AND ($2::text[] IS NULL OR h.name = ANY ($2::text[]))
  AND p.ended_at > $3::double precision AND p.started_at < $4::double precision
  AND ($5::text IS NULL OR p.state = $5::text)
ORDER BY p.started_at DESC LIMIT $6::integer

-- name: incidents
-- As `periods`, of all targets that were down, by their index.
SELECT h.name, p.state, p.started_at, p.ended_at, p.reason
FROM {schema}.fleet_periods AS p JOIN {schema}.fleet_history_targets AS h ON h.id = p.target
WHERE p.state = 'down' AND h.fleet = $1
  AND p.ended_at > $2::double precision AND p.started_at < $3::double precision
ORDER BY p.started_at DESC LIMIT $4::integer

-- name: remove
WITH ordered AS (
    DELETE FROM {schema}.fleet_orders WHERE fleet = $1 AND name = ANY ($2::text[])
), closed AS (
    UPDATE {schema}.fleet_alerts
    SET state = 'closed', closed_at = {schema}.fleet_now($3::double precision)
    WHERE fleet = $1 AND target = ANY ($2::text[]) AND state = 'open'
), forgotten AS (
    DELETE FROM {schema}.fleet_history_targets WHERE fleet = $1 AND name = ANY ($2::text[])
    RETURNING id
), rollups AS (
    DELETE FROM {schema}.fleet_rollups WHERE target IN (SELECT id FROM forgotten)
), hours AS (
    DELETE FROM {schema}.fleet_hours WHERE target IN (SELECT id FROM forgotten)
), periods AS (
    DELETE FROM {schema}.fleet_periods WHERE target IN (SELECT id FROM forgotten)
)
DELETE FROM {schema}.fleet_targets WHERE fleet = $1 AND name = ANY ($2::text[])

-- name: renew
SELECT id, nodes, free, ends, locations FROM {schema}.fleet_renew_at($1, $2, $3, $4, $5, $6)

-- name: claim
SELECT name, token, due, paused, state, failures, error, polled_at, succeeded_at, failed_at,
       changed_at, "interval", type, "group", more
FROM {schema}.fleet_claim($1, $2, $3, $4, $5, $6)

-- name: give_back
SELECT {schema}.fleet_give_back($1, $2, $3)

-- name: nodes
-- The living nodes, the remaining time of their leases, and how many targets they hold.
WITH clock AS MATERIALIZED (SELECT {schema}.fleet_now($2::double precision) AS now)
SELECT n.node, n.until - now,
       (SELECT count(*) FROM {schema}.fleet_targets AS t WHERE t.fleet = $1 AND t.holder = n.id),
       n.location
FROM {schema}.fleet_nodes AS n, clock
WHERE n.fleet = $1 AND n.until > now ORDER BY n.node

-- name: order
INSERT INTO {schema}.fleet_orders (fleet, name, what, asked_by, at)
SELECT $1, given.name, $3::text, $4::text, {schema}.fleet_now($5::double precision)
FROM unnest($2::text[]) AS given (name)

-- name: orders
-- Take the orders for the targets that this node holds. Orders older than a day are dropped.
WITH taken AS (
    DELETE FROM {schema}.fleet_orders AS o
    WHERE o.fleet = $1 AND (
        EXISTS (
            SELECT 1 FROM {schema}.fleet_targets AS t
            WHERE t.fleet = $1 AND t.name = o.name AND t.holder = $2::bigint
        )
        OR o.at < {schema}.fleet_now($3::double precision) - 86400
    )
    RETURNING seq, name, what, asked_by, at
)
SELECT name, what, asked_by FROM taken
WHERE at >= {schema}.fleet_now($3::double precision) - 86400 ORDER BY seq

-- name: settings
SELECT key, value FROM {schema}.fleet_settings WHERE fleet = $1 ORDER BY key

-- name: keep_settings
-- A value of NULL deletes the setting.
WITH given AS (
    SELECT * FROM unnest($2::text[], $3::text[]) AS g (key, value)
), gone AS (
    DELETE FROM {schema}.fleet_settings AS s USING given
    WHERE s.fleet = $1 AND s.key = given.key AND given.value IS NULL
)
INSERT INTO {schema}.fleet_settings (fleet, key, value, at)
SELECT $1, key, value, {schema}.fleet_now($4::double precision) FROM given
WHERE value IS NOT NULL
ON CONFLICT (fleet, key) DO UPDATE SET value = excluded.value, at = excluded.at

-- name: versions
SELECT version FROM {schema}.fleet_migrations

-- name: version
SELECT max(version), current_setting('transaction_isolation') FROM {schema}.fleet_migrations

-- name: audit
-- Each new entry also deletes the expired ones.
WITH clock AS MATERIALIZED (SELECT {schema}.fleet_now($8::double precision) AS now), pruned AS (
    DELETE FROM {schema}.fleet_audit
    WHERE fleet = $1 AND at <= (SELECT now FROM clock) - $7::double precision
)
INSERT INTO {schema}.fleet_audit (fleet, at, who, action, what, detail, address)
SELECT $1, now, $2::text, $3::text, $4::text, $5::text, $6::text FROM clock

-- name: list_audit
SELECT who, action, what, detail, address, id, at FROM {schema}.fleet_audit
WHERE fleet = $1 AND id < $2::bigint ORDER BY id DESC LIMIT $3::integer

-- name: definitions
-- The definitions that changed after $2; removed ones too, unless all are asked for.
SELECT name, definition, version, defined_by, at FROM {schema}.fleet_definitions
WHERE fleet = $1 AND version > $2::bigint AND ($2::bigint > 0 OR definition IS NOT NULL)
ORDER BY version, name

-- name: definitions_version
SELECT coalesce(max(version), 0) FROM {schema}.fleet_definitions WHERE fleet = $1

-- name: define
SELECT version, conflict FROM {schema}.fleet_define($1, $2, $3, $4, $5, $6, $7, $8)

-- name: save_with_extras
-- As `save`, with what belongs to the targets that were not refused: alerts and notices, and the
-- finished rows of their history.
WITH refused AS MATERIALIZED (
    SELECT ARRAY(
        SELECT {schema}.fleet_save(
            $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16
        )
    ) AS names
), alerted AS MATERIALIZED (
    SELECT {schema}.fleet_keep_alerts($1, $17, refused.names, $18, $19, $20, $21, $22) FROM refused
), past AS MATERIALIZED (
    SELECT {schema}.fleet_keep_history(
        $1, refused.names, $23, $24, $25, $26, $27, $28, $29, $30, $31, $32, $33, $34, $35, $36, $37
    ) FROM refused
), hours AS MATERIALIZED (
    SELECT {schema}.fleet_keep_hours(
        $1, refused.names, $38, $39, $40, $41, $42, $43
    ) FROM refused, past
)
SELECT unnest(refused.names) FROM refused, alerted, past, hours

-- name: alerts
SELECT id, target, "group", rule, "when", severity, state, since, opened_at, closed_at, summary,
       acknowledged_at, acknowledged_by, note, sent, last_sent_at
FROM {schema}.fleet_alerts
WHERE fleet = $1 AND ($2::text IS NULL OR state = $2::text)
  AND ($3::text IS NULL OR target = $3::text) AND ($4::text IS NULL OR "group" = $4::text)
  AND ($5::text IS NULL OR id < $5::text)
ORDER BY id DESC LIMIT $6::integer

-- name: alerts_by_id
SELECT id, target, "group", rule, "when", severity, state, since, opened_at, closed_at, summary,
       acknowledged_at, acknowledged_by, note, sent, last_sent_at
FROM {schema}.fleet_alerts WHERE fleet = $1 AND id = ANY ($2::text[]) ORDER BY id DESC

-- name: acknowledge
UPDATE {schema}.fleet_alerts SET
    acknowledged_at = {schema}.fleet_now($5::double precision), acknowledged_by = $3::text,
    note = $4::text
WHERE fleet = $1 AND state = 'open' AND id = ANY ($2::text[])
RETURNING id

-- name: maintenance
SELECT id, targets, groups, every, starts_at, ends_at, note, made_by, made_at
FROM {schema}.fleet_maintenance WHERE fleet = $1 ORDER BY made_at, id

-- name: keep_maintenance
-- Nothing is written for a new window above $11.
INSERT INTO {schema}.fleet_maintenance AS m
    (fleet, id, targets, groups, every, starts_at, ends_at, note, made_by, made_at)
SELECT $1, $2::text, $3::text, $4::text, $5::text, $6::double precision, $7::double precision,
       $8::text, $9::text, $10::double precision
WHERE (
    SELECT count(*) FROM {schema}.fleet_maintenance AS o WHERE o.fleet = $1 AND o.id <> $2::text
) < $11::integer
ON CONFLICT (fleet, id) DO UPDATE SET
    targets = excluded.targets, groups = excluded.groups, every = excluded.every,
    starts_at = excluded.starts_at, ends_at = excluded.ends_at, note = excluded.note
RETURNING id

-- name: remove_maintenance
DELETE FROM {schema}.fleet_maintenance WHERE fleet = $1 AND id = $2::text RETURNING id

-- name: prune_maintenance
DELETE FROM {schema}.fleet_maintenance
WHERE fleet = $1 AND ends_at <= {schema}.fleet_now($3::double precision) - $2::double precision
RETURNING id

-- name: ask_locations
SELECT {schema}.fleet_ask_locations($1, $2, $3, $4, $5)

-- name: take_asked
SELECT name, asked_at FROM {schema}.fleet_take_asked($1, $2, $3, $4, $5)

-- name: answer_locations
-- A late answer to an older question does not replace a newer one.
UPDATE {schema}.fleet_locations AS l SET
    answered = given.asked_at, at = {schema}.fleet_now($8::double precision), ok = given.ok,
    took = given.took, error = given.error
FROM unnest(
    $2::text[], $3::text[], $4::double precision[], $5::boolean[], $6::double precision[], $7::text[]
) AS given (name, location, asked_at, ok, took, error)
WHERE l.fleet = $1 AND l.name = given.name AND l.location = given.location
  AND coalesce(l.answered, 0) <= given.asked_at
RETURNING l.name

-- name: location_answers
SELECT name, location, answered,
       greatest({schema}.fleet_now($3::double precision) - at, 0), ok, took, error
FROM {schema}.fleet_locations
WHERE fleet = $1 AND name = ANY ($2::text[]) AND answered IS NOT NULL
