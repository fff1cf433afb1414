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
#: How far the hints of a put reach.
REACH = {
    "process": "within a process",
    "machine": "on a machine",
    "network": "everywhere",
}


def _yes(does: bool) -> str:
    return "yes" if does else "–"


def _unique(can: Capabilities) -> str:
    if not can.unique:
        return "–"
    return "until the job is done" if can.exact_unique else "for a time"


def _order(can: Capabilities) -> str:
    return "yes" if can.ordered else "roughly"


#: An `http://` queue gets hints from its controller, so the store behind does not matter.
HINTS = "a put ends the pause of an idle worker"
#: What is promised, and what a store says of it.
PROMISES: dict[str, Callable[[Capabilities], str]] = {
    "a late settlement is refused": lambda can: _yes(can.fenced),
    "a batch is put as a whole or not at all": lambda can: _yes(can.atomic_put),
    "a batch is settled as a whole or not at all": lambda can: _yes(can.atomic_settle),
    "a given-back job uses no attempt": lambda can: _yes(can.uncounted),
    "a job that may kill workers is claimed alone": lambda can: _yes(can.suspects),
    "jobs of a key run one at a time, in order": lambda can: _yes(can.keys),
    "jobs without a key are claimed in order": _order,
    "`unique` recognises a repeat": _unique,
    "a schedule puts one job for each tick": lambda can: _yes(can.schedules),
    "limits hold for all workers together": lambda can: _yes(can.limits),
    "a flow goes on in the transaction of its last job": lambda can: _yes(can.flows),
    "a delayed job ends the pause of an idle worker": lambda can: _yes(can.next_due),
    HINTS: lambda can: REACH[can.hints],
}


COLUMNS = ("", *STORES, "`http://`")


def rows() -> list[tuple[str, ...]]:
    """A row for each promise, with a cell for each store and for `http://`."""
    return [
        (name, *(said(store.capabilities) for store in STORES.values()), _of_http(name, said))
        for name, said in PROMISES.items()
    ]


def _of_http(name: str, said: Callable[[Capabilities], str]) -> str:
    """What an `http://` queue promises; most of it depends on the store of the controller."""
    behind = {said(store.capabilities) for store in BEHIND_A_CONTROLLER}
    if len(behind) == 1 or name == HINTS:
        return said(HttpQueue.capabilities)
    return "as its store"
