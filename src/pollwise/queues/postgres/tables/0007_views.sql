-- Version 7: counts and pages that read a bounded number of rows, whatever the queue holds.
--
-- Only functions: no table, no index and no lock, so that this takes no time on a table of any size.
-- Counts are exact up to a limit. Exact counters would have to be written by every put, claim and
-- settlement: on SQLite that cost 5 to 17 % of the CPU time. Here, rows that all calls count in would
-- also make them wait for each other, and for the transactions of users who put in their own.

-- When the first ready job of each kind and priority became ready, without reading those between: the
-- first of a priority is its oldest.
CREATE FUNCTION {schema}.first_ready(p_queue text, p_most integer)
RETURNS TABLE (kind text, since double precision)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH RECURSIVE firsts (kind, priority, since) AS (
        (SELECT j.kind, j.priority, j.since FROM {schema}.jobs AS j
         WHERE j.queue = p_queue AND j.state = 0
         ORDER BY j.kind, j.priority DESC, j.since, j.seq LIMIT 1)
        UNION ALL
        SELECT next.kind, next.priority, next.since FROM firsts
        CROSS JOIN LATERAL (
            SELECT * FROM (
                (SELECT j.kind, j.priority, j.since FROM {schema}.jobs AS j
                 WHERE j.queue = p_queue AND j.state = 0
                   AND j.kind = firsts.kind AND j.priority < firsts.priority
                 ORDER BY j.priority DESC, j.since, j.seq LIMIT 1)
                UNION ALL
                (SELECT j.kind, j.priority, j.since FROM {schema}.jobs AS j
                 WHERE j.queue = p_queue AND j.state = 0 AND j.kind > firsts.kind
                 ORDER BY j.kind, j.priority DESC, j.since, j.seq LIMIT 1)
            ) AS either
            LIMIT 1
        ) AS next
    )
    SELECT f.kind, min(f.since) FROM (SELECT * FROM firsts LIMIT p_most) AS f GROUP BY f.kind;
END
$$;

-- The number of jobs in each state, up to p_most each, and whether there may be more. Overdue jobs
-- count as ready; those are the second row. A last row without a state has the age of the oldest
-- ready job.
CREATE FUNCTION {schema}.counts(p_queue text, p_most integer, p_now double precision)
RETURNS TABLE (state integer, count bigint, more boolean, age double precision)
LANGUAGE plpgsql
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_bitmapscan = off SET max_parallel_workers_per_gather = 0
AS $$
#variable_conflict use_column
DECLARE
    v_now double precision := {schema}.now_or(p_now);
BEGIN
    RETURN QUERY SELECT 0, count(*), count(*) = p_most, NULL::double precision FROM (
        SELECT 1 FROM {schema}.jobs AS j WHERE j.queue = p_queue AND j.state = 0 LIMIT p_most
    ) AS part;
    RETURN QUERY SELECT 0, count(*), count(*) = p_most, NULL::double precision FROM (
        SELECT 1 FROM {schema}.jobs AS j
        WHERE j.queue = p_queue AND j.state IN (1, 3) AND j.since <= v_now
        ORDER BY j.since LIMIT p_most
    ) AS part;
    RETURN QUERY
        SELECT s.state, count(*) FILTER (WHERE part.state = s.state), count(part.state) = p_most,
               NULL::double precision
        FROM (VALUES (1), (3)) AS s (state) LEFT JOIN (
            SELECT j.state::integer FROM {schema}.jobs AS j
            WHERE j.queue = p_queue AND j.state IN (1, 3) AND j.since > v_now
            ORDER BY j.since LIMIT p_most
        ) AS part ON true
        GROUP BY s.state ORDER BY s.state;
    RETURN QUERY SELECT 2, count(*), count(*) = p_most, NULL::double precision FROM (
        SELECT 1 FROM {schema}.jobs AS j WHERE j.queue = p_queue AND j.state = 2 LIMIT p_most
    ) AS part;
    RETURN QUERY SELECT 4, count(*), count(*) = p_most, NULL::double precision FROM (
        SELECT 1 FROM {schema}.jobs AS j WHERE j.queue = p_queue AND j.state = 4 LIMIT p_most
    ) AS part;
    RETURN QUERY
        SELECT s.state, count(*) FILTER (WHERE part.state = s.state), count(part.state) = p_most,
               NULL::double precision
        FROM (VALUES (5), (6)) AS s (state) LEFT JOIN (
            SELECT j.state::integer FROM {schema}.jobs AS j
            WHERE j.queue = p_queue AND j.state IN (5, 6)
            ORDER BY j.since DESC LIMIT p_most
        ) AS part ON true
        GROUP BY s.state ORDER BY s.state;
    RETURN QUERY SELECT NULL::integer, NULL::bigint, NULL::boolean, v_now - least(
        (SELECT min(f.since) FROM {schema}.first_ready(p_queue, 1000) AS f),
        (SELECT min(o.run_at) FROM (
            SELECT j.run_at FROM {schema}.jobs AS j
            WHERE j.queue = p_queue AND j.state IN (1, 3) AND j.since <= v_now
            ORDER BY j.since LIMIT 1000
        ) AS o)
    );
