-- Version 7: the hours of targets have a table of their own, with a fixed number of places for each target.
--
-- In `fleet_rollups`, each hour is a row with a new key, and an old row goes. That leaves the pages of its
-- index half empty: after three months, it is four times as large as its entries.

-- slot: `at` modulo 192, so that an hour replaces the one of eight days before. at: hours since 1970.
-- down, maintenance: as in `fleet_rollups`; NULL for 0, as in most hours.
CREATE TABLE {schema}.fleet_hours (
    target      integer NOT NULL,
    at          integer NOT NULL,
    up          integer NOT NULL,
    down        integer,
    maintenance integer,
    slot        smallint NOT NULL,
    figures     bytea NOT NULL,
    PRIMARY KEY (target, slot)
) WITH (autovacuum_vacuum_scale_factor = 0.05);

-- All hours and days: `fleet_rollups` has the days, and the hours that an earlier version saved.
CREATE VIEW {schema}.fleet_past AS
    SELECT target, length, at, up, down, maintenance, figures FROM {schema}.fleet_rollups
    UNION ALL
    SELECT target, 0::smallint, at, up, coalesce(down, 0), coalesce(maintenance, 0), figures
    FROM {schema}.fleet_hours;

-- Save finished hours, except those of p_refused. `fleet_keep_history` saves days and periods.
CREATE FUNCTION {schema}.fleet_keep_hours(
    p_fleet text, p_refused text[],
    p_names text[], p_ats integer[], p_ups integer[], p_downs integer[], p_maintenances integer[],
    p_figures text[]
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_slots CONSTANT integer := 192;
BEGIN
    INSERT INTO {schema}.fleet_history_targets (fleet, name)
        SELECT p_fleet, given.name
        FROM (SELECT DISTINCT name FROM unnest(p_names) AS n (name)) AS given
        WHERE given.name <> ALL (p_refused) AND NOT EXISTS (
            SELECT 1 FROM {schema}.fleet_history_targets AS h
            WHERE h.fleet = p_fleet AND h.name = given.name
        )
        ORDER BY given.name
        ON CONFLICT DO NOTHING;
    INSERT INTO {schema}.fleet_hours AS f (target, at, up, down, maintenance, slot, figures)
        SELECT DISTINCT ON (h.id, g.at % v_slots)
            h.id, g.at, g.up, nullif(g.down, 0), nullif(g.maintenance, 0), g.at % v_slots,
            decode(g.figures, 'base64')
        FROM unnest(p_names, p_ats, p_ups, p_downs, p_maintenances, p_figures)
            WITH ORDINALITY AS g (name, at, up, down, maintenance, figures, place)
        JOIN {schema}.fleet_history_targets AS h ON h.fleet = p_fleet AND h.name = g.name
        WHERE g.name <> ALL (p_refused)
        ORDER BY h.id, g.at % v_slots, g.at DESC, g.place DESC
        ON CONFLICT (target, slot) DO UPDATE SET
            at = excluded.at, up = excluded.up, down = excluded.down,
            maintenance = excluded.maintenance, figures = excluded.figures
        WHERE f.at <= excluded.at;
    -- The hours of earlier versions, once a day for each target.
    DELETE FROM {schema}.fleet_rollups AS r
        USING (
            SELECT h.id AS id, max(g.at) AS at FROM unnest(p_names, p_ats) AS g (name, at)
            JOIN {schema}.fleet_history_targets AS h ON h.fleet = p_fleet AND h.name = g.name
            WHERE g.at % 24 = 0 AND g.name <> ALL (p_refused)
            GROUP BY h.id
        ) AS d
        WHERE r.target = d.id AND r.length = 0 AND r.at <= d.at - v_slots;
END
$$;
