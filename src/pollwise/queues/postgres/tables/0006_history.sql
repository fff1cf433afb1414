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
AS $$
DECLARE
    v_found integer;
BEGIN
    SELECT count(*) INTO v_found FROM (
        SELECT 1 FROM unnest(p_levels, p_ats, p_writers) AS o (level, at, writer)
        JOIN {schema}.history AS h
            ON h.queue = p_queue AND h.level = o.level AND h.at = o.at AND h.writer = o.writer
        FOR UPDATE OF h SKIP LOCKED
    ) AS locked;
    IF v_found <> cardinality(p_levels) THEN
        RETURN false;
    END IF;
    DELETE FROM {schema}.history AS h
    USING unnest(p_levels, p_ats, p_writers) AS o (level, at, writer)
    WHERE h.queue = p_queue AND h.level = o.level AND h.at = o.at AND h.writer = o.writer;
    INSERT INTO {schema}.history (queue, level, at, writer, value)
    SELECT p_queue, n.level, n.at, n.writer, n.value
    FROM unnest(p_new_levels, p_new_ats, p_new_writers, p_new_values)
        AS n (level, at, writer, value);
    RETURN true;
EXCEPTION WHEN unique_violation THEN
    RETURN false;
END
$$;
