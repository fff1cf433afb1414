-- name: revoke_token
-- A trigger ends the tokens of the workers that registered with it.
UPDATE {controller}_tokens SET revoked_at = coalesce(revoked_at, {now}) WHERE id = :id
RETURNING {token};

-- name: count_artefacts
SELECT count(*) FROM {controller}_artefacts
WHERE folder = :folder AND input = :input AND name <> :name;

-- name: put_artefact
INSERT OR REPLACE INTO {controller}_artefacts ({artefact})
VALUES (:folder, :name, :blob, :size, :sha256, :input, :content_type, {now}, :created_by);

-- name: put_folder
INSERT INTO {controller}_folders (folder, job, written_at) VALUES (:folder, :job, {now})
ON CONFLICT (folder) DO UPDATE SET
    written_at = excluded.written_at,
    job = CASE WHEN job = '' THEN excluded.job ELSE job END;

-- name: put_log_place
INSERT INTO {controller}_folders (folder, job, written_at, size, part, received, cut)
VALUES (:folder, :folder, {now}, :size, :part, :received, :cut)
ON CONFLICT (folder) DO UPDATE SET
    written_at = CASE WHEN written_at < excluded.written_at - 10 THEN excluded.written_at
                      ELSE written_at END,
    job = CASE WHEN job = '' THEN excluded.job ELSE job END,
    size = excluded.size, part = excluded.part, received = excluded.received, cut = excluded.cut;

-- name: add_log_run
INSERT INTO {controller}_log_runs (folder, part, attempt, worker, began_at, start)
VALUES (:folder, :part, :attempt, :worker, {now}, :start);

-- name: add_log_bytes
INSERT INTO {controller}_log_bytes (folder, start, data) VALUES (:folder, :start, :data);
