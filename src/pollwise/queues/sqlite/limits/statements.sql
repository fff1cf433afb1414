-- name: limit_notes
SELECT name, value FROM pollwise_notes WHERE queue = :queue AND topic = 'limits';

-- name: limit_kinds
-- How some limited kinds are used. :kinds is a JSON list. Running jobs are counted up to :most.
SELECT wanted.value, coalesce(turns.turn, ''), coalesce(turns.left_, 0),
       coalesce(turns.full_at, 0.0), coalesce(turns.swept, 0), turns.note, turns.entered,
       EXISTS (
           SELECT 1 FROM pollwise_jobs INDEXED BY pollwise_jobs_ready
           WHERE queue = :queue AND kind = wanted.value AND state = 0
       ),
       (SELECT count(*) FROM (
           SELECT 1 FROM pollwise_jobs INDEXED BY pollwise_jobs_limit_leased
           WHERE queue = :queue AND kind = wanted.value AND limit_group IS NOT NULL AND state = 3
           LIMIT :most
       ))
FROM json_each(:kinds) AS wanted
LEFT JOIN pollwise_limit_turns AS turns ON turns.queue = :queue AND turns.kind = wanted.value;

-- name: limit_circle
-- The first groups in the circle of a kind, from :start on. Running jobs of each are counted up to
-- :most_each.
SELECT circle.limit_group,
       (SELECT count(*) FROM (
           SELECT 1 FROM pollwise_jobs INDEXED BY pollwise_jobs_limit_leased
           WHERE queue = :queue AND kind = :kind AND limit_group = circle.limit_group AND state = 3
           LIMIT :most_each
       )),
       coalesce(
           (SELECT full_at FROM pollwise_limit_groups
            WHERE queue = :queue AND kind = :kind AND limit_group = circle.limit_group),
           0.0
       )
FROM pollwise_limit_circle AS circle
WHERE circle.queue = :queue AND circle.kind = :kind AND circle.limit_group >= :start
ORDER BY circle.limit_group LIMIT :most;

-- name: limit_begin
-- Begin the circle of a kind for other limits; NULL: it has none any more.
INSERT INTO pollwise_limit_turns (queue, kind, note, entered) VALUES (:queue, :kind, :note, '')
ON CONFLICT (queue, kind) DO UPDATE SET note = excluded.note, entered = excluded.entered;

-- name: limit_end
DELETE FROM pollwise_limit_circle WHERE queue = :queue AND kind = :kind;

-- name: limit_waiting
-- The first groups of a kind that have ready jobs, from :start on: skips through the index instead of
-- scanning it.
WITH RECURSIVE names (name) AS (
    SELECT min(limit_group) FROM pollwise_jobs INDEXED BY pollwise_jobs_limit_ready
    WHERE queue = :queue AND kind = :kind AND state = 0 AND limit_group >= :start
    UNION ALL
    SELECT (
        SELECT min(limit_group) FROM pollwise_jobs INDEXED BY pollwise_jobs_limit_ready
        WHERE queue = :queue AND kind = :kind AND state = 0 AND limit_group > names.name
    )
    FROM names WHERE name IS NOT NULL LIMIT :most
)
SELECT name FROM names WHERE name IS NOT NULL;

-- name: limit_enter
INSERT OR IGNORE INTO pollwise_limit_circle (queue, kind, limit_group)
SELECT :queue, :kind, value FROM json_each(:groups);

-- name: limit_put
-- Enter the groups of jobs that were just put in the circles of their kinds. :batch is a JSON list of
-- numbers.
INSERT OR IGNORE INTO pollwise_limit_circle (queue, kind, limit_group)
SELECT jobs.queue, jobs.kind, jobs.limit_group
FROM json_each(:batch) AS b
CROSS JOIN pollwise_jobs AS jobs ON jobs.seq = b.value
JOIN pollwise_limit_turns AS turns
    ON turns.queue = jobs.queue AND turns.kind = jobs.kind AND turns.note IS NOT NULL
WHERE jobs.state = 0 AND jobs.limit_group IS NOT NULL;

-- name: limit_entered
UPDATE pollwise_limit_turns SET entered = :entered WHERE queue = :queue AND kind = :kind;

