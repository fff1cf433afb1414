"""What the writers share: checks, statements and error messages.

The statements of a put are a generator that receives their rows, so that plain and async writers
run the same statements.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from pollwise.errors import OutboxError, SchemaError, StoreError, UniqueConflict
from pollwise.outbox.records import NewRecord
from pollwise.runtime.decoding import same_payload
from pollwise.storage.postgres.schema import quoted
from pollwise.storage.sql import VALUE, statements

Dialect = Literal["sqlite", "postgresql"]
Rows = list[tuple[Any, ...]]
#: Records to put; or a function that makes them when the user's own data is in the database.
Records = Sequence[NewRecord] | Callable[[], Sequence[NewRecord]]
#: A statement with `:name` for its values, and the values.
Step = tuple[str, Mapping[str, Any]]

_NAMES = {"sqlite": "SQLite", "postgresql": "Postgres"}


#: Identifies the database of a connection.
POSTGRES_IDENTITY = (
    "(SELECT c.system_identifier FROM pg_control_system() AS c) || '/' || "
    "(SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())"
)


class Identity(Protocol):
    """Which database an outbox is in."""

    known: bool

    def read(self) -> str | None: ...

    def forget(self) -> None: ...


def _no_time() -> None:
    return None


@dataclass(frozen=True, slots=True)
class OutboxTarget:
    """What a writer needs to know about an outbox and its store.

    outbox: its name.
    url: its URL, safe to print.
    schema: the schema of the functions, on Postgres.
    path: the database file, on SQLite.
    now: the time to use instead of the store's clock, or None.
    identity: of its database, on Postgres.
    """

    dialect: Dialect
    outbox: str
    url: str
    schema: str = "pollwise"
    path: Path | None = None
    now: Callable[[], float | None] = _no_time
    identity: Identity | None = None

    async def identify(self) -> None:
        """Read the identity of the database without blocking the event loop."""
        if self.identity is not None and not self.identity.known:
            await asyncio.to_thread(self.identity.read)


class RecordWriter(ABC):
    """Puts records on a connection of one library."""

    @abstractmethod
    def put(self, target: OutboxTarget, records: Records) -> Any:
        """Put all or none; return the ids, as an awaitable if the library is async."""


class StatementWriter(RecordWriter):
    """A writer that runs statements on a connection.

    library: its name, for error messages.
    begin: how to begin a transaction with it, for error messages.
    """

    library: ClassVar[str]
    begin: ClassVar[str]

    def __init__(self, tx: Any) -> None:
        self.tx = tx

    @property
    @abstractmethod
    def dialect(self) -> str:
        """The connection's database: "sqlite", "postgresql" or another."""

    @abstractmethod
    def in_transaction(self) -> bool:
        """True if a transaction is open, or the next statement opens one that the user ends."""

    def check(self, target: OutboxTarget) -> None:
        if self.dialect != target.dialect:
            raise OutboxError(
                f"the {self.library} connection is to {_NAMES.get(self.dialect, self.dialect)}, "
                f"but the outbox is in {_NAMES[target.dialect]}, {target.url}. A record must be in "
                "the same database as the data it describes. Give a connection to that database."
            )
        if not self.in_transaction():
            raise OutboxError(
                f"the {self.library} connection has no open transaction, so the record would be "
                f"committed even if your data is not. {self.begin}"
            )

    def flush(self) -> None:
        """Send what the user has changed and the library has not sent yet."""
        return

    def ready(self, target: OutboxTarget, records: Records) -> Sequence[NewRecord]:
        """Check the connection and flush; return the records."""
        self.check(target)
        if records:
            self.flush()
        return records() if callable(records) else records


class PlainWriter(StatementWriter):
    """Puts records immediately."""

    @abstractmethod
    def rows(self, statement: str, values: Mapping[str, Any]) -> Rows:
        """The rows of a statement."""

    def put(self, target: OutboxTarget, records: Records) -> list[str]:
        batch = self.ready(target, records)
        if not batch:
            return []
        with explained(target):
            return run_steps(put_steps(target, batch), self.rows)


class AsyncWriter(StatementWriter):
    """Puts records when awaited."""

    @abstractmethod
    async def rows(self, statement: str, values: Mapping[str, Any]) -> Rows:
        """The rows of a statement."""

    async def put(self, target: OutboxTarget, records: Records) -> list[str]:
        await target.identify()
        batch = self.ready(target, records)
        if not batch:
            return []
        steps = put_steps(target, batch)
        with explained(target):
            try:
                statement, values = next(steps)
                while True:
                    statement, values = steps.send(await self.rows(statement, values))
            except StopIteration as end:
                ids: list[str] = end.value
                return ids


