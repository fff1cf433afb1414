"""Settling and renewing: what the holder of a unit appends to its chain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pollwise.queues.objects.chain import errors_of
from pollwise.queues.objects.claiming import HeldUnit, UnitClaimer
from pollwise.queues.objects.core import GRACE, Core
from pollwise.queues.objects.ending import AskedToCancel, Ending, UnitEnder
from pollwise.queues.objects.names import (
    EntryKind,
    EntryMeaning,
    read_id,
    rounded_delay,
    rounded_lease,
)
from pollwise.runtime.jobs import ERRORS_KEPT, Claim, Progress, Renewal, Settlement, State

#: Entries that have a successor are deleted at this age, in seconds.
STALE = 2 * GRACE
#: A chain of this many entries is summed up when a job is given back.
LONG_CHAIN = 24
#: The entries that can be summed up.
SUMMED = (
    EntryKind.CLAIM, EntryKind.RENEW, EntryKind.REPORT, EntryKind.CANCEL, EntryKind.BACK,
    EntryKind.BACK_FREE, EntryKind.SUM,
)  # fmt: skip
#: Settlements of calls that failed in part are remembered for their repetition, up to this number.
THROUGH_MAX = 10_000


class UnitSettler:
    def __init__(self, core: Core, claiming: UnitClaimer, ender: UnitEnder) -> None:
        self._core = core
        self._claiming = claiming
        self._ender = ender
        self._through: set[tuple[str, int, str]] = set()  # settled by a call that failed in part

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

    async def renew(
        self, claims: list[Claim], lease: float, progress: Mapping[str, Progress]
    ) -> Renewal:
        units, lost = await self._by_unit(claims)
        cancel: list[str] = []
        for result in await self._core.all(
            self._renew_unit(held, indexes, lease, progress) for held, indexes in units
        ):
            if isinstance(result, BaseException):
                raise result
            lost += result[0]
            cancel += result[1]
        return Renewal(tuple(lost), tuple(cancel))

    async def _by_unit(
        self, claims: list[Claim]
    ) -> tuple[list[tuple[HeldUnit, list[int]]], list[str]]:
        """The units that the claims belong to, and the ids of claims without a unit."""
        found: dict[int, tuple[HeldUnit, list[int]]] = {}
        lost: list[str] = []
        strangers: dict[str, list[Claim]] = {}
        now = self._core.clock.now()
        for claim in claims:
            held = self._claiming.held.get((claim.job.id, claim.token))
            if held is not None and now >= held.until and _may_be_cut(held):
                held = None
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
                    if (key := (claim.job.id, claim.token)) in self._claiming.held:
                        self._claiming.held[key] = held
                        held.unsure = False
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
                        held = await self._ender.held_unit(unit, body)
                        held.worker = claim.worker
                        held.until = core.clock.now() + (unit.free_at or 0.0) - core.time.at_most()
                        made[unit.root.path, unit.start] = held
            result.append((held, claim))
        return result

    async def _settle_unit(
        self, held: HeldUnit, batch: dict[int, Settlement], settled: list[tuple[str, int, str]]
    ) -> list[str]:
        """Settle some jobs of a unit; return the ids of those that are not ours any more.

        settled: what was settled is added to it, even if the rest fails.
        """
        async with held.lock:
            if not await self._ender.still_ours(held):
                return [held.id_of(index) for index in batch]
            ours = {index: s for index, s in batch.items() if index in held.left}
            refused = [index for index in batch if index not in held.left]
            refused += await self._settle_held(held, ours, settled)
            return [held.id_of(index) for index in refused]

    async def _settle_held(
        self, held: HeldUnit, ours: dict[int, Settlement], settled: list[tuple[str, int, str]]
    ) -> list[int]:
        """Settle jobs of a held unit; return those that another handle has taken."""
        away = {i: s for i, s in ours.items() if not s.comes_back or i in held.asked}
        back = {i: s for i, s in ours.items() if i not in away}
        if away:
            keep = self._ender.keep
            if not await self._ender.end(held, {i: _ending(s, keep) for i, s in away.items()}):
                return list(ours)
            settled += [(held.id_of(i), held.token, s.action) for i, s in away.items()]
        if not back:
            return []
        if back.keys() & held.asked:  # the write above met a request to cancel
            return await self._settle_held(held, back, settled)
        ways = {(rounded_delay(s.delay), s.action) for s in back.values()}
        if len(ways) == 1 and set(back) == held.left:
            try:
                sent = await self._send_back(held, back)
            except AskedToCancel:
                return await self._settle_held(held, back, settled)
            if not sent:
                return list(back)
            settled += [(held.id_of(i), held.token, s.action) for i, s in back.items()]
            return []
        parts = await self._burst(held)
        if parts is None:
            return list(back)
        refused: list[int] = []
        for result in await self._core.all(
            self._settle_held(parts[index], {index: s}, settled) for index, s in back.items()
        ):
            if isinstance(result, BaseException):
                raise result
            refused += result
        return refused

    async def _renew_unit(
        self, held: HeldUnit, indexes: list[int], lease: float, progress: Mapping[str, Progress]
    ) -> tuple[list[str], list[str]]:
        """The ids that are not ours any more, and those that are asked to cancel."""
        async with held.lock:
            if not await self._ender.still_ours(held):
                return [held.id_of(index) for index in indexes], []
            refused = [held.id_of(index) for index in indexes if index not in held.left]
            # Jobs that were claimed together are renewed together: one write for all of them.
            if renewed := held.left & set(indexes):
                said = self._progress_left(held, renewed, progress)
                if not await self._append_renewal(held, lease, said):
                    return [held.id_of(index) for index in indexes], []
            return refused, [held.id_of(i) for i in indexes if i in held.left & held.asked]

    def _progress_left(
        self, held: HeldUnit, indexes: set[int], progress: Mapping[str, Progress]
    ) -> dict[str, list[Any]]:
        """The progress of the jobs left, with what is reported now about some of them."""
        if not progress and not held.progress:
            return {}
        now = self._core.time.now()
        kept = {n: said for n, said in held.progress.items() if int(n) in held.left}
        return kept | {
            str(index): [said.fraction, said.note, now]
            for index in indexes
            if (said := progress.get(held.id_of(index))) is not None
        }

    async def _append_renewal(
        self, held: HeldUnit, lease: float, progress: dict[str, list[Any]]
    ) -> bool:
        core = self._core
        lease = rounded_lease(lease)
        sent = core.clock.now()
        kind = EntryKind.REPORT if progress else EntryKind.RENEW
        content = {"progress": progress} if progress else {}
        if not await self._ender.append(held, EntryMeaning(kind, lease), content):
            return False
        held.until, held.progress = sent + lease, progress
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
        kind = EntryKind.BACK if some.action == "retry" else EntryKind.BACK_FREE
        errors = {str(i): s.error for i, s in back.items() if s.error is not None}
        content: dict[str, Any] = {"errors": errors} if errors else {}
        if len(held.names) >= LONG_CHAIN or (errors and kind is EntryKind.BACK_FREE):
            content = await self._sum(held, back, counted=kind is EntryKind.BACK)
            kind = EntryKind.SUM
        meaning = EntryMeaning(kind, rounded_delay(some.delay))
        if not await self._ender.append(held, meaning, content):
            return False
        self._claiming.forget(held, held.left)
        held.lost = True
        if kind is EntryKind.SUM:
            self._shorten(held)
        return True

    async def _sum(
        self, held: HeldUnit, back: dict[int, Settlement], *, counted: bool
    ) -> dict[str, Any]:
        """Sum up what the chain says about these jobs, for an entry that replaces it."""
        core, since = self._core, self._ender.since(held)
        errors: dict[str, list[Any]] = {}
        for index, settlement in back.items():
            before = held.body[index].errors
            found = await errors_of(held.path, index, before, core.content, core.time.grain)
            if settlement.error is not None:
                found.append([since, held.attempt, settlement.error])
            if found:
                errors[str(index)] = found[-ERRORS_KEPT:]
        content: dict[str, Any] = {
            "attempts": held.attempt - (not counted), "claimed_at": held.claimed_at, "since": since,
        }  # fmt: skip
        if held.progress:
            content["progress"] = held.progress
        return content | {"errors": errors} if errors else content

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
        if held.left == {held.start}:
            return {held.start: held}
        content = {"left": sorted(held.left)}
        if not await self._ender.append(held, EntryMeaning(EntryKind.BURST), content):
            return None
        self._ender.note_names(held)
        parts = {}
        for index in held.left:
            part = HeldUnit(
                held.root, index, {index}, held.claim, held.top, held.attempt, held.run_at,
                held.until, held.body, held.worker, held.claimed_at, held.path, held.unsure,
                pending=held.pending if index == held.start else [], asked=held.asked & {index},
                progress={n: said for n, said in held.progress.items() if n == str(index)},
            )  # fmt: skip
            parts[index] = part
            if (key := (held.id_of(index), held.token)) in self._claiming.held:
                self._claiming.held[key] = part
        held.left = set()
        return parts


def _may_be_cut(held: HeldUnit) -> bool:
    """True if another handle may have cut up a lapsed unit, to claim some of its jobs."""
    cut = len(held.left) > 1 and not held.lost
    return cut and held.doubt is None and not held.lock.locked()


def _ending(settlement: Settlement, keep: float | None) -> Ending:
    """How a settlement ends a job; one that would come back was asked to cancel.

    keep: for how long its queue keeps ended jobs.
    """
    action, more = settlement.action, settlement.outlasting(keep)
    state: State = action if action in ("done", "dead") else "cancelled"
    return Ending(state, settlement.failure, settlement.result, action != "give_back", more)
