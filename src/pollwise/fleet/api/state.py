"""Routes for the state of a fleet and its targets, for orders, and for the polling settings."""

from __future__ import annotations

import asyncio
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pollwise.fleet.api.access import Authorise, Refusal
from pollwise.fleet.api.requests import Operator, Routes, answer, body_of, limit_of, number_of
from pollwise.fleet.api.targets import definition_json, tagged
from pollwise.fleet.control import CHANGEABLE, Control, NoSuchTarget, note, note_order
from pollwise.fleet.counting import breakers_of
from pollwise.fleet.stores.base import ORDERS, TARGET_STATES, FleetStore, TargetOrder
from pollwise.fleet.viewing import COUNTING_SHARE
from pollwise.fleet.views import TargetState, saved_state, target_json, with_pending
from pollwise.settings.values import shown

#: Default number of audit entries.
AUDIT_PAGE = 100
#: Number of targets that are looked at, and whose state is made, before other tasks get a turn.
PORTION = 2000
STATES_AT_ONCE = 50
#: Maximum number of targets of other nodes that are read for one answer, which then has fewer than
#: `limit` and `next` to go on.
READ_MAX = 1000


class StateRoutes(Routes):
    """The state of targets, orders for them, the polling settings, and the audit log."""

    def __init__(self, control: Control, authorise: Authorise) -> None:
        super().__init__(control, authorise)
        #: The figures that the store gave last, and until when they are used again.
        self._stored: tuple[Mapping[str, Any], float] = ({}, -math.inf)

    def routes(self) -> list[Route]:
        # The orders come last: their address fits all others.
        return [
            Route("/state", self.state, methods=["GET"]),
            Route("/audit", self.audit, methods=["GET"]),
            Route("/polling", self.polling, methods=["GET"]),
            Route("/polling", self.change, methods=["PATCH"]),
            Route("/targets/{name:path}/{what}", self.order_one, methods=["POST"]),
            Route("/targets/{name:path}", self.target, methods=["GET"]),
            Route("/{what}", self.order, methods=["POST"]),
        ]

    async def state(self, request: Request) -> Response:
        await self._reader(request, "limit", "after", "state", "group")
        limit, after = limit_of(request), request.query_params.get("after", "")
        state, group = (request.query_params.get(each) for each in ("state", "group"))
        if state is not None and state not in TARGET_STATES:
            raise Refusal(
                400, "there is no such state", f"Choose one of {', '.join(TARGET_STATES)}."
            )
        fleet = self._control.fleet
        names = fleet.names() if group is None else fleet.names_of_group(group)
        listed: list[Mapping[str, Any]] = []
        place, built, following = bisect_right(names, after) if limit else len(names), 0, None
        pending = [] if fleet.store is None else await fleet.store.pending()
        # In portions: a fleet may be large, and its polls must not wait for this.
        while place < len(names) and following is None:
            found = fleet.matching(names[place : place + PORTION], state, group)
            for begin in range(0, len(found), STATES_AT_ONCE):
                wanted = found[begin : begin + STATES_AT_ONCE]
                states = {each.name: each for each in await self._states(wanted, pending)}
                built += len(wanted)
                for name in wanted:
                    if name not in states or state not in (None, states[name].state):
                        continue
                    if len(listed) == limit:  # there is one more
                        following = after
                        break
                    listed.append(target_json(states[name]))
                    after = name
                await asyncio.sleep(0)
                if following is not None:
                    break
                if built >= max(limit, READ_MAX) and len(listed) < limit:
                    following = wanted[-1]  # of other nodes' targets, whose state is in the store
                    break
            place += PORTION
            await asyncio.sleep(0)
        figures = {**await self._figures(), "pending": len(pending)}
        whole = {**figures, "target_list": listed, "next": following}
        return await asyncio.to_thread(answer, whole)

    async def _figures(self) -> dict[str, Any]:
        """The figures of this node; with several nodes, the targets of all are counted."""
        fleet = self._control.fleet
        state, held = await fleet.figures()
        figures = state.as_dict()
        if fleet.store is not None and fleet.store.shared:
            figures |= {**await self._store_figures(fleet.store), "node": fleet.node, "held": held}
        return {**figures, "breakers": breakers_of(figures["states"])}

    async def _store_figures(self, store: FleetStore) -> Mapping[str, Any]:
        """The figures of all nodes. The store looks at each target for them, so they are used again
        for a while."""
        now = self._control.fleet.clock.now
        if self._stored[1] <= now():
            began = now()
            found = await store.figures()
            self._stored = found, now() + COUNTING_SHARE * (now() - began)
        return self._stored[0]

    async def _states(
        self, names: list[str], pending: Sequence[TargetOrder] | None = None
    ) -> list[TargetState]:
        """The states of these targets; for those of other nodes, the saved states.

        pending: the orders that are not carried out yet; None reads those of these targets.
        """
        fleet = self._control.fleet
        if pending is None:
            pending = [] if fleet.store is None else await fleet.store.pending(names)
        # One may have been removed in the meantime.
        found = {name: fleet.target(name) for name in names if name in fleet}
        elsewhere = [name for name, each in found.items() if not each.held]
        if fleet.store is not None and fleet.store.shared and elsewhere:
            now = fleet.clock.epoch()
            for kept in await fleet.store.load(elsewhere):
                if kept.name in fleet:
                    target = fleet.definition(kept.name)
                    found[kept.name] = saved_state(target, kept, now, held=False)
        return with_pending(found.values(), pending)

    async def target(self, request: Request) -> Response:
        await self._reader(request)
        name = request.path_params["name"]
        for each in await self._states([name]):
            defined = self._control.targets.defined(name)
            return tagged(answer({**target_json(each), **definition_json(defined)}), defined)
        raise NoSuchTarget([name])

    async def order_one(self, request: Request) -> Response:
        who = await self._operator(request)
        return await self._ordered(who, request.path_params["what"], [request.path_params["name"]])

    async def order(self, request: Request) -> Response:
        who = await self._operator(request)
        body = await body_of(request)
        names = body.get("targets")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise Refusal(
                400,
                "targets must be a list of names",
                'Name them: {"targets": ["front page"]}.',
            )
        return await self._ordered(who, request.path_params["what"], names)

    async def _ordered(self, who: Operator, what: str, names: list[str]) -> Response:
        if what not in ORDERS:
            raise Refusal(
                404, f"{shown(what)} is not an order", f"Choose one of {', '.join(ORDERS)}."
            )
        pending = await self._control.order(what, names, who.by)
        self._stored = {}, -math.inf
        await note_order(self._control.fleet.store, who.who, what, names, who.address)
        return answer({"order": what, "targets": names, "pending": pending}, 202)

    async def polling(self, request: Request) -> Response:
        await self._reader(request)
        return self._polling()

    async def change(self, request: Request) -> Response:
        who = await self._operator(request)
        body = await body_of(request)
        group = body.pop("group", None)
        if group is not None and (not isinstance(group, str) or not group):
            raise Refusal(
                400, f"group = {shown(group)} must be a group's name, or null for all targets"
            )
        if not body:
            raise Refusal(
                400, "no setting to change", f"Give one or more of {', '.join(CHANGEABLE)}."
            )
        await self._control.change(group, body, who.by)
        changes = ", ".join(f"{name} = {shown(value)}" for name, value in body.items())
        whose = "all targets" if group is None else f"group {group!r}"
        store = self._control.fleet.store
        await note(store, who.who, "polling.change", whose, changes, who.address)
        return self._polling()

    async def audit(self, request: Request) -> Response:
        await self._operator(request, "limit", "before")
        limit = limit_of(request, AUDIT_PAGE)
        entry = "the id of an entry: `next` of the last answer"
        before = number_of(request, "before", 10**15, entry)
        store = self._control.fleet.store
        found = [] if store is None else await store.list_audit(limit, before)
        more = limit and len(found) == limit
        entries = [asdict(each) for each in found]
        return answer({"entries": entries, "next": found[-1].id if more else None})

    def _polling(self) -> Response:
        return answer({"kept_in": self._control.where, "settings": self._control.polling()})
