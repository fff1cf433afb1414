"""Why a job does not run yet."""

from __future__ import annotations

from dataclasses import dataclass

from pollwise.errors import CodecError
from pollwise.queues.notes import PauseInfo, plain_kind
from pollwise.queues.views import JobFilter
from pollwise.runtime.jobs import Job, JobInfo, State
from pollwise.runtime.jobs.new_job import FLOW_HEADER
from pollwise.web.sources import QueueSource, ShownQueue
from pollwise.web.texts import counted, one_line


def why_waiting(job: Job, source: QueueSource, shown: ShownQueue) -> str:
    """What a ready job waits for, as a sentence; "" if that is not known."""
    pause = shown.paused.get(None)
    if pause is not None:
        return f"The whole queue is paused{_details(pause)}."
    pause = shown.paused.get(job.kind) or shown.paused.get(plain_kind(job.kind))
    if pause is not None:
        return f"Its kind is paused{_details(pause)}."
    if shown.error is not None or not source.queue.capabilities.presence:
        return ""
    if not shown.workers:
        return "No worker is running."
    able = [worker for worker in shown.workers if worker.handles(job.kind)]
    if not able:
        return "No running worker has a handler for its kind."
    closed = [worker for worker in able if job.kind not in worker.breakers]
    if not closed:
        return "Workers do not claim its kind for now: its handlers keep failing (open breaker)."
    if all(worker.alone for worker in closed):
        return (
            "Its workers run a suspect alone, a job that may have killed its workers, and claim "
            "nothing else until that has run for a minute."
        )
    free = sum(worker.busy < worker.concurrency and not worker.alone for worker in closed)
    have = "has" if len(closed) == 1 else "have"
    busy = "" if free else ", and all of them are busy"
    return f"{counted(len(closed), 'running worker')} {have} a handler for its kind{busy}."


@dataclass(frozen=True, slots=True)
class BlockedBy:
    """What a blocked job waits for, as a sentence, and the id of that job if it is known."""

    note: str
    other: str | None = None


async def why_blocked(source: QueueSource, info: JobInfo) -> BlockedBy | None:
    """What a blocked job waits for: others of its flow, or an earlier job of its key."""
    if info.state != "blocked":
        return None
    if (in_flow := await _blocked_in_flow(source, info)) is not None:
        return in_flow
    holder = await _holder_of(source, info)
    if holder is None:
        return BlockedBy("It waits for an earlier job of its key.")
    note = f"It waits for an earlier job of its key, which is {holder.state}:"
    return BlockedBy(note, holder.job.id)


async def _blocked_in_flow(source: QueueSource, info: JobInfo) -> BlockedBy | None:
    if FLOW_HEADER not in info.job.headers or not source.queue.capabilities.flows:
        return None
    try:
        before = await source.queue.predecessors(info.job.id)
    except CodecError:  # a result that is not decoded here
        return BlockedBy("It waits for the jobs before it in its flow.")
    states = {job_id: ending and ending.state for job_id, ending in before}
    left = [job_id for job_id, state in states.items() if state != "done"]
    if not left:
        return None
    dead = next((job_id for job_id in left if states[job_id] == "dead"), None)
    if dead is not None:
        return BlockedBy("It waits for a job before it that is dead; retry that:", dead)
    what = f"{len(left)} of {counted(len(before), 'job')}" if len(before) > 1 else "the job"
    return BlockedBy(f"It waits for {what} before it in its flow:", left[0])


async def _holder_of(source: QueueSource, info: JobInfo) -> JobInfo | None:
    """The job of the same key that a blocked job waits for, if it is found."""
    if info.state != "blocked" or info.job.key is None:
        return None
    states: tuple[State, ...] = ("leased", "ready", "delayed")
    for state in states:
        page = await source.queue.page(JobFilter(state, key=info.job.key, limit=1))
        if page.jobs:
            return page.jobs[0]
    return None


def _details(pause: PauseInfo) -> str:
    by = f" by {one_line(pause.by, 60)}" if pause.by else ""
    return f"{by}: {one_line(pause.why, 160)}" if pause.why else by
