-- Version 1 of the outbox: its records, the keys that are in work, and functions for all calls, so
-- that a call is one round trip and one transaction, and any language can put.
--
-- States of a record: 0 new, 1 parked, 2 dead, 3 done. States of a key: 0 ready, 1 delayed by an
-- open transaction, 2 waiting for a retry, 3 leased, 4 blocked by a dead record. A key has a row
-- only while it is in one of these states. A *line* is what is claimed together: a key, or a record
-- without a key. Its name is the outbox, \x1f, and the key, or \x01 and the record's seq. It is one
-- column, so that a plan made for an empty table can use only one index. Times are seconds since
-- 1970 on the server's clock. Tests pass a `now` to the functions, to run in virtual time; all
-- others pass NULL.
--
-- ORDER within a key is the order of `seq`, which is drawn inside the put. If writers are serialised
-- by a lock of their own, it is the order of that lock. A record is claimed only when no record of
-- its key with a lower seq can appear any more:
--
--   put    (1) reads the last value of the sequence, its *floor*; (2) takes a shared advisory lock,
--          whose number is made of the key's hash and the floor, until its transaction ends;
--          (3) draws the seq, which is above the floor. (The very first seq is not, and has none
--          before it.)
--   claim  (1) reads the last value: nothing above it is claimed; (2) reads which of those locks
--          are held; (3) reads the records, in a new snapshot: records of a key with such a lock
--          are claimed only up to its floor.
--
-- Proof: take a record that a claim leases, with seq s, and another record of its key with r < s. r
-- was drawn before claim (1), so its lock was taken before. At claim (2) there are two cases. The
-- lock is still held: then its floor is below r, and s would not have been leased. Or its
-- transaction has ended: then the record, if committed, is visible at claim (3), because a server
-- shows committed rows before it releases locks. This is true for transactions of any isolation
-- level, for savepoints (a rollback removes both locks and records), and for prepared transactions,
-- whose locks stay. No one takes these locks in a conflicting mode, so writers never wait; and a
-- record never waits for a transaction that put after it.
--
-- CLAIMS without scans. Claims of an outbox take turns. Keys that are due are found by one index,
-- new records by another. A claim passes over the new records of a key that is in work; if these
-- are many, or the key will not be free soon, it parks them: they leave that index. So:
--
--   A key with parked records has a row. A claim that parks holds FOR SHARE on that row. A call that
--   deletes the row holds FOR UPDATE on it and then checks for remaining records of the key.
--
-- PLANS. A vacuum may have found a table empty. Then the planner takes any index of it to have one row,
-- and joins a batch by walking all of it. So a batch is read by `= ANY (array)`, or each by a LATERAL
-- look-up that cannot be made into a join. In a sorted array, `width_bucket(seq, array)` is the place
-- where other arrays have what belongs to it.
--
-- Locks: claims, retries and drops wait for their turn; settlements wait for rows of keys, in the
-- order of the keys. A claim waits for no row, so there are no deadlocks.
--
-- {schema} is replaced by the schema's name. All functions plan by index and never by scan, because
-- the statistics of such a table are always outdated.

CREATE SEQUENCE {schema}.outbox_seq CACHE 1;  -- cached values could be drawn below a floor

CREATE TABLE {schema}.outbox_records (
    seq        bigint PRIMARY KEY DEFAULT nextval('{schema}.outbox_seq'),
    created_at double precision NOT NULL,
    since      double precision NOT NULL,
    state      smallint NOT NULL DEFAULT 0,
    retried    boolean  NOT NULL DEFAULT false,
    outbox     text COLLATE "C" NOT NULL,
    line       text COLLATE "C" NOT NULL,
    key        text COLLATE "C",
    kind       text     NOT NULL,
    payload    text     NOT NULL,
    headers    text,
    progress   text,
    error      text
) WITH (
    -- Rows are deleted soon, so vacuum must run often, after a fixed number of rows.
    fillfactor = 90,
    vacuum_truncate = off,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_insert_scale_factor = 0,
    autovacuum_vacuum_insert_threshold = 100000,
    autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 100000,
    autovacuum_vacuum_cost_delay = 0
);
ALTER SEQUENCE {schema}.outbox_seq OWNED BY {schema}.outbox_records.seq;

-- seq + 0 keeps plans from reading all records by the primary key for the sake of its order.
-- `state + 0` below keeps lookups by primary key from scanning an index that seems small. Joins
-- could do that too, so rows are looked up by arrays.
CREATE INDEX outbox_records_new ON {schema}.outbox_records (outbox, (seq + 0))
    WHERE state = 0;
CREATE INDEX outbox_records_alone ON {schema}.outbox_records (outbox, (seq + 0))
    WHERE state = 0 AND key IS NULL;
CREATE INDEX outbox_records_live ON {schema}.outbox_records (line, (seq + 0))
    WHERE state < 2;
CREATE INDEX outbox_records_dead ON {schema}.outbox_records (outbox, (seq + 0))
    WHERE state = 2;
