-- Version 2: lanes, delayed records, and records that are put once.
--
-- A lane is an outbox of its own, named by the outbox, \x1e and the lane. When a relay hands a record
-- to its lanes, each gets a copy, and the record has the state 4 until no copy is left.
-- More states of a record: 4 in its lanes, 5 delayed until `since`.
-- origin: the seq of the record that this is a copy of.

ALTER TABLE pollwise_outbox ADD COLUMN origin INTEGER;

ALTER TABLE pollwise_outbox ADD COLUMN "unique" TEXT;

CREATE INDEX pollwise_outbox_copies ON pollwise_outbox (origin) WHERE origin IS NOT NULL;

CREATE INDEX pollwise_outbox_delayed ON pollwise_outbox (outbox, since) WHERE state = 5;

CREATE UNIQUE INDEX pollwise_outbox_unique ON pollwise_outbox (outbox, "unique")
    WHERE "unique" IS NOT NULL;

CREATE TABLE pollwise_outbox_lanes (
    outbox TEXT NOT NULL,
    lane   TEXT NOT NULL,
    PRIMARY KEY (outbox, lane)
) WITHOUT ROWID;
