"""Arguments and results of views: counts, filters, pages, and bulk actions over a filter.

The work of a page is bounded, whatever is in the queue: a store examines at most EXAMINED_MAX jobs
for it. A filter that few jobs match may therefore give a short page, even an empty one, that has a
`next`: pass that as `after` to search on.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pollwise.errors import ConfigError
from pollwise.runtime.decoding import cut_value
from pollwise.runtime.jobs import ENDED, NAME_LENGTH_MAX, STATES, JobInfo, State, checked_name
from pollwise.runtime.store import MAX_PAGE, check_page, distinct

#: The maximum number of jobs that a page examines.
EXAMINED_MAX = 5_000
#: How many jobs are read at a time to examine them one by one.
LISTED_AT_ONCE = 500
#: A state with more jobs than this is counted up to it, in stores that would have to scan for more.
COUNTED_MAX = 10_000
#: Up to how many jobs or records commands count.
MEASURED_MAX = 1_000_000
#: Up to how many metrics count, again and again: some tens of milliseconds of the store's time.
METERED_MAX = 50_000
#: The maximum number of queue names that `names` returns.
NAMES_MAX = 1_000
#: The maximum length of a cursor, in characters.
CURSOR_LENGTH_MAX = 2_000
#: The maximum length of the text that a filter looks for in errors, in characters.
ERROR_TEXT_MAX = 1_000
#: The maximum number of kinds in a filter.
FILTER_KINDS_MAX = 1_000
#: The error about a cursor that is not valid.
CURSOR_REFUSED = (
    "after = {!r} is not the place of a page with this filter; pass the `next` of the page before"
)
#: The longest age in a filter, in seconds.
AGE_MAX = 1e10

#: The states of jobs that have not ended.
LIVE: tuple[State, ...] = tuple(state for state in STATES if state not in ENDED)


@dataclass(frozen=True, slots=True)
class Stats:
    """The number of jobs in each state, and how long the oldest ready one has waited.

    capped: the states whose number is a lower bound: the store stopped counting there.
    """

    ready: int
    delayed: int
    blocked: int
    leased: int
    dead: int
    done: int
    cancelled: int
    oldest_age: float | None
    capped: frozenset[State] = frozenset()

    @classmethod
    def of(
        cls, counts: Mapping[State, int], oldest_age: float | None, capped: Iterable[State] = ()
    ) -> Stats:
        """Make stats from the count of each state."""
        numbers: dict[str, Any] = {state: counts.get(state, 0) for state in STATES}
        return cls(**numbers, oldest_age=oldest_age, capped=frozenset(capped))

    def to_value(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {**asdict(self), "capped": [state for state in STATES if state in self.capped]}


def summed(some: Iterable[Stats]) -> Stats:
    """The counts of several kinds or queues together."""
    every = list(some)
    ages = [each.oldest_age for each in every if each.oldest_age is not None]
    counts: dict[State, int] = {
        state: sum(getattr(each, state) for each in every) for state in STATES
    }
    capped = {state for each in every for state in each.capped}
    return Stats.of(counts, max(ages, default=None), capped)


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Selects the jobs of a page or a bulk action, and the page; None means any.

    kinds: one of these kinds.
    worker: the worker that holds the job or has ended it.
    limit: the maximum number of jobs of one page or one bulk action, up to MAX_PAGE.
    after: the `next` of the page before.
    key: exactly this key.
    error: text in the newest error; upper and lower case of A to Z are equal.
    older_than, newer_than: put more, or less, than this many seconds ago.
    live: only jobs that have not ended.
    """

    state: State | None = None
    kinds: tuple[str, ...] | None = None
    worker: str | None = None
    limit: int = 50
    after: str | None = None
    key: str | None = None
    error: str | None = None
    older_than: float | None = None
    newer_than: float | None = None
    live: bool = False

    def __post_init__(self) -> None:
        if self.state is not None and self.state not in STATES:
            raise ConfigError(f"state = {self.state!r} is not one of {', '.join(STATES)}")
        if self.live and self.state in ENDED:
            live = ", ".join(state for state in STATES if state not in ENDED)
            raise ConfigError(f"state = {self.state!r}: such jobs have ended; choose one of {live}")
        check_page(self.limit)
        if self.kinds is not None:
            object.__setattr__(self, "kinds", tuple(distinct(self.kinds, "kinds") or ()))
            if len(self.kinds) > FILTER_KINDS_MAX:
                raise ConfigError(f"kinds has {len(self.kinds)} names; at most {FILTER_KINDS_MAX}")
        if self.key is not None:
            checked_name(self.key, "key", ConfigError)
        if self.error is not None and (
            not isinstance(self.error, str)
            or not 0 < len(self.error) <= ERROR_TEXT_MAX
            or not self.error.isprintable()
        ):
            raise ConfigError(
                f"error must be text of 1 to {ERROR_TEXT_MAX} printable characters, or None"
            )
        for name in ("older_than", "newer_than"):
            _check_age(getattr(self, name), name)
        _check_after(self.after)

    @property
    def nothing(self) -> bool:
        """True if no job can match."""
        return self.kinds == ()

    def matches(self, info: JobInfo, now: float) -> bool:
        """True if a job matches, for stores that read jobs before they compare them."""
        job = info.job
        return (
            self.state in (None, info.state)
            and not (self.live and info.state in ENDED)
            and (self.kinds is None or job.kind in self.kinds)
            and self.worker in (None, info.worker)
            and self.key in (None, job.key)
            and (self.error is None or lowered(self.error) in lowered(info.error or ""))
            and (self.older_than is None or job.created_at <= now - self.older_than)
            and (self.newer_than is None or job.created_at > now - self.newer_than)
        )


