"""`pollwise fleet history`: uptimes, latencies and incidents of one target, or of all."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.text import Text

from pollwise.cli.fleet import opening
from pollwise.cli.fleet.opening import File, Store
from pollwise.cli.options import Json
from pollwise.cli.output import (
    NOTHING,
    fail,
    moment,
    out,
    print_json,
    print_table,
    rounded,
    say,
    visible,
)
from pollwise.durations import short
from pollwise.errors import ConfigError, did_you_mean
from pollwise.fleet.history.as_json import PERCENTILES, history_json, uptimes_json
from pollwise.fleet.history.values import (
    DAY,
    HOUR,
    NO_POLLS,
    NO_TIME,
    PeriodState,
    PollFigures,
    percent,
)
from pollwise.fleet.history.views import (
    TARGETS_MAX,
    UPTIME_WINDOWS,
    StripCell,
    TargetHistory,
    Uptimes,
    since_of,
    strips,
    target_history,
    uptimes,
)
from pollwise.fleet.stores.base import FleetStore
from pollwise.fleet.stores.paging import TargetFilter

#: The character for a cell of a strip, readable without colours too.
GLYPHS: dict[PeriodState, tuple[str, str]] = {
    "up": ("▂", "green"),
    "down": ("█", "red"),
    "maintenance": ("▒", "blue"),
    "unknown": ("·", "dim"),
}
STYLES = {state: style for state, (_, style) in GLYPHS.items()}
#: The strips: the last two days by hours, and the last ninety days.
HOUR_CELLS, DAY_CELLS = 48, 90
#: How many incidents are shown to people.
INCIDENTS_SHOWN = 20


@dataclass(frozen=True)
class _Shown:
    """What is printed of one target."""

    history: TargetHistory
    uptimes: Uptimes
    hours: Sequence[StripCell]
    days: Sequence[StripCell]


def history(
    name: Annotated[str | None, typer.Argument(help="The name of a target.")] = None,
    every: Annotated[bool, typer.Option("--all", help="The uptimes of all targets.")] = False,
    since: Annotated[str, typer.Option(help="How far back: 24h, 7d; at most 100d.")] = "7d",
    file: File = None,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Show when a target was up and down: uptimes, latencies, and incidents; --all for all targets.

    Uptime is up ÷ (up + down). Time in which nobody polled, and maintenance, do not count.

    Example: pollwise fleet history "front page" --since 30d --store sqlite:///fleet.db
    """
    if (name is None) is not every:
        raise ConfigError("name one target, or give --all")
    now = time.time()
    begins = since_of(since, now, "--since")
    settings = opening.settings_for(file, store)
    if name is None:
        found = opening.with_store(settings, lambda opened: _all(opened, now))
        if as_json:
            print_json([uptimes_json(each) for each in found])
        else:
            _show_all(found, now)
        return
    planned = [each.name for each in opening.listed_file(settings).targets]
    shown = opening.with_store(settings, lambda opened: _one(opened, name, begins, now, planned))
    if as_json:
        windows = uptimes_json(shown.uptimes)["windows"]
        print_json({**history_json(shown.history), "windows": windows})
    else:
        _show_one(shown, since, now)


async def _all(store: FleetStore, now: float) -> list[Uptimes]:
    found: list[Uptimes] = []
    after: str | None = None
    while True:
        page = await store.page(TargetFilter(limit=TARGETS_MAX, after=after))
        some = await uptimes(store, [each.name for each in page.targets], now)
        found += [some[each.name] for each in page.targets if each.name in some]
        after = page.next
        if after is None:
            return found