def run_steps(
    steps: Generator[Step, Rows, list[str]], rows: Callable[[str, Mapping[str, Any]], Rows]
) -> list[str]:
    """Run the statements of a put with `rows`; return the ids."""
    try:
        statement, values = next(steps)
        while True:
            statement, values = steps.send(rows(statement, values))
    except StopIteration as end:
        ids: list[str] = end.value
        return ids


def put_once(
    target: OutboxTarget,
    records: Sequence[NewRecord],
    rows: Callable[[str, Mapping[str, Any]], Rows],
) -> None:
    """Put records on SQLite, without those whose `unique` the outbox has: they were put before."""
    uniques = json.dumps([each.unique for each in records])
    values = {"outbox": target.outbox, "uniques": uniques}
    taken = {row[0] for row in rows(statements("pollwise.outbox.stores.sqlite")["taken"], values)}
    new = [each for each in records if each.unique not in taken]
    if new:
        run_steps(put_steps(target, new), rows)


def put_steps(
    target: OutboxTarget, records: Sequence[NewRecord]
) -> Generator[Step, Rows, list[str]]:
    """The statements of a put; receives the rows of each, returns the ids."""
    if target.dialect == "sqlite":
        return _sqlite_steps(target, records)
    return _postgres_steps(target, records)


def _sqlite_steps(
    target: OutboxTarget, records: Sequence[NewRecord]
) -> Generator[Step, Rows, list[str]]:
    files = yield "PRAGMA database_list", {}
    _check_file(target, [os.fsdecode(row[2]) for row in files if row[2]])
    sql, values = statements("pollwise.outbox.stores.sqlite"), {"outbox": target.outbox}
    if all(each.plain for each in records):
        made = yield sql["put"], {**values, "records": batch_of(records), "now": target.now()}
        # In the order of the records: the statement numbers its rows as it inserts them.
        return [str(seq) for seq in sorted(row[0] for row in made)]
    uniques = [each.unique for each in records if each.unique is not None]
    taken = yield sql["taken"], {**values, "uniques": json.dumps(uniques)}
    ids: dict[object, str] = dict(check_uniques(records, taken).items())
    new = {each.unique or id(each): each for each in records if each.unique not in ids}
    batch = batch_of(list(new.values()))
    made = yield sql["put_more"], {**values, "records": batch, "now": target.now()}
    ids |= zip(new, [str(seq) for seq in sorted(row[0] for row in made)], strict=True)
    return [ids[each.unique or id(each)] for each in records]


def _check_file(target: OutboxTarget, files: Sequence[str]) -> None:
    """Refuse another file than the outbox's, because no relay of this outbox would read it."""
    if target.path is None:
        return
    for file in files:
        with suppress(OSError):  # a file that does not exist is another file
            if target.path.samefile(file):
                return
    shown = files[0] if files else "in memory"
    raise OutboxError(
        f"the connection is to another database ({shown}) than the outbox, {target.url}, so no "
        "relay would find the record. Give a connection to that file, or change the outbox's URL."
    )


def _postgres_steps(
    target: OutboxTarget, records: Sequence[NewRecord]
) -> Generator[Step, Rows, list[str]]:
    identity = None if target.identity is None else target.identity.read()
    values = {
        "outbox": target.outbox,
        "records": batch_of(records),
        "message": None,  # the function sends its default hint
        "now": target.now(),
    }
    if identity is not None:
        values["identity"] = identity
    checked = identity is not None
    if all(each.plain for each in records):
        made = yield _postgres_put(target.schema, "outbox_put_all", checked), values
        return [str(row[0]) for row in made]
    uniques = [each.unique for each in records if each.unique is not None]
    if uniques:
        found = yield (
            _postgres_taken(target.schema),
            {"outbox": target.outbox, "uniques": json.dumps(uniques)},
        )
        check_uniques(records, found)
    made = yield _postgres_put(target.schema, "outbox_put_more", checked), values
    return ids_of(records, made)


@cache
def _postgres_put(schema: str, function: str, checked: bool) -> str:
    outbox = "CAST(:outbox AS text)"
    if checked:  # in another database the name of the outbox is NULL, which its tables refuse
        outbox = f"CASE WHEN CAST(:identity AS text) = {POSTGRES_IDENTITY} THEN {outbox} END"
    return (
        f"SELECT * FROM {quoted(schema)}.{function}({outbox}, "  # noqa: S608
        "CAST(:records AS text), CAST(:message AS text), CAST(:now AS double precision))"
    )


