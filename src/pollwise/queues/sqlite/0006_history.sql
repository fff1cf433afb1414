-- Version 6: what workers did, minute by minute.
--
-- level: 0 the minute of one worker, 1 a minute of all, 2 an hour of all.
-- at: when the minute or hour began, in seconds since 1970. writer: the worker, or ''.
-- value: the figures, as JSON.

CREATE TABLE pollwise_history (
    queue  TEXT    NOT NULL,
    level  INTEGER NOT NULL,
    at     INTEGER NOT NULL,
    writer TEXT    NOT NULL,
    value  TEXT    NOT NULL,
    PRIMARY KEY (queue, level, at, writer)
) WITHOUT ROWID;
