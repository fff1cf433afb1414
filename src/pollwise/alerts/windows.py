"""Maintenance windows: once, or recurring; for some targets, for groups, or for all.

    [[maintenance]]
    groups = ["shop"]
    every = "Sat,Sun 02:00-04:00 Europe/Zurich"
    note = "backups"

Files, the API and commands give windows as such tables.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from pollwise.alerts.quiet import Quiet
from pollwise.durations import seconds, shown
from pollwise.errors import ConfigError, did_you_mean

#: Limits: windows in a store, names in one, characters of a note, and seconds of a window that does
#: not recur.
WINDOWS_MAX = 1000
NAMES_MAX = 1000
NOTE_MAX = 500
LENGTH_MAX = 366 * 86400.0
#: How long a window is kept after its end, in seconds.
WINDOWS_KEPT = 90 * 86400.0
KEYS = ("all", "end", "every", "for", "groups", "note", "start", "targets")


@dataclass(frozen=True, slots=True)
class MaintenanceWindow:
    """A time in which alerts of some targets are held back. Times are in seconds since 1970.

    targets, groups: what it is for; both empty for all targets.
    every: when it recurs; None for once.
    starts_at, ends_at: of a window that does not recur. One that recurs is in force only between
        the two.
    made_by: who made it; "" for one of a file.
    """

    id: str
    targets: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    every: Quiet | None = None
    starts_at: float | None = None
    ends_at: float | None = None
    note: str = ""
    made_by: str = ""
    made_at: float = 0.0
    from_file: bool = False

    def until(self, epoch: float) -> float | None:
        """When it ends, if it is under way at this time."""
        if self.starts_at is not None and epoch < self.starts_at:
            return None
        if self.ends_at is not None and epoch >= self.ends_at:
            return None
        if self.every is None:
            return self.ends_at
        end = self.every.ends(epoch)
        return end if end is None or self.ends_at is None else min(end, self.ends_at)

    def next(self, epoch: float) -> float | None:
        """When it begins the next time; None if it does not, or is under way."""
        if self.until(epoch) is not None:
            return None
        first = epoch if self.starts_at is None else max(self.starts_at, epoch)
        if self.every is None:
            begin = self.starts_at if self.starts_at is not None else epoch
        else:
            begin = first if self.every.ends(first) is not None else self.every.begins(first)
        over = self.ends_at is not None and begin >= self.ends_at
        return None if over or begin < epoch else begin

    def ended(self, epoch: float) -> MaintenanceWindow:
        """The window after its end was ordered now; one that recurs begins again at its next time.

        ConfigError if it is not under way.
        """
        until = self.until(epoch)
        if until is None:
            raise ConfigError(f"maintenance {self.id} is not under way; remove it to cancel it")
        if self.every is None:
            return replace(self, ends_at=epoch)
        return replace(self, starts_at=until)

    @property
    def whom(self) -> str:
        """What it is for, in words."""
        named = [f"group {each}" for each in self.groups] + list(self.targets)
        return ", ".join(named) or "all targets"

    def as_dict(self, epoch: float) -> dict[str, Any]:
        """As plain values, with whether it is under way."""
        every = None if self.every is None else str(self.every)
        until, begin = self.until(epoch), self.next(epoch)
        return {**asdict(self), "every": every, "active_until": until, "next_at": begin}


class MaintenanceWindows:
    """The windows that a fleet knows: those of its file, and those of its store.

    It is a `Maintenance`: alerts and the history ask it which targets a window covers.
    """

    def __init__(self) -> None:
        self._of_file: tuple[MaintenanceWindow, ...] = ()
        self._stored: tuple[MaintenanceWindow, ...] = ()
        self._all: list[MaintenanceWindow] = []
        self._by_target: dict[str, list[MaintenanceWindow]] = {}
        self._by_group: dict[str, list[MaintenanceWindow]] = {}

    def set_file(self, windows: Sequence[MaintenanceWindow]) -> None:
        """Use these windows of the file, in place of those before."""
        self._of_file = tuple(windows)
        self._index()

    def set_stored(self, windows: Sequence[MaintenanceWindow]) -> bool:
        """Use these windows of the store, in place of those before. True if any changed."""
        if tuple(windows) == self._stored:
            return False
        self._stored = tuple(windows)
        self._index()
        return True

    def _index(self) -> None:
        self._all, self._by_target, self._by_group = [], {}, {}
        for each in self:
            for name in each.targets:
                self._by_target.setdefault(name, []).append(each)
            for name in each.groups:
                self._by_group.setdefault(name, []).append(each)
            if not each.targets and not each.groups:
                self._all.append(each)

    def __iter__(self) -> Iterator[MaintenanceWindow]:
        yield from self._of_file
        yield from self._stored

    @property
    def stored(self) -> tuple[MaintenanceWindow, ...]:
        return self._stored

    def of(self, target: str, group: str | None) -> list[MaintenanceWindow]:
        """All windows for a target, under way or not."""
        theirs = self._by_target.get(target, ())
        groups = () if group is None else self._by_group.get(group, ())
        return [*self._all, *theirs, *groups]

    def covers(self, target: str, group: str | None, epoch: float) -> float | None:
        """Until when a target is under maintenance at this time, both in seconds since 1970; None
        if it is not."""
        if not (self._all or self._by_target or self._by_group):
            return None
        ends = (each.until(epoch) for each in self.of(target, group))
        return max((end for end in ends if end is not None), default=None)


def new_id() -> str:
    """An id for a window: short, because people type it."""
    return f"m{secrets.token_hex(4)}"


def read_window(
    table: object,
    now: float,
    wrong: Callable[[str], None],
    *,
    targets: Collection[str] | None = None,
    groups: Collection[str] | None = None,
    from_file: bool = False,
) -> MaintenanceWindow | None:
    """The window of a table, or None; `wrong` is called with each thing that is wrong with it.

    now: seconds since 1970; a window without a start begins then.
    targets, groups: the known names; None does not check them.
    """
    if not isinstance(table, Mapping):
        wrong("must be a table")
        return None
    problems: list[str] = []
    for key in table:
        if key not in KEYS:
            problems.append(f"{shown(key)} is not known; {did_you_mean(str(key), KEYS)}")
    named = {
        "targets": _names(table, "targets", "target", targets, problems),
        "groups": _names(table, "groups", "group", groups, problems),
    }
    everything = table.get("all", False)
    if not isinstance(everything, bool):
        problems.append(f"all = {shown(everything)} must be true or false")
    elif everything == bool(table.get("targets") or table.get("groups")):
        problems.append("give targets, groups, or all = true")
    note = table.get("note", "")
    if not isinstance(note, str) or len(note) > NOTE_MAX:
        problems.append(f"note must be text of at most {NOTE_MAX} characters")
    times = _times(table, now, problems, from_file=from_file)
    for each in problems:
        wrong(each)
    if problems:
        return None
    return MaintenanceWindow(
        new_id(), named["targets"], named["groups"], *times, note, made_at=now, from_file=from_file
    )


def _names(
    table: Mapping[str, Any],
    key: str,
    what: str,
    known: Collection[str] | None,
    problems: list[str],
) -> tuple[str, ...]:
    given = table.get(key, [])
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not all(isinstance(each, str) for each in names):
        problems.append(f"{key} = {shown(given)} must be a list of names")
        return ()
    if len(names) > NAMES_MAX:
        problems.append(f"{key}: {len(names)} names are more than the {NAMES_MAX} allowed")
        return ()
    for each in names:
        if known is not None and each not in known:
            near = did_you_mean(each, known, f"{key} lists names of the fleet")
            problems.append(f"{key}: there is no {what} {shown(each)}; {near}")
    return tuple(dict.fromkeys(names))


def _times(
    table: Mapping[str, Any], now: float, problems: list[str], *, from_file: bool
) -> tuple[Quiet | None, float | None, float | None]:
    """When a window recurs, begins and ends."""

    def read(key: str) -> float | None:
        try:
            return moment_of(table[key], key) if key in table else None
        except ConfigError as error:
            problems.append(str(error))
            return None

    start, end, before = read("start"), read("end"), len(problems)
    every = None
    if "every" in table:
        try:
            every = Quiet.parsed(table["every"], "every")
        except ConfigError as error:
            problems.append(str(error))
    if "for" in table:
        try:
            length = seconds(table["for"], "for", positive=True)
        except ConfigError as error:
            problems.append(str(error))
            return every, start, end
        if "end" in table or "every" in table:
            problems.append("for goes with start, or alone from now on; leave out end and every")
        elif from_file and "start" not in table:
            problems.append("for needs a start")
        end = (now if start is None else start) + length
    if "every" not in table and "end" not in table and "for" not in table:
        problems.append("give every, or end, or for: when does it end?")
    if len(problems) > before:
        return every, start, end
    if every is None and start is None:
        if from_file:
            problems.append("start is missing")
        start = now
    if end is not None and start is not None and end <= start:
        problems.append("the end must be after the start")
    elif end is not None and end <= now and not from_file:
        problems.append("the end is in the past")
    elif every is None and end is not None and start is not None and end - start > LENGTH_MAX:
        problems.append("a window may last at most 366 days; pause targets that are out of use")
    return every, start, end


def moment_of(value: object, name: str) -> float:
    """A moment in seconds since 1970: an aware datetime, or a text such as "2026-12-24 22:00
    Europe/Zurich" or "2026-12-24T22:00+01:00"."""
    example = "'2026-12-24 22:00 Europe/Zurich' or '2026-12-24T22:00+01:00'"
    moment = value
    if isinstance(value, str):
        text, _, zone = value.strip().rpartition(" ")
        try:
            if zone.partition("/")[0].isalpha() and text:
                moment = datetime.fromisoformat(text)
                moment = moment.replace(tzinfo=moment.tzinfo or ZoneInfo(zone))
            else:
                moment = datetime.fromisoformat(value.strip())
        except (KeyError, OSError, ValueError):
            moment = None
    if not isinstance(moment, datetime):
        raise ConfigError(f"{name} = {shown(value)} must be a time such as {example}")
    if moment.tzinfo is None:
        raise ConfigError(f"{name} = {shown(value)} has no time zone; write {example}")
    try:
        return moment.timestamp()
    except (OverflowError, ValueError):
        raise ConfigError(f"{name} = {shown(value)} is too far away") from None
