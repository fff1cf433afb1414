-- Version 3: notes, small named records of a queue beside its jobs; claims leave out what is paused.
--
-- topic: pauses (name: a kind, or '' for the whole queue), workers or orders.
-- value: JSON. until: when it counts as gone; NULL: never.
--
-- The function `claim` of version 2 is replaced, so that workers of that version respect pauses too.
-- Everybody may read the names of notes, so that a role that was granted the tables of version 2 can
-- go on claiming.

CREATE TABLE {schema}.notes (
    queue text NOT NULL,
    topic text NOT NULL,
    name  text NOT NULL,
    value text NOT NULL,
    until double precision,
    PRIMARY KEY (queue, topic, name)
);
GRANT SELECT (queue, topic, name) ON {schema}.notes TO PUBLIC;
CREATE INDEX notes_until ON {schema}.notes (queue, topic, until) WHERE until IS NOT NULL;

-- Write a note, or delete it if p_value is NULL, and delete some of its topic that are gone. Returns
-- whether it was written (there are fewer than p_most others) or was there to delete, and the value
-- of the note of the same name in p_answer. Only a new note is counted against the others.
CREATE FUNCTION {schema}.note(
    p_queue text, p_topic text, p_name text, p_value text, p_ttl double precision, p_most integer,
    p_answer text, p_now double precision, OUT done boolean, OUT answer text
)
LANGUAGE plpgsql
SET enable_seqscan = off
AS $$
DECLARE
    v_now double precision := {schema}.now_or(p_now);
BEGIN
    -- Those that another call deletes or renews meanwhile are left to it, so that calls never wait
    -- for each other in a circle.
    DELETE FROM {schema}.notes AS n
    WHERE n.queue = p_queue AND n.topic = p_topic AND n.name = ANY (ARRAY(
        SELECT g.name FROM {schema}.notes AS g
        WHERE g.queue = p_queue AND g.topic = p_topic AND g.until <= v_now
        ORDER BY g.until LIMIT 100 FOR UPDATE SKIP LOCKED
    ));
    IF p_value IS NULL THEN
        DELETE FROM {schema}.notes AS n
        WHERE n.queue = p_queue AND n.topic = p_topic AND n.name = p_name;
    ELSE
        UPDATE {schema}.notes AS n SET value = p_value, until = v_now + p_ttl
        WHERE n.queue = p_queue AND n.topic = p_topic AND n.name = p_name;
        IF NOT FOUND THEN
            INSERT INTO {schema}.notes AS n (queue, topic, name, value, until)
            SELECT p_queue, p_topic, p_name, p_value, v_now + p_ttl
            WHERE (SELECT count(*) FROM {schema}.notes AS o
                   WHERE o.queue = p_queue AND o.topic = p_topic
                     AND (o.until IS NULL OR o.until > v_now)) < p_most
            ON CONFLICT (queue, topic, name)
                DO UPDATE SET value = excluded.value, until = excluded.until;
        END IF;
    END IF;
    done := FOUND;
    SELECT n.value INTO answer FROM {schema}.notes AS n
    WHERE n.queue = p_queue AND n.topic = p_answer AND n.name = p_name
      AND (n.until IS NULL OR n.until > v_now);
END
$$;

-- Put one ready job without a key and a `unique`, and without a hint, in less time than `put` takes.
-- Returns its id; or NULL, if its kind has limits: then `put` has to do it.
CREATE FUNCTION {schema}.put_one(
    p_queue text, p_kind text, p_payload text, p_priority integer, p_headers text,
    p_now double precision
) RETURNS bigint
LANGUAGE plpgsql
SET enable_seqscan = off
AS $$
DECLARE
    v_now double precision := coalesce(
        p_now, extract(epoch FROM statement_timestamp())::double precision);
    v_number xid8 := pg_current_xact_id();  -- before it looks at limits: they wait for it
    v_seq bigint;
BEGIN
    IF EXISTS (SELECT 1 FROM {schema}.notes AS n
               WHERE n.queue = p_queue AND n.topic = 'limits' AND n.name = p_kind) THEN
        RETURN NULL;
    END IF;
    INSERT INTO {schema}.jobs
        (queue, kind, payload, priority, headers, state, since, run_at, created_at)
    VALUES (p_queue, p_kind, p_payload, p_priority, p_headers, 0, v_now, v_now, v_now)
    RETURNING seq INTO v_seq;
    RETURN v_seq;
END
$$;

