"""Django in handlers: its connections are kept per thread, and are closed between requests only.

A handler runs outside of requests, so a connection that the server closed would stay in its thread
forever. Every handler that runs in this thread would fail. Nothing here imports Django: it
concerns only processes that have.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any


def closing_old(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A plain function that closes Django's old connections before and after, as a request does."""

    def call(job: Any) -> Any:
        close_old_connections()
        try:
            return function(job)
        finally:
            close_old_connections()

    return call


def closing_lost(function: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
    """An async function that closes Django's lost connections after a failure.

    They are in the thread where Django runs the queries of all async code.
    """

    async def call(job: Any) -> Any:
        try:
            return await function(job)
        except Exception as error:
            failed = error
        # Not inside the `except`: asgiref raises the error of that again in its thread, and so adds
        # its frames to the traceback.
        in_its_thread = getattr(sys.modules.get("asgiref.sync"), "sync_to_async", None)
        if in_its_thread is not None and _django_db() is not None:
            await in_its_thread(close_old_connections)()
        try:
            raise failed
        finally:
            del failed  # else the error and this frame hold each other

    return call if inspect.iscoroutinefunction(function) else function


def close_old_connections() -> None:
    """Close the connections of this thread that are too old (CONN_MAX_AGE) or have failed."""
    db = _django_db()
    if db is not None:
        with suppress(Exception):  # the handler will meet it
            db.close_old_connections()


def close_connections() -> None:
    """Close all connections of this thread, which ends."""
    db = _django_db()
    if db is not None:
        with suppress(Exception):
            db.connections.close_all()


def _django_db() -> Any:
    """The module `django.db` if Django is set up, else None."""
    db, conf = sys.modules.get("django.db"), sys.modules.get("django.conf")
    return db if db is not None and conf is not None and conf.settings.configured else None