@dataclass(frozen=True, slots=True)
class JobPage:
    """Some of the jobs that match a filter.

    next: pass it as `JobFilter.after` to go on; None at the end.
    examined: how many jobs the store examined for this page.
    """

    jobs: list[JobInfo]
    next: str | None
    examined: int


@dataclass(frozen=True, slots=True)
class BulkDone:
    """The result of a bulk action: how many jobs it changed, and where it goes on.

    next: pass it as `JobFilter.after` to go on; None at the end.
    """

    count: int
    next: str | None

    @property
    def more(self) -> bool:
        """True if there may be more jobs that match."""
        return self.next is not None


def stats_of_kinds(
    rows: Iterable[tuple[str, int, int, float | None]], capped: Iterable[State]
) -> dict[str, Stats]:
    """Read rows of a kind, a state, a number of jobs, and the age of the oldest ready job."""
    counts: dict[str, dict[State, int]] = {}
    ages: dict[str, float] = {}
    lower = frozenset(capped)
    for kind, code, count, age in rows:
        of_kind = counts.setdefault(kind, dict.fromkeys(STATES, 0))
        of_kind[STATES[code]] += count
        if code == 0 and age is not None:
            ages[kind] = max(ages.get(kind, 0.0), age)
    return {kind: Stats.of(each, ages.get(kind), lower) for kind, each in counts.items()}


def listed(info: JobInfo) -> JobInfo:
    """The record as a list has it, with the beginning of a long payload and a long result."""
    payload = cut_value(info.job.payload, info.job.unreadable)
    result = cut_value(info.result)
    return info if payload is result is None else info.cut(payload, result)


async def page_of_list(
    list_jobs: Callable[[JobFilter], Awaitable[list[JobInfo]]], chosen: JobFilter, now: float
) -> JobPage:
    """A page, the newest put first, from lists that narrow by state, kind and worker only.

    Its cursor is the id of the last job that was examined.
    """
    found: list[JobInfo] = []
    after, examined = chosen.after, 0
    narrow = (chosen.key, chosen.error, chosen.older_than, chosen.newer_than)
    all_match = narrow == (None,) * 4 and not chosen.live
    step = min(chosen.limit + 1, MAX_PAGE) if all_match else LISTED_AT_ONCE
    while True:
        part = await list_jobs(replace(chosen, after=after, limit=step))
        for info in part:
            examined += 1
            if chosen.matches(info, now):
                if len(found) == chosen.limit:
                    return JobPage(found, found[-1].job.id, examined)
                found.append(info)
            after = info.job.id
        if len(part) < step:
            return JobPage(found, None, examined)
        if examined >= EXAMINED_MAX:
            last = found[-1].job.id if len(found) == chosen.limit else after
            return JobPage(found, last, examined)


def lowered(text: str) -> str:
    """The text with a to z for A to Z; other letters stay, as in the SQL stores."""
    return text.translate(_LOWER)


_LOWER = {ord(letter): ord(letter) + 32 for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}


def to_cursor(place: Sequence[str | float]) -> str:
    """A place in the order of a store as text for a URL."""
    text = json.dumps(place, ensure_ascii=False, separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def from_cursor(cursor: str, shapes: Collection[tuple[type, ...]]) -> list[Any]:
    """The place in a cursor, whose values have the types of one of the shapes."""
    try:
        place = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        if isinstance(place, list) and tuple(map(type, place)) in shapes:
            if all(_storable(value) for value in place):
                return place
    except (ValueError, RecursionError):
        pass
    raise ConfigError(CURSOR_REFUSED.format(cursor[:40]))


def _storable(value: str | float) -> bool:
    if isinstance(value, str):
        return len(value) <= NAME_LENGTH_MAX and value.isprintable()
    return abs(value) < 2**63  # neither infinite nor too large for a column


def _check_age(value: object, name: str) -> None:
    if value is not None and (
        isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= AGE_MAX
    ):
        raise ConfigError(f"{name} = {value!r} must be a number of seconds, 0 or more, or None")


def _check_after(after: object) -> None:
    if after is not None and (
        not isinstance(after, str) or len(after) > CURSOR_LENGTH_MAX or not after.isprintable()
    ):
        raise ConfigError("after must be the `next` of the page before, or None")
