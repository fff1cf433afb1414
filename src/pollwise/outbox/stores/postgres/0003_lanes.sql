-- Version 3: lanes, delayed records, records that are put once, and replays.
--
-- A lane is an outbox of its own, named by the outbox, \x1e and the lane: claims, leases, retries and
-- dead records of a lane are those of an outbox. When a relay hands a record to its lanes, each gets a
-- copy with a seq of its own. Copies of a key are made in the order of the key, because its line is
-- leased meanwhile. The record itself stays, in the state 4, until no copy is left.
--
-- More states of a record: 4 in its lanes, 5 delayed until `since`.

-- The seq of the record that this is a copy of.
ALTER TABLE {schema}.outbox_records ADD COLUMN origin bigint;

ALTER TABLE {schema}.outbox_records ADD COLUMN "unique" text;

CREATE INDEX outbox_records_copies ON {schema}.outbox_records (origin) WHERE origin IS NOT NULL;

CREATE INDEX outbox_records_delayed ON {schema}.outbox_records (outbox, since, seq) WHERE state = 5;

CREATE UNIQUE INDEX outbox_records_unique ON {schema}.outbox_records (outbox, "unique")
    WHERE "unique" IS NOT NULL;

CREATE TABLE {schema}.outbox_lanes (
    outbox text COLLATE "C" NOT NULL,
    lane   text COLLATE "C" NOT NULL,
    PRIMARY KEY (outbox, lane)
);

-- The lanes of an outbox, one a line; NULL if it has none. A function, so that it is read after the
-- claim in whose statement it is called: a relay that claims a key must know of all its copies.
CREATE FUNCTION {schema}.outbox_lanes_of(p_outbox text) RETURNS text
LANGUAGE plpgsql
SET enable_seqscan = off
AS $$
BEGIN
    RETURN (
        SELECT string_agg(l.lane, chr(10) ORDER BY l.lane)
        FROM {schema}.outbox_lanes AS l WHERE l.outbox = p_outbox
    );
END
$$;

-- As outbox_put_all, for records that have more: [kind, payload, key, headers, delay in seconds, moment
-- in seconds since 1970, unique]. For a record whose `unique` is taken: the seq, kind and payload of the
-- record that has it.
CREATE FUNCTION {schema}.outbox_put_more(
    p_outbox text, p_records text, p_message text DEFAULT NULL, p_now double precision DEFAULT NULL
) RETURNS TABLE (id bigint, taken_kind text, taken_payload text)
LANGUAGE plpgsql
AS $$
DECLARE
    v_now double precision := {schema}.outbox_now(p_now);
    v_records json := p_records::json;
    v_seqs bigint[];
    v_made bigint[];
    v_ids bigint[];
BEGIN
    -- A delayed record needs no lock: when it is due, it appears as a retried one does.
    PERFORM {schema}.outbox_lock_keys(p_outbox, ARRAY(
        SELECT DISTINCT r ->> 2 FROM json_array_elements(v_records) AS r
        WHERE coalesce(v_now + (r ->> 4)::double precision, (r ->> 5)::double precision, v_now) <= v_now
    ));
    v_seqs := ARRAY(
        SELECT nextval('{schema}.outbox_seq')
        FROM generate_series(1, json_array_length(v_records))
    );
    v_ids := v_seqs;
    FOR v_try IN 1..100 LOOP
        WITH new AS (
            -- In the order of the uniques, so that two puts that share some never deadlock.
            INSERT INTO {schema}.outbox_records AS n
                (seq, created_at, since, state, outbox, line, key, kind, payload, headers, "unique")
            SELECT v_seqs[r.place], r.due, r.due, CASE WHEN r.due > v_now THEN 5 ELSE 0 END, p_outbox,
                   p_outbox || chr(31) || coalesce(r.each ->> 2, chr(1) || v_seqs[r.place]),
                   r.each ->> 2, r.each ->> 0, r.each ->> 1, nullif(r.each ->> 3, '{}'), r.each ->> 6
            FROM (
                SELECT e.each, e.place, greatest(v_now, coalesce(
                    v_now + (e.each ->> 4)::double precision, (e.each ->> 5)::double precision, v_now
                )) AS due
                FROM json_array_elements(v_records) WITH ORDINALITY AS e (each, place)
            ) AS r
            WHERE v_seqs[r.place] = v_ids[r.place]
              AND (v_made IS NULL OR v_seqs[r.place] <> ALL (v_made))
            ORDER BY r.each ->> 6 NULLS FIRST, r.place
            ON CONFLICT (outbox, "unique") WHERE "unique" IS NOT NULL DO NOTHING
            RETURNING n.seq
        )
        SELECT coalesce(v_made, '{}') || coalesce(array_agg(new.seq), '{}') INTO v_made FROM new;
        EXIT WHEN cardinality(v_made) = cardinality(v_seqs);
        v_ids := ARRAY(
            SELECT coalesce(CASE WHEN v_seqs[e.place] <> ALL (v_made) THEN (
                SELECT t.seq FROM {schema}.outbox_records AS t
                WHERE t.outbox = p_outbox AND t."unique" = e.each ->> 6 AND t."unique" IS NOT NULL
            ) END, v_seqs[e.place])
            FROM json_array_elements(v_records) WITH ORDINALITY AS e (each, place) ORDER BY e.place
        );
        -- Else the record that had the `unique` was completed meanwhile.
        EXIT WHEN NOT EXISTS (
            SELECT 1 FROM unnest(v_ids, v_seqs) AS i (id, seq)
            WHERE i.id = i.seq AND i.seq <> ALL (v_made)
        );
    END LOOP;
    IF p_message IS DISTINCT FROM '' AND cardinality(v_made) > 0 THEN
        PERFORM pg_notify({schema}.outbox_channel(p_outbox), coalesce(
            p_message,
            format('["hint","","%s",%s,null,0]', to_hex(v_made[1]), cardinality(v_made))
        ));
    END IF;
    RETURN QUERY
        SELECT i.id, t.kind, t.payload
        FROM unnest(v_ids) WITH ORDINALITY AS i (id, place)
        LEFT JOIN LATERAL (
            SELECT r.kind, r.payload FROM {schema}.outbox_records AS r
            WHERE r.seq = i.id AND i.id <> ALL (v_made) OFFSET 0
        ) AS t ON true
        ORDER BY i.place;