CREATE INDEX outbox_records_done ON {schema}.outbox_records (outbox, since, seq)
    WHERE state = 3;

-- due: when it can be claimed: the time of a retry or the end of a lease; for a ready key, since
--   when its next record waits.
-- first: the record that is leased first, that waits, or that is dead.
-- lapses: how many leases expired in a row.
CREATE TABLE {schema}.outbox_keys (
    due    double precision NOT NULL,
    token  bigint   NOT NULL DEFAULT 0,
    first  bigint   NOT NULL DEFAULT 0,
    lapses integer  NOT NULL DEFAULT 0,
    state  smallint NOT NULL,
    outbox text COLLATE "C" NOT NULL,
    line   text COLLATE "C" PRIMARY KEY,
    relay  text
) WITH (
    fillfactor = 80,
    vacuum_truncate = off,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 100000,
    autovacuum_vacuum_cost_delay = 0
);

CREATE INDEX outbox_keys_due ON {schema}.outbox_keys (outbox, due)
    WHERE state < 4;
CREATE INDEX outbox_keys_delayed ON {schema}.outbox_keys (outbox, due)
    WHERE state = 1;
CREATE INDEX outbox_keys_blocked ON {schema}.outbox_keys (outbox, line)
    WHERE state = 4;

CREATE TABLE {schema}.outbox_relays (
    outbox     text NOT NULL,
    relay      text NOT NULL,
    handlers   text NOT NULL,
    started_at double precision NOT NULL,
    seen_at    double precision NOT NULL,
    PRIMARY KEY (outbox, relay)
);

CREATE FUNCTION {schema}.outbox_now(p_now double precision) RETURNS double precision
LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(p_now, extract(epoch FROM clock_timestamp())::double precision)
$$;

-- The first number of an advisory lock: for a line; for all keys of an outbox (its name and \x1e);
-- or for the turn of claims (its name and \x1d).
CREATE FUNCTION {schema}.outbox_lock(p_what text) RETURNS integer
LANGUAGE sql IMMUTABLE AS $$
    SELECT hashtext(('{schema}.' || p_what) COLLATE "C")
$$;

-- The channel where the relays of an outbox listen.
CREATE FUNCTION {schema}.outbox_channel(p_outbox text) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT 'pollwise_outbox_'
        || left(encode(sha256(convert_to('{schema}.' || p_outbox, 'UTF8')), 'hex'), 16)
$$;

-- Take the locks of a put: see ORDER. A transaction that puts to more than 16 keys takes one lock
-- for all keys instead. A setting holds the locks it has taken; savepoints restore settings as they
-- restore locks.
CREATE FUNCTION {schema}.outbox_lock_keys(p_outbox text, p_keys text[]) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_taken integer[] := coalesce(nullif(current_setting('pollwise.outbox_locks', true), ''), '{}');
    v_before integer := cardinality(v_taken);
    v_all integer := {schema}.outbox_lock(p_outbox || chr(30));
    v_many boolean := cardinality(array_remove(p_keys, NULL)) > 16;
    v_floor integer;
    v_lock integer;
    v_key text;
BEGIN
    IF v_all = ANY (v_taken) THEN
        RETURN;
    END IF;
    -- The lower 32 bits, because the lock takes a signed integer.
    SELECT last_value::bit(32)::integer INTO v_floor FROM {schema}.outbox_seq;
    FOREACH v_key IN ARRAY p_keys LOOP
        v_lock := {schema}.outbox_lock(p_outbox || chr(31) || v_key);
        CONTINUE WHEN v_key IS NULL OR v_lock = ANY (v_taken);
        -- At once if there are many, because every claim reads all held locks.
        IF v_many OR cardinality(v_taken) >= 16 THEN
            v_lock := v_all;
        END IF;
        PERFORM pg_advisory_xact_lock_shared(v_lock, v_floor);
        v_taken := v_taken || v_lock;
        EXIT WHEN v_lock = v_all;
    END LOOP;
    IF cardinality(v_taken) > v_before THEN
        PERFORM set_config('pollwise.outbox_locks', v_taken::text, true);
    END IF;
END
$$;

-- Put records: a JSON array, each [kind, payload as JSON text, key or null, headers as JSON text or
-- null]. Returns their ids in order. p_message: the hint for the relays; NULL for the default, ''
-- for none, as a transaction that will be prepared needs it.
CREATE FUNCTION {schema}.outbox_put_all(
    p_outbox text, p_records text, p_message text DEFAULT NULL, p_now double precision DEFAULT NULL
) RETURNS SETOF bigint
LANGUAGE plpgsql
AS $$
DECLARE
    v_now double precision := {schema}.outbox_now(p_now);
    v_records json := p_records::json;
    v_seqs bigint[];
