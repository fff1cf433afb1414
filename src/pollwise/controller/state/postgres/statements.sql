-- name: versions
SELECT version FROM {schema}.controller_migrations

-- name: version
SELECT max(version), current_setting('transaction_isolation') FROM {schema}.controller_migrations

-- name: add_jobs
SELECT {job} FROM {schema}.controller_add_jobs($1, $2)

-- name: mark_ready
SELECT r_id, r_round FROM {schema}.controller_mark_ready($1, $2)

-- name: stuck
SELECT {job} FROM {schema}.controller_jobs
WHERE state = 'putting'
  AND changed_at <= (SELECT {schema}.controller_now($3::double precision)) - $1::double precision
ORDER BY changed_at LIMIT $2::integer

-- name: jobs
SELECT {job} FROM {schema}.controller_jobs WHERE id = ANY ($1::text[])

-- name: list_jobs
-- Planned again each time with what is given, so that what is not asked for costs nothing.
SELECT {brief} FROM {schema}.controller_jobs
WHERE ($1::text IS NULL OR state = $1) AND ($2::text IS NULL OR kind = $2)
  AND ($3::text IS NULL OR worker_id = $3) AND ($4::text IS NULL OR id < $4)
ORDER BY id DESC LIMIT $5::integer

-- name: deliver
SELECT {job} FROM {schema}.controller_deliver($1, $2)

-- name: runs_of
SELECT {run}, (SELECT cancel FROM {schema}.controller_jobs WHERE id = job_id)
FROM {schema}.controller_runs WHERE worker_id = $1 ORDER BY delivered_at, job_id

-- name: run
SELECT {run}, (SELECT cancel FROM {schema}.controller_jobs WHERE id = job_id)
FROM {schema}.controller_runs WHERE job_id = $1

-- name: contact
SELECT {run}, (SELECT cancel FROM {schema}.controller_jobs WHERE id = job_id)
FROM {schema}.controller_contact($1, $2)

-- name: end_runs
SELECT r_job_id, r_result FROM {schema}.controller_end_runs($1, $2)

-- name: end_job
SELECT {job} FROM {schema}.controller_end_job($1, $2, $3, $4)

-- name: release
SELECT {run}, (SELECT cancel FROM {schema}.controller_jobs WHERE id = job_id)
FROM {schema}.controller_release($1, $2, $3, $4)

-- name: cancel
SELECT {job} FROM {schema}.controller_cancel($1, $2)

-- name: renew_job
SELECT {job} FROM {schema}.controller_renew_job($1, $2, $3)

-- name: finished_before
-- One that was restarted meanwhile is left.
UPDATE {schema}.controller_jobs SET retired = true
WHERE id = ANY (ARRAY(
    SELECT id FROM {schema}.controller_jobs
    WHERE finished_at IS NOT NULL
      AND finished_at <= (SELECT {schema}.controller_now($3::double precision)) - $1::double precision
    ORDER BY finished_at LIMIT $2::integer
)) AND finished_at IS NOT NULL
RETURNING id, finished_at

-- name: forget
DELETE FROM {schema}.controller_jobs
WHERE id = ANY ($1::text[]) AND state IN ('done', 'dead', 'cancelled')
RETURNING id

-- name: requirements
SELECT hash, kind, requires FROM {schema}.controller_requirements ORDER BY kind, hash

-- name: prune_requirements
-- One that a submit is writing again meanwhile is looked at again, and stays.
DELETE FROM {schema}.controller_requirements AS q
WHERE used_at <= (SELECT {schema}.controller_now($2::double precision)) - $1::double precision
  AND NOT EXISTS (
    SELECT FROM {schema}.controller_jobs AS j
    WHERE j.kind = q.kind AND j.requires_hash = q.hash
      AND j.state IN ('putting', 'ready', 'leased')
)
RETURNING hash

-- name: stats
WITH clock AS MATERIALIZED (SELECT {schema}.controller_now($2::double precision) AS now)
SELECT 'job', state, '', count(*), 0::double precision
    FROM {schema}.controller_jobs GROUP BY state
UNION ALL
SELECT 'waiting', kind, requires_hash, count(*), max(now - created_at)
    FROM {schema}.controller_jobs, clock
    WHERE state IN ('putting', 'ready', 'leased') AND state = 'ready'
    GROUP BY kind, requires_hash
UNION ALL
SELECT 'worker', '', '', count(*), 0 FROM {schema}.controller_workers
UNION ALL
SELECT 'live', '', '', count(*), 0 FROM {schema}.controller_workers, clock
    WHERE last_seen > now - $1::double precision
UNION ALL
SELECT 'run', '', '', count(*), 0 FROM {schema}.controller_runs

-- name: add_worker
WITH new AS (
    INSERT INTO {schema}.controller_workers ({worker})
    SELECT w.id, w.name, w.capabilities, w.slots, w.token_hash, w.token_expires_at, clock.now,
        w.registered_by, clock.now, w.drain, w.address
    FROM json_populate_record(NULL::{schema}.controller_workers, $1::json) AS w,
        (SELECT {schema}.controller_now($2::double precision) AS now) AS clock
    ON CONFLICT (id) DO NOTHING
    RETURNING {worker}
)
SELECT {worker} FROM new
UNION ALL
SELECT {worker} FROM {schema}.controller_workers WHERE id = $1::json ->> 'id'

-- name: workers
SELECT {worker} FROM {schema}.controller_workers WHERE id = ANY ($1::text[])

-- name: worker_by_token
SELECT {worker} FROM {schema}.controller_workers WHERE token_hash = $1

