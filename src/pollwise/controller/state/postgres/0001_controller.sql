-- Version 1: what the controller keeps beside the queue, in the queue's own schema, and all that
-- is done to several rows at once as functions: one round trip and one transaction each.
--
-- Two controllers may call at once. Whatever changes a job's state or its run locks the job's row
-- first, then it looks; a heartbeat alone locks the run only. A batch is gone through in the order of
-- ids, job before run, so nobody waits in a circle; and one by one, each by its primary key: a join
-- would be planned by statistics, which are always old here. Batches come as JSON. Times are seconds since 1970 on the server's clock; each function takes a
-- `now` to go by instead: tests run in virtual time; everybody else passes NULL.
--
-- {schema} is replaced by the schema's name.

CREATE FUNCTION {schema}.controller_now(p_now double precision) RETURNS double precision
LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(p_now, extract(epoch FROM clock_timestamp())::double precision)
$$;

CREATE TABLE {schema}.controller_jobs (
    id            text COLLATE "C" PRIMARY KEY,
    kind          text     NOT NULL,
    payload       text     NOT NULL,
    payload_bytes integer  NOT NULL,
    requires      text     NOT NULL,
    requires_hash text     NOT NULL,
    priority      integer  NOT NULL,
    key           text,
    "unique"      text,
    delay_s       double precision NOT NULL,
    timeout_s     double precision,
    attempts      integer  NOT NULL,
    inputs        text     NOT NULL,
    created_by  text     NOT NULL,
    state        text     NOT NULL,
    round         integer  NOT NULL,
    attempt       integer  NOT NULL,
    queue_id      text,
    progress      double precision,
    message       text,
    worker_id     text,
    cancel        boolean  NOT NULL,
    ended_by      text,
    created_at  double precision NOT NULL,
    changed_at    double precision NOT NULL,
    started_at    double precision,
    finished_at   double precision,
    error         text,
    exit_code     integer,
    result        text,
    result_bytes  integer  NOT NULL,
    -- It is about to be forgotten, and its artefacts may be gone.
    retired       boolean  NOT NULL DEFAULT false
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);

CREATE UNIQUE INDEX controller_jobs_unique ON {schema}.controller_jobs ("unique")
    WHERE "unique" IS NOT NULL;
CREATE INDEX controller_jobs_state ON {schema}.controller_jobs (state, id);
CREATE INDEX controller_jobs_kind ON {schema}.controller_jobs (kind, id);
CREATE INDEX controller_jobs_worker ON {schema}.controller_jobs (worker_id, id)
    WHERE worker_id IS NOT NULL;
CREATE INDEX controller_jobs_waiting
    ON {schema}.controller_jobs (kind, requires_hash, state, created_at)
    WHERE state IN ('putting', 'ready', 'leased');
CREATE INDEX controller_jobs_stuck ON {schema}.controller_jobs (changed_at)
    WHERE state = 'putting';
CREATE INDEX controller_jobs_finished ON {schema}.controller_jobs (finished_at)
    WHERE finished_at IS NOT NULL;