BEGIN
    PERFORM {schema}.outbox_lock_keys(
        p_outbox, ARRAY(SELECT DISTINCT r ->> 2 FROM json_array_elements(v_records) AS r)
    );
    v_seqs := ARRAY(
        SELECT nextval('{schema}.outbox_seq')
        FROM generate_series(1, json_array_length(v_records))
    );
    INSERT INTO {schema}.outbox_records
        (seq, created_at, since, outbox, line, key, kind, payload, headers)
    SELECT v_seqs[r.place], v_now, v_now, p_outbox,
           p_outbox || chr(31) || coalesce(r.each ->> 2, chr(1) || v_seqs[r.place]),
           r.each ->> 2, r.each ->> 0, r.each ->> 1, nullif(r.each ->> 3, '{}')
    FROM json_array_elements(v_records) WITH ORDINALITY AS r (each, place);
    IF p_message IS DISTINCT FROM '' AND cardinality(v_seqs) > 0 THEN
        PERFORM pg_notify({schema}.outbox_channel(p_outbox), coalesce(
            p_message,
            format('["hint","","%s",%s,null,0]', to_hex(v_seqs[1]), cardinality(v_seqs))
        ));
    END IF;
    RETURN QUERY SELECT s FROM unnest(v_seqs) AS s;
END
$$;

