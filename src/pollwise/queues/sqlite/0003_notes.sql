-- Version 3: notes, small named records of a queue beside its jobs.
--
-- topic: pauses (name: a kind, or '' for the whole queue), workers or orders.
-- value: JSON. until: when it counts as gone; NULL: never.

CREATE TABLE pollwise_notes (
    queue TEXT NOT NULL,
    topic TEXT NOT NULL,
    name  TEXT NOT NULL,
    value TEXT NOT NULL,
    until REAL,
    PRIMARY KEY (queue, topic, name)
) WITHOUT ROWID;

CREATE INDEX pollwise_notes_until ON pollwise_notes (queue, topic, until)
WHERE until IS NOT NULL;