-- name: limit_leave
DELETE FROM pollwise_limit_circle
WHERE queue = :queue AND kind = :kind AND limit_group IN (SELECT value FROM json_each(:groups));

-- name: limit_leave_until
-- :groups is a JSON list of [group, time]; all have rows.
INSERT INTO pollwise_limit_groups (queue, kind, limit_group, full_at, back_at)
SELECT :queue, :kind, json_extract(value, '$[0]'), 0.0, json_extract(value, '$[1]')
FROM json_each(:groups) WHERE true
ON CONFLICT (queue, kind, limit_group) DO UPDATE SET back_at = excluded.back_at;

-- name: limit_first_back
-- When the first group comes back into the circle.
SELECT min(back_at) FROM pollwise_limit_groups INDEXED BY pollwise_limit_groups_back
WHERE queue = :queue AND kind = :kind AND back_at IS NOT NULL;

-- name: limit_back
UPDATE pollwise_limit_groups SET back_at = NULL
WHERE queue = :queue AND kind = :kind AND limit_group IN (
    SELECT limit_group FROM pollwise_limit_groups INDEXED BY pollwise_limit_groups_back
    WHERE queue = :queue AND kind = :kind AND back_at IS NOT NULL AND back_at <= :until
    ORDER BY back_at LIMIT :most
)
RETURNING 1;

-- name: limit_group
-- The same for one group, whether it has ready jobs or not.
SELECT (SELECT count(*) FROM (
           SELECT 1 FROM pollwise_jobs INDEXED BY pollwise_jobs_limit_leased
           WHERE queue = :queue AND kind = :kind AND limit_group = :group AND state = 3
           LIMIT :most_each
       )),
       coalesce(
           (SELECT full_at FROM pollwise_limit_groups
            WHERE queue = :queue AND kind = :kind AND limit_group = :group),
           0.0
       );

-- name: limit_jobs
-- The first ready jobs of some groups of a kind. :groups is a JSON list.
SELECT wanted.key, -pollwise_jobs.priority, pollwise_jobs.since, pollwise_jobs.seq
FROM json_each(:groups) AS wanted CROSS JOIN pollwise_jobs
WHERE pollwise_jobs.seq IN (
    SELECT first.seq FROM pollwise_jobs AS first INDEXED BY pollwise_jobs_limit_ready
    WHERE first.queue = :queue AND first.kind = :kind AND first.limit_group = wanted.value
      AND first.state = 0 AND NOT (first.lapses > 0 AND first.lapsed IS first.token)
    ORDER BY first.priority DESC, first.since, first.seq LIMIT :most
);

-- name: limit_jobs_of_kind
-- The same for a kind whose groups do not take turns.
SELECT -priority, since, seq FROM pollwise_jobs INDEXED BY pollwise_jobs_ready
WHERE queue = :queue AND kind = :kind AND state = 0 AND NOT (lapses > 0 AND lapsed IS token)
ORDER BY priority DESC, since, seq LIMIT :most;

-- name: limit_suspects
-- All suspects of some kinds, or of all, in their order.
SELECT seq, kind, limit_group FROM pollwise_jobs INDEXED BY pollwise_jobs_suspects
WHERE queue = :queue AND state = 0 AND lapses > 0 AND lapsed = token
  AND (:kinds IS NULL OR kind IN (SELECT value FROM json_each(:kinds)))
ORDER BY priority DESC, since, seq;

-- name: limit_unswept
-- The numbers of the first and the last job to sweep, in all queues; NULL if there are none.
SELECT
    (SELECT min(seq) FROM pollwise_jobs WHERE seq > :swept),
    (SELECT max(seq) FROM pollwise_jobs WHERE seq > :swept);

-- name: limit_sweep
-- Give the group '' to jobs of some kinds that have none, in any state.
UPDATE pollwise_jobs SET limit_group = ''
WHERE seq > :swept AND seq <= :upto AND limit_group IS NULL AND +queue = :queue
  AND +kind IN (SELECT value FROM json_each(:kinds));

-- name: limit_swept
INSERT INTO pollwise_limit_turns (queue, kind, swept)
SELECT :queue, value, :upto FROM json_each(:kinds) WHERE true
ON CONFLICT (queue, kind) DO UPDATE SET swept = excluded.swept;

