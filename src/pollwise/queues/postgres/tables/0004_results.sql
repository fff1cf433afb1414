-- Version 4: results that are kept for a stated time.
--
-- expires_at: a job that is done or cancelled is kept until then for those who wait for its result,
--        even if finished jobs are not kept; NULL for no longer than these. Without a meaning in
--        other states.
--
-- Workers of version 3 call the function `settle` without p_keeps, which stays as it is.

ALTER TABLE {schema}.jobs ADD COLUMN expires_at double precision;

CREATE INDEX jobs_expiring ON {schema}.jobs (queue, expires_at)
    WHERE expires_at IS NOT NULL;

-- End claims, as before. p_keeps: for how many seconds a job that is done or cancelled is kept for its
-- result, NULL for no longer than finished jobs are kept. A job that is kept only for its result frees
-- its `unique`.
CREATE FUNCTION {schema}.settle(
    p_queue text, p_seqs bigint[], p_tokens bigint[], p_actions smallint[],
    p_delays double precision[], p_errors text[], p_results text[], p_keeps double precision[],
    p_keyed boolean, p_keep boolean, p_now double precision
) RETURNS integer[]
LANGUAGE plpgsql
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
AS $$
DECLARE
    v_now double precision := {schema}.now_or(p_now);
    v_settled integer[];
    v_some integer[];
    v_keys text[];
    v_more text[];
    v_cancelled bigint[];
BEGIN
    IF p_keyed AND (p_keep OR p_actions IS NOT NULL OR p_keeps IS NOT NULL) THEN
        -- An update alone would not wait for a put that holds FOR KEY SHARE on the job.
        PERFORM 1 FROM unnest(p_seqs, p_tokens, p_actions) AS s (seq, token, action)
        JOIN {schema}.jobs AS j ON j.seq = s.seq AND j.token = s.token
        WHERE j.key IS NOT NULL AND coalesce(s.action, 0) NOT IN (1, 4)
        FOR UPDATE OF j;
    END IF;

    IF NOT p_keep THEN
        WITH gone AS (
            DELETE FROM {schema}.jobs AS j
            USING unnest(p_seqs, p_tokens, p_actions)
                WITH ORDINALITY AS s (seq, token, action, place)
            WHERE j.seq = s.seq AND j.token = s.token AND j.state IN (0, 3)
              AND (p_actions IS NULL OR s.action IN (0, 3))
              AND (p_keeps IS NULL OR p_keeps[s.place] IS NULL)
            RETURNING s.place, j.key
        )
        SELECT array_agg(gone.place), array_agg(gone.key) FILTER (WHERE gone.key IS NOT NULL)
        INTO v_settled, v_keys FROM gone;
    END IF;

    IF p_keep OR p_actions IS NOT NULL OR p_keeps IS NOT NULL THEN
        -- What comes back but was asked to cancel ends below.
        WITH stays AS (
            UPDATE {schema}.jobs AS j SET
                state = CASE s.action WHEN 2 THEN 4 WHEN 3 THEN 6 ELSE
                            CASE WHEN NOT s.back THEN 5 WHEN s.delay > 0 THEN 1 ELSE 0 END
                        END,
                since = v_now + s.delay,
                run_at = CASE WHEN s.back AND NOT j.cancel THEN v_now + s.delay ELSE j.run_at END,
                errors = CASE WHEN p_errors[s.place] IS NULL THEN j.errors
                    ELSE {schema}.with_error(j.errors, v_now, j.attempt, p_errors[s.place]) END,
                result = p_results[s.place],
                attempt = j.attempt - CASE WHEN s.action = 4 THEN 1 ELSE 0 END,
                token = j.token + 1,
                worker = CASE WHEN NOT s.back OR j.cancel THEN j.worker END,
                cancel = s.back AND j.cancel,
                expires_at = v_now + p_keeps[s.place],
                "unique" = CASE WHEN p_keep OR p_keeps IS NULL OR p_keeps[s.place] IS NULL
                                THEN j."unique" END
            FROM (
                SELECT g.seq, g.token, g.action, g.place, b.back,
                       CASE WHEN b.back THEN coalesce(p_delays[g.place], 0) ELSE 0 END AS delay
                FROM unnest(p_seqs, p_tokens, p_actions)
                    WITH ORDINALITY AS g (seq, token, action, place)
                CROSS JOIN LATERAL (SELECT coalesce(g.action, 0) IN (1, 4) AS back) AS b
            ) AS s
            WHERE j.seq = s.seq AND j.token = s.token AND j.state IN (0, 3)
              AND (p_keep OR s.action IN (1, 2, 4) OR p_keeps[s.place] IS NOT NULL)
            RETURNING s.place, j.seq, j.key, j.state, j.cancel
        )
        SELECT array_agg(stays.place),
               array_agg(stays.key) FILTER (WHERE stays.key IS NOT NULL AND stays.state > 3),
               array_agg(stays.seq) FILTER (WHERE stays.cancel)
        INTO v_some, v_more, v_cancelled FROM stays;
        v_settled := v_settled || v_some;
        v_keys := v_keys || v_more;
    END IF;

    IF v_keys <> '{}' THEN
        PERFORM {schema}.free(p_queue, ARRAY(SELECT DISTINCT k FROM unnest(v_keys) AS k ORDER BY k),
                              v_now);
    END IF;
    IF v_cancelled IS NOT NULL THEN
        PERFORM {schema}.end_cancelled(p_queue, v_cancelled, p_keep, v_now);
    END IF;
    RETURN {schema}.missing(cardinality(p_seqs), v_settled);