async def _one(
    store: FleetStore, name: str, since: float, now: float, planned: Collection[str]
) -> _Shown:
    """planned: the targets of the file, which may not be polled yet."""
    history = await target_history(store, name, since, now)
    if history is None and name in planned:
        return _Shown(
            TargetHistory(name, since, now, None, NO_TIME, NO_POLLS, [], [], []),
            Uptimes(name, None, None, dict.fromkeys(UPTIME_WINDOWS, NO_TIME)),
            (),
            (),
        )
    if history is None:
        known = [*planned, *(each.name for each in await store.load())]
        hint = did_you_mean(name, known, "")
        fail(f"this fleet has no target {name!r}{hint and f'; {hint}'}")
        raise typer.Exit(1)
    windows = await uptimes(store, [name], now)
    hours = await strips(store, [name], now, cells=HOUR_CELLS, seconds=HOUR)
    days = await strips(store, [name], now, cells=DAY_CELLS, seconds=DAY)
    return _Shown(history, windows[name], hours[name], days[name])


def _show_one(shown: _Shown, since: str, now: float) -> None:
    history, state = shown.history, shown.uptimes.state
    if state is None or shown.uptimes.since is None:
        say((visible(history.target), "bold"), " was never polled")
        return
    lasted = rounded(now - shown.uptimes.since)
    word = "under maintenance" if state == "maintenance" else state
    say((visible(history.target), "bold"), " has been ", (word, STYLES[state]), f" for {lasted}")
    print_table(
        ("window", "uptime", "down", "maintenance", "observed"),
        [
            (
                window,
                percent(times.uptime),
                rounded(times.down) if times.down else NOTHING,
                rounded(times.maintenance) if times.maintenance else NOTHING,
                rounded(times.up + times.down + times.maintenance),
            )
            for window, times in shown.uptimes.windows.items()
        ],
    )
    out.print(_strip("48 hours", shown.hours), soft_wrap=True)
    out.print(_strip("90 days ", shown.days), soft_wrap=True)
    say((", ".join(f"{glyph} {state}" for state, (glyph, _) in GLYPHS.items()), "dim"))
    say(_figures(history.figures, since))
    listed = history.incidents[:INCIDENTS_SHOWN]
    print_table(
        ("down since", "until", "lasted", "reason"),
        [
            (
                moment(each.started_at),
                "now" if each.ended_at is None else moment(each.ended_at),
                rounded(each.lasted),
                each.reason,
            )
            for each in listed
        ],
        empty=f"no incidents in the last {since}",
        narrow=("down since", "until", "lasted"),
        cut="reason",
    )
    if len(history.incidents) > len(listed):
        say(f"… and {len(history.incidents) - len(listed)} more; --json has all")


def _strip(title: str, cells: Sequence[StripCell]) -> Text:
    parts = [GLYPHS[each.state] for each in cells]
    return Text.assemble(f"{title}  ", *parts)


def _figures(figures: PollFigures, since: str) -> str:
    polls = "1 poll" if figures.polls == 1 else f"{figures.polls} polls"
    text = f"last {since}: {polls}, {figures.failed} failed, {figures.changed} changed"
    times = [
        f"{name} {short(found)}"
        for name, share in PERCENTILES.items()
        if (found := figures.latency.quantile(share)) is not None
    ]
    if times:
        text += f"; latency {', '.join(times)}"
    if figures.values:
        text += f"; value {figures.low:g} to {figures.high:g}, mean {figures.value_mean:.4g}"
    return text


def _show_all(every: Sequence[Uptimes], now: float) -> None:
    """The targets with the lowest uptime of 30 days first."""

    def order(each: Uptimes) -> tuple[float, str]:
        share = each.windows["30d"].uptime
        return 2.0 if share is None else share, each.target

    print_table(
        ("target", "state", "for", *UPTIME_WINDOWS),
        [
            (
                each.target,
                each.state or "new",
                NOTHING if each.since is None else rounded(now - each.since),
                *(percent(times.uptime) for times in each.windows.values()),
            )
            for each in sorted(every, key=order)
        ],
        empty="no target was polled yet",
        narrow=("state", "for", *UPTIME_WINDOWS),
    )
