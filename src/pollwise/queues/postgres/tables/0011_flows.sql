-- Version 11: flows, which are jobs that wait for others of their batch.
--
-- links: `after` waits for `before`. place: the order of the links of a batch. on_failure: `after` runs
--        when `before` is dead. passed: `before` was done. A link is deleted with `after`.
-- flow: the name of the job's flow; NULL if it has none.
-- flow_keep: how long its queue keeps finished jobs, in seconds, as the one that put the flow says; NULL
--        if it does not keep them.
-- waits: how many of its predecessors a job waits for; NULL if it waits for none.
-- held_key, held_delay: the key and the delay that a job will have when it is released; '' and NULL
--        for none.
--
-- A job that waits for others is *held*: it is blocked and has no key, so it is not in the line of its
-- key. Nothing else is blocked without a key. It stops to be held only once, and forever. Statements
-- that look up held jobs by `seq` ask for `waits`, because a plan might prefer an index of all of them.
--
-- All calls lock held jobs last, and all that they need in the order of `seq`. A predecessor comes
-- before its successors in that order. So calls that end jobs of the same flow never wait in a circle,
-- and each sees what the other did: the last of them releases the successor. After that a call waits
-- for nothing but the flow itself (see `let_go`).
--
-- The functions that end jobs are replaced, so that workers of earlier versions keep flows too.

ALTER TABLE {schema}.jobs ADD COLUMN flow text;
ALTER TABLE {schema}.jobs ADD COLUMN flow_keep double precision;
ALTER TABLE {schema}.jobs ADD COLUMN waits integer;
ALTER TABLE {schema}.jobs ADD COLUMN held_key text;
ALTER TABLE {schema}.jobs ADD COLUMN held_delay double precision;

CREATE INDEX jobs_flow ON {schema}.jobs (queue, flow, state)
    WHERE flow IS NOT NULL;
CREATE INDEX jobs_held ON {schema}.jobs (queue, held_key, seq)
    WHERE state = 2 AND key IS NULL;

CREATE TABLE {schema}.links (
    before     bigint  NOT NULL,
    after      bigint  NOT NULL,
    place      integer NOT NULL,
    on_failure boolean NOT NULL,
    passed     boolean NOT NULL DEFAULT false,
    PRIMARY KEY (before, after)
) WITH (fillfactor = 80);
CREATE INDEX links_after ON {schema}.links (after);

-- How long jobs of a flow are kept after they ended, and after the last of them ended, in seconds.
-- While a flow goes on, the first is added to the time for which a job is kept anyway.
CREATE FUNCTION {schema}.flow_kept() RETURNS double precision
LANGUAGE sql IMMUTABLE AS $$ SELECT 2592000.0::double precision $$;
CREATE FUNCTION {schema}.flow_shown() RETURNS double precision
LANGUAGE sql IMMUTABLE AS $$ SELECT 3600.0::double precision $$;

-- For how long a cancelled job is kept for its flow; NULL if its queue keeps it for longer, or for an
-- unknown time.
CREATE FUNCTION {schema}.kept_for_flow(p_flow_keep double precision, p_keep boolean)
RETURNS double precision
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN CASE WHEN p_flow_keep IS NULL THEN NOT p_keep
                          ELSE p_flow_keep < {schema}.flow_kept() END
                THEN {schema}.flow_kept() END
$$;

