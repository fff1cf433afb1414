-- Version 1: how long things take, by name.
--
-- state: what `Durations.dump` returned, as JSON. learned_at: when the last run was added.

CREATE TABLE pollwise_durations (
    name       TEXT PRIMARY KEY,
    state      TEXT NOT NULL,
    learned_at REAL NOT NULL
);

CREATE INDEX pollwise_durations_learned ON pollwise_durations (learned_at);
