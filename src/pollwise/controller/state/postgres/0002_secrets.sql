-- Version 2: secrets that all controllers on this state share.

-- value: hexadecimal digits.
CREATE TABLE {schema}.controller_secrets (
    name  text COLLATE "C" PRIMARY KEY,
    value text NOT NULL
);
