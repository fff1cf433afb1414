-- name: put
-- One job; blocked if its key already has a live job. A repeated `unique` changes nothing.
-- Without a limit group, nothing more is written.
INSERT INTO pollwise_jobs (queue, kind, payload, state, priority, since, run_at, created_at, "key", "unique", headers{column})
VALUES (
    :queue, :kind, :payload,
    CASE
        WHEN :key IS NOT NULL AND EXISTS (
            SELECT 1 FROM pollwise_jobs WHERE queue = :queue AND "key" = :key AND state < 4
        ) THEN 2
        WHEN :run_at > :now THEN 1
        ELSE 0
    END,
    :priority, :run_at, :run_at, :now, :key, :unique, :headers{value}
)
ON CONFLICT (queue, "unique") WHERE "unique" IS NOT NULL DO NOTHING;

-- name: twin
-- The job that has a `unique`.
SELECT seq, kind, payload FROM pollwise_jobs WHERE queue = :queue AND "unique" = :unique;

-- name: holder
-- The same, for a job that replaces it.
SELECT seq, kind, "key", state FROM pollwise_jobs
WHERE queue = :queue AND "unique" = :unique;

-- name: replace
-- Replace a job that waits. A due job that may run now keeps its place. The token makes old claims
-- invalid. A job that has a limit group stays in one: see `limit_sweep`.
UPDATE pollwise_jobs SET
    payload = :payload, headers = :headers, priority = :priority, attempt = 0, token = token + 2,
    limit_group = coalesce(:limit_group, CASE WHEN limit_group IS NOT NULL THEN '' END),
    state = CASE WHEN state = 2 THEN 2 WHEN :run_at > :now THEN 1 ELSE 0 END,
    since = CASE WHEN :run_at > :now THEN :run_at ELSE min(run_at, :now) END,
    run_at = CASE WHEN :run_at > :now THEN :run_at ELSE min(run_at, :now) END
WHERE seq = :seq;

-- name: give_up_unique
UPDATE pollwise_jobs SET "unique" = NULL WHERE seq = :seq;

-- name: glance
-- Is a job ready, when does the next delay or lease end, may there be suspects, and is anything
-- paused or limited? A read without the write lock.
SELECT
    EXISTS (SELECT 1 FROM pollwise_jobs WHERE queue = :queue AND state = 0),
    (SELECT min(since) FROM pollwise_jobs WHERE queue = :queue AND state IN (1, 3)),
    EXISTS (SELECT 1 FROM pollwise_jobs WHERE queue = :queue AND state = 0 AND lapses > 0),
    EXISTS (SELECT 1 FROM pollwise_notes WHERE queue = :queue AND topic = 'pauses'),
    EXISTS (SELECT 1 FROM pollwise_notes WHERE queue = :queue AND topic = 'limits');

-- name: glance_kinds
-- The same for some kinds: a backlog of other kinds does not take the write lock.
SELECT
    EXISTS (
        SELECT 1 FROM json_each(:kinds) AS wanted
        WHERE EXISTS (
            SELECT 1 FROM pollwise_jobs WHERE queue = :queue AND state = 0 AND kind = wanted.value
        )
    ),
    (SELECT min(since) FROM pollwise_jobs WHERE queue = :queue AND state IN (1, 3)),
    EXISTS (SELECT 1 FROM pollwise_jobs WHERE queue = :queue AND state = 0 AND lapses > 0),
    EXISTS (SELECT 1 FROM pollwise_notes WHERE queue = :queue AND topic = 'pauses'),
    EXISTS (SELECT 1 FROM pollwise_notes WHERE queue = :queue AND topic = 'limits');

-- name: with_error
-- The errors of a job, with one more and without the oldest if there are enough.
CASE
    WHEN {error} IS NULL THEN errors
    WHEN json_array_length(errors) >= :errors_kept
        THEN json_insert(json_remove(errors, '$[0]'), '$[#]', json_array({at}, attempt, {error}))
    ELSE json_insert(coalesce(errors, '[]'), '$[#]', json_array({at}, attempt, {error}))
END

