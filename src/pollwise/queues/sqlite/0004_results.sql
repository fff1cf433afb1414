-- Version 4: results that are kept for a stated time.
--
-- expires_at: a job that is done or cancelled is kept until then for those who wait for its result,
--        even if finished jobs are not kept; NULL for no longer than these. Without a meaning in
--        other states.

ALTER TABLE pollwise_jobs ADD COLUMN expires_at REAL;

CREATE INDEX pollwise_jobs_expiring ON pollwise_jobs (queue, expires_at)
    WHERE expires_at IS NOT NULL;
