"""`unique`: a marker object that names the job which has it.

The marker is created before the job is put, and deleted when the ended job is cleaned up. If the
job of a marker does not exist, its put is in progress or has crashed. After a while, the next put
that wants the `unique` creates the root of the missing put as an empty object, so that this put can
never appear. Only then it deletes the marker.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from pollwise.errors import StoreUnavailable
from pollwise.queues.objects.body import digest, same_digest
from pollwise.queues.objects.core import GRACE, Core
from pollwise.queues.objects.ending import UnitEnder
from pollwise.queues.objects.names import PutName, read_id, salt
from pollwise.queues.unique import check_twin, conflict, first_places
from pollwise.runtime.jobs import NewJob

#: The first and the longest pause while another put is in progress, in seconds.
WAIT_FIRST, WAIT_LAST = 0.02, 1.0


def unique_name(unique: str) -> str:
    return hashlib.sha256(unique.encode()).hexdigest()


class UniqueMarkers:
    def __init__(self, core: Core) -> None:
        self._core = core
        self.ender: UnitEnder  # set by the queue: each needs the other

    def path(self, unique: str) -> str:
        return self._core.path("unique", unique_name(unique))

    async def hold(
        self, jobs: Sequence[NewJob], put: PutName
    ) -> tuple[dict[int, str], list[str], float]:
        """Create the markers of a put, all or none.

        Returns the ids of jobs that exist already, by index, the markers that were created, and
        the time when that began.
        """
        firsts = first_places(jobs)
        pause = WAIT_FIRST
        while True:
            twins = self._twins(jobs, firsts, put)
            made: list[str] = []
            began = self._core.clock.now()
            try:
                busy = await self._hold_all(jobs, put, twins, made)
                if busy is None:
                    break
                # Hold nothing while waiting, so that two puts never wait for each other.
                await self._core.delete(made)
                made = []
                await self._wait_or_free(*busy, pause * (0.5 + self._core.rng.random()))
                pause = min(pause * 2, WAIT_LAST)
            except BaseException:
                await self._core.delete(made)
                raise
        for index, first in enumerate(firsts):  # a repeat within the batch has the id of the first
            if first != index and first in twins:
                twins[index] = twins[first]
        return twins, made, began

    async def _hold_all(
        self, jobs: Sequence[NewJob], put: PutName, twins: dict[int, str], made: list[str]
    ) -> tuple[str, str] | None:
        """Create all markers, or return one that is taken, with the job it names."""
        for index, job in enumerate(jobs):
            if job.unique is None or index in twins:
                continue
            name, mine = self.path(job.unique), digest(job)
            marker = {"id": put.id_of(index), "digest": mine, "nonce": salt()}
            if await self._core.create(name, json.dumps(marker).encode()):
                made.append(name)
                continue
            raw = await self._core.get(name)
            theirs = None if raw is None else json.loads(raw)
            if theirs is None or not await self.alive(theirs["id"]):
                return name, "" if theirs is None else theirs["id"]
            if not same_digest(theirs["digest"], mine):
                raise conflict(job, f"job {theirs['id']}")
            twins[index] = theirs["id"]
        return None

    @staticmethod
    def _twins(jobs: Sequence[NewJob], firsts: Sequence[int], put: PutName) -> dict[int, str]:
        twins = {}
        for (index, job), first in zip(enumerate(jobs), firsts, strict=True):
            if first != index:
                twins[index] = put.id_of(first)
                check_twin(job, twins[index], jobs[first].kind, jobs[first].encoded)
        return twins

    async def _wait_or_free(self, name: str, job_id: str, pause: float) -> None:
        """Wait for the job of a marker, or free the marker if its job is gone or never came."""
        core = self._core
        item = await core.head(name)
        if item is None:
            return
        place = read_id(job_id)
        old = item.written + core.time.grain + GRACE < core.time.surely()
        if place is None:  # not our marker, or one of another version
            raise StoreUnavailable(
                f"{core.shown}: the marker {name} does not name a job of this queue"
            )
        if not old:
            await core.clock.sleep(pause)
            return
        put = place[0]
        root = core.path("live", put.folder, "b")
        if await core.create(root, b""):  # now the put can never appear
            await core.delete([name])  # the empty root stays for a while, and is deleted later
        elif (there := await core.head(root)) is not None and not there.size:
            # Another handle created the empty root, and has the duty to delete the marker.
            if there.written + core.time.grain + GRACE < core.time.surely():
                core.throw_away([root], [])
            await core.clock.sleep(pause)
        else:
            await self.ender.finish_folder(put.folder)
            await core.clock.sleep(pause)

    async def alive(self, job_id: str) -> bool:
        """True if a job with this id exists, in any state."""
        core, place = self._core, read_id(job_id)
        if place is None:
            return False
        put, index = place
        for root in await core.folder(put.folder):
            if root.item is None or root.void:
                continue
            for unit in await core.units(root):
                if index in (unit.jobs(core.cache.content) or ()):
                    return True
        for folder in ("dead", "ended"):
            if await core.head(core.path(folder, put.key(index))) is not None:
                return True
        return False

    async def free(self, unique: str, job_id: str) -> None:
        """Delete the marker of a record that is deleted, if it still names that job."""
        name = self.path(unique)
        raw = await self._core.get(name)
        if raw is not None and json.loads(raw)["id"] == job_id:
            await self._core.delete([name])
