-- name: require
INSERT INTO {controller}_requirements AS known (kind, hash, requires, used_at)
VALUES (:kind, :hash, :requires, {now})
ON CONFLICT (kind, hash) DO UPDATE SET used_at = excluded.used_at
WHERE known.used_at <= excluded.used_at - :rest_s;

-- name: requirements
SELECT hash, kind, requires FROM {controller}_requirements ORDER BY kind, hash;

-- name: prune_requirements
DELETE FROM {controller}_requirements
WHERE used_at <= {now} - :unused_s
  AND (kind, hash) NOT IN (SELECT value ->> 0, value ->> 1 FROM {items}(:used))
RETURNING kind;

-- name: secret
-- The first controller that asks chooses it; later ones get the same.
INSERT INTO {controller}_secrets (name, value) VALUES (:name, :value)
ON CONFLICT (name) DO UPDATE SET name = excluded.name
RETURNING value;

-- name: add_worker
-- An existing row stays unchanged and is returned.
INSERT INTO {controller}_workers ({worker})
VALUES (
    :id, :name, :capabilities, :slots, :token_hash, :token_expires_at, {now}, :registered_by,
    {now}, :drain, :address
)
ON CONFLICT (id) DO UPDATE SET id = excluded.id
RETURNING {worker};

-- name: workers
SELECT {worker} FROM {controller}_workers WHERE id IN (SELECT value FROM {texts}(:ids));

-- name: worker_by_token
SELECT {worker} FROM {controller}_workers WHERE token_hash = :hash;

-- name: list_workers
SELECT {worker} FROM {controller}_workers
WHERE id > coalesce(:after, '')
  AND (last_seen > {now} - :live_s) = coalesce(:live, last_seen > {now} - :live_s)
  AND drain = coalesce(:drain, drain)
ORDER BY id LIMIT :limit;

-- name: live_capabilities
SELECT DISTINCT capabilities FROM {controller}_workers
WHERE last_seen > {now} - :live_s AND drain = :drain AND capabilities > :after
ORDER BY capabilities LIMIT :limit;

-- name: count_workers
SELECT count(*), count(*) FILTER (WHERE last_seen > {now} - :live_s) FROM {controller}_workers;

-- name: seen
UPDATE {controller}_workers
SET last_seen = CASE WHEN seen_at > last_seen THEN seen_at ELSE last_seen END,
    address = coalesce(nullif(seen_from, ''), address)
FROM (
    SELECT value ->> 'id' AS seen_id,
        {now} - CAST(value ->> 'ago_s' AS double precision) AS seen_at,
        value ->> 'address' AS seen_from
    FROM {items}(:batch)
) AS seen
WHERE id = seen_id
RETURNING id;

-- name: set_drain
UPDATE {controller}_workers SET drain = :drain WHERE id = :id RETURNING {worker};

-- name: remove_worker
DELETE FROM {controller}_workers WHERE id = :id RETURNING id;

-- name: prune_workers
DELETE FROM {controller}_workers
WHERE last_seen <= {now} - :unseen_s AND id IN (
    SELECT id FROM {controller}_workers WHERE last_seen <= {now} - :unseen_s
    ORDER BY id LIMIT :limit
)
RETURNING id;

-- name: add_token
-- An existing row stays unchanged and is returned.
INSERT INTO {controller}_tokens ({token})
VALUES (:id, :name, :scope, :hash, {now}, :created_by, :expires_at, NULL, NULL, :all_jobs)
ON CONFLICT (id) DO UPDATE SET id = excluded.id
RETURNING {token};

-- name: token
SELECT {token} FROM {controller}_tokens WHERE id = :id;

-- name: tokens
SELECT {token} FROM {controller}_tokens WHERE id IN (SELECT value FROM {texts}(:ids));

-- name: token_by_hash
SELECT {token} FROM {controller}_tokens WHERE hash = :hash;

-- name: list_tokens
SELECT {token} FROM {controller}_tokens WHERE id > coalesce(:after, '') ORDER BY id LIMIT :limit;

-- name: rotate_token
-- Also if it already has the new hash, so that the call can be repeated.
UPDATE {controller}_tokens SET hash = :new, expires_at = :expires_at
WHERE id = :id AND hash IN (:old, :new) AND revoked_at IS NULL
RETURNING {token};

-- name: tokens_used
UPDATE {controller}_tokens
SET last_used_at = CASE WHEN last_used_at > used_at THEN last_used_at ELSE used_at END
FROM (
    SELECT value ->> 'id' AS used_id,
        {now} - CAST(value ->> 'ago_s' AS double precision) AS used_at
    FROM {items}(:batch)
) AS used
WHERE id = used_id;

-- name: audit
INSERT INTO {controller}_audit (at, who, action, what, detail, address)
SELECT {now} - CAST(value ->> 'ago_s' AS double precision), value ->> 'who', value ->> 'action',
    value ->> 'what', value ->> 'detail', value ->> 'address'
FROM {items}(:batch);

-- name: list_audit
SELECT who, action, what, detail, address, id, at FROM {controller}_audit
WHERE id < coalesce(:before, 9223372036854775807) AND who = coalesce(:who, who)
  AND action = coalesce(:action, action) AND what = coalesce(:what, what)
ORDER BY id DESC LIMIT :limit;

-- name: prune_audit
DELETE FROM {controller}_audit WHERE id IN (
    SELECT id FROM {controller}_audit WHERE at <= {now} - :keep_s ORDER BY at LIMIT :limit
)
RETURNING id;

-- name: artefacts
SELECT {artefact} FROM {controller}_artefacts
WHERE folder = :folder AND input = :input
ORDER BY name;

-- name: artefact
SELECT {artefact} FROM {controller}_artefacts
WHERE folder = :folder AND input = :input AND name = :name;

-- name: log_place
SELECT size, part, received, cut FROM {controller}_folders WHERE folder = :folder;

-- name: log_runs
SELECT part, attempt, worker, began_at, start FROM {controller}_log_runs
WHERE folder = :folder
ORDER BY part;

-- name: read_log
-- The piece with the first byte, and the pieces after it.
SELECT start, data FROM {controller}_log_bytes
WHERE folder = :folder AND start < :stop AND start >= coalesce((
    SELECT max(start) FROM {controller}_log_bytes WHERE folder = :folder AND start <= :start
), 0)
ORDER BY start;

-- name: attach
INSERT INTO {controller}_folders (folder, job, written_at) VALUES (:folder, :job, {now})
ON CONFLICT (folder) DO UPDATE SET job = excluded.job;

-- name: folders_before
-- Materialized, so that old folders are found by the index on written_at.
WITH old AS MATERIALIZED (
    SELECT folder, job FROM {controller}_folders WHERE written_at <= {now} - :keep_s
)
SELECT folder, job FROM old WHERE folder > coalesce(:after, '') ORDER BY folder LIMIT :limit;

-- name: forget
-- The rows of their files and logs are deleted with them.
DELETE FROM {controller}_folders WHERE folder IN (SELECT value FROM {texts}(:folders));
