-- Version 10: limits of kinds, which are notes with the topic `limits` (see limits/record.py).
--
-- limit_group: the group of a job in the limits of its kind, from its header; '' for none, if the kind
--        had limits when the job was put, so that an index shows it; else NULL, which counts as ''. A
--        claim of a limited kind sets it on what it leases, so that this counts. If groups take turns,
--        claims set it on all jobs that were put before the kind had limits.
-- limit_turns: of each kind with limits, the note as it was read last, the `full_at` of its rate, and
--        the group that had the last turn, with how many more jobs it has in it. The last columns are
--        about passes: see `pass_over`.
-- limit_groups: the `full_at` of the groups of a kind. A row whose time is past is as no row.
-- limit_circle: the groups that claims examine; limits/plan.py describes it. limit_back: those that come
--        back into it, and when.
--
-- A claim locks the rows of its limited kinds in limit_turns, and then counts what is leased, in a
-- statement of its own, which sees what was committed before. So no two claims share a room. They
-- wait for nothing else while they hold these locks, so that there is no deadlock. A claim without
-- limited kinds takes no lock.
--
-- Statements ask for one group as a range, and order by it: else the planner could read the line of the
-- kind instead, past all jobs of other groups, because that has the same order. A group is given to a
-- function in the default collation: its other texts would get that of the group too, and no index on
-- a queue and a kind could be used.
--
-- `claim`, `put` and `put_replacing` are replaced, so that old workers keep limits too.

ALTER TABLE {schema}.jobs ADD COLUMN limit_group text COLLATE "C";

-- One index for two questions, because each index costs every put and claim a little: which groups
-- wait, and how many jobs of a kind or of a group are leased.
CREATE INDEX jobs_limited
    ON {schema}.jobs (queue, kind, state, limit_group, priority DESC, since, seq)
    WHERE state IN (0, 3) AND limit_group IS NOT NULL;