-- name: promote
-- Make due jobs ready: delayed ones, and leased ones whose lease ran out. Those that were asked to
-- cancel are cancelled instead.
UPDATE pollwise_jobs SET
    state = CASE WHEN cancel THEN 6 ELSE 0 END,
    since = CASE WHEN cancel THEN :now ELSE run_at END,
    lapsed = CASE state WHEN 3 THEN token END,
    errors = {with_error},
    worker = CASE WHEN cancel THEN worker END,
    "unique" = CASE WHEN NOT cancel THEN "unique" END,
    cancel = 0
WHERE seq IN (
    SELECT seq FROM pollwise_jobs
    WHERE queue = :queue AND state IN (1, 3) AND since <= :now
    ORDER BY since LIMIT :most
)
RETURNING seq, state;

-- name: ready_kinds
-- The next kinds that have ready jobs: skips through the index instead of scanning it.
WITH RECURSIVE kinds (kind) AS (
    SELECT min(kind) FROM pollwise_jobs WHERE queue = :queue AND state = 0 AND kind > :after
    UNION ALL
    SELECT (SELECT min(kind) FROM pollwise_jobs
            WHERE queue = :queue AND state = 0 AND kind > kinds.kind)
    FROM kinds WHERE kind IS NOT NULL
    LIMIT :most
)
SELECT kind FROM kinds WHERE kind IS NOT NULL;

-- name: best_kinds
-- Those of very many kinds whose first ready job comes first. The best n jobs are of the best n kinds.
SELECT wanted.value FROM json_each(:kinds) AS wanted
CROSS JOIN pollwise_jobs AS first ON first.seq = (
    SELECT seq FROM pollwise_jobs
    WHERE queue = :queue AND state = 0 AND kind = wanted.value
    ORDER BY priority DESC, since, seq LIMIT 1
)
ORDER BY first.priority DESC, first.since, first.seq LIMIT :most;

-- name: claim_arm
-- The best of one kind; a claim is a union of one arm per kind.
SELECT * FROM (
    SELECT seq, priority, since FROM pollwise_jobs
    WHERE queue = :queue AND state = 0 AND kind = :kind_{n}
    ORDER BY priority DESC, since, seq LIMIT :limit
)

-- name: suspects
-- The best suspect; a claim takes it alone.
SELECT seq, priority, since FROM pollwise_jobs INDEXED BY pollwise_jobs_suspects
WHERE queue = :queue AND state = 0 AND lapses > 0 AND lapsed = token
  AND (:kinds IS NULL OR kind IN (SELECT value FROM json_each(:kinds)))

-- name: best_of_arms
SELECT -priority, since, seq FROM ({arms}) ORDER BY priority DESC, since, seq LIMIT :limit

-- name: chosen
-- The jobs of a claim of limited kinds.
SELECT value AS seq, 0 AS priority, 0 AS since FROM json_each(:batch)

-- name: claim
-- Lease the best jobs of all arms. A token is at least the time in microseconds: a backup that is put
-- back never gives the token of a claim that is still held to another one.
UPDATE pollwise_jobs SET
    state = 3, since = :until, worker = :worker, claimed_at = :now,
    token = max(token + 1, CAST(:now * 1000000 AS INTEGER)),
    progress = NULL, ahead = :ahead,
    attempt = attempt + NOT (lapsed IS token AND ahead),
    lapses = CASE WHEN lapsed IS token THEN lapses + 1 ELSE 0 END{more}
WHERE seq IN (
    SELECT seq FROM ({arms}) ORDER BY priority DESC, since, seq LIMIT :limit
)
RETURNING seq, kind, payload, "key", priority, attempt, created_at, run_at, "unique", headers, token,
    CASE WHEN lapses > 0 THEN json_extract(errors, '$[#-1][2]') END;

-- name: claim_group
-- A leased job of a limited kind has a group, so that it counts.
, limit_group = coalesce(
    limit_group, CASE WHEN kind IN (SELECT value FROM json_each(:limited)) THEN '' END
)

-- name: settle_done
-- Done, and not kept, nor needed by others of its flow. :batch is a JSON list of [seq, token].
DELETE FROM pollwise_jobs
WHERE flow IS NULL AND state IN (0, 3) AND (seq, token) IN (
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(:batch)
)
RETURNING seq, token;

