"""Which kinds of jobs wait, and why no worker can take some of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pollwise.controller.state.base import PAGE_MAX, ControllerState
from pollwise.controller.state.values import Requirement
from pollwise.controller.workers import matching
from pollwise.queues.views import Stats


@dataclass(frozen=True, slots=True)
class WaitingKind:
    """Ready jobs of one kind and requirement.

    queue_kind: their kind in the queue, with the hash of the requirement.
    oldest_age: of the one that waits longest, in seconds.
    waiting_for: why no live worker can take them; None if one can.
    met_by_none: the names of the requirements that no live worker meets.
    """

    kind: str
    queue_kind: str
    requires: Mapping[str, Any]
    count: int
    oldest_age: float
    waiting_for: str | None
    met_by_none: tuple[str, ...]


def waiting_kinds(
    counted: Mapping[str, Stats],
    requirements: Iterable[Requirement],
    live: list[matching.Capabilities],
) -> list[WaitingKind]:
    """The kinds that have ready jobs, by name.

    counted: the jobs by kind in the queue. live: the capabilities of live workers.
    """
    required = {(each.kind, each.hash): each.requires for each in requirements}
    found = []
    for name, stats in sorted(counted.items()):
        if not stats.ready:
            continue
        kind, _, digest = name.partition(matching.MARK)
        requires = required.get((kind, digest), {})
        reason = matching.waiting_for(kind, requires, live)
        unmet = tuple(matching.met_by_none(requires, live)) if reason else ()
        age = stats.oldest_age or 0.0
        found.append(WaitingKind(kind, name, requires, stats.ready, age, reason, unmet))
    return found


async def live_capabilities(state: ControllerState, live_s: float) -> list[Mapping[str, Any]]:
    """The capabilities of live workers that take jobs, each distinct set once.

    live_s: a worker that was not seen for this many seconds is not live.
    """
    found: dict[str, Mapping[str, Any]] = {}
    after = ""
    while True:
        page = await state.live_capabilities(live_s, limit=PAGE_MAX, after=after)
        for capabilities in map(json.loads, page):
            found.setdefault(matching.hash_of(capabilities), capabilities)
        if len(page) < PAGE_MAX:
            return list(found.values())
        after = page[-1]
