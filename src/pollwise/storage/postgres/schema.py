"""Tables and functions in a schema on Postgres, created by a script and only on request.

The command, the call and people who want to read it first use the same script. It creates what is
missing and leaves the rest, so running it twice, even at the same time, does no harm. It is one
statement: a transaction by itself, or a part of the user's own, as in Django's RunSQL or Alembic.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from pollwise.errors import ConfigError, SchemaError, StoreError
from pollwise.storage.sql import incomplete_record, migrations, needed_version


@dataclass(frozen=True, slots=True)
class TableSet:
    """Tables that are migrated together, separately from others in the same schema.

    package: has their migrations and statements. record: the table of the applied versions.
    command: migrates them. what: the kind of store they serve.
    optional: versions that this code can do without, until they are applied.
    """

    package: str
    record: str
    command: str
    what: str
    optional: tuple[int, ...] = ()

    @property
    def newest(self) -> int:
        return migrations(self.package)[-1][0]

    @property
    def needed(self) -> int:
        """The version without which this code cannot run."""
        return needed_version(self.package, self.optional)

    @property
    def advice(self) -> str:
        """Advice for a user whose tables are missing."""
        return f"Run `{self.command}`, or have it run by a role that may."


#: Postgres truncates longer names.
SCHEMA_LENGTH_MAX = 63
#: Characters that would end the quotes or the parts of the script around the name.
_SPECIAL = frozenset("'\"\\{$")


def checked_schema(schema: object) -> str:
    if (
        not isinstance(schema, str)
        or not schema.isprintable()
        or not 0 < len(schema.encode()) <= SCHEMA_LENGTH_MAX
        or schema.startswith("pg_")
        or schema == "information_schema"
        or not _SPECIAL.isdisjoint(schema)
    ):
        raise ConfigError(
            f"schema = {schema!r} must be a name of 1 to {SCHEMA_LENGTH_MAX} bytes, printable, "
            "without quotes, \\, { or $, that does not begin with pg_ and is not the server's own "
            "information_schema"
        )
    return schema


def quoted(name: str) -> str:
    """A name quoted for SQL."""
    return '"' + name.replace('"', '""') + '"'


def lock_of(schema: str) -> int:
    """The number of the advisory lock under which a schema is migrated."""
    digest = hashlib.blake2b(f"pollwise migrate {schema}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, signed=True)


def script(schema: str, tables: TableSet) -> str:
    """The SQL that creates all that is missing, and leaves the rest as it is."""
    begin = _BEGIN.format(
        name=quoted(schema),
        text=f"'{schema}'",
        version=tables.newest,
        lock=lock_of(schema),
        record=tables.record,
        whose=f"the {tables.what} of pollwise",
    )
    steps = [
        # By replace, not by format, because the bodies of the functions contain braces.
        _STEP.replace("{body}", text)
        .replace("{version}", str(version))
        .replace("{record}", tables.record)
        for version, text in migrations(tables.package)
    ]
    made = "\n\n".join([begin, *steps, "END $migrate$;"])
    return made.replace("{schema}", quoted(schema)) + "\n"


# The name was checked: it contains nothing that could end its quotes.
_BEGIN = """\
-- The schema {name} of {whose}, version {version}: creates what is missing. Run it as a role that
-- may create the schema, or that owns it. It is one statement: done as a whole or not at all, and
-- in an open transaction with the rest of that.
DO $migrate$ BEGIN
PERFORM pg_advisory_xact_lock({lock});
IF NOT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = {text}) THEN
    CREATE SCHEMA {name};
END IF;
IF NOT EXISTS (
    SELECT 1 FROM pg_tables WHERE schemaname = {text} AND tablename = '{record}'
) THEN
    CREATE TABLE {name}.{record} (
        version integer PRIMARY KEY,
        applied_at timestamptz NOT NULL DEFAULT now()
    );
END IF;"""

_STEP = """\
IF NOT EXISTS (SELECT 1 FROM {schema}.{record} WHERE version = {version}) THEN
{body}
INSERT INTO {schema}.{record} (version) VALUES ({version});
END IF;"""


def check_version(found: int | None, schema: str, where: str, tables: TableSet) -> None:
    """Refuse tables that are older than this code. Newer ones have all it needs, and more."""
    known = tables.needed
    if found is None or found < known:
        raise SchemaError(
            f"{where}: the tables in schema {schema!r} have version {found or 0}; this code "
            f"needs {known}. Run `{tables.command}`."
        )


def incomplete(found: list[int], schema: str, tables: TableSet) -> str:
    """Advice for tables that exist although their record of versions lacks them."""
    return incomplete_record(f"{quoted(schema)}.{tables.record}", found, tables.package)


def check_isolation(found: str, where: str, tables: TableSet) -> None:
    """Refuse transactions with an old snapshot: they would not see jobs put meanwhile."""
    if found != "read committed":
        raise StoreError(
            f"{where}: transactions are {found} here, and the {tables.what} needs read committed. "
            "Set default_transaction_isolation for its role: ALTER ROLE … SET …"
        )
