-- name: put
-- One job; blocked if its key already has a live job. A repeated `unique` changes nothing.
INSERT INTO pollwise_jobs (queue, kind, payload, state, priority, since, run_at, created_at, "key", "unique")
VALUES (
    :queue, :kind, :payload,
    CASE
        WHEN :key IS NOT NULL AND EXISTS (
            SELECT 1 FROM pollwise_jobs WHERE queue = :queue AND "key" = :key AND state < 4
        ) THEN 2
        WHEN :run_at > :now THEN 1
        ELSE 0
    END,
    :priority, :run_at, :run_at, :now, :key, :unique
)
ON CONFLICT (queue, "unique") WHERE "unique" IS NOT NULL DO NOTHING;

-- name: twin
-- The job that has a `unique`.
SELECT seq, kind, payload FROM pollwise_jobs WHERE queue = :queue AND "unique" = :unique;

-- name: glance
-- Is a job ready, and when does the next delay or lease end? A read without the write lock.
SELECT
    EXISTS (SELECT 1 FROM pollwise_jobs WHERE queue = :queue AND state = 0),
    (SELECT min(since) FROM pollwise_jobs WHERE queue = :queue AND state IN (1, 3));

-- name: glance_kinds
-- The same for some kinds: a backlog of other kinds does not take the write lock.
SELECT
    EXISTS (
        SELECT 1 FROM json_each(:kinds) AS wanted
        WHERE EXISTS (
            SELECT 1 FROM pollwise_jobs WHERE queue = :queue AND state = 0 AND kind = wanted.value
        )
    ),
    (SELECT min(since) FROM pollwise_jobs WHERE queue = :queue AND state IN (1, 3));

-- name: promote
-- Make due jobs ready: delayed ones, and leased ones whose lease ran out.
UPDATE pollwise_jobs SET
    state = 0,
    since = run_at,
    error = CASE state WHEN 3 THEN 'the lease of ' || worker || ' ran out' ELSE error END,
    worker = NULL
WHERE seq IN (
    SELECT seq FROM pollwise_jobs
    WHERE queue = :queue AND state IN (1, 3) AND since <= :now
    ORDER BY since LIMIT :most
);

-- name: ready_kind
SELECT wanted.value FROM json_each(:kinds) AS wanted
WHERE EXISTS (
    SELECT 1 FROM pollwise_jobs WHERE queue = :queue AND state = 0 AND kind = wanted.value
)
LIMIT 1;

-- name: ready_kinds
-- The kinds that have ready jobs: skips through the index instead of scanning it.
WITH RECURSIVE kinds (kind) AS (
    SELECT min(kind) FROM pollwise_jobs WHERE queue = :queue AND state = 0
    UNION ALL
    SELECT (SELECT min(kind) FROM pollwise_jobs
            WHERE queue = :queue AND state = 0 AND kind > kinds.kind)
    FROM kinds WHERE kind IS NOT NULL
)
SELECT kind FROM kinds WHERE kind IS NOT NULL;

-- name: claim_arm
-- The best of one kind; a claim is a union of one arm per kind.
SELECT * FROM (
    SELECT seq, priority, since FROM pollwise_jobs
    WHERE queue = :queue AND state = 0 AND kind = :kind_{n}
    ORDER BY priority DESC, since, seq LIMIT :limit
)

-- name: claim_arm_many
-- The best of very many kinds: sorts all their ready jobs.
SELECT seq, priority, since FROM pollwise_jobs
WHERE queue = :queue AND state = 0 AND kind IN (SELECT value FROM json_each(:kinds))

-- name: claim
-- Lease the best jobs of all arms.
UPDATE pollwise_jobs SET
    state = 3, since = :until, worker = :worker, attempt = attempt + 1, token = token + 1
WHERE seq IN (
    SELECT seq FROM ({arms}) ORDER BY priority DESC, since, seq LIMIT :limit
)
RETURNING seq, kind, payload, "key", priority, attempt, created_at, run_at, "unique", token;

-- name: settle_done
-- :batch is a JSON list of [seq, token].
DELETE FROM pollwise_jobs
WHERE state IN (0, 3) AND (seq, token) IN (
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(:batch)
)
RETURNING seq, token;

-- name: settle_kept
-- Done, and kept.
UPDATE pollwise_jobs SET state = 5, since = :now, worker = NULL, token = token + 1
WHERE state IN (0, 3) AND (seq, token) IN (
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(:batch)
)
RETURNING seq, token - 1;

