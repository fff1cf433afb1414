-- Version 3: where the log of each run begins; tokens that may see all jobs.

-- all_jobs: of the scope put: it sees and cancels the jobs of others too.
ALTER TABLE pollwise_controller_tokens ADD COLUMN all_jobs INTEGER NOT NULL DEFAULT 0;

-- part: the run, as in the folder; start: the offset of its first byte in the log.
CREATE TABLE pollwise_controller_log_runs (
    folder   TEXT    NOT NULL,
    part     INTEGER NOT NULL,
    attempt  INTEGER NOT NULL,
    worker   TEXT    NOT NULL,
    began_at REAL    NOT NULL,
    start    INTEGER NOT NULL,
    PRIMARY KEY (folder, part)
) WITHOUT ROWID;

CREATE TRIGGER pollwise_controller_log_runs_forgotten AFTER DELETE ON pollwise_controller_folders
BEGIN
    DELETE FROM pollwise_controller_log_runs WHERE folder = old.folder;
END;
