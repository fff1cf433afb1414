"""When a schedule ticks: a cron expression in a time zone, a grid of equal steps, or one moment.

Times are seconds since 1970. Cron expressions are read by cronsim, which treats daylight saving as
Debian's cron does: a tick at a fixed hour that does not exist comes at the first minute after the
gap, and one whose hour exists twice comes once. With `*` in the minute or the hour, ticks follow
the time that passes: none in the gap, and some in both hours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from itertools import islice, takewhile
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from pollwise.core.grid import point_after
from pollwise.durations import Duration, seconds, short, shown
from pollwise.errors import ConfigError, did_you_mean
from pollwise.runtime.jobs import DELAY_MAX

#: The shortest time between two ticks, in seconds.
EVERY_MIN = 1.0
#: The longest cron expression and name of a time zone, in characters.
CRON_LENGTH_MAX = 200
#: Ticks are not sought after this, in seconds since 1970: the beginning of 2200.
LAST_MOMENT = 7_258_118_400.0

_FIELDS = ("minute", "hour", "day of the month", "month", "day of the week")
#: How cronsim names the fields in its errors.
_NAMED = {
    "second": "second",
    "minute": "minute",
    "hour": "hour",
    "day-of-month": "day of the month",
    "month": "month",
    "day-of-week": "day of the week",
}


@dataclass(frozen=True, slots=True)
class When:
    """The ticks of a schedule. One of `cron`, `every` and `at` is given.

    cron: five fields (minute, hour, day of the month, month, day of the week), or six with the
        second first. tz: the time zone of these, such as Europe/Zurich.
    every: seconds between two ticks. They are counted from 1970-01-01 00:00 UTC, so that all
        workers agree: every "10m" ticks at :00, :10, …
    at: the only tick.
    """

    cron: str | None = None
    every: float | None = None
    at: float | None = None
    tz: str = "UTC"

    @classmethod
    def checked(
        cls,
        cron: str | None = None,
        every: Duration | None = None,
        at: datetime | str | float | None = None,
        tz: str | None = None,
    ) -> When:
        """Check the arguments of a caller. Raises ConfigError."""
        if (cron is not None) + (every is not None) + (at is not None) != 1:
            raise ConfigError(
                "a schedule needs one of cron = '*/5 * * * *', every = '10m' and at = "
                "'2026-12-24 08:00', and only one"
            )
        zone = "UTC" if tz is None else _checked_zone(tz)
        if cron is not None:
            return cls(cron=_checked_cron(cron), tz=zone)
        if every is not None:
            if tz is not None:
                raise ConfigError(
                    f"tz = {tz!r} has no effect on every = {every!r}, which counts from 1970 in "
                    "UTC; leave it out, or give a cron expression"
                )
            step = seconds(every, "every", positive=True)
            if not EVERY_MIN <= step <= DELAY_MAX:
                raise ConfigError(f"every = {shown(every)} must be from 1s to ten years")
            return cls(every=step)
        return cls(at=_checked_at(at, zone), tz=zone)

    def after(self, moment: float) -> float | None:
        """The first tick after a moment; None if there is none."""
        return next(self._after(moment), None)

    def due(self, first: float, now: float, most: int = 1) -> list[float]:
        """The newest ticks up to `now`, the oldest of them first; `first` is the oldest due one."""
        if first > now:
            return []
        ticks = [first]
        for tick in self._after(first):  # usually one step says that no more are due
            if tick > now:
                return ticks
            ticks.append(tick)
            if len(ticks) > most:
                break
        if self.at is not None:
            return ticks
        if self.every is not None:
            # One step more than needed, because the quotient is rounded.
            begin = (math.floor(now / self.every) - most - 1) * self.every
        else:
            # Backwards to about the right place, then forwards: only that decides what is a tick.
            now_there = datetime.fromtimestamp(now, ZoneInfo(self.tz))
            back = CronSim(self.cron or "", now_there, reverse=True)
            found = [each.timestamp() for each in islice(back, most + 1)]
            begin = min(found, default=first) - 1.0
        ticks = [first] if begin <= first else []
        ticks += takewhile(lambda tick: tick <= now, self._after(max(begin, first)))
        return ticks[-most:]

    def _after(self, moment: float) -> Iterator[float]:
        if self.at is not None:
            if self.at > moment:
                yield self.at
            return
        while moment < LAST_MOMENT:
            tick = self._next(moment)
            if tick is None:
                return
            yield tick
            moment = tick

    def _next(self, moment: float) -> float | None:
        if self.every is not None:
            return point_after(0.0, self.every, moment)
        assert self.cron is not None  # noqa: S101
        local = datetime.fromtimestamp(math.floor(moment), ZoneInfo(self.tz))
        # In the second of two equal hours, the first ones found may be in the first of them.
        for tick in CronSim(self.cron, local):
            if (found := tick.timestamp()) > moment:
                return found
        return None

    def __str__(self) -> str:
        if self.every is not None:
            return f"every {short(self.every)}"
        zone = "" if self.tz == "UTC" else f" {self.tz}"
        if self.cron is not None:
            return f"{self.cron}{zone}"
        local = datetime.fromtimestamp(self.at or 0.0, ZoneInfo(self.tz))
        return f"at {local:%Y-%m-%d %H:%M:%S}{zone or ' UTC'}"


def _checked_zone(tz: object) -> str:
    if isinstance(tz, ZoneInfo) and tz.key:
        return tz.key
    if not isinstance(tz, str) or not 0 < len(tz) <= CRON_LENGTH_MAX or not _zone_exists(tz):
        advice = "give a name such as Europe/Zurich or UTC"
        if isinstance(tz, str) and "/" in tz:  # near CEST would be EST
            advice = did_you_mean(tz[:CRON_LENGTH_MAX], sorted(available_timezones()), advice)
        raise ConfigError(f"tz = {shown(tz)} is not a time zone of this machine; {advice}")
    return tz


@lru_cache(maxsize=256)
def _zone_exists(tz: str) -> bool:
    try:
        ZoneInfo(tz)
    except (ValueError, OSError):  # and ZoneInfoNotFoundError, which is a KeyError
        return False
    except KeyError:
        return False
    return True


def _checked_cron(cron: object) -> str:
    if not isinstance(cron, str) or len(cron) > CRON_LENGTH_MAX:
        raise ConfigError(
            f"cron = {shown(cron)} must be text of at most {CRON_LENGTH_MAX} characters, "
            "as in '*/5 * * * *'"
        )
    parts = cron.split()
    if len(parts) not in (5, 6) or cron.strip().startswith("@"):
        raise ConfigError(
            f"cron = {cron!r} must have five fields: {', '.join(_FIELDS)}, as in "
            "'*/5 * * * *' (or six, with the second first)"
        )
    try:
        first = next(CronSim(cron, datetime(2026, 1, 1, tzinfo=UTC)), None)
    except CronSimError as error:
        names = (*([] if len(parts) == 5 else ["second"]), *_FIELDS)
        name = _NAMED.get(str(error).removeprefix("Bad "), "")
        field = f"the {name} {parts[names.index(name)]!r}" if name in names else str(error)
        raise ConfigError(f"cron = {cron!r}: {field} is not valid") from None
    except (AssertionError, ValueError, TypeError):  # odd mixtures that cronsim does not expect
        raise ConfigError(f"cron = {cron!r} cannot be read; write it in a simpler way") from None
    if first is None:
        raise ConfigError(f"cron = {cron!r} never ticks: no date matches it")
    return " ".join(parts)


def _checked_at(at: Any, zone: str) -> float:
    moment = at
    if isinstance(at, str):
        try:
            moment = datetime.fromisoformat(at.strip())
        except ValueError:
            raise ConfigError(
                f"at = {shown(at)} is not a date and time; write '2026-12-24 08:00'"
            ) from None
    if isinstance(moment, datetime):
        local = moment if moment.tzinfo else moment.replace(tzinfo=ZoneInfo(zone))
        try:
            moment = local.timestamp()
        except (OverflowError, ValueError, OSError):
            moment = -1.0
    if (
        isinstance(moment, bool)
        or not isinstance(moment, (int, float))
        or not 0 <= moment < LAST_MOMENT
    ):
        raise ConfigError(
            f"at = {shown(at)} must be a date and time before the year 2200, as a datetime, as "
            "text such as '2026-12-24 08:00', or as seconds since 1970"
        )
    return float(moment)
