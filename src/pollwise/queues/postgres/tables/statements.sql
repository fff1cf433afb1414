-- name: put
-- Parameters are text; the function defines their types.
SELECT ids, fresh, place, twin_seq, twin_kind, twin_payload
FROM {schema}.put($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)

-- name: put_replacing
SELECT ids, fresh, place, twin_seq, twin_kind, twin_payload, twin_key
FROM {schema}.put_replacing($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)

-- name: put_one
SELECT {schema}.put_one($1, $2, $3, $4, $5, $6)

-- name: put_flow
SELECT ids, fresh, place, twin_seq, twin_kind, twin_payload, twin_key
FROM {schema}.put_flow($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17,
                       $18, $19, $20)

-- name: claim
-- Its last column, `lapse`, is missing in tables of older versions.
SELECT * FROM {schema}.claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)

-- name: settle
SELECT {schema}.settle($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)

-- name: settle_unknown
-- The same for clients that do not send the headers of their jobs: if a job is in a flow, others need
-- its result for as long as $13 says, in addition to $12, the time for which its queue keeps jobs.
SELECT {schema}.settle($1, $2, $3, $4, $5, $6, $7, ARRAY(
    SELECT CASE
        WHEN coalesce(s.action, 0) IN (0, 3)
            AND greatest(s.keep, $12::double precision, 0) < $13::double precision
            AND EXISTS (
                SELECT 1 FROM {schema}.jobs AS j
                WHERE j.seq = s.seq AND position('"pollwise-flow"' IN j.headers) > 0
            )
        THEN greatest(s.keep, $12::double precision, 0) + $13::double precision
        ELSE s.keep
    END
    FROM unnest($2::bigint[], $4::smallint[], $8::double precision[])
        WITH ORDINALITY AS s (seq, action, keep, at)
    ORDER BY s.at
), $9, $10, $11)

-- name: renew
SELECT {schema}.renew($1, $2, $3, $4, $5, $6, $7)

-- name: cancel
SELECT seq, state FROM {schema}.cancel($1, $2, $3, $4)

-- name: retry
SELECT {schema}.retry($1, $2, $3)

-- name: drop_linked
SELECT {schema}.drop_ended($1, $2, $3, $4, $5)

-- name: drop
-- Without flows, as in tables before version 11.
WITH gone AS (
    DELETE FROM {schema}.jobs WHERE queue = $1 AND state = ANY ($3::smallint[]) AND state >= 4
      AND ($2::bigint[] IS NULL OR seq = ANY ($2::bigint[]))
    RETURNING seq
)
SELECT count(*) FROM gone

-- name: prune
-- Jobs done or cancelled this many seconds ago, and jobs that were kept for a result whose time is
-- over, a bounded number. Jobs that are kept longer for their results stay. Jobs that ended before $4 were
-- examined before. Returns how many were deleted, the time, those whose links are to be deleted, and when
-- the last of those deleted had ended.
WITH clock AS MATERIALIZED (SELECT {schema}.now_or($3::double precision) AS now),
kept AS (
    DELETE FROM {schema}.jobs WHERE seq = ANY (ARRAY(
        SELECT seq FROM {schema}.jobs
        WHERE queue = $1 AND state IN (5, 6)
          AND since <= (SELECT now FROM clock) - $2::double precision
          AND since >= $4::double precision AND expires_at IS NULL
        ORDER BY since LIMIT 1000 FOR UPDATE SKIP LOCKED
    ))
    RETURNING seq, since, position('"pollwise-flow"' IN headers) > 0 AS linked
), expired AS (
    DELETE FROM {schema}.jobs WHERE seq = ANY (ARRAY(
        SELECT seq FROM {schema}.jobs
        WHERE queue = $1 AND expires_at <= (SELECT now FROM clock) AND state + 0 IN (5, 6)
        ORDER BY expires_at LIMIT 1000 FOR UPDATE SKIP LOCKED
    ))
    RETURNING seq, position('"pollwise-flow"' IN headers) > 0 AS linked
)
SELECT (SELECT count(*) FROM kept), (SELECT count(*) FROM expired), now, ARRAY(
    SELECT seq FROM kept WHERE linked UNION ALL SELECT seq FROM expired WHERE linked
), (SELECT max(since) FROM kept)
FROM clock

-- name: unlink
SELECT {schema}.unlink($1)

-- name: limit_use
SELECT name, running, waiting, full_at, at FROM {schema}.limit_use($1, $2, $3, $4, $5)

-- name: prune_circle
-- Delete groups of kinds whose groups do not take turns.
SELECT {schema}.prune_circle($1, $2)

