"""Reads a LIST: the chains of entries, and which jobs may be claimed.

A put's folder holds roots and entries. A root is an object with jobs: `b`, as it was put, or
`r<g>-<i>`, job i retried for the g-th time. Its jobs are cut into slices of up to 16 equal ones.
What happens to the slice that starts at job `a` is written as `<root>.<a>.<k>`, k = 1, 2, 3 …, each
with a create-only write: the creator of entry k decides what it says.

A unit is a run of jobs that share a chain: a slice, a part of one after a claim took only some of
it, or one job after a BURST. The entries on its way, its path, are also the history of its jobs:
`errors_of` and `last_run` read it.
"""

from __future__ import annotations

import asyncio
import copy
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pollwise.queues.objects.names import (
    SLICE,
    EntryKind,
    EntryMeaning,
    PutName,
    read_folder,
    read_size,
)
from pollwise.runtime.jobs import ERRORS_KEPT

_OBJECT = re.compile(r"(b|r(\d{1,6})-(\d{1,5}))(?:\.(\d{1,5})\.(\d{1,9}))?")

#: Returns the content of an entry by its name, if it was read already.
Contents = Callable[[str], dict[str, Any] | None]
#: Reads the content of an entry; None if the entry is gone.
Reader = Callable[[str], Awaitable[dict[str, Any] | None]]
#: An error of a job: time, attempt, text.
Failure = list[Any]
#: Returns where the slices of a root begin and end, if known.
Slices = Callable[[str], Sequence[tuple[int, int]] | None]


@dataclass(frozen=True, slots=True)
class ListedObject:
    """An object as a LIST shows it. written: by the store's clock, in seconds since 1970."""

    name: str
    size: int
    written: float


@dataclass(frozen=True, slots=True)
class ChainEntry:
    name: str
    start: int
    number: int
    meaning: EntryMeaning
    written: float


@dataclass(slots=True)
class RootObject:
    """A root and the entries of its chains, by the job they start at."""

    put: PutName
    path: str  # the name of the root object
    retried: int = 0
    only: int | None = None  # the single job of a retried root
    item: ListedObject | None = None
    asked: bool = False  # an entry asks to cancel some of its jobs
    chains: dict[int, list[ChainEntry]] = field(default_factory=dict)

    @property
    def void(self) -> bool:
        """An empty root in place of a put whose writer crashed, so that it never appears."""
        return self.item is not None and self.item.size == 0

    @property
    def count(self) -> int:
        return 1 if self.only is not None else self.put.count

    def entries(self) -> list[ChainEntry]:
        return [entry for chain in self.chains.values() for entry in chain]

    def entry_name(self, start: int, number: int) -> str:
        return f"{self.path}.{start}.{number}"


@dataclass(slots=True)
class ClaimUnit:
    """Jobs [start, end) of a root that share a chain, and their state."""

    root: RootObject
    start: int
    end: int
    left: int
    top: int = 0  # the number of the newest entry
    written: float = 0.0  # the time of that entry
    claim: int = 0  # the number of the CLAIM that holds it; also after its lease ran out
    free_at: float | None = None  # may be claimed from then on; None: at once
    run_at: float | None = None  # due since then; None: since the time its root says
    attempts: int = 0
    ahead: bool = False  # the newest claim was made ahead
    before: int = 0  # how many leases in a row ran out before the newest claim
    ended: bool = False
    masked: str | None = None  # the entry whose content says which jobs are left
    unread: str | None = None  # the entry whose content has to be read first
    moving: ChainEntry | None = None  # the jobs that this entry ended have yet to be moved
    asking: str | None = None  # the entry whose content says which jobs are asked to cancel
    path: list[ChainEntry] = field(default_factory=list)

    @property
    def guarded_at(self) -> float | None:
        """Since when nobody may claim it, because its ended jobs are being moved."""
        moving = self.moving
        if moving is None or moving.meaning.kind is not EntryKind.REST_GUARD:
            return None
        return moving.written

    @property
    def token(self) -> int:
        return token_of(self.root, self.claim)

    @property
    def lapses(self) -> int:
        """How many leases in a row ran out, if the last one did."""
        return self.before + 1 if self.claim else 0

    @property
    def next_attempt(self) -> int:
        """The attempt of the next claim. A claim ahead that was not settled counts as none."""
        return self.attempts + (not (self.claim and self.ahead))

    def jobs(self, contents: Contents) -> list[int] | None:
        """The jobs left, or None if the entry that says so was not read yet."""
        if self.ended:
            return []
        if self.masked is None:
            return list(range(self.start, self.end))
        content = contents(self.masked)
        return None if content is None else list(content["left"])

    def asked(self, contents: Contents) -> set[int]:
        """The jobs left that are asked to cancel, as far as the entry that says so was read."""
        content = None if self.asking is None else contents(self.asking)
        return set() if content is None else {*content["cancel"]} & {*(self.jobs(contents) or ())}


