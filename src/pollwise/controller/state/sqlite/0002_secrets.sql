-- Version 2: secrets that all controllers on this state share.

-- value: hexadecimal digits.
CREATE TABLE pollwise_controller_secrets (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;
