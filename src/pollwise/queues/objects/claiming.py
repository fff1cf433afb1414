"""Claiming: one LIST, one write per unit, one read per body."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

from pollwise.queues.base import ClaimRequest
from pollwise.queues.objects.body import PutBody, StoredJob
from pollwise.queues.objects.chain import (
    ChainEntry,
    ClaimUnit,
    ListedObject,
    RootObject,
    lapsed_worker,
    read_roots,
    token_of,
)
from pollwise.queues.objects.contention import Chosen, Contention
from pollwise.queues.objects.core import ACT_WITHIN, GRACE, TICK, Core
from pollwise.queues.objects.markers.notes import KindChoice, ObjectNotes
from pollwise.queues.objects.names import (
    EntryKind,
    EntryMeaning,
    rounded_lease,
    write_entry,
)
from pollwise.queues.objects.store import PAGE
from pollwise.runtime.jobs import LAPSES_ALONE, Claim

#: How many times one call tries another unit after it lost a race.
TRIES = 3
#: The maximum number of bodies that one claim reads before it claims: those of mixed puts.
BODIES = 64
#: How long a listing can be used for further claims, in seconds.
LISTING_FRESH = 1.0
#: With more than a page of ready jobs, every n-th claim also lists the delayed ones.
DUE_EVERY = 4
#: The number of claims remembered; beyond it, old ones are forgotten.
HELD_MAX = 1024
#: A claim is old when its lease ended this many seconds ago.
STRAGGLE = 600.0


@dataclass(slots=True)
class HeldUnit:
    """A unit that this handle holds under a lease, or changes as a guest: without one."""

    root: RootObject
    start: int
    left: set[int]
    claim: int  # the number of the CLAIM entry
    top: int  # the number of the newest entry
    attempt: int
    run_at: float | None
    until: float  # by the loop's clock: the lease is surely valid before that
    body: PutBody
    worker: str | None = None
    claimed_at: float | None = None
    path: Sequence[ChainEntry] = ()  # the entries before its claim
    unsure: bool = False  # found in a listing, not claimed by this handle
    guest: bool = False  # nobody holds it: this handle appends only right after what it has seen
    lost: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    names: list[str] = field(default_factory=list)  # the entries of its chain
    doubt: tuple[str, EntryMeaning, dict[str, Any], bytes] | None = (
        None  # a write whose outcome is unknown
    )
    pending: list[dict[str, Any]] = field(default_factory=list)  # jobs that ended, yet to be moved
    renews: list[tuple[float, str]] = field(default_factory=list)
    progress: dict[str, list[Any]] = field(default_factory=dict)  # of its jobs, by index
    asked: set[int] = field(default_factory=set)  # the jobs that are asked to cancel
    suspect: bool = False  # its last leases ran out, so it was claimed alone
    lapsed_from: str = ""  # the worker whose lease ran out just before

    @property
    def token(self) -> int:
        return token_of(self.root, self.claim)

    def id_of(self, index: int) -> str:
        return self.root.put.id_of(index)


@dataclass(slots=True)
class LiveListing:
    """The result of a LIST.

    units: those that may be claimed, in claim order. suspects: those to claim alone.
    due: when the next unit may be claimed. roots: all of them, for cleaning up.
    lapsed: units whose lease ended after a request to cancel.
    """

    seen_at: float
    units: list[ClaimUnit] = field(default_factory=list)
    suspects: list[ClaimUnit] = field(default_factory=list)
    due: float | None = None
    roots: list[RootObject] = field(default_factory=list)
    lapsed: list[ClaimUnit] = field(default_factory=list)
    choice: KindChoice = field(default_factory=lambda: KindChoice(None))


class UnitClaimer:
    def __init__(self, core: Core) -> None:
        self._core = core
        self.held: dict[tuple[str, int], HeldUnit] = {}
        self.contention: Contention = core.contention
        self._hidden = 0
        self._spare: tuple[LiveListing, Sequence[str] | None] | None = None
        self.notes: ObjectNotes = ObjectNotes(core)
        self.lost_races: int = 0
        #: Ends jobs whose lease ended after a request to cancel; set by the queue.
        self.end_lapsed: Callable[[list[ClaimUnit], float], Awaitable[None]]

    async def claim(self, asked: ClaimRequest) -> tuple[list[Claim], LiveListing]:
        limit, kinds = asked.limit, asked.kinds
        listing = self._spare_listing(limit, kinds) or await self.list_live(limit, kinds)
        clock, contention = self._core.clock, self.contention
        claims: list[Claim] = []
        if listing.suspects:
            claims = await self._claim_suspect(listing, asked)
            if claims:
                return claims, listing
        units, lost_tries = listing.units, 0
        shares = 1  # grows while this call meets no other worker
        while len(claims) < limit and clock.now() - listing.seen_at < ACT_WITHIN:
            chosen, units = contention.choose(units, limit - len(claims), shares)
            if not chosen:
                break
            at_once = contention.undisputed and not (claims and contention.any)
            began = clock.now()
            took, rests, lost = await self._take(chosen, at_once, asked, listing.choice)
            claims += took
            units = [*rests, *units]
            lost_tries += lost
            shares *= 2
            if lost and (claims or lost_tries == TRIES):
                break
            if (
                units
                and len(claims) < limit
                and contention.any
                and not contention.room_among(units)
            ):
                # The listing does not show what the others took meanwhile.
                if lost:
                    await clock.sleep(contention.pause(clock.now() - began))
                listing = await self.list_live(limit, kinds)
                units = listing.units
        if lost_tries and units and not claims:
            listing.due = self._core.time.now() + LISTING_FRESH  # jobs are left
        spare = LiveListing(listing.seen_at, units, choice=listing.choice)
        self._spare = None if lost_tries else (spare, kinds)
        return sorted(self._live(claims), key=self._order), listing

    async def _claim_suspect(self, listing: LiveListing, asked: ClaimRequest) -> list[Claim]:
        """One job whose last leases ran out, alone; an empty list if another worker was faster.

        If there are rivals, a random one, so that handles that claim at once try different jobs.
        """
        suspects = sorted(listing.suspects, key=self._rank)
        first = self.contention.rng.choice(suspects) if self.contention.any else suspects[0]
        asked = replace(asked, ahead=False)
        taken, _, _ = await self._take([(first, 1)], True, asked, listing.choice)
        self._spare = None
        return self._live(taken)

    def _spare_listing(self, limit: int, kinds: Sequence[str] | None) -> LiveListing | None:
        """The units left over from the last listing, if it is recent and they are enough: so a
        backlog is not listed again for every claim."""
        spare, self._spare = self._spare, None
        if spare is None or spare[1] != kinds or self.contention.any:
            return None
        listing = spare[0]
        if self._core.clock.now() - listing.seen_at > LISTING_FRESH:
            return None
        return listing if sum(unit.left for unit in listing.units) >= limit else None

    def relist(self) -> None:
        """Forget the last listing: a job was put that may come first."""
        self._spare = None

    def _live(self, claims: list[Claim]) -> list[Claim]:
        """The claims that are still ours: after a slow call others may have the jobs."""
        now = self._core.clock.now()
        live = []
        for claim in claims:
            if self.held[claim.job.id, claim.token].until > now:
                live.append(claim)
            else:
                del self.held[claim.job.id, claim.token]
        return live

    def _order(self, claim: Claim) -> tuple[Any, ...]:
        held = self.held[claim.job.id, claim.token]
        index = int(claim.job.id.rpartition(".")[2])
        since = held.run_at
        if since is None:
            since = since_put(held.root, held.body[index])
        return (-claim.job.priority, since, *held.root.put.place(index))

    # Listing

    async def list_live(self, limit: int, kinds: Sequence[str] | None) -> LiveListing:
        """A listing after which no lapsed job is left that was asked to cancel."""
        listing = await self._list(limit, kinds)
        if listing.lapsed:
            await self.end_lapsed(listing.lapsed, listing.seen_at)
            listing = await self._list(limit, kinds)
        return listing

    async def _list(self, limit: int, kinds: Sequence[str] | None) -> LiveListing:
        """List until there are enough units to choose from: usually one page, one request."""
        core = self._core
        enough = limit + (self.contention.places if self.contention.any else 0)
        listing = LiveListing(core.clock.now())
        begun: list[ListedObject] = []  # the last folder of a page, which may continue on the next
        async for page in core.pages("live"):
            if not listing.roots:
                self.notes.saw(page)
                listing.choice = self.notes.choice(kinds)
            items = [*begun, *page]
            begun = []
            if len(page) >= PAGE:
                last = items[-1].name.rpartition("/")[0] + "/"
                while items and items[-1].name.startswith(last):
                    begun.insert(0, items.pop())
            await self._read(listing, read_roots(items))
            if sum(unit.left for unit in listing.units) >= enough:
                if len(page) >= PAGE:
                    await self._read_due(listing)
                break
        listing.units.sort(key=self._rank)
        return listing

    async def _read_due(self, listing: LiveListing) -> None:
        """List the delayed jobs now and then: a long backlog hides them, because they are listed
        after it."""
        self._hidden += 1
        if self._hidden % DUE_EVERY:
            return
        seen = {root.path for root in listing.roots}
        async for page in self._core.pages("live", after="1"):
            roots = [root for root in read_roots(page) if root.path not in seen]
            await self._read(listing, roots[:-1] if len(page) >= PAGE else roots)
            break

    async def _read(self, listing: LiveListing, roots: list[RootObject]) -> None:
        """Add the units of these roots to a listing."""
        core, choice = self._core, listing.choice
        listing.roots += roots
        tags, unsure = choice.tags(), choice.unsure_tags()
        wanted = [
            root
            for root in roots
            if root.item is not None
            and not root.void
            and (tags is None or (tags and root.put.mixed) or root.put.tag in tags)
        ]
        mixed = [
            root
            for root in wanted
            if (root.put.mixed or root.put.tag in unsure) and core.cache.body(root.path) is None
        ]
        for done in await core.all(core.body(root) for root in mixed[:BODIES]):
            if isinstance(done, BaseException):
                raise done
        now, surely = core.time.now() + TICK, core.time.surely() + TICK
        for root in roots:
            if root.asked and root.item is not None:
                for unit in await core.units(root):
                    if unit.asked(core.cache.content) and self.opens(unit, now, surely)[1]:
                        listing.lapsed.append(unit)
        for root in wanted:
            for unit in await self._units(root):
                if unit.ended or not self._wants(unit, choice, unsure):
                    continue
                opens, over = self.opens(unit, now, surely)
                if over and unit.asked(core.cache.content):
                    continue
                if over and unit.guarded_at is not None:
                    opens = unit.guarded_at + core.time.grain + GRACE
                    over = opens <= surely
                if over and unit.lapses >= LAPSES_ALONE:
                    listing.suspects.append(unit)
                elif over:
                    listing.units.append(unit)
                elif listing.due is None or opens < listing.due:
                    listing.due = opens

    async def _units(self, root: RootObject) -> list[ClaimUnit]:
        """The units of a root; in rare cases an entry has to be read for that."""
        core = self._core
        units = core.seen_units(root) or []
        while unread := [unit.unread for unit in units if unit.unread is not None]:
            for name in unread:
                if await core.content(name) is None:
                    return []  # it is being deleted
            units = core.seen_units(root) or []
        return units

    def opens(self, unit: ClaimUnit, now: float, surely: float) -> tuple[float, bool]:
        """When a unit may be claimed, by the store's clock, and whether that is now."""
        if unit.free_at is not None:
            # A lease must surely be over; for a delay the likely time is good enough.
            return unit.free_at, unit.free_at <= (surely if unit.claim else now)
        due = self._due(unit)
        return (0.0, True) if due is None else (due, due <= now)

    def _due(self, unit: ClaimUnit) -> float | None:
        body = self._core.cache.body(unit.root.path)
        if body is not None:
            job = body[unit.start]
            return job.run_at if job.delayed else None
        return None if unit.root.only is not None else unit.root.put.due

    def _wants(self, unit: ClaimUnit, choice: KindChoice, unsure: set[str]) -> bool:
        if choice.kinds is None and not unsure:
            return True
        body = self._core.cache.body(unit.root.path)
        if body is None:  # the claim checks it
            return unit.root.put.tag not in unsure
        return choice.wants(body[unit.start].kind)

    def _rank(self, unit: ClaimUnit) -> tuple[Any, ...]:
        return (-priority_of(self._core, unit), since_of(self._core, unit),
                *unit.root.put.place(unit.start))  # fmt: skip

    # Taking

    async def _take(
        self, chosen: Chosen, at_once: bool, asked: ClaimRequest, choice: KindChoice
    ) -> tuple[list[Claim], list[ClaimUnit], bool]:
        """The claims, what they left of slices, and whether any race was lost."""
        core = self._core
        parts = [chosen] if at_once else [chosen[:1], chosen[1:]]
        won, rests, lost, errors = await self._win(parts, asked)
        roots = {held.root.path: held.root for held in won}
        bodies: dict[str, PutBody | BaseException | None] = dict(
            zip(
                roots,
                await core.all(core.body(root, afresh=True) for root in roots.values()),
                strict=True,
            )
        )
        claims: list[Claim] = []
        for held in won:
            body = bodies[held.root.path]
            if isinstance(body, BaseException):
                errors.append(body)  # its lease runs out
            elif body is None:  # the put had ended and was deleted: remove our entry
                core.throw_away([], [held.root.entry_name(held.start, held.top)])
                lost += 1
            elif not choice.wants(body[held.start].kind):
                await self._hand_back(held)  # two kinds share a tag
            else:
                held.body = body
                claims += self.register(held, asked.worker)
        self.lost_races += lost
        if lost:
            self.contention.lost()
        elif not errors:
            self.contention.won()
        if not claims:
            for error in errors:
                if isinstance(error, Exception):
                    raise error
        return claims, rests, bool(lost or errors)

    async def _win(
        self, parts: Sequence[Chosen], asked: ClaimRequest
    ) -> tuple[list[HeldUnit], list[ClaimUnit], int, list[BaseException]]:
        """Try one part after the other, until a race is lost.

        Returns the units won, the rests of their slices, the number lost, and the errors.
        """
        won: list[HeldUnit] = []
        rests: list[ClaimUnit] = []
        errors: list[BaseException] = []
        lost = 0
        for part in parts:
            results = await self._core.all(
                self._take_unit(unit, count, asked) for unit, count in part
            )
            for (unit, count), result in zip(part, results, strict=True):
                if isinstance(result, BaseException):
                    errors.append(result)
                elif not result:
                    lost += 1
                else:
                    won += result
                    if rest := _rest(unit, count):
                        rests.append(rest)
            if lost or errors:
                break
        return won, rests, lost, errors

    async def _take_unit(self, unit: ClaimUnit, count: int, asked: ClaimRequest) -> list[HeldUnit]:
        """Claim a unit, or its first jobs; an empty list if another worker was faster."""
        core = self._core
        name = core.unread(unit)
        if name is not None and await core.content(name) is None:
            return []  # it is being deleted
        left = unit.jobs(core.cache.content)
        if left is None:
            return []
        if unit.top == 0 or count == unit.left:
            return await self._enter(unit, left[:count], asked, unit.top)
        # Part of a unit that was claimed before: from here each of its jobs has its own chain.
        burst = write_entry(EntryMeaning(EntryKind.BURST), {"left": left})
        if not await core.create(unit.root.entry_name(unit.start, unit.top + 1), burst):
            return []
        parts = await core.all(
            self._enter(unit, [index], asked, unit.top + 1, start=index) for index in left[:count]
        )
        return [held for part in parts if isinstance(part, list) for held in part]

    async def _enter(
        self, unit: ClaimUnit, jobs: list[int], asked: ClaimRequest, top: int,
        start: int | None = None,
    ) -> list[HeldUnit]:  # fmt: skip
        core = self._core
        start = unit.start if start is None else start
        worker, lease = asked.worker, rounded_lease(asked.lease)
        meaning = EntryMeaning(EntryKind.CLAIM, lease, len(jobs), asked.ahead)
        entry = write_entry(meaning, {"worker": worker})
        pending = await core.duty(unit.moving if start == unit.start else None)
        sent, claimed_at = core.clock.now(), core.time.now()
        name = unit.root.entry_name(start, top + 1)
        if not await core.create(name, entry):
            return []
        before = [e.name for e in unit.root.chains.get(start, ())]
        held = HeldUnit(
            unit.root, start, set(jobs), top + 1, top + 1, unit.next_attempt, unit.run_at,
            sent + lease, _UNREAD, worker, claimed_at, unit.path, names=[*before, name],
            pending=pending, suspect=unit.lapses >= LAPSES_ALONE,
        )  # fmt: skip
        if unit.lapses:
            held.lapsed_from = await lapsed_worker(unit, core.content)
        return [held]

    async def _hand_back(self, held: HeldUnit) -> None:
        entry = write_entry(EntryMeaning(EntryKind.BACK_FREE), {})
        await self._core.create(held.root.entry_name(held.start, held.top + 1), entry)

    def register(self, held: HeldUnit, worker: str) -> list[Claim]:
        core = self._core
        now = core.clock.now()
        until = core.clock.epoch() + (held.until - now)
        if len(self.held) > HELD_MAX:  # if one of them is settled later, the store is asked
            self.held = {key: h for key, h in self.held.items() if h.until > now - STRAGGLE}
        claims = []
        for index in sorted(held.left):
            job = held.body[index].job(core.name, held.attempt, held.run_at)
            size = held.body.size // max(len(held.body.jobs), 1)
            about = held.suspect, size, held.lapsed_from
            claims.append(Claim(job, held.token, worker, until, "", *about))
            self.held[job.id, held.token] = held
        return claims

    def forget(self, held: HeldUnit, indexes: Iterable[int]) -> None:
        for index in indexes:
            self.held.pop((held.id_of(index), held.token), None)


_UNREAD = PutBody((), 0)


def _rest(unit: ClaimUnit, count: int) -> ClaimUnit | None:
    """The rest of a fresh slice after our claim. Only the winner knows where it starts."""
    if unit.top or count == unit.left:
        return None
    rest = copy(unit)
    rest.start, rest.left = unit.start + count, unit.left - count
    return rest


def priority_of(core: Core, unit: ClaimUnit) -> int:
    body = core.cache.body(unit.root.path)
    return unit.root.put.priority if body is None else body[unit.start].priority


def since_of(core: Core, unit: ClaimUnit) -> float:
    """The time since which a unit is due."""
    if unit.run_at is not None:
        return unit.run_at
    body = core.cache.body(unit.root.path)
    return since_put(unit.root, None if body is None else body[unit.start])


def since_put(root: RootObject, job: StoredJob | None) -> float:
    """The time since which a job that never came back is due; equal with and without its body."""
    if root.only is not None:
        return 0.0 if root.item is None else root.item.written
    put = root.put
    due = put.due if job is None else (job.run_at if job.delayed else None)
    return put.stamp / 1e6 if due is None else round(due * 1e6) / 1e6
