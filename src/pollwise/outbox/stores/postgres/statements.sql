-- name: put
-- Parameters are sent as text; the function has their types.
SELECT * FROM {schema}.outbox_put_all($1, $2, $3, $4)

-- name: taken
SELECT r."unique", r.seq, r.kind, r.payload
FROM (SELECT DISTINCT u AS name FROM unnest($2::text[]) AS u) AS given
CROSS JOIN LATERAL (
    SELECT * FROM {schema}.outbox_records AS t
    WHERE t.outbox = $1 AND t."unique" = given.name AND t."unique" IS NOT NULL OFFSET 0
) AS r

-- name: put_more
SELECT * FROM {schema}.outbox_put_more($1, $2, $3, $4)

-- name: claim
-- First, delayed records that are due. The last row has the lanes, read after the claim.
SELECT c.seq, c.key, c.kind, c.payload, c.headers, c.created_at, c.progress, c.retried, c.lapses,
       c.token, CASE WHEN c.seq IS NULL THEN least(c.until, p.next) ELSE c.until END,
       CASE WHEN c.seq IS NULL THEN {schema}.outbox_lanes_of($1) END
FROM {schema}.outbox_promote($1, $7) AS p
CROSS JOIN LATERAL {schema}.outbox_claim($1, $2, $3, $4, $5, $6, p.now) AS c

-- name: claim_lane
-- With the id of the record that each is a copy of.
SELECT c.seq, c.key, c.kind, c.payload, c.headers, c.created_at, c.progress, c.retried, c.lapses,
       c.token, c.until,
       (SELECT r.origin::text FROM {schema}.outbox_records AS r WHERE r.seq = c.seq)
FROM {schema}.outbox_claim($1, $2, $3, $4, $5, $6, $7) AS c

-- name: settle
SELECT lost, more
FROM {schema}.outbox_settle($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)

-- name: settle_lane
SELECT lost, more
FROM {schema}.outbox_settle_lane($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)

-- name: fan_out
SELECT lost, more FROM {schema}.outbox_fan_out(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)

-- name: lanes
SELECT {schema}.outbox_lanes_of($1)

-- name: forget_lanes
SELECT {schema}.outbox_forget_lanes($1, $2)

-- name: renew
SELECT {schema}.outbox_renew($1, $2, $3, $4, $5)

-- name: retry
SELECT {schema}.outbox_retry($1, $2, $3, $4, $5)

-- name: release
-- Ends leases: of the keys in $2, of the relay $3, or all. Rows are locked in the order of their keys,
-- as in a settlement.
WITH free AS (
    UPDATE {schema}.outbox_keys SET
        state = 0, due = {schema}.outbox_now($4::double precision), token = token + 1, relay = NULL
    WHERE line = ANY (ARRAY(
        SELECT line FROM {schema}.outbox_keys
        WHERE line >= $1 || chr(31) AND line < $1 || chr(32) AND state + 0 = 3
          AND ($2::text[] IS NULL OR line = ANY (ARRAY(
              SELECT $1 || chr(31) || k FROM unnest($2::text[]) AS k)))
          AND ($3::text IS NULL OR relay = $3::text)
        ORDER BY line FOR UPDATE
    ))
    RETURNING line
)
SELECT count(*) FROM free

-- name: retry_lane
SELECT {schema}.outbox_retry_lane($1, $2, $3, $4, $5, $6)

-- name: replay
SELECT replayed, last FROM {schema}.outbox_replay($1, $2, $3, $4, $5, $6, $7)

-- name: replayable
SELECT count(*) FROM {schema}.outbox_records
WHERE outbox = $1 AND state = 3
  AND ($2::text IS NULL OR kind = $2::text)
  AND ($3::text IS NULL OR key = $3::text)
  AND ($4::double precision IS NULL OR created_at >= $4::double precision)
  AND ($5::double precision IS NULL OR created_at < $5::double precision)