-- name: settle_end
-- :batch is a JSON list of [seq, token, state, error, result, keep]. A job that is not dead frees
-- its `unique`. One of a flow is kept for the others at least :flow_kept, even if its worker does not know
-- of flows.
UPDATE pollwise_jobs SET
    state = json_extract(b.value, '$[2]'), since = :now, errors = {with_error},
    result = json_extract(b.value, '$[4]'), token = token + 1, cancel = 0,
    expires_at = :now + CASE
        WHEN flow IS NOT NULL AND json_extract(b.value, '$[2]') > 4
            AND coalesce(json_extract(b.value, '$[5]'), 0) < :flow_kept
        THEN coalesce(json_extract(b.value, '$[5]'), 0) + :flow_kept
        ELSE json_extract(b.value, '$[5]')
    END,
    "unique" = CASE json_extract(b.value, '$[2]') WHEN 4 THEN "unique" END
FROM json_each(:batch) AS b
WHERE pollwise_jobs.seq = json_extract(b.value, '$[0]')
  AND pollwise_jobs.token = json_extract(b.value, '$[1]')
  AND pollwise_jobs.state IN (0, 3)
RETURNING pollwise_jobs.seq, pollwise_jobs.token - 1, pollwise_jobs.flow;

-- name: settle_again
-- Retried or given back; cancelled if that was asked for. :batch is a JSON list of
-- [seq, token, delay, error, counted].
UPDATE pollwise_jobs SET
    state = CASE WHEN cancel THEN 6 WHEN json_extract(b.value, '$[2]') > 0 THEN 1 ELSE 0 END,
    run_at = CASE WHEN cancel THEN run_at ELSE :now + json_extract(b.value, '$[2]') END,
    since = :now + CASE WHEN cancel THEN 0 ELSE json_extract(b.value, '$[2]') END,
    errors = {with_error},
    attempt = attempt - (json_extract(b.value, '$[4]') = 0),
    token = token + 1,
    worker = CASE WHEN cancel THEN worker END,
    "unique" = CASE WHEN NOT cancel THEN "unique" END,
    cancel = 0
FROM json_each(:batch) AS b
WHERE pollwise_jobs.seq = json_extract(b.value, '$[0]')
  AND pollwise_jobs.token = json_extract(b.value, '$[1]')
  AND pollwise_jobs.state IN (0, 3)
RETURNING pollwise_jobs.seq, pollwise_jobs.token - 1, pollwise_jobs.state;

-- name: renew
-- :batch is a JSON list of [seq, token, worker, progress]. A lease that ran out becomes
-- valid again if nobody else has the job, and if its kind has no limits: see `renew_limited`.
UPDATE pollwise_jobs SET
    state = 3, since = :until, worker = json_extract(b.value, '$[2]'),
    progress = coalesce(json_extract(b.value, '$[3]'), progress)
FROM json_each(:batch) AS b
WHERE pollwise_jobs.seq = json_extract(b.value, '$[0]')
  AND pollwise_jobs.token = json_extract(b.value, '$[1]')
  AND (pollwise_jobs.state = 3 OR pollwise_jobs.state = 0 AND NOT EXISTS (
      SELECT 1 FROM pollwise_notes AS notes
      WHERE notes.queue = pollwise_jobs.queue AND notes.topic = 'limits'
        AND notes.name = pollwise_jobs.kind
  ))
RETURNING pollwise_jobs.seq, pollwise_jobs.token, pollwise_jobs.cancel;

-- name: lapsed
-- The jobs of :batch whose lease ran out, and which nobody else has: seq, token, worker and progress as
-- given, kind and limit group.
SELECT jobs.seq, jobs.token, json_extract(b.value, '$[2]'), json_extract(b.value, '$[3]'),
       jobs.kind, jobs.limit_group
FROM json_each(:batch) AS b
CROSS JOIN pollwise_jobs AS jobs ON jobs.seq = json_extract(b.value, '$[0]')
WHERE jobs.token = json_extract(b.value, '$[1]') AND jobs.state = 0;

-- name: renew_limited
-- Make the lease of one job of a limited kind valid again. It has a group, so that it counts.
UPDATE pollwise_jobs SET
    state = 3, since = :until, worker = :worker, progress = coalesce(:progress, progress),
    limit_group = coalesce(limit_group, '')
WHERE seq = :seq
RETURNING seq, token, cancel;

