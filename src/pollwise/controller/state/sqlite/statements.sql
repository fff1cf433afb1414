-- name: require
-- What jobs of a kind ask for. Written at most once an hour, for it is the same again and again.
INSERT INTO pollwise_controller_requirements (kind, hash, requires, used_at)
VALUES (:kind, :requires_hash, :requires, :now)
ON CONFLICT (kind, hash) DO UPDATE SET used_at = excluded.used_at
WHERE used_at < excluded.used_at - 3600;

-- name: add_job
INSERT INTO pollwise_controller_jobs (
    id, kind, payload, payload_bytes, requires, requires_hash, priority, "key", "unique", delay_s,
    timeout_s, attempts, inputs, created_by, state, round, attempt, cancel, created_at,
    changed_at, result_bytes
)
VALUES (
    :id, :kind, :payload, :payload_bytes, :requires, :requires_hash, :priority, :key, :unique,
    :delay_s, :timeout_s, :attempts, :inputs, :created_by, 'putting', 0, 0, 0, :now, :now, 0
)
ON CONFLICT DO NOTHING;

-- name: twin
SELECT {job} FROM pollwise_controller_jobs WHERE "unique" = :unique;

-- name: mark_ready
UPDATE pollwise_controller_jobs SET state = 'ready', queue_id = :queue_id, changed_at = :now
WHERE id = :id AND round = :round
  AND (state = 'putting' OR state = 'ready' AND queue_id = :queue_id);

-- name: stuck
SELECT {job} FROM pollwise_controller_jobs INDEXED BY pollwise_controller_jobs_stuck
WHERE state = 'putting' AND changed_at <= :before
ORDER BY changed_at LIMIT :limit;

-- name: jobs
SELECT {job} FROM pollwise_controller_jobs
WHERE id IN (SELECT value FROM json_each(:ids));

-- name: list_jobs
-- Only the conditions that are asked for, so that each finds its index.
SELECT {brief} FROM pollwise_controller_jobs WHERE {where} ORDER BY id DESC LIMIT :limit;

-- name: run
SELECT {run}, (SELECT cancel FROM pollwise_controller_jobs WHERE id = job_id)
FROM pollwise_controller_runs WHERE job_id = :job_id;

-- name: runs_of
SELECT {run}, (SELECT cancel FROM pollwise_controller_jobs WHERE id = job_id)
FROM pollwise_controller_runs WHERE worker_id = :worker_id
ORDER BY delivered_at, job_id;

-- name: deliver
-- Only over an older claim; of the same claim, what was heard stays.
INSERT INTO pollwise_controller_runs (
    job_id, worker_id, queue_id, token, claimed_as, queue_kind, round, attempt, until, "key",
    receipt, delivered_at
)
VALUES (
    :job_id, :worker_id, :queue_id, :token, :claimed_as, :queue_kind, :round, :attempt, :until,
    :key, :receipt, :now
)
ON CONFLICT (job_id) DO UPDATE SET
    heard_of_at = CASE WHEN token = excluded.token THEN heard_of_at END,
    until = CASE WHEN token = excluded.token THEN max(until, excluded.until)
                 ELSE excluded.until END,
    worker_id = excluded.worker_id, queue_id = excluded.queue_id, token = excluded.token,
    claimed_as = excluded.claimed_as, queue_kind = excluded.queue_kind, round = excluded.round,
    attempt = excluded.attempt, "key" = excluded."key", receipt = excluded.receipt,
    delivered_at = excluded.delivered_at
WHERE token = excluded.token OR excluded.until > until;

-- name: start
UPDATE pollwise_controller_jobs SET
    state = 'leased', queue_id = :queue_id, attempt = :attempt, worker_id = :worker_id,
    progress = NULL, message = NULL, exit_code = NULL, ended_by = NULL,
    started_at = :now, changed_at = :now
WHERE id = :job_id
RETURNING {job};

-- name: hear
UPDATE pollwise_controller_runs SET
    heard_of_at = CASE WHEN :heard THEN :now ELSE heard_of_at END,
    until = max(until, coalesce(:until, until))
WHERE job_id = :job_id AND worker_id = :worker_id
RETURNING {run}, (SELECT cancel FROM pollwise_controller_jobs WHERE id = job_id);

-- name: progress
UPDATE pollwise_controller_jobs SET
    progress = coalesce(:progress, progress), message = coalesce(:message, message),
    changed_at = :now
WHERE id = :job_id;

-- name: end_run
DELETE FROM pollwise_controller_runs
WHERE job_id = :job_id AND worker_id = :worker_id AND (:token IS NULL OR token = :token);

