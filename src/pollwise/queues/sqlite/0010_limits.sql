-- Version 10: limits of kinds.
--
-- limit_group: the group in which the limits of its kind count a job; NULL if it has none. Those of
--        limited kinds get '' from a claim: the jobs that it leases, and, if groups take turns, all
--        that were put since the claim before.
-- The limits themselves are notes of the topic "limits". Workers of older versions do not keep them.

ALTER TABLE pollwise_jobs ADD COLUMN limit_group TEXT;

CREATE INDEX pollwise_jobs_limit_ready
    ON pollwise_jobs (queue, kind, limit_group, priority DESC, since, seq)
    WHERE state = 0 AND limit_group IS NOT NULL;

CREATE INDEX pollwise_jobs_limit_leased ON pollwise_jobs (queue, kind, limit_group)
    WHERE state = 3 AND limit_group IS NOT NULL;

-- A limited kind. turn, left_: the group of the job that was claimed last, and how many more it has
-- in its turn. full_at: when all of the allowance of its rate has come back.
-- swept: jobs of the kind up to this number have a group.

CREATE TABLE pollwise_limit_turns (
    queue    TEXT    NOT NULL,
    kind     TEXT    NOT NULL,
    turn     TEXT    NOT NULL DEFAULT '',
    left_    INTEGER NOT NULL DEFAULT 0,
    full_at  REAL    NOT NULL DEFAULT 0,
    swept    INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (queue, kind)
) WITHOUT ROWID;

-- The rate of a group; a row whose time is over means the same as none.

CREATE TABLE pollwise_limit_groups (
    queue       TEXT NOT NULL,
    kind        TEXT NOT NULL,
    limit_group TEXT NOT NULL,
    full_at     REAL NOT NULL,
    PRIMARY KEY (queue, kind, limit_group)
) WITHOUT ROWID;

CREATE INDEX pollwise_limit_groups_full ON pollwise_limit_groups (queue, full_at);
