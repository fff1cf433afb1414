-- name: put
-- :records is a JSON list of [kind, payload, key, headers], payload and headers as JSON text.
INSERT INTO pollwise_outbox (outbox, kind, payload, "key", headers, created_at)
SELECT :outbox, json_extract(value, '$[0]'), json_extract(value, '$[1]'),
       json_extract(value, '$[2]'), json_extract(value, '$[3]'),
       coalesce(:now, (julianday('now') - 2440587.5) * 86400.0)
FROM json_each(:records) WHERE true ORDER BY json_each.key
RETURNING seq;

-- name: taken
SELECT "unique", seq, kind, payload FROM pollwise_outbox
WHERE outbox = :outbox AND "unique" IN (SELECT value FROM json_each(:uniques));

-- name: put_more
-- As put, and of each record also a delay, a moment and a `unique`.
INSERT INTO pollwise_outbox
    (outbox, kind, payload, "key", headers, "unique", created_at, state, since)
SELECT :outbox, json_extract(each, '$[0]'), json_extract(each, '$[1]'), json_extract(each, '$[2]'),
       json_extract(each, '$[3]'), json_extract(each, '$[6]'), due,
       CASE WHEN due > now THEN 5 ELSE 0 END, CASE WHEN due > now THEN due END
FROM (
    SELECT given.value AS each, given.key AS place, c.now,
           max(c.now, coalesce(c.now + json_extract(given.value, '$[4]'),
                               json_extract(given.value, '$[5]') + 0.0, c.now)) AS due
    FROM json_each(:records) AS given,
         (SELECT coalesce(:now, (julianday('now') - 2440587.5) * 86400.0) + 0.0 AS now) AS c
)
WHERE true ORDER BY place
RETURNING seq;

-- name: promote
-- Delayed records that are due are new, at their old place.
UPDATE pollwise_outbox SET state = 0, since = NULL
WHERE outbox = :outbox AND state = 5 AND since <= :now;

-- name: lanes
SELECT lane FROM pollwise_outbox_lanes WHERE outbox = :outbox ORDER BY lane;

-- name: add_lane
INSERT INTO pollwise_outbox_lanes (outbox, lane) VALUES (:outbox, :lane) ON CONFLICT DO NOTHING;

-- name: forget_lanes
DELETE FROM pollwise_outbox_lanes
WHERE outbox = :outbox AND lane NOT IN (SELECT value FROM json_each(:besides)) AND NOT EXISTS (
    SELECT 1 FROM pollwise_outbox AS r
    WHERE r.outbox = :outbox || char(30) || lane AND r.state < 2
) AND NOT EXISTS (
    SELECT 1 FROM pollwise_outbox AS r
    WHERE r.outbox = :outbox || char(30) || lane AND r.state >= 2 AND r.state = 2
);

-- name: copy
-- The copy of a record for a lane, in the lane's outbox.
INSERT INTO pollwise_outbox (outbox, kind, payload, "key", headers, created_at, progress, origin)
SELECT outbox || char(30) || :lane, kind, payload, "key", headers, created_at, :progress, seq
FROM pollwise_outbox WHERE seq = :seq;

-- name: complete_in_lanes
UPDATE pollwise_outbox SET state = 4, since = :now
WHERE seq IN (SELECT value FROM json_each(:batch)) AND state < 2;

-- name: origins
SELECT DISTINCT origin FROM pollwise_outbox WHERE seq IN (SELECT value FROM json_each(:batch));

-- name: finish
-- Records whose last copy is gone.
DELETE FROM pollwise_outbox
WHERE seq IN (SELECT value FROM json_each(:batch)) AND state = 4
  AND NOT EXISTS (SELECT 1 FROM pollwise_outbox AS c WHERE c.origin = pollwise_outbox.seq);

-- name: finish_kept
UPDATE pollwise_outbox SET state = 3, since = :now
WHERE seq IN (SELECT value FROM json_each(:batch)) AND state = 4
  AND NOT EXISTS (SELECT 1 FROM pollwise_outbox AS c WHERE c.origin = pollwise_outbox.seq);

