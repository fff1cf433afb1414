"""The schedules of a queue: when they tick next, and what became of their last jobs."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, ClassVar

from pollwise.queues.schedules.record import Schedule
from pollwise.web.pages.queues.attention import LATE_AFTER
from pollwise.web.sources import QueueSource
from pollwise.web.view import NotShown, Refused, View, Visit

#: How many schedules the page shows: those that tick next.
SHOWN_MAX = 200


class SchedulesPage(View):
    """The schedules of one queue."""

    name = "schedules"
    path = "/queues/{slug}/schedules"
    template = "queue/schedules.html"
    actions: ClassVar[Mapping[str, str]] = {
        "pause": "operate", "resume": "operate", "run": "operate", "remove": "operate",
    }  # fmt: skip

    async def marker(self, visit: Visit) -> Hashable:
        return await self._source(visit).marker()

    async def context(self, visit: Visit) -> Mapping[str, Any]:
        source = self._source(visit)
        now = self.web.sources.clock.epoch()
        found = await source.queue.schedules.list()
        shown = sorted(found, key=lambda each: _place(each, now))
        return {
            "source": source,
            "schedules": shown[:SHOWN_MAX],
            "more": len(shown) - SHOWN_MAX,
            "states": await source.queue.schedules.last_states(shown[:SHOWN_MAX]),
            "late_after": LATE_AFTER,
            "now": now,
        }

    async def act(self, visit: Visit, action: str, form: Mapping[str, str]) -> str:
        source, name = self._source(visit), form.get("name", "")
        schedules = source.queue.schedules
        try:
            if action == "run":
                return f"Put job {await schedules.run(name)} of schedule {name}."
            if action == "pause":
                done, said = await schedules.pause(name), f"Paused schedule {name}."
            elif action == "resume":
                done, said = await schedules.resume(name), f"Resumed schedule {name}."
            else:
                done, said = await schedules.remove(name), f"Removed schedule {name}."
            if not done:
                raise Refused(f"Schedule {name} was changed meanwhile.")
            return said
        finally:
            source.forget()

    def _source(self, visit: Visit) -> QueueSource:
        slug = visit.path["slug"]
        source = self.web.sources.queues.get(slug)
        if source is None or not source.queue.capabilities.schedules:
            raise NotShown(f"There is no queue {slug} with schedules here.")
        return source


def _place(schedule: Schedule, now: float) -> tuple[float, bool, float, str]:
    """Late ones first, then by the next tick; paused and ended ones last."""
    resting = schedule.paused or schedule.next_at is None
    return -schedule.late(now), resting, schedule.next_at or 0.0, schedule.name
