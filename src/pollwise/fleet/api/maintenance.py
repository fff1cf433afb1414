"""Routes for maintenance windows."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pollwise.fleet.api.access import Refusal
from pollwise.fleet.api.requests import Operator, Routes, answer, body_of
from pollwise.fleet.control import note
from pollwise.fleet.maintenance import MaintenanceBook, NoSuchWindow, in_words


class MaintenanceRoutes(Routes):
    """Lists, adds, ends and removes maintenance windows."""

    def routes(self) -> list[Route]:
        return [
            Route("/maintenance", self.list, methods=["GET"]),
            Route("/maintenance", self.add, methods=["POST"]),
            Route("/maintenance/{id}/end", self.end, methods=["POST"]),
            Route("/maintenance/{id}", self.remove, methods=["DELETE"]),
        ]

    @property
    def _book(self) -> MaintenanceBook:
        fleet = self._control.fleet
        return MaintenanceBook(fleet.store, fleet.maintenance)

    async def list(self, request: Request) -> Response:
        await self._reader(request)
        now = self._control.fleet.clock.epoch()
        return answer({"windows": [each.as_dict(now) for each in await self._book.windows()]})

    async def add(self, request: Request) -> Response:
        who = await self._operator(request)
        fleet = self._control.fleet
        now = fleet.clock.epoch()
        names, groups = fleet.names(), self._control.groups()
        table = await body_of(request)
        window = await self._book.add(table, who.who, now, targets=names, groups=groups)
        detail = f"{window.id} {in_words(window, now)} {window.note}".strip()
        await self._note(who, "add", window.whom, detail)
        return answer(window.as_dict(now), 201)

    async def end(self, request: Request) -> Response:
        who = await self._operator(request)
        now = self._control.fleet.clock.epoch()
        try:
            window = await self._book.end(request.path_params["id"], now)
        except NoSuchWindow as error:
            raise _unknown(error) from None
        await self._note(who, "end", window.whom, window.id)
        return answer(window.as_dict(now))

    async def remove(self, request: Request) -> Response:
        who = await self._operator(request)
        try:
            window = await self._book.remove(request.path_params["id"])
        except NoSuchWindow as error:
            raise _unknown(error) from None
        await self._note(who, "remove", window.whom, window.id)
        return answer({"removed": window.id})

    async def _note(self, who: Operator, what: str, whom: str, detail: str) -> None:
        store = self._control.fleet.store
        await note(store, who.who, f"maintenance.{what}", whom, detail, who.address)


def _unknown(error: NoSuchWindow) -> Refusal:
    return Refusal(404, str(error), "GET /api/fleet/maintenance lists all windows.")