-- name: cancel_waiting
UPDATE pollwise_jobs SET
    state = 6, since = :now, worker = NULL, cancel = 0, token = token + 1, waits = 0,
    "key" = coalesce("key", held_key), "unique" = NULL
WHERE queue = :queue AND seq IN (SELECT value FROM json_each(:batch))
  AND (state < 3 OR state = 3 AND since <= :now)
RETURNING seq;

-- name: cancel_leased
UPDATE pollwise_jobs SET cancel = 1
WHERE queue = :queue AND seq IN (SELECT value FROM json_each(:batch)) AND state = 3;

-- name: states
SELECT seq, state FROM pollwise_jobs
WHERE queue = :queue AND seq IN (SELECT value FROM json_each(:batch));

-- name: forget
-- Ended jobs that are not kept.
DELETE FROM pollwise_jobs
WHERE seq IN (SELECT value FROM json_each(:batch)) AND flow IS NULL;

-- name: stats
-- Rows of a state, a number of jobs, and 1 if there may be more: each index is read for a bounded
-- number of entries. Exact counters, kept by triggers, were tried: puts then took 15 to 17 % more CPU
-- time, claims 6 to 11 %, settlements 5 to 8 %. Overdue jobs count as ready.
SELECT 0, count(*), 0 FROM (
    SELECT 1 FROM pollwise_jobs INDEXED BY pollwise_jobs_ready
    WHERE queue = :queue AND state = 0 LIMIT :most
)
UNION ALL
SELECT 0, count(*), 0 FROM (
    SELECT 1 FROM pollwise_jobs INDEXED BY pollwise_jobs_due
    WHERE queue = :queue AND state IN (1, 3) AND since <= :now LIMIT :most
)
UNION ALL
SELECT 1, sum(state = 1), count(*) = :most FROM (
    SELECT state FROM pollwise_jobs INDEXED BY pollwise_jobs_due
    WHERE queue = :queue AND state IN (1, 3) AND since > :now ORDER BY since LIMIT :most
)
UNION ALL
SELECT 3, sum(state = 3), count(*) = :most FROM (
    SELECT state FROM pollwise_jobs INDEXED BY pollwise_jobs_due
    WHERE queue = :queue AND state IN (1, 3) AND since > :now ORDER BY since LIMIT :most
)
UNION ALL
SELECT 2, sum(state = 2), count(*) = :most FROM (
    SELECT state FROM pollwise_jobs INDEXED BY pollwise_jobs_key
    WHERE queue = :queue AND "key" IS NOT NULL AND state < 4 LIMIT :most
)
UNION ALL
SELECT 2, count(*), 0 FROM (
    SELECT 1 FROM pollwise_jobs INDEXED BY pollwise_jobs_waiting
    WHERE queue = :queue AND waits <> 0 AND state = 2 LIMIT :most
)
UNION ALL
SELECT ended.value, (
    SELECT count(*) FROM (
        SELECT 1 FROM pollwise_jobs INDEXED BY pollwise_jobs_ended
        WHERE queue = :queue AND likelihood(state >= 4, 1.0) AND state = ended.value
          AND since < 1e300 LIMIT :most
    )
), 0
FROM json_each('[4, 5, 6]') AS ended;

-- name: firsts
-- When the first ready job of each kind and priority became ready, without reading those between: the
-- first of a priority is its oldest.
WITH RECURSIVE firsts (seq, kind, priority, since) AS (
    SELECT * FROM (
        SELECT seq, kind, priority, since FROM pollwise_jobs
        WHERE queue = :queue AND state = 0 ORDER BY kind, priority DESC, since, seq LIMIT 1
    )
    UNION ALL
    SELECT next.seq, next.kind, next.priority, next.since
    FROM firsts JOIN pollwise_jobs AS next ON next.seq = coalesce(
        (SELECT seq FROM pollwise_jobs
         WHERE queue = :queue AND state = 0 AND kind = firsts.kind AND priority < firsts.priority
         ORDER BY priority DESC, since, seq LIMIT 1),
        (SELECT seq FROM pollwise_jobs
         WHERE queue = :queue AND state = 0 AND kind > firsts.kind
         ORDER BY kind, priority DESC, since, seq LIMIT 1)
    )
    LIMIT :most
)
SELECT kind, min(since) FROM firsts GROUP BY kind;

