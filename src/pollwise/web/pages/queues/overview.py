"""The first page: what needs attention, the totals, and every queue at a glance."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Mapping
from functools import partial
from typing import Any

from pollwise.queues.views import summed
from pollwise.web.live import Ask, MarkersInTurn, is_idle
from pollwise.web.pages.fleet.source import FleetSource
from pollwise.web.pages.outbox.source import OutboxSource
from pollwise.web.pages.queues.attention import (
    controller_concerns,
    fleet_concerns,
    outbox_concerns,
    queue_concerns,
    sorted_concerns,
)
from pollwise.web.pages.queues.figures import FigureMemory, charts_of, pace_of, total_figures
from pollwise.web.pages.workers import whole
from pollwise.web.sources import QueueSource, ShownQueue
from pollwise.web.view import View, Visit

#: With more queues than this, each is a row of a table instead of a card.
CARDS_MAX = 6
#: How many queues are shown, and so opened, at once; others are on further pages.
QUEUES_MAX = 50
#: How many concerns are shown at once; the others are folded.
CONCERNS_MAX = 12


class OverviewPage(View):
    """Every queue, with its depth and its oldest job."""

    name = "overview"
    path = "/"
    template = "overview/page.html"

    def __init__(self, web: Any) -> None:
        super().__init__(web)
        self._markers = MarkersInTurn()
        self._figures = FigureMemory()

    def _queues(self, visit: Visit) -> tuple[list[QueueSource], int, int]:
        """The queues on this page, its number, and how many pages there are."""
        every = list(self.web.sources.queues.values())
        pages = max((len(every) + QUEUES_MAX - 1) // QUEUES_MAX, 1)
        page = min(whole(visit.query.get("page", ""), 1), pages)
        return every[(page - 1) * QUEUES_MAX : page * QUEUES_MAX], page, pages

    async def marker(self, visit: Visit) -> Hashable:
        of = self.web.sources
        asks: dict[tuple[str, str], Ask] = {
            **{("queue", source.slug): source.marker for source in self._queues(visit)[0]},
            **{("outbox", slug): partial(_marker, box) for slug, box in of.outboxes.items()},
            **{("fleet", slug): partial(_marker, fleet) for slug, fleet in of.fleets.items()},
        }
        return await self._markers.marker(visit, asks)

    async def context(self, visit: Visit) -> Mapping[str, Any]:
        queues, page, pages = self._queues(visit)
        live = is_idle(visit)
        shown = await asyncio.gather(*(source.snapshot(live=live) for source in queues))
        past = await asyncio.gather(
            *(
                source.lately(live=each.unchanged)
                for source, each in zip(queues, shown, strict=True)
            )
        )
        now = self.web.sources.clock.epoch()
        figures = [
            self._figures.of(source, points, each.workers, now)
            for source, points, each in zip(queues, past, shown, strict=True)
        ]
        concerns = [
            concern
            for source, each, points in zip(queues, shown, past, strict=True)
            for concern in queue_concerns(source, each, points, now)
        ]
        concerns += await controller_concerns(self.web.sources.controller_source())
        outboxes = list(self.web.sources.outboxes.values())
        fleets = list(self.web.sources.fleets.values())
        relayed = await asyncio.gather(*(outbox.snapshot() for outbox in outboxes))
        watched = await asyncio.gather(*(fleet.snapshot() for fleet in fleets))
        for outbox, records in zip(outboxes, relayed, strict=True):
            concerns += outbox_concerns(outbox, records)
        for fleet, targets in zip(fleets, watched, strict=True):
            concerns += fleet_concerns(fleet, targets)
        return {
            "queues": [
                (source, each, numbers, pace_of(each.workers))
                for source, each, numbers in zip(queues, shown, figures, strict=True)
            ],
            "outboxes": list(zip(outboxes, relayed, strict=True)),
            "fleets": list(zip(fleets, watched, strict=True)),
            "totals": totals(shown),
            "total": total_figures(figures),
            "charts_of_one": charts_of(past[0], "1h", now) if len(queues) == 1 and past[0] else [],
            "concerns": sorted_concerns(concerns),
            "concerns_max": CONCERNS_MAX,
            "as_cards": len(queues) <= CARDS_MAX and pages == 1,
            "page": page,
            "pages": pages,
            "all_queues": len(self.web.sources.queues),
        }


async def _marker(source: OutboxSource | FleetSource) -> Hashable:
    return (await source.snapshot()).marker


def totals(shown: list[ShownQueue]) -> dict[str, Any]:
    """The figures of all queues together; None for the jobs if a store does not answer."""
    down = any(each.error for each in shown)
    workers = [worker for each in shown for worker in each.workers]
    return {
        "stats": None if down else summed(each.stats for each in shown if each.stats is not None),
        "workers": None if down else len(workers),
        "concurrency": sum(worker.concurrency for worker in workers),
    }
