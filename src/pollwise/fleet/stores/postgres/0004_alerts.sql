-- Version 4: alerts and maintenance windows. Times are seconds since 1970.
--
-- Notices are records of the outbox "fleet-NAME-alerts" in the same schema.

-- rule: which rule of its target opened it. since: when its condition began to hold.
-- sent: how often it was sent.
CREATE TABLE {schema}.fleet_alerts (
    fleet           text NOT NULL,
    id              text COLLATE "C" NOT NULL,  -- sorted by when they opened
    target          text NOT NULL,
    "group"         text,
    rule            text NOT NULL,
    "when"          text NOT NULL,
    severity        text NOT NULL,
    state           text NOT NULL,  -- open or closed
    since           double precision NOT NULL,
    opened_at       double precision NOT NULL,
    closed_at       double precision,
    summary         text NOT NULL,
    acknowledged_at double precision,
    acknowledged_by text,
    note            text NOT NULL DEFAULT '',
    sent            integer NOT NULL,
    last_sent_at    double precision,
    PRIMARY KEY (fleet, id)
);

CREATE INDEX fleet_alerts_open ON {schema}.fleet_alerts (fleet, id) WHERE state = 'open';

CREATE INDEX fleet_alerts_target ON {schema}.fleet_alerts (fleet, target, id);

CREATE INDEX fleet_alerts_closed ON {schema}.fleet_alerts (fleet, closed_at)
    WHERE closed_at IS NOT NULL;

-- Times in which alerts are held back.
-- targets, groups: JSON lists of names; both empty for all targets.
-- every: when it recurs, such as "Sat,Sun 02:00-04:00 Europe/Zurich"; NULL for once.
-- starts_at, ends_at: of a window that does not recur; of one that does, its first and last time.
CREATE TABLE {schema}.fleet_maintenance (
    fleet     text NOT NULL,
    id        text COLLATE "C" NOT NULL,
    targets   text NOT NULL DEFAULT '[]',
    groups    text NOT NULL DEFAULT '[]',
    every     text,
    starts_at double precision,
    ends_at   double precision,
    note      text NOT NULL DEFAULT '',
    made_by   text NOT NULL DEFAULT '',
    made_at   double precision NOT NULL,
    PRIMARY KEY (fleet, id)
);

-- Save alerts and put notices, except those of targets in p_refused. A closed alert stays closed;
-- what people noted stays, and so does the summary. A notice whose `unique` is known was put before.
-- p_alerts: a list of objects with the columns' names. p_notices: a list of [target, record], each
-- record as outbox_put_more takes it. p_kept, p_most: how long closed alerts are kept, and how many
-- of one target.
CREATE FUNCTION {schema}.fleet_keep_alerts(
    p_fleet text, p_outbox text, p_refused text[], p_alerts text, p_notices text,
    p_kept double precision, p_most integer, p_now double precision
) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_now double precision := {schema}.fleet_now(p_now);
    v_records json;
    v_target text;
BEGIN
    INSERT INTO {schema}.fleet_alerts AS a (
        fleet, id, target, "group", rule, "when", severity, state, since, opened_at, closed_at,
        summary, sent, last_sent_at
    )
    SELECT p_fleet, g.id, g.target, g."group", g.rule, g."when", g.severity, g.state, g.since,
           g.opened_at, g.closed_at, g.summary, g.sent, g.last_sent_at
    FROM json_to_recordset(p_alerts::json) AS g (
        id text, target text, "group" text, rule text, "when" text, severity text, state text,
        since double precision, opened_at double precision, closed_at double precision,
        summary text, sent integer, last_sent_at double precision
    )
    WHERE g.target <> ALL (p_refused) ORDER BY g.id
    ON CONFLICT (fleet, id) DO UPDATE SET
        state = excluded.state, closed_at = excluded.closed_at, sent = excluded.sent,
        last_sent_at = excluded.last_sent_at
        WHERE a.state = 'open';
    SELECT json_agg(n.each -> 1 ORDER BY n.place) INTO v_records
        FROM json_array_elements(p_notices::json) WITH ORDINALITY AS n (each, place)
        WHERE n.each ->> 0 <> ALL (p_refused);
    IF v_records IS NOT NULL THEN
        PERFORM * FROM {schema}.outbox_put_more(p_outbox, v_records::text, NULL, p_now);
    END IF;
    DELETE FROM {schema}.fleet_alerts AS a
        WHERE a.fleet = p_fleet AND a.closed_at <= v_now - p_kept;
    FOR v_target IN
        SELECT DISTINCT g.target
        FROM json_to_recordset(p_alerts::json) AS g (target text, state text)
        WHERE g.state = 'closed' AND g.target <> ALL (p_refused) ORDER BY 1
    LOOP
        DELETE FROM {schema}.fleet_alerts AS a
            WHERE a.fleet = p_fleet AND a.target = v_target AND a.state = 'closed' AND a.id <= (
                SELECT o.id FROM {schema}.fleet_alerts AS o
                WHERE o.fleet = p_fleet AND o.target = v_target AND o.state = 'closed'
                ORDER BY o.id DESC OFFSET p_most LIMIT 1
            );
    END LOOP;
END
$$;