-- name: drop_run
DELETE FROM pollwise_controller_runs WHERE job_id = :job_id RETURNING {run}, 0;

-- name: end_job
-- What should run again but was cancelled meanwhile is cancelled.
UPDATE pollwise_controller_jobs SET
    state = CASE WHEN :state = 'ready' AND cancel THEN 'cancelled' ELSE :state END,
    finished_at = CASE WHEN :state = 'ready' AND NOT cancel THEN NULL ELSE :now END,
    error = CASE WHEN :state = 'done' THEN NULL ELSE coalesce(:error, error) END,
    ended_by = :worker_id, exit_code = :exit_code, result = :result, result_bytes = :result_bytes, changed_at = :now
WHERE id = :job_id
RETURNING {job};

-- name: lapsed
SELECT job_id FROM pollwise_controller_runs WHERE until <= :before
ORDER BY until, job_id LIMIT :limit;

-- name: cancel
UPDATE pollwise_controller_jobs SET
    cancel = 1, changed_at = :now,
    finished_at = CASE WHEN state = 'leased' THEN NULL ELSE :now END,
    state = CASE WHEN state = 'leased' THEN 'leased' ELSE 'cancelled' END
WHERE id = :id AND state IN ('putting', 'ready', 'leased');

-- name: renew_job
UPDATE pollwise_controller_jobs SET
    state = 'putting', round = round + 1, attempt = 0, queue_id = NULL, progress = NULL,
    message = NULL, worker_id = NULL, cancel = 0, ended_by = NULL, started_at = NULL,
    finished_at = NULL, error = NULL, exit_code = NULL, result = NULL, result_bytes = 0,
    changed_at = :now
WHERE id = :id AND round = :round AND state IN ('done', 'dead', 'cancelled') AND NOT retired
RETURNING {job};

-- name: finished_before
SELECT id FROM pollwise_controller_jobs
WHERE finished_at IS NOT NULL AND finished_at <= :before
ORDER BY finished_at LIMIT :limit;

-- name: retire
UPDATE pollwise_controller_jobs SET retired = 1
WHERE id IN (SELECT value FROM json_each(:ids));

-- name: forget
DELETE FROM pollwise_controller_jobs
WHERE id IN (SELECT value FROM json_each(:ids)) AND state IN ('done', 'dead', 'cancelled');

-- name: requirements
SELECT hash, kind, requires FROM pollwise_controller_requirements ORDER BY kind, hash;

-- name: prune_requirements
DELETE FROM pollwise_controller_requirements
WHERE used_at <= :before AND NOT EXISTS (
    SELECT 1 FROM pollwise_controller_jobs AS jobs
    WHERE jobs.kind = pollwise_controller_requirements.kind
      AND jobs.requires_hash = pollwise_controller_requirements.hash
      AND jobs.state IN ('putting', 'ready', 'leased')
);

-- name: stats
SELECT 'job', state, '', count(*), 0.0 FROM pollwise_controller_jobs GROUP BY state
UNION ALL
SELECT 'waiting', kind, requires_hash, count(*), :now - min(created_at)
    FROM pollwise_controller_jobs INDEXED BY pollwise_controller_jobs_waiting
    WHERE state IN ('putting', 'ready', 'leased') AND state = 'ready'
    GROUP BY kind, requires_hash
UNION ALL
SELECT 'worker', '', '', count(*), 0.0 FROM pollwise_controller_workers
UNION ALL
SELECT 'live', '', '', count(*), 0.0 FROM pollwise_controller_workers WHERE last_seen > :since
UNION ALL
SELECT 'run', '', '', count(*), 0.0 FROM pollwise_controller_runs;

-- name: add_worker
INSERT INTO pollwise_controller_workers ({worker})
VALUES (
    :id, :name, :capabilities, :slots, :token_hash, :token_expires_at, :now, :registered_by, :now,
    :drain, :address
)
ON CONFLICT (id) DO NOTHING;

-- name: workers
SELECT {worker} FROM pollwise_controller_workers WHERE id IN (SELECT value FROM json_each(:ids));

-- name: worker_by_token
SELECT {worker} FROM pollwise_controller_workers WHERE token_hash = :hash;

-- name: list_workers
SELECT {worker} FROM pollwise_controller_workers
WHERE (:after IS NULL OR id > :after)
  AND (:live IS NULL OR (last_seen > :since) = :live)
  AND (:drain IS NULL OR drain = :drain)
ORDER BY id LIMIT :limit;

