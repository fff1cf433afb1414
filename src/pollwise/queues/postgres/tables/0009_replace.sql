-- Version 9: puts that replace the job that has their `unique`.
--
-- Only a function, which calls `put`.

-- As `put`, for a batch in which some jobs replace (p_replaces) the job that has their `unique`: one
-- that waits is replaced and keeps its id; one that runs or has ended gives its `unique` up, and the
-- new job is put. No two jobs of the batch have the same `unique`. If the other job has another kind or
-- key, nothing is put, and twin_payload is NULL.
CREATE FUNCTION {schema}.put_replacing(
    p_queue text, p_kinds text[], p_payloads text[], p_priorities integer[],
    p_delays double precision[], p_run_ats double precision[], p_keys text[], p_uniques text[],
    p_headers text[], p_alone boolean, p_channel text, p_message text, p_now double precision,
    p_replaces boolean[]
) RETURNS TABLE (
    ids text, fresh integer, place integer, twin_seq bigint, twin_kind text, twin_payload text,
    twin_key text
)
LANGUAGE plpgsql
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now double precision := {schema}.now_or(p_now);
    v_found record;
    v_put record;
    v_due double precision;
    v_seqs bigint[] := array_fill(NULL::bigint, ARRAY[cardinality(p_kinds)]);
    v_rest integer[];
    v_new text[];
    v_replaced integer := 0;
BEGIN
    BEGIN
        -- In the order of the rows, as all calls lock them, so that there is no deadlock.
        FOR v_found IN
            SELECT j.seq, j.kind, j.key, j.state, g.at::integer AS at
            FROM {schema}.jobs AS j
            JOIN unnest(p_uniques, p_replaces) WITH ORDINALITY AS g (name, replaces, at)
                ON g.replaces AND j.queue = p_queue AND j."unique" = g.name
            WHERE j."unique" IS NOT NULL
            ORDER BY j.seq
            FOR UPDATE OF j
        LOOP
            IF v_found.kind <> p_kinds[v_found.at]
               OR v_found.key IS DISTINCT FROM p_keys[v_found.at] THEN
                RAISE EXCEPTION USING ERRCODE = 'PX001';
            END IF;
            IF v_found.state >= 3 THEN
                UPDATE {schema}.jobs AS j SET "unique" = NULL WHERE j.seq = v_found.seq;
                CONTINUE;
            END IF;
            v_due := CASE WHEN p_run_ats[v_found.at] IS NOT NULL
                          THEN greatest(p_run_ats[v_found.at], v_now)
                          ELSE v_now + coalesce(p_delays[v_found.at], 0) END;
            -- One that is due, and is to run now, keeps its place. A settlement adds one to the token.
            UPDATE {schema}.jobs AS j SET
                payload = p_payloads[v_found.at], headers = p_headers[v_found.at],
                priority = coalesce(p_priorities[v_found.at], 0), attempt = 0,
                token = j.token + 2,
                state = CASE WHEN j.state = 2 THEN 2 WHEN v_due > v_now THEN 1 ELSE 0 END,
                since = CASE WHEN v_due > v_now THEN v_due ELSE least(j.run_at, v_now) END,
                run_at = CASE WHEN v_due > v_now THEN v_due ELSE least(j.run_at, v_now) END
            WHERE j.seq = v_found.seq;
            v_seqs[v_found.at] := v_found.seq;
            v_replaced := v_replaced + 1;
        END LOOP;

        v_rest := ARRAY(
            SELECT s.at::integer FROM unnest(v_seqs) WITH ORDINALITY AS s (seq, at)
            WHERE s.seq IS NULL ORDER BY s.at
        );
        fresh := 0;
        IF v_rest <> '{}' THEN
            SELECT * INTO v_put FROM {schema}.put(
                p_queue,
                ARRAY(SELECT p_kinds[r] FROM unnest(v_rest) AS r),
                ARRAY(SELECT p_payloads[r] FROM unnest(v_rest) AS r),
                ARRAY(SELECT p_priorities[r] FROM unnest(v_rest) AS r),
                ARRAY(SELECT p_delays[r] FROM unnest(v_rest) AS r),
                ARRAY(SELECT p_run_ats[r] FROM unnest(v_rest) AS r),
                CASE WHEN p_keys IS NOT NULL
                     THEN ARRAY(SELECT p_keys[r] FROM unnest(v_rest) AS r) END,
                ARRAY(SELECT p_uniques[r] FROM unnest(v_rest) AS r),
                ARRAY(SELECT p_headers[r] FROM unnest(v_rest) AS r),
                p_alone, NULL, NULL, p_now
            );
            IF v_put.place IS NOT NULL THEN
                RAISE EXCEPTION USING ERRCODE = 'PX002';
            END IF;
            v_new := string_to_array(v_put.ids, ',');
            FOR at IN 1 .. cardinality(v_rest) LOOP
                v_seqs[v_rest[at]] := v_new[at]::bigint;
            END LOOP;
            fresh := v_put.fresh;
        END IF;
    EXCEPTION
        WHEN SQLSTATE 'PX001' THEN
            fresh := 0;
            place := v_found.at;
            twin_seq := v_found.seq;
            twin_kind := v_found.kind;
            twin_key := v_found.key;
            RETURN NEXT;
            RETURN;
        WHEN SQLSTATE 'PX002' THEN
            fresh := 0;
            place := v_rest[v_put.place];
            twin_seq := v_put.twin_seq;
            twin_kind := v_put.twin_kind;
            twin_payload := v_put.twin_payload;
            RETURN NEXT;
            RETURN;
    END;
    ids := array_to_string(v_seqs, ',');
    fresh := fresh + v_replaced;
    IF p_message IS NOT NULL AND fresh > 0 THEN
        PERFORM pg_notify(p_channel, p_message);
    END IF;
    RETURN NEXT;
END
$$;
