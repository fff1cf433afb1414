"""Hours that recur: when a target is not polled, a channel sends nothing, or maintenance is done.

"22:00-06:00 Europe/Berlin" ends at six in the morning there, in summer and in winter, so the night
of a clock change is an hour longer or shorter. "Sat,Sun 02:00-04:00" and "Mon-Fri 08:00-18:00" are
for some days only; hours that span midnight belong to the day on which they begin.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from pollwise.durations import shown
from pollwise.errors import ConfigError, did_you_mean

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_EVERY_DAY = frozenset(range(7))
_FORM = re.compile(
    r"\s*(?:([^\W\d][^\d]*?)\s+)?(\d{1,2}):(\d{2})\s*[-–]\s*(\d{1,2}):(\d{2})(?:\s+(\S+))?\s*"
)


@dataclass(frozen=True, slots=True)
class Quiet:
    """From `start` to `end` in `zone`, on these days (0 is Monday); a start that is not before the
    end spans midnight."""

    start: time
    end: time
    zone: str = "UTC"
    days: frozenset[int] = _EVERY_DAY

    @classmethod
    def parsed(cls, text: str, name: str = "quiet") -> Quiet:
        """Read "22:00-06:00 Europe/Berlin" or "Sat,Sun 02:00-04:00"; without a zone, UTC.

        name: of the setting, for errors.
        """
        found = _FORM.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise ConfigError(
                f"{name} = {shown(text)} must have the form '22:00-06:00 Europe/Berlin' or "
                "'Sat,Sun 22:00-06:00 Europe/Berlin'"
            )
        listed, first, second, third, fourth, zone = found.groups()
        days = _EVERY_DAY if listed is None else _days(listed, f"{name} = {shown(text)}")
        try:
            start, end = time(int(first) % 24, int(second)), time(int(third) % 24, int(fourth))
        except ValueError:
            raise ConfigError(f"{name} = {shown(text)} has an invalid hour or minute") from None
        if (int(first), int(second)) > (24, 0) or (int(third), int(fourth)) > (24, 0):
            raise ConfigError(f"{name} = {shown(text)} has an invalid hour or minute")
        whole_day = (first.lstrip("0"), third) == ("", "24") and days != _EVERY_DAY
        if start == end and not whole_day:
            raise ConfigError(
                f"{name} = {shown(text)} begins when it ends; for whole days, name them: "
                "Sat,Sun 00:00-24:00"
            )
        _zone(zone or "UTC", name)
        return cls(start, end, zone or "UTC", days)

    def ends(self, at: float) -> float | None:
        """End of the hours around `at`, in seconds since 1970; None outside of them."""
        zone = _zone(self.zone)
        local = datetime.fromtimestamp(at, zone)
        today, clock = local.date(), local.time()
        if self.start < self.end:
            inside, began, day = self.start <= clock < self.end, today, today
        elif clock >= self.start:
            inside, began, day = True, today, today + timedelta(days=1)
        else:
            inside, began, day = clock < self.end, today - timedelta(days=1), today
        if not inside or began.weekday() not in self.days:
            return None
        end = _moment(day, self.end, zone)
        # If clocks are set back over the end, it occurs twice: the second time is meant.
        return end if end > at else _moment(day, self.end, zone, fold=1)

    def begins(self, at: float) -> float:
        """When the hours begin next, at `at` or later, in seconds since 1970."""
        zone = _zone(self.zone)
        today = datetime.fromtimestamp(at, zone).date()
        for more in range(9):
            day = today + timedelta(days=more)
            begin = _moment(day, self.start, zone)
            if day.weekday() in self.days and begin >= at:
                return begin
        raise AssertionError(f"{self} never begins")

    def __str__(self) -> str:
        end = "24:00" if self.start == self.end else f"{self.end:%H:%M}"
        hours = f"{self.start:%H:%M}-{end} {self.zone}"
        if self.days == _EVERY_DAY:
            return hours
        return f"{','.join(DAYS[each] for each in sorted(self.days))} {hours}"


def _moment(day: date, clock: time, zone: ZoneInfo, fold: int = 0) -> float:
    return datetime.combine(day, clock, zone).replace(fold=fold).timestamp()


def _days(listed: str, where: str) -> frozenset[int]:
    """The days in "Sat,Sun" or "Mon-Fri"; a range may go over Sunday."""
    found: set[int] = set()
    for part in listed.split(","):
        first, dash, last = part.replace("–", "-").partition("-")
        begin = _day(first, where)
        end = _day(last, where) if dash else begin
        found |= {(begin + more) % 7 for more in range((end - begin) % 7 + 1)}
    return frozenset(found)


def _day(text: str, where: str) -> int:
    name = text.strip().capitalize()
    whole = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
    for number, day in enumerate(DAYS):
        if name in (day, whole[number]):
            return number
    raise ConfigError(f"{where}: {name!r} is not a day; {did_you_mean(name, DAYS)}")


@lru_cache(64)
def _zone(name: str, setting: str = "quiet") -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ConfigError(
            f"{setting}: {shown(name)} is not a known time zone; give one like 'Europe/Berlin'"
        ) from None