-- name: first_due
-- When the oldest overdue job fell due, among those whose delay or lease ended first.
SELECT min(run_at) FROM (
    SELECT run_at FROM pollwise_jobs INDEXED BY pollwise_jobs_due
    WHERE queue = :queue AND state IN (1, 3) AND since <= :now ORDER BY since LIMIT :most
);

-- name: count_ready
SELECT count(*) FROM (
    SELECT 1 FROM pollwise_jobs INDEXED BY pollwise_jobs_ready
    WHERE queue = :queue AND state = 0 LIMIT :most
);

-- name: count_kind
SELECT count(*) FROM (
    SELECT 1 FROM pollwise_jobs INDEXED BY pollwise_jobs_ready
    WHERE queue = :queue AND state = 0 AND kind = :kind LIMIT :most
);

-- name: count_kinds
-- Some jobs of a source, by kind and state.
SELECT kind, CASE WHEN state IN (1, 3) AND since <= :now THEN 0 ELSE state END AS shown,
       count(*), min(run_at)
FROM ({source}) AS chosen CROSS JOIN pollwise_jobs ON pollwise_jobs.seq = chosen.seq
GROUP BY kind, shown;

-- name: count_due
SELECT seq FROM pollwise_jobs INDEXED BY pollwise_jobs_due
WHERE queue = :queue AND state IN (1, 3) AND since > :low AND since <= :high
ORDER BY since LIMIT :most

-- name: count_blocked
SELECT seq FROM pollwise_jobs INDEXED BY pollwise_jobs_key
WHERE queue = :queue AND "key" IS NOT NULL AND state < 4 AND state = 2 LIMIT :most

-- name: count_waiting
SELECT seq FROM pollwise_jobs INDEXED BY pollwise_jobs_waiting
WHERE queue = :queue AND waits <> 0 AND state = 2 LIMIT :most

-- name: count_ended
SELECT seq FROM pollwise_jobs INDEXED BY pollwise_jobs_ended
WHERE queue = :queue AND likelihood(state >= 4, 1.0) AND state = :state AND since < 1e300
ORDER BY since DESC LIMIT :most

-- name: walk
-- The next entries of a source: their place, and whether their job matches the filter.
SELECT entry.*, {match} FROM ({source}) AS entry {join};

-- name: walk_ready
-- Ready jobs after a place, by kind and in the order of claims: those that became ready at the same
-- time, the rest of the priority, that of the kind, and then, unless only one kind is wanted, the
-- following kinds. Comparing rows, as in (since, seq) > (:p2, :p3), would use one column of the index.
SELECT * FROM (
    SELECT kind, priority, since, seq, state FROM pollwise_jobs INDEXED BY pollwise_jobs_ready
    WHERE queue = :queue AND state = 0 AND kind = :p0 AND priority = :p1 AND since = :p2
      AND seq > :p3
    ORDER BY seq LIMIT :most
)
UNION ALL
SELECT * FROM (
    SELECT kind, priority, since, seq, state FROM pollwise_jobs INDEXED BY pollwise_jobs_ready
    WHERE queue = :queue AND state = 0 AND kind = :p0 AND priority = :p1 AND since > :p2
    ORDER BY since, seq LIMIT :most
)
UNION ALL
SELECT * FROM (
    SELECT kind, priority, since, seq, state FROM pollwise_jobs INDEXED BY pollwise_jobs_ready
    WHERE queue = :queue AND state = 0 AND kind = :p0 AND priority < :p1
    ORDER BY priority DESC, since, seq LIMIT :most
)
UNION ALL
SELECT * FROM (
    SELECT kind, priority, since, seq, state FROM pollwise_jobs INDEXED BY pollwise_jobs_ready
    WHERE queue = :queue AND state = 0 AND kind > :p0 AND :onwards
    ORDER BY kind, priority DESC, since, seq LIMIT :most
)
LIMIT :most

