"""Counts and pages of the jobs in a SQLite file, read from the indexes for a bounded time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pollwise.queues.record import listed_from, number_in, shares, sources_of, stats_from
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
from pollwise.runtime.jobs import STATES, TRACEBACK_FOLLOWS, JobInfo, State
from pollwise.storage.sqlite.file import FileConnection, snapshot

#: After this many seconds a page stops to examine jobs: large payloads make them slow to read.
PAGE_TIME = 0.02
#: How many jobs are examined between two looks at the clock.
STEP = 100
#: How many pairs of a kind and a priority, and how many overdue jobs, are examined for the oldest.
FIRSTS_MAX = 1_000
#: The statements of lists.
LISTS = ("arrivals", "show")
_SEQ_MAX = 2**63 - 1
_FAR = 1e300
_PRIORITY_MAX = 2**31

#: The conditions of a filter on a job, by the field of the filter.
_CONDITIONS = {
    "kinds": "job.kind IN (SELECT value FROM json_each(:kinds))",
    "worker": "job.worker = :worker",
    "key": 'coalesce(job."key", job.held_key) = :key',
    "error": "instr(lower({error}), :error)",
    "older_than": "job.created_at <= :now - :older_than",
    "newer_than": "job.created_at > :now - :newer_than",
}
_NEWEST = "json_extract(job.errors, '$[#-1][2]')"
_CONDITIONS["error"] = _CONDITIONS["error"].replace(
    "{error}", f"substr({_NEWEST}, 1, instr({_NEWEST} || :mark, :mark) - 1)"
)
_SHOWN = "CASE WHEN entry.state IN (1, 3) AND job.since <= :now THEN 0 ELSE entry.state END"
#: The condition of a source on its entries; those that need the job name it.
_OF_SOURCE = {
    "leased": "entry.state = 3",
    "delayed": "entry.state = 1",
    "blocked": "entry.state = 2",
    "waiting": "entry.state = 2",
    "key": f"(:state IS NULL OR :state = {_SHOWN})",
    "done": "(job.expires_at IS NULL OR job.expires_at > :now)",
    "cancelled": "(job.expires_at IS NULL OR job.expires_at > :now)",
}
_WALKS = {
    "leased": "walk_due",
    "ready": "walk_ready",
    "overdue": "walk_due",
    "delayed": "walk_due",
    "blocked": "walk_keys",
    "waiting": "walk_waiting",
    "key": "walk_key",
}


class SqlitePages:
    """Views of one queue in a file.

    connect: the connection to the file. sql: the statements, by name.
    """

    def __init__(
        self, connect: Callable[[], FileConnection], sql: Mapping[str, str], queue: str
    ) -> None:
        self._connect = connect
        self._sql = sql
        self._queue = queue

    def _rows(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        return self._connect().execute(statement, {"queue": self._queue, **values}).fetchall()

    # Counts

    def stats(self, now: float, most: int) -> Stats:
        with snapshot(self._connect()):
            counts = self._rows(self._sql["stats"], now=now, most=most + 1)
            firsts = [first for _, first in self._rows(self._sql["firsts"], most=FIRSTS_MAX)]
            [(due,)] = self._rows(self._sql["first_due"], now=now, most=FIRSTS_MAX)
        oldest = min(filter(number_in, (*firsts, due)), default=None)
        return stats_from(counts, None if oldest is None else max(now - oldest, 0.0), most)

    def stats_by_kind(self, now: float, most: int, ready_most: int) -> dict[str, Stats]:
        rows: list[tuple[str, int, int, float | None]] = []
        capped: set[State] = set()
        with snapshot(self._connect()):
            whole = self._rows(self._sql["stats"], now=now, most=most + 1)
            firsts = self._rows(self._sql["firsts"], most=FIRSTS_MAX)
            [(each_most,)] = self._rows(self._sql["count_ready"], most=ready_most + 1)
            if each_most > ready_most:  # else each kind is counted wholly
                each_most = max(ready_most // max(len(firsts) // 2, 1), 100)
            for kind, first in firsts:
                [(count,)] = self._rows(self._sql["count_kind"], kind=kind, most=each_most + 1)
                rows.append(
                    (kind, 0, min(count, each_most), max(now - (number_in(first) or now), 0.0))
                )
                if count > each_most:
                    capped.add("ready")
            for part in self._counted_parts(now, whole, most, capped):
                rows += part
        return stats_of_kinds(rows, capped)

    def _counted_parts(
        self, now: float, whole: list[tuple[Any, ...]], most: int, capped: set[State]
    ) -> Iterator[list[tuple[str, int, int, float | None]]]:
        """Counts by kind of what is not ready; adds the states that are not counted to the end."""
        overdue, delayed, leased, blocked, waiting, *ended = [row[1] or 0 for row in whole[1:]]
        scanned = whole[2][2] or whole[4][2]  # not read to the end
        parts: list[tuple[str, dict[str, Any], int, tuple[State, ...]]] = [
            ("count_due", {"low": -1.0, "high": now}, overdue, ("ready",)),
            ("count_due", {"low": now, "high": _FAR}, delayed + leased, ("delayed", "leased")),
            ("count_blocked", {}, blocked, ("blocked",)),
            ("count_waiting", {}, waiting, ("blocked",)),
        ]
        for code, size in enumerate(ended, STATES.index("dead")):
            parts.append(("count_ended", {"state": code}, size, (STATES[code],)))
        sizes = shares([size for _, _, size, _ in parts], most)
        for (name, values, size, states), share in zip(parts, sizes, strict=True):
            if share < size:
                capped.update(states)
            if share:
                source = self._sql["count_kinds"].replace("{source}", self._sql[name])
                counted = self._rows(source, now=now, most=share, **values)
                yield [(*row, max(now - (number_in(first) or now), 0.0)) for *row, first in counted]
        if scanned:
            capped.update(("delayed", "leased") if whole[2][2] else ())
            capped.update(("blocked",) if whole[4][2] else ())

    # Pages

    def page(self, now: float, chosen: JobFilter) -> JobPage:
        with snapshot(self._connect()):
            ids, place, examined = self._walked(now, chosen)
            jobs = self._shown(now, ids)
        return JobPage(jobs, None if place is None else to_cursor(place), examined)

    def ids(self, now: float, chosen: JobFilter) -> tuple[list[str], str | None]:
        """As `page`, but only the ids."""
        with snapshot(self._connect()):
            ids, place, _ = self._walked(now, chosen)
        return [str(seq) for seq in ids], None if place is None else to_cursor(place)

    def _shown(self, now: float, ids: list[int]) -> list[JobInfo]:
        rows = self._rows(self._sql["show"], batch=json.dumps(ids), now=now)
        return [listed_from(row, self._queue) for row in rows]

    def _walked(self, now: float, chosen: JobFilter) -> tuple[list[int], list[Any] | None, int]:
        """The numbers of the jobs, where to go on, and how many jobs were examined."""
        ids: list[int] = []
        examined = 0
        last: list[Any] | None = None  # the place of the last job of the page
        give_up = time.monotonic() + PAGE_TIME
        values = _values(now, chosen)
        for source, place in sources_of(chosen, waiting=True):
            statement, conditional = self._statement(source, chosen)
            for begin in _begins(source, place, now, chosen):
                at = begin
                while True:
                    most = STEP if conditional else chosen.limit + 1 - len(ids)
                    bounds = {f"p{n}": value for n, value in enumerate(at)}
                    high = now if source == "overdue" else _FAR
                    onwards = chosen.kinds is None
                    rows = self._rows(
                        statement, **values, **bounds, most=most, high=high, onwards=onwards,
                        ended=STATES.index(source) if source in STATES else None,
                    )  # fmt: skip
                    for *entry, matched in rows:
                        examined += 1
                        at = _place(source, entry)
                        if matched:
                            if len(ids) == chosen.limit:
                                return ids, last, examined
                            ids.append(at[-1])
                            last = [source, *at]
                    if len(rows) < most:
                        break
                    if examined >= EXAMINED_MAX or time.monotonic() > give_up:
                        full = len(ids) == chosen.limit
                        return ids, last if full else [source, *at], examined
        return ids, None, examined

    def _statement(self, source: str, chosen: JobFilter) -> tuple[str, bool]:
        """The statement that reads a source, and whether it may find jobs that do not match."""
        conditions = [_OF_SOURCE[source]] if source in _OF_SOURCE else []
        for field, condition in _CONDITIONS.items():
            known = (field == "key" and source == "key") or (field == "kinds" and source == "ready")
            if getattr(chosen, field) is not None and not known:
                conditions.append(condition)
        match = " AND ".join(f"({each})" for each in conditions) or "1"
        join = "CROSS JOIN pollwise_jobs AS job ON job.seq = entry.seq" if "job." in match else ""
        walk = self._sql["walk"].replace("{source}", self._sql[_WALKS.get(source, "walk_ended")])
        return walk.replace("{match}", match).replace("{join}", join), bool(conditions)

    def names(self) -> list[str]:
        rows = self._rows(self._sql["names"], most=NAMES_MAX)
        return [name for (name,) in rows if name is not None]


def with_columns(sql: Mapping[str, str]) -> dict[str, str]:
    """The statements that show jobs: `get` wholly, lists with the beginning of long values."""
    names = ("payload", "result")
    whole = sql["columns"].format(**{name: name for name in names})
    cut = {name: f"substr({name}, 1, {LISTED_MAX + 1})" for name in names}
    made = {name: sql[name].replace("{columns}", sql["columns"].format(**cut)) for name in LISTS}
    return made | {"get": sql["arrivals"].replace("{columns}", whole)}


def _values(now: float, chosen: JobFilter) -> dict[str, Any]:
    return {
        "now": now,
        "state": None if chosen.state is None else STATES.index(chosen.state),
        "kinds": None if chosen.kinds is None else json.dumps(chosen.kinds),
        "worker": chosen.worker,
        "key": chosen.key,
        "error": None if chosen.error is None else lowered(chosen.error),
        "mark": TRACEBACK_FOLLOWS,
        "older_than": chosen.older_than,
        "newer_than": chosen.newer_than,
    }


def _begins(
    source: str, place: list[Any] | None, now: float, chosen: JobFilter
) -> Iterator[list[Any]]:
    """Where to begin in a source: after a place, or with its first job; for each kind by itself."""
    if source == "ready":
        if chosen.kinds is None:
            yield place or ["", _PRIORITY_MAX, 0.0, 0]
            return
        for kind in sorted(chosen.kinds):
            if place is None or kind > place[0]:
                yield [kind, _PRIORITY_MAX, 0.0, 0]
            elif kind == place[0]:
                yield place
    elif source == "overdue":
        yield place or [-1.0, 0, 0]
    elif source in ("leased", "delayed"):
        yield max(place or [now, 9, 0], [now, 9, 0])
    elif source in ("blocked", "key"):
        yield place or ["", 0]
    elif source == "waiting":
        yield place or [0]
    else:
        yield place or [_FAR, _SEQ_MAX]


def _place(source: str, entry: list[Any]) -> list[Any]:
    """The place of an entry; the last column is the state, unless that is part of the place."""
    if source in ("leased", "overdue", "delayed"):
        since, state, seq = entry
        return [float(number_in(since)), state, seq]
    if source == "ready":
        kind, priority, since, seq, _ = entry
        return [kind, priority, float(number_in(since)), seq]
    if source == "waiting":
        return entry[:1]
    first, seq, _ = entry
    return [first if source in ("blocked", "key") else float(first), seq]