-- Lease up to p_limit jobs that are not paused; or one suspect, alone. p_ahead: some will wait before they start. A last
-- row without a seq says in `until` after how many seconds another claim may find more, if that is
-- known, and in `attempt` whether the job is a suspect: 1, else 0.
CREATE OR REPLACE FUNCTION {schema}.claim(
    p_queue text, p_worker text, p_limit integer, p_lease double precision, p_kinds text[],
    p_keep boolean, p_ahead boolean, p_channel text, p_message text, p_now double precision
) RETURNS TABLE (
    seq bigint, kind text, payload text, key text, priority integer, attempt integer,
    created_at double precision, run_at double precision, "unique" text, headers text,
    token bigint, until double precision
)
LANGUAGE plpgsql
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_now double precision := {schema}.now_or(p_now);
    v_until double precision := v_now + p_lease;
    -- Never the same twice, even if a server lost its last moments, because time has moved on.
    v_token bigint := (v_now * 1000000)::bigint;
    v_kinds text[] := p_kinds;
    v_some text[];
    v_counts integer[];
    v_left integer := p_limit;
    v_wanted integer;
    v_found integer;
    v_free bigint[];
    v_keyed bigint[];
    v_open integer;
    v_rounds integer := 0;
    v_promoted integer;
    v_cancelled bigint[];
    v_again double precision;
    v_suspect boolean := false;
    v_paused boolean;
