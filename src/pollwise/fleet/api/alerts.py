"""Routes that list and acknowledge alerts."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pollwise.alerts.values import PAGE_MAX, Alert, AlertFilter, alert_json, checked_note
from pollwise.fleet.api.access import Refusal
from pollwise.fleet.api.requests import Routes, answer, body_of, number_of
from pollwise.fleet.control import note
from pollwise.settings.values import shown

_LISTED = "GET /api/fleet/alerts lists the alerts."


class AlertRoutes(Routes):
    """Lists and acknowledges alerts."""

    def routes(self) -> list[Route]:
        return [
            Route("/alerts", self.list, methods=["GET"]),
            Route("/alerts/{id}", self.alert, methods=["GET"]),
            Route("/alerts/{id}/acknowledge", self.acknowledge, methods=["POST"]),
        ]

    async def list(self, request: Request) -> Response:
        await self._reader(request, "state", "target", "group", "limit", "after")
        query = request.query_params
        state = query.get("state", "open")
        if state not in ("open", "closed", "all"):
            raise Refusal(400, f"state = {shown(state)} must be open, closed or all")
        limit = number_of(request, "limit", PAGE_MAX, f"a whole number from 1 to {PAGE_MAX}")
        chosen = AlertFilter(
            None if state == "all" else state,  # type: ignore[arg-type]
            query.get("target"),
            query.get("group"),
            100 if limit is None else limit,
            query.get("after"),
        )
        page = await self._control.fleet.list_alerts(chosen)
        return answer({"alerts": [alert_json(each) for each in page.alerts], "next": page.next})

    async def alert(self, request: Request) -> Response:
        await self._reader(request)
        return answer(alert_json(await self._found(request)))

    async def acknowledge(self, request: Request) -> Response:
        who = await self._operator(request)
        body = await body_of(request)
        unknown = sorted(set(body) - {"note"})
        if unknown:
            raise Refusal(400, f"{shown(unknown[0])} is not known", "Give only a note, or nothing.")
        said = checked_note(body.get("note", ""))
        before = await self._found(request)
        fleet = self._control.fleet
        found = await fleet.acknowledge([before.id], who.who, said)
        if not found:
            raise Refusal(409, f"alert {before.id} is closed already", _LISTED, code="conflict")
        alert = found[0]
        about = f"{alert.target}: {alert.when}"
        detail = f"{alert.id} {said}".strip()
        await note(fleet.store, who.who, "alert.acknowledge", about, detail, who.address)
        return answer(alert_json(alert))

    async def _found(self, request: Request) -> Alert:
        id = request.path_params["id"]
        for alert in await self._control.fleet.find_alerts([id]):
            return alert
        raise Refusal(404, f"there is no alert {shown(id)}", _LISTED)