-- name: prune_limits
SELECT kind, limit_group FROM {schema}.prune_limits($1, $2, $3, $4)

-- name: stats
SELECT state, count, more, age FROM {schema}.counts($1, $2, $3)

-- name: stats_by_kind
SELECT kind, state, count, age, more
FROM {schema}.counts_by_kind($1, $2, $3, $4)

-- name: names
SELECT name FROM {schema}.names($1)

-- name: page
SELECT * FROM {schema}.page(
    $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18
)

-- name: compensated
-- Of these jobs, the dead ones whose failure has started a job of `on_failure`.
SELECT j.seq FROM {schema}.jobs AS j
WHERE j.seq = ANY ($2::bigint[]) AND j.queue || '' = $1 AND j.state + 0 = 4
  AND EXISTS (
      SELECT 1 FROM {schema}.links AS l CROSS JOIN LATERAL (
          SELECT * FROM {schema}.jobs AS t WHERE t.seq = l.after OFFSET 0
      ) AS o
      WHERE l.before = j.seq AND l.on_failure AND o.state <> 6
        AND NOT (o.state = 2 AND o.key IS NULL)  -- held
      OFFSET 0
  )
ORDER BY j.seq + 0;

-- name: all_compensated
-- The same of all dead jobs.
SELECT j.seq FROM {schema}.jobs AS j
WHERE j.queue = $1 AND j.state = 4
  AND EXISTS (
      SELECT 1 FROM {schema}.links AS l CROSS JOIN LATERAL (
          SELECT * FROM {schema}.jobs AS t WHERE t.seq = l.after OFFSET 0
      ) AS o
      WHERE l.before = j.seq AND l.on_failure AND o.state <> 6
        AND NOT (o.state = 2 AND o.key IS NULL)  -- held
      OFFSET 0
  )
ORDER BY j.seq + 0;

-- name: predecessors
-- In their order. Those that have not ended, or are gone, have no state.
WITH clock AS MATERIALIZED (SELECT {schema}.now_or($3::double precision) AS now)
SELECT l.before, j.kind, j.state, j.errors::text, j.result
FROM {schema}.links AS l
LEFT JOIN LATERAL (
    SELECT * FROM {schema}.jobs AS t
    WHERE t.seq = l.before AND t.state >= 4
      AND NOT coalesce(t.expires_at <= (SELECT now FROM clock), false)
    OFFSET 0
) AS j ON true
WHERE l.after = $2::bigint
  AND (SELECT own.queue FROM {schema}.jobs AS own WHERE own.seq = $2::bigint) = $1
ORDER BY l.place

-- name: flow
-- The first jobs of the flow of a job, with the links to those before.
WITH clock AS MATERIALIZED (SELECT {schema}.now_or($4::double precision) AS now)
SELECT j.seq, j.kind, left(j.payload, 201), coalesce(j.key, nullif(j.held_key, '')), j.priority, j.attempt,
       j.created_at, j.run_at, j."unique", j.headers, j.token,
       CASE WHEN j.state IN (1, 3) AND j.since <= (SELECT now FROM clock) THEN 0 ELSE j.state END,
       j.since, j.worker, j.errors::text, j.claimed_at, j.progress::text, j.cancel,
       left(j.result, 201), l.before, l.on_failure
FROM (
    SELECT m.* FROM {schema}.jobs AS m
    WHERE m.queue = $1 AND m.flow IS NOT NULL AND m.flow = (
        SELECT own.flow FROM {schema}.jobs AS own WHERE own.seq = $2::bigint AND own.queue = $1
          AND NOT (own.state >= 5 AND coalesce(own.expires_at <= (SELECT now FROM clock), false))
    )
      AND NOT (m.state >= 5 AND coalesce(m.expires_at <= (SELECT now FROM clock), false))
    ORDER BY m.seq + 0 LIMIT $3::integer
) AS j
CROSS JOIN LATERAL (
    SELECT array_agg(k.before ORDER BY k.place) AS before, bool_or(k.on_failure) AS on_failure
    FROM {schema}.links AS k WHERE k.after = j.seq
) AS l
ORDER BY j.seq

-- name: arrivals
-- The time is read once: with a volatile function in each row, no index would give the order.
WITH clock AS MATERIALIZED (SELECT {schema}.now_or($5::double precision) AS now)
-- A job that waits in a flow has its key in another column, which tables before version 11 lack.
SELECT seq, kind, {payload},
       CASE WHEN state = 2 AND key IS NULL THEN nullif(to_jsonb(jobs) ->> 'held_key', '')
            ELSE key END AS key,
       priority, attempt, created_at, run_at, "unique", headers, token, shown, since, worker, errors::text, claimed_at, progress::text, cancel, {result}
