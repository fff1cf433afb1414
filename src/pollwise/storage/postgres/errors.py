"""Postgres's errors as ours: what went wrong, and what to do about it.

The server's own messages are kept: they name users, hosts and tables, but no passwords. libpq's
message about a conninfo that it cannot parse is not, because it may contain part of a password.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from pollwise.errors import SchemaError, StoreError, StoreUnavailable


class StatementRefused(Exception):
    """The server answered a statement with an error."""

    def __init__(self, sqlstate: str, message: str) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate

    @property
    def breaks(self) -> bool:
        """True if the server closes the connection, or another one may reach a better server."""
        return self.sqlstate.startswith(("57P", "08", "XX")) or self.sqlstate == "25006"


class ConnectionLost(StoreUnavailable):
    """The connection broke during a call, which may have been carried out."""


#: Replaced by the advice to migrate with the command of these tables.
MIGRATE = "Migrate the tables."

#: Errors by the first characters of their SQLSTATE; the first match counts.
_REFUSED: tuple[tuple[str, type[StoreError], str], ...] = (
    ("3F000", SchemaError, MIGRATE),
    ("42P01", SchemaError, MIGRATE),
    ("42883", SchemaError, MIGRATE),
    ("42703", SchemaError, "Its tables differ from those that this version of pollwise creates."),
    (
        "42501",
        StoreError,
        (
            "Grant the role USAGE on the schema; SELECT and USAGE on its sequence; SELECT, INSERT, "
            "UPDATE and DELETE on its tables."
        ),
    ),
    ("25006", StoreUnavailable, "It is read-only, as a standby is; connect to the primary."),
    ("57P", StoreUnavailable, "It is stopping or starting; the call will be repeated."),
    ("57014", StoreUnavailable, "Its statement_timeout ended the call; raise it for this role."),
    ("55P03", StoreUnavailable, "Its lock_timeout ended the call; find out who holds the lock."),
    ("53100", StoreUnavailable, "The disk is full; free some space."),
    ("53", StoreUnavailable, "It has run out of a resource; check its limits."),
    ("40", StoreUnavailable, "It conflicted with other calls on the same jobs several times."),
    ("23505", StoreUnavailable, "It conflicted with other calls on the same jobs several times."),
    ("08", StoreUnavailable, "The connection broke; it will be opened again."),
    ("25P0", StoreUnavailable, "The server ended the transaction; it will be tried again."),
    ("58", StoreUnavailable, "The server's disk has a problem; see the server's log."),
    ("XX", StoreUnavailable, "The server met an internal error; see the server's log."),
)

#: A put lacks its schema, its function, what the function needs, or the rights to it.
LACKS = frozenset({"3F000", "42P01", "42883", "42703", "42501"})
#: A migration met tables of another program with the same names.
_NOT_OURS = frozenset({"42P07", "42703", "42883", "42804"})
#: A migration was applied already: a table, column, constraint or function exists.
_APPLIED = _NOT_OURS | {"42701", "42710", "42723"}

#: Permanent errors while connecting, by their text; all others may pass.
_CONNECTING: tuple[tuple[str, str], ...] = (
    ("password authentication failed", "Check the user and the password."),
    ("no password supplied", "Give a password: in the URL, in ~/.pgpass or in PGPASSWORD."),
    ("authentication failed", "Check how this user may log in: pg_hba.conf and the password."),
    ("no pg_hba.conf entry", "Allow this user and host in pg_hba.conf, or use sslmode=require."),
    ("does not support SSL", "Leave out sslmode=require, or enable SSL on the server."),
    ("certificate", "Check sslmode, sslrootcert and the certificates."),
    ("permission denied for database", "Grant the role CONNECT on the database."),
    ("is not permitted to log in", "Give the role LOGIN, or use another."),
)


def refused_error(refused: StatementRefused, where: str, migrate: str = MIGRATE) -> StoreError:
    """The error for a refused statement. migrate: what to do if tables are missing."""
    for prefix, kind, advice in _REFUSED:
        if refused.sqlstate.startswith(prefix):
            return kind(f"{where}: {refused}. {migrate if advice is MIGRATE else advice}")
    return StoreError(f"{where}: {refused} (SQLSTATE {refused.sqlstate})")


def migrating_error(refused: StatementRefused, where: str, incomplete: str = "") -> StoreError:
    """The error for a refused migration.

    incomplete: advice if the record of versions exists but lacks some.
    """
    if refused.sqlstate == "42501":
        on = "schema" if "for schema" in str(refused) else "database"
        return StoreError(
            f"{where}: {refused}. Grant the role CREATE on the {on}, or print the SQL with --sql "
            "for a role that may."
        )
    if incomplete and refused.sqlstate in _APPLIED:
        return SchemaError(f"{where}: {refused}. {incomplete}")
    if refused.sqlstate in _NOT_OURS:
        found = re.search(r'relation "(?:[^"]*\.)?([^".]+)" already exists', str(refused))
        table = found[1] if found else "migrations"
        return SchemaError(
            f"{where}: {refused}. The schema holds a table `{table}` that Pollwise did not create; "
            "choose another `schema`."
        )
    return refused_error(refused, where)


@contextmanager
def refused_here(where: str, migrate: str) -> Iterator[None]:
    """Explain what a put on a user's own connection lacks.

    Other errors stay psycopg's own: they concern the user's transaction, and code that repeats it
    relies on them.
    """
    try:
        yield
    except psycopg.Error as error:
        if error.sqlstate not in LACKS:
            raise
        said = StatementRefused(error.sqlstate, error.diag.message_primary or str(error))
        raise refused_error(said, where, migrate) from error


def lost_error(error: psycopg.Error, where: str) -> ConnectionLost:
    """The error for a connection that broke during a call."""
    return ConnectionLost(
        f"{where}: the connection broke before the answer came, so it is unknown whether the call "
        f"was carried out ({one_line(error)}). The connection will be opened again."
    )


def late_error(limit: float, where: str) -> StoreUnavailable:
    """The error for a call that was not answered in time."""
    return StoreUnavailable(
        f"{where} did not answer within timeout = {limit:g} s, so the call may or may not be "
        "carried out. Check its load and its locks, or raise `timeout`."
    )


def connecting_error(error: psycopg.Error, where: str) -> StoreError:
    """The error for a failed connection attempt."""
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
    """libpq's message in one line, without the text before the server's own message."""
    # Indented lines are libpq's own advice.
    lines = [line for line in str(error).splitlines() if not line.startswith("\t")]
    said = " ".join(" ".join(lines).split())
    return said.rpartition("FATAL: ")[2].strip().rstrip(".") or type(error).__name__