-- name: settle_retry
-- :batch is a JSON list of [seq, token, delay, error, counted].
UPDATE pollwise_jobs SET
    state = CASE WHEN json_extract(b.value, '$[2]') > 0 THEN 1 ELSE 0 END,
    run_at = :now + json_extract(b.value, '$[2]'),
    since = :now + json_extract(b.value, '$[2]'),
    error = coalesce(json_extract(b.value, '$[3]'), error),
    attempt = attempt - (json_extract(b.value, '$[4]') = 0),
    token = token + 1,
    worker = NULL
FROM json_each(:batch) AS b
WHERE pollwise_jobs.seq = json_extract(b.value, '$[0]')
  AND pollwise_jobs.token = json_extract(b.value, '$[1]')
  AND pollwise_jobs.state IN (0, 3)
RETURNING pollwise_jobs.seq, pollwise_jobs.token - 1;

-- name: settle_dead
-- :batch is a JSON list of [seq, token, error].
UPDATE pollwise_jobs SET
    state = 4, since = :now, error = coalesce(json_extract(b.value, '$[2]'), error),
    token = token + 1, worker = NULL
FROM json_each(:batch) AS b
WHERE pollwise_jobs.seq = json_extract(b.value, '$[0]')
  AND pollwise_jobs.token = json_extract(b.value, '$[1]')
  AND pollwise_jobs.state IN (0, 3)
RETURNING pollwise_jobs.seq, pollwise_jobs.token - 1;

-- name: renew
-- :batch is a JSON list of [seq, token, worker]. An expired lease that nobody else has taken
-- becomes valid again.
UPDATE pollwise_jobs SET state = 3, since = :until, worker = json_extract(b.value, '$[2]')
FROM json_each(:batch) AS b
WHERE pollwise_jobs.seq = json_extract(b.value, '$[0]')
  AND pollwise_jobs.token = json_extract(b.value, '$[1]')
  AND pollwise_jobs.state IN (0, 3)
RETURNING pollwise_jobs.seq, pollwise_jobs.token;

-- name: stats
-- Counts by state from the indexes alone; overdue jobs count as ready.
SELECT 0, count(*), min(since) FROM pollwise_jobs WHERE queue = :queue AND state = 0
UNION ALL
SELECT 0, count(*), min(run_at) FROM pollwise_jobs
    WHERE queue = :queue AND state IN (1, 3) AND since <= :now
UNION ALL
SELECT state, count(*), NULL FROM pollwise_jobs
    WHERE queue = :queue AND state IN (1, 3) AND since > :now GROUP BY state
UNION ALL
SELECT 2, count(*), NULL FROM pollwise_jobs
    WHERE queue = :queue AND "key" IS NOT NULL AND state < 4 AND state = 2
UNION ALL
SELECT state, count(*), NULL FROM pollwise_jobs
    WHERE queue = :queue AND state >= 4 GROUP BY state;

-- name: list
SELECT seq, kind, payload, "key", priority, attempt, created_at, run_at, "unique",
       CASE WHEN state IN (1, 3) AND since <= :now THEN 0 ELSE state END AS shown,
       since, worker, error
FROM pollwise_jobs
WHERE queue = :queue AND seq > :after AND seq <= :last
  AND (:state IS NULL OR shown = :state)
  AND (:kind IS NULL OR kind = :kind)
ORDER BY seq LIMIT :limit;

-- name: dead_ids
SELECT seq FROM pollwise_jobs
WHERE queue = :queue AND state >= 4 AND state = 4
  AND (:batch IS NULL OR seq IN (SELECT value FROM json_each(:batch)))
ORDER BY seq;

-- name: retry
UPDATE pollwise_jobs SET
    state = CASE
        WHEN "key" IS NOT NULL AND EXISTS (
            SELECT 1 FROM pollwise_jobs AS other
            WHERE other.queue = pollwise_jobs.queue AND other."key" = pollwise_jobs."key"
              AND other.state < 4
        ) THEN 2
        ELSE 0
    END,
    since = :now, run_at = :now, attempt = 0, token = token + 1
WHERE seq = :seq AND state = 4;

-- name: drop
DELETE FROM pollwise_jobs
WHERE queue = :queue AND state >= 4 AND state = 4
  AND (:batch IS NULL OR seq IN (SELECT value FROM json_each(:batch)))
RETURNING seq;

-- name: prune
DELETE FROM pollwise_jobs
WHERE seq IN (
    SELECT seq FROM pollwise_jobs
    WHERE queue = :queue AND state >= 4 AND state = 5 AND since <= :before
    ORDER BY since LIMIT :most
)
RETURNING seq;