-- name: replayable
SELECT count(*) FROM pollwise_outbox
WHERE outbox = :outbox AND state >= 2 AND state = 3
  AND (:kind IS NULL OR kind = :kind) AND (:key IS NULL OR "key" = :key)
  AND (:since IS NULL OR created_at >= :since) AND (:until IS NULL OR created_at < :until);

-- name: replay
-- New again, at its old place.
UPDATE pollwise_outbox SET state = 0, since = :now, progress = '', retried = 0, error = NULL
WHERE outbox = :outbox AND state >= 2 AND state = 3
  AND (:kind IS NULL OR kind = :kind) AND (:key IS NULL OR "key" = :key)
  AND (:since IS NULL OR created_at >= :since) AND (:until IS NULL OR created_at < :until);

-- name: new_and_due
-- The newest of the new records, and when the next key is due. Only reads: takes no write lock.
SELECT
    (SELECT max(seq) FROM pollwise_outbox WHERE outbox = :outbox AND state = 0),
    (SELECT min(due) FROM pollwise_outbox_keys WHERE outbox = :outbox AND due IS NOT NULL),
    (SELECT min(since) FROM pollwise_outbox WHERE outbox = :outbox AND state = 5);

-- name: due
-- Keys that can be claimed: ready, or their lease expired, or their retry is due.
SELECT "key", record, due FROM pollwise_outbox_keys
WHERE outbox = :outbox AND due <= :now
ORDER BY due LIMIT :limit;

-- name: new
SELECT seq, "key", created_at FROM pollwise_outbox
WHERE outbox = :outbox AND state = 0 AND seq > :after
ORDER BY seq LIMIT :limit;

-- name: readable
-- Finds nothing if the key was not UTF-8 and read with replaced bytes.
SELECT 1 FROM pollwise_outbox WHERE seq = :seq AND "key" = :key;

-- name: unreadable
UPDATE pollwise_outbox SET state = 2, since = :now, error = :error WHERE seq = :seq AND state = 0;

-- name: known
SELECT 1 FROM pollwise_outbox_keys WHERE outbox = :outbox AND "key" = :key AND record = 0;

-- name: note
-- The claim has read these records.
UPDATE pollwise_outbox SET state = 1 WHERE outbox = :outbox AND state = 0 AND seq <= :last;

-- name: draw
-- Draws :count tokens, all above the time in microseconds: a backup that is put back never gives the
-- token of a claim that is still held to another one. Returns the last of them.
INSERT INTO pollwise_outbox_tokens (outbox, last)
VALUES (:outbox, CAST(:now * 1000000 AS INTEGER) + :count)
ON CONFLICT (outbox) DO UPDATE SET last = max(last + :count, excluded.last)
RETURNING last;

-- name: of_key
SELECT seq, kind, payload, headers, created_at, progress, retried, origin FROM pollwise_outbox
WHERE outbox = :outbox AND "key" = :key AND state < 2
ORDER BY seq LIMIT :limit;

-- name: of_no_key
SELECT seq, kind, payload, headers, created_at, progress, retried, origin FROM pollwise_outbox
WHERE seq = :record AND outbox = :outbox AND state < 2;

-- name: lease
INSERT INTO pollwise_outbox_keys (outbox, "key", record, state, due, token, relay)
VALUES (:outbox, :key, :record, 1, :until, :token, :relay)
ON CONFLICT (outbox, "key", record) DO UPDATE SET
    state = 1, due = excluded.due, token = excluded.token, relay = excluded.relay,
    lapses = lapses + (state = 1)
RETURNING lapses;

-- name: held
SELECT 1 FROM pollwise_outbox_keys
WHERE outbox = :outbox AND "key" = :key AND record = :record AND token = :token AND state = 1;

-- name: renew
UPDATE pollwise_outbox_keys SET due = :until
WHERE outbox = :outbox AND "key" = :key AND record = :record AND token = :token AND state = 1;

-- name: complete
-- :batch is a JSON list of seqs.
DELETE FROM pollwise_outbox WHERE seq IN (SELECT value FROM json_each(:batch)) AND state < 2;

-- name: complete_kept
UPDATE pollwise_outbox SET state = 3, since = :now
WHERE seq IN (SELECT value FROM json_each(:batch)) AND state < 2;