-- name: list_workers
SELECT {worker} FROM {schema}.controller_workers
WHERE ($5::text IS NULL OR id > $5)
  AND ($1::boolean IS NULL OR $1 = (
      last_seen > (SELECT {schema}.controller_now($6::double precision)) - $2::double precision
  ))
  AND ($3::boolean IS NULL OR drain = $3)
ORDER BY id LIMIT $4::integer

-- name: seen
UPDATE {schema}.controller_workers AS w
SET last_seen = greatest(
        w.last_seen, (SELECT {schema}.controller_now($2::double precision)) - s.ago_s
    ),
    address = coalesce(nullif(s.address, ''), w.address)
FROM json_to_recordset($1::json) AS s (id text, ago_s double precision, address text)
WHERE w.id = s.id
RETURNING w.id

-- name: set_drain
UPDATE {schema}.controller_workers SET drain = $2 WHERE id = $1 RETURNING {worker}

-- name: remove_worker
DELETE FROM {schema}.controller_workers WHERE id = $1 RETURNING id

-- name: prune_workers
DELETE FROM {schema}.controller_workers WHERE id = ANY (ARRAY(
    SELECT id FROM {schema}.controller_workers AS w
    WHERE last_seen <= (SELECT {schema}.controller_now($3::double precision)) - $1::double precision
      AND NOT EXISTS (SELECT FROM {schema}.controller_runs WHERE worker_id = w.id)
    ORDER BY id LIMIT $2::integer
))
AND last_seen <= (SELECT {schema}.controller_now($3::double precision)) - $1::double precision
RETURNING id

-- name: add_token
WITH new AS (
    INSERT INTO {schema}.controller_tokens ({token})
    SELECT t.id, t.name, t.scope, t.hash, (SELECT {schema}.controller_now($2::double precision)),
        t.created_by, t.expires_at, NULL, NULL
    FROM json_populate_record(NULL::{schema}.controller_tokens, $1::json) AS t
    ON CONFLICT (id) DO NOTHING
    RETURNING {token}
)
SELECT {token} FROM new
UNION ALL
SELECT {token} FROM {schema}.controller_tokens WHERE id = $1::json ->> 'id'

-- name: token
SELECT {token} FROM {schema}.controller_tokens WHERE id = $1

-- name: token_by_hash
SELECT {token} FROM {schema}.controller_tokens WHERE hash = $1

-- name: list_tokens
SELECT {token} FROM {schema}.controller_tokens WHERE ($2::text IS NULL OR id > $2)
ORDER BY id LIMIT $1::integer

-- name: revoke_token
-- Of the workers that registered with it, nothing is valid any more.
WITH revoked AS (
    UPDATE {schema}.controller_tokens
    SET revoked_at =
        coalesce(revoked_at, (SELECT {schema}.controller_now($2::double precision)))
    WHERE id = $1
    RETURNING {token}
), expired AS (
    UPDATE {schema}.controller_workers
    SET token_expires_at =
        least(token_expires_at, (SELECT {schema}.controller_now($2::double precision)))
    WHERE registered_by = 'token:' || $1
)
SELECT {token} FROM revoked

-- name: rotate_token
UPDATE {schema}.controller_tokens SET hash = $3, expires_at = $4
WHERE id = $1 AND (hash = $2 OR hash = $3) AND revoked_at IS NULL
RETURNING {token}

-- name: tokens_used
UPDATE {schema}.controller_tokens AS t
SET last_used_at =
    greatest(t.last_used_at, (SELECT {schema}.controller_now($2::double precision)) - u.ago_s)
FROM json_to_recordset($1::json) AS u (id text, ago_s double precision)
WHERE t.id = u.id

-- name: audit
INSERT INTO {schema}.controller_audit (at, who, action, what, detail, address)
SELECT (SELECT {schema}.controller_now($2::double precision)), who, action, what, detail, address
FROM json_to_recordset($1::json)
    AS a (who text, action text, what text, detail text, address text)

-- name: list_audit
SELECT who, action, what, detail, address, id, at FROM {schema}.controller_audit
WHERE ($5::bigint IS NULL OR id < $5) AND ($1::text IS NULL OR who = $1)
  AND ($2::text IS NULL OR action = $2) AND ($3::text IS NULL OR what = $3)
ORDER BY id DESC LIMIT $4::integer

-- name: prune_audit
DELETE FROM {schema}.controller_audit WHERE id = ANY (ARRAY(
    SELECT id FROM {schema}.controller_audit
    WHERE at <= (SELECT {schema}.controller_now($3::double precision)) - $1::double precision
    ORDER BY at LIMIT $2::integer
))
RETURNING id

-- name: put_artefact
SELECT r_result, r_before::text FROM {schema}.controller_put_artefact($1, $2, $3)

-- name: artefacts
SELECT {artefact} FROM {schema}.controller_artefacts
WHERE job_id = $1 AND input = $2::boolean AND ($3::text IS NULL OR name = $3)
ORDER BY name

-- name: append_log
SELECT size, part, received, cut FROM {schema}.controller_append_log($1, $2, $3, $4, $5, $6, $7)

-- name: log_place
SELECT coalesce(size, 0), coalesce(part, 0), coalesce(received, 0), coalesce(cut, false),
    state IN ('done', 'dead', 'cancelled')
FROM {schema}.controller_jobs LEFT JOIN {schema}.controller_logs ON job_id = id
WHERE id = $1

-- name: read_log
-- The piece that holds the first byte, and all that follow.
SELECT start, data FROM {schema}.controller_log_bytes
WHERE job_id = $1 AND start < $3::bigint AND start >= coalesce((
    SELECT max(start) FROM {schema}.controller_log_bytes WHERE job_id = $1 AND start <= $2::bigint
), 0)
ORDER BY start
