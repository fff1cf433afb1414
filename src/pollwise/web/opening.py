"""Opens what the web interface shows, and the state that has its tokens and its audit log."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from pollwise.controller.opening import queue_named, state_at, state_of
from pollwise.controller.state.base import ControllerState
from pollwise.controller.state.sqlite.state import SqliteState
from pollwise.errors import ConfigError
from pollwise.outbox.stores.base import OutboxStore
from pollwise.queues.base import Queue
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.queues.urls import names_no_queue, open_queue
from pollwise.runtime.clock import Clock
from pollwise.runtime.redact import split_url, without_secrets
from pollwise.web.sources import QueueSource, Sources

if TYPE_CHECKING:
    from pollwise.controller.controller import Controller


#: How many queues stay open, and how many are open at most, while many are looked at.
OPEN_KEPT = 32
OPEN_MAX = 128
#: A queue that was used in the last seconds may still be read, so it is closed only if too many are
#: open. A page waits no longer for a store.
IN_USE = 10.0


class QueueHandles:
    """The open queues that pages found in stores; the one unused for longest is closed first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: dict[str, tuple[Queue, float]] = {}  # the one unused for longest comes first
        self._closing: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._open)

    def use(self, place: str, open: Callable[[], Queue]) -> Queue:
        """The queue at a place, opened if it is not open."""
        found = self._open.pop(place, None)
        queue = open() if found is None else found[0]
        self._open[place] = queue, self._clock.now()
        if found is None:
            self._close_old()
        return queue

    def _close_old(self) -> None:
        now = self._clock.now()
        for place, (queue, used) in list(self._open.items()):
            count = len(self._open)
            if count <= OPEN_KEPT or (count <= OPEN_MAX and now - used < IN_USE):
                return
            del self._open[place]
            task = asyncio.get_running_loop().create_task(queue.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        queues = [queue for queue, _ in self._open.values()]
        self._open.clear()
        for queue in queues:
            await queue.close()
        await asyncio.gather(*self._closing, return_exceptions=True)


class Opened:
    """What is shown, and which parts of it were opened here."""

    def __init__(
        self,
        clock: Clock,
        controller: Controller | None = None,
        *,
        sources: Sources | None = None,
        owned: list[Any] | None = None,
    ) -> None:
        self.sources: Sources = sources or Sources(clock=clock, controller=controller)
        self.owned: list[Any] = [] if owned is None else owned

    def queue(self, given: str | Queue) -> None:
        """Show a queue; of a URL that names none, all queues of the store."""
        if isinstance(given, Queue):
            self.sources.add_queue(given)
            return
        queue = open_queue(given, clock=self.sources.clock, create=False)
        if isinstance(queue, MemoryQueue):
            raise ConfigError(
                f"{without_secrets(given)!r} is a queue in this process's memory; give the open "
                "queue itself, or name a store, such as sqlite:///jobs.db"
            )
        self.owned.append(queue)
        source = self.sources.add_queue(queue)
        if names_no_queue(given):
            self.others(queue, given, source)

    def others(self, queue: Queue, url: str, leave_out: QueueSource | None = None) -> None:
        """Show the other queues of a store too, also those that are made later."""

        handles = QueueHandles(self.sources.clock)
        self.owned.append(handles)

        def opened(name: str) -> Queue:
            clock = self.sources.clock
            return handles.use(name, lambda: queue_named(url, name, clock=clock, create=False))

        self.sources.find_others(queue, opened, leave_out)

    def outbox(self, given: Any) -> None:
        """Show an outbox: a URL, an `Outbox`, or its store."""
        from pollwise.outbox import Outbox
        from pollwise.outbox.stores.urls import open_store

        if isinstance(given, str):
            store = open_store(given, clock=self.sources.clock)
            path = sqlite_file(given)
            if path is not None:
                must_exist(path, given)
            self.owned.append(store)
        else:
            store = given.store if isinstance(given, Outbox) else given
        if not isinstance(store, OutboxStore):
            raise ConfigError(f"expected an outbox or its URL, got a {type(given).__name__}")
        self.sources.add_outbox(store)

    def fleet(self, given: Any) -> None:
        """Show a fleet: the URL of its store, a `Fleet`, or a store."""
        from pollwise.fleet import Fleet
        from pollwise.fleet.stores.base import FleetStore
        from pollwise.fleet.stores.urls import open_store

        if isinstance(given, str):
            given = open_store(given, clock=self.sources.clock, create=False)
            self.owned.append(given)
        if not isinstance(given, (Fleet, FleetStore)):
            raise ConfigError(f"expected a fleet or the URL of its store, got {given!r:.80}")
        self.sources.add_fleet(given)


def default_state(opened: Opened) -> ControllerState:
    """The state beside the first SQLite or Postgres queue; else in a private file of this user."""
    queues = [source.queue for source in opened.sources.queues.values()]
    for queue in queues:
        if isinstance(queue, (SqliteQueue, MemoryQueue)) or type(queue).__name__ == "PostgresQueue":
            return state_of(queue, opened.sources.clock)
    return SqliteState(private_file(), clock=opened.sources.clock)


def open_state(url: str, clock: Clock) -> ControllerState:
    """The state at a URL; a SQLite file is made if it is missing."""
    return state_at(url, clock)


def private_file() -> Path:
    """Where the state is if no store can hold it."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    folder = Path(state) / "pollwise"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"the folder {folder} for tokens and the audit log cannot be made: {error.strerror}; "
            "name another place: --state sqlite:///web.db"
        ) from None
    return folder / "web.db"


def sqlite_file(url: str) -> Path | None:
    """The path of the database that a URL names, if it is a SQLite file."""
    parts = split_url(url)
    return Path(unquote(parts.path[1:])) if parts.scheme == "sqlite" else None


def must_exist(path: Path, url: str) -> None:
    """Refuse a file that is missing: a mistyped path must not make a database."""
    if not path.exists():
        raise ConfigError(
            f"there is no database at {str(path.absolute())!r}; check the path in "
            f"{without_secrets(url)}"
        )


def trace_folder(given: str | Path) -> Path:
    """The folder of trace files for the lab; `ConfigError` if there is none."""
    folder = Path(given)
    if not folder.is_dir():
        raise ConfigError(f"traces = {str(given)!r} is not a folder; correct the path")
    return folder