def token_of(root: RootObject, number: int) -> int:
    return root.retried * 1_000_000_000 + number


def read_roots(items: Iterable[ListedObject]) -> list[RootObject]:
    """The roots in a listing of `…/live/<folder>/<object>`; other objects are ignored."""
    roots: dict[str, RootObject] = {}
    for item in items:
        parent, _, name = item.name.rpartition("/")
        found = _OBJECT.fullmatch(name)
        put = read_folder(parent.rpartition("/")[2])
        if found is None or put is None:
            continue
        kind, retried, only, start, number = found.groups()
        path = f"{parent}/{kind}"
        root = roots.get(path)
        if root is None:
            root = roots[path] = RootObject(
                put, path, int(retried or 0), None if only is None else int(only)
            )
        if start is None:
            root.item = item
            continue
        meaning = read_size(item.size)
        if meaning is not None:
            entry = ChainEntry(item.name, int(start), int(number), meaning, item.written)
            root.chains.setdefault(entry.start, []).append(entry)
            root.asked |= meaning.kind is EntryKind.CANCEL
    for root in roots.values():
        for chain in root.chains.values():
            chain.sort(key=lambda entry: entry.number)
    return list(roots.values())


def even_slices(count: int) -> list[tuple[int, int]]:
    return [(start, min(start + SLICE, count)) for start in range(0, count, SLICE)]


def read_units(
    root: RootObject, slices: Slices, contents: Contents, grain: float
) -> list[ClaimUnit] | None:
    """The units of a root, or None if its body has to be read first.

    grain: by how much the store rounds down the times it shows.
    """
    if root.only is not None:
        cuts: Sequence[tuple[int, int]] | None = [(root.only, root.only + 1)]
    elif root.put.mixed:
        cuts = slices(root.path)
    else:
        cuts = even_slices(root.put.count)
    if cuts is None:
        return None
    units: list[ClaimUnit] = []
    for start, end in cuts:
        units += _walk(ClaimUnit(root, start, end, end - start), contents, grain)
    return units


def _walk(unit: ClaimUnit, contents: Contents, grain: float) -> Iterator[ClaimUnit]:
    for entry in unit.root.chains.get(unit.start, ()):
        if entry.number <= unit.top:
            continue
        meaning = entry.meaning
        match meaning.kind:
            case EntryKind.CLAIM:
                if not unit.attempts and not unit.top and meaning.count < unit.end - unit.start:
                    rest = copy.copy(unit)
                    rest.start, rest.path = unit.start + meaning.count, []
                    rest.left = rest.end - rest.start
                    yield from _walk(rest, contents, grain)
                    unit.end = unit.start + meaning.count
                    unit.left = meaning.count
                unit.before, unit.attempts = unit.lapses, unit.next_attempt
                unit.ahead = meaning.ahead
                unit.claim, unit.asking = entry.number, None
                unit.free_at = entry.written + grain + meaning.duration
            case EntryKind.RENEW | EntryKind.REPORT:
                unit.free_at = entry.written + grain + meaning.duration
            case EntryKind.CANCEL:
                unit.asking = entry.name
            case EntryKind.REST | EntryKind.REST_MOVE | EntryKind.REST_GUARD:
                unit.left, unit.masked = meaning.count, entry.name
                unit.moving = None if meaning.kind is EntryKind.REST else entry
            case EntryKind.BACK | EntryKind.BACK_FREE | EntryKind.SUM:
                if meaning.kind is EntryKind.SUM:
                    content = contents(entry.name)
                    unit.unread = entry.name if content is None else None
                    unit.attempts = 0 if content is None else content["attempts"]
                unit.claim, unit.asking = 0, None
                delay = meaning.duration + grain if meaning.duration else 0.0
                unit.free_at = unit.run_at = entry.written + delay
                unit.attempts -= meaning.kind is EntryKind.BACK_FREE
            case EntryKind.BURST:
                left = unit.jobs(contents)
                if left is None:
                    unit.unread = unit.masked
                    break
                for index in left:
                    if index != unit.start:
                        yield from _walk(_single(unit, index, entry), contents, grain)
                if unit.start in left:
                    unit = _single(unit, unit.start, entry)
                else:
                    unit.ended, unit.left = True, 0
            case EntryKind.END | EntryKind.MOVE:
                unit.ended, unit.left = True, 0
                unit.moving = entry if meaning.kind is EntryKind.MOVE else None
        unit.top, unit.written = entry.number, entry.written
        unit.path = [*unit.path, entry]
    yield unit


