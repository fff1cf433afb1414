"""Quiet hours: when a target is not polled, in the local time of a time zone.

"22:00-06:00 Europe/Berlin" ends at six in the morning there, in summer and in winter, so the night
of a clock change is an hour longer or shorter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from pollwise.durations import shown
from pollwise.errors import ConfigError

_FORM = re.compile(r"\s*(\d{1,2}):(\d{2})\s*[-–]\s*(\d{1,2}):(\d{2})(?:\s+(\S+))?\s*")


@dataclass(frozen=True, slots=True)
class Quiet:
    """From `start` to `end`, every day, in `zone`; a start after the end spans midnight."""

    start: time
    end: time
    zone: str = "UTC"

    @classmethod
    def parsed(cls, text: str) -> Quiet:
        """Read "22:00-06:00 Europe/Berlin"; without a zone, UTC."""
        found = _FORM.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise ConfigError(
                f"quiet = {shown(text)} must have the form '22:00-06:00 Europe/Berlin'"
            )
        first, second, third, fourth, zone = found.groups()
        try:
            start, end = time(int(first) % 24, int(second)), time(int(third) % 24, int(fourth))
        except ValueError:
            raise ConfigError(f"quiet = {shown(text)} has an invalid hour or minute") from None
        if max(int(first), int(third)) > 24:
            raise ConfigError(f"quiet = {shown(text)} has an invalid hour or minute")
        if start == end:
            raise ConfigError(
                f"quiet = {shown(text)} begins when it ends; to stop polling, pause the target"
            )
        _zone(zone or "UTC")
        return cls(start, end, zone or "UTC")

    def ends(self, at: float) -> float | None:
        """End of the quiet hours around `at`, in seconds since 1970; None outside quiet hours."""
        zone = _zone(self.zone)
        local = datetime.fromtimestamp(at, zone)
        today = local.date()
        clock = local.time()
        if self.start < self.end:
            inside, day = self.start <= clock < self.end, today
        else:
            inside = clock >= self.start or clock < self.end
            day = today + timedelta(days=1) if clock >= self.start else today
        if not inside:
            return None
        end = datetime.combine(day, self.end, zone).timestamp()
        # If clocks are set back over the end, it occurs twice: the second time is meant.
        return (
            end if end > at else datetime.combine(day, self.end, zone).replace(fold=1).timestamp()
        )

    def __str__(self) -> str:
        return f"{self.start:%H:%M}-{self.end:%H:%M} {self.zone}"


@lru_cache(64)
def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ConfigError(
            f"quiet: {shown(name)} is not a known time zone; give one like 'Europe/Berlin'"
        ) from None
