"""Event loops.

Windows has two, and neither does everything: the usual one (proactor) starts programs, but psycopg
cannot wait for Postgres in it; the other one (selector) does the reverse, and has at most 512
sockets. Elsewhere one loop does all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from importlib.util import find_spec
from typing import Any, TypeVar

from pollwise.errors import ConfigError
from pollwise.platforms.system import is_windows

T = TypeVar("T")
LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def factory() -> LoopFactory | None:
    """The factory of event loops for commands; None for the usual loop of this system.

    On Windows it is the selector loop if psycopg is installed: who installs it uses Postgres.
    """
    if is_windows() and find_spec("psycopg") is not None:
        return asyncio.SelectorEventLoop
    return None


def fast_factory() -> LoopFactory | None:
    """The same for servers: uvloop where it is installed; it does not exist for Windows."""
    if is_windows():
        return factory()
    try:
        import uvloop
    except ImportError:
        return None
    made: LoopFactory = uvloop.new_event_loop
    return made


def new() -> asyncio.AbstractEventLoop:
    """A new event loop."""
    return (factory() or asyncio.new_event_loop)()


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` as `asyncio.run` does, in an event loop that fits this system."""
    # At its end, asyncio makes a text of the task, its result included: 3 s for a fleet of 100,000.
    results: list[T] = []

    async def keep_result() -> None:
        results.append(await main)

    with asyncio.Runner(loop_factory=factory()) as runner:
        runner.run(keep_result())
    return results[0]


def check_for_postgres() -> None:
    """Raise if psycopg cannot wait in the running event loop."""
    proactor = getattr(asyncio, "ProactorEventLoop", None)
    if proactor is not None and isinstance(asyncio.get_running_loop(), proactor):
        raise ConfigError(
            "Postgres cannot be used in the ProactorEventLoop, which is the usual one on Windows; "
            "run the program with `asyncio.Runner(loop_factory=asyncio.SelectorEventLoop)`"
        )


def no_programs(what: str) -> ConfigError:
    """The error for a NotImplementedError: this event loop cannot start programs."""
    return ConfigError(
        f"{what} starts a process, which the SelectorEventLoop cannot do on Windows; commands use "
        "that loop there because psycopg is installed: uninstall it, or run this on Linux or macOS"
    )
