-- Version 5: targets that are defined in the store, by the API and the command line.
--
-- definition: the table of the target as JSON, with its ${NAME} as written; NULL if it was removed.
-- version: counts the changes of the fleet's definitions, so that nodes ask only for new ones.
-- defined_by: the command line and its user, or the API and the client's address.

CREATE TABLE pollwise_fleet_definitions (
    fleet      TEXT NOT NULL,
    name       TEXT NOT NULL,
    definition TEXT,
    version    INTEGER NOT NULL,
    defined_by TEXT NOT NULL,
    at         REAL NOT NULL,
    PRIMARY KEY (fleet, name)
) WITHOUT ROWID;

CREATE INDEX pollwise_fleet_definitions_version ON pollwise_fleet_definitions (fleet, version);
