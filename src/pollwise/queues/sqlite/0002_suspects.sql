-- Version 2: jobs whose leases ran out several times in a row, to claim them alone.
--
-- ahead: 1 if its newest claim was made ahead, so that it may not have started.
-- lapsed: the token of its newest lease that ran out. While it equals `token`, the job waits because
--        its lease ran out; a settlement changes `token`.
-- lapses: how many leases in a row ran out before its newest claim.

ALTER TABLE pollwise_jobs ADD COLUMN ahead INTEGER NOT NULL DEFAULT 0;
ALTER TABLE pollwise_jobs ADD COLUMN lapsed INTEGER;
ALTER TABLE pollwise_jobs ADD COLUMN lapses INTEGER NOT NULL DEFAULT 0;

CREATE INDEX pollwise_jobs_suspects ON pollwise_jobs (queue)
    WHERE state = 0 AND lapses > 0;
