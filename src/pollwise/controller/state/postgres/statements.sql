-- name: versions
SELECT version FROM {controller}_migrations;

-- name: version
SELECT max(version), current_setting('transaction_isolation') FROM {controller}_migrations;

-- name: revoke_token
-- The tokens of the workers that registered with it end with it.
WITH revoked AS (
    UPDATE {controller}_tokens SET revoked_at = coalesce(revoked_at, {now}) WHERE id = :id
    RETURNING {token}
), expired AS (
    UPDATE {controller}_workers
    SET token_expires_at = least(token_expires_at, revoked_at)
    FROM revoked WHERE registered_by = 'token:' || revoked.id
)
SELECT {token} FROM revoked;

-- name: put_artefact
SELECT r_kept, r_before::text FROM {controller}_put_artefact(:row, :job, :most, {now});

-- name: append_log
SELECT size, part, received, cut
FROM {controller}_append_run_log(
    :folder, :part, :offset, :data, :limit, :end_mark, :begin_mark, :attempt, :worker, {now}
);
