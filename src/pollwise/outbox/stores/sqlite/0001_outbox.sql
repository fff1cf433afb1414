-- Version 1: the outbox.
--
-- A record is put by an INSERT in the transaction of the data that it describes, in any language:
--     INSERT INTO pollwise_outbox (kind, payload, "key") VALUES ('order.placed', '{"id": 17}', 'order-17');
-- seq: the order. SQLite has one writer at a time, so it is also the order of the commits.
-- state: 0 new, 1 noted (a claim has read it; its key, or the record itself if it has no key, has a
--        row in pollwise_outbox_keys), 2 dead, 3 done and kept.
-- created_at: in seconds since 1970.
-- since: when its state began; NULL for when it was put.
-- retried: it was dead, and its attempts start again.

CREATE TABLE pollwise_outbox (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    outbox     TEXT    NOT NULL DEFAULT 'default',
    kind       TEXT    NOT NULL CHECK (kind <> '' AND typeof(kind) = 'text'),
    payload    TEXT    NOT NULL DEFAULT 'null' CHECK (json_valid(payload)),
    "key"      TEXT    CHECK ("key" <> '' AND typeof("key") IN ('text', 'null')),
    headers    TEXT    NOT NULL DEFAULT '{}'
                       CHECK (json_valid(headers) AND json_type(headers) = 'object'),
    created_at REAL    NOT NULL DEFAULT ((julianday('now') - 2440587.5) * 86400.0)
                       CHECK (typeof(created_at) = 'real' AND abs(created_at) < 1e15),
    state      INTEGER NOT NULL DEFAULT 0,
    since      REAL,
    progress   TEXT    NOT NULL DEFAULT '',
    retried    INTEGER NOT NULL DEFAULT 0,
    error      TEXT
);

CREATE INDEX pollwise_outbox_new ON pollwise_outbox (outbox, seq) WHERE state = 0;

CREATE INDEX pollwise_outbox_live ON pollwise_outbox (outbox, "key", seq) WHERE state < 2;

CREATE INDEX pollwise_outbox_ended ON pollwise_outbox (outbox, state, since) WHERE state >= 2;

-- A key has a row only while it has noted records; so has a record without a key, with its seq as
-- `record`. A claim notes new records, so that the next claim does not read them again: it finds
-- them by the keys that are due.
-- state: 0 ready, 1 leased, 2 waiting for a retry, 3 blocked by the record `dead`.
-- due: ready since, leased until, waiting until; NULL when blocked.
-- lapses: how many leases expired in a row.

CREATE TABLE pollwise_outbox_keys (
    outbox TEXT    NOT NULL,
    "key"  TEXT    NOT NULL,
    record INTEGER NOT NULL,
    state  INTEGER NOT NULL,
    due    REAL,
    token  INTEGER NOT NULL DEFAULT 0,
    lapses INTEGER NOT NULL DEFAULT 0,
    relay  TEXT,
    dead   INTEGER,
    PRIMARY KEY (outbox, "key", record)
) WITHOUT ROWID;

CREATE INDEX pollwise_outbox_keys_due ON pollwise_outbox_keys (outbox, due) WHERE due IS NOT NULL;

CREATE INDEX pollwise_outbox_keys_dead ON pollwise_outbox_keys (dead) WHERE dead IS NOT NULL;

-- The last token of an outbox: tokens only grow.

CREATE TABLE pollwise_outbox_tokens (
    outbox TEXT PRIMARY KEY,
    last   INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE pollwise_outbox_relays (
    outbox     TEXT NOT NULL,
    relay      TEXT NOT NULL,
    handlers   TEXT NOT NULL,
    started_at REAL NOT NULL,
    seen_at    REAL NOT NULL,
    PRIMARY KEY (outbox, relay)
) WITHOUT ROWID;
