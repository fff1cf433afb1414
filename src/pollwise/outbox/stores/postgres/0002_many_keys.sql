-- Version 2: while an open transaction with many keys delays all keys, claims are repeated, as for a
-- key that a transaction with few keys delays. Before, nothing told when it was rolled back, and
-- what it had delayed waited for the next poll of an idle relay.

CREATE OR REPLACE FUNCTION {schema}.outbox_bounds(
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
    -- One delayed key is enough to repeat the claim soon. It is due at once, finds nothing below its
    -- bound, and waits as long as any delayed key.
    IF last_keyed < last AND NOT EXISTS (
        SELECT 1 FROM {schema}.outbox_keys AS k WHERE k.outbox = p_outbox AND k.state = 1
    ) THEN
        INSERT INTO {schema}.outbox_keys (outbox, line, state, due)
        SELECT p_outbox, r.line, 1, r.created_at
        FROM (
            SELECT f.line, f.key, f.created_at FROM {schema}.outbox_records AS f
            WHERE f.outbox = p_outbox AND f.state = 0
              AND f.seq + 0 > last_keyed AND f.seq + 0 <= last
            ORDER BY f.seq + 0 LIMIT 1000
        ) AS r
        WHERE r.key IS NOT NULL
          AND (SELECT true FROM {schema}.outbox_keys AS o WHERE o.line = r.line) IS NULL
        LIMIT 1
        ON CONFLICT DO NOTHING;
    END IF;
END
$$;
