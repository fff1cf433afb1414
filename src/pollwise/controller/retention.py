"""Deletes what a controller has kept long enough: jobs, their files and logs, workers, audit."""

from __future__ import annotations

from pollwise.controller.files.artefacts import Artefacts
from pollwise.controller.jobs import Jobs
from pollwise.controller.state.base import ControllerState
from pollwise.controller.workers.matching import MARK
from pollwise.queues.base import Queue

#: Seconds between two turns, and how many rows a turn deletes at a time.
RETENTION_EVERY = 600.0
RETENTION_LIMIT = 500
#: How long silent workers, requirements without a job and the audit log are kept, in seconds.
WORKERS_KEPT = 30 * 86400.0
REQUIREMENTS_KEPT = 86400.0
AUDIT_KEPT = 90 * 86400.0


async def retain(
    queue: Queue, state: ControllerState, jobs: Jobs, artefacts: Artefacts, keep: float
) -> None:
    """Delete what is older than `keep`, in seconds, and all that belonged to jobs that are gone."""
    await queue.prune()
    dead = await queue.jobs("dead", limit=RETENTION_LIMIT)
    old = [info.job.id for info in dead if info.since <= queue.clock.epoch() - keep]
    if old:
        await queue.drop(old)
    await _forget_files(queue, state, jobs, artefacts, keep)
    kinds = [name.partition(MARK) for name in await queue.stats_by_kind()]
    await state.prune_requirements(REQUIREMENTS_KEPT, {(kind, digest) for kind, _, digest in kinds})
    await state.prune_workers(WORKERS_KEPT, RETENTION_LIMIT)
    await state.prune_audit(AUDIT_KEPT, RETENTION_LIMIT)


async def _forget_files(
    queue: Queue, state: ControllerState, jobs: Jobs, artefacts: Artefacts, keep: float
) -> None:
    """Delete files and logs whose job is gone, or was never put."""
    after: str | None = None
    while page := await state.folders_before(keep, RETENTION_LIMIT, after):
        for folder, owner in page:
            job_id = jobs.job_of(owner)
            if job_id is None and owner:
                continue  # of another queue
            if job_id is None or await queue.get(job_id) is None:
                await artefacts.forget(folder)
        after = page[-1][0]
