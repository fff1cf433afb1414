"""Draws the pace of a worker: its interval over time, with its polls as ticks below."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from pollwise.runtime.rollups import HistoryPoint
from pollwise.web.charts.drawing import HEIGHT, WIDTH, clock_label, framed
from pollwise.web.texts import age, counted, number

#: The most ticks of a chart; with more polls each tick stands for several.
TICKS_MAX = 300
#: The shortest interval of the axis, in seconds.
SHORTEST = 0.001


def pace(points: Sequence[HistoryPoint], title: str = "Pace") -> Markup:
    """The interval between polls on a logarithmic axis, and a tick for each poll.

    points: one for each minute, without gaps. The time of a poll within its minute is not known, so
        ticks are spread evenly.
    """
    low, high = _bounds(points)
    per_tick = _per_tick(sum(each.polls for each in points))
    each_tick = "" if per_tick == 1 else f", a tick for {number(per_tick)}"
    legend = [
        ("teal", "interval: mean, shortest to longest"),
        ("blue", f"polls that found jobs{each_tick}"),
        ("grey", "polls that found none"),
    ]
    if any(each.failed_polls for each in points):
        legend.append(("red", "polls that failed"))
    span = points[-1].at - points[0].at if points else 0.0
    polls = sum(each.polls for each in points)
    return framed(
        title,
        legend,
        [each.at for each in points],
        [_tip(each, span) for each in points],
        _band(points, low, high),
        top=age(high),
        middle=age(math.sqrt(low * high)),
        about=f"{title}: {counted(polls, 'poll')}, intervals from {age(low)} to {age(high)}",
        below=_ticks(points, per_tick),
    )


def _bounds(points: Sequence[HistoryPoint]) -> tuple[float, float]:
    """The shortest and the longest interval of the axis, in seconds."""
    lows = [each.interval_low for each in points if each.interval_low is not None]
    highs = [each.interval_high for each in points if each.interval_high is not None]
    low = max(min(lows, default=0.1), SHORTEST)
    high = max(max(highs, default=1.0), low)
    return (low, high) if high > low * 2 else (low / 2, high * 2)


def _band(points: Sequence[HistoryPoint], low: float, high: float) -> str:
    """For each minute an area from its shortest to its longest interval; a line at its mean."""
    step = WIDTH / max(len(points), 1)
    areas, means = [], []
    for i, each in enumerate(points):
        mean = each.interval_mean
        if mean is None or each.interval_low is None or each.interval_high is None:
            continue
        x, top, bottom = (
            i * step,
            _y(each.interval_high, low, high),
            _y(each.interval_low, low, high),
        )
        areas.append(f"M{x:.2f},{top:.2f}h{step:.2f}V{bottom + 0.5:.2f}h{-step:.2f}Z")
        means.append(f"M{x:.2f},{_y(mean, low, high):.2f}h{step:.2f}")
    return (
        f'<path class="tone-teal area" d="{"".join(areas)}"/>'
        f'<path class="tone-teal line" d="{"".join(means)}"/>'
    )


def _y(interval: float, low: float, high: float) -> float:
    share = math.log(max(interval, low) / low) / math.log(high / low)
    return HEIGHT - min(share, 1.0) * (HEIGHT - 2) - 1


def _per_tick(polls: int) -> int:
    """How many polls a tick stands for: 1, 2, 5, 10, 20 …

    >>> [_per_tick(polls) for polls in (10, 301, 1600, 60_000)]
    [1, 2, 10, 200]
    """
    power = 1
    while True:
        for each in (1, 2, 5):
            if polls <= TICKS_MAX * each * power:
                return each * power
        power *= 10


def _ticks(points: Sequence[HistoryPoint], per_tick: int) -> Markup:
    step = WIDTH / max(len(points), 1)
    paths: dict[str, list[str]] = {"": [], "tone-blue ": [], "tone-red ": []}
    for i, each in enumerate(points):
        count = math.ceil(each.polls / per_tick)
        found = max(each.polls - each.empty_polls - each.failed_polls, 0)
        for j in range(count):
            tone = ""
            if each.polls and _falls(found, each.polls, j, count):
                tone = "tone-blue "
            elif each.polls and j >= count - math.ceil(each.failed_polls / per_tick):
                tone = "tone-red "
            paths[tone].append(f"M{(i + (j + 0.5) / count) * step:.2f},0V{HEIGHT:g}")
    drawn = "".join(
        f'<path class="{tone}tick" d="{"".join(path)}"/>' for tone, path in paths.items() if path
    )
    return Markup(
        '<svg class="strip" aria-hidden="true" viewBox="0 0 {} {}" preserveAspectRatio="none">'
        "{}</svg>"
    ).format(f"{WIDTH:g}", f"{HEIGHT:g}", Markup(drawn))  # noqa: S704 - numbers of our own


def _falls(found: int, polls: int, place: int, count: int) -> bool:
    """True for as many of `count` places as `found` is of `polls`, spread evenly."""
    share = round(found * count / polls)
    return (place + 1) * share // count > place * share // count


def _tip(each: HistoryPoint, span: float) -> str:
    if each.interval_low is None or each.interval_high is None or each.interval_mean is None:
        return f"{clock_label(each.at, span)} UTC: no polls"
    return (
        f"{clock_label(each.at, span)} UTC: interval {age(each.interval_low)} to "
        f"{age(each.interval_high)}, mean {age(each.interval_mean)}; "
        f"{counted(each.polls, 'poll')}, {number(each.empty_polls)} empty; "
        f"{counted(each.found, 'job')} found"
    )
