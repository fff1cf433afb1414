"""The registry of workers: who is there, what each can take, and what it is told.

Most polls find nothing, so what they need is in memory: the worker, its crowd, when it was seen.
Who was seen is written down in batches, and what other controllers changed meanwhile is read in
the same turn; both ride on contacts. A registry whose workers are silent does nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from pollwise.controller.options import ControllerOptions
from pollwise.controller.state.base import ControllerState, new_id
from pollwise.controller.state.values import JobRow, Requirement, Run, Seen, WorkerRow
from pollwise.controller.workers import matching
from pollwise.controller.workers.groups import Crowd, Pace
from pollwise.errors import JobError
from pollwise.runtime.clock import Clock
from pollwise.runtime.events import Events, WorkerGone, WorkerRegistered
from pollwise.runtime.hints import Hint
from pollwise.runtime.jobs import checked_name

#: How often who was seen is written down, and what others changed is read, in seconds.
WRITE_EVERY = 10.0
#: How often requirements are read anew, for jobs that another controller took in.
REQUIREMENTS_EVERY = 5.0
#: How long it is taken for granted which capabilities live workers have, in seconds.
LIVE_FOR = 2.0
#: How long a worker's runs are taken as known, in seconds: it may have polled another controller.
RUNS_FRESH = 30.0
#: The most workers in one statement.
BATCH = 1000
#: Why a worker is gone whose token holds no longer.
TOKEN_VOID = "its token holds no longer"  # noqa: S105
#: The most handlers that a worker may say it has.
SLOTS_MAX = 1000


class Pushed(Protocol):
    """The open WebSocket of a worker, as the registry sees it."""

    wants: frozenset[str] | None

    def polled(self, idle: bool) -> None:
        """Its worker polled; does it look for a job?"""

    def close_soon(self) -> None:
        """Its worker is gone."""


class Known:
    """A worker as this controller remembers it.

    seen_at: when it was last heard of, in the event loop's time.
    empty_at: when its last poll came back empty; None if it found something.
    news: what its crowd had heard when that poll came back.
    hinted: it was told to poll, so its next poll is not too soon.
    idle: it looks for a job.
    runs: what it has, as read at `runs_at`.
    renewed: when this controller renewed their leases, and until when by the store's clock.
    waiting: the hint of the poll of its that is held now.
    pushes: the WebSocket of its that is open now.
    """

    __slots__ = (
        "address", "crowd", "empty_at", "hinted", "idle", "news", "pushes", "renewed", "row",
        "runs", "runs_at", "seen_at", "version", "waiting",
    )  # fmt: skip

    def __init__(self, row: WorkerRow, crowd: Crowd, now: float) -> None:
        self.row = row
        self.crowd = crowd
        self.version = -1
        self.seen_at = now
        self.empty_at: float | None = None
        self.news = -1
        self.hinted = False
        self.idle = False
        self.address = row.address
        self.runs: Mapping[str, Run] = _NO_RUNS
        self.runs_at = -RUNS_FRESH
        self.renewed: Mapping[str, tuple[float, float]] = _NONE_RENEWED
        self.waiting: Hint | None = None
        self.pushes: Pushed | None = None

    @property
    def id(self) -> str:
        return self.row.id


_NO_RUNS: Mapping[str, Run] = {}
_NONE_RENEWED: Mapping[str, tuple[float, float]] = {}


class Registry:
    """The workers of a controller, and what they can take."""

    def __init__(
        self,
        state: ControllerState,
        options: ControllerOptions,
        clock: Clock,
        events: Events,
        source: str,
    ) -> None:
        self._state = state
        self._options = options
        self._clock = clock
        self._events = events
        self._source = source
        self._timeout = options.span("heartbeat_timeout")
        self._pace = Pace(options)
        self._known: dict[str, Known] = {}
        self._unwritten: dict[str, Known] = {}
        self._crowds: dict[frozenset[str], Crowd] = {}
        self._nobody = Crowd(frozenset())
        self._requirements: dict[tuple[str, str], Requirement] = {}
        self._version = 0
        self._read_at = -REQUIREMENTS_EVERY
        self._live: list[Mapping[str, Any]] = []
        self._live_at = -LIVE_FOR

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[Known]:
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
        """Keep a new worker; what it says of itself is checked first."""
        name = checked_name(name, "name")
        capabilities = matching.checked_capabilities(capabilities)
        if isinstance(slots, bool) or not isinstance(slots, int) or not 1 <= slots <= SLOTS_MAX:
            raise JobError(f"slots = {slots!r} must be a whole number from 1 to {SLOTS_MAX}")
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
        self._remember(row).runs_at = self._clock.now()  # a new worker has no run
        self._live_at = -LIVE_FOR
        self._events.emit(WorkerRegistered(self._source, row.id, row.name))
        return row

    async def get(self, worker_id: str) -> Known | None:
        """A worker, from memory if it was heard of lately."""
        known = self._known.get(worker_id)
        if known is None:
            row = await self._state.worker(worker_id)
            known = None if row is None else self._remember(row)
        return known

    def remembered(self, worker_id: str) -> Known | None:
        return self._known.get(worker_id)

    async def unregister(self, worker_id: str) -> list[Run] | None:
        """Forget a worker; the runs it had, to be given back. None if there is no such worker."""
        runs = await self._state.remove_worker(worker_id)
        self._forget(worker_id, "unregistered")
        return runs

    def refuse(self, who: str) -> None:
        """The token that workers registered with was revoked: forget those that are in memory."""
        for known in self:
            if known.row.registered_by == who:
                self._forget(known.id, TOKEN_VOID)

    async def drain(self, worker_id: str, drain: bool) -> WorkerRow | None:
        row = await self._state.set_drain(worker_id, drain)
        known = self._known.get(worker_id)
        if row is not None and known is not None:
            known.row = row
        self._live_at = -LIVE_FOR
        return row

    # Seeing

    def seen(self, known: Known, address: str = "", now: float | None = None) -> None:
        """A worker was heard of; that is written down within `WRITE_EVERY`."""
        known.seen_at = self._clock.now() if now is None else now
        if address:
            known.address = address
        self._unwritten[known.row.id] = known

    def is_online(self, row: WorkerRow) -> bool:
        """Was it heard of within the time-out, here or by another controller?"""
        known = self._known.get(row.id)
        if known is not None and self._clock.now() - known.seen_at < self._timeout:
            return True
        return self._clock.epoch() - row.last_seen < self._timeout

    def last_seen(self, row: WorkerRow) -> float:
        known = self._known.get(row.id)
        if known is None:
            return row.last_seen
        return max(row.last_seen, self._clock.epoch() - (self._clock.now() - known.seen_at))

    def found(self, known: Known, count: int, asked: int, began: float) -> float:
        """A poll found so many of so many: note it, and say after how long to poll again.

        began: when the poll came in. From then on the least interval counts, so that a poll that
        was held may be followed by the next at once.
        """
        idle = count < asked
        if idle is not known.idle:
            known.idle = idle
            known.crowd.idle += 1 if idle else -1
        if known.pushes is not None:
            known.pushes.polled(idle)
        known.hinted = False
        if count:
            known.empty_at = None
        elif asked:
            known.empty_at = began
            known.news = known.crowd.news
        if asked and count == asked:
            return 0.0  # there may be more
        return self._pace.suggested(known.crowd.idle)

    async def write_down(self) -> bool:
        """Write who was seen, and read what others changed about them; False if nobody was."""
        batch, self._unwritten = self._unwritten, {}
        for ids in _batches(batch):
            now = self._clock.now()
            try:
                gone = await self._state.seen(
                    [
                        Seen(each, max(now - batch[each].seen_at, 0.0), batch[each].address)
                        for each in ids
                    ]
                )
            except BaseException:
                self._unwritten = {**batch, **self._unwritten}
                raise
            for worker_id in gone:
                self._forget(worker_id, "unregistered elsewhere")
            for row in (await self._state.workers(ids)).values():
                known = self._known.get(row.id)
                if known is not None and _ends_sooner(row, known.row):
                    self._forget(row.id, TOKEN_VOID)  # whoever asks is looked up, and told why
                elif known is not None:
                    known.row = (
                        row
                        if row.capabilities != known.row.capabilities
                        else _as(row, known.row.capabilities)
                    )
        self._drop_silent()
        return bool(batch)

    def _drop_silent(self) -> None:
        now = self._clock.now()
        for known in list(self._known.values()):
            silent = now - known.seen_at
            if silent > self._timeout and known.idle:
                known.idle = False
                known.crowd.idle -= 1
            if silent > 2 * self._timeout and known.waiting is None and known.pushes is None:
                self._forget(known.id, "silent")

    # What they can take

    def crowd_of(self, known: Known) -> Crowd:
        """The crowd of a worker, by what is known to be required now."""
        if known.version != self._version:
            self._enter(known)
        return known.crowd

    async def read_requirements(self, force: bool = False) -> None:
        """Read what jobs require, if that was not done lately."""
        now = self._clock.now()
        if not force and now - self._read_at < REQUIREMENTS_EVERY:
            return
        self._read_at = now
        read = {(each.kind, each.hash): each for each in await self._state.requirements()}
        if read.keys() != self._requirements.keys():
            self._requirements = read
            self._renew_waiting()

    def require(self, row: JobRow) -> None:
        """A job came in here: its requirement is known from now on."""
        place = (row.kind, row.requires_hash)
        if place not in self._requirements:
            self._requirements[place] = Requirement(row.requires_hash, row.kind, row.requires)
            self._renew_waiting()

    def heard_news(self, kind: str | None = None) -> None:
        """A job of this kind in the queue was put here; of any, when None."""
        for crowd in self._crowds.values():
            if kind is None or kind in crowd.kinds:
                crowd.heard_news()

    async def waiting_for(self, row: JobRow) -> str | None:
        """Why a queued job cannot be taken by anybody who is live; None when it can."""
        return matching.waiting_for(row.kind, row.requires, await self.live())

    async def live(self) -> list[Mapping[str, Any]]:
        """The capabilities of live workers that take jobs, each different set once."""
        now = self._clock.now()
        if now - self._live_at < LIVE_FOR:
            return self._live
        found: dict[str, Mapping[str, Any]] = {}
        after: str | None = None
        while True:
            page = await self._state.list_workers(
                live=True, live_s=self._timeout, drain=False, limit=BATCH, after=after
            )
            for row in page:
                found.setdefault(matching.hash_of(row.capabilities), row.capabilities)
            if len(page) < BATCH:
                break
            after = page[-1].id
        self._live, self._live_at = list(found.values()), now
        return self._live

    def _renew_waiting(self) -> None:
        """What can be asked for changed: whoever waits, waits for more or for less now."""
        self._version += 1
        for known in self._known.values():
            for hint in (known.waiting, known.pushes):
                if hint is not None:
                    hint.wants = self.crowd_of(known).kinds

    def _enter(self, known: Known) -> None:
        has = known.row.capabilities
        kinds = frozenset(
            f"{each.kind}{matching.MARK}{each.hash}" if each.hash else each.kind
            for each in self._requirements.values()
            if matching.satisfies(has, each.kind, each.requires)
        )
        crowd = self._crowds.get(kinds)
        if crowd is None:
            crowd = self._crowds[kinds] = Crowd(kinds)
        known.version = self._version
        if crowd is not known.crowd:
            self._leave_crowd(known)
            known.crowd = crowd
            known.empty_at = None  # that said nothing about what it can take now
            crowd.members += 1
            crowd.idle += known.idle

    def _leave_crowd(self, known: Known) -> None:
        crowd = known.crowd
        crowd.members -= 1
        crowd.idle -= known.idle
        if crowd.members <= 0 and crowd is not self._nobody:
            self._crowds.pop(crowd.kinds, None)

    # Remembering

    def _remember(self, row: WorkerRow) -> Known:
        known = self._known.get(row.id)
        if known is None:
            known = self._known[row.id] = Known(row, self._nobody, self._clock.now())
            self._nobody.members += 1
        return known

    def _forget(self, worker_id: str, why: str) -> None:
        known = self._known.pop(worker_id, None)
        self._unwritten.pop(worker_id, None)
        self._live_at = -LIVE_FOR
        if known is None:
            return
        self._leave_crowd(known)
        known.crowd = Crowd(frozenset())  # a poll that is under way still counts in none of ours
        if known.waiting is not None:
            waiting, known.waiting = known.waiting, None
            waiting.give()  # it takes no job for who is gone
        if known.pushes is not None:
            known.pushes.close_soon()
        self._events.emit(WorkerGone(self._source, worker_id, why))


def _batches(known: Mapping[str, Known]) -> Iterable[Sequence[str]]:
    ids = iter(known)
    while batch := list(itertools.islice(ids, BATCH)):
        yield batch


def _ends_sooner(row: WorkerRow, before: WorkerRow) -> bool:
    """Was it registered with a token that was revoked since, elsewhere?"""
    until = row.token_expires_at
    return until is not None and until < (before.token_expires_at or math.inf)


def _as(row: WorkerRow, capabilities: Mapping[str, Any]) -> WorkerRow:
    """The row with capabilities that are in memory already: thousands of workers share them."""
    from dataclasses import replace

    return replace(row, capabilities=capabilities)
