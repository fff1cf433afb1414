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
-- note: the limits for which the circle of the kind was begun; NULL if it has none. entered: from which
-- group on groups with ready jobs are still to be entered in it; NULL if all are.

CREATE TABLE pollwise_limit_turns (
    queue    TEXT    NOT NULL,
    kind     TEXT    NOT NULL,
    turn     TEXT    NOT NULL DEFAULT '',
    left_    INTEGER NOT NULL DEFAULT 0,
    full_at  REAL    NOT NULL DEFAULT 0,
    swept    INTEGER NOT NULL DEFAULT 0,
    note     TEXT,
    entered  TEXT,
    PRIMARY KEY (queue, kind)
) WITHOUT ROWID;

-- The circle of groups that claims examine; limits/plan.py describes it.

CREATE TABLE pollwise_limit_circle (
    queue       TEXT NOT NULL,
    kind        TEXT NOT NULL,
    limit_group TEXT NOT NULL,
    PRIMARY KEY (queue, kind, limit_group)
) WITHOUT ROWID;

-- The rate of a group; a row whose time is over means the same as none.
-- back_at: when the group comes back into the circle; NULL if it does not wait for that.

CREATE TABLE pollwise_limit_groups (
    queue       TEXT NOT NULL,
    kind        TEXT NOT NULL,
    limit_group TEXT NOT NULL,
    full_at     REAL NOT NULL,
    back_at     REAL,
    PRIMARY KEY (queue, kind, limit_group)
) WITHOUT ROWID;

CREATE INDEX pollwise_limit_groups_full ON pollwise_limit_groups (queue, full_at);

CREATE INDEX pollwise_limit_groups_back ON pollwise_limit_groups (queue, kind, back_at)
    WHERE back_at IS NOT NULL;

-- A group enters the circle when a job of it becomes ready or ceases to be leased, whatever statement
-- does that, and when its time has come. These are triggers, so that no way is missed. Only the put of a
-- job with a group does it by a statement of its own, `limit_put`: a trigger on INSERT, even one that is
-- not entered, makes the put of a plain job slower by a third.

CREATE TRIGGER pollwise_jobs_limit_moved AFTER UPDATE OF state, limit_group ON pollwise_jobs
    WHEN new.limit_group IS NOT NULL AND (new.state = 0 OR old.state = 3 AND new.state <> 3)
BEGIN
    INSERT INTO pollwise_limit_circle (queue, kind, limit_group)
    SELECT new.queue, new.kind, new.limit_group
    FROM pollwise_limit_turns AS turns
    WHERE turns.queue = new.queue AND turns.kind = new.kind AND turns.note IS NOT NULL
      AND NOT EXISTS (
          SELECT 1 FROM pollwise_limit_circle AS circle
          WHERE circle.queue = new.queue AND circle.kind = new.kind
            AND circle.limit_group = new.limit_group
      );
END;

CREATE TRIGGER pollwise_jobs_limit_deleted AFTER DELETE ON pollwise_jobs
    WHEN old.limit_group IS NOT NULL AND old.state = 3
BEGIN
    INSERT INTO pollwise_limit_circle (queue, kind, limit_group)
    SELECT old.queue, old.kind, old.limit_group
    FROM pollwise_limit_turns AS turns
    WHERE turns.queue = old.queue AND turns.kind = old.kind AND turns.note IS NOT NULL
      AND NOT EXISTS (
          SELECT 1 FROM pollwise_limit_circle AS circle
          WHERE circle.queue = old.queue AND circle.kind = old.kind
            AND circle.limit_group = old.limit_group
      );
END;

CREATE TRIGGER pollwise_limit_groups_back AFTER UPDATE OF back_at ON pollwise_limit_groups
    WHEN old.back_at IS NOT NULL AND new.back_at IS NULL
BEGIN
    INSERT INTO pollwise_limit_circle (queue, kind, limit_group)
    SELECT old.queue, old.kind, old.limit_group
    FROM pollwise_limit_turns AS turns
    WHERE turns.queue = old.queue AND turns.kind = old.kind AND turns.note IS NOT NULL
      AND NOT EXISTS (
          SELECT 1 FROM pollwise_limit_circle AS circle
          WHERE circle.queue = old.queue AND circle.kind = old.kind
            AND circle.limit_group = old.limit_group
      );
END;

CREATE TRIGGER pollwise_limit_groups_forgotten AFTER DELETE ON pollwise_limit_groups
    WHEN old.back_at IS NOT NULL
BEGIN
    INSERT INTO pollwise_limit_circle (queue, kind, limit_group)
    SELECT old.queue, old.kind, old.limit_group
    FROM pollwise_limit_turns AS turns
    WHERE turns.queue = old.queue AND turns.kind = old.kind AND turns.note IS NOT NULL
      AND NOT EXISTS (
          SELECT 1 FROM pollwise_limit_circle AS circle
          WHERE circle.queue = old.queue AND circle.kind = old.kind
            AND circle.limit_group = old.limit_group
      );
END;
