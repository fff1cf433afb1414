-- Version 2: pages and counts of targets without reading their readings.
--
-- type, group: of the target's definition.
-- The index has no times: each poll changes them, and the row could not be updated in place.

ALTER TABLE {schema}.fleet_targets ADD COLUMN type text;

ALTER TABLE {schema}.fleet_targets ADD COLUMN "group" text;

CREATE INDEX fleet_targets_view ON {schema}.fleet_targets (fleet, state, "group", paused, name);

-- As before, with the types and groups.
CREATE FUNCTION {schema}.fleet_save(
    p_fleet text, p_names text[], p_tokens bigint[], p_dues double precision[],
    p_pauseds boolean[], p_states text[], p_failures integer[], p_errors text[],
    p_polled double precision[], p_succeeded double precision[], p_failed double precision[],
    p_changed double precision[], p_intervals double precision[], p_mores text[],
    p_types text[], p_groups text[]
) RETURNS SETOF text
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO {schema}.fleet_targets (fleet, name)
        SELECT p_fleet, given.name FROM unnest(p_names, p_tokens) AS given (name, token)
        WHERE given.token IS NULL ORDER BY given.name
        ON CONFLICT DO NOTHING;
    -- Lock in one order, so that two saves do not deadlock.
    PERFORM 1 FROM {schema}.fleet_targets AS t
        WHERE t.fleet = p_fleet AND t.name = ANY (p_names) ORDER BY t.name FOR NO KEY UPDATE;
    RETURN QUERY
        WITH given AS (
            SELECT * FROM unnest(
                p_names, p_tokens, p_dues, p_pauseds, p_states, p_failures, p_errors,
                p_polled, p_succeeded, p_failed, p_changed, p_intervals, p_mores, p_types, p_groups
            ) AS g (
                name, token, due, paused, state, failures, error,
                polled_at, succeeded_at, failed_at, changed_at, ival, more, type, grp
            )
        ), kept AS (
            UPDATE {schema}.fleet_targets AS t SET
                due = given.due, paused = given.paused, state = given.state,
                failures = given.failures, error = given.error, polled_at = given.polled_at,
                succeeded_at = given.succeeded_at, failed_at = given.failed_at,
                changed_at = given.changed_at, "interval" = given.ival, more = given.more,
                type = given.type, "group" = given.grp
            FROM given
            WHERE t.fleet = p_fleet AND t.name = given.name
              AND coalesce(given.token, 0) = t.token
            RETURNING t.name AS name
        )
        SELECT given.name FROM given LEFT JOIN kept ON kept.name = given.name
        WHERE kept.name IS NULL;
END
$$;