@cache
def _postgres_taken(schema: str) -> str:
    return (
        f'SELECT "unique", seq, kind, payload FROM {quoted(schema)}.outbox_records '  # noqa: S608
        'WHERE outbox = CAST(:outbox AS text) AND "unique" IS NOT NULL AND "unique" = ANY (ARRAY('
        "SELECT json_array_elements_text(CAST(:uniques AS json))))"
    )


def batch_of(records: Sequence[NewRecord]) -> str:
    """Records as one string, which every driver accepts and both databases can read."""
    return json.dumps([row_of(each) for each in records], ensure_ascii=False)


def row_of(record: NewRecord) -> tuple[Any, ...]:
    """A record as plain values, in the order that the statements of a put expect."""
    row = (record.kind, record.encoded, record.key, record.encoded_headers)
    return row if record.plain else (*row, record.delay or None, record.at, record.unique)


def check_uniques(records: Sequence[NewRecord], taken: Iterable[tuple[Any, ...]]) -> dict[str, str]:
    """Refuse records whose `unique` another record has; return the ids of equal ones, by `unique`.

    taken: the `unique`, id, kind and payload of records in the outbox.
    """
    known = {unique: (str(seq), kind, payload) for unique, seq, kind, payload in taken}
    ids = {unique: seq for unique, (seq, _, _) in known.items()}
    for record in records:
        if record.unique is not None:
            other = known.setdefault(record.unique, ("of this put", record.kind, record.encoded))
            _check_twin(record, *other)
    return ids


def ids_of(records: Sequence[NewRecord], made: Iterable[tuple[Any, ...]]) -> list[str]:
    """The ids of records that were put.

    made: the id of each; with the kind and payload of the record that already had its `unique`.
    """
    ids = []
    for record, (seq, kind, payload) in zip(records, made, strict=True):
        if kind is not None:
            _check_twin(record, str(seq), kind, payload)
        ids.append(str(seq))
    return ids


def _check_twin(record: NewRecord, other: str, kind: str, payload: str) -> None:
    if kind != record.kind or not same_payload(payload, record.encoded):
        raise UniqueConflict(
            f"unique = {record.unique!r} is taken by record {other} of kind {kind!r} with another "
            "kind or payload; nothing was put"
        )


@cache
def pyformat(statement: str) -> str:
    """The statement with `%(name)s` for the values, for psycopg and Django."""
    return VALUE.sub(r"%(\1)s", statement.replace("%", "%%"))


MIGRATE = "Run `pollwise outbox migrate URL`"

#: The SQLSTATE of a NULL where none may be.
_NULL = "23502"
#: The SQLSTATEs of a missing schema, table, function or column.
_NOT_MIGRATED = frozenset({"3F000", "42P01", "42883", "42703"})


@contextmanager
def explained(target: OutboxTarget) -> Iterator[None]:
    """Raise an error that says what to do if tables or permissions are missing, or not these.

    Other errors stay as the library raises them: they concern the user's transaction, and code
    that repeats transactions depends on them.
    """
    try:
        yield
    except Exception as error:
        ours = _explanation(target, error)
        if ours is None:
            raise
        raise ours from error


def _explanation(target: OutboxTarget, error: Exception) -> StoreError | OutboxError | None:
    for each in _causes(error):
        if target.dialect == "sqlite":
            said = str(each)
            if re.search(
                r"no such table: (\w+\.)?pollwise_outbox\b|pollwise_outbox has no column named",
                said,
            ):
                return SchemaError(f"{target.url}: {said}. {MIGRATE}.")
            continue
        state = getattr(each, "sqlstate", None) or getattr(each, "pgcode", None)
        said = str(each).strip().partition("\n")[0]
        if state in _NOT_MIGRATED:
            return SchemaError(
                f"{target.url}: {said}. {MIGRATE}, as a role that may create tables."
            )
        if state == _NULL and target.identity is not None:
            target.identity.forget()
            return OutboxError(
                f"the connection is to another database than the outbox, {target.url}, so no relay "
                "would find the record. Give a connection to that database, or change the outbox's "
                "URL. If the database was replaced, by an upgrade, repeat the transaction."
            )
        if state == "42501":
            return StoreError(
                f"{target.url}: {said}. Grant the role USAGE on schema {target.schema!r}, SELECT "
                "and USAGE on its sequence outbox_seq, and INSERT on its outbox tables; delay, at "
                "and unique also need SELECT."
            )
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and those it wraps, the driver's error first."""
    seen: list[BaseException] = []
    todo: list[BaseException | None] = [error]
    while todo:
        each = todo.pop()
        if isinstance(each, BaseException) and each not in seen:
            seen.append(each)
            todo += [each.__cause__, getattr(each, "orig", None)]
    return reversed(seen)
