"""The table of docs/why/guarantees.md: what each store promises, from its `Capabilities`."""

from __future__ import annotations

from collections.abc import Callable

from pollwise.queues.base import Queue
from pollwise.queues.capabilities import Capabilities
from pollwise.queues.http.queue import HttpQueue
from pollwise.queues.memory import MemoryQueue
from pollwise.queues.objects.queue import ObjectQueue
from pollwise.queues.postgres.queue import PostgresQueue
from pollwise.queues.redis.queue import RedisQueue
from pollwise.queues.sqlite.queue import SqliteQueue
from pollwise.queues.sqs.queue import SqsFifoQueue, SqsQueue

STORES: dict[str, type[Queue]] = {
    "memory": MemoryQueue,
    "SQLite": SqliteQueue,
    "Postgres": PostgresQueue,
    "Redis": RedisQueue,
    "bucket": ObjectQueue,
    "SQS": SqsQueue,
    "SQS, FIFO": SqsFifoQueue,
}
#: Those that a controller can have.
BEHIND_A_CONTROLLER = (MemoryQueue, SqliteQueue, PostgresQueue, RedisQueue, ObjectQueue)


def _yes(does: bool) -> str:
    return "yes" if does else "–"


def _unique(can: Capabilities) -> str:
    if not can.unique:
        return "–"
    return "exact" if can.exact_unique else "briefly"


#: What is promised: its name, what that means, and what a store says of it.
PROMISES: dict[str, tuple[str, Callable[[Capabilities], str]]] = {
    "fencing": ("a late settlement is refused", lambda can: _yes(can.fenced)),
    "whole puts": (
        "a batch is put as a whole, or not at all",
        lambda can: _yes(can.atomic_put),
    ),
    "whole settlements": (
        "a batch is settled as a whole, or not at all",
        lambda can: _yes(can.atomic_settle),
    ),
    "free returns": (
        "a job that is given back has used no attempt",
        lambda can: _yes(can.uncounted),
    ),
    "suspects": (
        "a job that may have killed its workers is claimed alone",
        lambda can: _yes(can.suspects),
    ),
    "keys": ("jobs of a key run one at a time, in order", lambda can: _yes(can.keys)),
    "order": (
        "jobs without a key are claimed in the order in which they became due",
        lambda can: "yes" if can.ordered else "roughly",
    ),
    "unique": (
        "a repeated put is recognised: exactly until the job is done, or only for a short time",
        _unique,
    ),
    "schedules": ("a schedule puts one job for each tick", lambda can: _yes(can.schedules)),
    "limits": ("limits apply to all workers together", lambda can: _yes(can.limits)),
    "breakers": (
        "all workers share the breaker of a kind, also those that start later",
        lambda can: _yes(can.breakers),
    ),
    "flows": (
        "the next job becomes ready in the transaction that settles the one before it",
        lambda can: _yes(can.flows),
    ),
    "due times": (
        "an idle worker polls when a delayed job is due, even in a longer pause",
        lambda can: _yes(can.next_due),
    ),
    "hints": (
        "how far the hint of a put reaches: process, machine or network",
        lambda can: can.hints,
    ),
}


COLUMNS = ("", *STORES, "`http://`")


def rows() -> list[tuple[str, ...]]:
    """A row for each promise, with a cell for each store and for `http://`."""
    return [
        (name, *(said(store.capabilities) for store in STORES.values()), _of_http(name, said))
        for name, (_, said) in PROMISES.items()
    ]


def _of_http(name: str, said: Callable[[Capabilities], str]) -> str:
    """What an `http://` queue promises; most of it depends on the store of the controller."""
    behind = {said(store.capabilities) for store in BEHIND_A_CONTROLLER}
    # Hints come from the controller, whatever its store is.
    if len(behind) == 1 or name == "hints":
        return said(HttpQueue.capabilities)
    return "its store"


def meanings() -> str:
    """What the names of the rows mean, as a list."""
    return "\n".join(f"- *{name}*: {meaning}." for name, (meaning, _) in PROMISES.items())
