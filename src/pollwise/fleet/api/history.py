"""Routes for the history of targets: uptimes, incidents, and one target in full."""

from __future__ import annotations

import math

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pollwise.fleet.api.access import Refusal
from pollwise.fleet.api.requests import Routes, answer, limit_of
from pollwise.fleet.control import NoSuchTarget
from pollwise.fleet.history.as_json import history_json, incident_json, uptimes_json
from pollwise.fleet.history.values import NO_TIME
from pollwise.fleet.history.views import (
    TARGETS_MAX,
    UPTIME_WINDOWS,
    Uptimes,
    incidents,
    since_of,
    target_history,
    uptimes,
)
from pollwise.fleet.stores.base import FleetStore

#: Default of `since` for a target and for incidents, and the most incidents in an answer.
SINCE = "7d"
INCIDENTS_SINCE = "30d"
INCIDENTS_MAX = 1000


class HistoryRoutes(Routes):
    """The history of targets."""

    def routes(self) -> list[Route]:
        return [
            Route("/uptime", self.uptime, methods=["GET"]),
            Route("/incidents", self.incidents, methods=["GET"]),
            Route("/targets/{name:path}/history", self.history, methods=["GET"]),
        ]

    async def uptime(self, request: Request) -> Response:
        await self._reader(request, "limit", "after", "group")
        fleet, store = self._control.fleet, self._store()
        limit = min(limit_of(request), TARGETS_MAX)
        after, group = request.query_params.get("after", ""), request.query_params.get("group")
        names = [
            name
            for name in fleet.names()
            if name > after and group in (None, fleet.definition(name).group)
        ]
        page = names[:limit]
        found = await uptimes(store, page, fleet.clock.epoch()) if page else {}
        new = {
            name: Uptimes(name, None, None, dict.fromkeys(UPTIME_WINDOWS, NO_TIME)) for name in page
        }
        listed = [uptimes_json(each) for each in {**new, **found}.values()]
        following = page[-1] if page and len(names) > limit else None
        return answer({"targets": listed, "next": following})

    async def incidents(self, request: Request) -> Response:
        await self._reader(request, "since", "limit", "before")
        store, now = self._store(), self._control.fleet.clock.epoch()
        since = since_of(request.query_params.get("since", INCIDENTS_SINCE), now)
        limit = min(limit_of(request, 100), INCIDENTS_MAX)
        before = _before(request)
        found = await incidents(store, since, now, limit=limit, before=before) if limit else []
        following = found[-1].started_at if found and len(found) == limit else None
        return answer({"incidents": [incident_json(each) for each in found], "next": following})

    async def history(self, request: Request) -> Response:
        await self._reader(request, "since")
        fleet, store, name = self._control.fleet, self._store(), request.path_params["name"]
        now = fleet.clock.epoch()
        since = since_of(request.query_params.get("since", SINCE), now)
        found = await target_history(store, name, since, now) if name in fleet else None
        if found is None:
            raise NoSuchTarget([name])
        return answer(history_json(found))

    def _store(self) -> FleetStore:
        store = self._control.fleet.store
        if store is None or not store.keeps_history:
            raise Refusal(
                404,
                "this fleet keeps no history, because it has no store",
                "Run it with a store: pollwise fleet run --store sqlite:///fleet.db.",
            )
        return store


def _before(request: Request) -> float | None:
    text = request.query_params.get("before")
    if text is None:
        return None
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not math.isfinite(found):
        raise Refusal(400, "before must be a time in seconds since 1970: `next` of the last answer")
    return found
