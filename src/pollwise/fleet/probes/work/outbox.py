"""An outbox of Pollwise: are its records published, and is a key blocked?

    [[target]]
    name = "events of the shop"
    type = "outbox"
    url = "postgresql://app@db/shop"
    alerts = [{ when = "blocked > 0" }, { when = "lag > 5m" }]

The value is the number of dead records, so that a reading changes when a record dies or is retried,
and not with every put.
"""

from __future__ import annotations

import asyncio

from pollwise.core.outcome import Plain
from pollwise.durations import short
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
from pollwise.outbox.stores.base import OutboxStore
from pollwise.outbox.stores.urls import open_store
from pollwise.queues.views import COUNTED_MAX, MEASURED_MAX

FACTS = {
    "value": "the number of dead records",
    "ready": "records to be published; like all counts a lower bound if it is `most`",
    "delayed": "records that are not due yet",
    "leased": "first records of keys that a relay holds",
    "waiting": "first records of keys that wait for a retry",
    "dead": "dead records",
    "blocked": "keys whose first record is dead",
    "behind": "records that wait for blocked keys",
    "lag": "seconds since the oldest record was due that is neither done nor dead; 0 if none is",
    "relays": "running relays",
    **RATES,
    "ms": "milliseconds of the poll",
}


class OutboxProbe:
    """Looks at an outbox. Options: url, most (10,000), window (5m)."""

    __slots__ = ("_most", "_url", "_window", "host")

    def __init__(self, target: Target) -> None:
        options = ProbeOptions(target)
        self._url, _ = checked_store(options, open_store)
        self._most = options.whole("most", COUNTED_MAX, 1, MEASURED_MAX)
        self._window = window_of(options)
        self.host: str | None = host_in(self._url)
        options.finish()

    async def __call__(self, target: Target, context: ProbeContext) -> Reading:
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with open_store_of("outbox", self._url, _opened) as store:
            stats = await store.stats(self._most)
            relays = await store.relays()
            points = await store.history(self._window, None, "minute")
            now = store.clock.epoch()
        facts: dict[str, Plain] = {
            "ready": stats.ready,
            "delayed": stats.delayed,
            "leased": stats.leased,
            "waiting": stats.waiting,
            "dead": stats.dead,
            "blocked": stats.keys_blocked,
            "behind": stats.behind,
            "lag": round(stats.oldest_age or 0.0, 3),
            "relays": len(relays),
            **rates(points, now, self._window),
            "ms": round((loop.time() - began) * 1000, 1),
        }
        parts = [f"{stats.ready:,}{'+' if 'ready' in stats.capped else ''} ready"]
        if facts["lag"]:
            parts[0] += f" (oldest {short((stats.oldest_age or 0.0) // 0.1 / 10)})"
        parts.append(f"{stats.dead:,} dead")
        if stats.keys_blocked:
            keys = "key" if stats.keys_blocked == 1 else "keys"
            parts.append(f"{stats.keys_blocked:,} {keys} blocked")
        parts.append(f"{len(relays)} relay{'' if len(relays) == 1 else 's'}")
        return Reading(str(stats.dead), None, facts, ", ".join(parts))


def _opened(url: str) -> OutboxStore:
    return open_store(url)


make = OutboxProbe
