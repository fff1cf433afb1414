"""Flows over HTTP: what is sent of them, for both ends, and the calls of `http://` queues."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Any

from pollwise.queues.base import Queue
from pollwise.queues.flows.view import FlowJob
from pollwise.queues.http import wire
from pollwise.queues.waiting import JobEnding


class FlowCalls(Queue):
    """The calls of an `http://` queue about flows."""

    _post: Callable[..., Awaitable[dict[str, Any]]]
    _again: Callable[..., Awaitable[dict[str, Any]]]

    async def _predecessors(self, job_id: str) -> list[tuple[str, JobEnding | None]]:
        answer = await self._again(lambda: self._post("predecessors", {"id": job_id}))
        return [
            (each["id"], each["ending"] and wire.ending_from(each["ending"]))
            for each in answer["predecessors"]
        ]

    async def _flow(self, job_id: str, most: int) -> list[FlowJob]:
        answer = await self._again(lambda: self._post("flow", {"id": job_id, "most": most}))
        return [
            FlowJob(wire.info_from(each["info"], self.name), tuple(each["after"]), each["failure"])
            for each in answer["jobs"]
        ]


def predecessors_to(found: Sequence[tuple[str, JobEnding | None]]) -> list[wire.Wire]:
    return [{"id": job_id, "ending": ending and asdict(ending)} for job_id, ending in found]


def flow_to(jobs: Sequence[FlowJob]) -> list[wire.Wire]:
    return [
        {"info": wire.info_to(each.info), "after": [*each.after], "failure": each.on_failure}
        for each in jobs
    ]
