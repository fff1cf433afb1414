"""From the URL of the controller's queue to the state that lies beside it."""

from __future__ import annotations

from typing import Any

from pollwise.controller.state.base import ControllerState
from pollwise.controller.state.sqlite.state import SqliteState
from pollwise.errors import ConfigError, MissingExtra
from pollwise.queues.urls import parse_url, postgres_place, sqlite_place
from pollwise.runtime.clock import Clock


def open_state(url: str, *, clock: Clock | None = None, create: bool = True) -> ControllerState:
    """The state in the store of a queue URL: its SQLite file, or its schema in Postgres.

    Nothing is touched before its first call. Other stores keep jobs and nothing else: a controller
    on one of those keeps its state elsewhere.
    """
    at = parse_url(url, clock=clock, create=create)
    if at.parts.scheme == "sqlite":
        path, options = sqlite_place(at)
        return SqliteState(path, create=create, clock=clock, **_only(options, "synchronous"))
    if at.parts.scheme in ("postgresql", "postgres"):
        try:
            conninfo, options = postgres_place(at)
        except ImportError:
            raise MissingExtra("a controller on Postgres", "postgres") from None
        from pollwise.controller.state.postgres.state import PostgresState

        chosen = _only(options, "schema", "timeout", "connections")
        return PostgresState(conninfo, clock=clock, **chosen)
    if at.parts.scheme == "memory":
        return SqliteState.temporary(clock)
    raise ConfigError(
        f"{at.shown} keeps jobs, but not what a controller has to remember beside them; name a "
        "place for that: sqlite:///state.db, or postgresql://… for several controllers"
    )


def _only(options: dict[str, object], *names: str) -> dict[str, Any]:
    return {name: options[name] for name in names if name in options}