-- Put one record, from any language:
--   SELECT pollwise.outbox_put('default', 'order.placed', '{"id": 17}', 'order-17')
CREATE FUNCTION {schema}.outbox_put(
    p_outbox text, p_kind text, p_payload json, p_key text DEFAULT NULL,
    p_headers json DEFAULT NULL, p_message text DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql
AS $$
BEGIN
    IF p_outbox IS NULL OR p_payload IS NULL OR coalesce(p_kind, '') = '' THEN
        RAISE EXCEPTION 'outbox_put needs an outbox, a kind and a payload'
            USING ERRCODE = '22004', HINT = 'for an empty payload, give ''null''';
    ELSIF ascii(p_key) < 32 THEN
        RAISE EXCEPTION 'the key of a record must begin with a printable character'
            USING ERRCODE = '22023', HINT = 'for no key, give NULL';
    ELSIF json_typeof(p_headers) NOT IN ('object', 'null') THEN
        RAISE EXCEPTION 'the headers of a record must be a JSON object of strings'
            USING ERRCODE = '22023', HINT = 'for example ''{"tenant": "eu"}'', or NULL for none';
    END IF;
    RETURN (
        SELECT s FROM {schema}.outbox_put_all(
            p_outbox,
            json_build_array(
                json_build_array(p_kind, p_payload::text, p_key, p_headers::text))::text,
            p_message
        ) AS s
    );
END
$$;

-- Up to which seq records can be claimed, and the lower bounds that open transactions set, by the
-- hashes of their keys (as pg_locks shows them). Must be called before the snapshot that claims.
CREATE FUNCTION {schema}.outbox_bounds(
    p_outbox text, OUT last bigint, OUT last_keyed bigint, OUT hashes bigint[], OUT floors bigint[]
)
LANGUAGE plpgsql
AS $$
DECLARE
    v_lowers bigint[];
    v_newest bigint;
BEGIN
    SELECT s.last_value INTO last FROM {schema}.outbox_seq AS s;
    SELECT array_agg(l.hash), array_agg(l.lower) INTO hashes, v_lowers
    FROM (
        SELECT DISTINCT p.classid::bigint AS hash, p.objid::bigint AS lower
        FROM pg_locks AS p
        WHERE p.locktype = 'advisory' AND p.objsubid = 2 AND p.mode = 'ShareLock'
          AND p.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
    ) AS l;
    last_keyed := last;
    IF hashes IS NULL THEN
        RETURN;
    END IF;
    -- A lock holds only the lower bits of a floor: the floor is the newest seq with these bits.
    SELECT s.last_value INTO v_newest FROM {schema}.outbox_seq AS s;
    SELECT array_agg(f.hash), array_agg(f.floor),
           least(last, min(f.floor) FILTER (
               WHERE f.hash = ({schema}.outbox_lock(p_outbox || chr(30))::bigint & 4294967295)
           ))
    INTO hashes, floors, last_keyed
    FROM (
        SELECT l.hash, v_newest - max((v_newest - l.lower) & 4294967295) AS floor
        FROM unnest(hashes, v_lowers) AS l (hash, lower) GROUP BY l.hash
    ) AS f;
END
$$;

-- Up to which seq a line can be claimed. p_alone: the prefix of lines without a key.
CREATE FUNCTION {schema}.outbox_bound(
    p_line text, p_alone text, p_last bigint, p_last_keyed bigint, p_hashes bigint[],
    p_floors bigint[]
) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN p_last_keyed = p_last AND p_hashes IS NULL OR starts_with(p_line, p_alone) THEN p_last
        ELSE least(p_last_keyed, p_floors[array_position(
            p_hashes, {schema}.outbox_lock(p_line)::bigint & 4294967295
        )])
    END
$$;

-- Lease up to p_keys keys, with up to p_per_key records each. The last row has no seq; its `until`
-- says after how many seconds a poll may find more, if that is known.
CREATE FUNCTION {schema}.outbox_claim(
    p_outbox text, p_relay text, p_keys integer, p_per_key integer, p_lease double precision,
    p_message text, p_now double precision
) RETURNS TABLE (
    seq bigint, key text, kind text, payload text, headers text, created_at double precision,
    progress text, retried boolean, lapses integer, token bigint, until double precision
)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now double precision := {schema}.outbox_now(p_now);
    v_until double precision := v_now + p_lease;
    -- From the server's clock, whatever p_now is: never the same twice for a key, even if a server
    -- lost its last transactions.
    v_token bigint := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    v_turn integer := v_token & 3;
    v_b record;                 -- the bounds
    v_alone text := p_outbox || chr(31) || chr(1);
    v_due text[] := '{}';       -- lines that are due, locked; and since when
    v_dues double precision[];
    v_some text[];
    v_new text[] := '{}';       -- lines of new records that have no row; and since when
    v_new_ats double precision[] := '{}';
    v_found_new text[];
    v_found_ats double precision[];
    v_delayed text[];
    v_wanted integer;           -- how many new lines are wanted
    v_from bigint := 0;
    v_window integer := 2 * p_keys + 64;
    v_found integer;
    v_seqs bigint[];
    v_lines text[];
    v_states smallint[];
    v_ats double precision[];
    v_passed integer := 0;
    v_rounds integer := 0;
    v_taken integer;
    v_again double precision;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'outbox_claim needs a transaction that is read committed';
    END IF;
    IF p_message IS NOT NULL THEN
        PERFORM pg_notify({schema}.outbox_channel(p_outbox), p_message);
    END IF;
    IF NOT EXISTS (SELECT 1 FROM {schema}.outbox_records AS r
                   WHERE r.outbox = p_outbox AND r.state = 0)
       AND NOT EXISTS (SELECT 1 FROM {schema}.outbox_keys AS k
                       WHERE k.outbox = p_outbox AND k.state < 4 AND k.due <= v_now)
       AND NOT EXISTS (SELECT 1 FROM {schema}.outbox_keys AS k
                       WHERE k.outbox = p_outbox AND k.state = 1)
    THEN  -- nothing is written, and no turn is taken
        RETURN QUERY SELECT
            NULL::bigint, NULL::text, NULL::text, NULL::text, NULL::text, NULL::double precision,
            NULL::text, NULL::boolean, NULL::integer, NULL::bigint,
            (SELECT k.due - v_now FROM {schema}.outbox_keys AS k
             WHERE k.outbox = p_outbox AND k.state < 4 ORDER BY k.due LIMIT 1);
        RETURN;
    END IF;
    -- The turn lasts until the rows are sent, and a relay that hangs does not receive them. After
    -- the time of its lease the server closes the connection, and the next claim has its turn.
    PERFORM set_config(
        'tcp_user_timeout', greatest(least(p_lease, 86400) * 1000, 1000)::integer::text, true);
    PERFORM pg_advisory_xact_lock({schema}.outbox_lock(p_outbox || chr(29)), 0);
    v_b := {schema}.outbox_bounds(p_outbox);

    -- Keys that are due; and, if there is room, some that an open transaction delayed.
    SELECT coalesce(array_agg(d.line), '{}'), coalesce(array_agg(d.due), '{}') INTO v_due, v_dues
    FROM (
        SELECT k.line, k.due FROM {schema}.outbox_keys AS k
        WHERE k.outbox = p_outbox AND k.state < 4 AND k.due <= v_now
        ORDER BY k.due LIMIT p_keys FOR UPDATE SKIP LOCKED
    ) AS d;
    IF cardinality(v_due) < p_keys THEN
        SELECT array_agg(h.line) INTO v_some FROM (
            SELECT k.line FROM {schema}.outbox_keys AS k
            WHERE k.outbox = p_outbox AND k.state = 1 AND k.due > v_now
            ORDER BY k.due LIMIT least(p_keys - cardinality(v_due), 100) FOR UPDATE SKIP LOCKED
        ) AS h
        WHERE EXISTS (
            SELECT 1 FROM {schema}.outbox_records AS r
            WHERE r.line = h.line AND r.state < 2
              AND r.seq + 0 <= {schema}.outbox_bound(
                  h.line, v_alone, v_b.last, v_b.last_keyed, v_b.hashes, v_b.floors)
        );
        v_due := v_due || coalesce(v_some, '{}');
        v_dues := v_dues || array_fill(v_now, ARRAY[coalesce(cardinality(v_some), 0)]);
    END IF;

    -- New records, at least half of what is asked for; the oldest are chosen below.
    v_wanted := p_keys - least(cardinality(v_due), p_keys - (p_keys + v_turn % 2) / 2);
    WHILE cardinality(v_new) < v_wanted LOOP
        SELECT coalesce(array_agg(w.seq), '{}'), coalesce(array_agg(w.line), '{}'),
               coalesce(array_agg(w.state), '{}'), coalesce(array_agg(w.created_at), '{}')
        INTO v_seqs, v_lines, v_states, v_ats
        FROM (
            SELECT r.seq, r.line, r.created_at, k.state
            FROM (
                SELECT f.seq, f.line, f.created_at FROM {schema}.outbox_records AS f
                WHERE f.outbox = p_outbox AND f.state = 0
                  AND f.seq + 0 > v_from AND f.seq + 0 <= v_b.last_keyed
                ORDER BY f.seq + 0 LIMIT v_window
            ) AS r
            LEFT JOIN LATERAL (
                SELECT o.state FROM {schema}.outbox_keys AS o
                WHERE o.line = r.line OFFSET 0
            ) AS k ON true
        ) AS w;
        v_found := cardinality(v_seqs);
        EXIT WHEN v_found = 0;
        v_from := v_seqs[v_found];
        v_rounds := v_rounds + 1;

        SELECT coalesce(array_agg(n.line ORDER BY n.first) FILTER (WHERE n.first <= n.bound), '{}'),
               coalesce(array_agg(n.at ORDER BY n.first) FILTER (WHERE n.first <= n.bound), '{}'),
               coalesce(array_agg(n.line) FILTER (WHERE n.first > n.bound), '{}')
        INTO v_found_new, v_found_ats, v_delayed
        FROM (
            SELECT g.line, g.first, g.at, {schema}.outbox_bound(
                g.line, v_alone, v_b.last, v_b.last_keyed, v_b.hashes, v_b.floors) AS bound
            FROM (
                SELECT w.line, min(w.seq) AS first, min(w.at) AS at
                FROM unnest(v_seqs, v_lines, v_states, v_ats) AS w (seq, line, state, at)
                WHERE w.state IS NULL GROUP BY w.line
            ) AS g
            WHERE v_rounds = 1 OR g.line <> ALL (v_new)
        ) AS n;
        v_new := v_new || v_found_new;
        v_new_ats := v_new_ats || v_found_ats;

        -- An open transaction may add a record before these. The key is checked again soon.
        IF v_delayed <> '{}' THEN
            INSERT INTO {schema}.outbox_keys (outbox, line, state, due)
            SELECT p_outbox, d, 1, v_now + 0.05 FROM unnest(v_delayed) AS d
            ON CONFLICT DO NOTHING;
        END IF;

        -- A limited number of records of keys that are in work is passed over; the others, and
        -- those of keys that will probably not be free soon, are parked.
        v_passed := v_passed + v_found;
        SELECT array_agg(b.seq), array_agg(DISTINCT b.line) INTO v_seqs, v_some
        FROM unnest(v_seqs, v_lines, v_states) AS b (seq, line, state)
        WHERE b.state IN (1, 2, 4)
           OR (b.state IS NULL AND v_delayed <> '{}' AND b.line = ANY (v_delayed))
           OR (b.state IN (0, 3) AND v_passed > 4 * p_keys + 1000);
        IF v_seqs IS NOT NULL THEN
            v_some := ARRAY(
                SELECT k.line FROM {schema}.outbox_keys AS k
                WHERE k.line = ANY (v_some) FOR SHARE SKIP LOCKED
            );
            UPDATE {schema}.outbox_records AS r SET state = 1
            WHERE r.seq = ANY (v_seqs) AND r.line = ANY (v_some) AND r.state + 0 = 0;
        END IF;

        EXIT WHEN v_found < v_window;
        IF v_rounds = 4 THEN
            v_again := 0;
            EXIT;
        END IF;
        v_window := greatest(v_window, 1000);
    END LOOP;

    -- An open transaction with many keys delays all keys, but not records without a key.
    IF v_b.last_keyed < v_b.last AND cardinality(v_new) < v_wanted THEN
        v_new := v_new || ARRAY(
            SELECT f.line FROM {schema}.outbox_records AS f
            WHERE f.outbox = p_outbox AND f.state = 0 AND f.key IS NULL
              AND f.seq + 0 > v_b.last_keyed AND f.seq + 0 <= v_b.last
              AND (SELECT true FROM {schema}.outbox_keys AS k WHERE k.line = f.line) IS NULL
            ORDER BY f.seq + 0 LIMIT v_wanted - cardinality(v_new)
        );
    END IF;

    -- The oldest of both; but at least a quarter of each, or with few keys every fourth time, so
    -- that neither starves the other, whatever the clock does.
    IF cardinality(v_due) + cardinality(v_new) > p_keys THEN
        SELECT count(*) FILTER (WHERE a.due) INTO v_taken FROM (
            SELECT true AS due, d.at FROM unnest(v_dues) AS d (at)
            UNION ALL
            SELECT false, n.at FROM unnest(v_new_ats) AS n (at)
            ORDER BY 2 LIMIT p_keys
        ) AS a;
        v_taken := greatest(v_taken, (p_keys + v_turn) / 4);
        v_taken := least(v_taken, p_keys - (p_keys + 3 - v_turn) / 4, cardinality(v_due));
        v_taken := greatest(v_taken, p_keys - cardinality(v_new));
        v_due := v_due[1:v_taken];
        v_new := v_new[1:p_keys - v_taken];
    END IF;
    RETURN QUERY
        WITH run AS MATERIALIZED (
            SELECT r.*
            FROM unnest(v_due || v_new) AS c (line)
            CROSS JOIN LATERAL (
                SELECT f.*, sum(octet_length(f.payload)) OVER (
                    ORDER BY f.seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
                ) AS before
                FROM (
                    SELECT o.seq, o.line, o.kind, o.payload, o.headers, o.created_at, o.progress,
                           o.retried
                    FROM {schema}.outbox_records AS o
                    WHERE o.line = c.line AND o.state < 2
                      AND o.seq + 0 <= {schema}.outbox_bound(
                          c.line, v_alone, v_b.last, v_b.last_keyed, v_b.hashes, v_b.floors)
                    ORDER BY o.seq + 0 LIMIT p_per_key
                ) AS f
            ) AS r
            -- A claim of a key ends with the record that makes it this large (CLAIM_BYTES in
            -- base.py): hundreds of claims with large payloads would not fit into memory.
            WHERE r.before IS NULL OR r.before < 262144
        ), taken AS (
            INSERT INTO {schema}.outbox_keys AS k (outbox, line, state, due, token, first, relay)
            SELECT p_outbox, run.line, 3, v_until, v_token, min(run.seq), p_relay
            FROM run GROUP BY run.line
            ON CONFLICT (line) DO UPDATE SET
                state = 3, due = v_until, token = v_token, first = excluded.first, relay = p_relay,
                lapses = k.lapses + (k.state = 3)::integer
            WHERE k.due <= v_now OR k.state = 1
            RETURNING k.line, k.lapses
        )
        SELECT run.seq, substr(run.line, length(p_outbox) + 2), run.kind, run.payload, run.headers,
               run.created_at, run.progress, run.retried, taken.lapses, v_token, v_until
        FROM run JOIN taken ON taken.line = run.line;

    -- Keys that were due and had nothing: they wait for an open transaction, or have no records.
    v_taken := cardinality(v_new) + cardinality(v_due);
    IF v_due <> '{}' THEN
        v_some := ARRAY(
            SELECT k.line FROM {schema}.outbox_keys AS k
            WHERE k.line = ANY (v_due) AND k.token <> v_token AND k.due <= v_now
        );
        IF v_some <> '{}' THEN
            v_taken := v_taken - cardinality(v_some);
            SELECT coalesce(array_agg(s.line ORDER BY s.line COLLATE "C"), '{}'),
                   array_agg(r.created_at ORDER BY s.line COLLATE "C")
            INTO v_lines, v_ats
            FROM unnest(v_some) AS s (line)
            CROSS JOIN LATERAL (
                SELECT o.created_at FROM {schema}.outbox_records AS o
                WHERE o.line = s.line AND o.state < 2
                ORDER BY o.seq + 0 LIMIT 1
            ) AS r;
            UPDATE {schema}.outbox_keys AS k SET
                state = 1,
                -- The longer it has waited, the longer until the next check.
                due = v_now + least(greatest((v_now - v_ats[
                    width_bucket(k.line, v_lines COLLATE "C")]) / 4, 0.05), 1)
            WHERE k.line = ANY (v_lines);
            DELETE FROM {schema}.outbox_keys AS k
            WHERE k.line = ANY (v_some) AND k.due <= v_now;
        END IF;
    END IF;

    IF v_taken < p_keys AND v_again IS NULL THEN
        SELECT k.due - v_now INTO v_again FROM {schema}.outbox_keys AS k
        WHERE k.outbox = p_outbox AND k.state < 4 ORDER BY k.due LIMIT 1;
        IF v_again <= 0 THEN
            v_again := 0.02;  -- another call has locked what is due
        END IF;
    END IF;
    RETURN QUERY SELECT
        NULL::bigint, NULL::text, NULL::text, NULL::text, NULL::text, NULL::double precision,
        NULL::text, NULL::boolean, NULL::integer, NULL::bigint, v_again;
END
$$;

-- End claims. The arrays are parallel and sorted by key, except p_done, the seqs of completed
-- records, and p_places, the place of the claim of each. Actions are 0 give_back, 1 retry, 2 dead,
-- for the record in p_nexts; p_actions is NULL if all records were completed. `lost`: the places
-- (from 1) of claims whose lease is lost, NULL for none. `more`: how many keys have more records
-- after all records of their claim were completed.
CREATE FUNCTION {schema}.outbox_settle(
    p_outbox text, p_keys text[], p_tokens bigint[], p_done bigint[], p_places integer[],
    p_actions smallint[], p_nexts bigint[], p_delays double precision[], p_errors text[],
    p_progress text[], p_block boolean, p_keep boolean, p_now double precision,
    OUT lost integer[], OUT more integer
)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_now double precision := {schema}.outbox_now(p_now);
    v_lines text[] := ARRAY(SELECT p_outbox || chr(31) || k FROM unnest(p_keys) AS k);
    v_alone text := p_outbox || chr(31) || chr(1);
    v_ours integer[];
    v_more text[];
    v_since double precision[];
    v_over text[];
    v_nexts bigint[];
    v_places bigint[];
BEGIN
    SELECT coalesce(array_agg(s.place), '{}') INTO v_ours
    FROM unnest(v_lines, p_tokens) WITH ORDINALITY AS s (line, token, place)
    CROSS JOIN LATERAL (
        SELECT k.token, k.state FROM {schema}.outbox_keys AS k WHERE k.line = s.line FOR UPDATE
    ) AS k
    WHERE k.token = s.token AND k.state + 0 = 3;
    IF cardinality(v_ours) < cardinality(p_keys) THEN
        lost := ARRAY(
            SELECT generate_series(1, cardinality(p_keys)) EXCEPT SELECT unnest(v_ours) ORDER BY 1
        );
        p_done := ARRAY(
            SELECT d.seq FROM unnest(p_done, p_places) AS d (seq, place)
            WHERE d.place = ANY (v_ours)
        );
        SELECT array_agg(s.line), array_agg(s.token),
               CASE WHEN p_actions IS NOT NULL THEN array_agg(s.action) END,
               array_agg(s.next), array_agg(s.delay), array_agg(s.error), array_agg(s.progress)
        INTO v_lines, p_tokens, p_actions, p_nexts, p_delays, p_errors, p_progress
        FROM unnest(v_lines, p_tokens, p_actions, p_nexts, p_delays, p_errors, p_progress)
            WITH ORDINALITY AS s (line, token, action, next, delay, error, progress, place)
        WHERE s.place = ANY (v_ours);
    END IF;

    IF p_keep THEN
        UPDATE {schema}.outbox_records AS r SET state = 3, since = v_now, retried = false
        WHERE r.seq = ANY (p_done) AND r.state + 0 < 2;
    ELSE
        DELETE FROM {schema}.outbox_records AS r
        WHERE r.seq = ANY (p_done) AND r.state + 0 < 2;
    END IF;

    IF p_actions IS NOT NULL THEN
        SELECT array_agg(s.next ORDER BY s.next), array_agg(s.place ORDER BY s.next)
        INTO v_nexts, v_places
        FROM unnest(p_actions, p_nexts, p_errors, p_progress)
            WITH ORDINALITY AS s (action, next, error, progress, place)
        WHERE s.next IS NOT NULL
          AND (s.action = 2 OR s.error IS NOT NULL OR s.progress IS NOT NULL);
        UPDATE {schema}.outbox_records AS r SET
            (state, since, error, progress, retried) = (
                SELECT CASE WHEN p_actions[s.place] = 2 THEN 2 ELSE r.state END,
                       CASE WHEN p_actions[s.place] = 2 THEN v_now ELSE r.since END,
                       coalesce(p_errors[s.place], r.error),
                       coalesce(p_progress[s.place], r.progress),
                       r.retried AND p_progress[s.place] IS NULL
                FROM (SELECT v_places[width_bucket(r.seq, v_nexts)] AS place OFFSET 0) AS s
            )
        WHERE r.seq = ANY (v_nexts) AND r.state + 0 < 2;
        SELECT array_agg(s.line ORDER BY s.line COLLATE "C"),
               array_agg(s.place ORDER BY s.line COLLATE "C")
        INTO v_over, v_places
        FROM unnest(v_lines, p_actions) WITH ORDINALITY AS s (line, action, place)
        WHERE s.action = 1 OR (s.action = 2 AND p_block AND NOT starts_with(s.line, v_alone));
        UPDATE {schema}.outbox_keys AS k SET
            token = k.token + 1, relay = NULL, lapses = 0,
            (state, first, due) = (
                SELECT 2 * p_actions[s.place], p_nexts[s.place],
                       CASE p_actions[s.place] WHEN 1 THEN v_now + p_delays[s.place]
                            ELSE 'infinity' END
                FROM (
                    SELECT v_places[width_bucket(k.line, v_over COLLATE "C")] AS place OFFSET 0
                ) AS s
            )
        WHERE k.line = ANY (v_over);
    END IF;

    -- The other keys are free: those with more records stay, and are due since the next was put.
    SELECT coalesce(array_agg(f.line ORDER BY f.line COLLATE "C") FILTER (WHERE f.at IS NOT NULL),
                    '{}'),
           array_agg(f.at ORDER BY f.line COLLATE "C") FILTER (WHERE f.at IS NOT NULL),
           coalesce(array_agg(f.line) FILTER (WHERE f.at IS NULL), '{}'),
           count(*) FILTER (WHERE f.at IS NOT NULL AND f.next IS NULL)
    INTO v_more, v_since, v_over, more
    FROM (
        SELECT s.line, s.next,
               (SELECT r.created_at FROM {schema}.outbox_records AS r
                WHERE r.line = s.line AND r.state < 2 ORDER BY r.seq + 0 LIMIT 1) AS at
        FROM unnest(v_lines, p_actions, p_nexts) AS s (line, action, next)
        WHERE coalesce(s.action, 0) = 0
           OR (s.action = 2 AND (NOT p_block OR starts_with(s.line, v_alone)))
    ) AS f;
    IF v_more <> '{}' THEN
        UPDATE {schema}.outbox_keys AS k SET
            state = 0, token = k.token + 1, relay = NULL, lapses = 0,
            due = least(v_since[width_bucket(k.line, v_more COLLATE "C")], v_now)
        WHERE k.line = ANY (v_more);
    END IF;
    IF v_over <> '{}' THEN
        DELETE FROM {schema}.outbox_keys AS k WHERE k.line = ANY (v_over);
    END IF;
END
$$;

-- Renew leases; one that expired is renewed too, unless another relay has claimed the key. The
-- arrays are parallel and sorted by key. Returns the places of lost claims, or NULL for none.
CREATE FUNCTION {schema}.outbox_renew(
    p_outbox text, p_keys text[], p_tokens bigint[], p_lease double precision,
    p_now double precision
) RETURNS integer[]
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET enable_hashjoin = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_until double precision := {schema}.outbox_now(p_now) + p_lease;
    v_ours integer[];
    v_lines text[];
BEGIN
    SELECT coalesce(array_agg(s.place), '{}'), array_agg(s.line) INTO v_ours, v_lines
    FROM (
        SELECT g.token, g.place, p_outbox || chr(31) || g.key AS line
        FROM unnest(p_keys, p_tokens) WITH ORDINALITY AS g (key, token, place)
    ) AS s
    CROSS JOIN LATERAL (
        SELECT k.token, k.state FROM {schema}.outbox_keys AS k WHERE k.line = s.line FOR UPDATE
    ) AS k
    WHERE k.token = s.token AND k.state + 0 = 3;
    UPDATE {schema}.outbox_keys AS k SET due = v_until WHERE k.line = ANY (v_lines);
    IF cardinality(v_ours) = cardinality(p_keys) THEN
        RETURN NULL;
    END IF;
    RETURN ARRAY(
        SELECT generate_series(1, cardinality(p_keys)) EXCEPT SELECT unnest(v_ours) ORDER BY 1
    );
END
$$;

-- Make dead records ready again, or delete them (p_drop): by seqs or by keys, or all. Their keys
-- continue. Returns how many.
CREATE FUNCTION {schema}.outbox_retry(
    p_outbox text, p_seqs bigint[], p_keys text[], p_drop boolean, p_now double precision
) RETURNS bigint
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_now double precision := {schema}.outbox_now(p_now);
    v_seqs bigint[];
    v_lines text[];
BEGIN
    PERFORM pg_advisory_xact_lock({schema}.outbox_lock(p_outbox || chr(29)), 0);
    IF p_seqs IS NULL THEN
        SELECT coalesce(array_agg(r.seq), '{}'), array_agg(DISTINCT r.line) INTO v_seqs, v_lines
        FROM {schema}.outbox_records AS r
        WHERE r.outbox = p_outbox AND r.state = 2 AND (p_keys IS NULL OR r.key = ANY (p_keys));
    ELSE
        SELECT coalesce(array_agg(r.seq), '{}'), array_agg(DISTINCT r.line) INTO v_seqs, v_lines
        FROM {schema}.outbox_records AS r
        WHERE r.seq = ANY (p_seqs) AND r.outbox = p_outbox AND r.state + 0 = 2
          AND (p_keys IS NULL OR r.key = ANY (p_keys));
    END IF;
    IF v_seqs = '{}' THEN
        RETURN 0;
    END IF;
    PERFORM 1 FROM unnest(v_lines) AS d (line)
    CROSS JOIN LATERAL (
        SELECT k.line FROM {schema}.outbox_keys AS k WHERE k.line = d.line FOR UPDATE
    ) AS k;
    IF p_drop THEN
        DELETE FROM {schema}.outbox_records AS r WHERE r.seq = ANY (v_seqs);
        UPDATE {schema}.outbox_keys AS k SET state = 0, due = v_now
        WHERE k.line = ANY (v_lines) AND k.state + 0 = 4
          AND k.first = ANY (v_seqs);
    ELSE
        UPDATE {schema}.outbox_records AS r SET state = 1, since = v_now, retried = true
        WHERE r.seq = ANY (v_seqs);
        -- A parked record needs a row of its key; a key in work finds it when its claim ends.
        INSERT INTO {schema}.outbox_keys AS k (outbox, line, state, due)
        SELECT p_outbox, d.line, 0, v_now FROM unnest(v_lines) AS d (line) ORDER BY d.line
        ON CONFLICT (line) DO UPDATE SET state = 0, due = v_now
        WHERE k.state = 4 AND k.first = ANY (v_seqs);
    END IF;
    RETURN cardinality(v_seqs);
END
$$;
