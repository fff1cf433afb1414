"""Views: stats, lists and single jobs; retry and drop of dead jobs, and pruning of kept ones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from pollwise.queues.base import Stats
from pollwise.queues.objects.body import read_record, write_again
from pollwise.queues.objects.chain import ClaimUnit, RootObject, read_roots
from pollwise.queues.objects.claiming import UnitClaimer, since_of
from pollwise.queues.objects.core import TICK, Core
from pollwise.queues.objects.names import EntryKind, PutName, place_after, read_id, tag_of
from pollwise.queues.objects.unique import UniqueMarkers
from pollwise.runtime.jobs import JobInfo, State

#: The maximum number of finished jobs that one prune deletes, and that it examines.
PRUNE_MAX, PRUNE_LOOK = 1000, 10_000


@dataclass(frozen=True, slots=True)
class _ListedJob:
    """One job found in a listing: in a unit, or as a record."""

    put: PutName
    index: int
    unit: ClaimUnit | None
    record: str | None = None


class Views:
    def __init__(self, core: Core, claiming: UnitClaimer, uniques: UniqueMarkers) -> None:
        self._core = core
        self._claiming = claiming
        self._uniques = uniques
        self._pruned_to = ""

    async def stats(self) -> Stats:
        core = self._core
        counts = dict.fromkeys(("ready", "delayed", "leased"), 0)
        oldest: float | None = None
        for root in await self._roots():
            for unit in await core.units(root):
                if not unit.ended:
                    state = self._state(unit)
                    counts[state] += unit.left
                    if state == "ready":
                        since = since_of(core, unit)
                        oldest = since if oldest is None else min(oldest, since)
        age = None if oldest is None else max(core.time.now() - oldest, 0.0)
        dead, done = len(await core.listing("dead")), len(await core.listing("done"))
        return Stats(**counts, blocked=0, dead=dead, done=done, oldest_age=age)

    async def get(self, job_id: str) -> JobInfo | None:
        core, place = self._core, read_id(job_id)
        if place is None:
            return None
        put, index = place
        for root in await core.folder(put.folder):
            if root.item is not None and not root.void:
                for unit in await core.units(root):
                    if index in (unit.jobs(core.cache.content) or ()):
                        return await self._info(_ListedJob(put, index, unit))
        for state in ("dead", "done"):
            name = core.path(state, put.key(index))
            found = await self._info(_ListedJob(put, index, None, name))
            if found is not None:
                return found
        return None

    async def page(
        self, state: State | None, kind: str | None, limit: int, after: str | None
    ) -> list[JobInfo]:
        begin = place_after(after)
        page: list[JobInfo] = []
        seen = [s for s in await self._all(state) if s.put.place(s.index) > begin]
        seen.sort(key=lambda s: s.put.place(s.index))
        if kind is not None:
            seen = [s for s in seen if s.put.mixed or s.put.tag == tag_of(kind)]
        async for info in self._infos(seen, limit):
            if kind in (None, info.job.kind) and state in (None, info.state):
                page.append(info)
                if len(page) == limit:
                    break
        return page

    async def _infos(self, seen: list[_ListedJob], ahead: int) -> AsyncIterator[JobInfo]:
        """The jobs in order, read in parallel and not much further than needed."""
        for start in range(0, len(seen), ahead):
            for info in await self._core.all(self._info(s) for s in seen[start : start + ahead]):
                if isinstance(info, BaseException):
                    raise info
                if info is not None:
                    yield info

    async def _roots(self) -> list[RootObject]:
        roots = read_roots(await self._core.listing("live"))
        return [root for root in roots if root.item is not None and not root.void]

    async def _all(self, state: State | None) -> list[_ListedJob]:
        core = self._core
        seen: dict[str, _ListedJob] = {}
        for gone in ("dead", "done"):
            if state in (None, gone):
                for put, index, name in await self._records(gone):
                    seen[put.id_of(index)] = _ListedJob(put, index, None, name)
        if state not in ("dead", "done"):
            for root in await self._roots():
                for unit in await core.units(root):
                    if unit.ended or state not in (None, self._state(unit)):
                        continue
                    for index in unit.jobs(core.cache.content) or ():
                        seen[root.put.id_of(index)] = _ListedJob(root.put, index, unit)
        return list(seen.values())

    async def _records(self, folder: str) -> list[tuple[PutName, int, str]]:
        found = []
        for item in await self._core.listing(folder):
            _, _, job_id = item.name.rpartition("/")[2].partition(".")
            place = read_id(job_id)
            if place is not None:
                found.append((*place, item.name))
        return found

    def _state(self, unit: ClaimUnit) -> State:
        now = self._core.time.now() + TICK  # for a view the likely time is good enough
        if self._claiming.opens(unit, now, now)[1]:
            return "ready"
        return "leased" if unit.claim else "delayed"

    async def _info(self, seen: _ListedJob) -> JobInfo | None:
        if seen.record is not None:
            return await self._record(seen.record)
        core, unit = self._core, seen.unit
        if unit is None:
            return None
        body = await core.body(unit.root)
        if body is None:
            return None
        worker: str | None = None
        error: str | None = None
        for entry in unit.path:
            if entry.meaning.kind is EntryKind.CLAIM:
                if worker is not None:
                    error = f"the lease of {worker} ran out"
                worker = (await core.content(entry.name) or {}).get("worker")
            elif entry.meaning.kind in (EntryKind.BACK, EntryKind.BACK_FREE, EntryKind.SUM):
                worker = None
                errors = (await core.content(entry.name) or {}).get("errors", {})
                error = errors.get(str(seen.index), error)
        state = self._state(unit)
        if state == "ready" and worker is not None:
            worker, error = None, f"the lease of {worker} ran out"
        job = body[seen.index].job(core.name, unit.attempts, unit.run_at)
        since = job.run_at if state == "ready" or unit.free_at is None else unit.free_at
        return JobInfo(job, state, since, worker, error)

    async def _record(self, name: str) -> JobInfo | None:
        core = self._core
        raw = await core.get(name)
        if raw is None:
            return None
        job, data = read_record(raw)
        state: State = "dead" if name.startswith(core.path("dead", "")) else "done"
        info = job.job(core.name, data["attempt"], None)
        return JobInfo(info, state, data["since"], None, data["error"])

    # Dead jobs and kept jobs

    async def _dead(self, ids: Sequence[str] | None) -> list[str]:
        core = self._core
        if ids is None:
            return [name for _, _, name in await self._records("dead")]
        places = [place for job_id in ids if (place := read_id(job_id))]
        return [core.path("dead", put.key(index)) for put, index in places]

    async def retry(self, ids: Sequence[str] | None) -> int:
        names = await self._dead(ids)
        results = await self._core.all(self._retry(name) for name in names)
        return _counted(results)

    async def _retry(self, name: str) -> int:
        """Put a dead job again with its own id. If this is interrupted before the dead job is
        deleted, the next retry finds the job where this one put it."""
        core = self._core
        raw = await core.get(name)
        if raw is None:
            return 0
        job, data = read_record(raw)
        place = read_id(job.id)
        if place is None:
            return 0
        put, index = place
        number = data["retried"] + 1
        # Entries without a root are left from a retry whose clean-up was interrupted.
        lives = {root.retried for root in await core.folder(put.folder) if root.item is None}
        while number in lives:
            number += 1
        root = core.path("live", put.folder, f"r{number}-{index}")
        made = await core.create(root, write_again(job, core.time.now()))
        await core.delete([name])
        return int(made)

    async def drop(self, ids: Sequence[str] | None) -> int:
        return _counted(await self._core.all(self._drop(name) for name in await self._dead(ids)))

    async def _drop(self, name: str) -> int:
        core = self._core
        raw = await core.get(name)
        if raw is None:
            return 0
        job, _ = read_record(raw)
        if job.unique is not None:
            await self._uniques.free(job.unique, job.id)
        await core.delete([name])
        return 1

    async def prune(self, keep: float) -> int:
        """Delete a bounded number of finished jobs that are old enough; each call continues."""

        core = self._core
        before = core.time.surely() - keep + TICK
        old: list[str] = []
        looked = 0
        last = ""
        async for page in core.pages("done"):
            for item in page:
                if item.name > self._pruned_to:
                    looked += 1
                    last = item.name
                    if item.written <= before:
                        old.append(item.name)
            if len(old) >= PRUNE_MAX or looked >= PRUNE_LOOK:
                break
        else:
            last = ""
        self._pruned_to = last
        return _counted(await core.all(self._drop(name) for name in old[:PRUNE_MAX]))


def _counted(results: list[int | BaseException]) -> int:
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return sum(result for result in results if isinstance(result, int))