END
$$;

-- Make records ready (again), at their old place: delayed ones that are due, or kept ones. Needs the
-- turn of claims. A parked record needs a row of its key; a key in work finds it when its claim ends.
CREATE FUNCTION {schema}.outbox_enter(p_outbox text, p_seqs bigint[], p_now double precision)
RETURNS void
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_lines text[] := ARRAY(
        SELECT DISTINCT r.line FROM {schema}.outbox_records AS r WHERE r.seq = ANY (p_seqs) ORDER BY 1
    );
BEGIN
    INSERT INTO {schema}.outbox_keys (outbox, line, state, due)
    SELECT p_outbox, d.line, 0, p_now FROM unnest(v_lines) AS d (line) ORDER BY d.line COLLATE "C"
    ON CONFLICT (line) DO UPDATE SET line = excluded.line;  -- locks the row
    UPDATE {schema}.outbox_records AS r
    SET state = 1, since = p_now, retried = false, progress = NULL, error = NULL
    WHERE r.seq = ANY (p_seqs) AND r.state + 0 IN (3, 5);
END
$$;

-- Make delayed records ready that are due. `next`: seconds until the next one is due, or NULL.
-- `p_now` is returned as it was given, so that a claim in the same statement comes after this.
CREATE FUNCTION {schema}.outbox_promote(
    p_outbox text, p_now double precision, OUT next double precision, OUT now double precision
)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_now double precision := {schema}.outbox_now(p_now);
BEGIN
    now := p_now;
    SELECT r.since - v_now INTO next FROM {schema}.outbox_records AS r
    WHERE r.outbox = p_outbox AND r.state = 5 ORDER BY r.since LIMIT 1;
    IF next <= 0 THEN
        PERFORM pg_advisory_xact_lock({schema}.outbox_lock(p_outbox || chr(29)), 0);
        PERFORM {schema}.outbox_enter(p_outbox, ARRAY(
            SELECT r.seq FROM {schema}.outbox_records AS r
            WHERE r.outbox = p_outbox AND r.state = 5 AND r.since <= v_now
            ORDER BY r.since LIMIT 1000
        ), v_now);
        SELECT r.since - v_now INTO next FROM {schema}.outbox_records AS r
        WHERE r.outbox = p_outbox AND r.state = 5 ORDER BY r.since LIMIT 1;
    END IF;
END
$$;

-- Make kept records ready again, a limited number, in order, from p_after on. `last`: the last of them,
-- NULL if there are no more.
CREATE FUNCTION {schema}.outbox_replay(
    p_outbox text, p_kind text, p_key text, p_since double precision, p_until double precision,
    p_after bigint, p_now double precision, OUT replayed integer, OUT last bigint
)
LANGUAGE plpgsql
AS $$
DECLARE
    v_seqs bigint[];