FROM (
    SELECT *,
        CASE WHEN state IN (1, 3) AND since <= (SELECT now FROM clock)
             THEN 0 ELSE state END AS shown
    FROM {schema}.jobs
    WHERE queue = $1 AND seq > $2::bigint AND seq < $3::bigint
      AND NOT (state >= 5 AND coalesce(expires_at <= (SELECT now FROM clock), false))
) AS jobs
ORDER BY seq LIMIT $4::integer

-- name: note
-- And the stamp of the last change of schedules.
SELECT done, answer, (
    SELECT value FROM {schema}.notes WHERE queue = $1 AND topic = 'schedules' AND name = ''
)
FROM {schema}.note($1, $2, $3, $4, $5, $6, $7, $8)

-- name: limit_note
-- The same for limits, which are refused while there are no tables that keep them.
SELECT done, answer, NULL
FROM {schema}.note($1, $2, $3, $4, $5, $6, $7, $8)
WHERE NOT EXISTS (SELECT 1 FROM {schema}.limit_turns WHERE false)

-- name: swap_schedule
SELECT done, value, job
FROM {schema}.swap_schedule($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)

-- name: note_with_history
-- The same, and rows of a worker: of its history, which replace those of the same minute, and of its
-- pace.
WITH written AS (
    INSERT INTO {schema}.history (queue, level, at, writer, value)
    SELECT $1, r.level, r.at, r.writer, r.value
    FROM unnest($9::smallint[], $10::bigint[], $11::text[], $12::text[])
        AS r (level, at, writer, value)
    ON CONFLICT (queue, level, at, writer) DO UPDATE SET value = excluded.value
)
SELECT done, answer, (
    SELECT value FROM {schema}.notes WHERE queue = $1 AND topic = 'schedules' AND name = ''
)
FROM {schema}.note($1, $2, $3, $4, $5, $6, $7, $8)

-- name: read_history
SELECT r.place, h.level, h.at, h.writer, h.value
FROM unnest($2::smallint[], $3::bigint[], $4::bigint[], $5::integer[])
    WITH ORDINALITY AS r (level, since, until, most, place)
CROSS JOIN LATERAL (
    SELECT * FROM {schema}.history AS h
    WHERE h.queue = $1 AND h.level = r.level AND h.at >= r.since AND h.at < r.until
    ORDER BY h.at, h.writer LIMIT r.most
) AS h
ORDER BY r.place, h.at, h.writer

-- name: replace_history
SELECT {schema}.replace_history(
    $1, $2::smallint[], $3::bigint[], $4::text[], $5::smallint[], $6::bigint[], $7::text[],
    $8::text[])

-- name: read_notes
SELECT topic, name, value FROM {schema}.notes
WHERE queue = $1 AND topic = ANY ($2::text[])
  AND (until IS NULL OR until > {schema}.now_or($3::double precision))
ORDER BY topic, name

-- name: endings
-- Which of these jobs have ended, and how; a row of NULLs for one that does not exist.
WITH clock AS MATERIALIZED (SELECT {schema}.now_or($3::double precision) AS now)
SELECT wanted.seq, j.kind, j.state, j.errors::text, j.result
FROM unnest($2::bigint[]) AS wanted (seq)
LEFT JOIN LATERAL (
    SELECT * FROM {schema}.jobs AS t
    WHERE t.seq = wanted.seq AND t.queue = $1
      AND NOT (t.state >= 5 AND coalesce(t.expires_at <= (SELECT now FROM clock), false))
    OFFSET 0
) AS j ON true
WHERE j.state IS NULL OR j.state >= 4

-- name: tokens
SELECT seq, token FROM {schema}.jobs WHERE seq = ANY ($1::bigint[])

-- name: versions
SELECT version FROM {schema}.migrations

-- name: version
-- And the transaction isolation: the functions rely on seeing what was committed meanwhile.
SELECT max(version), current_setting('transaction_isolation') FROM {schema}.migrations

-- name: send
-- Without waiting for the disk: a NOTIFY blocks other commits until its own commit ends.
SELECT pg_notify($1, $2), set_config('synchronous_commit', 'off', true)

-- name: may_vacuum
-- A role that does not own the table would cause a warning in the server's log each time.
SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = '{schema}.jobs'::regclass

-- name: vacuum
-- While others work: without a lock that they would notice, and not while another does it.

VACUUM (SKIP_LOCKED, TRUNCATE off, PARALLEL 0) {schema}.jobs
