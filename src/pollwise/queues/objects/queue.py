"""A queue in a bucket: S3, Google Cloud Storage, Azure Blob, a local folder, and no server to run.

The protocol. A store must offer writes that create or fail ("create-only"), reads and listings that
show what was written, and deletes. It needs no If-Match, no versions and no rewritten objects.

Objects, below `<prefix>/<queue>/`:

    live/<put>/b               all jobs of one put: this object is the put
    live/<put>/r<g>-<i>        job i of that put, retried for the g-th time
    live/<put>/<root>.<a>.<k>  entry k of the chain that starts at job a; see `chain`
    dead/<order>.<id>          a dead job
    ended/<order>.<id>         a done or cancelled job that is kept; an odd size means cancelled
    results/<order>.<id>       the same, if it is kept for its result; the size says for how long
    unique/<sha256>            a marker: which job has a `unique`; see `unique`
    live/-pauses/…, -orders/…  what is paused, and orders to workers; see `notes`
    workers/…                  the records of running workers; see `notes`
    check/<random>             written when a handle starts, and deleted

A put's name holds its priority, due time, stamp, a tag of its kind and its count. An entry's size
encodes its meaning and duration, and its time is the store's; see `names`. So one LIST of `live/`
shows every job and its state, and an idle poll is that one request.

Who decides. The state of a job is its chain, and only the creator of entry k + 1 changes it after
entry k. Claim, renewal, settlement, cancel and the takeover after a lease all try to create the
same name; one of them succeeds, and the others see that they lost. The number of the CLAIM entry is
the token. A chain starts with a slice of up to 16 equal jobs of a put. A claim of fewer
jobs leaves the rest of the slice as a unit with its own chain. So 16 jobs are claimed by one
write, renewed by one, and settled by one if they end together. If part of a unit is to be retried,
a BURST entry gives each of its jobs a chain of its own.

The record of a job. Headers lie in the body of the put. Errors are in the entries that gave the job
back, or show as a claim after a claim that lapsed, and progress is in the newest renewal
(REPORT). The entry that ends a kept or dead job holds its whole record, with its result, and then
the record is written. A long chain is summed up by one entry (SUM), which holds the last errors.

Cancelling. A job that nobody holds is ended by the cancel itself. If it is leased, the cancel
appends an entry (CANCEL) that names it. When the holder next appends an entry, a renewal or a
settlement, the name is taken. So it lists the chain, reads the request, and appends after it. It
returns the job in `Renewal.cancel`, or ends it as cancelled instead of giving it back. If the lease
runs out first, the next claim of any handle ends the job. So a job that nobody cancels pays
nothing.

What each race decides:

- two claims, or a claim and a renewal or settlement after the lease's end: one creates k + 1.
- a claim based on an old listing: its name is taken, or the put has ended and was deleted. A root
  is deleted before its entries. So a handle that creates an entry and then still finds the root (a
  claim always checks, a settlement only when its lease may have ended) knows that the put is alive.
  If the root is gone, the entry is deleted again and nothing was claimed.
- a late settlement: while its lease is surely valid it simply appends; later it first lists the
  chain. Old tokens find a newer CLAIM, or nothing: `LeaseLost`.
- two puts with the same `unique`: one creates the marker.
- a cancel and a settlement: if the settlement comes first, the cancel finds the job ended or free.
  If the cancel comes first, done and dead still count, and what would run again is cancelled.

What a crash leaves, and who cleans it up:

- during a put: nothing, or all of it. If the put never happened, the next put that wants its
  `unique` takes the markers over after GRACE. It first creates the missing root as an empty object,
  so that the crashed put can never appear.
- after a claim, with or without its answer: a lease that runs out.
- after the END of jobs, before the deletes: garbage in the LIST of any later claim, which deletes
  it after GRACE.
- after the end of jobs that have to be moved (dead jobs, kept jobs, a `unique` to be freed): the
  entry says so (MOVE, REST_MOVE) and holds all that is needed. Its writer moves them at once. If it
  crashes, the next handle that ends a job of the unit, or any later claim after GRACE, appends an
  entry that takes the duty over, and does it. All of this is idempotent. An entry that ends some
  jobs of a unit which nobody holds (REST_GUARD: a cancel, a late settlement) keeps claims away
  from the others until the ended ones are moved, for GRACE at most.
- during a retry: the job is in both places; the next retry finds it where the first one put it.

Why nothing is lost: a job leaves its root only when an entry says done, or when its record in
`dead/` or `ended/` exists. Roots are deleted when every unit has ended and nothing is to be moved.
Why never two live leases: the holder counts its lease from before its request, by a clock that does
not jump. All others count from the time the store wrote it, plus the store's rounding, and take
over only when the lease has ended by the lower bound of the store's time (`StoreClock`; the bound
widens by DRIFT = 0.2 ms per second and is refreshed hourly). Local clocks may be wrong, as long as
none runs faster or slower than by DRIFT. Delays use the most likely store time, which is within
half a second where a store shows whole seconds only.
Why at least once and not exactly once: a lease may run out while its handler still runs; and a put
whose answer was lost is repeated, so if its job was run and deleted meanwhile, it is put twice.

Deletes are not conditional, so they are limited in time: a handle acts on a listing within
ACT_WITHIN (20 s) or lists again, and others wait for GRACE (60 s). A request that a network delays
for longer than the 40 s between could free a `unique` that is taken again, or delete nothing; it
can never end or duplicate a lease.

Requests, each asserted by a test: an idle poll 1 LIST. A put 1 PUT, whatever its size. A claim
1 LIST, 1 PUT for each unit of up to 16 jobs, 1 GET for each put it takes from; no LIST while the
previous one shows a backlog and nobody else claims. A job from put to done 1 PUT, 1 LIST, 1 PUT,
1 GET, 1 PUT and 2 deletes, all of them shared by jobs that go together. Headers, progress, results
and errors add bytes to these requests. What adds requests, for jobs that use it: a cancel is 1 LIST
and, for each unit, 1 PUT and 1 HEAD, and costs the holder's next write 1 refused PUT, 1 LIST and
1 GET; the history of a job that is retried and then kept or dead is up to 5 GETs of entries that
other handles wrote.

A claim belongs to the handle that made it: while the lease is valid, a handle appends without
checking whether another one settled it under the same token, because each check costs a request.

Not supported: keys, because no create-only write can say "only if no other job of this key runs".
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, TypeVar
from urllib.parse import quote
from weakref import WeakKeyDictionary

from pollwise.core.strategies.adaptive import Adaptive
from pollwise.core.strategies.base import Strategy
from pollwise.durations import Duration
from pollwise.errors import ConfigError, PayloadError, StoreUnavailable
from pollwise.queues.base import MAX_PAYLOAD_BYTES, ClaimRequest, Queue
from pollwise.queues.capabilities import Capabilities
from pollwise.queues.notes import NewNote, Note, NoteWritten, Topic
from pollwise.queues.objects.body import read_body, write_body
from pollwise.queues.objects.claiming import UnitClaimer
from pollwise.queues.objects.core import ACT_WITHIN, Core
from pollwise.queues.objects.ending import UnitEnder
from pollwise.queues.objects.markers.unique import UniqueMarkers
from pollwise.queues.objects.names import MIXED, SLICE, PutName, safe_name, tag_of
from pollwise.queues.objects.settling import UnitSettler
from pollwise.queues.objects.store import Obstore, Store
from pollwise.queues.objects.views import Views
from pollwise.queues.viewed import DEAD
from pollwise.queues.views import COUNTED_MAX, JobFilter, JobPage, Stats, page_of_list
from pollwise.queues.waiting import JobEnding
from pollwise.runtime.clock import Clock
from pollwise.runtime.jobs import (
    Claim,
    JobInfo,
    NewJob,
    Progress,
    Renewal,
    Settlement,
    State,
)

T = TypeVar("T")

#: The maximum size of one put in bytes; a put is one object.
MAX_PUT_BYTES = 64 * 1024 * 1024

# The last stamp of this process, by location. A custom store has its own stamps.
_stamps: dict[str, int] = {}
_stamps_of: WeakKeyDictionary[Store, dict[str, int]] = WeakKeyDictionary()


class ObjectQueue(Queue):
    """Jobs as objects.

    store: any store of obstore, or a `Store` of your own.
    prefix: the folder of the queues in the store.
    """

    capabilities: ClassVar[Capabilities] = Capabilities(
        keys=False,
        atomic_settle=False,
        history=False,
        schedules=False,
        replace=False,
        limits=False,
        breakers=False,
        flows=False,
    )
    # Jobs claimed by one write can be settled by one write, if one call settles them.
    gather: ClassVar[float] = 0.05
    gather_up_to: ClassVar[int] = SLICE
    # A record is a PUT, which costs as much as a poll.
    idle_presence: ClassVar[float] = 600.0
    wait_pace: ClassVar[Strategy] = Adaptive("200ms", "5s", backoff_multiplier=1.5)
    measured_max: ClassVar[int] = COUNTED_MAX

    def __init__(
        self,
        store: Any,
        prefix: str = "pollwise",
        name: str = "default",
        *,
        location: str | None = None,
        clock: Clock | None = None,
        keep: Duration | None = None,
        max_payload_bytes: int = MAX_PAYLOAD_BYTES,
    ) -> None:
        """
        location: the store's URL for people: `s3://bucket`.
        """
        super().__init__(name, clock=clock, keep=keep, max_payload_bytes=max_payload_bytes)
        self.prefix: str = prefix.strip("/")
        if not re.fullmatch(r"(?:[A-Za-z0-9_=.-]+/)*[A-Za-z0-9_=.-]+|", self.prefix) or {
            ".", "..",
        } & {*self.prefix.split("/")}:  # fmt: skip
            raise ConfigError(
                f"prefix = {prefix!r} must be names of letters, digits, '-', '_', '=' and '.', "
                "with '/' between them"
            )
        if location is None:
            location = f"{type(store).__name__.removesuffix('Store').lower()}://"
        self._location = location
        ours: Store = store if hasattr(store, "pages") else Obstore(store, location)
        base = "/".join(part for part in (self.prefix, safe_name(name)) if part)
        self._core = Core(ours, self.clock, base, location, name)
        self._claiming = UnitClaimer(self._core)
        self._uniques = UniqueMarkers(self._core)
        self._ender = UnitEnder(
            self._core, self._claiming, self.keep, self._uniques.path,
            self._uniques.free,
        )  # fmt: skip
        self._uniques.ender = self._ender
        self._claiming.end_lapsed = self._ender.end_lapsed
        self._settling = UnitSettler(self._core, self._claiming, self._ender)
        self._views = Views(self._core, self._claiming, self._uniques, self._ender)

    @property
    def url(self) -> str:
        place = f"{self._location.rstrip('/')}/{self.prefix}" if self.prefix else self._location
        return f"{place}?queue={quote(self.name, safe='')}"

    # Putting

    async def _put(self, jobs: list[NewJob]) -> tuple[list[str], int]:
        self._claiming.relist()
        return await self._whole(self._put_all(jobs))

    async def _put_all(self, jobs: list[NewJob]) -> tuple[list[str], int]:
        core = self._core
        now = core.time.now()
        dues = [job.due_at(now) for job in jobs]
        put = self._new_put(jobs, dues, now)
        ids = [put.id_of(index) for index in range(len(jobs))]
        fresh: list[NewJob | None] = list(jobs)
        made: list[str] = []
        began = core.clock.now()
        if any(job.unique is not None for job in jobs):
            twins, made, began = await self._uniques.hold(jobs, put)
            for index, holder in twins.items():
                fresh[index], ids[index] = None, holder
        if not any(fresh):
            return ids, 0
        body = write_body(fresh, dues, now)
        if len(body) > MAX_PUT_BYTES:
            await core.delete(made)
            raise PayloadError(
                f"a put of {len(jobs)} jobs has {len(body)} bytes; one put is one object of "
                f"at most {MAX_PUT_BYTES} bytes, so split it"
            )
        root = core.path("live", put.folder, "b")
        late = bool(made) and core.clock.now() - began > ACT_WITHIN
        try:
            if late or not await core.create(root, body, ours=True):
                raise StoreUnavailable(
                    f"{self.url}: the put took so long that others may have its unique names; "
                    "nothing was put, so try again"
                )
        except BaseException:
            # If the put may have been written, its markers must stay.
            with suppress(Exception):
                if not late and await core.head(root) is None:
                    await core.delete(made)
            raise
        core.cache.add_body(root, read_body(put.folder, body))
        return ids, sum(job is not None for job in fresh)

    def _new_put(self, jobs: list[NewJob], dues: list[float], now: float) -> PutName:
        first = min(range(len(jobs)), key=lambda i: (dues[i] > now, -jobs[i].priority, dues[i]))
        ways = {(job.kind, job.priority, due) for job, due in zip(jobs, dues, strict=True)}
        holes = len(jobs) > 1 and any(job.unique is not None for job in jobs)
        tag = MIXED if len(ways) > 1 or holes else tag_of(jobs[0].kind)
        due = dues[first] if dues[first] > now else None
        return PutName.make(jobs[first].priority, due, self._stamp(now), tag, len(jobs))

    def _stamp(self, now: float) -> int:
        """The time in microseconds, increasing with each put of this process."""
        store = self._core.store
        stamps = _stamps if isinstance(store, Obstore) else _stamps_of.setdefault(store, {})
        where = f"{self._location}/{self._core.base}"
        stamp, last = round(now * 1e6), stamps.get(where, 0)
        if 0 <= last - stamp < 1_000_000:  # not after a clock was set back
            stamp = last + 1
        stamps[where] = stamp
        return stamp

    # The rest

    async def _claim(self, asked: ClaimRequest) -> list[Claim]:
        await self._core.ready()
        claims, listing = await self._claiming.claim(asked)
        self._ender.sweep(listing.roots, listing.seen_at)
        alone = claims and claims[0].suspect
        if len(claims) < asked.limit and listing.due is not None and not alone:
            self._hint_when_due(self._core.time.local(listing.due))
        return claims

    async def _settle(self, settlements: list[Settlement]) -> list[str]:
        if any(settlement.comes_back for settlement in settlements):
            self._claiming.relist()
        return await self._whole(self._settling.settle(settlements))

    async def _renew(
        self, claims: list[Claim], lease: float, progress: Mapping[str, Progress]
    ) -> Renewal:
        return await self._whole(self._settling.renew(claims, lease, progress))

    async def _cancel(self, ids: Sequence[str]) -> dict[str, State]:
        self._claiming.relist()
        return await self._whole(self._ender.cancel(ids))

    async def stats(self, most: int = COUNTED_MAX) -> Stats:
        return await self._whole(self._views.stats(most))

    async def stats_by_kind(
        self, most: int = COUNTED_MAX, ready_most: int | None = None
    ) -> dict[str, Stats]:
        return await self._whole(self._views.stats_by_kind(most))

    async def _find(self, job_id: str) -> JobInfo | None:
        return await self._whole(self._views.get(job_id))

    async def _page(self, chosen: JobFilter) -> JobPage:
        newest = partial(self._views.listed, newest=True)
        return await self._whole(page_of_list(newest, chosen, self.clock.epoch()))

    async def _arrivals(self, chosen: JobFilter) -> list[JobInfo]:
        return await self._whole(self._views.listed(chosen, newest=False))

    async def _retry(self, ids: Sequence[str] | None) -> int:
        self._claiming.relist()
        return await self._whole(self._views.retry(ids))

    async def _drop(self, ids: Sequence[str] | None, states: Sequence[State] = DEAD) -> int:
        return await self._whole(self._views.drop(ids, states))

    async def _prune(self, keep: float | None) -> int:
        return await self._whole(self._views.prune(keep))

    async def _write_note(self, note: NewNote) -> NoteWritten:
        self._claiming.relist()
        return await self._whole(self._claiming.notes.write(note))

    async def _read_notes(self, topics: Sequence[Topic]) -> list[Note]:
        return await self._whole(self._claiming.notes.read(topics))

    async def _endings(self, ids: Sequence[str]) -> dict[str, JobEnding | None]:
        return await self._whole(self._views.endings(ids))

    async def _whole(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work that changes the store to its end, even if the caller is cancelled."""
        try:
            await self._core.ready()
        except BaseException:
            work.close()
            raise
        return await asyncio.shield(self._core.begin(work))

    async def close(self) -> None:
        if self._core.closed:
            return
        await super().close()
        await self._core.close()