END
$$;

-- Counts by kind and state, and whether there may be more. p_ready: up to how many ready jobs are
-- counted wholly; if there are more, up to that many of each kind, and with more than three kinds fewer
-- of each. p_most: how many jobs that are not ready are read, in all states together; states with few
-- jobs are read wholly.
CREATE FUNCTION {schema}.counts_by_kind(
    p_queue text, p_ready integer, p_most integer, p_now double precision
) RETURNS TABLE (kind text, state integer, count bigint, age double precision, more boolean)
LANGUAGE plpgsql
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_bitmapscan = off SET max_parallel_workers_per_gather = 0
AS $$
#variable_conflict use_column
DECLARE
    v_now double precision := {schema}.now_or(p_now);
    v_kinds text[];
    v_firsts double precision[];
    v_each integer;
    v_left bigint := p_most;
    v_sizes bigint[];   -- overdue, later, blocked, dead, finished
    v_shares bigint[];
    v_at integer;
    v_parts integer := 5;
BEGIN
    SELECT array_agg(f.kind), array_agg(f.since) INTO v_kinds, v_firsts
    FROM {schema}.first_ready(p_queue, 1000) AS f;
    SELECT count(*) INTO v_each FROM (
        SELECT 1 FROM {schema}.jobs AS j WHERE j.queue = p_queue AND j.state = 0 LIMIT p_ready + 1
    ) AS part;
    IF v_each > p_ready THEN  -- else each kind is counted wholly
        v_each := greatest(p_ready / greatest(coalesce(cardinality(v_kinds), 0) / 2, 1), 100);
    END IF;
    RETURN QUERY
        SELECT k.kind, 0, least(c.count, v_each), v_now - k.since, c.count > v_each
        FROM unnest(v_kinds, v_firsts) AS k (kind, since)
        CROSS JOIN LATERAL (
            SELECT count(*) AS count FROM (
                SELECT 1 FROM {schema}.jobs AS j
                WHERE j.queue = p_queue AND j.state = 0 AND j.kind = k.kind LIMIT v_each + 1
            ) AS part
        ) AS c;

    SELECT array_agg(c.count ORDER BY c.place) INTO v_sizes
    FROM {schema}.counts(p_queue, p_most + 1, v_now) WITH ORDINALITY
        AS c (state, count, more, age, place)
    WHERE c.state IS NOT NULL;
    v_sizes := ARRAY[v_sizes[2], v_sizes[3] + v_sizes[4], v_sizes[5], v_sizes[6],
                     v_sizes[7] + v_sizes[8]];
    v_shares := v_sizes;
    FOR v_at IN SELECT s.at FROM unnest(v_sizes) WITH ORDINALITY AS s (size, at) ORDER BY s.size LOOP
        -- At least one, because a part without a row could not say that there are more.
        v_shares[v_at] := least(v_sizes[v_at], greatest(v_left / v_parts, 1));
        v_left := v_left - v_shares[v_at];
        v_parts := v_parts - 1;
    END LOOP;

    RETURN QUERY
        SELECT part.kind, 0, count(*), v_now - min(part.run_at), v_sizes[1] > v_shares[1] FROM (
            SELECT j.kind, j.run_at FROM {schema}.jobs AS j
            WHERE j.queue = p_queue AND j.state IN (1, 3) AND j.since <= v_now
            ORDER BY j.since LIMIT v_shares[1]
        ) AS part GROUP BY part.kind;
    RETURN QUERY
        SELECT part.kind, part.state, count(*), NULL::double precision, v_sizes[2] > v_shares[2]
        FROM (
            SELECT j.kind, j.state::integer FROM {schema}.jobs AS j
            WHERE j.queue = p_queue AND j.state IN (1, 3) AND j.since > v_now
            ORDER BY j.since LIMIT v_shares[2]
        ) AS part GROUP BY part.kind, part.state;
    RETURN QUERY
        SELECT part.kind, 2, count(*), NULL::double precision, v_sizes[3] > v_shares[3] FROM (
            SELECT j.kind FROM {schema}.jobs AS j
            WHERE j.queue = p_queue AND j.state = 2 LIMIT v_shares[3]
        ) AS part GROUP BY part.kind;
    RETURN QUERY
        SELECT part.kind, 4, count(*), NULL::double precision, v_sizes[4] > v_shares[4] FROM (
            SELECT j.kind FROM {schema}.jobs AS j
            WHERE j.queue = p_queue AND j.state = 4 ORDER BY j.seq DESC LIMIT v_shares[4]
        ) AS part GROUP BY part.kind;
    RETURN QUERY
        SELECT part.kind, part.state, count(*), NULL::double precision, v_sizes[5] > v_shares[5]
        FROM (
            SELECT j.kind, j.state::integer FROM {schema}.jobs AS j
            WHERE j.queue = p_queue AND j.state IN (5, 6)
            ORDER BY j.since DESC LIMIT v_shares[5]
        ) AS part GROUP BY part.kind, part.state;
