-- Version 3: where the log of each run begins; tokens that may see all jobs.

-- all_jobs: of the scope put: it sees and cancels the jobs of others too.
ALTER TABLE {schema}.controller_tokens ADD COLUMN all_jobs boolean NOT NULL DEFAULT false;

-- part: the run, as in the folder; start: the offset of its first byte in the log.
CREATE TABLE {schema}.controller_log_runs (
    folder   text COLLATE "C" NOT NULL
             REFERENCES {schema}.controller_folders ON DELETE CASCADE,
    part     bigint  NOT NULL,
    attempt  integer NOT NULL,
    worker   text    NOT NULL,
    began_at double precision NOT NULL,
    start    bigint  NOT NULL,
    PRIMARY KEY (folder, part)
);

-- As controller_append_log; also notes where the log of a new run begins.
CREATE FUNCTION {schema}.controller_append_run_log(
    p_folder text, p_part bigint, p_offset bigint, p_data bytea, p_limit bigint, p_end bytea,
    p_begin bytea, p_attempt integer, p_worker text, p_now double precision
) RETURNS SETOF {schema}.controller_folders
LANGUAGE plpgsql VOLATILE
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_before {schema}.controller_folders;
    v_after {schema}.controller_folders;
BEGIN
    SELECT * INTO v_before FROM {schema}.controller_folders WHERE folder = p_folder
    FOR NO KEY UPDATE;
    SELECT * INTO v_after FROM {schema}.controller_append_log(
        p_folder, p_part, p_offset, p_data, p_limit, p_end, p_begin, p_now
    );
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF v_after.part = p_part AND coalesce(v_before.part, 0) < p_part THEN
        INSERT INTO {schema}.controller_log_runs (folder, part, attempt, worker, began_at, start)
        VALUES (p_folder, p_part, p_attempt, p_worker, p_now, coalesce(v_before.size, 0))
        ON CONFLICT (folder, part) DO NOTHING;
    END IF;
    RETURN NEXT v_after;
END $$;
