"""A queue of Pollwise: do its jobs run, and are there dead ones?

    [[target]]
    name = "mail jobs"
    type = "queue"
    url = "postgresql://app@db/shop?queue=mail"
    alerts = [{ when = "dead > 0" }, { when = "oldest > 5m" }]

The value is the number of dead jobs, so that a reading changes when a job dies or is retried, and
not with every put. A fact that the store cannot tell is missing: SQS knows neither workers nor the
age of a job.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from pollwise.core.outcome import Plain
from pollwise.durations import short
from pollwise.errors import Unsupported
from pollwise.fleet.probes.options import ProbeOptions
from pollwise.fleet.probes.work.stores import (
    RATES,
    checked_store,
    host_in,
    open_store_of,
    rates,
    window_of,
)
from pollwise.fleet.targets import ProbeContext, Reading, Target
from pollwise.queues.base import Queue
from pollwise.queues.presence import handlers_of
from pollwise.queues.urls import open_queue
from pollwise.queues.views import COUNTED_MAX, MEASURED_MAX, Stats

FACTS = {
    "value": "the number of dead jobs",
    "ready": "jobs that wait for a worker; like all counts a lower bound if it is `most`",
    "delayed": "jobs that are not due yet",
    "blocked": "jobs that wait for another one of their key",
    "leased": "jobs that run",
    "dead": "dead jobs",
    "oldest": "seconds that the oldest ready job has waited; 0 if none waits",
    "paused": "1 if the queue, or the `kind`, is paused; else 0",
    "workers": "running workers; with `kind`, those that have a handler for it",
    **RATES,
    "ms": "milliseconds of the poll",
}
_COUNTS = ("ready", "delayed", "blocked", "leased", "dead")
_NOBODY = Stats.of({}, None)


class QueueProbe:
    """Looks at a queue. Options: url, kind, most (10,000), window (5m)."""

    __slots__ = ("_kind", "_most", "_url", "_window", "host", "lacks")

    def __init__(self, target: Target) -> None:
        options = ProbeOptions(target)
        self._url, queue = checked_store(options, _opened)
        self._kind = options.text("kind") or None
        self._most = options.whole("most", COUNTED_MAX, 1, MEASURED_MAX)
        self._window = window_of(options)
        self.host: str | None = host_in(self._url)
        #: The facts that this store does not know.
        self.lacks: frozenset[str] = frozenset()
        if self._url.startswith("memory:"):
            options.wrong(
                "url", "= 'memory://' is a queue that only its own process sees; use a function"
            )
        if self._kind is not None and options.has("most"):
            options.wrong("most", "does not apply to one kind; leave out one of most and kind")
        if queue is not None:
            can = queue.capabilities
            if self._kind is not None and not can.views:
                options.wrong("kind", "cannot be given: this store does not count jobs by kind")
            lacking = (
                (can.exact_depth, ("oldest",)),
                (can.keys and can.exact_depth, ("blocked",)),
                (can.pause, ("paused",)),
                (can.presence, ("workers",)),
                (can.history, tuple(RATES)),
            )
            self.lacks = frozenset(name for able, names in lacking if not able for name in names)
        options.finish()

    async def __call__(self, target: Target, context: ProbeContext) -> Reading:
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with open_store_of("queue", self._url, _opened) as queue:
            stats = await self._counted(queue)
            facts: dict[str, Plain] = {name: getattr(stats, name) for name in _COUNTS}
            facts["oldest"] = round(stats.oldest_age or 0.0, 3)
            # A controller says only at the call what the store behind it cannot do.
            if "paused" not in self.lacks:
                with suppress(Unsupported):
                    paused = await queue.paused()
                    facts["paused"] = int(None in paused or self._kind in paused)
            if "workers" not in self.lacks:
                with suppress(Unsupported):
                    workers, kind = await queue.workers(), self._kind
                    facts["workers"] = len(workers) if kind is None else handlers_of(kind, workers)
            if "failing" not in self.lacks:
                with suppress(Unsupported):
                    kinds = None if self._kind is None else [self._kind]
                    points = await queue.history(self._window, kinds, "minute")
                    facts |= rates(points, queue.clock.epoch(), self._window)
        for name in self.lacks:
            facts.pop(name, None)
        facts["ms"] = round((loop.time() - began) * 1000, 1)
        return Reading(str(stats.dead), None, facts, summary_of(facts, stats.capped))

    async def _counted(self, queue: Queue) -> Stats:
        if self._kind is None:
            return await queue.stats(self._most)
        return (await queue.stats_by_kind()).get(self._kind, _NOBODY)


def summary_of(facts: dict[str, Plain], capped: frozenset[str]) -> str:
    """One line: "3 ready (oldest 12s), 1 leased, 2 dead, 4 workers, paused"."""
    parts = []
    for name in _COUNTS:
        if facts.get(name) or name in ("ready", "dead"):
            more = "+" if name in capped else ""
            parts.append(f"{facts[name]:,}{more} {name}")
            if name == "ready" and facts.get("oldest"):
                parts[-1] += f" (oldest {short(float(facts['oldest'] or 0) // 0.1 / 10)})"
    if "workers" in facts:
        parts.append(f"{facts['workers']} worker{'' if facts['workers'] == 1 else 's'}")
    if facts.get("paused"):
        parts.append("paused")
    return ", ".join(parts)


def _opened(url: str) -> Queue:
    return open_queue(url, create=False)


make = QueueProbe
