"""The values of a target's history, and how much of it is kept."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from pollwise.runtime.rollups.histogram import EMPTY, Histogram

PeriodState = Literal["up", "down", "maintenance", "unknown"]
RollupLength = Literal["hour", "day"]

HOUR, DAY = 3600.0, 86400.0
#: How much is kept of each target: its newest hours and days in which it was polled (eight days,
#: and a hundred), and its newest finished periods. Postgres has a place for each of these hours.
HOURS_KEPT = 192
DAYS_KEPT = 100
PERIODS_KEPT = 300
#: The longest reason of a period, in characters.
REASON_MAX = 200


@dataclass(frozen=True, slots=True)
class Period:
    """A time in which the state of a target did not change, in seconds since 1970.

    reason: why it was down; the first error of the outage.
    """

    target: str
    state: PeriodState
    started_at: float
    ended_at: float
    reason: str = ""

    @property
    def lasted(self) -> float:
        return self.ended_at - self.started_at


@dataclass(frozen=True, slots=True)
class PollFigures:
    """What the polls of some time gave.

    polls: how many ended. failed: of these, how many failed, confirmed or not.
    changed: how many found a changed reading.
    latency: how long those that succeeded took.
    values: how many readings were numbers; low, high and total are over these.
    """

    polls: int = 0
    failed: int = 0
    changed: int = 0
    latency: Histogram = EMPTY
    values: int = 0
    low: float = 0.0
    high: float = 0.0
    total: float = 0.0

    @property
    def value_mean(self) -> float | None:
        """The mean of the readings that were numbers; None without any."""
        return self.total / self.values if self.values else None


NO_POLLS = PollFigures()


@dataclass(frozen=True, slots=True)
class TimeInStates:
    """How many seconds a target spent in each state. The rest of the time is unknown."""

    up: float = 0.0
    down: float = 0.0
    maintenance: float = 0.0

    @property
    def uptime(self) -> float | None:
        """The share of up in up and down, 0 to 1; None if neither was observed."""
        observed = self.up + self.down
        return self.up / observed if observed > 0.0 else None

    def __add__(self, other: TimeInStates) -> TimeInStates:
        return TimeInStates(
            self.up + other.up, self.down + other.down, self.maintenance + other.maintenance
        )

    def __bool__(self) -> bool:
        return bool(self.up or self.down or self.maintenance)


NO_TIME = TimeInStates()


def percent(share: float | None) -> str:
    """An uptime for people, rounded down: only an uptime without any outage is 100 %.

    >>> percent(0.999999), percent(1.0), percent(None)
    ('99.99%', '100%', '–')
    """
    if share is None:
        return "–"
    return "100%" if share >= 1.0 else f"{math.floor(share * 10_000 + 1e-9) / 100:.2f}%"


@dataclass(frozen=True, slots=True)
class TargetRollup:
    """The history of one target in one hour or one day (UTC).

    at: its start, in seconds since 1970.
    times: how long the target was in each state.
    figures: what its polls gave; NO_POLLS if they were not asked for.
    """

    target: str
    length: RollupLength
    at: float
    times: TimeInStates = NO_TIME
    figures: PollFigures = field(default=NO_POLLS)

    @property
    def seconds(self) -> float:
        return HOUR if self.length == "hour" else DAY
