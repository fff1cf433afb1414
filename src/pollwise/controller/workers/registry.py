"""The registered workers: which are online, which jobs each can take, when each polls next.

Most polls find nothing, so everything they need is in memory: the worker, its group, when it was
seen. The times are saved in batches, and changes by other controllers are read in the same turn.
Requests trigger both, so a registry whose workers are silent does nothing.

Workers that can take the same kinds of jobs form a group. A claim that came back empty answers the
next polls of the group from memory, until a job is put here or a second is over. The suggested
interval follows from the number of idle workers in the group.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from pollwise.controller.options import ControllerOptions
from pollwise.controller.state.base import ControllerState, new_id
from pollwise.controller.state.values import Requirement, WorkerRow, WorkerSeen
from pollwise.controller.terms import JobTerms
from pollwise.controller.workers import matching
from pollwise.controller.workers.groups import SuggestedPace, WorkerGroup
from pollwise.controller.workers.others import REQUIREMENTS
from pollwise.controller.workers.registrations import RegistrationLimit
from pollwise.controller.workers.waiting import live_capabilities
from pollwise.errors import JobError
from pollwise.queues.base import Queue
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import Events, WorkerGone, WorkerRegistered, WorkerSilent
from pollwise.runtime.executor.control.isolation import ALONE_FOR
from pollwise.runtime.hints import Hint, Hints
from pollwise.runtime.jobs import Claim, checked_name

if TYPE_CHECKING:
    from pollwise.controller.workers.push import WorkerSocket

#: How often the times of contacts are saved, and changes by others read, in seconds.
WRITE_EVERY = 10.0
#: How often requirements are read again, for jobs that were put at another controller.
REQUIREMENTS_EVERY = 5.0
#: How long the capabilities of live workers are remembered, in seconds.
LIVE_FOR = 2.0
#: The most workers in one statement.
BATCH = 1000
#: Why a worker is gone whose token was revoked.
TOKEN_INVALID = "its token is no longer valid"  # noqa: S105
#: The largest number of slots of a worker.
SLOTS_MAX = 1000


@dataclass(slots=True, eq=False)
class HeldRun:
    """A job that a worker has, under its claim on the queue, and its terms.

    since: when this controller learnt of it, and renewed_at: when it last renewed its lease, both
        in the event loop's time.
    heard: its worker spoke of it; else the answer that handed it out may have been lost.
    cancel: it was asked to cancel.
    """

    claim: Claim
    terms: JobTerms
    since: float
    renewed_at: float
    cancel: bool = False
    heard: bool = False

    @property
    def job_id(self) -> str:
        return self.claim.job.id

    def note_heard(self) -> None:
        """Its worker has it, so the payload need not be remembered."""
        if not self.heard:
            self.heard = True
            self.claim = replace(self.claim, job=replace(self.claim.job, payload=None))


_NO_RUNS: Mapping[str, HeldRun] = {}


@dataclass(slots=True, eq=False)
class KnownWorker:
    """A worker in the memory of this controller.

    group: as of `version` of the requirements.
    seen_at: when it last sent a request, in the event loop's time, and from which address.
    empty_at: when its last poll came back empty; None if it found something.
    puts: the count of its group when that poll came back.
    due: when its next poll was suggested, if it looked for a job.
    hinted_at: when it got a hint that no poll has followed, so that its next one is not too soon.
    polls_left: how many polls it may send at once, as of `counted_at`: see `Poller.admit`.
    idle: it looks for a job.
    silent: it was not seen for the heartbeat timeout.
    runs: what it runs, as read at `runs_at`.
    waiting: the hint of its held poll, if one is held.
    socket: its open WebSocket, if any.
    polling: one poll of a worker at a time: the second must see what the first took.
    """

    row: WorkerRow
    group: WorkerGroup
    seen_at: float
    address: str
    version: int = -1
    empty_at: float | None = None
    puts: int = -1
    due: float | None = None
    hinted_at: float | None = None
    polls_left: float = math.inf
    counted_at: float = 0.0
    idle: bool = False
    silent: bool = False
    runs: Mapping[str, HeldRun] = field(default_factory=lambda: _NO_RUNS)
    runs_at: float = -math.inf
    waiting: Hint | None = None
    socket: WorkerSocket | None = None
    polling: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def id(self) -> str:
        return self.row.id

    def has_isolated(self, now: float) -> bool:
        """True while it has a job that may have killed its workers, at most for the first minute of
        it: it gets no other job."""
        return any(run.claim.suspect and now < run.since + ALONE_FOR for run in self.runs.values())


class WorkerRegistry:
    """The workers of a controller, and the kinds of jobs they can take."""

    def __init__(
        self,
        state: ControllerState,
        hints: Hints,
        options: ControllerOptions,
        clock: Clock,
        events: Events,
        source: str,
    ) -> None:
        self._state = state
        self._hints = hints
        self._options = options
        self._clock = clock
        self._events = events
        self._source = source
        self._timeout = options.span("heartbeat_timeout")
        self._pace = SuggestedPace(options, Random())
        self._known: dict[str, KnownWorker] = {}
        self._unwritten: dict[str, KnownWorker] = {}
        #: By their kinds; a group without a worker is dropped.
        self._groups: WeakValueDictionary[frozenset[str], WorkerGroup] = WeakValueDictionary()
        self._nobody = WorkerGroup(frozenset())
        self._requirements: dict[tuple[str, str], Requirement] = {}
        self._version = 0
        self._read_at = -REQUIREMENTS_EVERY
        self._live: list[Mapping[str, Any]] = []
        self._live_at = -LIVE_FOR
        self._contact_at = -math.inf
        self._limit = RegistrationLimit(options.span("min_interval"), clock)
        #: When workers were heard again after an outage, or for the first time.
        self.resumed_at: float = -math.inf

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[KnownWorker]:
        return iter(list(self._known.values()))

    # Registering

    async def register(
        self,
        name: object,
        capabilities: object,
        slots: object,
        *,
        token_hash: str,
        expires_at: float | None,
        who: str,
        address: str,
    ) -> WorkerRow:
        """Store a new worker; `JobError` if what it says of itself is invalid.

        Raises `HttpError` (429) if workers of this name register again and again.
        """
        name = checked_name(name, "name")
        capabilities = matching.checked_capabilities(capabilities)
        if isinstance(slots, bool) or not isinstance(slots, int) or not 1 <= slots <= SLOTS_MAX:
            raise JobError(f"slots = {slots!r} must be a whole number from 1 to {SLOTS_MAX}")
        self._limit.admit(who, name)
        row = await self._state.add_worker(
            WorkerRow(
                id=new_id(self._clock),
                name=name,
                capabilities=capabilities,
                slots=slots,
                token_hash=token_hash,
                token_expires_at=expires_at,
                registered_by=who,
                address=address,
            )
        )
        known = self._remember(row)
        known.seen_at = known.runs_at = self._clock.now()  # a new worker has no run
        self._live_at = -LIVE_FOR
        self._events.emit(WorkerRegistered(self._source, row.id, row.name))
        return row

    async def get(self, worker_id: str) -> KnownWorker | None:
        """A worker, from memory if it was seen lately."""
        known = self._known.get(worker_id)
        if known is None:
            row = await self._state.worker(worker_id)
            known = None if row is None else self._remember(row)
        return known

    def remembered(self, worker_id: str) -> KnownWorker | None:
        return self._known.get(worker_id)

    async def unregister(self, worker_id: str) -> bool:
        """Remove a worker; False if there is no such worker."""
        removed = await self._state.remove_worker(worker_id)
        self._forget(worker_id, "unregistered")
        return removed

    def refuse(self, who: str) -> None:
        """Forget the workers in memory that registered with a token that was revoked."""
        for known in self:
            if known.row.registered_by == who:
                self._forget(known.id, TOKEN_INVALID)

    async def drain(self, worker_id: str, drain: bool) -> WorkerRow | None:
        row = await self._state.set_drain(worker_id, drain)
        known = self._known.get(worker_id)
        if row is not None and known is not None:
            known.row = row
        self._live_at = -LIVE_FOR
        return row

    # Seeing

    def seen(self, known: KnownWorker, address: str = "", now: float | None = None) -> None:
        """Note that a worker sent a request; saved within `WRITE_EVERY`."""
        known.seen_at = at = self._clock.now() if now is None else now
        if at - self._contact_at > self._timeout:
            self.resumed_at = at  # no request came for long: all may have been online
        self._contact_at = at
        known.silent = False
        if address:
            known.address = address
        self._unwritten[known.row.id] = known

    def is_online(self, row: WorkerRow) -> bool:
        """True if it was seen within the timeout, here or by another controller."""
        return self._clock.epoch() - self.last_seen(row) < self._timeout

    def last_seen(self, row: WorkerRow) -> float:
        known = self._known.get(row.id)
        if known is None:
            return row.last_seen
        return max(row.last_seen, self._clock.epoch() - (self._clock.now() - known.seen_at))

    def found(self, known: KnownWorker, count: int, asked: int, began: float) -> float:
        """Note that a poll found `count` of `asked` jobs; seconds until the next poll.

        began: when the poll came in. The minimum interval counts from then, so the next poll may
            follow a held one at once.
        """
        idle = count < asked
        if idle is not known.idle:
            known.idle = idle
            known.group.idle += 1 if idle else -1
        if known.socket is not None:
            known.socket.polled(idle)
        if known.hinted_at is not None and known.hinted_at < began:
            known.hinted_at = None
        if count:
            known.empty_at = None
        elif asked:
            known.empty_at = began
            known.puts = known.group.puts
        if asked and count == asked:
            return 0.0  # there may be more
        if not idle:
            return self._pace.interval(known.group.idle)
        now = self._clock.now()
        delay = self._pace.next_poll(known.group, known.due, began, now)
        known.due = now + delay
        return delay

    async def write_down(self) -> bool:
        """Save when workers were seen, and read what others changed; False if none was seen."""
        batch, self._unwritten = self._unwritten, {}
        for start in range(0, len(batch), BATCH):
            now = self._clock.now()
            seen = [
                WorkerSeen(known.id, max(now - known.seen_at, 0.0), known.address)
                for known in list(batch.values())[start : start + BATCH]
            ]
            try:
                gone = await self._state.seen(seen)
            except BaseException:
                self._unwritten = {**batch, **self._unwritten}
                raise
            for worker_id in gone:
                self._forget(worker_id, "unregistered elsewhere")
            for row in (await self._state.workers([each.worker_id for each in seen])).values():
                known = self._known.get(row.id)
                if known is None:
                    continue
                if _ends_sooner(row, known.row):  # its next request is refused with the reason
                    self._forget(row.id, TOKEN_INVALID)
                    continue
                if row.capabilities == known.row.capabilities:  # shared by thousands of workers
                    row = replace(row, capabilities=known.row.capabilities)
                known.row = row
        await self._note_silent()
        self._drop_silent()
        return bool(batch)

    async def _note_silent(self) -> None:
        """Report workers that were not seen for the timeout, here or by another controller."""
        now = self._clock.now()
        late = [
            known
            for known in self
            if not (known.silent or known.socket)
            and now - max(known.seen_at, self.resumed_at) > self._timeout
        ]
        for start in range(0, len(late), BATCH):
            rows = await self._state.workers([known.id for known in late[start : start + BATCH]])
            for known in late[start : start + BATCH]:
                row = rows.get(known.id)
                if row is None:
                    self._forget(known.id, "unregistered elsewhere")
                elif not self.is_online(row):
                    known.silent = True
                    silent = self._clock.epoch() - self.last_seen(row)
                    self._events.emit(WorkerSilent(self._source, row.id, row.name, silent))

    def _drop_silent(self) -> None:
        now = self._clock.now()
        for known in self:
            silent = now - known.seen_at
            if silent > self._timeout and known.idle:
                known.idle = False
                known.group.idle -= 1
            if silent > 2 * self._timeout and known.waiting is None and known.socket is None:
                self._forget(known.id, "silent")

    # What they can take

    def group_of(self, known: KnownWorker) -> WorkerGroup:
        """The group of a worker, by the requirements that are known now."""
        if known.version != self._version:
            self._enter(known)
        return known.group

    async def read_requirements(self, force: bool = False) -> None:
        """Read the requirements of jobs, if that was not done lately."""
        now = self._clock.now()
        if not force and now - self._read_at < REQUIREMENTS_EVERY:
            return
        self._read_at, version = now, self._version
        read = {(each.kind, each.hash): each for each in await self._state.requirements()}
        if version != self._version:  # a job was put here meanwhile
            read = {**self._requirements, **read}
        if read.keys() != self._requirements.keys():
            new = [read[place] for place in read.keys() - self._requirements.keys()]
            self._requirements = read
            self._renew_waiting()
            if new:  # the hints of their jobs may have come before
                self._hints.send(1, {matching.queue_kind(n.kind, n.requires) for n in new})

    async def require(self, kind: str, requires: Mapping[str, Any]) -> None:
        """Note the requirement of a job that is put here, so that every controller knows it."""
        place = (kind, matching.hash_of(requires) if requires else "")
        if await self._state.require(*place, requires):
            self._hints.broadcast(REQUIREMENTS)
        if place not in self._requirements:
            self._requirements[place] = Requirement(place[1], kind, requires)
            self._renew_waiting()

    async def learn_kinds(self, queue: Queue) -> None:
        """Note the requirements of all jobs in the queue.

        Some may be missing: the state was lost or replaced, another controller has deleted what
        its own queue did not use, or the job was put without a controller.
        """
        version, names = self._version, await queue.stats_by_kind()
        for name in names:
            for info in await queue.jobs(kind=name, limit=1):
                terms = JobTerms.of(info.job)
                await self.require(terms.kind, terms.requires)
        if version != self._version:
            self._hints.send(1, names)

    def required(self, kind: str) -> list[Requirement]:
        """The known requirements of jobs of a kind."""
        return [each for each in self._requirements.values() if each.kind == kind]

    def notice_put(self, kind: str | None = None) -> None:
        """A job of this kind in the queue (None: of any kind) was put here."""
        for group in list(self._groups.values()):
            if kind is None or kind in group.kinds:
                group.notice_put()

    async def waiting_for(self, kind: str, requires: Mapping[str, Any]) -> str | None:
        """Why no live worker can take a ready job; None if one can."""
        return matching.waiting_for(kind, requires, await self.live())

    async def live(self) -> list[Mapping[str, Any]]:
        """The capabilities of live workers that take jobs, each distinct set once."""
        now = self._clock.now()
        if now - self._live_at < LIVE_FOR:
            return self._live
        self._live, self._live_at = await live_capabilities(self._state, self._timeout), now
        return self._live

    def _renew_waiting(self) -> None:
        """The requirements changed: so do the kinds that held polls and WebSockets wait for."""
        self._version += 1
        for known in self._known.values():
            for hint in (known.waiting, known.socket):
                if hint is not None:
                    hint.wants = self.group_of(known).kinds

    def _enter(self, known: KnownWorker) -> None:
        has = known.row.capabilities
        kinds = frozenset(
            f"{each.kind}{matching.MARK}{each.hash}" if each.hash else each.kind
            for each in self._requirements.values()
            if matching.satisfies(has, each.kind, each.requires)
        )
        group = self._groups.get(kinds)
        if group is None:
            group = self._groups[kinds] = WorkerGroup(kinds)
        known.version = self._version
        if group is not known.group:
            known.group.idle -= known.idle
            known.group = group
            known.empty_at = None  # its new group may have jobs
            group.idle += known.idle

    # Remembering

    def _remember(self, row: WorkerRow) -> KnownWorker:
        known = self._known.get(row.id)
        if known is None:
            silent = max(self._clock.epoch() - row.last_seen, 0.0)
            known = KnownWorker(row, self._nobody, self._clock.now() - silent, row.address)
            known.silent = silent > self._timeout
            self._known[row.id] = known
        return known

    def _forget(self, worker_id: str, why: str) -> None:
        known = self._known.pop(worker_id, None)
        self._unwritten.pop(worker_id, None)
        self._live_at = -LIVE_FOR
        if known is None:
            return
        known.group.idle -= known.idle
        known.group = WorkerGroup(frozenset())  # a poll under way must not count in a real group
        if known.waiting is not None:
            waiting, known.waiting = known.waiting, None
            waiting.give()  # the held poll takes no job
        if known.socket is not None:
            known.socket.close_soon()
        self._events.emit(WorkerGone(self._source, worker_id, why, known.row.name))


def _ends_sooner(row: WorkerRow, before: WorkerRow) -> bool:
    """True if another controller revoked the token that it registered with."""
    until = row.token_expires_at
    return until is not None and until < (before.token_expires_at or math.inf)