CREATE TABLE {schema}.controller_runs (
    job_id       text COLLATE "C" PRIMARY KEY
                 REFERENCES {schema}.controller_jobs (id) ON DELETE CASCADE,
    worker_id    text     NOT NULL,
    queue_id     text     NOT NULL,
    token        bigint   NOT NULL,
    claimed_as   text     NOT NULL,
    queue_kind   text     NOT NULL,
    round        integer  NOT NULL,
    attempt      integer  NOT NULL,
    until        double precision NOT NULL,
    key          text,
    receipt      text     NOT NULL,
    delivered_at double precision NOT NULL,
    heard_of_at  double precision
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- Not by `until`, which every heartbeat changes: what runs is no more than the fleet has slots.
CREATE INDEX controller_runs_worker ON {schema}.controller_runs (worker_id);

CREATE TABLE {schema}.controller_requirements (
    kind     text NOT NULL,
    hash     text NOT NULL,
    requires text NOT NULL,
    used_at  double precision NOT NULL,
    PRIMARY KEY (kind, hash)
);

-- Not by `last_seen`, so that noting it is cheap.
CREATE TABLE {schema}.controller_workers (
    id               text COLLATE "C" PRIMARY KEY,
    name             text     NOT NULL,
    capabilities     text     NOT NULL,
    slots            integer  NOT NULL,
    token_hash       text     NOT NULL UNIQUE,
    token_expires_at double precision,
    registered_at    double precision NOT NULL,
    registered_by    text     NOT NULL,
    last_seen        double precision NOT NULL,
    drain            boolean  NOT NULL,
    address          text     NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000);

CREATE TABLE {schema}.controller_tokens (
    id           text COLLATE "C" PRIMARY KEY,
    name         text NOT NULL,
    scope        text NOT NULL,
    hash         text NOT NULL UNIQUE,
    created_at   double precision NOT NULL,
    created_by   text NOT NULL,
    expires_at   double precision,
    revoked_at   double precision,
    last_used_at double precision
);

CREATE TABLE {schema}.controller_audit (
    id      bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY,
    at      double precision NOT NULL,
    who     text NOT NULL,
    action  text NOT NULL,
    what    text NOT NULL,
    detail  text NOT NULL,
    address text NOT NULL
);

CREATE INDEX controller_audit_at ON {schema}.controller_audit (at);

CREATE TABLE {schema}.controller_artefacts (
    job_id       text COLLATE "C" NOT NULL
                 REFERENCES {schema}.controller_jobs (id) ON DELETE CASCADE,
    input        boolean NOT NULL,
    name         text COLLATE "C" NOT NULL,
    blob         text    NOT NULL,
    size         bigint  NOT NULL,
    sha256       text    NOT NULL,
    content_type text    NOT NULL,
    created_at   double precision NOT NULL,
    created_by   text    NOT NULL,
    PRIMARY KEY (job_id, input, name)
);

-- size: bytes kept; part: the newest run that wrote; received: bytes that it sent.
CREATE TABLE {schema}.controller_logs (
    job_id   text COLLATE "C" PRIMARY KEY
             REFERENCES {schema}.controller_jobs (id) ON DELETE CASCADE,
    size     bigint  NOT NULL,
    part     bigint  NOT NULL,
    received bigint  NOT NULL,
    cut      boolean NOT NULL
) WITH (fillfactor = 60);

CREATE TABLE {schema}.controller_log_bytes (
    job_id text COLLATE "C" NOT NULL
           REFERENCES {schema}.controller_jobs (id) ON DELETE CASCADE,
    start  bigint NOT NULL,
    data   bytea  NOT NULL,
    PRIMARY KEY (job_id, start)
);

-- Lock jobs against each other's changes; not against logs and artefacts, which only refer to them.
CREATE FUNCTION {schema}.controller_lock(p_ids text[]) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM FROM {schema}.controller_jobs WHERE id = ANY (p_ids) ORDER BY id FOR NO KEY UPDATE;
END $$;

-- Note what jobs of a kind ask for; once an hour, for it is the same again and again, and a row that
-- is written is locked until the end of the call.
CREATE FUNCTION {schema}.controller_require(
    p_kind text, p_hash text, p_requires text, p_now double precision
) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
BEGIN
    PERFORM FROM {schema}.controller_requirements
        WHERE kind = p_kind AND hash = p_hash AND used_at >= p_now - 3600;
    IF NOT FOUND THEN
        INSERT INTO {schema}.controller_requirements AS known (kind, hash, requires, used_at)
        VALUES (p_kind, p_hash, p_requires, p_now)
        ON CONFLICT (kind, hash) DO UPDATE SET used_at = greatest(known.used_at, excluded.used_at);
    END IF;
END $$;

-- Keep new jobs, all or none; for each the one that is kept, which may be the holder of its `unique`.
-- They come in the order of what is locked: kind, requirement, `unique`.
CREATE FUNCTION {schema}.controller_add_jobs(p_rows json, p_now double precision)
RETURNS SETOF {schema}.controller_jobs
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_now double precision := {schema}.controller_now(p_now);
    v_new {schema}.controller_jobs;
    v_job {schema}.controller_jobs;
BEGIN
    FOR v_new IN
        SELECT * FROM json_populate_recordset(NULL::{schema}.controller_jobs, p_rows)
    LOOP
        PERFORM {schema}.controller_require(
            v_new.kind, v_new.requires_hash, v_new.requires, v_now
        );
        INSERT INTO {schema}.controller_jobs (
            id, kind, payload, payload_bytes, requires, requires_hash, priority, key, "unique",
            delay_s, timeout_s, attempts, inputs, created_by, state, round, attempt, cancel,
            created_at, changed_at, result_bytes
        )
        VALUES (
            v_new.id, v_new.kind, v_new.payload, v_new.payload_bytes, v_new.requires,
            v_new.requires_hash, v_new.priority, v_new.key, v_new."unique", v_new.delay_s,
            v_new.timeout_s, v_new.attempts, v_new.inputs, v_new.created_by, 'putting', 0, 0,
            false, v_now, v_now, 0
        )
        ON CONFLICT DO NOTHING
        RETURNING * INTO v_job;
        IF NOT FOUND THEN
            SELECT * INTO v_job FROM {schema}.controller_jobs WHERE id = v_new.id;
        END IF;
        IF NOT FOUND THEN
            SELECT * INTO v_job FROM {schema}.controller_jobs WHERE "unique" = v_new."unique";
        END IF;
        RETURN NEXT v_job;
    END LOOP;
END $$;

-- From submitting to queued, where it is that, in that round; the ids and rounds of those that are.
CREATE FUNCTION {schema}.controller_mark_ready(p_put json, p_now double precision)
RETURNS TABLE (r_id text, r_round integer)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_now double precision := {schema}.controller_now(p_now);
    v_put record;
BEGIN
    FOR v_put IN
        SELECT p.id AS id, p.round AS round, p.queue_id AS queue_id
        FROM json_to_recordset(p_put) AS p (id text, round integer, queue_id text)
        ORDER BY p.id COLLATE "C"
    LOOP
        UPDATE {schema}.controller_jobs
        SET state = 'ready', queue_id = v_put.queue_id, changed_at = v_now
        WHERE id = v_put.id AND round = v_put.round
          AND (state = 'putting' OR state = 'ready' AND queue_id = v_put.queue_id);
        IF FOUND THEN
            RETURN QUERY SELECT v_put.id, v_put.round;
        END IF;
    END LOOP;
END $$;

-- Write down that claimed jobs go to workers; the jobs that may be handed out.
CREATE FUNCTION {schema}.controller_deliver(p_runs json, p_now double precision)
RETURNS SETOF {schema}.controller_jobs
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_now double precision := {schema}.controller_now(p_now);
    v_run {schema}.controller_runs;
    v_before {schema}.controller_runs;
    v_job {schema}.controller_jobs;
BEGIN
    FOR v_run IN
        SELECT * FROM json_populate_recordset(NULL::{schema}.controller_runs, p_runs)
        ORDER BY job_id COLLATE "C"
    LOOP
        SELECT * INTO v_job FROM {schema}.controller_jobs
        WHERE id = v_run.job_id FOR NO KEY UPDATE;
        CONTINUE WHEN NOT FOUND OR v_job.round <> v_run.round
            OR v_job.state NOT IN ('putting', 'ready', 'leased');
        SELECT * INTO v_before FROM {schema}.controller_runs
        WHERE job_id = v_run.job_id FOR NO KEY UPDATE;
        -- The same claim again changes nothing but when it was delivered.
        IF FOUND AND v_before.token = v_run.token THEN
            UPDATE {schema}.controller_runs
            SET delivered_at = v_now, until = greatest(until, v_run.until),
                worker_id = v_run.worker_id
            WHERE job_id = v_run.job_id;
            RETURN NEXT v_job;
            CONTINUE;
        END IF;
        -- What is to be cancelled is not handed out again.
        IF v_job.cancel THEN
            DELETE FROM {schema}.controller_runs WHERE job_id = v_run.job_id;
            UPDATE {schema}.controller_jobs
            SET state = 'cancelled', finished_at = v_now, changed_at = v_now, ended_by = NULL,
                exit_code = NULL, result = NULL, result_bytes = 0
            WHERE id = v_run.job_id;
            CONTINUE;
        END IF;
        CONTINUE WHEN v_before.until >= v_run.until;
        INSERT INTO {schema}.controller_runs (
            job_id, worker_id, queue_id, token, claimed_as, queue_kind, round, attempt, until, key,
            receipt, delivered_at
        )
        VALUES (
            v_run.job_id, v_run.worker_id, v_run.queue_id, v_run.token, v_run.claimed_as,
            v_run.queue_kind, v_run.round, v_run.attempt, v_run.until, v_run.key, v_run.receipt,
            v_now
        )
        ON CONFLICT (job_id) DO UPDATE SET
            worker_id = excluded.worker_id, queue_id = excluded.queue_id, token = excluded.token,
            claimed_as = excluded.claimed_as, queue_kind = excluded.queue_kind,
            round = excluded.round, attempt = excluded.attempt, until = excluded.until,
            key = excluded.key, receipt = excluded.receipt, delivered_at = excluded.delivered_at,
            heard_of_at = NULL;
        UPDATE {schema}.controller_jobs
        SET state = 'leased', queue_id = v_run.queue_id, attempt = v_run.attempt,
            worker_id = v_run.worker_id, progress = NULL, message = NULL, exit_code = NULL,
            ended_by = NULL, started_at = v_now, changed_at = v_now
        WHERE id = v_run.job_id
        RETURNING * INTO v_job;
        RETURN NEXT v_job;
    END LOOP;
END $$;

-- Note what workers say of their runs; those that they still have.
CREATE FUNCTION {schema}.controller_contact(p_contacts json, p_now double precision)
RETURNS SETOF {schema}.controller_runs
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_now double precision := {schema}.controller_now(p_now);
    v_said record;
    v_run {schema}.controller_runs;
BEGIN
    FOR v_said IN
        SELECT c.job_id AS job_id, c.worker_id AS worker_id, c.until AS until,
            c.progress AS progress, c.message AS message, c.heard AS heard
        FROM json_to_recordset(p_contacts) AS c (
            job_id text, worker_id text, until double precision, progress double precision,
            message text, heard boolean
        )
        ORDER BY c.job_id COLLATE "C", c.worker_id
    LOOP
        IF v_said.progress IS NOT NULL OR v_said.message IS NOT NULL THEN
            PERFORM {schema}.controller_lock(ARRAY[v_said.job_id]);
        END IF;
        UPDATE {schema}.controller_runs
        SET heard_of_at = CASE WHEN v_said.heard THEN v_now ELSE heard_of_at END,
            until = greatest(until, v_said.until)
        WHERE job_id = v_said.job_id AND worker_id = v_said.worker_id
        RETURNING * INTO v_run;
        CONTINUE WHEN NOT FOUND;
        IF v_said.progress IS NOT NULL OR v_said.message IS NOT NULL THEN
            UPDATE {schema}.controller_jobs
            SET progress = coalesce(v_said.progress, progress),
                message = coalesce(v_said.message, message), changed_at = v_now
            WHERE id = v_said.job_id;
        END IF;
        RETURN NEXT v_run;
    END LOOP;
END $$;

-- End runs by what their workers report, each once; for each job what came of it.
CREATE FUNCTION {schema}.controller_end_runs(p_endings json, p_now double precision)
RETURNS TABLE (r_job_id text, r_result text)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_now double precision := {schema}.controller_now(p_now);
    v_end json;
    v_id text;
    v_worker text;
    v_ended_by text;
BEGIN
    FOR v_end IN
        SELECT e FROM json_array_elements(p_endings) AS e ORDER BY e ->> 'job_id' COLLATE "C"
    LOOP
        v_id := v_end ->> 'job_id';
        v_worker := v_end ->> 'worker_id';
        SELECT ended_by INTO v_ended_by FROM {schema}.controller_jobs
        WHERE id = v_id FOR NO KEY UPDATE;
        DELETE FROM {schema}.controller_runs
        WHERE job_id = v_id AND worker_id = v_worker
          AND token = coalesce((v_end ->> 'token')::bigint, token);
        IF FOUND THEN
            PERFORM {schema}.controller_end(v_end, v_now);
            RETURN QUERY SELECT v_id, 'ended';
        ELSIF v_ended_by = v_worker AND NOT EXISTS (
            SELECT FROM {schema}.controller_runs WHERE job_id = v_id
        ) THEN
            RETURN QUERY SELECT v_id, 'repeated';
        ELSE
            RETURN QUERY SELECT v_id, 'lost';
        END IF;
    END LOOP;
END $$;

-- Give a job the state it ends with; what should run again but was cancelled meanwhile is cancelled.
CREATE FUNCTION {schema}.controller_end(p_end json, p_now double precision) RETURNS void
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    v_state text := p_end ->> 'state';
BEGIN
    UPDATE {schema}.controller_jobs
    SET state = CASE WHEN v_state = 'ready' AND cancel THEN 'cancelled' ELSE v_state END,
        finished_at = CASE WHEN v_state = 'ready' AND NOT cancel THEN NULL ELSE p_now END,
        error = CASE WHEN v_state = 'done' THEN NULL ELSE coalesce(p_end ->> 'error', error) END,
        ended_by = p_end ->> 'worker_id', exit_code = (p_end ->> 'exit_code')::integer,
        result = p_end ->> 'result',
        result_bytes = coalesce((p_end ->> 'result_bytes')::integer, 0), changed_at = p_now
    WHERE id = p_end ->> 'job_id';
END $$;

-- End a job that no report ends, if it is as expected, and its run.
CREATE FUNCTION {schema}.controller_end_job(
    p_ending json, p_round integer, p_expected text[], p_now double precision
) RETURNS SETOF {schema}.controller_jobs
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_id text := p_ending ->> 'job_id';
BEGIN
    PERFORM {schema}.controller_lock(ARRAY[v_id]);
    IF NOT EXISTS (
        SELECT FROM {schema}.controller_jobs
        WHERE id = v_id AND round = p_round AND state = ANY (p_expected)
    ) THEN
        RETURN;
    END IF;
    DELETE FROM {schema}.controller_runs WHERE job_id = v_id;
    PERFORM {schema}.controller_end(p_ending, {schema}.controller_now(p_now));
    RETURN QUERY SELECT * FROM {schema}.controller_jobs WHERE id = v_id;
END $$;

-- Take runs from their worker, or those whose lease ended so long ago; their jobs are queued again.
CREATE FUNCTION {schema}.controller_release(
    p_worker text, p_grace double precision, p_limit integer, p_now double precision
) RETURNS SETOF {schema}.controller_runs
LANGUAGE plpgsql VOLATILE AS $$
#variable_conflict use_column
DECLARE
    v_now double precision := {schema}.controller_now(p_now);
    v_id text;
    v_run {schema}.controller_runs;
BEGIN
    FOR v_id IN
        SELECT job_id FROM (
            SELECT job_id FROM {schema}.controller_runs
            WHERE CASE WHEN p_worker IS NULL THEN until <= v_now - p_grace
                       ELSE worker_id = p_worker END
            ORDER BY until, job_id LIMIT p_limit
        ) AS chosen
        ORDER BY job_id
    LOOP
        PERFORM {schema}.controller_lock(ARRAY[v_id]);
        DELETE FROM {schema}.controller_runs
        WHERE job_id = v_id AND CASE WHEN p_worker IS NULL THEN until <= v_now - p_grace
                                     ELSE worker_id = p_worker END
        RETURNING * INTO v_run;
        CONTINUE WHEN NOT FOUND;  -- it was renewed, or ended, meanwhile
        UPDATE {schema}.controller_jobs
        SET state = CASE WHEN cancel THEN 'cancelled' ELSE 'ready' END,
            finished_at = CASE WHEN cancel THEN v_now END,
            error = CASE WHEN p_worker IS NULL
                THEN 'the lease of ' || v_run.worker_id || ' ran out'
                ELSE p_worker || ' was unregistered' END,
            ended_by = NULL, exit_code = NULL, result = NULL, result_bytes = 0, changed_at = v_now
        WHERE id = v_id;
        RETURN NEXT v_run;
    END LOOP;
END $$;

CREATE FUNCTION {schema}.controller_cancel(p_id text, p_now double precision)
RETURNS SETOF {schema}.controller_jobs
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_now double precision := {schema}.controller_now(p_now);
BEGIN
    UPDATE {schema}.controller_jobs
    SET cancel = true, changed_at = v_now,
        finished_at = CASE WHEN state = 'leased' THEN NULL ELSE v_now END,
        state = CASE WHEN state = 'leased' THEN 'leased' ELSE 'cancelled' END
    WHERE id = p_id AND state IN ('putting', 'ready', 'leased');
    RETURN QUERY SELECT * FROM {schema}.controller_jobs WHERE id = p_id;
END $$;

CREATE FUNCTION {schema}.controller_renew_job(
    p_id text, p_round integer, p_now double precision
) RETURNS SETOF {schema}.controller_jobs
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_now double precision := {schema}.controller_now(p_now);
    v_job {schema}.controller_jobs;
BEGIN
    UPDATE {schema}.controller_jobs
    SET state = 'putting', round = round + 1, attempt = 0, queue_id = NULL, progress = NULL,
        message = NULL, worker_id = NULL, cancel = false, ended_by = NULL, started_at = NULL,
        finished_at = NULL, error = NULL, exit_code = NULL, result = NULL, result_bytes = 0,
        changed_at = v_now
    WHERE id = p_id AND round = p_round AND state IN ('done', 'dead', 'cancelled')
      AND NOT retired
    RETURNING * INTO v_job;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    PERFORM {schema}.controller_require(v_job.kind, v_job.requires_hash, v_job.requires, v_now);
    RETURN NEXT v_job;
END $$;

-- Keep the row of an artefact. result: kept, gone (no such job) or full; and the blob it replaced.
CREATE FUNCTION {schema}.controller_put_artefact(
    p_row json, p_most integer, p_now double precision
) RETURNS TABLE (r_result text, r_before json)
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_new {schema}.controller_artefacts :=
        json_populate_record(NULL::{schema}.controller_artefacts, p_row);
    v_before json;
BEGIN
    PERFORM {schema}.controller_lock(ARRAY[v_new.job_id]);
    IF NOT EXISTS (SELECT FROM {schema}.controller_jobs WHERE id = v_new.job_id) THEN
        RETURN QUERY SELECT 'gone', NULL::json;
        RETURN;
    END IF;
    IF p_most <= (
        SELECT count(*) FROM {schema}.controller_artefacts
        WHERE job_id = v_new.job_id AND input = v_new.input AND name <> v_new.name
    ) THEN
        RETURN QUERY SELECT 'full', NULL::json;
        RETURN;
    END IF;
    SELECT row_to_json(a) INTO v_before FROM {schema}.controller_artefacts AS a
    WHERE job_id = v_new.job_id AND input = v_new.input AND name = v_new.name;
    INSERT INTO {schema}.controller_artefacts AS a (
        job_id, input, name, blob, size, sha256, content_type, created_at, created_by
    )
    VALUES (
        v_new.job_id, v_new.input, v_new.name, v_new.blob, v_new.size, v_new.sha256,
        v_new.content_type, {schema}.controller_now(p_now), v_new.created_by
    )
    ON CONFLICT (job_id, input, name) DO UPDATE SET
        blob = excluded.blob, size = excluded.size, sha256 = excluded.sha256,
        content_type = excluded.content_type, created_at = excluded.created_at,
        created_by = excluded.created_by;
    RETURN QUERY SELECT 'kept', v_before;
END $$;

-- Append what is new of what a run sent from an offset on; how far the log is then.
CREATE FUNCTION {schema}.controller_append_log(
    p_id text, p_part bigint, p_offset bigint, p_data bytea, p_limit bigint, p_end bytea,
    p_begin bytea
) RETURNS SETOF {schema}.controller_logs
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_log {schema}.controller_logs;
    v_received bigint;
    v_fresh bytea;
    v_kept bytea;
    v_room bigint;
BEGIN
    PERFORM FROM {schema}.controller_jobs WHERE id = p_id FOR KEY SHARE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    INSERT INTO {schema}.controller_logs (job_id, size, part, received, cut)
    VALUES (p_id, 0, 0, 0, false) ON CONFLICT (job_id) DO NOTHING;
    SELECT * INTO v_log FROM {schema}.controller_logs WHERE job_id = p_id FOR NO KEY UPDATE;
    IF p_part < v_log.part THEN
        RETURN;
    END IF;
    v_received := CASE WHEN p_part = v_log.part THEN v_log.received ELSE 0 END;
    IF p_offset > v_received OR p_offset + octet_length(p_data) <= v_received THEN
        RETURN NEXT v_log;
        RETURN;
    END IF;
    v_fresh := substr(p_data, (v_received - p_offset)::integer + 1);
    v_kept := ''::bytea;
    IF NOT v_log.cut THEN
        v_kept := CASE WHEN p_part > v_log.part AND v_log.size > 0
            THEN p_begin || v_fresh ELSE v_fresh END;
        v_room := greatest(p_limit - v_log.size, 0);
        v_log.cut := octet_length(v_kept) > v_room;
        IF v_log.cut THEN
            v_kept := substr(v_kept, 1, v_room::integer) || p_end;
        END IF;
    END IF;
    IF octet_length(v_kept) > 0 THEN
        INSERT INTO {schema}.controller_log_bytes (job_id, start, data)
        VALUES (p_id, v_log.size, v_kept);
    END IF;
    UPDATE {schema}.controller_logs
    SET size = size + octet_length(v_kept), part = p_part,
        received = v_received + octet_length(v_fresh), cut = v_log.cut
    WHERE job_id = p_id
    RETURNING * INTO v_log;
    RETURN NEXT v_log;
END $$;
