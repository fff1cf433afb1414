"""Appending to chains, ending jobs, and all that a handle does without holding a lease: cancelling,
and cleaning up after handles that crashed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pollwise.errors import StoreError, StoreUnavailable
from pollwise.queues.objects.body import PutBody, duties, record_state, write_record
from pollwise.queues.objects.chain import ClaimUnit, RootObject, errors_of, last_run, worker_of
from pollwise.queues.objects.claiming import HeldUnit, UnitClaimer
from pollwise.queues.objects.core import ACT_WITHIN, GRACE, PAUSE, TICK, Core
from pollwise.queues.objects.names import (
    EntryKind,
    EntryMeaning,
    PutName,
    read_id,
    rounded_delay,
    write_entry,
)
from pollwise.runtime.jobs import ERRORS_KEPT, State

#: The maximum number of folders that one claim cleans up.
SWEEPS = 16
#: How often a cancel that loses a race tries again.
CANCEL_TRIES = 100
#: Entries that make a job ready again, unless it was asked to cancel.
BACKS = (EntryKind.BACK, EntryKind.BACK_FREE, EntryKind.SUM)


class AskedToCancel(Exception):
    """A job that was to come back was asked to cancel meanwhile; nothing was written."""


@dataclass(slots=True)  # not frozen: one for each settlement, and frozen ones are slow to make
class Ending:
    """How a job ends. counted: its last attempt counts. result: JSON text.

    keep: for how many seconds it is kept for its result, if that is longer than ended jobs are.
    """

    state: State
    error: str | None = None
    result: str | None = None
    counted: bool = True
    keep: float | None = None


class UnitEnder:
    """keep: for how many seconds ended jobs are kept; None if they are not.
    unique_path: returns where the marker of a `unique` is.
    free_unique: deletes the marker of a `unique` if it names this job."""

    def __init__(
        self,
        core: Core,
        claiming: UnitClaimer,
        keep: float | None,
        unique_path: Callable[[str], str],
        free_unique: Callable[[str, str], Awaitable[None]],
    ) -> None:
        self._core = core
        self._claiming = claiming
        self.keep = keep
        self._unique_path = unique_path
        self._free_unique = free_unique
        self._ended: dict[str, set[int]] = {}  # jobs of a root that this handle ended
        self._names: dict[str, set[str]] = {}  # entries of a root that this handle knows of
        self._sweeping: set[str] = set()

    # Chains

    async def still_ours(self, held: HeldUnit) -> bool:
        """True while the lease is valid, since nobody else can end it; later the store is asked."""
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
                    held.asked = unit.asked(core.cache.content)
                    held.pending = await core.duty(unit.moving)
                    seen = [entry.name for entry in root.chains.get(held.start, ())]
                    held.names += [name for name in seen if name not in held.names]
                    return True
        held.lost = True
        self._claiming.forget(held, held.left)
        return False

    async def append(self, held: HeldUnit, meaning: EntryMeaning, content: dict[str, Any]) -> bool:
        """Append to the chain of a unit of this handle; False if another handle was faster.

        Raises `AskedToCancel` instead of giving back a job that was asked to cancel meanwhile.
        """
        core = self._core
        entry = write_entry(meaning, content)
        tries = 3
        while tries:
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
                if content or meaning.kind in BACKS:
                    core.cache.add_content(name, content)
                live = core.clock.now() < held.until and not held.unsure
                if live or await core.head(held.root.path) is not None:
                    return True
                core.throw_away([], [name])  # the put had ended and was deleted: remove our entry
                break
            if held.guest:
                return False
            # Another handle was faster: a new owner, one that cleaned up for us, or one that asks
            # to cancel.
            left, top, asked = set(held.left), held.top, held.asked
            if not await self._verify(held):
                break
            if held.left != left:
                raise StoreUnavailable(
                    f"{core.shown}: {held.id_of(held.start)} changed meanwhile; try again"
                )
            if meaning.kind in BACKS and held.asked - asked:
                raise AskedToCancel
            tries -= held.top == top
        held.lost = True
        self._claiming.forget(held, held.left)
        return False

    # Ending

    async def end(self, held: HeldUnit, endings: dict[int, Ending]) -> bool:
        """End jobs of a unit; False if it is not ours any more."""
        core = self._core
        left = held.left - set(endings)
        content: dict[str, Any] = {"left": sorted(left)}
        since = self.since(held)
        moves = await self._moves(held, endings, since)
        moving = bool(moves or held.pending)
        if moving:
            content |= {
                "moves": moves, "run_at": held.run_at, "since": since, "worker": held.worker,
                "claimed_at": held.claimed_at,
            }  # fmt: skip
        if held.pending:
            content["before"] = held.pending
        sent = core.clock.now()
        guard = held.guest or sent >= held.until  # nobody else may be moving them meanwhile
        if not await self.append(held, _ending(len(left), moving=moving, guard=guard), content):
            return False
        held.left = left
        self._claiming.forget(held, endings)
        if moving:
            # The end is valid from here. If something fails now, the next entry or a later claim
            # of any handle finishes it.
            held.pending = duties(content)
            try:
                # While jobs are left, another handle may take the duty when the lease ends,
                # unless a guard keeps it away.
                deadline = sent + ACT_WITHIN
                if left and not guard:
                    deadline = min(deadline, held.until)
                if core.clock.now() >= deadline:
                    return True
                await self._move(held.root, held.body, held.pending, first=not held.guest)
                if left or held.root.count > 1:
                    await self.append(held, _ending(len(left)), {"left": sorted(left)})
                held.pending = []
            except StoreError:
                return True
        self._count(held, endings)
        return True

    async def _moves(
        self, held: HeldUnit, endings: dict[int, Ending], since: float
    ) -> dict[str, dict[str, Any]]:
        """The work that is left for ended jobs: write a record, or free their `unique`."""
        core = self._core
        moves: dict[str, dict[str, Any]] = {}
        for index, ending in endings.items():
            job = held.body[index]
            if ending.state == "dead" or self.keep is not None or ending.keep is not None:
                errors = await errors_of(
                    held.path, index, job.errors, core.content, core.time.grain
                )
                if ending.error is not None:
                    errors = [*errors, [since, held.attempt, ending.error]][-ERRORS_KEPT:]
                moves[str(index)] = {
                    "to": ending.state, "attempt": held.attempt - (not ending.counted),
                    "errors": errors, "progress": held.progress.get(str(index)),
                    "result": ending.result,
                }  # fmt: skip
                if ending.keep is not None:
                    only = {"keep": rounded_delay(ending.keep), "only": self.keep is None}
                    moves[str(index)] |= only
            elif job.unique is not None:
                moves[str(index)] = {"to": ""}
        return moves

    def since(self, held: HeldUnit) -> float:
        """The time when jobs ended: now, or as in the write whose outcome is unknown."""
        doubt = held.doubt
        if doubt and doubt[0] == held.root.entry_name(held.start, held.top + 1):
            return float(doubt[2].get("since", self._core.time.now()))
        return self._core.time.now()

    def note_names(self, held: HeldUnit) -> tuple[set[int], set[str]]:
        """Remember the entries of a unit, to delete them with its root."""
        names = self._names.setdefault(held.root.path, set())
        names.update(held.names)
        return self._ended.setdefault(held.root.path, set()), names

    def _count(self, held: HeldUnit, ended_now: Iterable[int]) -> None:
        """Delete a root without another request when this handle ended all its jobs."""
        path = held.root.path
        ended, names = self.note_names(held)
        ended.update(ended_now)
        if len(ended) == held.root.count:
            self._core.throw_away([path], sorted(names))
            del self._ended[path], self._names[path]
        while len(self._ended) > 1000:  # a later listing finds these
            oldest = next(iter(self._ended))
            del self._ended[oldest], self._names[oldest]

    async def _move(
        self, root: RootObject, body: PutBody, pending: list[dict[str, Any]], *, first: bool
    ) -> None:
        """Do what entries say about ended jobs: write a record, or free their `unique`.

        first: the first of these entries is ours, and nobody else has done it yet.
        """
        core = self._core
        calls: list[Any] = []
        freed: list[str] = []
        for number, content in enumerate(pending):
            for text, move in content["moves"].items():
                index, job = int(text), body[int(text)]
                keep, only = move.get("keep"), move.get("only", not move["to"])
                places = {"dead" if move["to"] == "dead" else "ended": None} if not only else {}
                places |= {} if keep is None else {"results": keep}
                for folder, kept in places.items():
                    record = write_record(job, content, move, root.retried, kept)
                    calls.append(core.create(core.path(folder, root.put.key(index)), record))
                if move["to"] == "dead" or job.unique is None:
                    continue
                if first and not number:
                    freed.append(self._unique_path(job.unique))
                else:
                    calls.append(self._free_unique(job.unique, job.id))
        if freed:
            calls.append(core.delete(freed))
        for result in await core.all(calls):
            if isinstance(result, BaseException):
                raise result

    # Cancelling

    async def cancel(self, ids: Sequence[str]) -> dict[str, State]:
        folders: dict[str, tuple[PutName, set[int]]] = {}
        for job_id in ids:
            if place := read_id(job_id):
                folders.setdefault(place[0].folder, (place[0], set()))[1].add(place[1])
        states: dict[str, State] = {}
        for part in await self._core.all(self._cancel(*each) for each in folders.values()):
            if isinstance(part, BaseException):
                raise part
            states |= part
        return states

    async def _cancel(self, put: PutName, wanted: set[int]) -> dict[str, State]:
        """Cancel jobs of one put. After a lost race, list it again."""
        core = self._core
        states: dict[str, State] = {}
        for _ in range(CANCEL_TRIES):
            seen_at = core.clock.now()
            roots = [r for r in await core.folder(put.folder) if r.item is not None and not r.void]
            found: list[tuple[ClaimUnit, set[int]]] = []
            for root in roots:
                for unit in await core.units(root):
                    if mine := wanted & {*(unit.jobs(core.cache.content) or ())}:
                        found.append((unit, mine))
            for index in wanted.difference(*(mine for _, mine in found)):
                wanted.discard(index)
                if state := await self._ended_state(put, index, roots):
                    states[put.id_of(index)] = state
            results = await core.all(self._cancel_unit(*each, seen_at) for each in found)
            for (_, mine), result in zip(found, results, strict=True):
                if isinstance(result, BaseException):
                    raise result
                if result is not None:
                    states |= dict.fromkeys(map(put.id_of, mine), result)
                    wanted -= mine
            if not wanted:
                return states
            await core.clock.sleep(PAUSE * core.rng.random())
        raise StoreUnavailable(f"{core.shown}: the jobs to cancel change all the time; try again")

    async def _cancel_unit(self, unit: ClaimUnit, mine: set[int], seen_at: float) -> State | None:
        """End jobs that wait, or ask the holder to end them; None if another handle was faster."""
        core = self._core
        now, surely = core.time.now() + TICK, core.time.surely() + TICK
        if not unit.claim or self._claiming.opens(unit, now, surely)[1]:
            ended = await self._end_as_guest(unit, mine, seen_at)
            return "cancelled" if ended else None
        asked = unit.asked(core.cache.content)
        if mine <= asked:
            return "leased"
        if core.clock.now() - seen_at > ACT_WITHIN:
            return None
        name = unit.root.entry_name(unit.start, unit.top + 1)
        content = {"cancel": sorted(asked | mine)}
        if not await core.create(name, write_entry(EntryMeaning(EntryKind.CANCEL), content)):
            return None
        if await core.head(unit.root.path) is None:  # the put had ended and was deleted
            core.throw_away([], [name])
            return None
        return "leased"

    async def end_lapsed(self, units: list[ClaimUnit], seen_at: float) -> None:
        """End the jobs of these units that were asked to cancel, now that their leases ended."""
        content = self._core.cache.content
        calls = [self._end_as_guest(u, u.asked(content), seen_at, lapsed=True) for u in units]
        for result in await self._core.all(calls):
            if isinstance(result, BaseException) and not isinstance(result, StoreError):
                raise result  # otherwise the next claim tries again

    async def _end_as_guest(
        self, unit: ClaimUnit, indexes: set[int], seen_at: float, *, lapsed: bool = False
    ) -> bool:
        """Cancel jobs of a unit that nobody holds; False if another handle was faster."""
        core = self._core
        body = await core.body(unit.root)
        if body is None:
            return False
        held = await self.held_unit(unit, body)
        held.guest, held.path = True, unit.path
        if lapsed:
            held.worker = await worker_of(unit, core.content)
        if core.clock.now() - seen_at > ACT_WITHIN:
            return False
        return await self.end(held, dict.fromkeys(indexes, Ending("cancelled")))

    async def held_unit(self, unit: ClaimUnit, body: PutBody) -> HeldUnit:
        """A unit as found in a listing."""
        core = self._core
        run = await last_run(unit.path, core.content)
        return HeldUnit(
            unit.root, unit.start, set(unit.jobs(core.cache.content) or ()), unit.claim, unit.top,
            unit.attempts, unit.run_at, 0.0, body, claimed_at=run.claimed_at,
            path=[entry for entry in unit.path if entry.number < unit.claim], unsure=True,
            names=[entry.name for entry in unit.root.chains.get(unit.start, ())],
            pending=await core.duty(unit.moving), progress=run.progress,
            asked=unit.asked(core.cache.content),
        )  # fmt: skip

    async def _ended_state(self, put: PutName, index: int, roots: list[RootObject]) -> State | None:
        core = self._core
        if await core.head(core.path("dead", put.key(index))) is not None:
            return "dead"
        for folder in ("ended", "results"):
            if (item := await core.head(core.path(folder, put.key(index)))) is not None:
                return record_state(item)
        record = await self.unmoved(roots, index)
        return None if record is None else record[0]

    async def unmoved(self, roots: list[RootObject], index: int) -> tuple[State, bytes] | None:
        """The state and the record of an ended job whose record was not written yet."""
        core = self._core
        for root in roots:
            for unit in await core.units(root):
                for content in await core.duty(unit.moving):
                    move = content["moves"].get(str(index))
                    body = await core.body(root) if move and move["to"] else None
                    if body is not None:
                        return move["to"], write_record(body[index], content, move, root.retried)
        return None

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
        core = self._core
        pending = await core.duty(unit.moving)
        if not pending or core.clock.now() - seen_at > ACT_WITHIN:
            return
        left = pending[0]["left"] if not unit.ended else []
        if unit.masked and not unit.ended:
            left = unit.jobs(core.cache.content) or []
        # The creator of the next entry has the duty, for the same time as the one before.
        content = {**pending[0], "left": left, "before": pending[1:]}
        duty = write_entry(_ending(unit.left, moving=True, guard=True), content)
        sent = core.clock.now()
        if not await core.create(root.entry_name(unit.start, unit.top + 1), duty):
            return
        await self._move(root, body, pending, first=False)
        if core.clock.now() - sent <= ACT_WITHIN:
            clean = write_entry(_ending(unit.left), {"left": left})
            await core.create(root.entry_name(unit.start, unit.top + 2), clean)

    async def finish_folder(self, folder: str) -> None:
        """Clean up one put now, as far as its time has come."""
        seen_at = self._core.clock.now()
        for task in self.sweep(await self._core.folder(folder), seen_at):
            await task


def _ending(left: int, *, moving: bool = False, guard: bool = False) -> EntryMeaning:
    if not left:
        return EntryMeaning(EntryKind.MOVE if moving else EntryKind.END)
    kind = EntryKind.REST_GUARD if guard else EntryKind.REST_MOVE
    return EntryMeaning(kind if moving else EntryKind.REST, count=left)
