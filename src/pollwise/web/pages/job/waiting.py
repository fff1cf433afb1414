"""Why a ready job does not run yet."""

from __future__ import annotations

from pollwise.queues.notes import PauseInfo
from pollwise.runtime.jobs import Job
from pollwise.web.sources import QueueSource, ShownQueue
from pollwise.web.texts import counted, one_line


def why_waiting(job: Job, source: QueueSource, shown: ShownQueue) -> str:
    """What a ready job waits for, as a sentence; "" if that is not known."""
    pause = shown.paused.get(None)
    if pause is not None:
        return f"The whole queue is paused{_details(pause)}."
    pause = shown.paused.get(job.kind)
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
    free = sum(worker.busy < worker.concurrency for worker in closed)
    have = "has" if len(closed) == 1 else "have"
    busy = "" if free else ", and all of them are busy"
    return f"{counted(len(closed), 'running worker')} {have} a handler for its kind{busy}."


def _details(pause: PauseInfo) -> str:
    by = f" by {one_line(pause.by, 60)}" if pause.by else ""
    return f"{by}: {one_line(pause.why, 160)}" if pause.why else by