-- name: prune
-- Records done more than $2 seconds ago, a limited number.
WITH gone AS (
    DELETE FROM {schema}.outbox_records WHERE seq = ANY (ARRAY(
        SELECT seq FROM {schema}.outbox_records
        WHERE outbox = $1 AND state = 3
          AND since <= (SELECT {schema}.outbox_now($3::double precision)) - $2::double precision
        ORDER BY since LIMIT 1000 FOR UPDATE SKIP LOCKED
    ))
    RETURNING seq
)
SELECT count(*) FROM gone

-- name: announce
-- An announcement also removes relays that have been silent for long. started_at is written once:
-- it decides which of two relays is newer.
WITH clock AS MATERIALIZED (SELECT {schema}.outbox_now($6::double precision) AS now), gone AS (
    DELETE FROM {schema}.outbox_relays USING clock
    WHERE outbox = $1 AND CASE WHEN relay = $2 THEN $3::text IS NULL
                               ELSE seen_at < now - 10 * $5::double precision END
), announced AS (
    INSERT INTO {schema}.outbox_relays (outbox, relay, handlers, started_at, seen_at)
    SELECT $1, $2, $3::text, now - $4::double precision, now FROM clock WHERE $3::text IS NOT NULL
    ON CONFLICT (outbox, relay) DO UPDATE SET
        handlers = excluded.handlers, seen_at = excluded.seen_at
    RETURNING started_at AS began
)
SELECT relay, handlers, started_at, seen_at,
       coalesce((started_at, relay COLLATE "C") > (began, $2 COLLATE "C"), false)
FROM {schema}.outbox_relays CROSS JOIN clock LEFT JOIN announced ON true
WHERE outbox = $1 AND relay <> $2 AND seen_at > now - $5::double precision
ORDER BY started_at, relay

-- name: write_history
-- Rows of a relay, as part of an announcement: of its history, which replace those of the same minute,
-- and of its pace.
INSERT INTO {schema}.outbox_history (outbox, level, at, writer, value)
SELECT $1, r.level, r.at, r.writer, r.value
FROM unnest($7::smallint[], $8::bigint[], $9::text[], $10::text[])
    AS r (level, at, writer, value)
ON CONFLICT (outbox, level, at, writer) DO UPDATE SET value = excluded.value

-- name: read_history
SELECT r.place, h.level, h.at, h.writer, h.value
FROM unnest($2::smallint[], $3::bigint[], $4::bigint[], $5::integer[])
    WITH ORDINALITY AS r (level, since, until, most, place)
CROSS JOIN LATERAL (
    SELECT * FROM {schema}.outbox_history AS h
    WHERE h.outbox = $1 AND h.level = r.level AND h.at >= r.since AND h.at < r.until
    ORDER BY h.at, h.writer LIMIT r.most
) AS h
ORDER BY r.place, h.at, h.writer

-- name: replace_history
SELECT {schema}.replace_outbox_history(
    $1, $2::smallint[], $3::bigint[], $4::text[], $5::smallint[], $6::bigint[], $7::text[],
    $8::text[])

-- name: relays
SELECT relay, handlers, started_at, seen_at, false FROM {schema}.outbox_relays
WHERE outbox = $1 AND seen_at > {schema}.outbox_now($3::double precision) - $2::double precision
ORDER BY started_at, relay COLLATE "C"

