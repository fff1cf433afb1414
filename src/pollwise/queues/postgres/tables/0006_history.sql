-- Version 6: what workers did, minute by minute. Workers can do without it.
--
-- level: 0 the minute of one worker, 1 a minute of all, 2 an hour of all.
-- at: when the minute or hour began, in seconds since 1970. writer: the worker, or ''.
-- value: the figures, as JSON.

CREATE TABLE {schema}.history (
    queue  text     NOT NULL,
    level  smallint NOT NULL,
    at     bigint   NOT NULL,
    writer text     NOT NULL,
    value  text     NOT NULL,
    PRIMARY KEY (queue, level, at, writer)
);

-- Delete old rows and write new ones. Returns false, and changes nothing, if an old row is not there
-- any more or is being replaced by another call, or if a new one is there and not among the old.
CREATE FUNCTION {schema}.replace_history(
    p_queue text, p_levels smallint[], p_ats bigint[], p_writers text[],
    p_new_levels smallint[], p_new_ats bigint[], p_new_writers text[], p_new_values text[]
) RETURNS boolean
LANGUAGE plpgsql
SET enable_seqscan = off SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_found tid[];
BEGIN
    -- Each by itself, and then where it lies: a plan could compare all old rows with all rows.
    v_found := ARRAY(
        SELECT h.place FROM unnest(p_levels, p_ats, p_writers) AS o (level, at, writer)
        CROSS JOIN LATERAL (
            SELECT t.ctid AS place FROM {schema}.history AS t
            WHERE t.queue = p_queue AND t.level = o.level AND t.at = o.at AND t.writer = o.writer
            FOR UPDATE SKIP LOCKED
        ) AS h
    );
    IF cardinality(v_found) <> cardinality(p_levels) THEN
        RETURN false;
    END IF;
    DELETE FROM {schema}.history AS h WHERE h.ctid = ANY (v_found);
    INSERT INTO {schema}.history (queue, level, at, writer, value)
    SELECT p_queue, n.level, n.at, n.writer, n.value
    FROM unnest(p_new_levels, p_new_ats, p_new_writers, p_new_values)
        AS n (level, at, writer, value);
    RETURN true;
EXCEPTION WHEN unique_violation THEN
    RETURN false;
END
$$;