BEGIN
    PERFORM pg_advisory_xact_lock({schema}.outbox_lock(p_outbox || chr(29)), 0);
    v_seqs := ARRAY(
        SELECT r.seq FROM {schema}.outbox_records AS r
        WHERE r.outbox = p_outbox AND r.state = 3 AND r.seq > p_after
          AND (p_kind IS NULL OR r.kind = p_kind) AND (p_key IS NULL OR r.key = p_key)
          AND (p_since IS NULL OR r.created_at >= p_since)
          AND (p_until IS NULL OR r.created_at < p_until)
        ORDER BY r.seq LIMIT 1000 FOR UPDATE
    );
    PERFORM {schema}.outbox_enter(p_outbox, v_seqs, {schema}.outbox_now(p_now));
    replayed := cardinality(v_seqs);
    last := v_seqs[replayed];
END
$$;

-- Complete the records of these that have no copies left.
CREATE FUNCTION {schema}.outbox_finish(p_seqs bigint[], p_keep boolean, p_now double precision)
RETURNS void
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_done bigint[];
BEGIN
    -- Two lanes that complete their copies at the same time take turns here, in the order of seq. The
    -- second sees that the other's copy is gone.
    PERFORM 1 FROM {schema}.outbox_records AS r
    WHERE r.seq = ANY (p_seqs) AND r.state + 0 = 4 ORDER BY r.seq + 0 FOR UPDATE;
    v_done := ARRAY(
        SELECT s FROM unnest(p_seqs) AS s
        WHERE NOT EXISTS (
            SELECT 1 FROM {schema}.outbox_records AS c WHERE c.origin = s OFFSET 0
        )
    );
    IF p_keep THEN
        UPDATE {schema}.outbox_records AS r SET state = 3, since = {schema}.outbox_now(p_now)
        WHERE r.seq = ANY (v_done) AND r.state + 0 = 4;
    ELSE
        DELETE FROM {schema}.outbox_records AS r WHERE r.seq = ANY (v_done) AND r.state + 0 = 4;
    END IF;
END
$$;

-- The number of the lock that keeps a lane from being removed while copies are made.
CREATE FUNCTION {schema}.outbox_lanes_lock(p_outbox text) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT hashtextextended('{schema}.lanes.' || p_outbox, 0)
$$;

-- End claims as outbox_settle does, and hand the completed records to their lanes: p_copies, p_of,
-- p_lanes and p_marks are parallel, the seq of a record, the place of its claim, a lane, and the progress
-- its copy begins with.
CREATE FUNCTION {schema}.outbox_fan_out(
    p_outbox text, p_keys text[], p_tokens bigint[], p_done bigint[], p_places integer[],
    p_actions smallint[], p_nexts bigint[], p_delays double precision[], p_errors text[],
    p_progress text[], p_block boolean, p_copies bigint[], p_of integer[], p_lanes text[],
    p_marks text[], p_now double precision, OUT lost integer[], OUT more integer
)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_now double precision := {schema}.outbox_now(p_now);
BEGIN
    PERFORM pg_advisory_xact_lock_shared({schema}.outbox_lanes_lock(p_outbox));
    SELECT s.lost, s.more INTO lost, more FROM {schema}.outbox_settle(
        p_outbox, p_keys, p_tokens, p_done, p_places, p_actions, p_nexts, p_delays, p_errors,
        p_progress, p_block, true, p_now
    ) AS s;
    IF lost IS NOT NULL THEN
        p_done := ARRAY(
            SELECT d.seq FROM unnest(p_done, p_places) AS d (seq, place)
            WHERE d.place <> ALL (lost)
        );
    END IF;
    INSERT INTO {schema}.outbox_lanes (outbox, lane)
    SELECT DISTINCT p_outbox, l.lane FROM unnest(p_lanes, p_of) AS l (lane, place)
    WHERE lost IS NULL OR l.place <> ALL (lost) ORDER BY l.lane ON CONFLICT DO NOTHING;
    INSERT INTO {schema}.outbox_records
        (seq, created_at, since, outbox, line, key, kind, payload, headers, progress, origin)
    SELECT c.new, c.created_at, v_now, c.lane, c.lane || chr(31) || coalesce(c.key, chr(1) || c.new),
           c.key, c.kind, c.payload, c.headers, c.mark, c.seq
    FROM (
        SELECT nextval('{schema}.outbox_seq') AS new, o.* FROM (
            SELECT r.*, p_outbox || chr(30) || m.lane AS lane, m.mark
            FROM unnest(p_copies, p_of, p_lanes, p_marks) AS m (seq, place, lane, mark)
            CROSS JOIN LATERAL (
                SELECT f.seq, f.created_at, f.key, f.kind, f.payload, f.headers
                FROM {schema}.outbox_records AS f WHERE f.seq = m.seq AND f.state + 0 = 3 OFFSET 0
            ) AS r
            WHERE lost IS NULL OR m.place <> ALL (lost)
            ORDER BY m.seq, m.lane
        ) AS o
        OFFSET 0
    ) AS c;
    UPDATE {schema}.outbox_records AS r SET state = 4
    WHERE r.seq = ANY (p_done) AND r.state + 0 = 3;
