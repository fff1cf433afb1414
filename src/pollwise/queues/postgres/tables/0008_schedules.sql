-- Version 8: schedules, which are notes with the topic `schedules`.
--
-- Only a function: no table, no index and no lock, so that this takes no time on a table of any size.

-- Replace a note, such as that of a schedule, if its value is p_expected (NULL: there is none), and put one job, all
-- or nothing. p_value: the new value, NULL deletes the note; with a job (p_kind is not NULL), the job's
-- id and p_tail are added to it. p_stamp: a new value for the note without a name, which tells workers
-- that schedules were changed; NULL leaves it. Returns whether it was done, the value that the note has
-- now, and the id of the job.
CREATE FUNCTION {schema}.swap_schedule(
    p_queue text, p_topic text, p_name text, p_expected text, p_value text, p_tail text, p_ttl double precision,
    p_stamp text, p_kind text, p_payload text, p_priority integer, p_run_at double precision,
    p_key text, p_headers text, p_now double precision,
    OUT done boolean, OUT value text, OUT job text
)
LANGUAGE plpgsql
SET enable_seqscan = off
AS $$
DECLARE
    v_now double precision := {schema}.now_or(p_now);
BEGIN
    done := false;
    -- First without a lock: of many workers that see a tick, all but one usually end here.
    SELECT n.value INTO value FROM {schema}.notes AS n
    WHERE n.queue = p_queue AND n.topic = p_topic AND n.name = p_name
      AND (n.until IS NULL OR n.until > v_now);
    IF value IS DISTINCT FROM p_expected THEN
        RETURN;
    END IF;
    IF p_expected IS NULL THEN
        DELETE FROM {schema}.notes AS n
        WHERE n.queue = p_queue AND n.topic = p_topic AND n.name = p_name AND n.until <= v_now;
        IF p_value IS NOT NULL THEN
            INSERT INTO {schema}.notes AS n (queue, topic, name, value, until)
            VALUES (p_queue, p_topic, p_name, p_value, v_now + p_ttl)
            ON CONFLICT (queue, topic, name) DO NOTHING;
            IF NOT FOUND THEN  -- another call was first
                SELECT n.value INTO value FROM {schema}.notes AS n
                WHERE n.queue = p_queue AND n.topic = p_topic AND n.name = p_name;
                RETURN;
            END IF;
        END IF;
        value := p_value;
    ELSE
        SELECT n.value INTO value FROM {schema}.notes AS n
        WHERE n.queue = p_queue AND n.topic = p_topic AND n.name = p_name
        FOR UPDATE;
        IF value IS DISTINCT FROM p_expected THEN
            RETURN;
        END IF;
        value := p_value;
        IF p_kind IS NOT NULL THEN
            SELECT put.ids INTO job FROM {schema}.put(
                p_queue, ARRAY[p_kind], ARRAY[p_payload], ARRAY[p_priority], NULL,
                CASE WHEN p_run_at IS NOT NULL THEN ARRAY[p_run_at] END,
                CASE WHEN p_key IS NOT NULL THEN ARRAY[p_key] END, NULL,
                CASE WHEN p_headers IS NOT NULL THEN ARRAY[p_headers] END,
                true, NULL, NULL, p_now
            ) AS put;
            value := p_value || job || p_tail;
        END IF;
        IF value IS NULL THEN
            DELETE FROM {schema}.notes AS n
            WHERE n.queue = p_queue AND n.topic = p_topic AND n.name = p_name;
        ELSE
            UPDATE {schema}.notes AS n SET value = swap_schedule.value, until = v_now + p_ttl
            WHERE n.queue = p_queue AND n.topic = p_topic AND n.name = p_name;
        END IF;
    END IF;
    IF p_stamp IS NOT NULL THEN
        INSERT INTO {schema}.notes AS n (queue, topic, name, value)
        VALUES (p_queue, 'schedules', '', p_stamp)
        ON CONFLICT (queue, topic, name) DO UPDATE SET value = excluded.value;
    END IF;
    done := true;
END
$$;