-- name: limit_removed
UPDATE pollwise_limit_turns SET turn = '', left_ = 0, note = NULL WHERE queue = :queue AND kind = :kind;

-- name: limit_forget
-- Kinds that have no limits any more, and whose rates are unused.
DELETE FROM pollwise_limit_turns
WHERE queue = :queue AND full_at <= :now AND NOT EXISTS (
    SELECT 1 FROM pollwise_notes AS notes
    WHERE notes.queue = :queue AND notes.topic = 'limits' AND notes.name = kind
);

-- name: limit_charge
INSERT INTO pollwise_limit_turns (queue, kind, turn, left_, full_at)
VALUES (:queue, :kind, :turn, :left, coalesce(:full_at, 0.0))
ON CONFLICT (queue, kind) DO UPDATE SET
    turn = excluded.turn, left_ = excluded.left_,
    full_at = coalesce(:full_at, pollwise_limit_turns.full_at);

-- name: limit_charge_group
INSERT INTO pollwise_limit_groups (queue, kind, limit_group, full_at)
VALUES (:queue, :kind, :group, :full_at)
ON CONFLICT (queue, kind, limit_group) DO UPDATE SET full_at = excluded.full_at;

-- name: limit_forget_groups
DELETE FROM pollwise_limit_groups
WHERE (queue, kind, limit_group) IN (
    SELECT queue, kind, limit_group
    FROM pollwise_limit_groups INDEXED BY pollwise_limit_groups_full
    WHERE queue = :queue AND full_at <= :now LIMIT :most
);

-- name: limit_use
-- How many jobs of a kind run, how many wait up to :waiting_most, and when its rate is unused.
SELECT
    (SELECT count(*) FROM pollwise_jobs INDEXED BY pollwise_jobs_limit_leased
     WHERE queue = :queue AND kind = :kind AND limit_group IS NOT NULL AND state = 3),
    (SELECT count(*) FROM (
        SELECT 1 FROM pollwise_jobs INDEXED BY pollwise_jobs_ready
        WHERE queue = :queue AND kind = :kind AND state = 0 LIMIT :waiting_most
    )),
    coalesce(
        (SELECT full_at FROM pollwise_limit_turns WHERE queue = :queue AND kind = :kind), 0.0
    );

-- name: limit_use_groups
-- The same for its groups: the first :most that wait, and the first :most that run.
WITH RECURSIVE waiting (name) AS (
    SELECT min(limit_group) FROM pollwise_jobs INDEXED BY pollwise_jobs_limit_ready
    WHERE queue = :queue AND kind = :kind AND state = 0 AND limit_group >= ''
    UNION ALL
    SELECT (
        SELECT min(limit_group) FROM pollwise_jobs INDEXED BY pollwise_jobs_limit_ready
        WHERE queue = :queue AND kind = :kind AND state = 0 AND limit_group > waiting.name
    )
    FROM waiting WHERE name IS NOT NULL LIMIT :most
),
running (name) AS (
    SELECT min(limit_group) FROM pollwise_jobs INDEXED BY pollwise_jobs_limit_leased
    WHERE queue = :queue AND kind = :kind AND state = 3 AND limit_group >= ''
    UNION ALL
    SELECT (
        SELECT min(limit_group) FROM pollwise_jobs INDEXED BY pollwise_jobs_limit_leased
        WHERE queue = :queue AND kind = :kind AND state = 3 AND limit_group > running.name
    )
    FROM running WHERE name IS NOT NULL LIMIT :most
)
SELECT name,
       (SELECT count(*) FROM pollwise_jobs INDEXED BY pollwise_jobs_limit_leased
        WHERE queue = :queue AND kind = :kind AND limit_group = name AND state = 3),
       (SELECT count(*) FROM (
           SELECT 1 FROM pollwise_jobs INDEXED BY pollwise_jobs_limit_ready
           WHERE queue = :queue AND kind = :kind AND limit_group = name AND state = 0
           LIMIT :waiting_most
       )),
       coalesce(
           (SELECT full_at FROM pollwise_limit_groups AS rates
            WHERE rates.queue = :queue AND rates.kind = :kind AND rates.limit_group = name),
           0.0
       )
FROM (SELECT name FROM waiting UNION SELECT name FROM running) WHERE name IS NOT NULL;