END
$$;

-- End claims of a lane as outbox_settle does; p_outbox is the lane's. Records whose last copy this was
-- are completed.
CREATE FUNCTION {schema}.outbox_settle_lane(
    p_outbox text, p_keys text[], p_tokens bigint[], p_done bigint[], p_places integer[],
    p_actions smallint[], p_nexts bigint[], p_delays double precision[], p_errors text[],
    p_progress text[], p_block boolean, p_keep boolean, p_now double precision,
    OUT lost integer[], OUT more integer
)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_origins bigint[] := ARRAY(
        SELECT DISTINCT r.origin + 0 FROM {schema}.outbox_records AS r WHERE r.seq = ANY (p_done)
    );
BEGIN
    SELECT s.lost, s.more INTO lost, more FROM {schema}.outbox_settle(
        p_outbox, p_keys, p_tokens, p_done, p_places, p_actions, p_nexts, p_delays, p_errors,
        p_progress, p_block, false, p_now
    ) AS s;
    PERFORM {schema}.outbox_finish(v_origins, p_keep, p_now);
END
$$;

-- As outbox_retry, for a lane: p_outbox is the lane's, and p_ids are those of the records, not of copies.
CREATE FUNCTION {schema}.outbox_retry_lane(
    p_outbox text, p_ids bigint[], p_keys text[], p_drop boolean, p_keep boolean,
    p_now double precision
) RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    v_seqs bigint[];
    v_origins bigint[];
    v_count bigint;
BEGIN
    IF p_ids IS NULL THEN
        SELECT coalesce(array_agg(r.seq), '{}'), array_agg(r.origin) INTO v_seqs, v_origins
        FROM {schema}.outbox_records AS r
        WHERE r.outbox = p_outbox AND r.state = 2 AND (p_keys IS NULL OR r.key = ANY (p_keys));
    ELSE
        SELECT coalesce(array_agg(r.seq), '{}'), array_agg(r.origin) INTO v_seqs, v_origins
        FROM {schema}.outbox_records AS r
        WHERE r.origin = ANY (p_ids) AND r.origin IS NOT NULL AND r.outbox || '' = p_outbox
          AND r.state + 0 = 2 AND (p_keys IS NULL OR r.key = ANY (p_keys));
    END IF;
    v_count := {schema}.outbox_retry(p_outbox, v_seqs, NULL, p_drop, p_now);
    IF p_drop AND v_count > 0 THEN
        PERFORM {schema}.outbox_finish(v_origins, p_keep, p_now);
    END IF;
    RETURN v_count;
END
$$;

-- Remove the lanes that have no copies, except those in p_lanes, which are in use.
CREATE FUNCTION {schema}.outbox_forget_lanes(p_outbox text, p_lanes text[]) RETURNS void
LANGUAGE plpgsql
SET enable_seqscan = off
AS $$
BEGIN
    IF pg_try_advisory_xact_lock({schema}.outbox_lanes_lock(p_outbox)) THEN
        DELETE FROM {schema}.outbox_lanes AS l
        WHERE l.outbox = p_outbox AND l.lane <> ALL (p_lanes)
          AND NOT EXISTS (SELECT 1 FROM {schema}.outbox_records AS r
                          WHERE r.outbox = p_outbox || chr(30) || l.lane AND r.state = 0)
          AND NOT EXISTS (SELECT 1 FROM {schema}.outbox_records AS r
                          WHERE r.outbox = p_outbox || chr(30) || l.lane AND r.state = 2)
          AND NOT EXISTS (SELECT 1 FROM {schema}.outbox_keys AS k
                          WHERE k.outbox = p_outbox || chr(30) || l.lane AND k.state < 4)
          AND NOT EXISTS (SELECT 1 FROM {schema}.outbox_keys AS k
                          WHERE k.outbox = p_outbox || chr(30) || l.lane AND k.state = 4);
    END IF;
END
$$;
