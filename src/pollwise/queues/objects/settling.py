"""Settling, renewing and cleaning up: everything that the holder of a unit appends to its chain."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from pollwise.errors import StoreError, StoreUnavailable
from pollwise.queues.objects.body import PutBody, write_record
from pollwise.queues.objects.chain import ClaimUnit, RootObject
from pollwise.queues.objects.claiming import HeldUnit, UnitClaimer, pending_of
from pollwise.queues.objects.core import ACT_WITHIN, GRACE, Core
from pollwise.queues.objects.names import (
    EntryKind,
    EntryMeaning,
    read_id,
    rounded_delay,
    rounded_lease,
    write_entry,
)
from pollwise.runtime.jobs import Claim, Settlement

#: Entries that have a successor are deleted at this age, in seconds.
STALE = 2 * GRACE
#: A chain of this many entries is summed up when a job is given back; and which entries can be.
LONG_CHAIN = 24
SUMMED = (EntryKind.CLAIM, EntryKind.RENEW, EntryKind.BACK, EntryKind.BACK_FREE, EntryKind.SUM)
#: Settlements of calls that failed in part are remembered for their repetition, up to this number.
THROUGH_MAX = 10_000
#: The maximum number of folders that one claim cleans up.
SWEEPS = 16


class UnitSettler:
    """keep: finished jobs are kept. unique_path: returns where the marker of a `unique` is."""

    def __init__(
        self, core: Core, claiming: UnitClaimer, keep: bool, unique_path: Callable[[str], str]
    ) -> None:
        self._core = core
        self._claiming = claiming
        self._keep = keep
        self._unique_path = unique_path
        self._ended: dict[str, set[int]] = {}  # jobs of a root that this handle ended
        self._names: dict[str, set[str]] = {}  # entries of a root that this handle knows of
        self._through: set[tuple[str, int, str]] = set()  # settled by a call that failed in part
        self._sweeping: set[str] = set()

    # Settling

    async def settle(self, settlements: list[Settlement]) -> list[str]:
        units, lost = await self._by_unit([s.claim for s in settlements])
        by_claim = {(s.claim.job.id, s.claim.token): s for s in settlements}
        for key in [key for key in by_claim if (*key, by_claim[key].action) in self._through]:
            self._through.discard((*key, by_claim[key].action))
            if key[0] in lost:
                lost.remove(key[0])
        settled: list[tuple[str, int, str]] = []

        async def one(held: HeldUnit, indexes: list[int]) -> list[str]:
            batch = {i: by_claim[held.id_of(i), held.token] for i in indexes}
            return await self._settle_unit(held, batch, settled)

        errors = []
        for result in await self._core.all(one(held, indexes) for held, indexes in units):
            if isinstance(result, BaseException):
                errors.append(result)
            else:
                lost += result
        if errors:
            # The whole call will be repeated; what is settled now must not look lost then.
            if len(self._through) > THROUGH_MAX:
                self._through.clear()
            self._through.update(settled)
            raise errors[0]
        return lost

    async def renew(self, claims: list[Claim], lease: float) -> list[str]:
        units, lost = await self._by_unit(claims)
        results = await self._core.all(
            self._renew_unit(held, indexes, lease) for held, indexes in units
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result
            lost += result
        return lost

    async def _by_unit(
        self, claims: list[Claim]
    ) -> tuple[list[tuple[HeldUnit, list[int]]], list[str]]:
        """The units that the claims belong to, and the ids of claims without a unit."""
        found: dict[int, tuple[HeldUnit, list[int]]] = {}
        lost: list[str] = []
        strangers: dict[str, list[Claim]] = {}
        for claim in claims:
            held = self._claiming.held.get((claim.job.id, claim.token))
            place = read_id(claim.job.id)
            if held is not None and place is not None:
                found.setdefault(id(held), (held, []))[1].append(place[1])
            elif place is None:
                lost.append(claim.job.id)
            else:
                strangers.setdefault(place[0].folder, []).append(claim)
        for folder, theirs in strangers.items():
            for held, claim in await self._adopt(folder, theirs):
                if held is None:
                    lost.append(claim.job.id)
                else:
                    index = int(claim.job.id.rpartition(".")[2])
                    found.setdefault(id(held), (held, []))[1].append(index)
        return list(found.values()), lost

    async def _adopt(self, folder: str, claims: list[Claim]) -> list[tuple[HeldUnit | None, Claim]]:
        """Find claims that this handle did not make, or has settled, by asking the store."""
        core = self._core
        result: list[tuple[HeldUnit | None, Claim]] = []
        units = [u for root in await core.folder(folder) for u in await core.units(root)]
        made: dict[tuple[str, int], HeldUnit] = {}
        for claim in claims:
            index = int(claim.job.id.rpartition(".")[2])
            held = None
            for unit in units:
                jobs = unit.jobs(core.cache.content) or []
                if index in jobs and unit.claim and unit.token == claim.token:
                    body = await core.body(unit.root)
                    if body is None:
                        continue
                    held = made.get((unit.root.path, unit.start))
                    if held is None:
                        if unit.moving is not None:
                            await core.content(unit.moving.name)
                        held = _held(unit, jobs, body)
                        held.until = core.clock.now() + (unit.free_at or 0.0) - core.time.at_most()
                        held.pending = pending_of(core, unit)
                        made[unit.root.path, unit.start] = held
            result.append((held, claim))
        return result

    async def _settle_unit(
        self, held: HeldUnit, batch: dict[int, Settlement], settled: list[tuple[str, int, str]]
    ) -> list[str]:
        """Settle some jobs of a unit; return the ids of those that are not ours any more.

        settled: what was settled is added to it, even if the rest fails.
        """

        def through(part: dict[int, Settlement]) -> None:
            settled.extend((held.id_of(i), held.token, s.action) for i, s in part.items())

        async with held.lock:
            if not await self._still_ours(held):
                return [held.id_of(index) for index in batch]
            ours = {index: s for index, s in batch.items() if index in held.left}
            refused = [held.id_of(index) for index in batch if index not in held.left]
            away = {i: s for i, s in ours.items() if s.action != "retry"}
            back = {i: s for i, s in ours.items() if s.action == "retry"}
            if away and not await self._send_away(held, away):
                return [held.id_of(index) for index in batch]
            through(away)
            if not back:
                return refused
            ways = {(rounded_delay(s.delay), s.counted) for s in back.values()}
            if len(ways) == 1 and set(back) == held.left:
                if await self._send_back(held, back):
                    through(back)
                else:
                    refused += [held.id_of(index) for index in back]
                return refused
            parts = await self._burst(held)
            if parts is None:
                return refused + [held.id_of(index) for index in back]
            outcomes = await self._core.all(
                self._send_back(parts[index], {index: s}) for index, s in back.items()
            )
            through({i: s for (i, s), ok in zip(back.items(), outcomes, strict=True) if ok is True})
            for index, outcome in zip(back, outcomes, strict=True):
                if isinstance(outcome, BaseException):
                    raise outcome
                if not outcome:
                    refused.append(held.id_of(index))
            return refused

    async def _renew_unit(self, held: HeldUnit, indexes: list[int], lease: float) -> list[str]:
        async with held.lock:
            if not await self._still_ours(held):
                return [held.id_of(index) for index in indexes]
            refused = [held.id_of(index) for index in indexes if index not in held.left]
            # Jobs that were claimed together are renewed together: one write for all of them.
            if held.left & set(indexes) and not await self._append_renewal(held, lease):
                return [held.id_of(index) for index in indexes]
            return refused

    async def _append_renewal(self, held: HeldUnit, lease: float) -> bool:
        core = self._core
        lease = rounded_lease(lease)
        sent = core.clock.now()
        if not await self._append(held, EntryMeaning(EntryKind.RENEW, lease), {}):
            return False
        held.until = sent + lease
        name = held.root.entry_name(held.start, held.top)
        old = [n for at, n in held.renews if at < sent - STALE]
        if len(old) >= 8:
            core.throw_away([], old)
            held.names = [name for name in held.names if name not in old]
            held.renews = [pair for pair in held.renews if pair[1] not in old]
        held.renews.append((sent, name))
        return True

    async def _send_back(self, held: HeldUnit, back: dict[int, Settlement]) -> bool:
        some = next(iter(back.values()))
        kind = EntryKind.BACK if some.counted else EntryKind.BACK_FREE
        errors = {str(i): s.error for i, s in back.items() if s.error is not None}
        content: dict[str, Any] = {"errors": errors} if errors else {}
        if len(held.names) >= LONG_CHAIN:
            kind, content["attempts"] = EntryKind.SUM, held.attempt - (not some.counted)
        if not await self._append(held, EntryMeaning(kind, rounded_delay(some.delay)), content):
            return False
        self._claiming.forget(held, held.left)
        held.lost = True
        if kind is EntryKind.SUM:
            self._shorten(held)
        return True

    def _shorten(self, held: HeldUnit) -> None:
        """Delete the entries that the newest one sums up, except those that define the jobs."""
        long_ago = self._core.time.surely() - STALE
        old = [
            entry.name
            for entry in held.root.chains.get(held.start, ())
            if entry.meaning.kind in SUMMED and entry.number > 1 and entry.written < long_ago
        ]
        if old:
            self._core.throw_away([], old)

    async def _burst(self, held: HeldUnit) -> dict[int, HeldUnit] | None:
        """Give each job left a chain of its own, under the same lease."""
        if len(held.left) == 1:
            [index] = held.left
            if index == held.start:
                return {index: held}
        if not await self._append(held, EntryMeaning(EntryKind.BURST), {"left": sorted(held.left)}):
            return None
        self._names.setdefault(held.root.path, set()).update(held.names)
        self._ended.setdefault(held.root.path, set())
        parts = {}
        for index in held.left:
            part = HeldUnit(
                held.root, index, {index}, held.claim, held.top, held.attempt, held.run_at,
                held.until, held.body, held.unsure,
                pending=held.pending if index == held.start else [],
            )  # fmt: skip
            parts[index] = part
            if (key := (held.id_of(index), held.token)) in self._claiming.held:
                self._claiming.held[key] = part
        held.left = set()
        return parts

    async def _send_away(self, held: HeldUnit, away: dict[int, Settlement]) -> bool:
        """End jobs as done or dead."""
        core = self._core
        left = held.left - set(away)
        moves: dict[str, dict[str, Any]] = {}
        for index, settlement in away.items():
            dead = settlement.action == "dead"
            if dead or self._keep:
                moves[str(index)] = {"to": settlement.action, "error": settlement.error}
            elif held.body[index].unique is not None:
                moves[str(index)] = {"to": ""}
        content: dict[str, Any] = {"left": sorted(left)}
        if moves or held.pending:
            content |= {
                "moves": moves, "attempt": held.attempt, "run_at": held.run_at,
                "since": self._since(held),
            }  # fmt: skip
        if held.pending:
            content["before"] = held.pending
        moving = "moves" in content
        sent = core.clock.now()
        if not await self._append(held, _ending(len(left), moving=moving), content):
            return False
        held.left = left
        self._claiming.forget(held, away)
        if moving:
            # The settlement is valid from here. If something fails now, the next entry or a later
            # claim of any handle finishes it.
            held.pending = [content]
            try:
                # While jobs are left, another handle may take the duty when the lease ends.
                deadline = min(sent + ACT_WITHIN, held.until if left else sent + ACT_WITHIN)
                if core.clock.now() >= deadline:
                    return True
                await self.move(held.root, held.body, content)
                if left or held.root.count > 1:
                    await self._append(held, _ending(len(left)), {"left": sorted(left)})
                held.pending = []
            except StoreError:
                return True
        self._count(held, away)
        return True

    def _since(self, held: HeldUnit) -> float:
        """The time when jobs ended: now, or as in the write whose outcome is unknown."""
        doubt = held.doubt
        if doubt and doubt[0] == held.root.entry_name(held.start, held.top + 1):
            return float(doubt[2].get("since", self._core.time.now()))
        return self._core.time.now()

    def _count(self, held: HeldUnit, away: Iterable[int]) -> None:
        """Delete a root without another request when this handle ended all its jobs."""
        path = held.root.path
        ended = self._ended.setdefault(path, set())
        ended.update(away)
        names = self._names.setdefault(path, set())
        names.update(held.names)
        if len(ended) == held.root.count:
            self._core.throw_away([path], sorted(names))
            del self._ended[path], self._names[path]
        while len(self._ended) > 1000:  # a later listing finds these
            oldest = next(iter(self._ended))
            del self._ended[oldest], self._names[oldest]

    async def move(self, root: RootObject, body: PutBody, content: dict[str, Any]) -> None:
        """Do what an entry says about ended jobs: write a record, or free their `unique`."""
        core = self._core
        for before in content.get("before", ()):
            await self.move(root, body, before)
        calls: list[Any] = []
        freed: list[str] = []
        for text, move in content["moves"].items():
            index, job = int(text), body[int(text)]
            if move["to"]:
                record = write_record(
                    job, content["attempt"], content["run_at"], move["error"], content["since"],
                    root.retried,
                )  # fmt: skip
                calls.append(core.create(core.path(move["to"], root.put.key(index)), record))
            elif job.unique is not None:
                freed.append(self._unique_path(job.unique))
        if freed:
            calls.append(core.delete(freed))
        for result in await core.all(calls):
            if isinstance(result, BaseException):
                raise result

    # Chains

    async def _still_ours(self, held: HeldUnit) -> bool:
        """True while the lease is valid, since nobody else can append; later the store is asked."""
        if held.lost:
            return False
        if self._core.clock.now() < held.until and not held.unsure:
            return True
        return await self._verify(held)

    async def _verify(self, held: HeldUnit) -> bool:
        core = self._core
        for root in await core.folder(held.root.put.folder):
            if root.path != held.root.path or root.item is None:
                continue
            for unit in await core.units(root):
                if unit.start == held.start and unit.claim == held.claim and not unit.ended:
                    held.top = unit.top
                    held.left &= set(unit.jobs(core.cache.content) or ())
                    if unit.moving is None:
                        held.pending = []
                    return True
        held.lost = True
        self._claiming.forget(held, held.left)
        return False

    async def _append(self, held: HeldUnit, meaning: EntryMeaning, content: dict[str, Any]) -> bool:
        """Append to a chain of ours; False if it is not ours any more."""
        core = self._core
        entry = write_entry(meaning, content)
        for _ in range(3):
            name = held.root.entry_name(held.start, held.top + 1)
            try:
                made = await core.create(name, entry)
            except StoreUnavailable:
                held.doubt = (name, meaning, content, entry)
                raise
            if not made and held.doubt and held.doubt[:3] == (name, meaning, content):
                made = await core.get(name) == held.doubt[3]  # written by an earlier call
            if made:
                held.top += 1
                held.names.append(name)
                if "left" in content:
                    core.cache.add_content(name, content)
                live = core.clock.now() < held.until and not held.unsure
                if live or await core.head(held.root.path) is not None:
                    return True
                core.throw_away([], [name])  # the put had ended and was deleted: remove our entry
                break
            # Another handle was faster: a new owner, or one that cleaned up for us.
            left = set(held.left)
            if not await self._verify(held):
                break
            if held.left != left:
                raise StoreUnavailable(
                    f"{core.shown}: {held.id_of(held.start)} changed meanwhile; try again"
                )
        held.lost = True
        self._claiming.forget(held, held.left)
        return False

    # Cleaning up after others

    def sweep(self, roots: list[RootObject], seen_at: float) -> list[asyncio.Task[None]]:
        """Start a bounded clean-up of what crashed handles left, as seen in a listing."""
        core = self._core
        long_ago = core.time.surely() - GRACE
        begun: list[asyncio.Task[None]] = []
        for root in roots:
            entries = root.entries()
            newest = max((e.written for e in entries), default=0.0) + core.time.grain
            if root.item is None:
                if newest < long_ago:
                    core.throw_away([], [entry.name for entry in entries])
                continue
            if root.void and root.item.written + core.time.grain < long_ago:
                core.throw_away([root.path], [])
            if root.path in self._sweeping or not entries or len(begun) >= SWEEPS:
                continue
            units = core.seen_units(root)
            if not units:
                continue
            over = all(unit.ended and unit.moving is None for unit in units)
            if over and (newest < long_ago or root.path in self._ended):
                core.throw_away([root.path], [entry.name for entry in entries])
                self._ended.pop(root.path, None)
                self._names.pop(root.path, None)
            elif any(u.moving and u.moving.written + core.time.grain < long_ago for u in units):
                self._sweeping.add(root.path)
                begun.append(core.begin(self._finish(root, units, seen_at)))
        return begun

    async def _finish(self, root: RootObject, units: list[ClaimUnit], seen_at: float) -> None:
        """Move jobs that a crashed handle ended but did not move."""
        core = self._core
        try:
            with suppress(StoreError):
                body = await core.body(root, afresh=True)
                for unit in units:
                    if body is not None and unit.moving is not None:
                        await self._finish_unit(root, unit, body, seen_at)
        finally:
            self._sweeping.discard(root.path)

    async def _finish_unit(
        self, root: RootObject, unit: ClaimUnit, body: PutBody, seen_at: float
    ) -> None:
        core, moving = self._core, unit.moving
        content = None if moving is None else await core.content(moving.name)
        if content is None or core.clock.now() - seen_at > ACT_WITHIN:
            return
        left = content["left"] if not unit.ended else []
        if unit.masked and not unit.ended:
            left = unit.jobs(core.cache.content) or []
        # The creator of the next entry has the duty, for the same time as the one before.
        duty = write_entry(_ending(unit.left, moving=True), {**content, "left": left})
        sent = core.clock.now()
        if not await core.create(root.entry_name(unit.start, unit.top + 1), duty):
            return
        await self.move(root, body, content)
        if core.clock.now() - sent <= ACT_WITHIN:
            clean = write_entry(_ending(unit.left), {"left": left})
            await core.create(root.entry_name(unit.start, unit.top + 2), clean)

    async def finish_folder(self, folder: str) -> None:
        """Clean up one put now, as far as its time has come."""
        seen_at = self._core.clock.now()
        for task in self.sweep(await self._core.folder(folder), seen_at):
            await task


def _ending(left: int, *, moving: bool = False) -> EntryMeaning:
    if left:
        return EntryMeaning(EntryKind.REST_MOVE if moving else EntryKind.REST, count=left)
    return EntryMeaning(EntryKind.MOVE if moving else EntryKind.END)


def _held(unit: ClaimUnit, jobs: list[int], body: PutBody) -> HeldUnit:
    return HeldUnit(
        unit.root, unit.start, set(jobs), unit.claim, unit.top, unit.attempts, unit.run_at, 0.0,
        body, unsure=True, names=[entry.name for entry in unit.root.chains.get(unit.start, ())],
    )  # fmt: skip