END
$$;

-- The next jobs of a source (see record.py) after a place, up to p_limit that match and p_most that
-- are examined. The last one examined is returned too, if it does not match, so that the caller knows
-- where to go on. p_show: with payloads and results.
-- The place: p_kind or p_key, p_priority, p_since and p_seq, as the order of the source needs them.
-- p_kinds: the kinds that follow p_kind; NULL for all. The rest is the filter; p_state is the state
-- that is shown.
CREATE FUNCTION {schema}.page(
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
        WHEN 'blocked' THEN v_jobs || 'j.state = 2 AND (j.key, j.seq) > ($2, $5)
            ORDER BY j.key, j.seq'
        WHEN 'key' THEN
            'SELECT * FROM ((' || v_jobs || 'j.key = $13 AND j.key IS NOT NULL
                AND j.state IN (0, 1, 3) AND j.seq > $5 ORDER BY j.seq LIMIT $7)
            UNION ALL (' || v_jobs || 'j.key = $13 AND j.state = 2 AND j.seq > $5
                ORDER BY j.seq LIMIT $7)) AS both_parts ORDER BY seq'
        WHEN 'dead' THEN v_jobs || 'j.state = 4 AND j.seq < $5 ORDER BY j.seq DESC'
        ELSE v_jobs || 'j.state IN (5, 6) AND (j.since, j.seq) < ($4, $5)
            ORDER BY j.since DESC, j.seq DESC'
    END;
    RETURN QUERY EXECUTE '
        SELECT e.seq, e.kind, CASE WHEN $17 THEN e.payload END, e.key, e.priority, e.attempt,
               e.created_at, e.run_at, e."unique", e.headers, e.token, e.shown, e.since, e.worker,
               e.errors::text, e.claimed_at, e.progress::text, e.cancel,
               CASE WHEN $17 THEN e.result END, e.state::integer, e.n, e.matched
        FROM (
            SELECT s.*, row_number() OVER () AS n, lead(1) OVER () IS NULL AS is_last,
                   ($10 IS NULL OR s.shown = $10)
                   AND ($11 IS NULL OR s.kind = ANY ($11))
                   AND ($12 IS NULL OR coalesce(s.worker = $12, false))
                   AND ($13 IS NULL OR coalesce(s.key = $13, false))
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

-- The queues that have jobs or notes: skips through the indexes instead of scanning them.
CREATE FUNCTION {schema}.names(p_most integer) RETURNS TABLE (name text)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET jit = off SET enable_bitmapscan = off
AS $$
DECLARE
    v_of text;
BEGIN
    FOREACH v_of IN ARRAY ARRAY[
        '{schema}.jobs AS j WHERE j.state = 0', '{schema}.jobs AS j WHERE j.state IN (1, 3)',
        '{schema}.jobs AS j WHERE j.state = 4', '{schema}.jobs AS j WHERE j.state IN (5, 6)',
        '{schema}.notes AS j WHERE true'
    ] LOOP
        RETURN QUERY EXECUTE '
            WITH RECURSIVE names (name) AS (
                (SELECT j.queue FROM ' || v_of || ' ORDER BY j.queue LIMIT 1)
                UNION ALL
                SELECT next.queue FROM names CROSS JOIN LATERAL (
                    SELECT j.queue FROM ' || v_of || ' AND j.queue > names.name
                    ORDER BY j.queue LIMIT 1
                ) AS next
            )
            SELECT name FROM names LIMIT $1'
        USING p_most;
    END LOOP;
END
$$;
