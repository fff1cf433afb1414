"""The progress that the handlers of a worker report: written with renewals, in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from pollwise.errors import Unsupported
from pollwise.queues.base import Queue
from pollwise.runtime.executor.control.run_control import RunControl
from pollwise.runtime.executor.work import Held
from pollwise.runtime.jobs import Claim, Progress, Renewal, Settlement


class ProgressReports:
    """The controls of a worker's runs, and the reports that are not stored yet.

    lease: the worker's, in seconds.
    write_soon: asks for a renewal soon; from any thread.
    """

    def __init__(self, queue: Queue, lease: float, write_soon: Callable[[], None]) -> None:
        self._queue = queue
        self._lease = lease
        self._write_soon = write_soon
        self._able = queue.capabilities.progress
        self._last: dict[str, tuple[Claim, Progress]] = {}

    def control(self) -> RunControl:
        """The control of a run that begins."""
        return RunControl(self._ask)

    def _ask(self) -> None:
        if not self._able:
            raise Unsupported(
                f"{self._queue.url} cannot keep the progress of a run; leave `job.progress` out "
                "or choose a store that can"
            )
        self._write_soon()

    async def renew(self, held: Sequence[Held]) -> Renewal:
        """Renew leases, and store what was reported since the last time."""
        claims: list[Claim] = [each.claim for each in held]
        reports: dict[str, Progress] = {}
        controls = {each.name: each.control for each in held if each.control is not None}
        for job_id, control in controls.items():
            if (progress := control.unwritten()) is not None:
                reports[job_id] = progress
        if not reports:
            return await self._queue.renew(claims, self._lease)
        try:
            renewal = await self._queue.renew(claims, self._lease, reports)
        except Unsupported:  # an http:// queue learns only now what its store cannot do
            self._able = False
            return await self._queue.renew(claims, self._lease)
        for job_id, progress in reports.items():
            if job_id not in renewal.lost:
                controls[job_id].wrote(progress)
        return renewal

    def ended(self, held: Held) -> None:
        """A handler ended: keep its last report, if that is not stored yet."""
        control = held.control
        if control is not None and (progress := control.unwritten()) is not None:
            self._last[held.name] = (held.claim, progress)

    def forget(self, held: Held) -> None:
        self._last.pop(held.name, None)

    async def before(self, settlements: Sequence[Settlement]) -> None:
        """Store the last reports of jobs whose record stays after these settlements."""
        if not self._last:
            return
        reports: dict[str, Progress] = {}
        claims: list[Claim] = []
        for each in settlements:
            claim, progress = self._last.pop(each.claim.job.id, (each.claim, None))
            stays = each.action == "dead" or (not each.comes_back and self._queue.keep is not None)
            if progress is not None and stays and claim == each.claim:
                claims.append(claim)
                reports[claim.job.id] = progress
        if claims:
            with suppress(Exception):  # the settlement counts; if the store fails, it will say so
                await self._queue.renew(claims, self._lease, reports)