-- name: leave_off
UPDATE pollwise_outbox SET
    progress = coalesce(:progress, progress),
    retried = CASE WHEN :progress IS NULL THEN retried ELSE 0 END,
    error = coalesce(:error, error),
    state = CASE WHEN :dead THEN 2 ELSE state END,
    since = CASE WHEN :dead THEN :now ELSE since END
WHERE seq = :seq AND state < 2;

-- name: free
-- Ready again, if the key has records left.
UPDATE pollwise_outbox_keys SET state = 0, due = :now, token = 0, lapses = 0, relay = NULL, dead = NULL
WHERE outbox = :outbox AND "key" = :key AND record = 0 AND EXISTS (
    SELECT 1 FROM pollwise_outbox WHERE outbox = :outbox AND "key" = :key AND state < 2
);

-- name: free_alone
UPDATE pollwise_outbox_keys SET state = 0, due = :now, token = 0, lapses = 0, relay = NULL
WHERE outbox = :outbox AND "key" = '' AND record = :record AND EXISTS (
    SELECT 1 FROM pollwise_outbox WHERE seq = :record AND state < 2
);

-- name: remove_key
DELETE FROM pollwise_outbox_keys WHERE outbox = :outbox AND "key" = :key AND record = :record;

-- name: wait
UPDATE pollwise_outbox_keys SET state = 2, due = :due, token = 0, lapses = 0, relay = NULL
WHERE outbox = :outbox AND "key" = :key AND record = :record;

-- name: block
UPDATE pollwise_outbox_keys SET state = 3, due = NULL, token = 0, lapses = 0, relay = NULL, dead = :dead
WHERE outbox = :outbox AND "key" = :key AND record = 0;

-- name: dead
SELECT seq FROM pollwise_outbox
WHERE outbox = :outbox AND state >= 2 AND state = 2
  AND (:ids IS NULL OR coalesce(origin, seq) IN (SELECT value FROM json_each(:ids)))
  AND (:keys IS NULL OR "key" IN (SELECT value FROM json_each(:keys)));

-- name: revive
-- New again, at its old place; what is already claimed of its key goes first.
UPDATE pollwise_outbox SET state = 0, since = :now, retried = 1
WHERE seq IN (SELECT value FROM json_each(:batch));

-- name: delete
DELETE FROM pollwise_outbox WHERE seq IN (SELECT value FROM json_each(:batch));

-- name: unblock
-- The keys that these dead records blocked.
UPDATE pollwise_outbox_keys SET state = 0, due = :now, dead = NULL
WHERE outbox = :outbox AND dead IN (SELECT value FROM json_each(:batch)) AND state = 3;

-- name: remove_empty_keys
-- Those keys that have no record left.
DELETE FROM pollwise_outbox_keys
WHERE outbox = :outbox AND dead IN (SELECT value FROM json_each(:batch)) AND NOT EXISTS (
    SELECT 1 FROM pollwise_outbox AS r
    WHERE r.outbox = :outbox AND r."key" = pollwise_outbox_keys."key" AND r.state < 2
);

-- name: prune
DELETE FROM pollwise_outbox
WHERE seq IN (
    SELECT seq FROM pollwise_outbox
    WHERE outbox = :outbox AND state >= 2 AND state = 3 AND since <= :before
    ORDER BY since LIMIT :limit
)
RETURNING seq;

-- name: counts
-- Records: live, dead, done, delayed; each up to :most.
SELECT
    (SELECT count(*) FROM (
        SELECT 1 FROM pollwise_outbox WHERE outbox = :outbox AND state < 2 LIMIT :most)),
    (SELECT count(*) FROM (
        SELECT 1 FROM pollwise_outbox WHERE outbox = :outbox AND state = 2 LIMIT :most)),
    (SELECT count(*) FROM (
        SELECT 1 FROM pollwise_outbox WHERE outbox = :outbox AND state >= 2 AND state = 3 LIMIT :most)),
    (SELECT count(*) FROM (
        SELECT 1 FROM pollwise_outbox WHERE outbox = :outbox AND state = 5 LIMIT :most));

