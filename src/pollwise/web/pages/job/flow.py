"""The page of a flow: its jobs as a tree, and what each waits for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, ClassVar

from pollwise.errors import PollwiseError
from pollwise.queues.flows.handle import CANCEL_AT_ONCE
from pollwise.queues.flows.tree import FlowRow, rows_of
from pollwise.queues.flows.view import FlowView
from pollwise.runtime.jobs import ENDED, STATES, JobInfo, State
from pollwise.runtime.store import MAX_BATCH
from pollwise.web.pages.job.page import source_of
from pollwise.web.redaction import redacted_text
from pollwise.web.sources import QueueSource
from pollwise.web.texts import TONES
from pollwise.web.view import NotShown, Refused, View, Visit

#: How many jobs the table lists; a browser takes seconds to lay out a thousand.
ROWS_SHOWN = 200


class FlowPage(View):
    """The flow of one job."""

    name = "flow"
    path = "/queues/{slug}/jobs/{id}/flow"
    template = "flow.html"
    actions: ClassVar[Mapping[str, str]] = {"cancel": "operate", "retry": "operate"}

    async def marker(self, visit: Visit) -> Hashable:
        return await source_of(visit).marker()

    async def context(self, visit: Visit) -> Mapping[str, Any]:
        source, job_id = source_of(visit), visit.path["id"]
        context: dict[str, Any] = {"source": source, "id": job_id, "view": None, "error": ""}
        try:
            view = await _flow_of(source, job_id)
        except (PollwiseError, OSError) as error:
            return {**context, "error": str(error)}
        if view is None:
            raise NotShown(
                f"Job {job_id[:80]} of the queue {source.title} is in no flow, or it does not "
                "exist any more. The jobs of a flow are kept for an hour after its end."
            )
        states = Counter(each.info.state for each in view.jobs)
        rows = rows_of(view)
        listed = _listed(rows, job_id)
        return {
            **context,
            "view": view,
            "left_out": len(rows) - len(listed),
            "rows": [(row, _said(row.job.info)) for row in listed],
            "states": [(each, states[each], TONES[each]) for each in STATES if states[each]],
            # The states of jobs that are not shown are unknown here; an action reads them.
            "dead": view.more or states["dead"] > 0,
            "started": any(
                view.started_by(each.info.job.id) for each in view.jobs if each.info.state == "dead"
            ),
            "going_on": view.more or any(each.info.state not in ENDED for each in view.jobs),
        }

    async def act(self, visit: Visit, action: str, form: Mapping[str, str]) -> str:
        source = source_of(visit)
        states = await _states_of(source, visit.path["id"])
        source.forget()
        if not states:
            raise Refused("There is no such flow any more.")
        if action == "retry":
            dead = [each for each, state in states.items() if state == "dead"]
            anyway = form.get("anyway") == "1"
            retried = [await source.queue.retry(each, anyway=anyway) for each in _portions(dead)]
            done = sum(retried)
            if not done:
                raise Refused("No job of this flow is dead any more.")
            return f"Dead jobs that run again, with fresh attempts: {done}."
        live = [each for each, state in states.items() if state not in ENDED]
        now: Counter[State] = Counter()
        for each in _portions(live):
            now.update((await source.queue.cancel(each)).values())
        ended, asked = now["cancelled"], now["leased"]
        if not ended and not asked:
            raise Refused("No job of this flow waits or runs any more.")
        told = f" Running jobs that were asked to stop: {asked}." if asked else ""
        return f"Jobs that were cancelled: {ended}.{told}"


def _listed(rows: list[FlowRow], job_id: str) -> list[FlowRow]:
    """The rows of the table. Of too many: the job itself, then jobs that have not ended."""
    if len(rows) <= ROWS_SHOWN:
        return rows

    def rank(place: int) -> tuple[bool, bool]:
        info = rows[place].job.info
        return info.job.id != job_id, info.state in ("done", "cancelled")

    chosen = sorted(range(len(rows)), key=rank)[:ROWS_SHOWN]
    return [rows[place] for place in sorted(chosen)]


async def _flow_of(source: QueueSource, job_id: str) -> FlowView | None:
    return await source.queue.flow(job_id) if source.queue.capabilities.flows else None


async def _states_of(source: QueueSource, job_id: str) -> dict[str, State]:
    """The states of all jobs of a flow, also of those that are not shown; empty if it is gone."""
    if not source.queue.capabilities.flows:
        return {}
    jobs = await source.queue._flow(job_id, MAX_BATCH)
    return {each.info.job.id: each.info.state for each in jobs}


def _portions(ids: list[str]) -> Iterator[list[str]]:
    for first in range(0, len(ids), CANCEL_AT_ONCE):
        yield ids[first : first + CANCEL_AT_ONCE]


def _said(info: JobInfo) -> str:
    """What a row says about its job: its error, or how far it is."""
    if info.state == "dead":
        return redacted_text(info.error or "")
    if info.state == "leased" and info.progress is not None:
        return redacted_text(info.progress.note or "")
    return ""
