-- Version 5: targets that are defined in the store, by the API and the command line.
--
-- definition: the table of the target as JSON, with its ${NAME} as written; NULL if it was removed.
-- version: counts the changes of the fleet's definitions, so that nodes ask only for new ones.
-- defined_by: the command line and its user, or the API and the client's address.

CREATE TABLE {schema}.fleet_definitions (
    fleet      text NOT NULL,
    name       text NOT NULL,
    definition text,
    version    bigint NOT NULL,
    defined_by text NOT NULL,
    at         double precision NOT NULL,
    PRIMARY KEY (fleet, name)
);

CREATE INDEX fleet_definitions_version ON {schema}.fleet_definitions (fleet, version);

-- Keep definitions; all or none. NULL removes one.
-- p_expected: for each name the version that it must have, 0 if it must not exist, NULL for any.
-- p_kept: seconds that a removed definition is remembered. p_limit: the most definitions of a fleet.
-- Returns the new version; or -1 if there would be too many, and names whose version is another.
-- Changes of one fleet run one after another, so that a reader never sees a version before a
-- smaller one.
CREATE FUNCTION {schema}.fleet_define(
    p_fleet text, p_names text[], p_definitions text[], p_expected bigint[], p_by text,
    p_kept double precision, p_limit integer, p_now double precision
) RETURNS TABLE (version bigint, conflict text)
LANGUAGE plpgsql AS $$
DECLARE
    v_version bigint;
    v_now double precision;
    v_added integer;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('pollwise definitions ' || p_fleet, 0));
    RETURN QUERY
        SELECT 0::bigint, given.name
        FROM unnest(p_names, p_expected) AS given (name, expected)
        LEFT JOIN {schema}.fleet_definitions AS d
            ON d.fleet = p_fleet AND d.name = given.name AND d.definition IS NOT NULL
        WHERE given.expected <> coalesce(d.version, 0);
    IF FOUND THEN
        RETURN;
    END IF;
    v_now := {schema}.fleet_now(p_now);
    SELECT coalesce(max(d.version), 0) + 1 INTO v_version
        FROM {schema}.fleet_definitions AS d WHERE d.fleet = p_fleet;
    SELECT count(*) INTO v_added
        FROM unnest(p_names, p_definitions) AS given (name, definition)
        LEFT JOIN {schema}.fleet_definitions AS d
            ON d.fleet = p_fleet AND d.name = given.name AND d.definition IS NOT NULL
        WHERE given.definition IS NOT NULL AND d.name IS NULL;
    IF v_added > 0 AND v_added + (
        SELECT count(*) FROM {schema}.fleet_definitions AS d
        WHERE d.fleet = p_fleet AND d.definition IS NOT NULL
    ) > p_limit THEN
        RETURN QUERY SELECT -1::bigint, NULL::text;
        RETURN;
    END IF;
    DELETE FROM {schema}.fleet_definitions AS d
        WHERE d.fleet = p_fleet AND d.definition IS NULL AND d.at <= v_now - p_kept;
    INSERT INTO {schema}.fleet_definitions AS d (fleet, name, definition, version, defined_by, at)
        SELECT p_fleet, given.name, given.definition, v_version, p_by, v_now
        FROM unnest(p_names, p_definitions) AS given (name, definition)
        ON CONFLICT ON CONSTRAINT fleet_definitions_pkey DO UPDATE SET
            definition = excluded.definition, version = excluded.version,
            defined_by = excluded.defined_by, at = excluded.at;
    RETURN QUERY SELECT v_version, NULL::text;
END
$$;