-- name: key_counts
-- Keys: leased and waiting, together up to :most, and blocked; and how many records wait behind the
-- first :keys blocked ones.
SELECT
    coalesce(sum(state = 1), 0), coalesce(sum(state = 2), 0),
    (SELECT count(*) FROM (
        SELECT 1 FROM pollwise_outbox_keys WHERE outbox = :outbox AND state = 3 LIMIT :most)),
    (SELECT count(*) FROM (
        SELECT 1 FROM (
            SELECT "key" FROM pollwise_outbox_keys WHERE outbox = :outbox AND state = 3 LIMIT :keys
        ) AS blocked CROSS JOIN pollwise_outbox AS r
        WHERE r.outbox = :outbox AND r."key" = blocked."key" AND r.state < 2 LIMIT :most))
FROM (
    SELECT state FROM pollwise_outbox_keys WHERE outbox = :outbox AND due > :now LIMIT :most
);

-- name: oldest
-- When the oldest live record was put: it is the first new one, or the first of a key with a row. Of
-- these, the first :keys that are due, and as many blocked ones, are examined.
SELECT min(created_at) FROM pollwise_outbox WHERE seq IN (
    SELECT min(seq) FROM pollwise_outbox WHERE outbox = :outbox AND state = 0
    UNION ALL
    SELECT CASE WHEN k.record > 0 THEN k.record ELSE (
        SELECT min(r.seq) FROM pollwise_outbox AS r
        WHERE r.outbox = :outbox AND r."key" = k."key" AND r.state < 2
    ) END
    FROM (
        SELECT * FROM (
            SELECT "key", record FROM pollwise_outbox_keys
            WHERE outbox = :outbox AND due IS NOT NULL ORDER BY due LIMIT :keys
        )
        UNION ALL
        SELECT * FROM (
            SELECT "key", record FROM pollwise_outbox_keys
            WHERE outbox = :outbox AND state = 3 LIMIT :keys
        )
    ) AS k
) AND state < 2;

-- name: blocked
SELECT k."key", coalesce(r.origin, r.seq), r.kind, r.error, coalesce(r.since, r.created_at), (
    SELECT count(*) FROM (
        SELECT 1 FROM pollwise_outbox AS b
        WHERE b.outbox = :outbox AND b."key" = k."key" AND b.state < 2 LIMIT :most
    )
)
FROM pollwise_outbox_keys AS k JOIN pollwise_outbox AS r ON r.seq = k.dead
WHERE k.outbox = :outbox AND k."key" > :after AND k.state = 3
ORDER BY k."key" LIMIT :limit;

-- name: shown
-- Records as they are shown, for `list` and `at`. A record that is in its lanes is shown as their copies.
-- With the first record before it, for one that waits.
SELECT coalesce(seq_of, seq), kind, payload, "key", headers, created_at, shown, due, since, error, progress,
       relay, seq, substr(outbox, length(:outbox) + 2),
       CASE WHEN shown = 0 AND "key" IS NOT NULL THEN coalesce(dead, (
           SELECT min(b.seq) FROM pollwise_outbox AS b
           WHERE b.outbox = records.outbox AND b."key" = records."key" AND b.state < 2
             AND b.seq < records.seq
       )) END
FROM (
    SELECT r.seq, r.origin AS seq_of, r.outbox, r.kind, r.payload, r."key", r.headers, r.created_at,
           CASE
               WHEN r.state = 5 THEN 5
               WHEN r.state >= 2 THEN r.state + 1
               WHEN k.state IN (1, 2) AND k.due > :now AND (k.record > 0 OR NOT EXISTS (
                   SELECT 1 FROM pollwise_outbox AS b
                   WHERE b.outbox = r.outbox AND b."key" = r."key" AND b.state < 2 AND b.seq < r.seq
               )) THEN k.state
               ELSE 0
           END AS shown,
           k.due, coalesce(r.since, r.created_at) AS since, r.error, r.progress, k.relay, k.dead
    FROM pollwise_outbox AS r LEFT JOIN pollwise_outbox_keys AS k
        ON k.outbox = r.outbox AND k."key" = coalesce(r."key", '')
       AND k.record = CASE WHEN r."key" IS NULL THEN r.seq ELSE 0 END
    WHERE (r.outbox = :outbox OR r.outbox IN (
        SELECT :outbox || char(30) || lane FROM pollwise_outbox_lanes WHERE outbox = :outbox
    )) AND {which} AND r.state <> 4
) AS records;