-- name: walk_due
-- Delayed and leased jobs after a place, up to a time, by the end of the delay or lease.
SELECT * FROM (
    SELECT since, state, seq FROM pollwise_jobs INDEXED BY pollwise_jobs_due
    WHERE queue = :queue AND state IN (1, 3) AND since = :p0 AND state = :p1 AND seq > :p2
    ORDER BY seq LIMIT :most
)
UNION ALL
SELECT * FROM (
    SELECT since, state, seq FROM pollwise_jobs INDEXED BY pollwise_jobs_due
    WHERE queue = :queue AND state IN (1, 3) AND since = :p0 AND state > :p1
    ORDER BY state, seq LIMIT :most
)
UNION ALL
SELECT * FROM (
    SELECT since, state, seq FROM pollwise_jobs INDEXED BY pollwise_jobs_due
    WHERE queue = :queue AND state IN (1, 3) AND since > :p0 AND since <= :high
    ORDER BY since, state, seq LIMIT :most
)
LIMIT :most

-- name: walk_keys
-- Live jobs that have a key, by key and in put order.
SELECT * FROM (
    SELECT "key", seq, state FROM pollwise_jobs INDEXED BY pollwise_jobs_key
    WHERE queue = :queue AND "key" IS NOT NULL AND state < 4 AND "key" = :p0 AND seq > :p1
    ORDER BY seq LIMIT :most
)
UNION ALL
SELECT * FROM (
    SELECT "key", seq, state FROM pollwise_jobs INDEXED BY pollwise_jobs_key
    WHERE queue = :queue AND "key" IS NOT NULL AND state < 4 AND "key" > :p0
    ORDER BY "key", seq LIMIT :most
)
LIMIT :most

-- name: walk_waiting
-- Jobs that wait for others of their flow, in put order.
SELECT seq, state FROM pollwise_jobs INDEXED BY pollwise_jobs_waiting
WHERE queue = :queue AND waits <> 0 AND seq > :p0 ORDER BY seq LIMIT :most

-- name: walk_key
-- Live jobs of one key, in put order.
SELECT "key", seq, state FROM pollwise_jobs INDEXED BY pollwise_jobs_key
WHERE queue = :queue AND "key" IS NOT NULL AND state < 4 AND "key" = :key AND seq > :p1
ORDER BY seq LIMIT :most

-- name: walk_ended
-- Ended jobs of a state, the newest first. Without the likelihood, the planner would read all states
-- and sort.
SELECT * FROM (
    SELECT since, seq, state FROM pollwise_jobs INDEXED BY pollwise_jobs_ended
    WHERE queue = :queue AND likelihood(state >= 4, 1.0) AND state = :ended AND since = :p0
      AND seq < :p1
    ORDER BY seq DESC LIMIT :most
)
UNION ALL
SELECT * FROM (
    SELECT since, seq, state FROM pollwise_jobs INDEXED BY pollwise_jobs_ended
    WHERE queue = :queue AND likelihood(state >= 4, 1.0) AND state = :ended AND since < :p0
    ORDER BY since DESC, seq DESC LIMIT :most
)
LIMIT :most

-- name: show
SELECT {columns}
FROM json_each(:batch) AS wanted CROSS JOIN pollwise_jobs ON seq = wanted.value
ORDER BY wanted.key;

-- name: names
-- The queues that have jobs or notes: skips through the indexes instead of scanning them.
SELECT name FROM (
    WITH RECURSIVE names (name) AS (
        SELECT min(queue) FROM pollwise_jobs WHERE state = 0
        UNION ALL
        SELECT (SELECT min(queue) FROM pollwise_jobs WHERE state = 0 AND queue > names.name)
        FROM names WHERE name IS NOT NULL LIMIT :most
    )
    SELECT name FROM names
)
UNION
SELECT name FROM (
    WITH RECURSIVE names (name) AS (
        SELECT min(queue) FROM pollwise_jobs WHERE state IN (1, 3)
        UNION ALL
        SELECT (SELECT min(queue) FROM pollwise_jobs WHERE state IN (1, 3) AND queue > names.name)
        FROM names WHERE name IS NOT NULL LIMIT :most
    )
    SELECT name FROM names
)
UNION
SELECT name FROM (
    WITH RECURSIVE names (name) AS (
        SELECT min(queue) FROM pollwise_jobs WHERE state >= 4
        UNION ALL
        SELECT (SELECT min(queue) FROM pollwise_jobs WHERE state >= 4 AND queue > names.name)
        FROM names WHERE name IS NOT NULL LIMIT :most
    )
    SELECT name FROM names
)
UNION
SELECT name FROM (
    WITH RECURSIVE names (name) AS (
        SELECT min(queue) FROM pollwise_notes
        UNION ALL
        SELECT (SELECT min(queue) FROM pollwise_notes WHERE queue > names.name)
        FROM names WHERE name IS NOT NULL LIMIT :most
    )
    SELECT name FROM names
);

