"""From a URL to a controller: its queue, its state, and the place for files.

The controller's jobs are in the queue `agents` of the store. The state lies beside the queue: in
the same SQLite file, the same Postgres database. A store that can hold no state needs one named.
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from pollwise.controller.controller import Controller
from pollwise.controller.files.artefacts import Artefacts
from pollwise.controller.files.blobs import open_blobs
from pollwise.controller.options import ControllerOptions
from pollwise.controller.state.base import ControllerState
from pollwise.controller.state.sqlite.state import SqliteState
from pollwise.errors import ConfigError, Unsupported
from pollwise.queues.base import Queue
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.queues.urls import is_sqs, open_queue
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import Events
from pollwise.runtime.redact import without_secrets

#: The queue of the controller's own jobs.
AGENTS = "agents"
#: Where files lie when the store is no file: in the current folder.
ARTEFACTS = "pollwise-artefacts"
#: What can stand behind a controller.
FIT = (
    "Use sqlite:///jobs.db or postgresql://…; or redis://, s3://, gs://, az:// or file:// with a "
    "state of its own (--state sqlite:///state.db)"
)


def queue_named(
    url: str,
    name: str,
    keep: float | None = None,
    clock: Clock | None = None,
    *,
    create: bool = True,
) -> Queue:
    """The queue of this name in the store at `url`."""
    _refuse_unfit(url)
    place, _, query = url.partition("?")
    options = [
        each
        for each in parse_qsl(query, keep_blank_values=True)
        if each[0] not in ("queue", "keep")
    ]
    options.append(("queue", name))
    if keep is not None:
        options.append(("keep", f"{keep:g}s"))
    named = f"{place}?{urlencode(options, quote_via=quote)}"
    return open_queue(named, clock=clock, create=create)


def _refuse_unfit(url: str) -> None:
    """Refuse what cannot stand behind a controller, in words about that and not about options."""
    parts = urlsplit(url) if isinstance(url, str) and "://" in url else None
    if parts is None or parts.scheme not in ("sqs", "http", "https"):
        return
    if is_sqs(parts):
        why = (
            "cannot stand behind a controller: SQS hands out whichever message comes next, and a "
            "controller has to claim by kind, to match jobs with the workers that can do them"
        )
    else:
        why = (
            "is the address of a controller, and not of a store that one could stand before; "
            "agents go there by `pollwise agent --controller`, and Workers by it as a queue URL"
        )
    raise Unsupported(f"{without_secrets(url)} {why}. {FIT}")


def state_of(queue: Queue, clock: Clock | None = None, *, create: bool = True) -> ControllerState:
    """The state that lies beside a queue."""
    clock = clock or queue.clock
    if isinstance(queue, SqliteQueue):
        return SqliteState(queue.path, synchronous=queue.synchronous, create=create, clock=clock)
    if isinstance(queue, MemoryQueue):
        return SqliteState.temporary(clock)
    if type(queue).__name__ == "PostgresQueue":
        from pollwise.controller.state.postgres.state import PostgresState
        from pollwise.queues.postgres.queue import PostgresQueue

        if isinstance(queue, PostgresQueue):
            return PostgresState(queue.database.conninfo, schema=queue.schema, clock=clock)
    raise ConfigError(
        f"{queue.url} can hold no state of a controller; name a place for it: "
        "--state sqlite:///state.db (the setting controller.state), or state='postgresql://…' of "
        "create_app"
    )


def state_at(url: str, clock: Clock | None = None, *, create: bool = True) -> ControllerState:
    """The state at the URL of a SQLite file or a Postgres database."""
    return state_of(queue_named(url, AGENTS, clock=clock, create=create), clock, create=create)


def default_artefacts(queue: Queue) -> str | None:
    """Where files lie unless somebody says so: beside the database; None for a temporary folder."""
    if isinstance(queue, MemoryQueue):
        return None
    if isinstance(queue, SqliteQueue):
        return str(queue.path.with_name(f"{queue.path.name}-artefacts"))
    return ARTEFACTS


@asynccontextmanager
async def opened(
    store: Queue | str,
    *,
    state: ControllerState | str | None = None,
    artefacts: str | Path | None = None,
    options: ControllerOptions | None = None,
    clock: Clock | None = None,
    events: Events | None = None,
) -> AsyncIterator[Controller]:
    """A controller on a store; what was opened for it is closed behind it."""
    controller, close = assembled(
        store, state=state, artefacts=artefacts, options=options, clock=clock, events=events
    )
    try:
        yield controller
    finally:
        await close(controller)


def assembled(
    store: Queue | str,
    *,
    state: ControllerState | str | None = None,
    artefacts: str | Path | None = None,
    options: ControllerOptions | None = None,
    clock: Clock | None = None,
    events: Events | None = None,
) -> tuple[Controller, Callable[[Controller], Awaitable[None]]]:
    """A controller that nothing was asked of yet, and what ends it.

    A queue or a state that was given is left open: it is its owner's.
    """
    chosen = options or ControllerOptions()
    if isinstance(store, Queue):
        _refuse_unfit(store.url)
    queue = queue_named(store, AGENTS, clock=clock) if isinstance(store, str) else store
    if isinstance(state, str):
        kept = state_at(state, clock or queue.clock)
    else:
        kept = state_of(queue, clock) if state is None else state
    place = artefacts if artefacts is not None else default_artefacts(queue)
    temporary = tempfile.mkdtemp(prefix="pollwise-artefacts-") if place is None else None
    files = Artefacts(kept, open_blobs(place or str(temporary)), limit=chosen.artefact_limit)
    controller = Controller(
        queue, kept, files, options=chosen, clock=clock or queue.clock, events=events
    )
    if temporary is not None:  # also of one that never began, and so never ends
        weakref.finalize(controller, shutil.rmtree, temporary, ignore_errors=True)
    if isinstance(store, str):
        controller.open_queue = lambda name, keep: queue_named(store, name, keep, clock)

    async def close(controller: Controller) -> None:
        async with AsyncExitStack() as stack:
            if temporary is not None:
                stack.callback(shutil.rmtree, temporary, ignore_errors=True)
            if isinstance(store, str):
                stack.push_async_callback(queue.close)
            if not isinstance(state, ControllerState):
                stack.push_async_callback(kept.close)
            stack.push_async_callback(files.close)
            await controller.close()

    return controller, close


@asynccontextmanager
async def opened_state(url: str, clock: Clock | None = None) -> AsyncIterator[ControllerState]:
    """The state beside the queue at `url`, for the command line; it has to be there already."""
    scheme = url.partition("://")[0]
    if "://" in url and scheme not in ("sqlite", "postgresql", "postgres"):
        raise ConfigError(
            f"{without_secrets(url)} holds no tokens: they are in the controller's state, in a "
            "SQLite file or a Postgres database. Name that by --store: what `pollwise serve` has "
            "as "
            "its --state, or else as its store"
        )
    state = state_at(url, clock, create=False)
    try:
        if isinstance(state, SqliteState):
            _check_is_there(state.path.absolute(), url)
        await state.ping()
        yield state
    finally:
        await state.close()


def _check_is_there(path: Path, url: str) -> None:
    """A mistyped path must not become a database that no controller knows."""
    if not path.exists():
        raise ConfigError(
            f"there is no database at {str(path)!r}; correct the path, or start `pollwise serve "
            f"{url}`, which makes it"
        )
