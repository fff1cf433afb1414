"""The pages about a controller: its agents, and the jobs that no agent can take."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Mapping
from typing import Any, ClassVar

from pollwise.controller.workers import matching
from pollwise.controller.workers.waiting import WaitingKind
from pollwise.errors import PollwiseError
from pollwise.queues.notes import PauseInfo
from pollwise.web.controllers import ControllerSource
from pollwise.web.sources import ANSWER_WITHIN
from pollwise.web.view import NotShown, Refused, View, Visit

#: How many agents a page shows.
PAGE = 50
#: The states that agents can be filtered by.
AGENT_STATES = ("online", "draining", "offline")


class ControllerView(View):
    """A page about the controller of this web interface."""

    def shown(self) -> bool:
        """A queue of agents may also be found later, in the store of another queue."""
        return bool(self.web.sources.controller or self.web.sources.queues)

    def in_menu(self) -> bool:
        return bool(self.menu) and self.web.sources.controller_source() is not None

    @property
    def source(self) -> ControllerSource:
        source = self.web.sources.controller_source()
        if source is None:
            raise NotShown("This web interface shows no controller.")
        return source

    async def marker(self, visit: Visit) -> Hashable:
        try:
            return await self.source.marker()
        except (PollwiseError, OSError) as error:
            return str(error)

    async def drained(self, agent_id: str, drain: bool) -> str:
        """Drain an agent, or end that; returns the sentence for the viewer."""
        row = await self.source.drain(agent_id, drain)
        if row is None:
            raise Refused(f"There is no agent {agent_id[:40]!r}; it may have been removed.")
        self.source.forget()
        if not drain:
            return f"{row.name} gets jobs again, from its next poll on."
        return f"{row.name} gets no more jobs. It finishes what it runs and stays registered."


class ControllerPage(ControllerView):
    """The agents, and the kinds of jobs that wait."""

    name = "controller"
    path = "/controller"
    template = "controller/page.html"
    menu = "Controller"
    actions: ClassVar[Mapping[str, str]] = {"drain": "operate", "undrain": "operate"}

    async def context(self, visit: Visit) -> Mapping[str, Any]:
        source = self.source
        state = visit.query.get("state")
        state = state if state in AGENT_STATES else None
        after = visit.query.get("after", "")[:64] or None
        values: dict[str, Any] = {"source": source, "state": state, "after": after}
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                agents = await source.agents(state, limit=PAGE, after=after)
                counts = await source.count()
                running = await source.running_counts(agents)
                waiting = await source.waiting()
                snapshot = await source.shown.snapshot()
        except (PollwiseError, OSError) as error:
            return {**values, "error": _said(error)}
        stuck = [(each, why) for each in waiting if (why := _why(each, snapshot.paused))]
        return {
            **values,
            "error": snapshot.error,
            "snapshot": snapshot,
            "agents": agents,
            "next": agents[-1].row.id if len(agents) == PAGE else None,
            "known": counts[0],
            "online": counts[1],
            "running": running,
            "stuck": stuck,
            "taken": len(waiting) - len(stuck),
            "shown_requirement": matching.shown,
            "live": None if source.running is None else source.running.state(),
        }

    async def act(self, visit: Visit, action: str, form: Mapping[str, str]) -> str:
        return await self.drained(form.get("agent", ""), action == "drain")


class AgentPage(ControllerView):
    """One agent: what it can do, what it runs, and which waiting jobs it cannot take."""

    name = "agent"
    path = "/controller/agents/{id}"
    template = "controller/agent.html"
    actions: ClassVar[Mapping[str, str]] = {
        "drain": "operate",
        "undrain": "operate",
        "remove": "admin",
    }

    async def context(self, visit: Visit) -> Mapping[str, Any]:
        source, agent_id = self.source, str(visit.path["id"])
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                agent = await source.agent(agent_id)
        except (PollwiseError, OSError) as error:
            return {"agent": None, "error": _said(error), "source": source}
        if agent is None:
            raise NotShown(f"There is no agent {agent_id[:40]!r}. It may have been removed.")
        values: dict[str, Any] = {
            "agent": agent, "source": source, "error": None, "running": [], "takes": [],
            "registered_by": agent.row.registered_by,
        }  # fmt: skip
        try:
            async with asyncio.timeout(ANSWER_WITHIN):
                running = await source.running_jobs(agent_id)
                takes = await source.takes(agent.row)
                names = await source.names_of([agent.row.registered_by])
        except (PollwiseError, OSError) as error:
            return {
                **values,
                "error": _said(error),
                "running": [],
                "takes": [],
                "registered_by": "",
            }
        by = agent.row.registered_by
        return {
            **values,
            "running": running,
            "takes": takes,
            "registered_by": names.get(by, by),
            "shown_requirement": matching.shown,
        }

    async def act(self, visit: Visit, action: str, form: Mapping[str, str]) -> str:
        agent_id = str(visit.path["id"])
        if action != "remove":
            return await self.drained(agent_id, action == "drain")
        return await self._removed(agent_id)

    async def _removed(self, agent_id: str) -> str:
        running = self.source.running
        if running is None:
            raise Refused(
                "Only the running controller can remove an agent, because it holds its jobs. Open "
                "the pages of `pollwise serve`, or drain the agent here."
            )
        agent = await self.source.agent(agent_id)
        given_back = await running.unregister(agent_id) if agent is not None else None
        if agent is None or given_back is None:
            raise Refused(f"There is no agent {agent_id[:40]!r}; it may have been removed.")
        self.source.forget()
        jobs = "1 job" if given_back == 1 else f"{given_back} jobs"
        return f"{agent.row.name} is removed and its token is invalid. {jobs} went back."


def _why(each: WaitingKind, paused: Mapping[str | None, PauseInfo]) -> str | None:
    """Why no agent takes the jobs of a kind; None if one can."""
    for kind, what in (
        (None, "The queue"), (each.queue_kind, "The kind"), (each.kind, "The kind"),
    ):  # fmt: skip
        pause = paused.get(kind)
        if pause is not None:
            return f"{what} is paused{f' by {pause.by}' if pause.by else ''}"
    return each.waiting_for and each.waiting_for[:1].upper() + each.waiting_for[1:]


def _said(error: Exception) -> str:
    return str(error) or f"The store did not answer within {ANSWER_WITHIN:g} s."