-- name: list
{shown}
WHERE (:state IS NULL OR shown = :state)
  AND (:kind IS NULL OR kind = :kind)
  AND (:key IS NULL OR "key" = :key)
ORDER BY seq LIMIT :limit;

-- name: at
-- The rows of :seqs, a JSON list.
{shown};

-- name: error_of
SELECT coalesce(origin, seq), error FROM pollwise_outbox WHERE seq = :seq;

-- name: list_dead
-- By the index: dead records are few among many.
SELECT coalesce(r.origin, r.seq), r.kind, r.payload, r."key", r.headers, r.created_at,
       3, NULL, coalesce(r.since, r.created_at), r.error, r.progress, NULL, r.seq,
       substr(r.outbox, length(:outbox) + 2), NULL
FROM pollwise_outbox AS r INDEXED BY pollwise_outbox_ended
WHERE r.outbox IN (
    SELECT :outbox UNION ALL
    SELECT :outbox || char(30) || lane FROM pollwise_outbox_lanes WHERE outbox = :outbox
) AND r.state >= 2 AND r.state = 2 AND r.seq > :after
  AND (:kind IS NULL OR r.kind = :kind)
  AND (:key IS NULL OR r."key" = :key)
ORDER BY r.seq LIMIT :limit;

-- name: announce
-- started_at is written once: it decides which of two relays is newer.
INSERT INTO pollwise_outbox_relays (outbox, relay, handlers, started_at, seen_at)
VALUES (:outbox, :relay, :handlers, :started_at, :now)
ON CONFLICT (outbox, relay) DO UPDATE SET
    handlers = excluded.handlers, seen_at = excluded.seen_at
RETURNING started_at;

-- name: withdraw
DELETE FROM pollwise_outbox_relays
WHERE outbox = :outbox AND CASE WHEN relay = :relay THEN :leaves ELSE seen_at <= :gone END;

-- name: newest
-- When a relay announced itself last.
SELECT max(seen_at) FROM pollwise_outbox_relays WHERE outbox = :outbox;

-- name: keys_set_back
-- The clock was set back by :ahead seconds or a little more: so are the times that it had given.
UPDATE pollwise_outbox_keys SET due = CASE state WHEN 0 THEN :now ELSE due - :ahead END
WHERE outbox = :outbox AND due > CASE state WHEN 0 THEN :now ELSE :now + :ahead END;

-- name: relays_set_back
UPDATE pollwise_outbox_relays SET
    started_at = started_at - CASE WHEN started_at > :now THEN :ahead ELSE 0 END,
    seen_at = min(seen_at, :now)
WHERE outbox = :outbox;

-- name: release
-- :keys is a JSON list of keys, or NULL for all.
UPDATE pollwise_outbox_keys SET state = 0, due = :now, token = 0, relay = NULL
WHERE outbox = :outbox AND state = 1
  AND (:keys IS NULL OR "key" IN (SELECT value FROM json_each(:keys)))
  AND (:relay IS NULL OR relay = :relay);

-- name: relays
SELECT relay, handlers, started_at, seen_at FROM pollwise_outbox_relays
WHERE outbox = :outbox AND relay <> :relay AND seen_at > :gone
ORDER BY started_at, relay;

-- name: rows_of
-- The rows of a record: itself and its copies.
SELECT seq FROM pollwise_outbox WHERE seq = :one
UNION ALL
SELECT seq FROM pollwise_outbox WHERE origin = :one;

-- Pages: each statement walks at most :most rows of an index, from a place on. It returns the two parts of
-- each row's place, its seq, and whether it matches.

-- name: walk_dead
SELECT 0.0, seq, seq, (:kind IS NULL OR kind = :kind) AND (:key IS NULL OR "key" = :key)
       AND (:error IS NULL OR instr(lower(coalesce(error, '')), lower(:error)) > 0)
