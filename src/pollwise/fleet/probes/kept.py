"""What probes keep open between polls: connections and processes, shared by all targets.

Each event loop has its own, because a connection belongs to the loop in which it was opened. A
fleet runs inside `connections()`; the last user closes everything.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol, TypeVar, cast
from weakref import WeakKeyDictionary


class KeptOpen(Protocol):
    async def aclose(self) -> None: ...


T = TypeVar("T", bound=KeptOpen)


@dataclass(slots=True)
class _KeptInLoop:
    users: int = 0
    things: dict[Hashable, KeptOpen] = field(default_factory=dict)


_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _KeptInLoop] = WeakKeyDictionary()


def shared(key: Hashable, make: Callable[[], T]) -> T:
    """The object of this event loop with this key; the first call makes it."""
    things = _in_loop().things
    found = things.get(key)
    if found is None:
        found = things[key] = make()
    return cast(T, found)


@asynccontextmanager
async def connections() -> AsyncIterator[None]:
    """Use what is kept open; the last user closes it."""
    kept = _in_loop()
    kept.users += 1
    try:
        yield
    finally:
        kept.users -= 1
        if not kept.users:
            while kept.things:
                _, thing = kept.things.popitem()
                with suppress(Exception):  # the others are closed too
                    await thing.aclose()


def _in_loop() -> _KeptInLoop:
    loop = asyncio.get_running_loop()
    found = _loops.get(loop)
    if found is None:
        found = _loops[loop] = _KeptInLoop()
    return found
