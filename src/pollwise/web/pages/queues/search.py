"""Which jobs the page of a queue shows: the filter in its address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import cast

from pollwise.durations import seconds
from pollwise.errors import ConfigError
from pollwise.queues.views import JobFilter
from pollwise.runtime.jobs import NAME_LENGTH_MAX, STATES, State
from pollwise.web.pages.search import PageSearch
from pollwise.web.sources import RANGES

#: How many jobs a page shows.
PAGE = 25
#: The longest text that a filter looks for, and the longest cursor, in characters.
TEXT_MAX = 200
CURSOR_MAX = 2000
#: The ages that the page offers, by the text that follows "than"; the address takes any duration.
AGES: Mapping[str, str] = {
    "1m": "1 minute", "10m": "10 minutes", "1h": "1 hour", "6h": "6 hours", "1d": "1 day",
    "7d": "7 days",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class JobSearch(PageSearch):
    """Which jobs a page shows.

    age: "older:1h" or "newer:1h", by when the job was put.
    job: only the job of this id, whatever its state is; the others are ignored then.
    span: the range of the charts, which links keep.
    """

    job: str = ""
    state: str = ""
    kind: str = ""
    key: str = ""
    worker: str = ""
    error: str = ""
    age: str = ""
    span: str = ""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> JobSearch:
        """From the parameters of an address; raises ConfigError for a value that is not allowed."""
        found = cls(**cls.texts_of(query))
        if found.state and found.state not in STATES:
            raise ConfigError(f"state = {found.state[:40]!r} is not one of {', '.join(STATES)}")
        if found.span and found.span not in RANGES:
            raise ConfigError(f"span = {found.span[:40]!r} is not one of {', '.join(RANGES)}")
        limits = dict.fromkeys(("job", "kind", "key", "worker"), NAME_LENGTH_MAX)
        for each in fields(cls):
            text = getattr(found, each.name)
            most = CURSOR_MAX if each.name == "after" else limits.get(each.name, TEXT_MAX)
            if len(text) > most:
                raise ConfigError(f"{each.name} has {len(text)} characters; at most {most}")
        found.bounds()
        return found

    def filter(self, limit: int = PAGE) -> JobFilter:
        """The filter for the queue."""
        older, newer = self.bounds()
        return JobFilter(
            cast(State, self.state) or None,
            (self.kind,) if self.kind else None,
            self.worker or None,
            limit,
            self.after or None,
            self.key or None,
            self.error or None,
            older,
            newer,
        )

    def bounds(self) -> tuple[float | None, float | None]:
        """The least and the greatest age of a job, in seconds; None for no limit."""
        if not self.age:
            return None, None
        way, _, text = self.age.partition(":")
        if way not in ("older", "newer"):
            raise ConfigError(f"age = {self.age[:40]!r} must be like older:1h or newer:10m")
        limit = seconds(text, "age", positive=True)
        return (limit, None) if way == "older" else (None, limit)

    @property
    def narrow(self) -> bool:
        """True if it filters by more than state and kind: then nothing counts the matches."""
        return bool(self.job or self.key or self.worker or self.error or self.age)

    @property
    def filtered(self) -> bool:
        return bool(self.kind) or self.narrow