-- name: stats
-- Leased and waiting: the first records of keys; what is overdue counts as ready. Counts up to $3 each, and
-- examines $4 keys for what is behind blocked ones and for the oldest record. The orders are those of indexes:
-- a plan that reads a whole table would have to sort it.
WITH clock AS MATERIALIZED (SELECT {schema}.outbox_now($2::double precision) AS now), held AS MATERIALIZED (
    SELECT state FROM {schema}.outbox_keys
    WHERE outbox = $1 AND state < 4 AND due > (SELECT now FROM clock)
    ORDER BY due LIMIT $3::integer
), blocked AS MATERIALIZED (
    SELECT line FROM {schema}.outbox_keys WHERE outbox = $1 AND state = 4
    ORDER BY line LIMIT $3::integer
), examined AS MATERIALIZED (
    (SELECT line FROM {schema}.outbox_keys
     WHERE outbox = $1 AND state < 4 ORDER BY due LIMIT $4::integer)
    UNION ALL (SELECT line FROM blocked LIMIT $4::integer)
)
SELECT
    (SELECT count(*) FROM (
        SELECT 1 FROM {schema}.outbox_records
        WHERE line >= $1 || chr(31) AND line < $1 || chr(32) AND state < 2
        ORDER BY line, seq + 0 LIMIT $3::integer) AS r),
    (SELECT count(*) FROM held WHERE state = 3),
    (SELECT count(*) FROM held WHERE state = 2),
    (SELECT count(*) FROM (
        SELECT 1 FROM {schema}.outbox_records
        WHERE outbox = $1 AND state = 2 ORDER BY seq + 0 LIMIT $3::integer) AS r),
    (SELECT count(*) FROM (
        SELECT 1 FROM {schema}.outbox_records
        WHERE outbox = $1 AND state = 3 ORDER BY since LIMIT $3::integer) AS r),
    (SELECT count(*) FROM blocked),
    (SELECT count(*) FROM (
        SELECT 1 FROM (SELECT line FROM blocked LIMIT $4::integer) AS k
        CROSS JOIN LATERAL (
            SELECT 1 FROM {schema}.outbox_records AS b
            WHERE b.line = k.line AND b.state < 2 LIMIT $3::integer
        ) AS r LIMIT $3::integer) AS r),
    now - least(
        (SELECT created_at FROM {schema}.outbox_records
         WHERE outbox = $1 AND state = 0 ORDER BY seq + 0 LIMIT 1),
        (SELECT min((
             SELECT r.created_at FROM {schema}.outbox_records AS r
             WHERE r.line = examined.line AND r.state < 2 ORDER BY r.seq + 0 LIMIT 1)) FROM examined)),
    (SELECT count(*) FROM (
        SELECT 1 FROM {schema}.outbox_records
        WHERE outbox = $1 AND state = 5 ORDER BY since LIMIT $3::integer) AS r)
FROM clock

-- name: blocked
SELECT r.key, coalesce(r.origin, k.first), r.kind, r.error, r.since,
       (SELECT count(*) FROM (
            SELECT 1 FROM {schema}.outbox_records AS b
            WHERE b.line = k.line AND b.state < 2 LIMIT $4::integer) AS b)
FROM {schema}.outbox_keys AS k
CROSS JOIN LATERAL (SELECT * FROM {schema}.outbox_records AS f WHERE f.seq = k.first OFFSET 0) AS r
WHERE k.outbox = $1 AND k.state = 4 AND k.line > $1 || chr(31) || $2
ORDER BY k.line LIMIT $3::integer

-- name: shown
-- Records as they are shown, for `list` and `at`. States: 0 ready, 1 leased, 2 waiting, 3 dead, 4 done,
-- 5 delayed. A record that is in its lanes is shown as their copies. With the state of its key, and the
-- first record before it, for a record that waits.
SELECT coalesce(origin, seq), kind, payload, key, headers, created_at,
       shown, CASE WHEN shown IN (1, 2) THEN due ELSE since END, error, progress,
       CASE WHEN shown = 1 THEN relay END, seq, substr(outbox, length($1) + 2),
       CASE WHEN shown = 0 THEN key_state END,
       CASE WHEN shown = 0 AND key IS NOT NULL THEN coalesce((
           SELECT concat_ws(chr(10), coalesce(d.origin, d.seq), d.error)
           FROM {schema}.outbox_records AS d WHERE d.seq = first AND key_state = 4
       ), (
           SELECT concat_ws(chr(10), coalesce(b.origin, b.seq), b.error)
           FROM {schema}.outbox_records AS b
           WHERE b.line = records.line AND b.state < 2 AND b.seq + 0 < records.seq
           ORDER BY b.seq + 0 LIMIT 1
       )) END