-- Put a batch in which some jobs are in flows. p_flows: the name of the flow of each job, NULL for
-- none. p_waits: how many jobs each waits for. p_failures: whether each is for a failure. p_befores and
-- p_afters: the links, as places in the batch, from 1. p_keep: see `flow_keep`. The rest is as for `put_replacing`; p_replaces
-- is NULL if no job replaces another.
CREATE FUNCTION {schema}.put_flow(
    p_queue text, p_kinds text[], p_payloads text[], p_priorities integer[],
    p_delays double precision[], p_run_ats double precision[], p_keys text[], p_uniques text[],
    p_headers text[], p_alone boolean, p_channel text, p_message text, p_now double precision,
    p_replaces boolean[], p_flows text[], p_waits integer[], p_failures boolean[],
    p_befores integer[], p_afters integer[], p_keep double precision
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
    v_keys text[];
    v_seqs bigint[];
    v_sorted bigint[];
    v_places bigint[];
BEGIN
    IF p_keys IS NOT NULL THEN  -- held jobs do not enter the line of their key
        v_keys := ARRAY(
            SELECT CASE WHEN g.waits = 0 THEN g.key END
            FROM unnest(p_keys, p_waits) WITH ORDINALITY AS g (key, waits, at) ORDER BY g.at
        );
    END IF;
    IF p_replaces IS NULL THEN
        SELECT p.ids, p.fresh, p.place, p.twin_seq, p.twin_kind, p.twin_payload
        INTO ids, fresh, place, twin_seq, twin_kind, twin_payload
        FROM {schema}.put(
            p_queue, p_kinds, p_payloads, p_priorities, p_delays, p_run_ats, v_keys, p_uniques,
            p_headers, p_alone, p_channel, p_message, v_now
        ) AS p;
    ELSE
        SELECT * INTO ids, fresh, place, twin_seq, twin_kind, twin_payload, twin_key
        FROM {schema}.put_replacing(
            p_queue, p_kinds, p_payloads, p_priorities, p_delays, p_run_ats, v_keys, p_uniques,
            p_headers, p_alone, p_channel, p_message, v_now, p_replaces
        );
    END IF;
    IF place IS NULL THEN
        v_seqs := string_to_array(ids, ',')::bigint[];
        SELECT array_agg(g.seq ORDER BY g.seq), array_agg(g.at ORDER BY g.seq)
        INTO v_sorted, v_places
        FROM unnest(v_seqs, p_flows) WITH ORDINALITY AS g (seq, flow, at) WHERE g.flow IS NOT NULL;
        -- The second assignment reads what belongs to the place of the job in the batch.
        UPDATE {schema}.jobs AS j SET
            flow_keep = p_keep,
            (flow, state, waits, held_key, held_delay) = (
                SELECT p_flows[g.at], CASE WHEN p_waits[g.at] > 0 THEN 2 ELSE j.state END,
                       nullif(p_waits[g.at], 0),
                       CASE WHEN p_waits[g.at] > 0 THEN coalesce(p_keys[g.at], '') END,
                       CASE WHEN p_waits[g.at] > 0 AND p_run_ats[g.at] IS NULL
                            THEN nullif(p_delays[g.at], 0) END
                FROM (SELECT v_places[width_bucket(j.seq, v_sorted)] AS at OFFSET 0) AS g
            )
        WHERE j.seq = ANY (v_sorted);
        INSERT INTO {schema}.links (before, after, place, on_failure)
        SELECT v_seqs[l.before], v_seqs[l.after], l.place, p_failures[l.after]
        FROM unnest(p_befores, p_afters) WITH ORDINALITY AS l (before, after, place);
    END IF;
    RETURN NEXT;
END
$$;

-- If these flows are over, keep their jobs only for their own time, but long enough to be seen. Of two
-- calls that end the last jobs of a flow at the same time, one sees what the other did: a call either
-- locks a job that another will have to end later, or it looks while no other does. Jobs that another
-- call deletes or retries are left to it.
CREATE FUNCTION {schema}.let_go(p_queue text, p_flows text[], p_now double precision)
RETURNS void
LANGUAGE plpgsql
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
AS $$
DECLARE
    v_flow text;
    -- As variables, so that these are found among the jobs of the flow, not by an index of a state.
    v_held smallint := 2;
    v_leased smallint := 3;
    v_dead smallint := 4;
    v_live smallint[] := '{0,1,2,4}';
    v_over smallint[] := '{5,6}';
BEGIN
    FOR v_flow IN SELECT DISTINCT f FROM unnest(p_flows) AS f ORDER BY f LOOP
        -- Most flows that are not over have a job that is held. Not those that are ready or run,
        -- because claims skip what is locked.
        PERFORM 1 FROM {schema}.jobs AS j
        WHERE j.queue = p_queue AND j.flow = v_flow AND j.flow IS NOT NULL AND j.state = v_held
        LIMIT 1 FOR SHARE SKIP LOCKED;
        CONTINUE WHEN FOUND;
        PERFORM 1 FROM {schema}.jobs AS j
        WHERE j.queue = p_queue AND j.flow = v_flow AND j.flow IS NOT NULL AND j.state = v_dead
        LIMIT 1 FOR SHARE SKIP LOCKED;
        CONTINUE WHEN FOUND;
        PERFORM pg_advisory_xact_lock(hashtextextended('{schema} ' || v_flow, 0));
        CONTINUE WHEN
            EXISTS (SELECT 1 FROM {schema}.jobs AS j WHERE j.queue = p_queue
                    AND j.flow = v_flow AND j.flow IS NOT NULL AND j.state = v_leased)
            OR EXISTS (SELECT 1 FROM {schema}.jobs AS j WHERE j.queue = p_queue
                       AND j.flow = v_flow AND j.flow IS NOT NULL AND j.state = ANY (v_live));
        UPDATE {schema}.jobs AS j
        SET expires_at = greatest(j.expires_at - {schema}.flow_kept(), j.since + j.flow_keep,
                                  p_now + {schema}.flow_shown())
        WHERE j.seq = ANY (ARRAY(
            SELECT m.seq FROM {schema}.jobs AS m
            WHERE m.queue = p_queue AND m.flow = v_flow AND m.flow IS NOT NULL
              AND m.state = ANY (v_over)
              AND coalesce(m.expires_at, 0) >= m.since + {schema}.flow_kept()
            FOR NO KEY UPDATE SKIP LOCKED
        ));
    END LOOP;
END
$$;

-- Jobs of flows have ended (p_ended, all locked by the caller), or are deleted: do what that means for
-- those that come after. Jobs that are done release them, dead ones release those for a failure, and
-- others cancel them. p_flows: the flows of those that are deleted. p_cancelled: held jobs to cancel.
CREATE FUNCTION {schema}.pass_links(
    p_queue text, p_ended bigint[], p_flows text[], p_cancelled bigint[], p_keep boolean,
    p_now double precision
) RETURNS void
LANGUAGE plpgsql
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
AS $$
DECLARE
    v_flows text[];
    v_done bigint[];
    v_dead bigint[];
    v_gone bigint[];
    v_held bigint[];
    v_released bigint[];
    v_cancelled bigint[] := p_cancelled;
    v_more bigint[];
    v_keys text[];
    v_after bigint[];
    v_counts integer[];
    v_failures boolean[];
    v_dues double precision[];
    v_states integer[];
BEGIN
    SELECT array_agg(DISTINCT j.flow) FILTER (WHERE j.flow IS NOT NULL),
           array_agg(e.seq) FILTER (WHERE j.state = 5),
           array_agg(e.seq) FILTER (WHERE j.state = 4),
           array_agg(e.seq) FILTER (WHERE j.state IS NULL OR j.state = 6)
    INTO v_flows, v_done, v_dead, v_gone
    FROM unnest(p_ended) AS e (seq) LEFT JOIN LATERAL (
        SELECT t.state, t.flow FROM {schema}.jobs AS t WHERE t.seq = e.seq OFFSET 0
    ) AS j ON true;
    v_flows := v_flows || p_flows;

    -- Those whose cancellation may cascade, and all that comes after them; and those that may be
    -- released. What they wait for does not change after they were put.
    v_held := ARRAY(
        WITH RECURSIVE lost (seq) AS (
            (SELECT c.seq FROM unnest(p_cancelled) AS c (seq)
             UNION ALL
             SELECT l.after FROM unnest(v_gone) AS g (seq) CROSS JOIN LATERAL (
                 SELECT k.after FROM {schema}.links AS k
                 WHERE k.before = g.seq AND NOT k.passed OFFSET 0
             ) AS l
             UNION ALL
             SELECT l.after FROM unnest(v_done) AS d (seq) CROSS JOIN LATERAL (
                 SELECT k.after FROM {schema}.links AS k
                 WHERE k.before = d.seq AND NOT k.passed AND k.on_failure OFFSET 0
             ) AS l)
            UNION
            SELECT l.after FROM lost CROSS JOIN LATERAL (
                SELECT k.after FROM {schema}.links AS k
                WHERE k.before = lost.seq AND NOT k.passed OFFSET 0
            ) AS l
        )
        SELECT lost.seq FROM lost
        UNION
        SELECT l.after FROM unnest(v_done) AS d (seq) CROSS JOIN LATERAL (
            SELECT k.after FROM {schema}.links AS k
            WHERE k.before = d.seq AND NOT k.passed OFFSET 0
        ) AS l
        UNION
        SELECT l.after FROM unnest(v_dead) AS d (seq) CROSS JOIN LATERAL (
            SELECT k.after FROM {schema}.links AS k
            WHERE k.before = d.seq AND NOT k.passed AND k.on_failure OFFSET 0
        ) AS l
    );
    IF v_held <> '{}' THEN
        v_held := ARRAY(
            SELECT h.seq FROM (
                SELECT j.seq FROM {schema}.jobs AS j
                WHERE j.seq = ANY (v_held) AND j.queue = p_queue AND j.waits IS NOT NULL
                ORDER BY j.seq + 0 FOR NO KEY UPDATE
            ) AS h
        );
    END IF;
    IF v_held <> '{}' THEN
        IF v_done IS NOT NULL THEN
            WITH passed AS (
                UPDATE {schema}.links AS l SET passed = true
                WHERE l.before = ANY (v_done) AND NOT l.passed AND (
                    SELECT h.waits FROM {schema}.jobs AS h WHERE h.seq = l.after
                ) IS NOT NULL
                RETURNING l.after, l.on_failure
            )
            SELECT array_agg(p.after ORDER BY p.after), array_agg(p.count ORDER BY p.after),
                   array_agg(p.on_failure ORDER BY p.after)
            INTO v_after, v_counts, v_failures
            FROM (
                SELECT p.after, bool_or(p.on_failure) AS on_failure, count(*)::integer AS count
                FROM passed AS p GROUP BY p.after
            ) AS p;
            WITH counted AS (
                UPDATE {schema}.jobs AS j
                SET waits = j.waits - v_counts[width_bucket(j.seq, v_after)]
                WHERE j.seq = ANY (v_after)
                RETURNING j.seq, j.waits, v_failures[width_bucket(j.seq, v_after)] AS on_failure
            )
            SELECT array_agg(c.seq) FILTER (WHERE NOT c.on_failure),
                   v_cancelled || array_agg(c.seq) FILTER (WHERE c.on_failure)
            INTO v_released, v_cancelled
            FROM counted AS c WHERE c.waits <= 0;
        END IF;

        v_cancelled := ARRAY(
            WITH RECURSIVE lost (seq) AS (
                (SELECT j.seq FROM {schema}.jobs AS j
                 WHERE j.seq = ANY (v_cancelled) AND j.waits IS NOT NULL
                 UNION ALL
                 SELECT l.after FROM unnest(v_gone) AS g (seq) CROSS JOIN LATERAL (
                     SELECT k.after FROM {schema}.links AS k
                     WHERE k.before = g.seq AND NOT k.passed OFFSET 0
                 ) AS l
                 WHERE (SELECT h.waits FROM {schema}.jobs AS h WHERE h.seq = l.after) IS NOT NULL)
                UNION
                SELECT l.after FROM lost CROSS JOIN LATERAL (
                    SELECT k.after FROM {schema}.links AS k
                    WHERE k.before = lost.seq AND NOT k.passed OFFSET 0
                ) AS l
                WHERE (SELECT h.waits FROM {schema}.jobs AS h WHERE h.seq = l.after) IS NOT NULL
            )
            SELECT lost.seq FROM lost
        );
        IF v_cancelled <> '{}' THEN
            WITH cancelled AS (
                UPDATE {schema}.jobs AS j SET
                    state = 6, since = p_now, key = nullif(j.held_key, ''), waits = NULL,
                    held_key = NULL, held_delay = NULL,
                    expires_at = p_now + {schema}.kept_for_flow(j.flow_keep, p_keep)
                WHERE j.seq = ANY (v_cancelled)
                RETURNING j.flow
            )
            SELECT v_flows || array_agg(DISTINCT c.flow) INTO v_flows FROM cancelled AS c;
        END IF;

        -- What a failure releases is still held, unless it was cancelled just now.
        IF v_dead IS NOT NULL THEN
            SELECT array_agg(DISTINCT l.after) INTO v_more
            FROM unnest(v_dead) AS d (seq) CROSS JOIN LATERAL (
                SELECT k.after FROM {schema}.links AS k
                WHERE k.before = d.seq AND NOT k.passed AND k.on_failure OFFSET 0
            ) AS l
            WHERE (SELECT h.waits FROM {schema}.jobs AS h WHERE h.seq = l.after) IS NOT NULL;
            v_released := v_released || v_more;
        END IF;
        IF v_released <> '{}' THEN
            -- As `put` does it, and for the same reasons.
            v_keys := {schema}.held_keys(p_queue, ARRAY(
                SELECT j.held_key FROM {schema}.jobs AS j
                WHERE j.seq = ANY (v_released) AND j.held_key <> ''
            ));
            SELECT array_agg(r.seq ORDER BY r.seq), array_agg(r.due ORDER BY r.seq),
                   array_agg(CASE WHEN r.nth > 1 OR front.key IS NOT NULL THEN 2
                                  WHEN r.due > p_now THEN 1 ELSE 0 END ORDER BY r.seq)
            INTO v_released, v_dues, v_states
            FROM (
                SELECT h.seq, h.held_key,
                       CASE WHEN h.held_delay IS NULL THEN greatest(h.run_at, p_now)
                            ELSE p_now + h.held_delay END AS due,
                       CASE WHEN h.held_key = '' THEN 1
                            ELSE row_number() OVER (PARTITION BY h.held_key ORDER BY h.seq)
                            END AS nth
                FROM {schema}.jobs AS h WHERE h.seq = ANY (v_released) AND h.waits IS NOT NULL
            ) AS r
            LEFT JOIN unnest(v_keys) AS front (key) ON front.key = r.held_key;
            UPDATE {schema}.jobs AS j SET
                key = nullif(j.held_key, ''), waits = NULL, held_key = NULL, held_delay = NULL,
                since = v_dues[width_bucket(j.seq, v_released)],
                run_at = v_dues[width_bucket(j.seq, v_released)],
                state = v_states[width_bucket(j.seq, v_released)]
            WHERE j.seq = ANY (v_released);
        END IF;
    END IF;
    IF v_flows IS NOT NULL THEN
        PERFORM {schema}.let_go(p_queue, v_flows, p_now);
    END IF;
END
$$;

-- As `end_cancelled`, without what comes after these jobs in flows: returns those that are in one.
-- They are kept for a while, so that the flow can be seen.
CREATE FUNCTION {schema}.end_alone(
    p_queue text, p_seqs bigint[], p_keep boolean, p_now double precision
) RETURNS bigint[]
LANGUAGE plpgsql
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
AS $$
DECLARE
    v_keys text[];
    v_linked bigint[];
BEGIN
    -- FOR UPDATE waits for a put that holds FOR KEY SHARE on the job.
    v_keys := ARRAY(
        SELECT DISTINCT l.key FROM (
            SELECT j.key, j.state FROM {schema}.jobs AS j
            WHERE j.seq = ANY (p_seqs) AND j.key IS NOT NULL FOR UPDATE
        ) AS l
        WHERE l.state <> 2 ORDER BY l.key
    );
    IF NOT p_keep THEN
        DELETE FROM {schema}.jobs AS j WHERE j.seq = ANY (p_seqs) AND j.flow IS NULL;
    END IF;
    WITH ended AS (
        UPDATE {schema}.jobs AS j SET
            state = 6, since = p_now, cancel = false, "unique" = NULL,
            expires_at = CASE WHEN j.flow IS NULL THEN j.expires_at
                              ELSE p_now + {schema}.kept_for_flow(j.flow_keep, p_keep) END
        WHERE j.seq = ANY (p_seqs) AND (p_keep OR j.flow IS NOT NULL)
        RETURNING j.seq, j.flow
    )
    SELECT array_agg(e.seq) FILTER (WHERE e.flow IS NOT NULL) INTO v_linked FROM ended AS e;
    IF v_keys <> '{}' THEN
        PERFORM {schema}.free(p_queue, v_keys, p_now);
    END IF;
    RETURN v_linked;
END
$$;

-- End jobs that were asked to cancel and that no worker holds. All callers have locked them. Blocked
-- ones free no key.
CREATE OR REPLACE FUNCTION {schema}.end_cancelled(
    p_queue text, p_seqs bigint[], p_keep boolean, p_now double precision
) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_linked bigint[] := {schema}.end_alone(p_queue, p_seqs, p_keep, p_now);
BEGIN
    IF v_linked IS NOT NULL THEN
        PERFORM {schema}.pass_links(p_queue, v_linked, NULL, NULL, p_keep, p_now);
    END IF;
END
$$;

-- End claims, as before. Jobs of flows are kept, and pass their links when all else is done. The
-- claims come sorted by `seq` and token, so that `width_bucket` finds the newest of two of a job.
CREATE OR REPLACE FUNCTION {schema}.settle(
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
    v_linked bigint[];
    v_old bigint[];
BEGIN
    IF p_keyed AND (p_keep OR p_actions IS NOT NULL OR p_keeps IS NOT NULL) THEN
        -- An update alone would not wait for a put that holds FOR KEY SHARE on the job.
        PERFORM 1 FROM {schema}.jobs AS j
        WHERE j.seq = ANY (p_seqs) AND j.token = p_tokens[width_bucket(j.seq, p_seqs)]
          AND j.key IS NOT NULL AND coalesce(p_actions[width_bucket(j.seq, p_seqs)], 0) NOT IN (1, 4)
        FOR UPDATE;
    END IF;

    IF NOT p_keep THEN
        WITH gone AS (
            DELETE FROM {schema}.jobs AS j
            WHERE j.seq = ANY (p_seqs) AND j.token = p_tokens[width_bucket(j.seq, p_seqs)]
              AND j.state IN (0, 3) AND j.flow IS NULL
              AND (p_actions IS NULL OR p_actions[width_bucket(j.seq, p_seqs)] IN (0, 3))
              AND (p_keeps IS NULL OR p_keeps[width_bucket(j.seq, p_seqs)] IS NULL)
            RETURNING width_bucket(j.seq, p_seqs) AS place, j.key
        )
        SELECT array_agg(gone.place), array_agg(gone.key) FILTER (WHERE gone.key IS NOT NULL)
        INTO v_settled, v_keys FROM gone;
    END IF;

    IF p_keep OR p_actions IS NOT NULL OR p_keeps IS NOT NULL THEN
        -- What comes back but was asked to cancel ends below.
        WITH stays AS (
            UPDATE {schema}.jobs AS j SET
                token = j.token + 1,
                (state, since, run_at, errors, result, attempt, worker, cancel, expires_at, "unique") = (
                    SELECT CASE s.action WHEN 2 THEN 4 WHEN 3 THEN 6 ELSE
                               CASE WHEN NOT s.back THEN 5 WHEN s.delay > 0 THEN 1 ELSE 0 END
                           END,
                           v_now + s.delay,
                           CASE WHEN s.back AND NOT j.cancel THEN v_now + s.delay ELSE j.run_at END,
                           CASE WHEN p_errors[s.place] IS NULL THEN j.errors
                               ELSE {schema}.with_error(
                                   j.errors, v_now, j.attempt, p_errors[s.place]) END,
                           p_results[s.place],
                           j.attempt - CASE WHEN s.action = 4 THEN 1 ELSE 0 END,
                           CASE WHEN NOT s.back OR j.cancel THEN j.worker END,
                           s.back AND j.cancel,
                           v_now + p_keeps[s.place],
                           CASE WHEN s.back OR s.action = 2 THEN j."unique" END
                    FROM (
                        SELECT g.place, p_actions[g.place] AS action, b.back,
                               CASE WHEN b.back THEN coalesce(p_delays[g.place], 0) ELSE 0 END
                                   AS delay
                        FROM (SELECT width_bucket(j.seq, p_seqs) AS place OFFSET 0) AS g
                        CROSS JOIN LATERAL (
                            SELECT coalesce(p_actions[g.place], 0) IN (1, 4) AS back
                        ) AS b
                    ) AS s
                )
            WHERE j.seq = ANY (p_seqs) AND j.token = p_tokens[width_bucket(j.seq, p_seqs)]
              AND j.state IN (0, 3)
              AND (p_keep OR p_actions[width_bucket(j.seq, p_seqs)] IN (1, 2, 4) OR p_keeps[width_bucket(j.seq, p_seqs)] IS NOT NULL)
            RETURNING width_bucket(j.seq, p_seqs) AS place, j.seq, j.key, j.state, j.cancel, j.flow
        )
        SELECT array_agg(stays.place),
               array_agg(stays.key) FILTER (WHERE stays.key IS NOT NULL AND stays.state > 3),
               array_agg(stays.seq) FILTER (WHERE stays.cancel),
               array_agg(stays.seq) FILTER (WHERE stays.flow IS NOT NULL AND stays.state > 3)
        INTO v_some, v_more, v_cancelled, v_linked FROM stays;
        v_settled := v_settled || v_some;
        v_keys := v_keys || v_more;
    END IF;

    IF NOT p_keep AND coalesce(cardinality(v_settled), 0) < cardinality(p_seqs) THEN
        -- Leases are lost; or a worker of an earlier version does not say how long these are kept.
        IF p_keyed THEN
            PERFORM 1 FROM {schema}.jobs AS j
            WHERE j.seq = ANY (p_seqs) AND j.token = p_tokens[width_bucket(j.seq, p_seqs)]
              AND j.key IS NOT NULL AND num_nonnulls(j.flow) = 1 FOR UPDATE;
        END IF;
        WITH kept AS (
            UPDATE {schema}.jobs AS j SET
                state = CASE p_actions[width_bucket(j.seq, p_seqs)] WHEN 3 THEN 6 ELSE 5 END, since = v_now,
                result = p_results[width_bucket(j.seq, p_seqs)], token = j.token + 1, cancel = false,
                expires_at = v_now + {schema}.flow_kept()
            WHERE j.seq = ANY (p_seqs) AND j.token = p_tokens[width_bucket(j.seq, p_seqs)]
              AND j.state IN (0, 3) AND num_nonnulls(j.flow) = 1
              AND coalesce(p_actions[width_bucket(j.seq, p_seqs)], 0) IN (0, 3)
            RETURNING width_bucket(j.seq, p_seqs) AS place, j.seq, j.key
        )
        SELECT array_agg(kept.place), array_agg(kept.key) FILTER (WHERE kept.key IS NOT NULL),
               array_agg(kept.seq)
        INTO v_some, v_more, v_old FROM kept;
        v_settled := v_settled || v_some;
        v_keys := v_keys || v_more;
        v_linked := v_linked || v_old;
    END IF;

    IF v_keys <> '{}' THEN
        PERFORM {schema}.free(p_queue, ARRAY(SELECT DISTINCT k FROM unnest(v_keys) AS k ORDER BY k),
                              v_now);
    END IF;
    IF v_cancelled IS NOT NULL THEN
        v_linked := v_linked || {schema}.end_alone(p_queue, v_cancelled, p_keep, v_now);
    END IF;
    IF v_linked IS NOT NULL THEN
        PERFORM {schema}.pass_links(p_queue, v_linked, NULL, NULL, p_keep, v_now);
    END IF;
    RETURN {schema}.missing(cardinality(p_seqs), v_settled);
END
$$;

-- The same for workers of version 3.
CREATE OR REPLACE FUNCTION {schema}.settle(
    p_queue text, p_seqs bigint[], p_tokens bigint[], p_actions smallint[],
    p_delays double precision[], p_errors text[], p_results text[], p_keyed boolean,
    p_keep boolean, p_now double precision
) RETURNS integer[]
LANGUAGE plpgsql
AS $$
BEGIN
    RETURN {schema}.settle(p_queue, p_seqs, p_tokens, p_actions, p_delays, p_errors, p_results,
                           NULL::double precision[], p_keyed, p_keep, p_now);
END
$$;

-- Cancel jobs: those that wait end, those that run are asked to. Returns the state that each is in
-- now.
CREATE OR REPLACE FUNCTION {schema}.cancel(
    p_queue text, p_seqs bigint[], p_keep boolean, p_now double precision
) RETURNS TABLE (seq bigint, state integer)
LANGUAGE plpgsql
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_now double precision := {schema}.now_or(p_now);
    v_seqs bigint[] := p_seqs;
    v_live bigint[];
    v_waiting bigint[];
    v_linked bigint[];
    v_held bigint[];
BEGIN
    -- A second time only for held jobs: those that were released meanwhile, and those that are
    -- cancelled now. Only there two cancels of the same jobs may wait in a circle; one is repeated.
    LOOP
        -- The front of a key before its blocked jobs, as all calls lock them. Held jobs are last.
        SELECT array_agg(l.seq), array_agg(l.seq) FILTER (WHERE l.state <> 3 OR l.since <= v_now)
        INTO v_live, v_waiting
        FROM (
            SELECT j.seq, j.state, j.since FROM {schema}.jobs AS j
            WHERE j.seq = ANY (v_seqs) AND j.queue = p_queue AND j.state < 4
              AND j.waits IS NULL
            ORDER BY j.state = 2, j.seq FOR UPDATE
        ) AS l;
        -- Two more, because one more is the token after a settlement.
        UPDATE {schema}.jobs AS j SET
            cancel = true,
            worker = CASE WHEN j.state = 3 AND j.since > v_now THEN j.worker END,
            token = j.token + CASE WHEN j.state = 3 AND j.since > v_now THEN 0 ELSE 2 END
        WHERE j.seq = ANY (v_live);
        SELECT array_agg(h.seq) INTO v_held FROM (
            SELECT j.seq FROM {schema}.jobs AS j
            WHERE j.seq = ANY (v_seqs) AND j.queue = p_queue AND num_nonnulls(j.flow) = 1
              AND j.state < 4
            EXCEPT SELECT l FROM unnest(v_live) AS l
        ) AS h;
        RETURN QUERY
            SELECT j.seq, CASE WHEN j.cancel AND (j.state <> 3 OR j.since <= v_now) THEN 6
                               ELSE j.state END
            FROM (SELECT unnest(v_seqs) AS seq EXCEPT SELECT unnest(v_held)) AS s
            CROSS JOIN LATERAL (
                SELECT t.seq, t.cancel, t.state, t.since FROM {schema}.jobs AS t
                WHERE t.seq = s.seq AND t.queue = p_queue OFFSET 0
            ) AS j;
        v_linked := NULL;
        IF v_waiting IS NOT NULL THEN
            v_linked := {schema}.end_alone(p_queue, v_waiting, p_keep, v_now);
        END IF;
        IF v_linked IS NOT NULL OR v_held IS NOT NULL THEN
            PERFORM {schema}.pass_links(p_queue, v_linked, NULL, v_held, p_keep, v_now);
        END IF;
        EXIT WHEN v_held IS NULL;
        v_seqs := v_held;
    END LOOP;
END
$$;

-- Delete ended jobs in these states, or all dead ones if p_seqs is NULL; cancel what waits for them.
CREATE FUNCTION {schema}.drop_ended(
    p_queue text, p_seqs bigint[], p_states smallint[], p_keep boolean, p_now double precision
) RETURNS bigint
LANGUAGE plpgsql
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
    v_count bigint;
    v_linked bigint[];
    v_flows text[];
BEGIN
    IF p_seqs IS NULL THEN
        WITH gone AS (
            DELETE FROM {schema}.jobs AS j WHERE j.queue = p_queue AND j.state = 4
            RETURNING j.seq, j.flow
        )
        SELECT count(*), array_agg(g.seq) FILTER (WHERE g.flow IS NOT NULL),
               array_agg(g.flow) FILTER (WHERE g.flow IS NOT NULL)
        INTO v_count, v_linked, v_flows FROM gone AS g;
    ELSE
        WITH gone AS (
            DELETE FROM {schema}.jobs AS j
            WHERE j.queue = p_queue AND j.seq = ANY (p_seqs)
              AND j.state >= 4 AND j.state = ANY (p_states)
            RETURNING j.seq, j.flow
        )
        SELECT count(*), array_agg(g.seq) FILTER (WHERE g.flow IS NOT NULL),
               array_agg(g.flow) FILTER (WHERE g.flow IS NOT NULL)
        INTO v_count, v_linked, v_flows FROM gone AS g;
    END IF;
    IF v_linked IS NOT NULL THEN
        PERFORM {schema}.pass_links(
            p_queue, v_linked, v_flows, NULL, p_keep, {schema}.now_or(p_now)
        );
        DELETE FROM {schema}.links AS l WHERE l.after = ANY (v_linked);
    END IF;
    RETURN v_count;
END
$$;

-- Delete the links of jobs that were deleted.
CREATE FUNCTION {schema}.unlink(p_seqs bigint[]) RETURNS void
LANGUAGE plpgsql
SET enable_seqscan = off
AS $$
BEGIN
    DELETE FROM {schema}.links AS l WHERE l.after = ANY (p_seqs);
END
$$;

-- The next jobs of a source, as before. Held jobs are shown as blocked, with the key that they will
-- have; those that will have none come first.
CREATE OR REPLACE FUNCTION {schema}.page(
    p_queue text, p_source text, p_name text, p_priority integer, p_since double precision,
    p_seq bigint, p_kinds text[], p_most integer, p_limit integer, p_show boolean,
    p_state integer, p_of_kinds text[], p_worker text, p_key text, p_error text,
    p_older double precision, p_newer double precision, p_now double precision
) RETURNS TABLE (
    seq bigint, kind text, payload text, key text, priority integer, attempt integer,
    created_at double precision, run_at double precision, "unique" text, headers text, token bigint,
    shown integer, since double precision, worker text, errors text, claimed_at double precision,
    progress text, cancel boolean, result text, state integer, n bigint, matched boolean
)
LANGUAGE plpgsql
SET enable_seqscan = off SET jit = off SET enable_bitmapscan = off SET enable_sort = off
SET max_parallel_workers_per_gather = 0
AS $$
DECLARE
    v_now double precision := {schema}.now_or(p_now);
    v_jobs text := 'SELECT j.* FROM {schema}.jobs AS j WHERE j.queue = $1 AND ';
    v_source text;
BEGIN
    v_source := CASE p_source
        WHEN 'ready' THEN
            '(' || v_jobs || 'j.state = 0 AND j.kind = $2 AND j.priority = $3
                AND (j.since, j.seq) > ($4, $5) ORDER BY j.since, j.seq LIMIT $7)
            UNION ALL (' || v_jobs || 'j.state = 0 AND j.kind = $2 AND j.priority < $3
                ORDER BY j.priority DESC, j.since, j.seq LIMIT $7)
            UNION ALL (' || CASE
                WHEN p_kinds IS NULL THEN v_jobs || 'j.state = 0 AND j.kind > $2
                    ORDER BY j.kind, j.priority DESC, j.since, j.seq LIMIT $7'
                ELSE 'SELECT l.* FROM unnest($6) AS k (kind) CROSS JOIN LATERAL ('
                    || v_jobs || 'j.state = 0 AND j.kind = k.kind
                    ORDER BY j.priority DESC, j.since, j.seq LIMIT $7) AS l LIMIT $7'
                END || ')'
        WHEN 'overdue' THEN v_jobs || 'j.state IN (1, 3) AND (j.since, j.seq) > ($4, $5)
            AND j.since <= $8 ORDER BY j.since, j.seq'
        WHEN 'leased' THEN v_jobs || 'j.state IN (1, 3) AND (j.since, j.seq) > ($4, $5)
            AND j.since > $8 ORDER BY j.since, j.seq'
        WHEN 'delayed' THEN v_jobs || 'j.state IN (1, 3) AND (j.since, j.seq) > ($4, $5)
            AND j.since > $8 ORDER BY j.since, j.seq'
        WHEN 'blocked' THEN
            'SELECT * FROM (
            (SELECT j.*, j.key AS name FROM {schema}.jobs AS j
                WHERE j.queue = $1 AND j.state = 2 AND (j.key, j.seq) > ($2, $5)
                ORDER BY j.key, j.seq LIMIT $7)
            UNION ALL
            (SELECT j.*, j.held_key AS name FROM {schema}.jobs AS j
                WHERE j.queue = $1 AND j.state = 2 AND j.key IS NULL
                  AND (j.held_key, j.seq) > ($2, $5)
                ORDER BY j.held_key, j.seq LIMIT $7)) AS both_parts ORDER BY name, seq'
        WHEN 'key' THEN
            'SELECT * FROM ((' || v_jobs || 'j.key = $13 AND j.key IS NOT NULL
                AND j.state IN (0, 1, 3) AND j.seq > $5 ORDER BY j.seq LIMIT $7)
            UNION ALL (' || v_jobs || 'j.key = $13 AND j.state = 2 AND j.seq > $5
                ORDER BY j.seq LIMIT $7)
            UNION ALL (' || v_jobs || 'j.held_key = $13 AND j.state = 2 AND j.key IS NULL
                AND j.seq > $5 ORDER BY j.seq LIMIT $7)) AS all_parts ORDER BY seq'
        WHEN 'dead' THEN v_jobs || 'j.state = 4 AND j.seq < $5 ORDER BY j.seq DESC'
        ELSE v_jobs || 'j.state IN (5, 6) AND (j.since, j.seq) < ($4, $5)
            ORDER BY j.since DESC, j.seq DESC'
    END;
    RETURN QUERY EXECUTE '
        SELECT e.seq, e.kind, CASE WHEN $17 THEN left(e.payload, 201) END,
               coalesce(e.key, nullif(e.held_key, '''')), e.priority, e.attempt, e.created_at,
               e.run_at, e."unique", e.headers, e.token, e.shown, e.since, e.worker,
               e.errors::text, e.claimed_at, e.progress::text, e.cancel,
               CASE WHEN $17 THEN left(e.result, 201) END, e.state::integer, e.n, e.matched
        FROM (
            SELECT s.*, row_number() OVER () AS n, lead(1) OVER () IS NULL AS is_last,
                   ($10 IS NULL OR s.shown = $10)
                   AND ($11 IS NULL OR s.kind = ANY ($11))
                   AND ($12 IS NULL OR coalesce(s.worker = $12, false))
                   AND ($13 IS NULL OR coalesce(coalesce(s.key, s.held_key) = $13, false))
                   AND ($14 IS NULL OR position($14 IN coalesce(lower(split_part(
                       s.errors -> -1 ->> 2, chr(10) || chr(30), 1) COLLATE "C"), '''')) > 0)
                   AND ($15 IS NULL OR s.created_at <= $8 - $15)
                   AND ($16 IS NULL OR s.created_at > $8 - $16)
                   AND NOT (s.state >= 5 AND coalesce(s.expires_at <= $8, false)) AS matched
            FROM (
                SELECT b.*, CASE WHEN b.state IN (1, 3) AND b.since <= $8 THEN 0
                                 ELSE b.state END::integer AS shown
                FROM (' || v_source || ' LIMIT $7) AS b
            ) AS s
        ) AS e
        WHERE e.matched OR e.is_last
        LIMIT $9'
    USING p_queue, p_name, p_priority, p_since, p_seq, p_kinds, p_most, v_now, p_limit, p_state,
          p_of_kinds, p_worker, p_key, p_error, p_older, p_newer, p_show;
END
$$;