-- name: seen
UPDATE pollwise_controller_workers SET
    address = CASE WHEN :address = '' THEN address ELSE :address END,
    last_seen = max(last_seen, :at)
WHERE id = :id;

-- name: set_drain
UPDATE pollwise_controller_workers SET drain = :drain WHERE id = :id RETURNING {worker};

-- name: remove_worker
DELETE FROM pollwise_controller_workers WHERE id = :id;

-- name: prune_workers
DELETE FROM pollwise_controller_workers WHERE id IN (
    SELECT id FROM pollwise_controller_workers
    WHERE last_seen <= :before AND NOT EXISTS (
        SELECT 1 FROM pollwise_controller_runs WHERE worker_id = pollwise_controller_workers.id
    )
    ORDER BY id LIMIT :limit
);

-- name: add_token
INSERT INTO pollwise_controller_tokens ({token})
VALUES (:id, :name, :scope, :hash, :now, :created_by, :expires_at, NULL, NULL)
ON CONFLICT (id) DO NOTHING;

-- name: token
SELECT {token} FROM pollwise_controller_tokens WHERE id = :id;

-- name: token_by_hash
SELECT {token} FROM pollwise_controller_tokens WHERE hash = :hash;

-- name: list_tokens
SELECT {token} FROM pollwise_controller_tokens WHERE (:after IS NULL OR id > :after)
ORDER BY id LIMIT :limit;

-- name: revoke_token
UPDATE pollwise_controller_tokens SET revoked_at = coalesce(revoked_at, :now) WHERE id = :id
RETURNING {token};

-- name: expire_workers
-- Of the token that they registered with, nothing is valid any more.
UPDATE pollwise_controller_workers
SET token_expires_at = min(coalesce(token_expires_at, :now), :now)
WHERE registered_by = 'token:' || :id;

-- name: rotate_token
UPDATE pollwise_controller_tokens SET hash = :hash, expires_at = :expires_at
WHERE id = :id AND hash IN (:old, :hash) AND revoked_at IS NULL
RETURNING {token};

-- name: token_used
UPDATE pollwise_controller_tokens SET last_used_at = max(coalesce(last_used_at, 0), :at)
WHERE id = :id;

-- name: audit
INSERT INTO pollwise_controller_audit (at, who, action, what, detail, address)
VALUES (:now, :who, :action, :what, :detail, :address);

-- name: list_audit
SELECT who, action, what, detail, address, id, at FROM pollwise_controller_audit
WHERE (:before IS NULL OR id < :before) AND (:who IS NULL OR who = :who)
  AND (:action IS NULL OR action = :action) AND (:what IS NULL OR what = :what)
ORDER BY id DESC LIMIT :limit;

-- name: prune_audit
DELETE FROM pollwise_controller_audit WHERE id IN (
    SELECT id FROM pollwise_controller_audit WHERE at <= :before ORDER BY at LIMIT :limit
);

-- name: count_artefacts
SELECT count(*) FROM pollwise_controller_artefacts
WHERE job_id = :job_id AND input = :input AND name <> :name;

-- name: put_artefact
INSERT OR REPLACE INTO pollwise_controller_artefacts ({artefact})
VALUES (
    :job_id, :name, :blob, :size, :sha256, :input, :content_type, :now, :created_by
);

-- name: artefacts
SELECT {artefact} FROM pollwise_controller_artefacts
WHERE job_id = :job_id AND input = :input AND (:name IS NULL OR name = :name)
ORDER BY name;

-- name: job_exists
SELECT 1 FROM pollwise_controller_jobs WHERE id = :id;

-- name: log_place
SELECT coalesce(size, 0), coalesce(part, 0), coalesce(received, 0), coalesce(cut, 0),
    state IN ('done', 'dead', 'cancelled')
FROM pollwise_controller_jobs LEFT JOIN pollwise_controller_logs ON job_id = id
WHERE id = :job_id;

-- name: put_log_place
INSERT OR REPLACE INTO pollwise_controller_logs (job_id, size, part, received, cut)
VALUES (:job_id, :size, :part, :received, :cut);

-- name: add_log_bytes
INSERT INTO pollwise_controller_log_bytes (job_id, start, size, data)
VALUES (:job_id, :start, :size, :data);

-- name: read_log
-- The piece that holds the first byte, and all that follow.
SELECT start, data FROM pollwise_controller_log_bytes
WHERE job_id = :job_id AND start < :stop AND start >= coalesce((
    SELECT max(start) FROM pollwise_controller_log_bytes WHERE job_id = :job_id AND start <= :start
), 0)
ORDER BY start;
