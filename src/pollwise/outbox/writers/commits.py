"""Being told of a commit, where the user's library tells.

SQLAlchemy's sessions and Django do. The other libraries have no such hook, and need none: on
Postgres the news rides in the transaction itself, and a SQLite file is watched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_FLAG = "pollwise_eager"


def on_commit(tx: Any, call: Callable[[], None]) -> None:
    """Call after the transaction on `tx` is committed, and not if it is rolled back.

    Where the library cannot tell, nothing is called.
    """
    classes = [(each.__module__.partition(".")[0], each.__name__) for each in type(tx).__mro__]
    if ("django", "BaseDatabaseWrapper") in classes or ("django", "ConnectionProxy") in classes:
        from django.db import transaction

        transaction.on_commit(call, using=tx.alias)
        return
    session = tx
    if ("sqlalchemy", "scoped_session") in classes:
        session = tx()
    elif ("sqlalchemy", "async_scoped_session") in classes:
        session = tx().sync_session
    elif ("sqlalchemy", "AsyncSession") in classes:
        session = tx.sync_session
    elif ("sqlalchemy", "Session") not in classes:
        return
    _after_commit(session, call)


def _after_commit(session: Any, call: Callable[[], None]) -> None:
    from sqlalchemy import event

    # One listener a session, however many transactions it has: listeners are never let go. What a
    # rolled-back transaction left waiting is called by the next commit, and finds nothing.
    waiting: dict[Callable[[], None], None] | None = session.info.get(_FLAG)
    if waiting is None:
        waiting = session.info[_FLAG] = {}
        event.listen(session, "after_commit", lambda _: _call_all(waiting))
    waiting[call] = None


def _call_all(waiting: dict[Callable[[], None], None]) -> None:
    calls = list(waiting)
    waiting.clear()
    for call in calls:
        call()
