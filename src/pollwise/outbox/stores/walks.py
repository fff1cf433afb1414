"""Pages of records in SQL stores, by walking an index: their cost does not grow with the outbox.

Each state has an index with an order of its own: dead records in the order of the outbox, delayed
ones by when they are due, leased and waiting ones by when that ends, ready ones by key, done ones
from the newest. A walk reads a limited number of rows of it, and only the records of the page are
read as a whole.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from pollwise.outbox.records import RecordInfo, RecordsFound, RecordState
from pollwise.outbox.stores.viewed import ViewedOutbox
from pollwise.queues.views import EXAMINED_MAX, LISTED_AT_ONCE, from_cursor, to_cursor

#: By state, the name of its walk.
_WALKS: dict[RecordState, str] = {
    "dead": "dead", "delayed": "delayed", "done": "done", "leased": "held", "waiting": "held",
    "ready": "live",
}  # fmt: skip
_SHAPES = ((float, int), (str, int))


class RecordWalk(NamedTuple):
    """What to walk over: which index, in which lane, what to look for, and where to begin.

    a, b: the place after which it begins. most: how many rows to read.
    """

    name: str
    lane: str
    state: RecordState | None
    kind: str | None
    key: str | None
    error: str | None
    a: float | str
    b: int
    most: int


class WalkedRow(NamedTuple):
    """A row of an index: its place, the number of its record, and whether that matches."""

    a: float | str
    b: int
    seq: int
    fits: bool


class WalkedOutbox(ViewedOutbox):
    """Pages for a store that has the walks."""

    async def _page(
        self,
        state: RecordState | None,
        kind: str | None,
        key: str | None,
        error: str | None,
        limit: int,
        after: str | None,
    ) -> RecordsFound:
        names = _walks(state, key)
        lanes = ("",) if names == ["all"] else ("", *await self._read_lanes())
        a, b = ("" if names == ["live"] else float("-inf")), 0
        if after is not None:
            a, b = from_cursor(after, _SHAPES[names == ["live"] :][:1])
        found: list[RecordInfo] = []
        examined = 0
        while True:
            rows: list[WalkedRow] = []
            for name in names:
                for lane in lanes:
                    walk = RecordWalk(name, lane, state, kind, key, error, a, b, LISTED_AT_ONCE)
                    rows += await self._walk(walk)
            rows.sort()
            ended = len(rows) < LISTED_AT_ONCE
            rows = rows[:LISTED_AT_ONCE]
            for part in _parts([row for row in rows if row.fits], limit):
                infos = {info.place: info for info in await self._at([row.seq for row in part])}
                for row in part:
                    info = infos.get(str(row.seq))
                    if info is None or state not in (None, info.state):
                        continue
                    found.append(info)
                    if len(found) == limit:
                        last = ended and row is rows[-1]
                        return RecordsFound(
                            found, None if last else to_cursor(row[:2]), examined + len(rows)
                        )
            examined += len(rows)
            if ended or examined >= EXAMINED_MAX:
                return RecordsFound(found, None if ended else to_cursor(rows[-1][:2]), examined)
            a, b = rows[-1][:2]

    @abstractmethod
    async def _walk(self, walk: RecordWalk) -> list[WalkedRow]: ...

    @abstractmethod
    async def _at(self, seqs: Sequence[int]) -> list[RecordInfo]:
        """The records in these rows, in any order."""


def _walks(state: RecordState | None, key: str | None) -> list[str]:
    """The walks that find the records of a state. Those of a key have a walk of their own."""
    if key is not None and state in (None, "ready"):
        return ["key"] if state == "ready" else ["key", "dead"]
    return ["all"] if state is None else [_WALKS[state]]


def _parts(rows: Sequence[WalkedRow], size: int) -> Iterator[list[WalkedRow]]:
    each = iter(rows)
    while part := list(islice(each, size)):
        yield part


def with_shown(named: Mapping[str, str], *, after: str, among: str) -> dict[str, str]:
    """Statements in which `list` and `at` have the rows of `shown`.

    after: the condition of the rows of a list, which follow a place. among: of those of `at`.
    """
    made = dict(named)
    shown = made.pop("shown")
    for name, which in (("list", after), ("at", among)):
        made[name] = made[name].replace("{shown}", shown.replace("{which}", which))
    return made
