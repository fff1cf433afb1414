-- Version 3: what relays did, minute by minute. Relays can do without it.
--
-- level: 0 the minute of one relay, 1 a minute of all, 2 an hour of all.
-- at: when the minute or hour began, in seconds since 1970. writer: the relay, or ''.
-- value: the figures, as JSON.

CREATE TABLE pollwise_outbox_history (
    outbox TEXT    NOT NULL,
    level  INTEGER NOT NULL,
    at     INTEGER NOT NULL,
    writer TEXT    NOT NULL,
    value  TEXT    NOT NULL,
    PRIMARY KEY (outbox, level, at, writer)
) WITHOUT ROWID;