-- name: columns
-- What is shown of a job: all, or in lists the beginning of its payload and of its result.
seq, kind, {payload}, coalesce(pollwise_jobs."key", held_key) AS "key", priority, attempt, created_at, run_at, "unique", headers,
       token, CASE WHEN state IN (1, 3) AND since <= :now THEN 0 ELSE state END AS shown,
       since, worker, errors, claimed_at, progress, cancel, {result}

-- name: arrivals
SELECT {columns}
FROM pollwise_jobs
WHERE queue = :queue AND seq > :after AND seq < :before
  AND NOT (state >= 5 AND expires_at IS NOT NULL AND expires_at <= :now)
ORDER BY seq LIMIT :limit;

-- name: endings
-- Which of these jobs have ended, and how; a row of NULLs for one that does not exist.
SELECT wanted.value, kind, state, errors, result
FROM json_each(:batch) AS wanted
LEFT JOIN pollwise_jobs ON seq = wanted.value AND queue = :queue
  AND NOT (state >= 5 AND expires_at IS NOT NULL AND expires_at <= :now)
WHERE state IS NULL OR state >= 4;

-- name: dead_ids
SELECT seq FROM pollwise_jobs WHERE queue = :queue AND state >= 4 AND state = 4 ORDER BY seq;

-- name: ended_ids
SELECT seq FROM pollwise_jobs
WHERE seq IN (SELECT value FROM json_each(:batch)) AND +queue = :queue AND +state >= 4
ORDER BY seq;

-- name: compensated
-- Dead jobs of :batch, a JSON list, whose failure has started a job of `on_failure`.
SELECT seq FROM pollwise_jobs AS dead
WHERE seq IN (SELECT value FROM json_each(:batch)) AND +queue = :queue AND +state = 4
  AND EXISTS (
      SELECT 1 FROM pollwise_links JOIN pollwise_jobs AS other ON other.seq = "after"
      WHERE "before" = dead.seq AND on_failure AND other.waits = 0 AND other.state <> 6
  )
ORDER BY seq;

-- name: all_compensated
-- The same of all dead jobs.
SELECT seq FROM pollwise_jobs AS dead
WHERE queue = :queue AND state >= 4 AND state = 4
  AND EXISTS (
      SELECT 1 FROM pollwise_links JOIN pollwise_jobs AS other ON other.seq = "after"
      WHERE "before" = dead.seq AND on_failure AND other.waits = 0 AND other.state <> 6
  )
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
    since = :now, run_at = :now, attempt = 0, token = token + 1,
    worker = NULL, claimed_at = NULL, progress = NULL, result = NULL, expires_at = NULL
WHERE seq = :seq;

-- name: drop_dead
DELETE FROM pollwise_jobs WHERE queue = :queue AND state >= 4 AND state = 4
RETURNING seq, flow;

-- name: drop
-- By number: the + keeps the planner from the index of all ended jobs.
DELETE FROM pollwise_jobs
WHERE seq IN (SELECT value FROM json_each(:batch)) AND +queue = :queue
  AND +state IN (SELECT value FROM json_each(:states))
RETURNING seq, flow;

-- name: prune
-- Jobs that are kept longer for their results stay. Jobs that ended before :start were examined before.
DELETE FROM pollwise_jobs
WHERE seq IN (
    SELECT seq FROM pollwise_jobs
    WHERE queue = :queue AND likelihood(state >= 4, 1.0) AND state = :state
      AND since <= :before AND since >= :start AND (expires_at IS NULL OR expires_at <= :now)
    ORDER BY since LIMIT :most
)
RETURNING seq, since;