FROM (
    SELECT r.*, k.due, k.relay, k.state AS key_state, k.first,
           CASE WHEN r.state = 5 THEN 5 WHEN r.state >= 2 THEN r.state + 1
                WHEN k.first <> r.seq OR k.due <= {schema}.outbox_now($2::double precision) THEN 0
                WHEN k.state = 3 THEN 1 WHEN k.state = 2 THEN 2 ELSE 0 END AS shown
    FROM {schema}.outbox_records AS r
    LEFT JOIN LATERAL (
        SELECT * FROM {schema}.outbox_keys AS o WHERE o.line = r.line OFFSET 0
    ) AS k ON true
    WHERE (r.outbox = $1 OR r.outbox = ANY (ARRAY(
               SELECT $1 || chr(30) || l.lane FROM {schema}.outbox_lanes AS l WHERE l.outbox = $1)))
      AND {which} AND r.state <> 4
) AS records

-- name: list
{shown}
WHERE ($4::integer IS NULL OR shown = $4::integer)
  AND ($5::text IS NULL OR kind = $5::text)
  AND ($6::text IS NULL OR key = $6::text)
ORDER BY seq LIMIT $7::integer

-- name: at
-- The rows $3.
{shown}

-- name: list_dead
-- By the index of dead records.
SELECT coalesce(origin, seq), kind, payload, key, headers, created_at, 3, since, error,
       progress, NULL, seq, substr(outbox, length($1) + 2), NULL, NULL
FROM {schema}.outbox_records
WHERE (outbox = $1 OR outbox = ANY (ARRAY(
           SELECT $1 || chr(30) || l.lane FROM {schema}.outbox_lanes AS l WHERE l.outbox = $1)))
  AND state = 2 AND seq + 0 > $2::bigint
  AND ($3::text IS NULL OR kind = $3::text)
  AND ($4::text IS NULL OR key = $4::text)
ORDER BY seq + 0 LIMIT $5::integer

-- name: rows_of
-- The rows of a record: itself and its copies.
SELECT seq FROM {schema}.outbox_records WHERE seq = $1::bigint
UNION ALL
SELECT seq FROM {schema}.outbox_records WHERE origin = $1::bigint AND origin IS NOT NULL

-- Pages: each statement walks at most $2 rows of an index, after the place ($7, $6). It returns the two parts
-- of each row's place, its seq, and whether it matches the kind $3, the key $4 and the text $5 in its error.
-- $8 is the time, and $9 the state of keys.

-- name: walk_dead
SELECT 0.0::double precision, seq, seq, ($3::text IS NULL OR kind = $3::text) AND ($4::text IS NULL OR key = $4::text)
       AND ($5::text IS NULL OR strpos(lower(coalesce(error, '')), lower($5::text)) > 0)
FROM {schema}.outbox_records
WHERE outbox = $1 AND state = 2 AND seq + 0 > $6::bigint ORDER BY seq + 0 LIMIT $2::integer

-- name: walk_delayed
SELECT since, seq, seq, ($3::text IS NULL OR kind = $3::text) AND ($4::text IS NULL OR key = $4::text)
       AND ($5::text IS NULL OR strpos(lower(coalesce(error, '')), lower($5::text)) > 0)
FROM {schema}.outbox_records
WHERE outbox = $1 AND state = 5 AND since >= $7::double precision
  AND (since > $7::double precision OR seq > $6::bigint)
ORDER BY since, seq LIMIT $2::integer

-- name: walk_done
-- The newest first.
SELECT -since, -seq, seq, ($3::text IS NULL OR kind = $3::text) AND ($4::text IS NULL OR key = $4::text)
       AND ($5::text IS NULL OR strpos(lower(coalesce(error, '')), lower($5::text)) > 0)
FROM {schema}.outbox_records
WHERE outbox = $1 AND state = 3 AND since <= -($7::double precision)
  AND (since < -($7::double precision) OR seq < -($6::bigint))
ORDER BY since DESC, seq DESC LIMIT $2::integer