BEGIN
    IF p_message IS NOT NULL THEN
        PERFORM pg_notify(p_channel, p_message);
    END IF;

    -- Due jobs: delayed ones, and leased ones whose lease ran out.
    WITH promoted AS (
        UPDATE {schema}.jobs AS j SET
            state = 0,
            since = j.run_at,
            lapsed = CASE j.state WHEN 3 THEN j.token END,
            errors = CASE j.state
                WHEN 3 THEN {schema}.with_error(
                    j.errors, j.since, j.attempt, 'the lease of ' || j.worker || ' ran out')
                ELSE j.errors END,
            worker = CASE WHEN j.cancel THEN j.worker END
        FROM (
            SELECT d.seq FROM {schema}.jobs AS d
            WHERE d.queue = p_queue AND d.state IN (1, 3) AND d.since <= v_now
            ORDER BY d.since LIMIT 1000 FOR NO KEY UPDATE SKIP LOCKED
        ) AS due
        WHERE j.seq = due.seq
        RETURNING j.seq, j.cancel
    )
    -- Whether anything is paused is read by the same statement, because each statement has a cost.
    SELECT count(*), array_agg(p.seq) FILTER (WHERE p.cancel), EXISTS (
        SELECT 1 FROM {schema}.notes AS n WHERE n.queue = p_queue AND n.topic = 'pauses'
    )
    INTO v_promoted, v_cancelled, v_paused
    FROM promoted AS p;
    IF v_cancelled IS NOT NULL THEN
        PERFORM {schema}.end_cancelled(p_queue, v_cancelled, p_keep, v_now);
    END IF;

    IF v_kinds IS NULL THEN  -- skips through the index instead of scanning it
        v_kinds := ARRAY(
            WITH RECURSIVE each (kind) AS (
                (SELECT j.kind FROM {schema}.jobs AS j WHERE j.queue = p_queue AND j.state = 0
                 ORDER BY j.kind LIMIT 1)
                UNION ALL
                SELECT (SELECT j.kind FROM {schema}.jobs AS j
                        WHERE j.queue = p_queue AND j.state = 0 AND j.kind > each.kind
                        ORDER BY j.kind LIMIT 1)
                FROM each WHERE each.kind IS NOT NULL
            )
            SELECT each.kind FROM each WHERE each.kind IS NOT NULL
        );
    END IF;

    IF v_paused THEN
        v_kinds := ARRAY(
            SELECT k FROM unnest(v_kinds) AS k WHERE NOT EXISTS (
                SELECT 1 FROM {schema}.notes AS n
                WHERE n.queue = p_queue AND n.topic = 'pauses' AND n.name IN ('', k)
            )
        );
    END IF;

    -- A suspect is taken alone.
    SELECT ARRAY[s.seq] INTO v_keyed FROM {schema}.jobs AS s
    WHERE s.queue = p_queue AND s.state = 0 AND s.lapses > 0 AND s.lapsed = s.token
      AND s.kind = ANY (v_kinds)
    ORDER BY s.priority DESC, s.since, s.seq LIMIT 1
    FOR NO KEY UPDATE SKIP LOCKED;
    IF v_keyed IS NOT NULL THEN
        -- One without a key has no others at its front, so it can be leased.
        SELECT l.leasable, CASE WHEN l.open > 0 THEN 0.01 END INTO v_free, v_again
        FROM {schema}.leasable(p_queue, v_keyed) AS l;
        v_suspect := v_free <> '{}';
    END IF;

    LOOP
        IF v_suspect THEN
            v_keyed := '{}';
            v_left := 1;
        ELSIF cardinality(v_kinds) = 1 THEN
            v_wanted := v_left;
            SELECT coalesce(array_agg(c.seq) FILTER (WHERE c.key IS NULL), '{}'),
                   coalesce(array_agg(c.seq) FILTER (WHERE c.key IS NOT NULL), '{}')
            INTO v_free, v_keyed
            FROM (
                SELECT j.seq, j.key FROM {schema}.jobs AS j
                WHERE j.queue = p_queue AND j.kind = v_kinds[1] AND j.state = 0
                  AND (j.lapses = 0 OR j.lapsed IS DISTINCT FROM j.token)
                ORDER BY j.priority DESC, j.since, j.seq LIMIT v_left
                FOR NO KEY UPDATE SKIP LOCKED
            ) AS c;
        ELSE
            -- First without locks: how many of each kind are among the best? So no more rows are
            -- locked than taken, and rows locked by others are skipped.
            SELECT array_agg(n.kind), array_agg(n.count), sum(n.count)
            INTO v_some, v_counts, v_wanted
            FROM (
                SELECT best.kind, count(*)::integer AS count
                FROM (
                    SELECT c.kind FROM unnest(v_kinds) AS k (kind)
                    CROSS JOIN LATERAL (
                        SELECT j.kind, j.priority, j.since, j.seq FROM {schema}.jobs AS j
                        WHERE j.queue = p_queue AND j.kind = k.kind AND j.state = 0
                          AND (j.lapses = 0 OR j.lapsed IS DISTINCT FROM j.token)
                        ORDER BY j.priority DESC, j.since, j.seq LIMIT v_left
                    ) AS c
                    ORDER BY c.priority DESC, c.since, c.seq LIMIT v_left
                ) AS best
                GROUP BY best.kind
            ) AS n;
            EXIT WHEN v_some IS NULL;
            SELECT coalesce(array_agg(c.seq) FILTER (WHERE c.key IS NULL), '{}'),
                   coalesce(array_agg(c.seq) FILTER (WHERE c.key IS NOT NULL), '{}')
            INTO v_free, v_keyed
            FROM unnest(v_some, v_counts) AS k (kind, count)
            CROSS JOIN LATERAL (
                SELECT j.seq, j.key FROM {schema}.jobs AS j
                WHERE j.queue = p_queue AND j.kind = k.kind AND j.state = 0
                  AND (j.lapses = 0 OR j.lapsed IS DISTINCT FROM j.token)
                ORDER BY j.priority DESC, j.since, j.seq LIMIT k.count
                FOR NO KEY UPDATE SKIP LOCKED
            ) AS c;
        END IF;
        v_found := cardinality(v_free) + cardinality(v_keyed);
        v_open := 0;
        IF v_keyed <> '{}' THEN
            SELECT v_free || l.leasable, l.open INTO v_free, v_open
            FROM {schema}.leasable(p_queue, v_keyed) AS l;
        END IF;
        RETURN QUERY
            UPDATE {schema}.jobs AS j SET
                state = 3, since = v_until, worker = p_worker,
                token = greatest(j.token + 1, v_token), claimed_at = v_now, progress = NULL,
                attempt = j.attempt
                    + CASE WHEN j.ahead AND j.lapsed = j.token THEN 0 ELSE 1 END,
                lapses = CASE WHEN j.lapsed = j.token THEN j.lapses + 1 ELSE 0 END,
                ahead = p_ahead AND NOT v_suspect
            FROM unnest(v_free) AS taken (seq)
            WHERE j.seq = taken.seq
            RETURNING j.seq, j.kind, j.payload, j.key, j.priority, j.attempt, j.created_at,
                      j.run_at, j."unique", j.headers, j.token, j.since;
        v_left := v_left - cardinality(v_free);
        v_rounds := v_rounds + 1;
        EXIT WHEN v_left = 0;
        IF v_open > 0 OR (v_found < v_wanted AND cardinality(v_kinds) > 1) THEN
            v_again := 0.01;  -- another transaction holds what this call skipped
            EXIT;
        END IF;
        EXIT WHEN v_found = cardinality(v_free);  -- else some were blocked instead
        IF v_rounds = 10 THEN
            v_again := 0;
            EXIT;
        END IF;
    END LOOP;

    IF v_left > 0 AND v_again IS NULL THEN
        SELECT min(j.since) - v_now INTO v_again FROM {schema}.jobs AS j
        WHERE j.queue = p_queue AND j.state IN (1, 3);
        IF v_again <= 0 AND v_promoted < 1000 THEN
            v_again := 0.1;  -- another transaction holds due jobs; ask again after a pause
        END IF;
    END IF;
    RETURN QUERY SELECT
        NULL::bigint, NULL::text, NULL::text, NULL::text, NULL::integer, v_suspect::integer,
        NULL::double precision, NULL::double precision, NULL::text, NULL::text, NULL::bigint,
        v_again;
END
$$;
