"""What went wrong at Postgres, told in our errors: what it was, and what to do about it.

A server's own words are kept: they name users, hosts and tables, and no passwords. What libpq says
of a conninfo that it cannot read is not: that may be a piece of a password.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from pollwise.errors import SchemaError, StoreError, StoreUnavailable


class StatementRefused(Exception):
    """The server answered a statement by an error."""

    def __init__(self, sqlstate: str, message: str) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate

    @property
    def breaks(self) -> bool:
        """The server ends the connection, or another connection may reach a better server."""
        return self.sqlstate.startswith(("57P", "08", "XX")) or self.sqlstate == "25006"


class ConnectionLost(StoreUnavailable):
    """The connection broke in the middle of a call, which may have been carried out."""


#: Stands for the advice to migrate, which names the command of the tables concerned.
MIGRATE = "Migrate the tables."

#: By the first characters of the SQLSTATE; the first that fits counts.
_REFUSED: tuple[tuple[str, type[StoreError], str], ...] = (
    ("3F000", SchemaError, MIGRATE),
    ("42P01", SchemaError, MIGRATE),
    ("42883", SchemaError, MIGRATE),
    ("42703", SchemaError, "Its tables are not as this version of pollwise made them."),
    (
        "42501",
        StoreError,
        (
            "Grant the role USAGE on the schema; SELECT and USAGE on its sequence; SELECT, INSERT, "
            "UPDATE and DELETE on its tables."
        ),
    ),
    ("25006", StoreUnavailable, "It is read-only now, as a standby is; a primary will do."),
    ("57P", StoreUnavailable, "It is stopping or starting; it will be asked again."),
    ("57014", StoreUnavailable, "Its statement_timeout ended the call; raise it for this role."),
    ("55P03", StoreUnavailable, "Its lock_timeout ended the call; look for who holds the lock."),
    ("53100", StoreUnavailable, "The disk is full; free some space, then it goes on."),
    ("53", StoreUnavailable, "It has not enough of what it needs; look at its limits."),
    ("40", StoreUnavailable, "Others were at work on the same jobs, again and again."),
    ("23505", StoreUnavailable, "Others were at work on the same jobs, again and again."),
    ("08", StoreUnavailable, "The connection broke; it will be made again."),
    ("25P0", StoreUnavailable, "The server ended the transaction; it will be tried again."),
    ("58", StoreUnavailable, "The server's disk does not answer as it should; look at its log."),
    ("XX", StoreUnavailable, "The server met an error of its own; look at its log."),
)

#: What a put lacks: its schema, its function, what that works on, or the rights to it.
_LACKS = frozenset({"3F000", "42P01", "42883", "42703", "42501"})
#: What a migration meets where another program has tables of these names.
_NOT_OURS = frozenset({"42P07", "42703", "42883", "42804"})
#: What a migration meets that was applied already: a table, column, constraint or function twice.
_APPLIED = _NOT_OURS | {"42701", "42710", "42723"}

#: By what the server or libpq says while connecting; all else may be over soon.
_CONNECTING: tuple[tuple[str, str], ...] = (
    ("password authentication failed", "Check the user and the password."),
    ("no password supplied", "Give a password: in the URL, in ~/.pgpass or in PGPASSWORD."),
    ("authentication failed", "Check how this user may log in: pg_hba.conf and the password."),
    ("no pg_hba.conf entry", "Allow this user and host in pg_hba.conf, or use sslmode=require."),
    ("does not support SSL", "Leave out sslmode=require, or let the server have SSL."),
    ("certificate", "Check sslmode, sslrootcert and the certificates."),
    ("permission denied for database", "Grant the role CONNECT on the database."),
    ("is not permitted to log in", "Give the role LOGIN, or use another."),
)


def refused_error(refused: StatementRefused, where: str, migrate: str = MIGRATE) -> StoreError:
    """The server said no to a statement. migrate: what to do where tables are missing."""
    for prefix, kind, advice in _REFUSED:
        if refused.sqlstate.startswith(prefix):
            return kind(f"{where}: {refused}. {migrate if advice is MIGRATE else advice}")
    return StoreError(f"{where}: {refused} (SQLSTATE {refused.sqlstate})")


def migrating_error(refused: StatementRefused, where: str, incomplete: str = "") -> StoreError:
    """The server said no to a migration.

    incomplete: what to say of a record of versions that is there, and lacks some.
    """
    if refused.sqlstate == "42501":
        on = "schema" if "for schema" in str(refused) else "database"
        return StoreError(
            f"{where}: {refused}. Grant the role CREATE on the {on}, or print the SQL with --sql "
            "for one who may."
        )
    if incomplete and refused.sqlstate in _APPLIED:
        return SchemaError(f"{where}: {refused}. {incomplete}")
    if refused.sqlstate in _NOT_OURS:
        found = re.search(r'relation "(?:[^"]*\.)?([^".]+)" already exists', str(refused))
        table = found[1] if found else "migrations"
        return SchemaError(
            f"{where}: {refused}. The schema holds a table `{table}` that Pollwise did not make; "
            "choose another `schema`."
        )
    return refused_error(refused, where)


@contextmanager
def refused_here(where: str, migrate: str) -> Iterator[None]:
    """Tell what a put on a user's own connection lacks.

    All else is left as psycopg raises it: it concerns the user's transaction, and who repeats that
    goes by those errors.
    """
    try:
        yield
    except psycopg.Error as error:
        if error.sqlstate not in _LACKS:
            raise
        said = StatementRefused(error.sqlstate, error.diag.message_primary or str(error))
        raise refused_error(said, where, migrate) from error


def lost_error(error: psycopg.Error, where: str) -> ConnectionLost:
    """The connection broke in the middle of a call."""
    return ConnectionLost(
        f"{where}: the connection broke before the answer came, so nobody knows whether the call "
        f"was carried out ({one_line(error)}). It will be made again."
    )


def connecting_error(error: psycopg.Error, where: str) -> StoreError:
    """No connection was made."""
    said = one_line(error)
    if 'database "' in said and "does not exist" in said:
        return StoreError(f"{where}: {said}. Create it, or correct the name in the URL.")
    if 'role "' in said and "does not exist" in said:
        return StoreError(f"{where}: {said}. Create it, or correct the user in the URL.")
    for words, advice in _CONNECTING:
        if words in said:
            return StoreError(f"{where}: {said}. {advice}")
    return StoreUnavailable(f"{where} cannot be reached: {said}. Check that it runs, and the host.")


def one_line(error: psycopg.Error) -> str:
    """What libpq said, in one line, without what comes before the server's own words."""
    # Lines that are indented are libpq's own advice.
    lines = [line for line in str(error).splitlines() if not line.startswith("\t")]
    said = " ".join(" ".join(lines).split())
    return said.rpartition("FATAL: ")[2].strip().rstrip(".") or type(error).__name__