FROM pollwise_outbox
WHERE outbox = :outbox AND state = 2 AND seq > :b ORDER BY seq LIMIT :most;

-- name: walk_delayed
SELECT since, seq, seq, (:kind IS NULL OR kind = :kind) AND (:key IS NULL OR "key" = :key)
       AND (:error IS NULL OR instr(lower(coalesce(error, '')), lower(:error)) > 0)
FROM pollwise_outbox INDEXED BY pollwise_outbox_delayed
WHERE outbox = :outbox AND state = 5 AND since >= :a AND (since > :a OR seq > :b)
ORDER BY since, seq LIMIT :most;

-- name: walk_done
-- The newest first.
SELECT -since, -seq, seq, (:kind IS NULL OR kind = :kind) AND (:key IS NULL OR "key" = :key)
       AND (:error IS NULL OR instr(lower(coalesce(error, '')), lower(:error)) > 0)
FROM pollwise_outbox INDEXED BY pollwise_outbox_ended
WHERE outbox = :outbox AND state >= 2 AND state = 3 AND since <= -:a AND (since < -:a OR seq < -:b)
ORDER BY since DESC, seq DESC LIMIT :most;

-- name: walk_live
-- Records without a key, then by key.
SELECT * FROM (
    SELECT '' AS a, seq AS b, seq, (:kind IS NULL OR kind = :kind) AND (:key IS NULL OR "key" = :key)
       AND (:error IS NULL OR instr(lower(coalesce(error, '')), lower(:error)) > 0)
    FROM pollwise_outbox INDEXED BY pollwise_outbox_live
    WHERE :a = '' AND outbox = :outbox AND state < 2 AND "key" IS NULL AND seq > :b
    ORDER BY seq LIMIT :most
) UNION ALL SELECT * FROM (
    SELECT "key", seq, seq, (:kind IS NULL OR kind = :kind) AND (:key IS NULL OR "key" = :key)
       AND (:error IS NULL OR instr(lower(coalesce(error, '')), lower(:error)) > 0)
    FROM pollwise_outbox INDEXED BY pollwise_outbox_live
    WHERE outbox = :outbox AND state < 2 AND "key" >= :a AND ("key" > :a OR seq > :b)
    ORDER BY "key", seq LIMIT :most
)
ORDER BY 1, 2 LIMIT :most;

-- name: walk_key
SELECT 0.0, seq, seq, (:kind IS NULL OR kind = :kind) AND (:key IS NULL OR "key" = :key)
       AND (:error IS NULL OR instr(lower(coalesce(error, '')), lower(:error)) > 0)
FROM pollwise_outbox INDEXED BY pollwise_outbox_live
WHERE outbox = :outbox AND "key" = :key AND state < 2 AND seq > :b ORDER BY seq LIMIT :most;

-- name: walk_held
-- The first records of the keys that are leased or wait for a retry (:held), by the time when that ends.
SELECT held.due, r.seq, r.seq, held.state = :held AND (:kind IS NULL OR r.kind = :kind) AND (:key IS NULL OR r."key" = :key)
       AND (:error IS NULL OR instr(lower(coalesce(r.error, '')), lower(:error)) > 0)
FROM (
    SELECT "key", record, due, state FROM pollwise_outbox_keys
    WHERE outbox = :outbox AND due > :now AND due >= :a ORDER BY due LIMIT :most
) AS held JOIN pollwise_outbox AS r ON r.seq = CASE WHEN held.record > 0 THEN held.record ELSE (
    SELECT min(f.seq) FROM pollwise_outbox AS f
    WHERE f.outbox = :outbox AND f."key" = held."key" AND f.state < 2
) END
WHERE held.due > :a OR r.seq > :b
ORDER BY 1, 2;

-- name: walk_all
-- :names is a JSON list of the outbox and its lanes.
SELECT 0.0, seq, seq, outbox IN (SELECT value FROM json_each(:names)) AND state <> 4 AND (:kind IS NULL OR kind = :kind) AND (:key IS NULL OR "key" = :key)
       AND (:error IS NULL OR instr(lower(coalesce(error, '')), lower(:error)) > 0)
FROM pollwise_outbox WHERE seq > :b ORDER BY seq LIMIT :most;
