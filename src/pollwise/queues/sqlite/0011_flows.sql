-- Version 11: flows, which are jobs that wait for others of their batch.
--
-- flow: the name of its flow, or NULL.
-- waits: for how many others a job waits; -1 if it is to be cancelled by the transaction that ended
--        one of them. Such a job is blocked, and is not in the line of its key.
-- held_key: its key, for as long as it waits. held_delay: its delay, which counts from its release.
--
-- Triggers follow every end of a job, so that workers of older versions keep flows as well. What is to
-- be cancelled is left to the transaction, because the triggers of SQLite do not recurse.

ALTER TABLE pollwise_jobs ADD COLUMN flow TEXT;
ALTER TABLE pollwise_jobs ADD COLUMN waits INTEGER NOT NULL DEFAULT 0;
ALTER TABLE pollwise_jobs ADD COLUMN held_key TEXT;
ALTER TABLE pollwise_jobs ADD COLUMN held_delay REAL;

CREATE INDEX pollwise_jobs_flow ON pollwise_jobs (queue, flow, state)
    WHERE flow IS NOT NULL;

CREATE INDEX pollwise_jobs_waiting ON pollwise_jobs (queue)
    WHERE waits <> 0;

CREATE INDEX pollwise_jobs_doomed ON pollwise_jobs (queue)
    WHERE waits < 0;

-- "after" waits for "before". place: the order of the predecessors of a job. passed: the predecessor was
-- done, so its later ends mean nothing. A link is deleted with the job that waits.

CREATE TABLE pollwise_links (
    "before"   INTEGER NOT NULL,
    "after"    INTEGER NOT NULL,
    place      INTEGER NOT NULL,
    on_failure INTEGER NOT NULL,
    passed     INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY ("before", "after")
) WITHOUT ROWID;

CREATE INDEX pollwise_links_after ON pollwise_links ("after", place);

-- What a job frees when it ends: first its key, as before, and then those that come after it in its
-- flow. In one trigger, because the order of several is undefined.
-- Done: its successors wait for one job less, and those that are for failures are not needed when
-- they wait for none. Dead: those that are for failures may run. Cancelled: all are to be cancelled.

DROP TRIGGER pollwise_jobs_head_ended;

CREATE TRIGGER pollwise_jobs_ended AFTER UPDATE OF state ON pollwise_jobs
    WHEN old.state < 4 AND new.state >= 4 AND (new."key" IS NOT NULL OR new.flow IS NOT NULL)
BEGIN
    UPDATE pollwise_jobs SET state = 1, since = run_at
    WHERE new."key" IS NOT NULL AND old.state <> 2 AND state = 2 AND seq = (
        SELECT seq FROM pollwise_jobs
        WHERE queue = new.queue AND "key" = new."key" AND state < 4
        ORDER BY seq LIMIT 1
    );
    UPDATE pollwise_jobs SET waits = waits - 1, run_at = CASE
        WHEN waits > 1 THEN run_at
        WHEN held_delay IS NULL THEN max(run_at, new.since)
        ELSE new.since + held_delay
    END
    WHERE new.state = 5 AND +state = 2 AND +waits > 0 AND seq IN (
        SELECT "after" FROM pollwise_links
        WHERE "before" = new.seq AND NOT passed AND NOT on_failure
    );
    UPDATE pollwise_jobs SET waits = CASE waits WHEN 1 THEN -1 ELSE waits - 1 END
    WHERE new.state = 5 AND +state = 2 AND +waits > 0 AND seq IN (
        SELECT "after" FROM pollwise_links WHERE "before" = new.seq AND NOT passed AND on_failure
    );
    UPDATE pollwise_links SET passed = 1
    WHERE new.state = 5 AND "before" = new.seq AND NOT passed;
    UPDATE pollwise_jobs SET waits = 0, run_at = CASE
        WHEN held_delay IS NULL THEN max(run_at, new.since) ELSE new.since + held_delay
    END
    WHERE new.state = 4 AND +state = 2 AND +waits > 0 AND seq IN (
        SELECT "after" FROM pollwise_links WHERE "before" = new.seq AND NOT passed AND on_failure
    );
    UPDATE pollwise_jobs SET waits = -1
    WHERE new.state = 6 AND +state = 2 AND +waits > 0 AND seq IN (
        SELECT "after" FROM pollwise_links WHERE "before" = new.seq AND NOT passed
    );
END;

-- A worker of an older version deletes a job that is done; a dead one that is deleted was dropped.

DROP TRIGGER pollwise_jobs_head_deleted;

CREATE TRIGGER pollwise_jobs_deleted AFTER DELETE ON pollwise_jobs
    WHEN old.flow IS NOT NULL OR old."key" IS NOT NULL
BEGIN
    UPDATE pollwise_jobs SET state = 1, since = run_at
    WHERE old."key" IS NOT NULL AND old.state IN (0, 1, 3) AND state = 2 AND seq = (
        SELECT seq FROM pollwise_jobs
        WHERE queue = old.queue AND "key" = old."key" AND state < 4
        ORDER BY seq LIMIT 1
    );
    DELETE FROM pollwise_links WHERE "after" = old.seq;
    UPDATE pollwise_jobs SET waits = waits - 1, run_at = CASE
        WHEN waits > 1 THEN run_at
        WHEN held_delay IS NULL THEN max(run_at, (julianday('now') - 2440587.5) * 86400)
        ELSE (julianday('now') - 2440587.5) * 86400 + held_delay
    END
    WHERE old.state < 4 AND +state = 2 AND +waits > 0 AND seq IN (
        SELECT "after" FROM pollwise_links
        WHERE "before" = old.seq AND NOT passed AND NOT on_failure
    );
    UPDATE pollwise_jobs SET waits = CASE waits WHEN 1 THEN -1 ELSE waits - 1 END
    WHERE old.state < 4 AND +state = 2 AND +waits > 0 AND seq IN (
        SELECT "after" FROM pollwise_links WHERE "before" = old.seq AND NOT passed AND on_failure
    );
    UPDATE pollwise_links SET passed = 1
    WHERE old.state < 4 AND "before" = old.seq AND NOT passed;
    UPDATE pollwise_jobs SET waits = -1
    WHERE old.state = 4 AND +state = 2 AND +waits > 0 AND seq IN (
        SELECT "after" FROM pollwise_links WHERE "before" = old.seq AND NOT passed
    );
END;

-- A job that waits no more enters as if it were put now: behind its key, or else it waits only for its
-- own time, and the next claim makes it ready. One after the other, so that jobs of one key see each
-- other.

CREATE TRIGGER pollwise_jobs_released AFTER UPDATE OF waits ON pollwise_jobs
    WHEN new.waits = 0 AND old.waits > 0 AND new.state = 2
BEGIN
    UPDATE pollwise_jobs SET
        "key" = held_key, held_key = NULL, since = run_at,
        state = CASE
            WHEN held_key IS NOT NULL AND EXISTS (
                SELECT 1 FROM pollwise_jobs AS other
                WHERE other.queue = new.queue AND other."key" = new.held_key AND other.state < 4
            ) THEN 2
            ELSE 1
        END
    WHERE seq = new.seq;
END;
