-- Version 1: the jobs.
--
-- state: 0 ready, 1 delayed, 2 blocked behind another job of its key, 3 leased, 4 dead, 5 done,
--        6 cancelled.
-- since: the time of the state: ready since, delayed until, leased until, ended since.
-- worker: who holds it, or whose settlement ended it.
-- cancel: 1 if it is leased and was asked to cancel.
-- headers, result: JSON. progress: [fraction, note, at]. errors: [[at, attempt, error], …], the
--        last few, the newest last. All are NULL for a job that does not use them.
-- Only the oldest live job of a key is ever ready, delayed or leased; the others are blocked, so
-- a claim never has to read them.

CREATE TABLE pollwise_jobs (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    queue      TEXT    NOT NULL,
    kind       TEXT    NOT NULL,
    payload    TEXT    NOT NULL,
    state      INTEGER NOT NULL,
    priority   INTEGER NOT NULL,
    since      REAL    NOT NULL,
    run_at     REAL    NOT NULL,
    created_at REAL    NOT NULL,
    attempt    INTEGER NOT NULL DEFAULT 0,
    token      INTEGER NOT NULL DEFAULT 0,
    "key"      TEXT,
    "unique"   TEXT,
    worker     TEXT,
    claimed_at REAL,
    cancel     INTEGER NOT NULL DEFAULT 0,
    headers    TEXT,
    progress   TEXT,
    errors     TEXT,
    result     TEXT
);

CREATE INDEX pollwise_jobs_ready ON pollwise_jobs (queue, kind, priority DESC, since, seq)
    WHERE state = 0;

CREATE INDEX pollwise_jobs_due ON pollwise_jobs (queue, since, state)
    WHERE state IN (1, 3);

CREATE INDEX pollwise_jobs_key ON pollwise_jobs (queue, "key", seq, state)
    WHERE "key" IS NOT NULL AND state < 4;

CREATE UNIQUE INDEX pollwise_jobs_unique ON pollwise_jobs (queue, "unique")
    WHERE "unique" IS NOT NULL;

CREATE INDEX pollwise_jobs_ended ON pollwise_jobs (queue, state, since)
    WHERE state >= 4;

-- When the head of a key ends, its successor waits only for its own time: the next claim makes it
-- ready. These are triggers, so that everything that ends a job (a settlement, a cancel) frees its
-- key. A blocked job that is cancelled frees nothing.

CREATE TRIGGER pollwise_jobs_head_deleted AFTER DELETE ON pollwise_jobs
    WHEN old."key" IS NOT NULL AND old.state IN (0, 1, 3)
BEGIN
    UPDATE pollwise_jobs SET state = 1, since = run_at
    WHERE state = 2 AND seq = (
        SELECT seq FROM pollwise_jobs
        WHERE queue = old.queue AND "key" = old."key" AND state < 4
        ORDER BY seq LIMIT 1
    );
END;

CREATE TRIGGER pollwise_jobs_head_ended AFTER UPDATE OF state ON pollwise_jobs
    WHEN new."key" IS NOT NULL AND old.state IN (0, 1, 3) AND new.state >= 4
BEGIN
    UPDATE pollwise_jobs SET state = 1, since = run_at
    WHERE state = 2 AND seq = (
        SELECT seq FROM pollwise_jobs
        WHERE queue = new.queue AND "key" = new."key" AND state < 4
        ORDER BY seq LIMIT 1
    );
END;
