-- Version 6: the locations of nodes, and failures that several locations confirm.
--
-- The node that holds a target asks the other locations to poll it; one node of each location takes
-- the question, polls the target once and answers. A row is both: the question that no node took yet,
-- and the last answer. Rows are deleted a day after their last use.

ALTER TABLE {schema}.fleet_nodes ADD COLUMN location text NOT NULL DEFAULT 'default';

-- asked_at: NULL if a node took the question. answered: the asked_at of the question that was
-- answered at `at`.
CREATE TABLE {schema}.fleet_locations (
    fleet    text NOT NULL,
    name     text NOT NULL,
    location text NOT NULL,
    asked_at double precision,
    answered double precision,
    at       double precision NOT NULL,
    ok       boolean,
    took     double precision,
    error    text,
    PRIMARY KEY (fleet, name, location)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE INDEX fleet_locations_asked ON {schema}.fleet_locations (fleet, location)
    WHERE asked_at IS NOT NULL;

-- Renew a node's lease, as `fleet_renew`, and say where it is.
-- Returns also the locations of all living nodes, as a JSON array.
CREATE FUNCTION {schema}.fleet_renew_at(
    p_fleet text, p_node text, p_id bigint, p_lease double precision, p_location text,
    p_now double precision
) RETURNS TABLE (
    id bigint, nodes integer, free bigint, ends double precision, locations text
)
LANGUAGE plpgsql AS $$
DECLARE
    v_id bigint;
    v_nodes integer;
    v_free bigint;
    v_ends double precision;
BEGIN
    SELECT r.id, r.nodes, r.free, r.ends INTO v_id, v_nodes, v_free, v_ends
        FROM {schema}.fleet_renew(p_fleet, p_node, p_id, p_lease, p_now) AS r;
    UPDATE {schema}.fleet_nodes AS n SET location = p_location
        WHERE n.id = v_id AND n.location <> p_location;
    RETURN QUERY SELECT v_id, v_nodes, v_free, v_ends, (
        SELECT json_agg(DISTINCT n.location)::text FROM {schema}.fleet_nodes AS n
        WHERE n.fleet = p_fleet AND (n.until > {schema}.fleet_now(p_now) OR n.id = v_id)
    );
END
$$;

-- Ask the living locations other than p_location to poll these targets. Returns when.
CREATE FUNCTION {schema}.fleet_ask_locations(
    p_fleet text, p_names text[], p_location text, p_kept double precision,
    p_now double precision
) RETURNS double precision
LANGUAGE plpgsql AS $$
DECLARE
    v_now double precision := {schema}.fleet_now(p_now);
BEGIN
    DELETE FROM {schema}.fleet_locations AS l
        WHERE l.fleet = p_fleet AND l.at < v_now - p_kept;
    INSERT INTO {schema}.fleet_locations AS l (fleet, name, location, asked_at, at)
        SELECT p_fleet, given.name, elsewhere.location, v_now, v_now
        FROM (SELECT DISTINCT unnest(p_names) AS name) AS given, (
            SELECT DISTINCT n.location FROM {schema}.fleet_nodes AS n
            WHERE n.fleet = p_fleet AND n.until > v_now AND n.location <> p_location
        ) AS elsewhere
        ORDER BY 2, 3
        ON CONFLICT (fleet, name, location) DO UPDATE SET asked_at = excluded.asked_at;
    RETURN v_now;
END
$$;

-- Take the questions for this location, the oldest first. Those older than p_within are dropped: the
-- node that asked has decided without this location.
CREATE FUNCTION {schema}.fleet_take_asked(
    p_fleet text, p_location text, p_limit integer, p_within double precision,
    p_now double precision
) RETURNS TABLE (name text, asked_at double precision)
LANGUAGE plpgsql AS $$
DECLARE
    v_now double precision := {schema}.fleet_now(p_now);
BEGIN
    RETURN QUERY
        WITH picked AS MATERIALIZED (
            SELECT l.name AS name, l.asked_at AS asked_at FROM {schema}.fleet_locations AS l
            WHERE l.fleet = p_fleet AND l.location = p_location AND l.asked_at IS NOT NULL
            ORDER BY l.asked_at LIMIT p_limit FOR UPDATE SKIP LOCKED
        ), taken AS (
            UPDATE {schema}.fleet_locations AS l SET asked_at = NULL FROM picked
            WHERE l.fleet = p_fleet AND l.name = picked.name AND l.location = p_location
            RETURNING picked.name AS name, picked.asked_at AS asked_at
        )
        SELECT taken.name, taken.asked_at FROM taken WHERE taken.asked_at > v_now - p_within
        ORDER BY taken.asked_at;
END
$$;
