"""From a URL to the queue and the state of a controller.

The controller's jobs are in the queue `agents` of the store. The state is stored beside the queue:
in the same SQLite file or Postgres database. Other stores need a state of their own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from pollwise.controller.state.base import ControllerState
from pollwise.controller.state.sqlite.state import SqliteState
from pollwise.errors import ConfigError, Unsupported
from pollwise.queues.base import Queue
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.queues.urls import is_sqs, open_queue, url_of_queue
from pollwise.runtime.clock import Clock
from pollwise.runtime.redact import split_url, without_secrets

#: The queue of the controller's own jobs.
AGENTS = "agents"
#: The folder for files when the store is not a file: in the current folder.
ARTEFACTS = "pollwise-artefacts"
#: The stores that a controller can use.
FIT = (
    "Use sqlite:///jobs.db or postgresql://…; or redis://, s3://, gs://, az:// or file:// with a "
    "separate state (--state sqlite:///state.db)"
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
    refuse_unfit(url)
    named = url_of_queue(url, name)
    if keep is not None:
        named += f"&keep={keep:g}s"
    return open_queue(named, clock=clock, create=create)


def check_queue(queue: Queue) -> None:
    """Raise if a queue cannot be that of a controller."""
    can = queue.capabilities
    if not (can.kinds and can.headers and can.results and can.cancel):
        raise Unsupported(
            f"{queue.url} cannot claim by kind, keep headers and results, and cancel, as a "
            "controller needs; use SQLite, Postgres, Redis or an object store"
        )
    if queue.codec is not None:
        raise ConfigError(
            f"{queue.url} has a codec, but a controller passes payloads on as they are; give the "
            "codec to the programs that put and run jobs"
        )
    if queue.keep is None:
        raise ConfigError(
            f"{queue.url} deletes finished jobs, and nobody could read their results; open it "
            "with keep, such as keep='7d'"
        )


def refuse_unfit(url: str) -> None:
    """Raise `Unsupported` for a URL that no controller can use, and say which it can."""
    parts = split_url(url) if isinstance(url, str) and "://" in url else None
    if parts is None or parts.scheme not in ("sqs", "http", "https"):
        return
    if is_sqs(parts):
        why = (
            "cannot be the store of a controller: SQS hands out the next message, whatever it is, "
            "and a controller has to claim by kind, to match jobs with workers"
        )
    else:
        why = (
            "is the address of a controller, not of a store. Agents connect to it with "
            "`pollwise agent --controller`, and Workers use it as a queue URL"
        )
    raise Unsupported(f"{without_secrets(url)} {why}. {FIT}")


def state_of(queue: Queue, clock: Clock | None = None, *, create: bool = True) -> ControllerState:
    """The state that is stored beside a queue."""
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
        f"{queue.url} cannot hold the state of a controller; name another place for it: "
        "--state sqlite:///state.db (the setting controller.state), or "
        "ControllerOptions(state='postgresql://…')"
    )


def state_at(url: str, clock: Clock | None = None, *, create: bool = True) -> ControllerState:
    """The state at the URL of a SQLite file or a Postgres database."""
    return state_of(queue_named(url, AGENTS, clock=clock, create=create), clock, create=create)


def default_artefacts(queue: Queue) -> str | None:
    """The default place for files: beside the database; None for a temporary folder."""
    if isinstance(queue, MemoryQueue):
        return None
    if isinstance(queue, SqliteQueue):
        return str(queue.path.with_name(f"{queue.path.name}-artefacts"))
    return ARTEFACTS


@asynccontextmanager
async def opened_state(url: str, clock: Clock | None = None) -> AsyncIterator[ControllerState]:
    """The existing state beside the queue at `url`, for the command line."""
    scheme = url.partition("://")[0]
    if "://" in url and scheme not in ("sqlite", "postgresql", "postgres"):
        raise ConfigError(
            f"{without_secrets(url)} holds no tokens: they are in the controller's state, in a "
            "SQLite file or a Postgres database. Give its URL with --store: the --state of "
            "`pollwise serve`, or else its store"
        )
    state = state_at(url, clock, create=False)
    try:
        if isinstance(state, SqliteState):
            _check_exists(state.path.absolute(), url)
        await state.ping()
        yield state
    finally:
        await state.close()


def _check_exists(path: Path, url: str) -> None:
    """A mistyped path must not create a new database."""
    if not path.exists():
        raise ConfigError(
            f"there is no database at {str(path)!r}; correct the path, or start `pollwise serve "
            f"{url}`, which makes it"
        )