def _single(unit: ClaimUnit, index: int, burst: ChainEntry) -> ClaimUnit:
    single = copy.copy(unit)
    single.start, single.end, single.left = index, index + 1, 1
    single.masked, single.top, single.written = None, burst.number, burst.written
    if index != unit.start:
        single.moving = None
    single.path = [*unit.path, burst]
    return single


# The history of a job


async def errors_of(
    path: Sequence[ChainEntry], index: int, before: Sequence[Failure], read: Reader, grain: float
) -> list[Failure]:
    """The last errors of a job, the newest last. A claim that nothing follows counts as lapsed.

    before: its errors before the path begins.
    """
    marks, before = await _marks(path, index, before, read, grain)
    found: list[Failure] = []
    while marks and len(found) < ERRORS_KEPT:  # usually the last few entries are enough
        newest, marks = marks[-ERRORS_KEPT:], marks[:-ERRORS_KEPT]
        contents = await asyncio.gather(*(read(entry.name) for entry, _, _ in newest))
        failures = [
            [at, attempt, _text(entry, index, content or {})]
            for (entry, at, attempt), content in zip(newest, contents, strict=True)
        ]
        found = [failure for failure in failures if failure[2] is not None] + found
    return [*before, *found][-ERRORS_KEPT:]


async def lapsed_worker(unit: ClaimUnit, read: Reader) -> str:
    """The worker whose lease of a unit ran out; "" if its entry was deleted meanwhile."""
    last = next((entry for entry in unit.path if entry.number == unit.claim), None)
    content = None if last is None else await read(last.name)
    return str((content or {}).get("worker") or "")


async def _marks(
    path: Sequence[ChainEntry], index: int, before: Sequence[Failure], read: Reader, grain: float
) -> tuple[list[tuple[ChainEntry, float, int]], Sequence[Failure]]:
    """The entries that may hold an error, with its time and attempt, and the errors before."""
    marks: list[tuple[ChainEntry, float, int]] = []
    claim: ChainEntry | None = None
    attempt, until = 0, 0.0
    for entry in path:
        kind = entry.meaning.kind
        if kind in (EntryKind.CLAIM, EntryKind.RENEW, EntryKind.REPORT):
            if kind is EntryKind.CLAIM:
                if claim is not None:
                    marks.append((claim, until, attempt))
                attempt += not (claim is not None and claim.meaning.ahead)
                claim = entry
            until = entry.written + grain + entry.meaning.duration
        elif kind in (EntryKind.BACK, EntryKind.BACK_FREE, EntryKind.SUM):
            claim = None
            if kind is EntryKind.BACK:
                marks.append((entry, entry.written, attempt))
            elif kind is EntryKind.BACK_FREE:
                attempt -= 1
            else:
                content = await read(entry.name) or {}
                marks, attempt = [], content.get("attempts", 0)
                before = content.get("errors", {}).get(str(index), ())
    if claim is not None:
        marks.append((claim, until, attempt))
    return marks, before


def _text(entry: ChainEntry, index: int, content: dict[str, Any]) -> str | None:
    if entry.meaning.kind is EntryKind.CLAIM:
        return f"the lease of {content.get('worker')} ran out"
    text: str | None = content.get("errors", {}).get(str(index))
    return text


@dataclass(frozen=True, slots=True)
class LastRun:
    """The newest run of a unit. progress: by index."""

    claimed_at: float | None = None
    progress: dict[str, list[Any]] = field(default_factory=dict)


async def last_run(path: Sequence[ChainEntry], read: Reader) -> LastRun:
    progress: dict[str, list[Any]] | None = None
    for entry in reversed(path):
        kind = entry.meaning.kind
        if kind is EntryKind.REPORT and progress is None:
            progress = (await read(entry.name) or {}).get("progress")
        elif kind is EntryKind.CLAIM:
            return LastRun(entry.written, progress or {})
        elif kind is EntryKind.SUM:
            content = await read(entry.name) or {}
            return LastRun(content.get("claimed_at"), content.get("progress", {}))
    return LastRun()


async def worker_of(unit: ClaimUnit, read: Reader) -> str | None:
    """The worker that holds a unit, or held it until its lease ended."""
    for entry in unit.path:
        if entry.number == unit.claim:
            worker: str | None = (await read(entry.name) or {}).get("worker")
            return worker
    return None
