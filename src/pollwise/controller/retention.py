"""Deletes what a controller has kept long enough: jobs, their files and logs, workers, audit."""

from __future__ import annotations

from pollwise.controller.files.artefacts import Artefacts
from pollwise.controller.jobs import Jobs
from pollwise.controller.state.base import ControllerState
from pollwise.controller.workers.matching import MARK
from pollwise.queues.base import Queue
from pollwise.queues.views import JobFilter
from pollwise.runtime.store import PRUNE_SLICE

#: Seconds between two turns, and after a turn of several slices. How many rows a slice deletes.
RETENTION_EVERY = 600.0
RETENTION_AGAIN = 60.0
RETENTION_LIMIT = 500
#: How long silent workers, requirements without a job and the audit log are kept, in seconds.
WORKERS_KEPT = 30 * 86400.0
REQUIREMENTS_KEPT = 86400.0
AUDIT_KEPT = 90 * 86400.0


class Retention:
    """Works in turns. A turn goes on slice by slice, with time for others, until all is done."""

    def __init__(
        self, queue: Queue, state: ControllerState, jobs: Jobs, artefacts: Artefacts
    ) -> None:
        self._queue = queue
        self._state = state
        self._jobs = jobs
        self._artefacts = artefacts
        self._after: str | None = None  # the last folder that this turn examined
        self._dead: str | None = None  # where the next page of dead jobs begins
        self._slices = 0  # of this turn

    async def delete_slice(self, keep: float) -> float:
        """Delete a slice of what is older than `keep`, in seconds, and of what its jobs left.

        Returns after how many seconds to go on: 0 if this turn has more to do.
        """
        more = await self._delete_jobs(keep)
        more |= await self._forget_files(keep)
        more |= await self._state.prune_workers(WORKERS_KEPT, RETENTION_LIMIT) == RETENTION_LIMIT
        more |= await self._state.prune_audit(AUDIT_KEPT, RETENTION_LIMIT) == RETENTION_LIMIT
        if more:
            self._slices += 1
            return 0.0
        kinds = [name.partition(MARK) for name in await self._queue.stats_by_kind()]
        used = {(kind, digest) for kind, _, digest in kinds}
        await self._state.prune_requirements(REQUIREMENTS_KEPT, used)
        slices, self._slices = self._slices, 0
        return RETENTION_AGAIN if slices else RETENTION_EVERY

    async def _delete_jobs(self, keep: float) -> bool:
        """Delete a slice of the jobs; True if there may be more."""
        queue = self._queue
        more = await queue.prune() >= PRUNE_SLICE
        # One that died long enough ago was put before that.
        chosen = JobFilter("dead", older_than=keep, limit=RETENTION_LIMIT, after=self._dead)
        page = await queue.page(chosen)
        old = [info.job.id for info in page.jobs if info.since <= queue.clock.epoch() - keep]
        if old:
            await queue.drop(old)
        self._dead = page.next
        return more or page.next is not None

    async def _forget_files(self, keep: float) -> bool:
        """Delete the next files and logs whose job is gone, or was never put; True for more."""
        page = await self._state.folders_before(keep, RETENTION_LIMIT, self._after)
        jobs = {folder: self._jobs.job_of(owner) for folder, owner in page}
        gone = await self._gone([job_id for job_id in jobs.values() if job_id is not None])
        await self._artefacts.forget(
            # Those with an owner whose job is unknown here are of another queue.
            [
                folder
                for folder, owner in page
                if (not owner if (job_id := jobs[folder]) is None else job_id in gone)
            ]
        )
        self._after = page[-1][0] if len(page) == RETENTION_LIMIT else None
        return self._after is not None

    async def _gone(self, ids: list[str]) -> set[str]:
        """The jobs that do not exist any more."""
        if self._queue.capabilities.results:
            endings = await self._queue.endings(ids)
            return {job_id for job_id, ending in endings.items() if ending is None}
        return {job_id for job_id in ids if await self._queue.get(job_id) is None}