-- name: note
-- Write a note, unless its topic has the maximum of others.
INSERT INTO pollwise_notes (queue, topic, name, value, until)
SELECT :queue, :topic, :name, :value, :until
WHERE EXISTS (SELECT 1 FROM pollwise_notes WHERE queue = :queue AND topic = :topic AND name = :name)
   OR (SELECT count(*) FROM pollwise_notes WHERE queue = :queue AND topic = :topic) < :most
ON CONFLICT (queue, topic, name) DO UPDATE SET value = excluded.value, until = excluded.until
RETURNING name;

-- name: delete_note
DELETE FROM pollwise_notes WHERE queue = :queue AND topic = :topic AND name = :name
RETURNING name;

-- name: delete_gone_notes
DELETE FROM pollwise_notes WHERE queue = :queue AND topic = :topic AND until <= :now;

-- name: read_note
SELECT value FROM pollwise_notes
WHERE queue = :queue AND topic = :topic AND name = :name AND (until IS NULL OR until > :now);

-- name: read_notes
SELECT topic, name, value FROM pollwise_notes
WHERE queue = :queue AND topic IN (SELECT value FROM json_each(:topics))
  AND (until IS NULL OR until > :now)
ORDER BY topic, name;

-- name: expire
-- Delete jobs that were kept for their results, when their time is over.
DELETE FROM pollwise_jobs
WHERE seq IN (
    SELECT seq FROM pollwise_jobs
    WHERE queue = :queue AND expires_at <= :now AND state IN (5, 6)
    ORDER BY expires_at LIMIT :most
)
RETURNING seq;

-- name: join_flow
-- Record that a new job is in a flow. A job that waits was put without its key.
UPDATE pollwise_jobs SET
    flow = :flow, waits = :waits, held_key = :key, held_delay = :delay,
    state = CASE WHEN :waits > 0 THEN 2 ELSE state END
WHERE seq = :seq;

-- name: link
INSERT INTO pollwise_links ("before", "after", place, on_failure)
VALUES (:before, :after, :place, :failure);

-- name: cancel_doomed
-- Cancel the jobs that triggers marked; triggers then mark the jobs that wait for these.
UPDATE pollwise_jobs INDEXED BY pollwise_jobs_doomed SET
    state = 6, since = :now, token = token + 1, waits = 0, "key" = held_key,
    expires_at = :expires_at
WHERE queue = :queue AND waits < 0
RETURNING flow;

-- name: keep_cancelled
-- Keep cancelled jobs of flows for the others.
UPDATE pollwise_jobs SET expires_at = coalesce(expires_at, :expires_at)
WHERE seq IN (SELECT value FROM json_each(:batch)) AND flow IS NOT NULL
RETURNING flow;

-- name: flows_over
-- The flows of which no job is live or dead.
SELECT wanted.value FROM json_each(:flows) AS wanted
WHERE NOT EXISTS (
    SELECT 1 FROM pollwise_jobs INDEXED BY pollwise_jobs_flow
    WHERE queue = :queue AND flow = wanted.value AND flow IS NOT NULL AND state <= 4
);

-- name: let_go
UPDATE pollwise_jobs SET expires_at = max(expires_at - :flow_kept, since + :own, :shown)
WHERE seq IN (
    SELECT seq FROM json_each(:flows) AS wanted
    CROSS JOIN pollwise_jobs INDEXED BY pollwise_jobs_flow
        ON queue = :queue AND flow = wanted.value AND flow IS NOT NULL
) AND expires_at >= since + :flow_kept;

-- name: predecessors
SELECT "before" FROM pollwise_links WHERE "after" = :seq ORDER BY place;

-- name: members
-- The first jobs of the flow of a job.
SELECT seq FROM pollwise_jobs INDEXED BY pollwise_jobs_flow
WHERE queue = :queue AND flow IS NOT NULL AND flow = (
    SELECT flow FROM pollwise_jobs WHERE seq = :seq AND queue = :queue
      AND NOT (state >= 5 AND expires_at IS NOT NULL AND expires_at <= :now)
) AND NOT (state >= 5 AND expires_at IS NOT NULL AND expires_at <= :now)
ORDER BY seq LIMIT :most;

-- name: links
-- What these jobs come after.
SELECT "after", "before", on_failure
FROM json_each(:batch) AS wanted CROSS JOIN pollwise_links ON "after" = wanted.value
ORDER BY "after", place;