END
$$;

-- Make ended jobs ready again, or blocked if their key has a front; all dead ones, if p_seqs is NULL.
CREATE OR REPLACE FUNCTION {schema}.retry(p_queue text, p_seqs bigint[], p_now double precision)
RETURNS bigint
LANGUAGE plpgsql
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_bitmapscan = off
AS $$
DECLARE
    v_now double precision := {schema}.now_or(p_now);
    v_ended bigint[];
    v_held text[];
    v_blocked boolean[];
BEGIN
    IF p_seqs IS NULL THEN
        SELECT array_agg(d.seq) INTO v_ended FROM (
            SELECT j.seq FROM {schema}.jobs AS j
            WHERE j.queue = p_queue AND j.state = 4 ORDER BY j.seq + 0 FOR UPDATE
        ) AS d;
    ELSE
        SELECT array_agg(d.seq) INTO v_ended FROM (
            SELECT j.seq FROM {schema}.jobs AS j
            WHERE j.seq = ANY (p_seqs) AND j.queue = p_queue AND j.state >= 4
            ORDER BY j.seq + 0 FOR UPDATE
        ) AS d;
    END IF;
    v_held := {schema}.held_keys(
        p_queue, ARRAY(SELECT j.key FROM {schema}.jobs AS j WHERE j.seq = ANY (v_ended))
    );
    SELECT array_agg(d.nth > 1 OR held.key IS NOT NULL ORDER BY d.seq) INTO v_blocked
    FROM (
        SELECT k.seq, k.key,
               CASE WHEN k.key IS NULL THEN 1
                    ELSE row_number() OVER (PARTITION BY k.key ORDER BY k.seq) END AS nth
        FROM {schema}.jobs AS k WHERE k.seq = ANY (v_ended)
    ) AS d
    LEFT JOIN unnest(v_held) AS held (key) ON held.key = d.key;
    UPDATE {schema}.jobs AS j SET
        state = CASE WHEN v_blocked[width_bucket(j.seq, v_ended)] THEN 2 ELSE 0 END,
        since = v_now, run_at = v_now, attempt = 0, token = j.token + 1,
        worker = NULL, claimed_at = NULL, progress = NULL, result = NULL, expires_at = NULL
    WHERE j.seq = ANY (v_ended);
    RETURN coalesce(cardinality(v_ended), 0);
END
$$;