CREATE TABLE {schema}.limit_turns (
    queue           text NOT NULL,
    kind            text NOT NULL,
    note            text,
    most            integer,
    most_each       integer,
    step            double precision,
    burst           integer,
    step_each       double precision,
    burst_each      integer,
    grouped         boolean NOT NULL DEFAULT false,
    weights         jsonb,
    full_at         double precision NOT NULL DEFAULT 0,
    turn            text COLLATE "C" NOT NULL DEFAULT '',
    left_           integer NOT NULL DEFAULT 0,
    known_from      bigint,
    pass_at         double precision NOT NULL DEFAULT 0,
    entered         text COLLATE "C",
    swept           bigint NOT NULL DEFAULT 0,
    sweep_from      bigint,
    sweep_to        bigint,
    PRIMARY KEY (queue, kind)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE TABLE {schema}.limit_groups (
    queue       text NOT NULL,
    kind        text NOT NULL,
    limit_group text COLLATE "C" NOT NULL,
    full_at     double precision NOT NULL,
    PRIMARY KEY (queue, kind, limit_group)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- A group may be in the circle several times. So one that enters it waits for nobody: if its row is
-- locked by a claim, which may delete it, it adds another. It locks a row that stays with FOR KEY SHARE,
-- as others can do at the same time, and a claim deletes no row that is locked.
CREATE TABLE {schema}.limit_circle (
    queue       text NOT NULL,
    kind        text NOT NULL,
    limit_group text COLLATE "C" NOT NULL
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

CREATE INDEX limit_circle_groups ON {schema}.limit_circle (queue, kind, limit_group);

CREATE TABLE {schema}.limit_back (
    queue       text NOT NULL,
    kind        text NOT NULL,
    limit_group text COLLATE "C" NOT NULL,
    back_at     double precision NOT NULL,
    PRIMARY KEY (queue, kind, limit_group)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

CREATE INDEX limit_back_at ON {schema}.limit_back (queue, kind, back_at);

-- A group enters the circle when a job of it becomes ready or ceases to be leased, whatever statement
-- does that, if groups of its kind take turns. A transaction that sees old limits is one that `pass_over`
-- waits for; but not if it sees a snapshot from its beginning. A job that had ended gets the group ''.
CREATE FUNCTION {schema}.enter_circle() RETURNS trigger
LANGUAGE plpgsql
SET enable_seqscan = off
AS $$
DECLARE
    v_job {schema}.jobs := CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
BEGIN
    IF v_job.limit_group IS NULL THEN
        UPDATE {schema}.jobs AS j SET limit_group = '' WHERE j.seq = v_job.seq;
        RETURN NULL;
    END IF;
    IF NOT {schema}.takes_turns(v_job.queue, v_job.kind)
       AND current_setting('transaction_isolation') = 'read committed' THEN
        RETURN NULL;
    END IF;
    PERFORM 1 FROM {schema}.limit_circle AS c
    WHERE c.queue = v_job.queue AND c.kind = v_job.kind AND c.limit_group = v_job.limit_group
    LIMIT 1 FOR KEY SHARE SKIP LOCKED;
    IF NOT FOUND THEN
        INSERT INTO {schema}.limit_circle (queue, kind, limit_group)
        VALUES (v_job.queue, v_job.kind, v_job.limit_group);
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER jobs_limit_put AFTER INSERT ON {schema}.jobs
    FOR EACH ROW WHEN (NEW.limit_group IS NOT NULL AND NEW.state = 0)
    EXECUTE FUNCTION {schema}.enter_circle();

CREATE TRIGGER jobs_limit_moved AFTER UPDATE OF state, limit_group ON {schema}.jobs
    FOR EACH ROW
    WHEN (CASE WHEN NEW.limit_group IS NULL THEN OLD.state >= 4 AND NEW.state < 4
               ELSE NEW.state = 0 OR OLD.state = 3 AND NEW.state <> 3 END)
    EXECUTE FUNCTION {schema}.enter_circle();

CREATE TRIGGER jobs_limit_deleted AFTER DELETE ON {schema}.jobs
    FOR EACH ROW WHEN (OLD.limit_group IS NOT NULL AND OLD.state = 3)
    EXECUTE FUNCTION {schema}.enter_circle();

-- The limit group in the headers of a job.
CREATE FUNCTION {schema}.limit_group_of(p_headers text) RETURNS text
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN p_headers::json ->> 'pollwise-limit-group';
END
$$;

-- A whole number in a note, from 1 to p_most; NULL if there is none. Another value is an error.
CREATE FUNCTION {schema}.whole_of(p_value jsonb, p_most integer) RETURNS integer
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF p_value IS NULL OR p_value = 'null' THEN
        RETURN NULL;
    END IF;
    IF jsonb_typeof(p_value) <> 'number' OR p_value::numeric NOT BETWEEN 1 AND p_most
       OR p_value::numeric <> trunc(p_value::numeric) THEN
        RAISE EXCEPTION USING ERRCODE = 'PX003';
    END IF;
    RETURN p_value::numeric::integer;
END
$$;

-- A rate in a note: the seconds between two starts, and its burst.
CREATE FUNCTION {schema}.rate_of(
    p_value jsonb, OUT step double precision, OUT burst integer
)
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF p_value IS NULL OR p_value = 'null' THEN
        RETURN;
    END IF;
    burst := {schema}.whole_of(p_value -> 2, 1000000);
    step := (p_value -> 1)::double precision / {schema}.whole_of(p_value -> 0, 1000000);
    IF jsonb_typeof(p_value) <> 'array' OR jsonb_array_length(p_value) <> 3 OR step IS NULL
       OR burst IS NULL OR (p_value -> 1)::numeric NOT BETWEEN 0.000001 AND 315360000 THEN
        RAISE EXCEPTION USING ERRCODE = 'PX003';
    END IF;
END
$$;

-- The limits in a note; none if it is not one of ours, as `limits_from` in limits/record.py decides.
CREATE FUNCTION {schema}.limits_of(
    p_value text, OUT most integer, OUT most_each integer, OUT step double precision,
    OUT burst integer, OUT step_each double precision, OUT burst_each integer, OUT grouped boolean,
    OUT weights jsonb
)
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    v_note jsonb;
BEGIN
    IF octet_length(p_value) > 32768 THEN
        RAISE EXCEPTION USING ERRCODE = 'PX003';
    END IF;
    v_note := p_value::jsonb;
    most := {schema}.whole_of(v_note -> 'most', 1000000);
    most_each := {schema}.whole_of(v_note -> 'most_each', 1000000);
    SELECT r.step, r.burst INTO step, burst FROM {schema}.rate_of(v_note -> 'rate') AS r;
    SELECT r.step, r.burst INTO step_each, burst_each
    FROM {schema}.rate_of(v_note -> 'rate_each') AS r;
    weights := nullif(v_note -> 'weights', 'null');
    grouped := coalesce(v_note -> 'fair' = 'true', false) OR most_each IS NOT NULL
        OR step_each IS NOT NULL;
    PERFORM {schema}.whole_of(w.value, 1000) FROM jsonb_each(weights) AS w;
    IF EXISTS (
        SELECT 1 FROM jsonb_each(weights) AS w
        WHERE w.value = 'null' OR w.key !~ '^[^[:cntrl:]]{1,200}$'
    ) OR coalesce(jsonb_typeof(v_note -> 'by'), 'null') NOT IN ('string', 'null')
      OR v_note ->> 'by' ~ '^$|[[:cntrl:]]'
      OR coalesce(jsonb_typeof(v_note -> 'set_at'), 'number') <> 'number'
      OR (v_note -> 'set_at')::numeric < 0 OR (v_note -> 'set_at')::numeric >= 253370000000 THEN
        RAISE EXCEPTION USING ERRCODE = 'PX003';
    END IF;
EXCEPTION WHEN OTHERS THEN
    most := NULL; most_each := NULL; step := NULL; burst := NULL; step_each := NULL;
    burst_each := NULL; grouped := false; weights := NULL;
END
$$;

-- How many starts a rate allows now; NULL without a rate.
CREATE FUNCTION {schema}.rate_room(
    p_full_at double precision, p_step double precision, p_burst integer, p_now double precision
) RETURNS double precision
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF p_step IS NULL THEN
        RETURN NULL;
    END IF;
    -- A millionth of a second is for the rounding of times.
    RETURN least(p_burst, floor((
        p_now + p_burst * p_step
        - greatest(least(coalesce(p_full_at, 0), p_now + p_burst * p_step), p_now) + 1e-6
    ) / p_step));
END
$$;

-- The new `full_at` of a rate after some starts.
CREATE FUNCTION {schema}.rate_after(
    p_full_at double precision, p_step double precision, p_burst integer, p_starts bigint,
    p_now double precision
) RETURNS double precision
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN greatest(least(coalesce(p_full_at, 0), p_now + p_burst * p_step), p_now)
        + p_starts * p_step;
END
$$;

-- After how many seconds a rate without room is looked at again: at the next start, but not for each
-- single one.
CREATE FUNCTION {schema}.rate_pause(
    p_full_at double precision, p_step double precision, p_burst integer, p_now double precision
) RETURNS double precision
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN greatest(
        least(p_full_at, p_now + p_burst * p_step) - (p_burst - 1) * p_step - p_now,
        least(0.1, p_burst * p_step / 2)
    );
END
$$;

-- Lower a `full_at` of groups of a kind that is too high.
CREATE FUNCTION {schema}.lower_groups(p_queue text, p_kind text, p_most double precision)
RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE {schema}.limit_groups AS g SET full_at = p_most
    WHERE g.queue = p_queue AND g.kind = p_kind AND g.full_at > p_most + 1e-6;
END
$$;

-- Those of these kinds that have limits, NULL if none has. Their rows in limit_turns are locked until
-- the transaction ends, and say what the notes say. A `full_at` that is too high, because a rate was
-- slower or the clock was put back, is lowered.
CREATE FUNCTION {schema}.lock_limits(p_queue text, p_kinds text[], p_now double precision)
RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE
    v_limited text[];
    v_changed boolean;
    v_locked integer;
    v_now double precision;
    v_high double precision;
    v_number bigint;
BEGIN
    SELECT array_agg(n.name ORDER BY n.name), bool_or(n.value IS DISTINCT FROM (
        SELECT t.note FROM {schema}.limit_turns AS t WHERE t.queue = p_queue AND t.kind = n.name
    ))
    INTO v_limited, v_changed
    FROM {schema}.notes AS n
    WHERE n.queue = p_queue AND n.topic = 'limits' AND n.name = ANY (p_kinds);
    IF v_limited IS NULL THEN
        RETURN NULL;
    END IF;
    LOOP
        IF v_changed THEN
            INSERT INTO {schema}.limit_turns (queue, kind)
            SELECT p_queue, k FROM unnest(v_limited) AS k ORDER BY k
            ON CONFLICT (queue, kind) DO NOTHING;
        END IF;
        SELECT count(*), max(locked.high) INTO v_locked, v_high FROM (
            SELECT t.full_at - t.burst * t.step AS high
            FROM {schema}.limit_turns AS t
            WHERE t.queue = p_queue AND t.kind = ANY (v_limited)
            ORDER BY t.kind FOR UPDATE
        ) AS locked;
        EXIT WHEN v_locked = cardinality(v_limited);
        v_changed := true;  -- a row was pruned meanwhile
    END LOOP;
    v_now := {schema}.now_or(p_now);  -- others were waited for
    IF v_changed THEN
        v_number := pg_current_xact_id()::text::bigint;
        BEGIN  -- a transaction of its own inside this one: it gets a number now, see `pass_over`
            UPDATE {schema}.limit_turns AS t SET
                (note, most, most_each, step, burst, step_each, burst_each, grouped, weights,
                 known_from) = (
                    SELECT n.value, l.most, l.most_each, l.step, l.burst, l.step_each,
                           l.burst_each, l.grouped, l.weights, -1
                    FROM {schema}.notes AS n CROSS JOIN LATERAL {schema}.limits_of(n.value) AS l
                    WHERE n.queue = p_queue AND n.topic = 'limits' AND n.name = t.kind
                )
            WHERE t.queue = p_queue AND t.kind = ANY (v_limited) AND coalesce(t.note, '') <> (
                SELECT n.value FROM {schema}.notes AS n
                WHERE n.queue = p_queue AND n.topic = 'limits' AND n.name = t.kind
            );
        EXCEPTION WHEN lock_not_available THEN
            RAISE;
        END;
        -- `xmin` has the last 32 bits of that number.
        UPDATE {schema}.limit_turns AS t SET
            known_from = v_number
                + mod(t.xmin::text::bigint - mod(v_number, 4294967296) + 4294967296, 4294967296),
            pass_at = v_now, entered = '', sweep_from = t.swept,
            sweep_to = {schema}.last_job()
        WHERE t.queue = p_queue AND t.kind = ANY (v_limited) AND t.known_from = -1;
        PERFORM {schema}.lower_groups(p_queue, t.kind, v_now + t.burst_each * t.step_each)
        FROM {schema}.limit_turns AS t WHERE t.queue = p_queue AND t.kind = ANY (v_limited);
    END IF;
    IF v_changed OR v_high > v_now + 1e-6 THEN
        UPDATE {schema}.limit_turns AS t SET full_at = v_now + t.burst * t.step
        WHERE t.queue = p_queue AND t.kind = ANY (v_limited)
          AND t.full_at > v_now + t.burst * t.step + 1e-6;
    END IF;
    RETURN v_limited;
END
$$;

-- How many jobs of each kind a claim of p_most may lease, without those kinds that have no room.
-- p_limited: the kinds with limits. Those whose groups take turns come apart. charged: a lease
-- changes limit_turns.
CREATE FUNCTION {schema}.limit_rooms(
    p_queue text, p_kinds text[], p_limited text[], p_most integer, p_now double precision,
    OUT plain text[], OUT plain_rooms integer[], OUT turns text[], OUT turn_rooms integer[],
    OUT charged boolean
)
LANGUAGE plpgsql
SET enable_sort = off
AS $$
BEGIN
    SELECT coalesce(array_agg(k.kind) FILTER (WHERE NOT coalesce(k.grouped, false)), '{}'),
           array_agg(k.room) FILTER (WHERE NOT coalesce(k.grouped, false)),
           coalesce(array_agg(k.kind) FILTER (WHERE k.grouped), '{}'),
           array_agg(k.room) FILTER (WHERE k.grouped),
           coalesce(bool_or(k.grouped OR k.step IS NOT NULL), false)
    INTO plain, plain_rooms, turns, turn_rooms, charged
    FROM (
        SELECT given.kind, t.grouped, t.step, least(
            p_most,
            CASE WHEN t.most IS NOT NULL THEN t.most - (
                SELECT count(*) FROM (
                    SELECT 1 FROM {schema}.jobs AS l
                    WHERE l.queue = p_queue AND l.kind = given.kind AND l.state = 3
                      AND l.limit_group IS NOT NULL
                    ORDER BY l.limit_group, l.priority DESC, l.since, l.seq LIMIT t.most
                ) AS leased
            ) END,
            {schema}.rate_room(t.full_at, t.step, t.burst, p_now)
        )::integer AS room
        FROM unnest(p_kinds) AS given (kind)
        LEFT JOIN LATERAL (
            SELECT l.* FROM {schema}.limit_turns AS l
            WHERE l.queue = p_queue AND l.kind = given.kind AND given.kind = ANY (p_limited)
            OFFSET 0
        ) AS t ON true
        OFFSET 0
    ) AS k
    WHERE k.room > 0;
END
$$;

-- How many jobs of a group may be leased within its own limits.
CREATE FUNCTION {schema}.group_room(
    p_queue text, p_kind text, p_group text, p_most integer, p_most_each integer,
    p_step double precision, p_burst integer, p_now double precision
) RETURNS integer
LANGUAGE plpgsql STABLE
SET enable_sort = off
AS $$
DECLARE
    v_room integer := p_most;
BEGIN
    IF p_most_each IS NOT NULL THEN
        SELECT least(v_room, p_most_each - count(*)) INTO v_room FROM (
            SELECT 1 FROM {schema}.jobs AS l
            WHERE l.queue = p_queue AND l.kind = p_kind AND l.state = 3
              AND l.limit_group = p_group AND l.limit_group IS NOT NULL
            ORDER BY l.limit_group, l.priority DESC, l.since, l.seq LIMIT p_most_each
        ) AS leased;
    END IF;
    IF p_step IS NOT NULL AND v_room > 0 THEN
        v_room := least(v_room, {schema}.rate_room(
            (SELECT g.full_at FROM {schema}.limit_groups AS g
             WHERE g.queue = p_queue AND g.kind = p_kind AND g.limit_group = p_group),
            p_step, p_burst, p_now
        ));
    END IF;
    RETURN greatest(v_room, 0);
END
$$;

-- The highest number of a job.
CREATE FUNCTION {schema}.last_job() RETURNS bigint
LANGUAGE plpgsql
SET enable_seqscan = off
AS $$
BEGIN
    RETURN coalesce((SELECT j.seq FROM {schema}.jobs AS j ORDER BY j.seq DESC LIMIT 1), 0);
END
$$;

-- Go on with the pass over the groups and jobs of a kind, which follows when its limits changed, and
-- begins another one when it is time. Returns the row with what is left to be done. The caller has
-- locked it in limit_turns.
--
-- Those groups enter the circle that have ready jobs, and are not full. Jobs that have no group get the
-- group ''. entered: from which group on that is to be done; NULL: no more. sweep_from, sweep_to: the
-- numbers of the jobs for which it is to be done; NULL: no more. swept: up to which number it is done for
-- good. pass_at: when the pass began.
--
-- Transactions that do not see the new limits put jobs without a group, and enter no group. Those that
-- put or change jobs have a number before they look at the limits. So those are meant that have a number
-- below that of the transaction that was the first to notice the new limits: known_from. While there
-- may be some, another pass begins after ten seconds. When there are none any more, the last pass begins:
-- known_from is 0; then NULL. Jobs that others hold are left out; then the pass is not the last one.
CREATE FUNCTION {schema}.pass_over(
    p_queue text, p_kind text, t {schema}.limit_turns, p_now double precision
) RETURNS {schema}.limit_turns
LANGUAGE plpgsql
SET enable_sort = off
AS $$
DECLARE
    v_last boolean;
    v_seqs bigint[];
    v_locked bigint[];
    v_missed bigint;
    v_from bigint := t.sweep_from;
    v_to bigint;
    v_seen integer;
    v_groups text[];
    v_name text;
BEGIN
    IF t.entered IS NULL AND t.sweep_from IS NULL THEN
        SELECT t.known_from > 0
               AND pg_snapshot_xmin(pg_current_snapshot())::text::bigint >= t.known_from
        INTO v_last;
        IF NOT v_last AND t.pass_at BETWEEN p_now - 10 AND p_now THEN
            RETURN t;
        END IF;
        t.known_from := CASE WHEN v_last THEN 0 ELSE t.known_from END;
        t.pass_at := p_now;
        t.entered := '';
        t.sweep_from := t.swept;
        t.sweep_to := {schema}.last_job();
        v_from := t.swept;
    END IF;

    IF v_from IS NOT NULL THEN
        SELECT array_agg(f.seq) FILTER (WHERE f.ours), max(f.seq), count(*)
        INTO v_seqs, v_to, v_seen
        FROM (
            SELECT j.seq, j.queue = p_queue AND j.kind = p_kind AND j.limit_group IS NULL
                   AND j.state < 4 AS ours
            FROM {schema}.jobs AS j
            WHERE j.seq > v_from AND j.seq <= t.sweep_to
            ORDER BY j.seq LIMIT 5000
        ) AS f;
        IF cardinality(v_seqs) > 500 THEN  -- each is written, with all of its indexes
            v_seqs := v_seqs[1:500];
            v_to := v_seqs[500];
        ELSIF v_seen < 5000 THEN
            v_to := t.sweep_to;
        END IF;
        IF v_seqs IS NOT NULL THEN
            v_locked := ARRAY(
                SELECT j.seq FROM {schema}.jobs AS j
                WHERE j.seq = ANY (v_seqs) AND j.limit_group IS NULL
                FOR NO KEY UPDATE SKIP LOCKED
            );
            UPDATE {schema}.jobs AS j SET limit_group = '' WHERE j.seq = ANY (v_locked);
            SELECT min(m.seq) INTO v_missed FROM (
                SELECT unnest(v_seqs) AS seq EXCEPT SELECT unnest(v_locked)
            ) AS m;
        END IF;
        IF t.known_from = 0 AND t.swept = v_from THEN
            t.swept := coalesce(v_missed - 1, v_to);
        END IF;
        t.sweep_from := CASE WHEN v_to < t.sweep_to THEN v_to END;
    END IF;

    IF t.entered IS NOT NULL THEN
        WITH RECURSIVE waiting (n, name) AS (
            (SELECT 1, j.limit_group FROM {schema}.jobs AS j
             WHERE j.queue = p_queue AND j.kind = p_kind AND j.state = 0
               AND j.limit_group IS NOT NULL AND j.limit_group >= t.entered
             ORDER BY j.limit_group, j.priority DESC, j.since, j.seq LIMIT 1)
            UNION ALL
            SELECT w.n + 1, next.limit_group FROM waiting AS w CROSS JOIN LATERAL (
                SELECT j.limit_group FROM {schema}.jobs AS j
                WHERE j.queue = p_queue AND j.kind = p_kind AND j.state = 0
                  AND j.limit_group IS NOT NULL AND j.limit_group > w.name
                ORDER BY j.limit_group, j.priority DESC, j.since, j.seq LIMIT 1
            ) AS next
            WHERE w.n < 5000
        )
        SELECT array_agg(w.name) FILTER (WHERE w.free), max(w.name), count(*)
        INTO v_groups, v_name, v_seen
        FROM (
            SELECT g.name, NOT EXISTS (
                SELECT 1 FROM {schema}.limit_circle AS c
                WHERE c.queue = p_queue AND c.kind = p_kind AND c.limit_group = g.name
                OFFSET 0
            ) AND coalesce(t.most_each > (
                SELECT count(*) FROM (
                    SELECT 1 FROM {schema}.jobs AS l
                    WHERE l.queue = p_queue AND l.kind = p_kind AND l.state = 3
                      AND l.limit_group = g.name AND l.limit_group IS NOT NULL
                    ORDER BY l.limit_group, l.priority DESC, l.since, l.seq LIMIT t.most_each
                ) AS leased
            ), true) AS free
            FROM waiting AS g
            OFFSET 0
        ) AS w;
        INSERT INTO {schema}.limit_circle (queue, kind, limit_group)
        SELECT p_queue, p_kind, g FROM unnest(v_groups) AS g;
        t.entered := CASE WHEN v_seen = 5000 THEN v_name || chr(1) END;
    END IF;

    IF t.entered IS NULL AND t.sweep_from IS NULL AND t.known_from = 0 AND t.swept = t.sweep_to THEN
        t.known_from := NULL;
    END IF;
    UPDATE {schema}.limit_turns AS l SET
        known_from = t.known_from, pass_at = t.pass_at, entered = t.entered, swept = t.swept,
        sweep_from = t.sweep_from, sweep_to = t.sweep_to
    WHERE l.queue = p_queue AND l.kind = p_kind;
    RETURN t;
END
$$;

-- Enter those groups of a kind in its circle whose rate allows the next start; all that wait for that,
-- if the clock was set back. The caller has locked the row in limit_turns.
CREATE FUNCTION {schema}.enter_back(
    p_queue text, p_kind text, t {schema}.limit_turns, p_now double precision
) RETURNS void
LANGUAGE plpgsql
SET enable_sort = off
AS $$
DECLARE
    v_first double precision;
BEGIN
    SELECT b.back_at INTO v_first FROM {schema}.limit_back AS b
    WHERE b.queue = p_queue AND b.kind = p_kind ORDER BY b.back_at LIMIT 1;
    IF v_first <= p_now OR v_first > p_now + greatest(t.step_each, 0.1) + 1e-6
       OR v_first IS NOT NULL AND t.step_each IS NULL THEN
        WITH back AS (
            DELETE FROM {schema}.limit_back AS b WHERE b.ctid = ANY (ARRAY(
                SELECT d.ctid FROM {schema}.limit_back AS d
                WHERE d.queue = p_queue AND d.kind = p_kind
                  AND (v_first > p_now OR d.back_at <= p_now)
                ORDER BY d.back_at LIMIT 1000
            ))
            RETURNING b.limit_group
        )
        INSERT INTO {schema}.limit_circle (queue, kind, limit_group)
        SELECT p_queue, p_kind, back.limit_group FROM back;
    END IF;
END
$$;

-- Whether the limits of a kind, as they were set, may let groups take turns.
CREATE FUNCTION {schema}.takes_turns(p_queue text, p_kind text) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    RETURN EXISTS (
        SELECT 1 FROM {schema}.notes AS n
        WHERE n.queue = p_queue AND n.topic = 'limits' AND n.name = p_kind
          AND (n.value LIKE '%"fair"%' OR n.value LIKE '%\_each"%')
    );
END
$$;

-- Delete up to p_most groups of kinds whose groups take turns no longer.
-- Limits that are set before the rows are locked are seen; then the groups stay, and limits that are set
-- later enter them again.
CREATE FUNCTION {schema}.prune_circle(p_queue text, p_most integer) RETURNS void
LANGUAGE plpgsql
SET enable_seqscan = off
AS $$
DECLARE
    v_some text[];
    v_rows tid[];
BEGIN
    WITH RECURSIVE each (kind) AS (  -- skips through the index instead of scanning it
        (SELECT c.kind FROM {schema}.limit_circle AS c WHERE c.queue = p_queue
         ORDER BY c.kind LIMIT 1)
        UNION ALL
        SELECT next.kind FROM each CROSS JOIN LATERAL (
            SELECT c.kind FROM {schema}.limit_circle AS c
            WHERE c.queue = p_queue AND c.kind > each.kind ORDER BY c.kind LIMIT 1
        ) AS next
    )
    SELECT array_agg(e.kind) INTO v_some FROM each AS e
    WHERE NOT {schema}.takes_turns(p_queue, e.kind);
    IF v_some IS NULL THEN
        RETURN;
    END IF;
    v_rows := ARRAY(
        SELECT c.ctid FROM {schema}.limit_circle AS c
        WHERE c.queue = p_queue AND c.kind = ANY (v_some)
        LIMIT p_most FOR UPDATE SKIP LOCKED
    );
    DELETE FROM {schema}.limit_circle AS c WHERE c.ctid = ANY (v_rows)
      AND NOT {schema}.takes_turns(p_queue, c.kind);
    DELETE FROM {schema}.limit_back AS b WHERE b.ctid = ANY (ARRAY(
        SELECT d.ctid FROM {schema}.limit_back AS d
        WHERE d.queue = p_queue AND d.kind = ANY (v_some)
        LIMIT p_most FOR UPDATE SKIP LOCKED
    )) AND NOT {schema}.takes_turns(p_queue, b.kind);
END
$$;

-- Take those of these groups out of the circle that are full, empty, or out of their rate. Returns how
-- many left. What is examined is read after the rows are locked: who changed it before is seen, and who
-- changes it later enters the group again.
CREATE FUNCTION {schema}.leave_circle(
    p_queue text, p_kind text, p_groups text[], t {schema}.limit_turns, p_now double precision
) RETURNS integer
LANGUAGE plpgsql
SET enable_sort = off
AS $$
DECLARE
    v_rows tid[];
    v_groups text[];
    v_left integer;
BEGIN
    SELECT array_agg(l.place), array_agg(l.name) INTO v_rows, v_groups
    FROM (
        SELECT c.place, g.name FROM unnest(p_groups) AS g (name) CROSS JOIN LATERAL (
            SELECT r.ctid AS place FROM {schema}.limit_circle AS r
            WHERE r.queue = p_queue AND r.kind = p_kind AND r.limit_group = g.name
            FOR UPDATE SKIP LOCKED
        ) AS c
    ) AS l;
    WITH examined AS MATERIALIZED (
        SELECT g.place, g.name, t.most_each <= (
            SELECT count(*) FROM (
                SELECT 1 FROM {schema}.jobs AS l
                WHERE l.queue = p_queue AND l.kind = p_kind AND l.state = 3
                  AND l.limit_group = g.name AND l.limit_group IS NOT NULL
                ORDER BY l.limit_group, l.priority DESC, l.since, l.seq LIMIT t.most_each
            ) AS leased
        ) IS TRUE OR (
            SELECT j.seq FROM {schema}.jobs AS j
            WHERE j.queue = p_queue AND j.kind = p_kind AND j.state = 0
              AND j.limit_group BETWEEN g.name AND g.name AND j.limit_group IS NOT NULL
              AND (j.lapses = 0 OR j.lapsed IS DISTINCT FROM j.token)
            ORDER BY j.limit_group, j.priority DESC, j.since, j.seq LIMIT 1
        ) IS NULL AS idle, (
            SELECT f.full_at FROM {schema}.limit_groups AS f
            WHERE f.queue = p_queue AND f.kind = p_kind AND f.limit_group = g.name
        ) AS full_at
        FROM unnest(v_rows, v_groups) AS g (place, name)
        OFFSET 0
    ), leaving AS MATERIALIZED (
        SELECT e.place, e.name, CASE
            WHEN e.idle THEN NULL
            ELSE p_now + {schema}.rate_pause(e.full_at, t.step_each, t.burst_each, p_now)
        END AS back_at
        FROM examined AS e
        WHERE e.idle OR {schema}.rate_room(e.full_at, t.step_each, t.burst_each, p_now) < 1
    ), gone AS (
        DELETE FROM {schema}.limit_circle AS c
        WHERE c.ctid = ANY (ARRAY(SELECT l.place FROM leaving AS l))
        RETURNING 1
    ), back AS (
        INSERT INTO {schema}.limit_back AS b (queue, kind, limit_group, back_at)
        SELECT DISTINCT ON (l.name) p_queue, p_kind, l.name, l.back_at FROM leaving AS l
        WHERE l.back_at IS NOT NULL ORDER BY l.name
        ON CONFLICT (queue, kind, limit_group) DO UPDATE SET back_at = excluded.back_at
    )
    SELECT count(*) INTO v_left FROM gone;
    RETURN v_left;
END
$$;

-- The jobs that these kinds, whose groups take turns, may lease within their rooms, in the order of
-- their turns, as arrays with one element per job. places: from 1 for each kind. lefts: how many more
-- jobs its group has in that turn. unseen: of each kind, the last group that was examined, if others
-- were not; else NULL. gone: how many groups left the circle. Groups are found by skipping through its
-- index. The caller has locked the rows in limit_turns.
CREATE FUNCTION {schema}.take_turns(
    p_queue text, p_kinds text[], p_rooms integer[], p_now double precision,
    OUT kinds text[], OUT places integer[], OUT seqs bigint[], OUT groups text[],
    OUT priorities integer[], OUT sinces double precision[], OUT lefts integer[], OUT unseen text[],
    OUT gone integer
)
LANGUAGE plpgsql
SET enable_sort = off
AS $$
DECLARE
    v_kind text;
    v_room integer;
    t {schema}.limit_turns;
    v_low text;
    v_groups integer;
    v_rounds integer;
    v_left integer;  -- how many groups left the circle
    v_picked record;
BEGIN
    gone := 0;
    FOR at IN 1 .. cardinality(p_kinds) LOOP
        v_kind := p_kinds[at];
        v_room := p_rooms[at];
        SELECT * INTO t FROM {schema}.limit_turns AS l WHERE l.queue = p_queue AND l.kind = v_kind;
        IF t.known_from IS NOT NULL THEN
            t := {schema}.pass_over(p_queue, v_kind, t, p_now);
        END IF;
        PERFORM {schema}.enter_back(p_queue, v_kind, t, p_now);
        -- The lowest name that comes after the last turn, or that turn, if some of it is left.
        v_low := t.turn || CASE WHEN t.left_ > 0 THEN '' ELSE chr(1) END;
        v_groups := least(v_room, 1000);
        v_rounds := 1;
        v_left := 0;
        LOOP
            WITH RECURSIVE circle (n, name, lap, low) AS (
                SELECT 0, NULL::text COLLATE "C", 0, v_low COLLATE "C"
                UNION ALL
                SELECT c.n + 1, next.name, next.lap, next.name || chr(1)
                FROM circle AS c CROSS JOIN LATERAL (
                    (SELECT r.limit_group AS name, 0 AS lap FROM {schema}.limit_circle AS r
                     WHERE c.lap = 0 AND r.queue = p_queue AND r.kind = v_kind
                       AND r.limit_group >= c.low
                     ORDER BY r.limit_group LIMIT 1)
                    UNION ALL
                    (SELECT r.limit_group, 1 FROM {schema}.limit_circle AS r
                     WHERE c.lap = 0 AND r.queue = p_queue AND r.kind = v_kind
                       AND r.limit_group < v_low
                     ORDER BY r.limit_group LIMIT 1)
                    UNION ALL
                    (SELECT r.limit_group, 1 FROM {schema}.limit_circle AS r
                     WHERE c.lap = 1 AND r.queue = p_queue AND r.kind = v_kind
                       AND r.limit_group >= c.low AND r.limit_group < v_low
                     ORDER BY r.limit_group LIMIT 1)
                    LIMIT 1
                ) AS next
                WHERE c.n <= v_groups
            ), examined AS MATERIALIZED (
                SELECT c.n, c.name, (
                    SELECT g.full_at FROM {schema}.limit_groups AS g
                    WHERE t.step_each IS NOT NULL AND g.queue = p_queue AND g.kind = v_kind
                      AND g.limit_group = c.name
                ) AS full_at
                FROM circle AS c WHERE c.n BETWEEN 1 AND v_groups
            ), own AS MATERIALIZED (
                SELECT g.*, greatest(
                    least(g.room, g.first + (v_rounds - 1) * g.weight), 0) AS quota
                FROM (
                    SELECT c.n, c.name, w.weight,
                           CASE WHEN c.n = 1 AND t.left_ > 0 AND c.name = t.turn THEN t.left_
                                ELSE w.weight END AS first,
                           least(
                               v_room,
                               CASE WHEN t.most_each IS NOT NULL THEN t.most_each - (
                                   SELECT count(*) FROM (
                                       SELECT 1 FROM {schema}.jobs AS l
                                       WHERE l.queue = p_queue AND l.kind = v_kind AND l.state = 3
                                         AND l.limit_group = c.name AND l.limit_group IS NOT NULL
                                       ORDER BY l.limit_group, l.priority DESC, l.since, l.seq
                                       LIMIT t.most_each
                                   ) AS leased
                               ) END,
                               CASE WHEN t.step_each IS NOT NULL THEN {schema}.rate_room(
                                   c.full_at, t.step_each, t.burst_each, p_now) END
                           )::integer AS room
                    FROM examined AS c
                    CROSS JOIN LATERAL (
                        SELECT coalesce((t.weights ->> c.name)::integer, 1) AS weight
                    ) AS w
                    OFFSET 0
                ) AS g
            ), waiting AS MATERIALIZED (  -- one row without a job for a group that has none to give
                SELECT o.*, w.seq, w.priority, w.since, w.i
                FROM own AS o
                LEFT JOIN LATERAL (
                    SELECT b.*, row_number() OVER (ORDER BY b.priority DESC, b.since, b.seq)::integer
                        AS i
                    FROM (
                        SELECT j.seq, j.priority, j.since FROM {schema}.jobs AS j
                        WHERE j.queue = p_queue AND j.kind = v_kind AND j.state = 0
                          AND j.limit_group BETWEEN o.name AND o.name
                          AND j.limit_group IS NOT NULL
                          AND (j.lapses = 0 OR j.lapsed IS DISTINCT FROM j.token)
                        ORDER BY j.limit_group, j.priority DESC, j.since, j.seq LIMIT o.quota
                    ) AS b
                ) AS w ON true
            )
            SELECT array_agg(b.seq) AS seqs, array_agg(b.name) AS groups,
                   array_agg(b.priority) AS priorities, array_agg(b.since) AS sinces,
                   array_agg(b.left_) AS lefts, count(*)::integer AS count,
                   -- The weight of the groups that may give more in another round.
                   (SELECT sum(w.weight)::integer FROM waiting AS w
                    WHERE w.i = w.quota AND w.quota < w.room) AS more,
                   (SELECT max(c.n) FROM circle AS c) AS groups_seen,
                   (SELECT c.name FROM circle AS c WHERE c.n = v_groups) AS last,
                   (SELECT max(e.full_at) FROM examined AS e) AS high,
                   (SELECT array_agg(w.name) FROM waiting AS w WHERE w.seq IS NULL) AS gone
            INTO v_picked
            FROM (
                SELECT w.*, CASE WHEN w.i <= w.first THEN w.first - w.i
                                 ELSE w.weight - 1 - (w.i - w.first - 1) % w.weight END AS left_
                FROM waiting AS w WHERE w.seq IS NOT NULL
                ORDER BY CASE WHEN w.i <= w.first THEN 0
                              ELSE 1 + (w.i - w.first - 1) / w.weight END, w.n, w.i
                LIMIT v_room
            ) AS b;
            IF v_picked.gone IS NOT NULL THEN  -- the next round examines others
                v_left := v_left + {schema}.leave_circle(
                    p_queue, v_kind, v_picked.gone COLLATE "default", t, p_now);
            END IF;
            EXIT WHEN v_picked.count = v_room;
            IF v_picked.groups_seen > v_groups THEN
                EXIT WHEN v_groups + v_left >= 1000;
                v_groups := least(v_groups * 4, 1000);
            ELSE
                EXIT WHEN v_picked.more IS NULL;
                v_rounds := v_rounds + greatest(
                    v_rounds, (v_room - v_picked.count + v_picked.more - 1) / v_picked.more);
            END IF;
        END LOOP;
        -- The clock was put back: else these groups would start nothing until it is as late again.
        IF v_picked.high > p_now + t.burst_each * t.step_each + 1e-6 THEN
            PERFORM {schema}.lower_groups(p_queue, v_kind, p_now + t.burst_each * t.step_each);
        END IF;
        gone := gone + v_left;
        kinds := kinds || array_fill(v_kind, ARRAY[v_picked.count]);
        places := places || ARRAY(SELECT generate_series(1, v_picked.count));
        seqs := seqs || v_picked.seqs;
        groups := groups || v_picked.groups;
        priorities := priorities || v_picked.priorities;
        sinces := sinces || v_picked.sinces;
        lefts := lefts || v_picked.lefts;
        unseen := unseen || ARRAY[CASE
            WHEN v_picked.count < v_room AND v_picked.groups_seen > v_groups THEN v_picked.last END];
    END LOOP;
END
$$;

-- Charge the limits of these kinds for leased jobs, and move their turns on. p_picks: the kinds,
-- jobs, groups and so on that `take_turns` returned for p_turns, NULL if no groups took turns.
CREATE FUNCTION {schema}.charge_limits(
    p_queue text, p_limited text[], p_seqs bigint[], p_turns text[], p_unseen text[],
    p_picked_kinds text[], p_picked bigint[], p_groups text[], p_lefts integer[],
    p_now double precision
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_rates text[];
    v_rates_each text[];
    v_turn {schema}.limit_turns;
BEGIN
    SELECT array_agg(t.kind) FILTER (WHERE t.step IS NOT NULL),
           array_agg(t.kind) FILTER (WHERE t.step_each IS NOT NULL)
    INTO v_rates, v_rates_each
    FROM {schema}.limit_turns AS t WHERE t.queue = p_queue AND t.kind = ANY (p_limited);

    IF v_rates IS NOT NULL THEN
        UPDATE {schema}.limit_turns AS t
        SET full_at = {schema}.rate_after(t.full_at, t.step, t.burst, leased.count, p_now)
        FROM (
            SELECT j.kind, count(*) AS count FROM {schema}.jobs AS j
            WHERE j.seq = ANY (p_seqs) GROUP BY j.kind
        ) AS leased
        WHERE t.queue = p_queue AND t.kind = leased.kind AND t.kind = ANY (v_rates);
    END IF;
    IF v_rates_each IS NOT NULL THEN
        INSERT INTO {schema}.limit_groups AS g (queue, kind, limit_group, full_at)
        SELECT p_queue, l.kind, l.limit_group,
               {schema}.rate_after(o.full_at, t.step_each, t.burst_each, l.count, p_now)
        FROM (
            SELECT j.kind, j.limit_group, count(*) AS count FROM {schema}.jobs AS j
            WHERE j.seq = ANY (p_seqs) AND j.kind = ANY (v_rates_each)
            GROUP BY j.kind, j.limit_group
        ) AS l
        CROSS JOIN LATERAL (
            SELECT m.step_each, m.burst_each FROM {schema}.limit_turns AS m
            WHERE m.queue = p_queue AND m.kind = l.kind OFFSET 0
        ) AS t
        LEFT JOIN LATERAL (
            SELECT f.full_at FROM {schema}.limit_groups AS f
            WHERE f.queue = p_queue AND f.kind = l.kind AND f.limit_group = l.limit_group OFFSET 0
        ) AS o ON true
        ORDER BY l.kind, l.limit_group
        ON CONFLICT (queue, kind, limit_group) DO UPDATE SET full_at = excluded.full_at;
    END IF;

    -- Behind the last pick that was leased; or behind all groups that were examined, if all picks were
    -- leased and there was room for more.
    FOR k IN 1 .. coalesce(cardinality(p_turns), 0) LOOP
        UPDATE {schema}.limit_turns AS t SET
            turn = CASE WHEN p_unseen[k] IS NOT NULL AND stop.all_leased THEN p_unseen[k]
                        ELSE coalesce(p_groups[stop.at], t.turn) END,
            left_ = CASE WHEN p_unseen[k] IS NOT NULL AND stop.all_leased THEN 0
                         ELSE coalesce(p_lefts[stop.at], t.left_) END
        FROM (
            SELECT max(p.at) FILTER (WHERE p.leased) AS at,
                   coalesce(bool_and(p.leased), true) AS all_leased
            FROM (
                SELECT p.at::integer AS at, p.seq = ANY (p_seqs) AS leased
                FROM unnest(p_picked_kinds, p_picked) WITH ORDINALITY AS p (kind, seq, at)
                WHERE p.kind = p_turns[k]
            ) AS p
        ) AS stop
        WHERE t.queue = p_queue AND t.kind = p_turns[k];

        SELECT * INTO v_turn FROM {schema}.limit_turns AS l
        WHERE l.queue = p_queue AND l.kind = p_turns[k];
        IF v_turn.most_each IS NOT NULL OR v_turn.step_each IS NOT NULL THEN  -- some may be full now
            PERFORM {schema}.leave_circle(p_queue, v_turn.kind, ARRAY(
                SELECT DISTINCT p.name FROM unnest(p_picked_kinds, p_picked, p_groups)
                    AS p (kind, seq, name)
                WHERE p.kind = v_turn.kind AND p.seq = ANY (p_seqs)
            ), v_turn, p_now);
        END IF;
    END LOOP;
END
$$;

-- After how many seconds another claim may find more jobs of these kinds, because a rate then allows
-- more, or because groups were not examined (p_unseen, for p_turns); NULL if only other events help.
-- p_moved: the claim leased jobs, or groups left the circle.
CREATE FUNCTION {schema}.limits_again(
    p_queue text, p_limited text[], p_turns text[], p_unseen text[], p_moved boolean,
    p_now double precision
) RETURNS double precision
LANGUAGE plpgsql
SET enable_sort = off
AS $$
DECLARE
    t {schema}.limit_turns;
    v_again double precision;
BEGIN
    FOR t IN
        SELECT l.* FROM {schema}.limit_turns AS l
        WHERE l.queue = p_queue AND l.kind = ANY (p_limited)
          AND (l.step IS NOT NULL OR l.step_each IS NOT NULL
               OR l.grouped AND (p_unseen IS NOT NULL OR l.entered IS NOT NULL
                                 OR l.sweep_from IS NOT NULL))
    LOOP
        CONTINUE WHEN NOT EXISTS (
            SELECT 1 FROM {schema}.jobs AS j
            WHERE j.queue = p_queue AND j.kind = t.kind AND j.state = 0
        );
        IF t.most IS NOT NULL THEN
            CONTINUE WHEN t.most <= (
                SELECT count(*) FROM (
                    SELECT 1 FROM {schema}.jobs AS r
                    WHERE r.queue = p_queue AND r.kind = t.kind AND r.state = 3
                      AND r.limit_group IS NOT NULL
                    ORDER BY r.limit_group, r.priority DESC, r.since, r.seq LIMIT t.most
                ) AS leased
            );
        END IF;
        IF {schema}.rate_room(t.full_at, t.step, t.burst, p_now) < 1 THEN
            v_again := least(v_again, {schema}.rate_pause(t.full_at, t.step, t.burst, p_now));
        ELSIF p_unseen[array_position(p_turns, t.kind)] IS NOT NULL THEN
            v_again := least(v_again, CASE WHEN p_moved THEN 0 ELSE 0.1 END);
        ELSIF t.grouped AND (t.entered IS NOT NULL OR t.sweep_from IS NOT NULL) THEN
            v_again := 0;
        ELSIF t.step_each IS NOT NULL THEN
            v_again := least(v_again, (
                SELECT greatest(b.back_at - p_now, 0) FROM {schema}.limit_back AS b
                WHERE b.queue = p_queue AND b.kind = t.kind ORDER BY b.back_at LIMIT 1
            ));
            v_again := least(v_again, (
                WITH RECURSIVE waiting (name) AS (
                    (SELECT c.limit_group FROM {schema}.limit_circle AS c
                     WHERE c.queue = p_queue AND c.kind = t.kind ORDER BY c.limit_group LIMIT 1)
                    UNION ALL
                    SELECT next.limit_group FROM waiting AS w CROSS JOIN LATERAL (
                        SELECT c.limit_group FROM {schema}.limit_circle AS c
                        WHERE c.queue = p_queue AND c.kind = t.kind AND c.limit_group > w.name
                        ORDER BY c.limit_group LIMIT 1
                    ) AS next
                )
                SELECT min({schema}.rate_pause(g.full_at, t.step_each, t.burst_each, p_now))
                FROM (
                    (SELECT w.name FROM waiting AS w LIMIT 1000) UNION SELECT '' COLLATE "C"
                ) AS w
                CROSS JOIN LATERAL (
                    SELECT f.limit_group, f.full_at FROM {schema}.limit_groups AS f
                    WHERE f.queue = p_queue AND f.kind = t.kind AND f.limit_group = w.name OFFSET 0
                ) AS g
                WHERE {schema}.rate_room(g.full_at, t.step_each, t.burst_each, p_now) < 1
                  AND {schema}.group_room(
                      p_queue, t.kind, g.limit_group COLLATE "default", 1, t.most_each, NULL, NULL,
                      p_now) > 0
            ));
        END IF;
    END LOOP;
    RETURN v_again;
END
$$;

-- Whether a suspect of a kind that has room may be leased within the limits of its group. p_turns: the
-- kinds whose groups take turns.
CREATE FUNCTION {schema}.suspect_room(
    p_queue text, p_kind text, p_group text, p_turns text[], p_now double precision
) RETURNS boolean
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN p_kind <> ALL (p_turns) OR (
        SELECT {schema}.group_room(p_queue, p_kind, coalesce(p_group, ''), 1, t.most_each,
                                   t.step_each, t.burst_each, p_now) > 0
        FROM {schema}.limit_turns AS t WHERE t.queue = p_queue AND t.kind = p_kind
    );
END
$$;

-- The kinds, as JSON, whose jobs are claimed for free handlers: those that limit how many run, and
-- those whose groups take turns.
CREATE FUNCTION {schema}.counted_kinds(p_queue text, p_kinds text[]) RETURNS text
LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN coalesce((
        SELECT json_agg(n.name) FROM {schema}.notes AS n
        WHERE n.queue = p_queue AND n.topic = 'limits'
          AND (p_kinds IS NULL OR n.name = ANY (p_kinds))
          AND (n.value LIKE '%"most%' OR n.value LIKE '%"fair"%' OR n.value LIKE '%"rate_each"%')
    ), '[]');
END
$$;

-- Lock the jobs that a claim of p_left may lease, with those without a key apart. p_plain: the kinds
-- whose groups do not take turns, p_rooms: how many jobs each may lease at most. The rest is what
-- `take_turns` returned. All kinds compete by the order of their jobs, and each leases in its own
-- order. wanted: how many there would be, if no other transaction held any.
CREATE FUNCTION {schema}.lock_limited(
    p_queue text, p_left integer, p_plain text[], p_rooms integer[], p_kinds text[],
    p_places integer[], p_seqs bigint[], p_groups text[], p_priorities integer[],
    p_sinces double precision[], OUT free bigint[], OUT keyed bigint[], OUT wanted integer
)
LANGUAGE plpgsql AS $$
DECLARE
    v_some text[];
    v_counts integer[];
    v_free bigint[];
    v_keyed bigint[];
BEGIN
    IF cardinality(p_plain) = 1 AND p_seqs IS NULL THEN
        v_some := p_plain;
        v_counts := p_rooms;
    ELSE
        SELECT array_agg(n.kind), array_agg(n.count) INTO v_some, v_counts
        FROM (
            SELECT best.kind, count(*)::integer AS count
            FROM (
                SELECT both_sorts.kind FROM (
                    SELECT c.* FROM unnest(p_plain, p_rooms) AS k (kind, room)
                    CROSS JOIN LATERAL (
                        SELECT j.kind, j.priority, j.since, j.seq FROM {schema}.jobs AS j
                        WHERE j.queue = p_queue AND j.kind = k.kind AND j.state = 0
                          AND (j.lapses = 0 OR j.lapsed IS DISTINCT FROM j.token)
                        ORDER BY j.priority DESC, j.since, j.seq LIMIT k.room
                    ) AS c
                    UNION ALL
                    SELECT p.kind, p.priority, p.since, p.seq
                    FROM unnest(p_kinds, p_priorities, p_sinces, p_seqs)
                        AS p (kind, priority, since, seq)
                ) AS both_sorts
                ORDER BY both_sorts.priority DESC, both_sorts.since, both_sorts.seq LIMIT p_left
            ) AS best
            GROUP BY best.kind
        ) AS n;
    END IF;
    SELECT coalesce(sum(c), 0) INTO wanted FROM unnest(v_counts) AS c;

    SELECT coalesce(array_agg(c.seq) FILTER (WHERE c.key IS NULL), '{}'),
           coalesce(array_agg(c.seq) FILTER (WHERE c.key IS NOT NULL), '{}')
    INTO free, keyed
    FROM unnest(v_some, v_counts) AS k (kind, count)
    CROSS JOIN LATERAL (
        SELECT j.seq, j.key FROM {schema}.jobs AS j
        WHERE j.queue = p_queue AND j.kind = k.kind AND k.kind = ANY (p_plain) AND j.state = 0
          AND (j.lapses = 0 OR j.lapsed IS DISTINCT FROM j.token)
        ORDER BY j.priority DESC, j.since, j.seq LIMIT k.count
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS c;
    IF p_seqs IS NOT NULL THEN
        SELECT coalesce(array_agg(c.seq) FILTER (WHERE c.key IS NULL), '{}'),
               coalesce(array_agg(c.seq) FILTER (WHERE c.key IS NOT NULL), '{}')
        INTO v_free, v_keyed
        FROM (
            SELECT j.seq, j.key
            FROM unnest(p_kinds, p_places, p_seqs, p_groups) AS p (kind, place, seq, name)
            JOIN unnest(v_some, v_counts) AS k (kind, count)
                ON k.kind = p.kind AND p.place <= k.count
            CROSS JOIN LATERAL (
                SELECT t.seq, t.key FROM {schema}.jobs AS t
                WHERE t.seq = p.seq AND t.state + 0 = 0 AND coalesce(t.limit_group, '') = p.name
                  AND (t.lapses = 0 OR t.lapsed IS DISTINCT FROM t.token)
                FOR NO KEY UPDATE SKIP LOCKED
            ) AS j
        ) AS c;
        free := free || v_free;
        keyed := keyed || v_keyed;
    END IF;
    IF cardinality(v_some) = 1 AND p_seqs IS NULL THEN
        wanted := cardinality(free) + cardinality(keyed);  -- what others held was skipped
    END IF;
END
$$;

-- Up to p_most kinds that have ready jobs, the first ones after p_after.
CREATE FUNCTION {schema}.ready_kinds(p_queue text, p_after text, p_most integer) RETURNS text[]
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    RETURN ARRAY(
        WITH RECURSIVE each (kind) AS (  -- skips through the index instead of scanning it
            (SELECT j.kind FROM {schema}.jobs AS j
             WHERE j.queue = p_queue AND j.state = 0 AND j.kind > p_after
             ORDER BY j.kind LIMIT 1)
            UNION ALL
            SELECT (SELECT j.kind FROM {schema}.jobs AS j
                    WHERE j.queue = p_queue AND j.state = 0 AND j.kind > each.kind
                    ORDER BY j.kind LIMIT 1)
            FROM each WHERE each.kind IS NOT NULL
        )
        SELECT each.kind FROM each WHERE each.kind IS NOT NULL LIMIT p_most
    );
END
$$;

-- Lease up to p_limit jobs that are not paused, within their limits; or one suspect, alone. p_ahead:
-- some will wait before they start. A last row without a seq says in `until` after how many seconds
-- another claim may find more, if that is known, in `attempt` whether the job is a suspect: 1, else 0,
-- and in `kind` of which of the asked kinds a settlement lets others run; NULL if nothing has limits.
-- lapse: the error of the run before, if its lease ran out just before this claim.
-- A claim of any kind looks at up to 2,000 kinds that have ready jobs. If there may be more, the
-- session remembers the last of them, and its next claim goes on after it.
DROP FUNCTION {schema}.claim(
    text, text, integer, double precision, text[], boolean, boolean, text, text, double precision
);
CREATE FUNCTION {schema}.claim(
    p_queue text, p_worker text, p_limit integer, p_lease double precision, p_kinds text[],
    p_keep boolean, p_ahead boolean, p_channel text, p_message text, p_now double precision
) RETURNS TABLE (
    seq bigint, kind text, payload text, key text, priority integer, attempt integer,
    created_at double precision, run_at double precision, "unique" text, headers text,
    token bigint, until double precision, lapse text
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
    v_limits boolean;
    v_limited text[];  -- the kinds that have limits
    v_able text[];     -- the kinds of which a job may be leased
    v_in_turns text[]; -- those of them whose groups take turns
    v_charged boolean := false;
    v_rooms record;
    v_turns record;
    v_unseen text[];
    v_gone integer := 0;
    v_best text[];
    v_after text;
    v_more boolean := false;
    c_kinds CONSTANT integer := 2000;
    c_setting CONSTANT text := 'pollwise.kinds_after';
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
        WHERE j.seq = ANY (ARRAY(
            SELECT d.seq FROM {schema}.jobs AS d
            WHERE d.queue = p_queue AND d.state IN (1, 3) AND d.since <= v_now
            ORDER BY d.since LIMIT 1000 FOR NO KEY UPDATE SKIP LOCKED
        ))
        RETURNING j.seq, j.cancel
    )
    -- Whether anything is paused or limited is read by the same statement, because each statement has
    -- a cost.
    SELECT count(*), array_agg(p.seq) FILTER (WHERE p.cancel), EXISTS (
        SELECT 1 FROM {schema}.notes AS n WHERE n.queue = p_queue AND n.topic = 'pauses'
    ), EXISTS (
        SELECT 1 FROM {schema}.notes AS n WHERE n.queue = p_queue AND n.topic = 'limits'
    )
    INTO v_promoted, v_cancelled, v_paused, v_limits
    FROM promoted AS p;
    IF v_cancelled IS NOT NULL THEN
        PERFORM {schema}.end_cancelled(p_queue, v_cancelled, p_keep, v_now);
    END IF;

    IF v_kinds IS NULL THEN
        v_after := coalesce(current_setting(c_setting, true), '');
        v_kinds := {schema}.ready_kinds(p_queue, v_after, c_kinds);
        IF v_after <> '' AND cardinality(v_kinds) < c_kinds THEN
            v_kinds := v_kinds || ARRAY(
                SELECT k FROM unnest({schema}.ready_kinds(
                    p_queue, '', c_kinds - cardinality(v_kinds))) AS k WHERE k <= v_after
            );
        END IF;
        v_more := cardinality(v_kinds) = c_kinds;
        IF v_more OR v_after <> '' THEN
            PERFORM set_config(c_setting, CASE WHEN v_more THEN v_kinds[c_kinds] ELSE '' END, false);
        END IF;
    END IF;

    IF v_paused THEN
        v_kinds := ARRAY(
            SELECT k FROM unnest(v_kinds) AS k WHERE NOT EXISTS (
                SELECT 1 FROM {schema}.notes AS n
                WHERE n.queue = p_queue AND n.topic = 'pauses'
                  AND n.name IN ('', k, regexp_replace(k, '#[0-9a-f]{16}$', ''))
            )
        );
    END IF;

    v_able := v_kinds;
    IF v_limits THEN
        v_limited := {schema}.lock_limits(p_queue, v_kinds, p_now);
        IF v_limited IS NOT NULL THEN
            v_now := {schema}.now_or(p_now);  -- other claims were waited for
            v_until := v_now + p_lease;
            v_token := (v_now * 1000000)::bigint;
            v_rooms := {schema}.limit_rooms(p_queue, v_kinds, v_limited, v_left, v_now);
            v_able := v_rooms.plain || v_rooms.turns;
            v_in_turns := v_rooms.turns;
            v_charged := v_rooms.charged;
        END IF;
    END IF;

    -- A suspect is taken alone.
    SELECT ARRAY[s.seq] INTO v_keyed FROM {schema}.jobs AS s
    WHERE s.queue = p_queue AND s.state = 0 AND s.lapses > 0 AND s.lapsed = s.token
      AND s.kind = ANY (v_able)
      AND (v_limited IS NULL OR {schema}.suspect_room(
          p_queue, s.kind, s.limit_group COLLATE "default", v_in_turns, v_now))
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
        ELSIF v_limited IS NOT NULL THEN
            IF v_rounds > 0 THEN
                v_rooms := {schema}.limit_rooms(p_queue, v_kinds, v_limited, v_left, v_now);
            END IF;
            EXIT WHEN cardinality(v_rooms.plain) + cardinality(v_rooms.turns) = 0;
            v_in_turns := v_rooms.turns;
            v_turns := {schema}.take_turns(p_queue, v_in_turns, v_rooms.turn_rooms, v_now);
            v_unseen := v_turns.unseen;
            v_gone := v_gone + v_turns.gone;
            SELECT f.free, f.keyed, f.wanted INTO v_free, v_keyed, v_wanted
            FROM {schema}.lock_limited(
                p_queue, v_left, v_rooms.plain, v_rooms.plain_rooms, v_turns.kinds,
                v_turns.places, v_turns.seqs, v_turns.groups, v_turns.priorities, v_turns.sinces
            ) AS f;
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
            v_best := v_kinds;
            IF cardinality(v_kinds) > greatest(v_left, 100) THEN
                -- The best jobs are of the kinds whose first jobs come first.
                v_best := ARRAY(
                    SELECT k.kind FROM unnest(v_kinds) AS k (kind)
                    CROSS JOIN LATERAL (
                        SELECT j.priority, j.since, j.seq FROM {schema}.jobs AS j
                        WHERE j.queue = p_queue AND j.kind = k.kind AND j.state = 0
                          AND (j.lapses = 0 OR j.lapsed IS DISTINCT FROM j.token)
                        ORDER BY j.priority DESC, j.since, j.seq LIMIT 1
                    ) AS f
                    ORDER BY f.priority DESC, f.since, f.seq LIMIT v_left
                );
            END IF;
            -- First without locks: how many of each kind are among the best? So no more rows are
            -- locked than taken, and rows locked by others are skipped.
            SELECT array_agg(n.kind), array_agg(n.count), sum(n.count)
            INTO v_some, v_counts, v_wanted
            FROM (
                SELECT best.kind, count(*)::integer AS count
                FROM (
                    SELECT c.kind FROM unnest(v_best) AS k (kind)
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
                ahead = p_ahead AND NOT v_suspect,
                limit_group = CASE WHEN j.kind = ANY (v_limited) THEN coalesce(j.limit_group, '')
                                   ELSE j.limit_group END
            WHERE j.seq = ANY (v_free)
            RETURNING j.seq, j.kind, j.payload, j.key, j.priority, j.attempt, j.created_at,
                      j.run_at, j."unique", j.headers, j.token, j.since,
                      CASE WHEN j.lapses > 0 THEN j.errors -> -1 ->> 2 END;
        IF v_charged AND v_suspect THEN
            PERFORM {schema}.charge_limits(
                p_queue, v_limited, v_free, NULL, NULL, NULL, NULL, NULL, NULL, v_now);
        ELSIF v_charged THEN
            PERFORM {schema}.charge_limits(
                p_queue, v_limited, v_free, v_in_turns, v_unseen, v_turns.kinds, v_turns.seqs,
                v_turns.groups, v_turns.lefts, v_now
            );
        END IF;
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
        SELECT j.since - v_now INTO v_again FROM {schema}.jobs AS j
        WHERE j.queue = p_queue AND j.state IN (1, 3) ORDER BY j.since LIMIT 1;
        IF v_again <= 0 AND v_promoted < 1000 THEN
            v_again := 0.1;  -- another transaction holds due jobs; ask again after a pause
        END IF;
        IF v_limited IS NOT NULL THEN
            v_again := least(v_again, {schema}.limits_again(
                p_queue, v_limited, v_in_turns, v_unseen, v_left < p_limit OR v_gone > 0, v_now
            ));
        END IF;
    END IF;
    IF v_left > 0 AND v_more THEN
        v_again := least(v_again, 0.1);  -- the next claim looks at other kinds
    END IF;
    RETURN QUERY SELECT
        NULL::bigint, CASE WHEN v_limits THEN {schema}.counted_kinds(p_queue, p_kinds) END,
        NULL::text, NULL::text, NULL::integer, v_suspect::integer,
        NULL::double precision, NULL::double precision, NULL::text, NULL::text, NULL::bigint,
        v_again, NULL::text;
END
$$;

-- Renew those of these leases that ran out, are of limited kinds, and have room in their limits. Returns
-- their places, and as negative numbers of those that were asked to cancel. Jobs are locked before limits: a claim holds jobs while it waits for limits, and waits
-- for nothing while it holds them.
CREATE FUNCTION {schema}.renew_late(
    p_queue text, p_seqs bigint[], p_tokens bigint[], p_workers text[], p_progress text[],
    p_lease double precision, p_now double precision
) RETURNS integer[]
LANGUAGE plpgsql
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET enable_sort = off
AS $$
DECLARE
    v_now double precision := {schema}.now_or(p_now);
    v_late bigint[];
    v_kinds text[];
    v_limited text[];
    v_job record;
    v_held integer[] := '{}';
BEGIN
    SELECT array_agg(l.seq), array_agg(DISTINCT l.kind) INTO v_late, v_kinds
    FROM (
        SELECT j.seq, j.kind FROM {schema}.jobs AS j
        WHERE j.seq = ANY (p_seqs) AND j.token = p_tokens[width_bucket(j.seq, p_seqs)]
          AND (j.state + 0 = 0 OR j.state + 0 = 3 AND j.since <= v_now)
        ORDER BY j.seq + 0 FOR NO KEY UPDATE
    ) AS l;
    IF v_late IS NULL THEN
        RETURN v_held;
    END IF;
    v_limited := {schema}.lock_limits(p_queue, v_kinds, p_now);
    v_now := {schema}.now_or(p_now);  -- others were waited for
    FOR v_job IN
        SELECT s.seq, width_bucket(s.seq, p_seqs) AS place, j.kind, j.key, j.state, j.cancel,
               coalesce(j.limit_group, '') COLLATE "default" AS limit_group, t.most, t.most_each
        FROM unnest(v_late) AS s (seq)
        CROSS JOIN LATERAL (SELECT * FROM {schema}.jobs AS f WHERE f.seq = s.seq OFFSET 0) AS j
        LEFT JOIN LATERAL (
            SELECT * FROM {schema}.limit_turns AS l
            WHERE l.queue = p_queue AND l.kind = j.kind AND j.kind = ANY (v_limited) OFFSET 0
        ) AS t ON true
    LOOP
        CONTINUE WHEN v_job.state = 0 AND EXISTS (
            SELECT 1 FROM {schema}.jobs AS o
            WHERE o.queue = p_queue AND o.key = v_job.key AND o.key IS NOT NULL AND o.state = 3
        );
        CONTINUE WHEN v_job.most <= (
            SELECT count(*) FROM (
                SELECT 1 FROM {schema}.jobs AS l
                WHERE l.queue = p_queue AND l.kind = v_job.kind AND l.state = 3
                  AND l.limit_group IS NOT NULL AND l.since > v_now
                ORDER BY l.limit_group, l.priority DESC, l.since, l.seq LIMIT v_job.most
            ) AS leased
        ) OR v_job.most_each <= (
            SELECT count(*) FROM (
                SELECT 1 FROM {schema}.jobs AS l
                WHERE l.queue = p_queue AND l.kind = v_job.kind AND l.state = 3
                  AND l.limit_group = v_job.limit_group AND l.limit_group IS NOT NULL
                  AND l.since > v_now
                ORDER BY l.limit_group, l.priority DESC, l.since, l.seq LIMIT v_job.most_each
            ) AS leased
        );
        UPDATE {schema}.jobs AS j SET
            state = 3, since = v_now + p_lease, worker = p_workers[v_job.place],
            limit_group = v_job.limit_group,
            progress = CASE WHEN p_progress[v_job.place] IS NULL THEN j.progress
                ELSE p_progress[v_job.place]::jsonb || to_jsonb(v_now) END
        WHERE j.seq = v_job.seq;
        v_held := v_held || v_job.place;
        IF v_job.cancel THEN
            v_held := v_held || -v_job.place;
        END IF;
    END LOOP;
    RETURN v_held;
END
$$;

-- Renew leases, as before. A lease that ran out, of a limited kind, is renewed only if its limits have
-- room for one more, because its room was free meanwhile; else it is lost. Rates do not count here.
CREATE OR REPLACE FUNCTION {schema}.renew(
    p_queue text, p_seqs bigint[], p_tokens bigint[], p_workers text[], p_progress text[],
    p_lease double precision, p_now double precision
) RETURNS integer[]
LANGUAGE plpgsql
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
AS $$
DECLARE
    v_now double precision := {schema}.now_or(p_now);
    v_held integer[];
    v_cancel integer[];
    v_late integer[];
BEGIN
    WITH held AS (
        UPDATE {schema}.jobs AS j SET
            state = 3, since = v_now + p_lease, worker = p_workers[width_bucket(j.seq, p_seqs)],
            progress = CASE WHEN p_progress[width_bucket(j.seq, p_seqs)] IS NULL THEN j.progress
                ELSE p_progress[width_bucket(j.seq, p_seqs)]::jsonb || to_jsonb(v_now) END
        WHERE j.seq = ANY (p_seqs) AND j.token = p_tokens[width_bucket(j.seq, p_seqs)]
          AND j.state IN (0, 3)
          AND (j.state = 3 AND j.since > v_now OR NOT EXISTS (
              SELECT 1 FROM {schema}.notes AS n
              WHERE n.queue = p_queue AND n.topic = 'limits' AND n.name = j.kind OFFSET 0
          ))
          AND (j.state = 3 OR j.key IS NULL OR NOT EXISTS (
              SELECT 1 FROM {schema}.jobs AS o
              WHERE o.queue = p_queue AND o.key = j.key AND o.key IS NOT NULL AND o.state = 3
              OFFSET 0
          ))
        RETURNING width_bucket(j.seq, p_seqs) AS place, j.cancel
    )
    SELECT array_agg(held.place), array_agg(-held.place) FILTER (WHERE held.cancel)
    INTO v_held, v_cancel FROM held;
    IF coalesce(cardinality(v_held), 0) < cardinality(p_seqs) THEN
        v_late := {schema}.renew_late(
            p_queue, p_seqs, p_tokens, p_workers, p_progress, p_lease, p_now);
        v_held := v_held || ARRAY(SELECT p FROM unnest(v_late) AS p WHERE p > 0);
        v_cancel := v_cancel || ARRAY(SELECT p FROM unnest(v_late) AS p WHERE p < 0);
    END IF;
    RETURN {schema}.missing(cardinality(p_seqs), v_held) || v_cancel;
END
$$;

-- Put jobs, all or none, as before; and keep the limit group in their headers, or '' for none if their
-- kind has limits.
CREATE OR REPLACE FUNCTION {schema}.put(
    p_queue text, p_kinds text[], p_payloads text[], p_priorities integer[],
    p_delays double precision[], p_run_ats double precision[], p_keys text[], p_uniques text[],
    p_headers text[], p_alone boolean, p_channel text, p_message text, p_now double precision
) RETURNS TABLE (
    ids text, fresh integer, place integer, twin_seq bigint, twin_kind text, twin_payload text
)
LANGUAGE plpgsql
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_now double precision := {schema}.now_or(p_now);
    v_held text[];
    v_seqs bigint[];
    v_new bigint[];
    v_open integer[];
    v_conflict record;
    v_number xid8 := pg_current_xact_id();  -- before it looks at limits, see `pass_over`
    v_limited text[];  -- those of the kinds that have limits
BEGIN
    IF NOT p_alone AND current_setting('transaction_isolation') <> 'read committed' THEN
        v_limited := p_kinds;  -- it may not see that they have some
    ELSIF EXISTS (SELECT 1 FROM {schema}.notes AS n
               WHERE n.queue = p_queue AND n.topic = 'limits') THEN
        v_limited := ARRAY(
            SELECT n.name FROM {schema}.notes AS n
            WHERE n.queue = p_queue AND n.topic = 'limits' AND n.name = ANY (p_kinds)
        );
    END IF;
    IF p_keys IS NOT NULL AND p_alone THEN
        v_held := {schema}.held_keys(p_queue, p_keys);
    END IF;

    IF p_uniques IS NULL THEN
        WITH given AS (
            SELECT g.*,
                   CASE WHEN g.run_at IS NOT NULL THEN greatest(g.run_at, v_now)
                        ELSE v_now + coalesce(g.delay, 0) END AS due,
                   CASE WHEN g.key IS NULL THEN 1
                        ELSE row_number() OVER (PARTITION BY g.key ORDER BY g.place) END AS nth
            FROM unnest(p_kinds, p_payloads, p_priorities, p_delays, p_run_ats, p_keys, p_headers)
                WITH ORDINALITY AS g (kind, payload, priority, delay, run_at, key, headers, place)
        ), put AS (
            INSERT INTO {schema}.jobs
                (queue, kind, payload, priority, state, since, run_at, created_at, key, headers,
                 limit_group)
            SELECT p_queue, g.kind, g.payload, coalesce(g.priority, 0),
                   CASE WHEN g.nth > 1 OR held.key IS NOT NULL THEN 2
                        WHEN g.due > v_now THEN 1 ELSE 0 END,
                   g.due, g.due, v_now, g.key, g.headers,
                   CASE WHEN g.headers LIKE '%"pollwise-limit-group"%'
                        THEN {schema}.limit_group_of(g.headers)
                        WHEN v_limited IS NOT NULL AND g.kind = ANY (v_limited) THEN '' END
            FROM given AS g LEFT JOIN unnest(v_held) AS held (key) ON held.key = g.key
            ORDER BY g.place
            RETURNING seq
        )
        SELECT string_agg(put.seq::text, ','), count(*) INTO ids, fresh FROM put;
    ELSE
        v_seqs := ARRAY(
            SELECT nextval(pg_get_serial_sequence('{schema}.jobs', 'seq'))
            FROM generate_series(1, cardinality(p_kinds))
        );
        BEGIN
            v_open := ARRAY(SELECT generate_series(1, cardinality(p_kinds)));
            v_new := '{}';
            LOOP
                -- In the order of the uniques, so that two puts that share some never deadlock.
                WITH put AS (
                    INSERT INTO {schema}.jobs
                        (seq, queue, kind, payload, priority, state, since, run_at, created_at,
                         key, "unique", headers, limit_group)
                    SELECT v_seqs[o.at], p_queue, p_kinds[o.at], p_payloads[o.at],
                           coalesce(p_priorities[o.at], 0),
                           CASE WHEN p_keys[o.at] IS NOT NULL THEN 2
                                WHEN t.due > v_now THEN 1 ELSE 0 END,
                           t.due, t.due, v_now, p_keys[o.at], p_uniques[o.at], p_headers[o.at],
                           CASE WHEN p_headers[o.at] LIKE '%"pollwise-limit-group"%'
                                THEN {schema}.limit_group_of(p_headers[o.at])
                                WHEN p_kinds[o.at] = ANY (v_limited) THEN '' END
                    FROM unnest(v_open) AS o (at)
                    CROSS JOIN LATERAL (
                        SELECT CASE WHEN p_run_ats[o.at] IS NOT NULL
                                    THEN greatest(p_run_ats[o.at], v_now)
                                    ELSE v_now + coalesce(p_delays[o.at], 0) END AS due
                    ) AS t
                    ORDER BY p_uniques[o.at] NULLS FIRST, o.at
                    ON CONFLICT (queue, "unique") WHERE "unique" IS NOT NULL DO NOTHING
                    RETURNING seq
                )
                SELECT v_new || coalesce(array_agg(put.seq), '{}') INTO v_new FROM put;

                -- Those not put have an equal in the table; its id is theirs, if it is the same job.
                -- Each is looked up by itself (OFFSET 0 enforces it): a plan made for an empty table
                -- would otherwise compare all with all.
                v_conflict := NULL;
                SELECT o.at, j.seq, j.kind, j.payload INTO v_conflict
                FROM unnest(v_open) AS o (at)
                CROSS JOIN LATERAL (
                    SELECT t.seq, t.kind, t.payload FROM {schema}.jobs AS t
                    WHERE t.queue = p_queue AND t."unique" = p_uniques[o.at]
                      AND t."unique" IS NOT NULL
                    OFFSET 0
                ) AS j
                WHERE j.kind <> p_kinds[o.at] OR j.payload <> p_payloads[o.at]
                ORDER BY o.at LIMIT 1;
                IF v_conflict.at IS NOT NULL THEN
                    RAISE EXCEPTION USING ERRCODE = 'PX001';
                END IF;
                SELECT array_agg(coalesce(j.seq, s.seq) ORDER BY s.at),
                       array_agg(s.at ORDER BY s.at)
                           FILTER (WHERE p_uniques[s.at] IS NOT NULL AND j.seq IS NULL)
                INTO v_seqs, v_open
                FROM unnest(v_seqs) WITH ORDINALITY AS s (seq, at)
                LEFT JOIN LATERAL (
                    SELECT t.seq FROM {schema}.jobs AS t
                    WHERE t.queue = p_queue AND t."unique" = p_uniques[s.at]
                      AND t."unique" IS NOT NULL
                    OFFSET 0
                ) AS j ON true;
                EXIT WHEN v_open IS NULL;  -- else one ended in between: repeat for those
            END LOOP;
        EXCEPTION WHEN SQLSTATE 'PX001' THEN
            ids := NULL;
            fresh := 0;
            place := v_conflict.at;
            twin_seq := v_conflict.seq;
            twin_kind := v_conflict.kind;
            twin_payload := v_conflict.payload;
            RETURN NEXT;
            RETURN;
        END;
        -- All jobs with a key were inserted as blocked; the first of a key without a front is its front.
        IF p_keys IS NOT NULL THEN
            UPDATE {schema}.jobs AS j
            SET state = CASE WHEN j.run_at > v_now THEN 1 ELSE 0 END
            WHERE j.seq = ANY (ARRAY(
                SELECT min(n.seq) FROM (
                    SELECT put.seq, put.key, false AS held FROM {schema}.jobs AS put
                    WHERE put.seq = ANY (v_new) AND put.key IS NOT NULL
                    UNION ALL
                    SELECT NULL, held.key, true FROM unnest(v_held) AS held (key)
                ) AS n
                GROUP BY n.key HAVING NOT bool_or(n.held)
            ));
        END IF;
        ids := array_to_string(v_seqs, ',');
        fresh := cardinality(v_new);
    END IF;

    IF p_message IS NOT NULL AND fresh > 0 THEN
        PERFORM pg_notify(p_channel, p_message);
    END IF;
    RETURN NEXT;
END
$$;

-- As `put`, for a batch in which some jobs replace the job that has their `unique`, as before; and
-- keep the limit group in their headers.
CREATE OR REPLACE FUNCTION {schema}.put_replacing(
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
    v_number xid8 := pg_current_xact_id();  -- before it looks at limits, see `pass_over`
    v_limited text[];  -- those of the kinds that have limits
BEGIN
    IF NOT p_alone AND current_setting('transaction_isolation') <> 'read committed' THEN
        v_limited := p_kinds;  -- it may not see that they have some
    ELSIF EXISTS (SELECT 1 FROM {schema}.notes AS n
               WHERE n.queue = p_queue AND n.topic = 'limits') THEN
        v_limited := ARRAY(
            SELECT n.name FROM {schema}.notes AS n
            WHERE n.queue = p_queue AND n.topic = 'limits' AND n.name = ANY (p_kinds)
        );
    END IF;
    BEGIN
        -- In the order of the rows, as all calls lock them, so that there is no deadlock.
        FOR v_found IN
            SELECT j.seq, j.kind, j.key, j.state, array_position(p_uniques, j."unique") AS at
            FROM {schema}.jobs AS j
            WHERE j.seq = ANY (ARRAY(
                SELECT u.seq FROM unnest(p_uniques, p_replaces) AS g (name, replaces)
                CROSS JOIN LATERAL (
                    SELECT t.seq FROM {schema}.jobs AS t
                    WHERE t.queue = p_queue AND t."unique" = g.name AND t."unique" IS NOT NULL
                    OFFSET 0
                ) AS u
                WHERE g.replaces
            ))
              AND p_replaces[array_position(p_uniques, j."unique")]
            ORDER BY j.seq + 0
            FOR UPDATE
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
                limit_group = CASE WHEN p_headers[v_found.at] LIKE '%"pollwise-limit-group"%'
                                   THEN {schema}.limit_group_of(p_headers[v_found.at])
                                   WHEN v_found.kind = ANY (v_limited)
                                        OR j.limit_group IS NOT NULL THEN '' END,
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

-- How the limits of a kind are used: a row without a name for the kind, then rows for its groups if
-- p_grouped, the fullest first. running: leased jobs. waiting: ready jobs, up to 1000; those without a
-- group are counted among the first 10,000 jobs of the kind. Of many groups, 1000 that wait and 1000
-- that run are examined, and p_most are returned.
CREATE FUNCTION {schema}.limit_use(
    p_queue text, p_kind text, p_grouped boolean, p_most integer, p_now double precision
) RETURNS TABLE (
    name text, running integer, waiting integer, full_at double precision, at double precision
)
LANGUAGE plpgsql
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET enable_sort = off
AS $$
#variable_conflict use_column
DECLARE
    v_now double precision := {schema}.now_or(p_now);
    v_loose integer;
BEGIN
    RETURN QUERY SELECT
        NULL::text,
        (SELECT count(*)::integer FROM (
             SELECT 1 FROM {schema}.jobs AS j
             WHERE j.queue = p_queue AND j.kind = p_kind AND j.state = 3
               AND j.limit_group IS NOT NULL
             ORDER BY j.limit_group, j.priority DESC, j.since, j.seq
         ) AS leased),
        (SELECT count(*)::integer FROM (
             SELECT 1 FROM {schema}.jobs AS j
             WHERE j.queue = p_queue AND j.kind = p_kind AND j.state = 0
             ORDER BY j.priority DESC, j.since, j.seq LIMIT 1000
         ) AS part),
        (SELECT t.full_at FROM {schema}.limit_turns AS t
         WHERE t.queue = p_queue AND t.kind = p_kind),
        v_now;
    IF NOT p_grouped THEN
        RETURN;
    END IF;
    SELECT count(*) INTO v_loose FROM (
        SELECT 1 FROM (
            SELECT j.limit_group FROM {schema}.jobs AS j
            WHERE j.queue = p_queue AND j.kind = p_kind AND j.state = 0
            ORDER BY j.priority DESC, j.since, j.seq LIMIT 10000
        ) AS front
        WHERE front.limit_group IS NULL LIMIT 1000
    ) AS part;
    RETURN QUERY
        WITH RECURSIVE each (state, name) AS (
            SELECT s.state, NULL::text COLLATE "C" FROM (VALUES (0), (3)) AS s (state)
            UNION ALL
            SELECT each.state, next.limit_group FROM each CROSS JOIN LATERAL (
                SELECT j.limit_group FROM {schema}.jobs AS j
                WHERE j.queue = p_queue AND j.kind = p_kind AND j.state = each.state
                  AND j.state IN (0, 3) AND j.limit_group IS NOT NULL
                  AND j.limit_group >= coalesce(each.name || chr(1), '')
                ORDER BY j.limit_group, j.priority DESC, j.since, j.seq LIMIT 1
            ) AS next
        )
        SELECT used.*, (
            SELECT g.full_at FROM {schema}.limit_groups AS g
            WHERE g.queue = p_queue AND g.kind = p_kind AND g.limit_group = used.name
        ), v_now
        FROM (
            SELECT found.name::text,
                   (SELECT count(*)::integer FROM (
                        SELECT 1 FROM {schema}.jobs AS j
                        WHERE j.queue = p_queue AND j.kind = p_kind AND j.state = 3
                          AND j.limit_group = found.name AND j.limit_group IS NOT NULL
                        ORDER BY j.limit_group, j.priority DESC, j.since, j.seq
                    ) AS leased) AS running,
                   (SELECT count(*)::integer + CASE WHEN found.name = '' THEN v_loose ELSE 0 END
                    FROM (
                        SELECT 1 FROM {schema}.jobs AS j
                        WHERE j.queue = p_queue AND j.kind = p_kind AND j.state = 0
                          AND j.limit_group BETWEEN found.name AND found.name
                          AND j.limit_group IS NOT NULL
                        ORDER BY j.limit_group, j.priority DESC, j.since, j.seq LIMIT 1000
                    ) AS part) AS waiting
            FROM (
                SELECT e.name FROM (SELECT * FROM each LIMIT 2002) AS e WHERE e.name IS NOT NULL
                UNION
                SELECT '' COLLATE "C" WHERE v_loose > 0
            ) AS found
            OFFSET 0
        ) AS used
        ORDER BY used.running + used.waiting DESC, used.name COLLATE "C" LIMIT p_most;
END
$$;

-- Delete rows that are no longer needed: of kinds that have no limits, and of groups, the next 1000
-- after a kind and a group. Returns the last of these. Times that are too late, because the clock was
-- set back, are lowered.
CREATE FUNCTION {schema}.prune_limits(
    p_queue text, p_kind text, p_group text, p_now double precision
) RETURNS TABLE (kind text, limit_group text)
LANGUAGE plpgsql
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET enable_sort = off
AS $$
#variable_conflict use_column
DECLARE
    v_now double precision := {schema}.now_or(p_now);
BEGIN
    DELETE FROM {schema}.limit_turns AS t WHERE t.queue = p_queue AND t.kind = ANY (ARRAY(
        SELECT o.kind FROM {schema}.limit_turns AS o
        WHERE o.queue = p_queue AND o.full_at <= v_now AND NOT EXISTS (
            SELECT 1 FROM {schema}.notes AS n
            WHERE n.queue = p_queue AND n.topic = 'limits' AND n.name = o.kind
            OFFSET 0
        )
        LIMIT 1000 FOR UPDATE SKIP LOCKED
    ));
    RETURN QUERY
        WITH examined AS MATERIALIZED (
            SELECT g.kind, g.limit_group, (
                SELECT t.burst_each * t.step_each FROM {schema}.limit_turns AS t
                WHERE t.queue = p_queue AND t.kind = g.kind
            ) AS most
            FROM {schema}.limit_groups AS g
            WHERE g.queue = p_queue AND (g.kind, g.limit_group) > (p_kind, p_group)
            ORDER BY g.kind, g.limit_group LIMIT 1000
        ), locked AS MATERIALIZED (
            SELECT o.place, o.full_at
            FROM examined AS e
            CROSS JOIN LATERAL (
                SELECT g.ctid AS place, g.full_at FROM {schema}.limit_groups AS g
                WHERE g.queue = p_queue AND g.kind = e.kind AND g.limit_group = e.limit_group
                  AND (g.full_at <= v_now OR g.full_at > v_now + e.most + 1e-6)
                FOR UPDATE SKIP LOCKED
            ) AS o
        ), gone AS (
            DELETE FROM {schema}.limit_groups AS g WHERE g.ctid = ANY (ARRAY(
                SELECT l.place FROM locked AS l WHERE l.full_at <= v_now
            ))
        ), lowered AS (
            UPDATE {schema}.limit_groups AS g SET full_at = v_now + (
                SELECT t.burst_each * t.step_each FROM {schema}.limit_turns AS t
                WHERE t.queue = p_queue AND t.kind = g.kind
            )
            WHERE g.ctid = ANY (ARRAY(SELECT l.place FROM locked AS l WHERE l.full_at > v_now))
        )
        SELECT e.kind, e.limit_group::text FROM examined AS e
        ORDER BY e.kind DESC, e.limit_group DESC LIMIT 1;
END
$$;
