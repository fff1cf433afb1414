"""Counts and pages of the jobs in Postgres, read from the indexes for a bounded number of rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pollwise.queues.record import listed_from, sources_of, stats_from
from pollwise.queues.views import (
    EXAMINED_MAX,
    NAMES_MAX,
    JobFilter,
    JobPage,
    Stats,
    lowered,
    stats_of_kinds,
    to_cursor,
)
from pollwise.runtime.decoding import LISTED_MAX
from pollwise.runtime.jobs import STATES, JobInfo, State
from pollwise.storage.postgres.database import Database
from pollwise.storage.postgres.params import Param, flag, number, text, texts

_SEQ_MAX = 2**63 - 1
_FAR = 1e300
_PRIORITY_MAX = 2**31 - 1
#: States that share an index.
_COUNTED_TOGETHER: tuple[frozenset[State], ...] = (
    frozenset(("delayed", "leased")),
    frozenset(("done", "cancelled")),
)
_TO_INFO = 19  # the first columns of a row are those of `info_from`


class PostgresPages:
    """Views of one queue in a database."""

    def __init__(self, database: Database, queue: str) -> None:
        self._database = database
        self._queue = queue

    # Counts

    async def stats(self, most: int) -> Stats:
        params = [text(self._queue), number(most + 1), self._database.now()]
        *counts, (_, _, _, age) = await self._database.rows("stats", params, safe=True)
        oldest = None if age is None else max(age, 0.0)
        return stats_from((row[:3] for row in counts), oldest, most)

    async def stats_by_kind(self, most: int, ready_most: int) -> dict[str, Stats]:
        limits = [number(ready_most), number(most)]
        params = [text(self._queue), *limits, self._database.now()]
        rows = await self._database.rows("stats_by_kind", params, safe=True)
        capped: set[State] = {STATES[row[1]] for row in rows if row[4]}
        for together in _COUNTED_TOGETHER:
            if capped & together:
                capped |= together
        return stats_of_kinds(
            ((kind, code, count, age and max(age, 0.0)) for kind, code, count, age, _ in rows),
            capped,
        )

    # Pages

    async def page(self, chosen: JobFilter) -> JobPage:
        rows, place, examined = await self._walked(chosen, show=True)
        jobs: list[JobInfo] = [listed_from(row[:_TO_INFO], self._queue) for row in rows]
        return JobPage(jobs, None if place is None else to_cursor(place), examined)

    async def ids(self, chosen: JobFilter) -> tuple[list[str], str | None]:
        """As `page`, but only the ids."""
        rows, place, _ = await self._walked(chosen, show=False)
        return [str(row[0]) for row in rows], None if place is None else to_cursor(place)

    async def _walked(
        self, chosen: JobFilter, *, show: bool
    ) -> tuple[list[tuple[Any, ...]], list[Any] | None, int]:
        """The rows of the jobs, where to go on, and how many jobs were examined."""
        found: list[tuple[Any, ...]] = []
        last: list[Any] | None = None  # the place of the last job of the page
        examined = 0
        for source, place in sources_of(chosen):
            most = EXAMINED_MAX - examined
            params = self._params(source, place, chosen, most, len(found), show)
            rows = await self._database.rows("page", params, safe=True)
            for row in rows:
                if not row[-1]:
                    continue
                if len(found) == chosen.limit:
                    return found, last, examined + row[-2]
                found.append(row)
                last = [source, *_place(source, row)]
            if rows:
                seen = rows[-1][-2]
                examined += seen
                if seen == most:
                    full = len(found) == chosen.limit
                    return found, last if full else [source, *_place(source, rows[-1])], examined
        return found, None, examined

    def _params(
        self,
        source: str,
        place: list[Any] | None,
        chosen: JobFilter,
        most: int,
        found: int,
        show: bool,
    ) -> list[Param]:
        name, priority, since, seq, kinds = _begin(source, place, chosen)
        state = 0 if source == "overdue" else None
        if source in STATES:
            state = STATES.index(source)
        elif source == "key" and chosen.state is not None:
            state = STATES.index(chosen.state)
        of_kinds = None if chosen.kinds is None else texts(chosen.kinds)
        older, newer = chosen.older_than, chosen.newer_than
        return [
            text(self._queue),
            text(source),
            text(name),
            number(priority),
            number(since),
            number(seq),
            None if kinds is None else texts(kinds),
            number(most),
            number(chosen.limit + 1 - found),
            flag(show),
            None if state is None else number(state),
            of_kinds,
            text(chosen.worker),
            text(chosen.key),
            None if chosen.error is None else text(lowered(chosen.error)),
            None if older is None else number(float(older)),
            None if newer is None else number(float(newer)),
            self._database.now(),
        ]

    async def names(self) -> list[str]:
        rows = await self._database.rows("names", [number(NAMES_MAX)], safe=True)
        return [name for (name,) in rows]


def _begin(
    source: str, place: list[Any] | None, chosen: JobFilter
) -> tuple[str, int, float, int, list[str] | None]:
    """A place to go on after, or the one before the first job; and the kinds that follow it."""
    if source == "ready":
        kinds = None if chosen.kinds is None else sorted(chosen.kinds)
        if place is None:
            return "", _PRIORITY_MAX, 0.0, 0, kinds
        kind, priority, since, seq = place
        after = None if kinds is None else [each for each in kinds if each > kind]
        return kind, priority, since, seq, after
    if source in ("blocked", "key"):
        name, seq = place or ("", 0)
        return name, 0, 0.0, seq, None
    if source in ("leased", "overdue", "delayed"):
        since, _, seq = place or (-1.0, 0, 0)
        return "", 0, since, seq, None
    since, seq = place or (_FAR, _SEQ_MAX)
    return "", 0, since, seq, None


def _place(source: str, row: tuple[Any, ...]) -> list[Any]:
    seq, since, state = row[0], row[12], row[19]
    if source == "ready":
        return [row[1], row[4], since, seq]
    if source in ("blocked", "key"):
        return [row[3] or "", seq]
    return [since, state, seq] if source in ("leased", "overdue", "delayed") else [since, seq]


def with_arrivals(named: Mapping[str, str]) -> dict[str, str]:
    """The statements: `get` shows jobs wholly, `arrivals` the beginning of long values."""
    made = dict(named)
    show = made["arrivals"]
    for name in ("payload", "result"):
        cut = f"left({name}, {LISTED_MAX + 1})"
        made["arrivals"] = made["arrivals"].replace(f"{{{name}}}", cut)
        show = show.replace(f"{{{name}}}", name)
    return made | {"get": show}