-- name: walk_live
-- Records without a key come first, then by key. The first part of a place is a 0, or a 1 and the key.
SELECT CASE WHEN key IS NULL THEN '0' || seq ELSE '1' || key END, seq, seq, ($3::text IS NULL OR kind = $3::text) AND ($4::text IS NULL OR key = $4::text)
       AND ($5::text IS NULL OR strpos(lower(coalesce(error, '')), lower($5::text)) > 0)
FROM {schema}.outbox_records
WHERE (line, seq + 0) > ($1 || chr(31) || $7::text, $6::bigint) AND line < $1 || chr(32) AND state < 2
ORDER BY line, seq + 0 LIMIT $2::integer

-- name: walk_key
SELECT 0.0::double precision, seq, seq, ($3::text IS NULL OR kind = $3::text) AND ($4::text IS NULL OR key = $4::text)
       AND ($5::text IS NULL OR strpos(lower(coalesce(error, '')), lower($5::text)) > 0)
FROM {schema}.outbox_records
WHERE line = $1 || chr(31) || $4::text AND state < 2 AND seq + 0 > $6::bigint
ORDER BY seq + 0 LIMIT $2::integer

-- name: walk_held
-- The first records of the keys that are leased or wait for a retry, by the time when that ends.
SELECT k.due, r.seq, r.seq, k.state = $9::integer AND ($3::text IS NULL OR r.kind = $3::text) AND ($4::text IS NULL OR r.key = $4::text)
       AND ($5::text IS NULL OR strpos(lower(coalesce(r.error, '')), lower($5::text)) > 0)
FROM (
    SELECT due, first, state FROM {schema}.outbox_keys
    WHERE outbox = $1 AND state < 4 AND due >= $7::double precision
      AND due > {schema}.outbox_now($8::double precision)
    ORDER BY due LIMIT $2::integer
) AS k
CROSS JOIN LATERAL (SELECT * FROM {schema}.outbox_records AS f WHERE f.seq = k.first OFFSET 0) AS r
WHERE k.due > $7::double precision OR r.seq > $6::bigint
ORDER BY 1, 2

-- name: walk_all
-- $1 is a list: the outbox and its lanes.
SELECT 0.0::double precision, seq, seq, outbox = ANY ($1::text[]) AND state <> 4 AND ($3::text IS NULL OR kind = $3::text) AND ($4::text IS NULL OR key = $4::text)
       AND ($5::text IS NULL OR strpos(lower(coalesce(error, '')), lower($5::text)) > 0)
FROM {schema}.outbox_records WHERE seq > $6::bigint ORDER BY seq LIMIT $2::integer

-- name: fates
-- The state of claims whose settlement is in doubt: the tokens of their keys, and which of their
-- records are still open.
SELECT d.key, k.token FROM unnest($2::text[]) AS d (key)
CROSS JOIN LATERAL (
    SELECT o.token FROM {schema}.outbox_keys AS o WHERE o.line = $1 || chr(31) || d.key OFFSET 0
) AS k
UNION ALL
SELECT NULL, seq FROM {schema}.outbox_records WHERE seq = ANY ($3::bigint[]) AND state + 0 < 2

-- name: versions
SELECT version FROM {schema}.outbox_migrations

-- name: version
-- With the isolation level: a claim must see what was committed since its transaction began.
SELECT max(version), current_setting('transaction_isolation') FROM {schema}.outbox_migrations

-- name: send
-- Without waiting for the disk: a NOTIFY blocks the commits of others until its own commit ended.
SELECT pg_notify($1, $2), set_config('synchronous_commit', 'off', true)

-- name: may_vacuum
-- A role that does not own the tables would cause a warning in the server's log each time.
SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = '{schema}.outbox_records'::regclass

-- name: vacuum
-- While others work: without a lock that blocks them, and not while another vacuum runs.
VACUUM (SKIP_LOCKED, TRUNCATE off, PARALLEL 0) {schema}.outbox_records, {schema}.outbox_keys
