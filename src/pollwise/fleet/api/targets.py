"""Routes that define, change and remove targets while the fleet runs.

The body is the table of a target as in fleet.toml, as JSON, and is checked in the same way. It is
kept in the fleet's store, and all nodes apply it within seconds. Targets of the file are not
changed here.
"""

from __future__ import annotations

import re
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pollwise.fleet.api.access import Refusal
from pollwise.fleet.api.requests import Routes, answer, body_of
from pollwise.fleet.control import NoSuchTarget, note
from pollwise.fleet.definitions.sources import Defined
from pollwise.fleet.views import target_json
from pollwise.settings.values import shown

_TAG = re.compile(r'(?:W/)?"(\d{1,15})"')


class TargetRoutes(Routes):
    """Definitions of targets."""

    def routes(self) -> list[Route]:
        return [
            Route("/targets", self.add, methods=["POST"]),
            Route("/targets/{name:path}", self.put, methods=["PUT"]),
            Route("/targets/{name:path}", self.remove, methods=["DELETE"]),
        ]

    async def add(self, request: Request) -> Response:
        who = await self._operator(request)
        table = await body_of(request)
        name = await self._control.targets.define(table, who.by, new=True)
        await self._note(who, "add", name, table)
        return self._defined(name, 201)

    async def put(self, request: Request) -> Response:
        who = await self._operator(request)
        name, table = request.path_params["name"], await body_of(request)
        if table.setdefault("name", name) != name:
            raise Refusal(
                400,
                f"name = {shown(table['name'])} is not the name in the address, {shown(name)}",
                "Leave the name out of the body. To rename a target, add it again and remove this.",
            )
        existed = name in self._control.fleet
        await self._control.targets.define(table, who.by, version=_expected(request))
        await self._note(who, "set", name, table)
        return self._defined(name, 200 if existed else 201)

    async def remove(self, request: Request) -> Response:
        who = await self._operator(request)
        name = request.path_params["name"]
        if name not in self._control.fleet and not self._control.targets.has(name):
            raise NoSuchTarget([name])
        await self._control.targets.undefine(name, who.by, version=_expected(request))
        await self._note(who, "remove", name, {})
        return answer({"removed": name})

    async def _note(self, who: Any, what: str, name: str, table: dict[str, Any]) -> None:
        detail = ", ".join(sorted(table))  # its values may be secret
        store = self._control.fleet.store
        await note(store, who.who, f"target.{what}", repr(name), detail, who.address)

    def _defined(self, name: str, status: int) -> Response:
        fleet, defined = self._control.fleet, self._control.targets.defined(name)
        state = target_json(fleet.target(name)) if name in fleet else {"name": name}
        return tagged(answer({**state, **definition_json(defined)}, status), defined)


def definition_json(defined: Defined) -> dict[str, Any]:
    """The definition of a target, for the API: without secrets."""
    changed = {"version": defined.version, "by": defined.by, "at": defined.at}
    return {
        "definition": defined.table,
        "defined": None if defined.version is None else changed,
    }


def tagged(response: Response, defined: Defined) -> Response:
    """The answer with the version of the definition as ETag, for If-Match."""
    if defined.version is not None:
        response.headers["ETag"] = f'"{defined.version}"'
    return response


def _expected(request: Request) -> int | None:
    given = request.headers.get("if-match")
    if given is None:
        return None
    found = _TAG.fullmatch(given.strip())
    if found is None:
        raise Refusal(
            400, "If-Match is not a version of a definition", "Send the ETag of the last answer."
        )
    return int(found[1])
