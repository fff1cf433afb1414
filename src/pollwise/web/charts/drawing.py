"""Draws sparklines, stacked columns, lines, and strips of states."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from markupsafe import Markup, escape

from pollwise.web.texts import compact

#: The size of the drawing area, in units of its own; the page stretches it.
WIDTH, HEIGHT = 1000.0, 100.0
#: The width of a value without known neighbours.
POINT = 10.0


@dataclass(frozen=True, slots=True)
class Series:
    """Values of one thing over time. tone: its colour; None in `values`: unknown there."""

    label: str
    values: Sequence[float | None]
    tone: str = "blue"


def sparkline(values: Sequence[float | None], label: str, tone: str = "blue") -> Markup:
    """A small line without axes. label: what it shows, for screen readers."""
    if not any(value is not None for value in values):
        return Markup('<svg class="spark" role="img" aria-label="{}: no data"></svg>').format(label)
    top = max(_known(values), default=0.0) or 1.0
    points = [(_x(i, len(values)), _y(v or 0.0, top)) for i, v in enumerate(values)]
    path = _path(points)
    area = f"{path} L{points[-1][0]:.1f},{HEIGHT:g} L{points[0][0]:.1f},{HEIGHT:g} Z"
    last = next(value for value in reversed(values) if value is not None)
    about = f"{label}: now {compact(last)}, at most {compact(top)}"
    return Markup(
        '<svg class="spark tone-{}" role="img" aria-label="{}" viewBox="0 0 {} {}" '
        'preserveAspectRatio="none"><title>{}</title><path class="area" d="{}"/>'
        '<path class="line" d="{}"/></svg>'
    ).format(tone, about, f"{WIDTH:g}", f"{HEIGHT:g}", about, area, path)


def columns(
    series: Sequence[Series],
    times: Sequence[float],
    title: str,
    unit: str = "",
    shown: Callable[[float], str] = compact,
) -> Markup:
    """Stacked columns over time. times: the start of each, in seconds since 1970."""
    count = len(times)
    sums = [sum(s.values[i] or 0.0 for s in series) for i in range(count)]
    top = nice_top(max(sums, default=0.0))
    step = WIDTH / max(count, 1)
    shapes = []
    for i in range(count):
        base = 0.0
        for one in series:
            value = one.values[i] or 0.0
            if value > 0:
                height = value / top * HEIGHT
                y = HEIGHT - (base + value) / top * HEIGHT
                shapes.append(
                    f'<rect class="tone-{escape(one.tone)} column" x="{i * step + step * 0.08:.2f}"'
                    f' y="{y:.2f}" width="{step * 0.84:.2f}" height="{height:.2f}"/>'
                )
                base += value
    return _figure(series, times, title, unit, shown, top, "".join(shapes))


def lines(
    series: Sequence[Series],
    times: Sequence[float],
    title: str,
    unit: str = "",
    shown: Callable[[float], str] = compact,
) -> Markup:
    """Lines over time; a gap where a value is not known."""
    top = nice_top(max((v for s in series for v in _known(s.values)), default=0.0))
    count = len(times)
    shapes = []
    for one in series:
        for run in _runs(one.values):
            points = [(_x(i, count), _y(v, top)) for i, v in run]
            if len(points) == 1:  # a short dash, so that it is visible
                x, y = points[0]
                points = [(x - POINT / 2, y), (x + POINT / 2, y)]
            shapes.append(f'<path class="tone-{escape(one.tone)} line" d="{_path(points)}"/>')
    return _figure(series, times, title, unit, shown, top, "".join(shapes))


def strip(cells: Sequence[tuple[str, str]], label: str) -> Markup:
    """A row of small cells, oldest first: each a tone and the text that it shows on hover."""
    step = WIDTH / max(len(cells), 1)
    drawn = Markup("").join(
        Markup(
            '<rect class="tone-{} cell" x="{}" y="0" width="{}" height="{}">'
            "<title>{}</title></rect>"
        ).format(tone, f"{i * step + step * 0.1:.2f}", f"{step * 0.8:.2f}", f"{HEIGHT:g}", text)
        for i, (tone, text) in enumerate(cells)
    )
    return Markup(
        '<svg class="strip" role="img" aria-label="{}" viewBox="0 0 {} {}" '
        'preserveAspectRatio="none">{}</svg>'
    ).format(label, f"{WIDTH:g}", f"{HEIGHT:g}", drawn)


def ticks(tones: Sequence[str], label: str) -> Markup:
    """A row of small cells without values on hover, oldest first: one path for each tone."""
    step = WIDTH / max(len(tones), 1)
    wide = f"h{step * 0.7:.1f}v{HEIGHT:g}h-{step * 0.7:.1f}z"
    paths = Markup("").join(
        Markup('<path class="tone-{} cell" d="{}"/>').format(
            tone,
            "".join(
                f"M{i * step + step * 0.15:.1f},0{wide}" for i, t in enumerate(tones) if t == tone
            ),
        )
        for tone in dict.fromkeys(tones)
    )
    return Markup(
        '<svg class="strip" role="img" aria-label="{}" viewBox="0 0 {} {}" '
        'preserveAspectRatio="none"><title>{}</title>{}</svg>'
    ).format(label, f"{WIDTH:g}", f"{HEIGHT:g}", label, paths)


def nice_top(value: float) -> float:
    """The top of an axis: the next of 1, 2, 5 times a power of ten.

    >>> [nice_top(v) for v in (0, 3, 7, 120, 0.03)]
    [1.0, 5.0, 10.0, 200.0, 0.05]
    """
    if value <= 0 or not math.isfinite(value):
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(
        round(each * power, 12) for each in (1.0, 2.0, 5.0, 10.0) if value <= each * power * 1.0001
    )


def clock_label(at: float, span: float) -> str:
    """A time for an axis that covers `span` seconds, in UTC."""
    form = "%H:%M" if span <= 2 * 86400 else "%b %d"
    return datetime.fromtimestamp(at, UTC).strftime(form)


def _figure(
    series: Sequence[Series],
    times: Sequence[float],
    title: str,
    unit: str,
    shown: Callable[[float], str],
    top: float,
    shapes: str,
) -> Markup:
    """A chart of series with one linear axis."""
    count = len(times)
    span = times[-1] - times[0] if count > 1 else 0.0
    tips = []
    for i, at in enumerate(times):
        values = ", ".join(
            f"{s.label} {'–' if (v := s.values[i]) is None else shown(v)}" for s in series
        )
        tips.append(f"{clock_label(at, span)} UTC: {values}{' ' + unit if unit else ''}")
    peak = max((v for s in series for v in _known(s.values)), default=0.0)
    return framed(
        title,
        [(s.tone, s.label) for s in series],
        times,
        tips,
        shapes,
        top=shown(top) + (f" {unit}" if unit else ""),
        middle=shown(top / 2),
        about=f"{title}: {count} intervals, at most {shown(peak)}{' ' + unit if unit else ''}",
    )


def framed(
    title: str,
    legend: Sequence[tuple[str, str]],
    times: Sequence[float],
    tips: Sequence[str],
    shapes: str,
    *,
    top: str,
    middle: str,
    about: str,
    below: Markup = Markup(""),  # noqa: B008 - immutable
) -> Markup:
    """Shapes with a heading, a legend, axes and hover areas.

    legend: pairs of a tone and a label. tips: what each position shows on hover. shapes: SVG of
    numbers and tones of our own. top, middle: labels of the axis. below: what follows the plot.
    """
    count = len(times)
    step = WIDTH / max(count, 1)
    span = times[-1] - times[0] if count > 1 else 0.0
    hits = [
        Markup(
            '<rect class="hit" x="{}" y="0" width="{}" height="{}" data-tip="{}">'
            "<title>{}</title></rect>"
        ).format(f"{i * step:.2f}", f"{step:.2f}", f"{HEIGHT:g}", tip, tip)
        for i, tip in enumerate(tips)
    ]
    entries = Markup("").join(
        Markup('<li class="tone-{}">{}</li>').format(tone, label) for tone, label in legend
    )
    ticks = [times[round(i * (count - 1) / 4)] for i in range(5)] if count > 4 else list(times)
    axis = Markup("").join(Markup("<span>{}</span>").format(clock_label(t, span)) for t in ticks)
    return Markup(
        '<figure class="chart"><figcaption><span class="chart-title">{}</span>'
        '<ul class="legend">{}</ul><output class="tip"></output></figcaption>'
        '<div class="plot"><span class="y-top">{}</span><span class="y-mid">{}</span>'
        '<svg role="img" aria-label="{}" viewBox="0 0 {} {}" preserveAspectRatio="none">'
        '<path class="grid" d="M0,0.5H{}M0,{}H{}M0,{}H{}"/>{}{}</svg></div>{}'
        '<div class="x-axis" aria-hidden="true">{}</div></figure>'
    ).format(
        title,
        entries,
        top,
        middle,
        about,
        f"{WIDTH:g}",
        f"{HEIGHT:g}",
        f"{WIDTH:g}",
        f"{HEIGHT / 2:g}",
        f"{WIDTH:g}",
        f"{HEIGHT - 0.5:g}",
        f"{WIDTH:g}",
        Markup(shapes),  # noqa: S704 - numbers and tones of our own
        Markup("").join(hits),
        below,
        axis,
    )


def _runs(values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    """The stretches of known values, each with its positions."""
    runs: list[list[tuple[int, float]]] = [[]]
    for i, value in enumerate(values):
        if value is None or not math.isfinite(value):
            runs.append([])
        else:
            runs[-1].append((i, value))
    return [run for run in runs if run]


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]


def _x(i: int, count: int) -> float:
    return (i + 0.5) * WIDTH / max(count, 1)


def _y(value: float, top: float) -> float:
    return HEIGHT - min(max(value / top, 0.0), 1.0) * (HEIGHT - 2) - 1


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + " L".join(f"{x:.1f},{y:.2f}" for x, y in points)
