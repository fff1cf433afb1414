"""Writers for SQLAlchemy's connections and sessions, plain and async, with any driver."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, cast
from weakref import WeakKeyDictionary

from sqlalchemy import event, text
from sqlalchemy.exc import UnboundExecutionError

from pollwise.errors import OutboxError
from pollwise.outbox.writers.common import OutboxTarget, PlainWriter, Records, RecordWriter, Rows
from pollwise.outbox.writers.postgres import IDLE
from pollwise.outbox.writers.sqlite import opens_transactions

#: By plain connection or session: the puts of its transaction that were not awaited yet.
_UNAWAITED: WeakKeyDictionary[Any, set[object]] = WeakKeyDictionary()


class ConnectionWriter(PlainWriter):
    """A `sqlalchemy.Connection`."""

    library = "SQLAlchemy"
    begin = (
        'Leave out isolation_level="AUTOCOMMIT" for this connection or its engine: '
        "`with engine.begin() as connection:`."
    )

    def __init__(self, tx: Any) -> None:
        if not hasattr(tx, "commit"):  # the old style commits each statement
            raise OutboxError(
                "this is a connection in the old style of SQLAlchemy 1.4; use SQLAlchemy 2, or "
                "create_engine(…, future=True)"
            )
        super().__init__(tx)

    @property
    def dialect(self) -> str:
        return cast("str", self.tx.dialect.name)

    def in_transaction(self) -> bool:
        begun = self.tx.in_transaction()
        if not begun:
            self.tx.begin()  # as the next statement would
        if _in_transaction(self.tx):
            return True
        if not begun:
            self.tx.rollback()
        return False

    def rows(self, statement: str, values: Mapping[str, Any]) -> Rows:
        return [tuple(row) for row in self.tx.execute(text(statement), dict(values))]


class SessionWriter(ConnectionWriter):
    """A `sqlalchemy.orm.Session`: uses its connection, in its transaction.

    It is flushed first. Otherwise the record would be put before the data: its number, which is
    the order of a key, would be drawn before the locks of the rows are taken.
    """

    begin = (
        'Leave out isolation_level="AUTOCOMMIT" for the session\'s engine: '
        "`with Session.begin() as session:`."
    )

    def __init__(self, tx: Any) -> None:
        try:
            connection = tx.connection()
        except UnboundExecutionError as error:
            raise OutboxError(
                "the session has several databases or none, so the outbox's is not known; give the "
                "connection: `session.connection(bind_arguments={'bind': engine})`"
            ) from error
        self._session = tx
        super().__init__(connection)

    def flush(self) -> None:
        self._session.flush()


class ScopedSessionWriter(SessionWriter):
    """A `scoped_session`: the session of this thread or request."""

    def __init__(self, tx: Any) -> None:
        super().__init__(tx())


class AsyncConnectionWriter(RecordWriter):
    """An `AsyncConnection`: uses the plain connection inside it, with `run_sync`."""

    plain: type[ConnectionWriter] = ConnectionWriter
    #: The name of the plain one inside it, and its events before a commit and after a rollback.
    sync = "sync_connection"
    events = "commit", "rollback"

    def __init__(self, tx: Any) -> None:
        self.tx = tx

    def put(self, target: OutboxTarget, records: Records) -> Coroutine[Any, Any, list[str]]:
        return self._put(target, records, self._expect_await())

    async def _put(
        self, target: OutboxTarget, records: Records, awaited: Callable[[], None]
    ) -> list[str]:
        awaited()
        await target.identify()
        ids: list[str] = await self.tx.run_sync(lambda tx: self.plain(tx).put(target, records))
        return ids

    def _expect_await(self) -> Callable[[], None]:
        """Refuse the next commit, unless what is returned is called before, or a rollback comes."""
        sync, put = getattr(self.tx, self.sync), object()
        if sync is None:  # a connection that is not open yet, which the put refuses
            return lambda: None
        pending = _UNAWAITED.get(sync)
        if pending is None:
            pending = _UNAWAITED[sync] = set()
            commit, rollback = self.events
            event.listen(sync, commit, partial(_refuse_commit, pending))
            event.listen(sync, rollback, partial(_forget, pending))
        pending.add(put)
        return partial(pending.discard, put)


class AsyncSessionWriter(AsyncConnectionWriter):
    """An `AsyncSession`."""

    plain: type[ConnectionWriter] = SessionWriter
    sync = "sync_session"
    events = "before_commit", "after_transaction_end"


class AsyncScopedSessionWriter(AsyncSessionWriter):
    """An `async_scoped_session`: the session of this task or request."""

    def __init__(self, tx: Any) -> None:
        super().__init__(tx())


def _refuse_commit(pending: set[object], _: Any) -> None:
    if pending:
        pending.clear()
        raise OutboxError(
            "a put into the outbox was not awaited, so the transaction is not committed: write "
            "`await outbox.put(session, …)`"
        )


def _forget(pending: set[object], *ended: Any) -> None:
    """A transaction has ended; not only one to a savepoint of a session."""
    if getattr(ended[-1], "parent", None) is None:
        pending.clear()


def _in_transaction(connection: Any) -> bool:
    """True if the driver has an open transaction, or opens one with the next statement."""
    pooled = connection.connection
    adapted, driver = pooled.dbapi_connection, pooled.driver_connection
    if connection.dialect.name == "sqlite":
        return bool(driver.in_transaction) or opens_transactions(driver)
    if getattr(adapted, "autocommit", False) is not True:  # also on adapted asyncio drivers
        return True
    if hasattr(driver, "is_in_transaction"):  # asyncpg
        return bool(driver.is_in_transaction())
    info = getattr(driver, "info", None)
    return info is not None and info.transaction_status != IDLE
