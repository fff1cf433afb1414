"""Views: stats, lists and single jobs; retry and drop of ended jobs, and pruning of kept ones."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from pollwise.queues.objects.body import (
    failures,
    info_of,
    progress_of,
    read_record,
    record_state,
    write_again,
)
from pollwise.queues.objects.chain import (
    ClaimUnit,
    ListedObject,
    RootObject,
    errors_of,
    last_run,
    read_roots,
    worker_of,
)
from pollwise.queues.objects.claiming import UnitClaimer, since_of
from pollwise.queues.objects.core import REQUESTS, TICK, Core
from pollwise.queues.objects.ending import UnitEnder
from pollwise.queues.objects.markers.unique import UniqueMarkers
from pollwise.queues.objects.names import PutName, digits, kept_for, place_after, read_id, tag_of
from pollwise.queues.viewed import DEAD
from pollwise.queues.views import LIVE, JobFilter, Stats, listed
from pollwise.queues.waiting import JobEnding
from pollwise.runtime.decoding import cut_value
from pollwise.runtime.jobs import ENDED, STATES, Claim, JobInfo, State
from pollwise.runtime.store import PRUNE_SLICE

T = TypeVar("T")

#: The maximum number of results that one prune examines.
PRUNE_LOOK = 10_000
#: A prune also examines jobs that were put up to this many seconds after the last that can be old
#: enough: clocks differ.
PRUNE_AHEAD = 600.0
#: How many puts are listed one by one, rather than all, to find out whether their jobs have ended.
LISTED_ALONE = 8
#: The folders of ended jobs, and the states of these.
ENDED_FOLDERS = (("results", ENDED[1:]), ("ended", ENDED[1:]), ("dead", ENDED[:1]))
#: The number of jobs of mixed puts whose kind is remembered.
KINDS_MAX = 65536


@dataclass(frozen=True, slots=True)
class _ListedJob:
    """One job found in a listing: in a unit, or as a record."""

    put: PutName
    index: int
    state: State
    unit: ClaimUnit | None
    record: str = ""


@dataclass(frozen=True, slots=True)
class _JobCount:
    """Jobs of one kind in the same state. since: when they fell due."""

    job: _ListedJob
    count: int = 1
    since: float | None = None


class Views:
    def __init__(
        self, core: Core, claiming: UnitClaimer, uniques: UniqueMarkers, ender: UnitEnder
    ) -> None:
        self._core = core
        self._claiming = claiming
        self._uniques = uniques
        self._ender = ender
        self._pruned_to = {"ended": "", "results": ""}
        self._kinds: dict[str, str] = {}  # of tags, and of the ids of jobs in mixed puts

    async def stats(self, most: int) -> Stats:
        return self._counted(*await self._counts(most))

    async def stats_by_kind(self, most: int) -> dict[str, Stats]:
        """One request more for each kind, and for each ended job that was put together with others
        of another kind, priority or due time; the answers are remembered."""
        counts, capped = await self._counts(most)
        kinds: dict[str, list[_JobCount]] = {}
        for each, kind in zip(counts, await self._kinds_of(counts), strict=True):
            if kind is not None:
                kinds.setdefault(kind, []).append(each)
        return {kind: self._counted(each, capped) for kind, each in kinds.items()}

    def _counted(self, counts: Iterable[_JobCount], capped: Iterable[State]) -> Stats:
        states = dict.fromkeys(STATES, 0)
        oldest: float | None = None
        for each in counts:
            states[each.job.state] += each.count
            if each.job.state == "ready" and each.since is not None:
                oldest = each.since if oldest is None else min(oldest, each.since)
        age = None if oldest is None else max(self._core.time.now() - oldest, 0.0)
        return Stats.of(states, age, capped)

    async def _counts(self, most: int) -> tuple[list[_JobCount], set[State]]:
        """Jobs of up to `most` objects in each folder, and the states that may have more."""
        core = self._core
        counts = []
        capped: set[State] = set()
        items = await core.listing("live", most=most)
        if len(items) > most:
            capped |= set(LIVE)
            last = items[-1].name.rpartition("/")[0]  # it may not be there as a whole
            items = [item for item in items if item.name.rpartition("/")[0] != last]
        for root in filter(_is_live, read_roots(items)):
            for unit in await core.units(root):
                if not unit.ended:
                    job = _ListedJob(root.put, unit.start, self._state(unit), unit)
                    counts.append(_JobCount(job, unit.left, since_of(core, unit)))
        ended: dict[str, _ListedJob] = {}
        for folder, states in ENDED_FOLDERS:
            items = await core.listing(folder, most=most)
            ended |= {job.put.id_of(job.index): job for job in self._records_in(folder, items)}
            if len(items) > most:
                capped |= set(states)
        return counts + [_JobCount(job) for job in ended.values()], capped

    async def _kinds_of(self, counts: list[_JobCount]) -> list[str | None]:
        """Two kinds with the same tag count as one of them, which is very unlikely."""
        if len(self._kinds) > KINDS_MAX:
            self._kinds.clear()
        keys = [
            each.job.put.id_of(each.job.index) if each.job.put.mixed else each.job.put.tag
            for each in counts
        ]
        unknown = {
            key: each.job for key, each in zip(keys, counts, strict=True) if key not in self._kinds
        }
        found = await self._core.all(self._kind_of(job) for job in unknown.values())
        for key, kind in zip(unknown, found, strict=True):
            if isinstance(kind, BaseException):
                raise kind
            if kind is not None:
                self._kinds[key] = kind
        return [self._kinds.get(key) for key in keys]

    async def _kind_of(self, job: _ListedJob) -> str | None:
        if job.unit is not None:
            body = await self._core.body(job.unit.root)
            return None if body is None else body[job.index].kind
        raw = await self._core.get(job.record)
        return None if raw is None else read_record(raw)[0].kind

    async def get(self, job_id: str) -> JobInfo | None:
        core, place = self._core, read_id(job_id)
        if place is None:
            return None
        put, index = place
        roots = [root for root in await core.folder(put.folder) if _is_live(root)]
        for root in roots:
            for unit in await core.units(root):
                if index in (unit.jobs(core.cache.content) or ()):
                    return await self._info(
                        _ListedJob(put, index, self._state(unit), unit), cut=False
                    )
        return await self._ended(put, index, roots)

    async def _ended(self, put: PutName, index: int, roots: list[RootObject]) -> JobInfo | None:
        """Return a job that is not in a unit of these roots, the roots of its put."""
        core = self._core
        for folder in ("dead", "ended", "results"):
            raw = await core.get(core.path(folder, put.key(index)))
            if raw is not None:
                return self._unless_expired(raw)
        record = await self._ender.unmoved(roots, index)
        return None if record is None else info_of(core.name, record[1])

    def _unless_expired(self, raw: bytes) -> JobInfo | None:
        _, data = read_record(raw)
        if data.get("expires_at", math.inf) <= self._core.time.now() + TICK:
            return None
        return info_of(self._core.name, raw)

    async def _listed(self, seen: _ListedJob) -> JobInfo | None:
        info = await self._info(seen)
        return None if info is None else listed(info)

    async def endings(self, ids: Sequence[str]) -> dict[str, JobEnding | None]:
        """How jobs ended; None for those that do not exist. One LIST for each put, or one for all
        if they are many; and up to three GETs for each job that has ended."""
        core = self._core
        places = {job_id: read_id(job_id) for job_id in ids}
        folders = {place[0].folder for place in places.values() if place}
        if len(folders) > LISTED_ALONE:
            roots = await self._roots()
        else:
            found = await core.all(core.folder(folder) for folder in folders)
            roots = [root for part in _checked(found) for root in part if _is_live(root)]
        live: set[str] = set()
        of_put: dict[str, list[RootObject]] = {}
        for root in roots:
            if root.put.folder in folders:
                of_put.setdefault(root.put.folder, []).append(root)
                for unit in await core.units(root):
                    live |= {root.put.id_of(i) for i in unit.jobs(core.cache.content) or ()}
        over = {i: place for i, place in places.items() if place and i not in live}
        infos = await core.all(
            self._ended(*place, of_put.get(place[0].folder, [])) for place in over.values()
        )
        endings: dict[str, JobEnding | None] = {i: None for i, place in places.items() if not place}
        for job_id, info in zip(over, _checked(infos), strict=True):
            endings[job_id] = None if info is None else JobEnding.of(info)
        return endings

    async def listed(self, chosen: JobFilter, *, newest: bool) -> list[JobInfo]:
        """Jobs in put order, or the newest first, that match by state, kinds and worker."""
        page: list[JobInfo] = []
        seen = await self._all(chosen, newest)
        seen.sort(key=lambda s: s.put.place(s.index), reverse=newest)
        async for info in self._infos(seen, chosen.limit):
            if (
                chosen.state in (None, info.state)
                and (chosen.kinds is None or info.job.kind in chosen.kinds)
                and chosen.worker in (None, info.worker)
            ):
                page.append(info)
                if len(page) == chosen.limit:
                    break
        return page

    async def _infos(self, seen: list[_ListedJob], ahead: int) -> AsyncIterator[JobInfo]:
        """The jobs in order, read in parallel and not much further than needed."""
        step = min(ahead, REQUESTS)  # more would only wait in memory for their turn
        for start in range(0, len(seen), step):
            for info in await self._core.all(self._listed(s) for s in seen[start : start + step]):
                if isinstance(info, BaseException):
                    raise info
                if info is not None:
                    yield info

    async def _roots(self) -> list[RootObject]:
        return [root for root in read_roots(await self._core.listing("live")) if _is_live(root)]

    async def _all(self, chosen: JobFilter, newest: bool) -> list[_ListedJob]:
        """The jobs that may be on the page or after it, as far as a listing shows."""
        core, state = self._core, chosen.state
        seen: dict[str, _ListedJob] = {}
        for job in await self._all_records(state):
            seen[job.put.id_of(job.index)] = job
        if state not in ENDED:
            for root in await self._roots():
                for unit in await core.units(root):
                    here = self._state(unit)
                    for index in unit.jobs(core.cache.content) or ():
                        seen[root.put.id_of(index)] = _ListedJob(root.put, index, here, unit)
        begin = None if chosen.after is None else place_after(chosen.after)
        tags = None if chosen.kinds is None else {tag_of(kind) for kind in chosen.kinds}
        return [
            job
            for job in seen.values()
            if state in (None, job.state)
            and (tags is None or job.put.mixed or job.put.tag in tags)
            and (chosen.worker is None or job.state not in ("ready", "delayed"))
            and (begin is None or _beyond(job.put.place(job.index), begin, newest))
        ]

    async def _all_records(self, state: State | None = None) -> list[_ListedJob]:
        """The ended jobs, or those that may be in this state; some twice."""
        return [
            job
            for folder, states in ENDED_FOLDERS
            if state is None or state in states
            for job in await self._records(folder)
        ]

    async def _records(self, folder: str) -> list[_ListedJob]:
        return self._records_in(folder, await self._core.listing(folder))

    def _records_in(self, folder: str, items: Iterable[ListedObject]) -> list[_ListedJob]:
        found = []
        now = self._core.time.now() + TICK
        for item in items:
            if folder == "results" and item.written + kept_for(item.size) <= now:
                continue
            _, _, job_id = item.name.rpartition("/")[2].partition(".")
            if place := read_id(job_id):
                state: State = "dead" if folder == "dead" else record_state(item)
                found.append(_ListedJob(*place, state, None, item.name))
        return found

    def _state(self, unit: ClaimUnit) -> State:
        now = self._core.time.now() + TICK  # for a view the likely time is good enough
        if self._claiming.opens(unit, now, now)[1]:
            return "ready"
        return "leased" if unit.claim else "delayed"

    async def _info(self, seen: _ListedJob, *, cut: bool = True) -> JobInfo | None:
        core, unit, index = self._core, seen.unit, seen.index
        if unit is None:
            raw = await core.get(seen.record)
            return None if raw is None else self._unless_expired(raw)
        body = await core.body(unit.root)
        if body is None:
            return None
        stored = body[index]
        if cut and (beginning := cut_value(stored.payload, stored.unreadable)) is not None:
            stored = replace(stored, payload=beginning)
        del body  # it may be large, and the next lines wait for the store
        leased = seen.state == "leased"
        path = [e for e in unit.path if e.number < unit.claim] if leased else unit.path
        errors = await errors_of(path, index, stored.errors, core.content, core.time.grain)
        run = await last_run(unit.path, core.content)
        worker = await worker_of(unit, core.content) if leased else None
        job = stored.job(core.name, unit.attempts, unit.run_at)
        since = job.run_at if seen.state == "ready" or unit.free_at is None else unit.free_at
        claim = None
        if leased and worker is not None:
            claim = Claim(job, unit.token, worker, core.time.local(since))
        if leased and run.claimed_at is not None:
            since = run.claimed_at
        return JobInfo(
            job,
            seen.state,
            since,
            worker,
            failures(errors),
            run.claimed_at,
            progress_of(run.progress.get(str(index))),
            index in unit.asked(core.cache.content),
            claim=claim,
        )

    # Ended jobs

    async def retry(self, ids: Sequence[str] | None) -> int:
        if ids is None:
            calls = [self._retry(job.record) for job in await self._records("dead")]
        else:
            calls = [self._retry_named(*place) for job_id in ids if (place := read_id(job_id))]
        return _counted(await self._core.all(calls))

    async def _retry_named(self, put: PutName, index: int) -> int:
        core, key = self._core, put.key(index)
        if count := await self._retry(core.path("dead", key)):
            return count
        only = core.path("results", key)
        if await core.head(core.path("ended", key)) is None:
            return await self._retry(only)
        await core.delete([only])  # first: it must not stay as the result of the next run
        return await self._retry(core.path("ended", key))

    async def _retry(self, name: str) -> int:
        """Put an ended job again with its own id. If this is interrupted before its record is
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
        made = await core.create(root, write_again(job, data["errors"], core.time.now()))
        await core.delete([name])
        return int(made)

    async def drop(self, ids: Sequence[str] | None, states: Sequence[State]) -> int:
        core = self._core
        if ids is None:
            names = [job.record for job in await self._records("dead")]
            return _counted(await core.all(self._drop(name) for name in names))
        folders = ("dead",) if states == DEAD else ("dead", "ended", "results")
        keys = [place[0].key(place[1]) for job_id in ids if (place := read_id(job_id))]
        return _counted(await core.all(self._drop_from(folders, key) for key in keys))

    async def _drop_from(self, folders: Sequence[str], key: str) -> int:
        """Delete a job's records in these folders; a finished one may be in two."""
        return max([await self._drop(self._core.path(folder, key)) for folder in folders])

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

    async def prune(self, keep: float | None) -> int:
        """Delete a bounded number of finished jobs that are old enough; each call continues."""
        core, now = self._core, self._core.time.surely() + TICK
        over = await self._old("results", lambda i: i.written + kept_for(i.size) <= now, PRUNE_LOOK)
        if over:
            await core.delete(over)
        if keep is None:
            return len(over)
        before = now - keep
        # In put order: a job that was put later than this cannot have ended early enough.
        end = digits(max(round((before + PRUNE_AHEAD) * 1e6), 0), 11)
        old = await self._old("ended", lambda item: item.written <= before, math.inf, end)
        freed = await core.all(self._free(name) for name in old)
        found = [name for name, was in zip(old, freed, strict=True) if was is True]
        await core.delete(found)
        _checked(freed)
        return len(over) + len(found)

    async def _free(self, name: str) -> bool:
        """Free the `unique` of a record that is to be deleted; False if it is gone."""
        raw = await self._core.get(name)
        if raw is None:
            return False
        job, _ = read_record(raw)
        if job.unique is not None:
            await self._uniques.free(job.unique, job.id)
        return True

    async def _old(
        self, folder: str, is_old: Callable[[ListedObject], bool], most: float, end: str = "~"
    ) -> list[str]:
        """Up to PRUNE_SLICE records of a folder that are old enough; each call continues.

        most: how many it examines. end: no record from this name on is old enough.
        """
        old: list[str] = []
        looked = 0
        last = self._pruned_to[folder]
        async for page in self._core.pages(folder, after=last):
            for item in page:
                if len(old) == PRUNE_SLICE or looked >= most:
                    self._pruned_to[folder] = last
                    return old
                name = item.name.rpartition("/")[2]
                if name >= end:
                    break
                looked, last = looked + 1, name
                if is_old(item):
                    old.append(item.name)
            else:
                continue
            break
        self._pruned_to[folder] = ""
        return old


def _beyond(place: tuple[int, str, int], begin: tuple[int, str, int], newest: bool) -> bool:
    return place < begin if newest else place > begin


def _is_live(root: RootObject) -> bool:
    return root.item is not None and not root.void


def _checked(results: list[T | BaseException]) -> list[T]:
    """The results of calls; raises the first that failed."""
    found: list[T] = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        found.append(result)
    return found


def _counted(results: list[int | BaseException]) -> int:
    return sum(_checked(results))
