"""`pollwise queue history` and `pollwise outbox history`: what workers and relays did."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Annotated, Any, Literal, cast

import typer

from pollwise.cli.options import Json
from pollwise.cli.output import NOTHING, moment, print_json, print_table, rounded, say
from pollwise.cli.queue.opening import Url, with_queue
from pollwise.durations import seconds
from pollwise.errors import ConfigError
from pollwise.queues.base import Queue
from pollwise.runtime.rollups import Histogram, HistoryPoint, by_kind, merged, series
from pollwise.runtime.rollups.keeping import HISTORY_HOURS_KEPT, KeptHistory
from pollwise.runtime.rollups.points import HOUR, MINUTE

Since = Annotated[str, typer.Option("--since", help="How far back: 1h, 7d. At most 90d.")]
By = Annotated[str | None, typer.Option("--by", help="minute or hour; by default, about 24 lines.")]
Kinds = Annotated[list[str] | None, typer.Option("--kind", help="Only this kind; may be repeated.")]
#: The steps of the table without --by, in seconds: the first that makes at most STEPS_MAX lines.
STEPS = (MINUTE, 5 * MINUTE, 15 * MINUTE, HOUR, 3 * HOUR, 6 * HOUR, 24 * HOUR, 7 * 24 * HOUR)
STEPS_MAX = 24
BARS = "▁▂▃▄▅▆▇█"


def history(
    url: Url, since: Since = "24h", by: By = None, kind: Kinds = None, as_json: Json = False
) -> None:
    """Show what the workers of a queue did: runs, failures, waits and polls over time.

    Workers write it about once a minute. It is kept by minute for 7 days, then by hour for 90.

    Example: pollwise queue history sqlite:///jobs.db --since 6h --kind mail
    """

    async def work(queue: Queue) -> None:
        await print_history(queue, "jobs", since, by, kind, as_json)

    with_queue(url, work)


async def print_history(
    store: KeptHistory,
    what: str,
    since: str,
    by: str | None,
    kinds: Sequence[str] | None,
    as_json: bool,
) -> None:
    """Print the history of a queue or an outbox; what: the plural of what it holds."""
    span = min(seconds(since, "--since", positive=True), HISTORY_HOURS_KEPT)
    if by not in (None, "minute", "hour"):
        raise ConfigError(f"--by {by} must be minute or hour")
    step = {"minute": MINUTE, "hour": HOUR}.get(by or "") or next(
        (each for each in STEPS if span / each <= STEPS_MAX), STEPS[-1]
    )
    # The last step is not over yet, so the first is whole.
    asked = cast(Literal["minute", "hour"], by or ("minute" if step < HOUR else "hour"))
    points = await store.history(span, kinds or None, asked)
    if as_json:
        print_json({"points": [facts_of(each) for each in points]})
        return
    if not points:
        say(
            f"no history of the last {since}: no worker or relay that keeps one has run, or it has "
            "not written yet (about once a minute)"
        )
        return
    now = store.clock.epoch()
    steps = series(points, step, max(now - span, points[0].at), now)
    polled = any(each.polls for each in points)  # not if kinds were chosen
    _print_lines(steps, polled)
    say()
    columns = ("done", "failed", "dead", "wait p50", "p95", "run p50", "p95")
    more = ("polls", "empty") if polled else ()
    print_table(
        ("from", *columns, *more),
        [
            (
                moment(each.at)[:16] + "Z",
                *_cells(each),
                *((each.polls, each.empty_polls) if polled else ()),
            )
            for each in steps
        ],
    )
    named = {name: each for name, each in by_kind(points).items() if name}
    if len(named) > 1:
        say()
        print_table(
            ("kind", *columns),
            [(name, *_cells(each)) for name, each in named.items()],
        )
    _print_polls(merged(points), what)


def _print_lines(steps: Sequence[HistoryPoint], polled: bool) -> None:
    """One line of bars for each figure."""
    lines: dict[str, list[float]] = {
        "done": [each.done for each in steps],
        "failed": [each.failed for each in steps],
        "wait p95": [each.waits.quantile(0.95) or 0.0 for each in steps],
    }
    if polled:
        lines["polls"] = [each.polls for each in steps]
    for name, values in lines.items():
        highest = max(values)
        shown = rounded(highest) if name == "wait p95" else f"{highest:,.0f}"
        say(f"{name:<9}{sparkline(values)}  highest {shown}")


def _print_polls(whole: HistoryPoint, what: str) -> None:
    if not whole.polls:
        return
    say()
    each = f", {whole.found / whole.polls:.2g} {what} a poll" if whole.found else ""
    fixed = whole.polls_at(whole.interval_low or 0.1)
    polls = "1 poll" if whole.polls == 1 else f"{whole.polls:,} polls"
    line = f"{polls}, {whole.empty_polls / whole.polls:.0%} empty{each}"
    if fixed > whole.polls:
        low = rounded(whole.interval_low or 0.1)
        line += f"; polling every {low} would have made {fixed:,.0f}"
    say(line)


def _cells(point: HistoryPoint) -> tuple[object, ...]:
    counts = (point.done, point.failed, point.dead)
    return (*counts, *_quantiles(point.waits), *_quantiles(point.durations))


def _quantiles(histogram: Histogram) -> tuple[str, str]:
    found = [histogram.quantile(share) for share in (0.5, 0.95)]
    first, second = (NOTHING if each is None else _short(each) for each in found)
    return first, second


def _short(duration: float) -> str:
    if duration < 0.001:
        return "<1ms"
    return f"{duration * 1000:.2g}ms" if duration < 0.1 else rounded(duration)


def sparkline(values: Sequence[float]) -> str:
    """Bars from 0 to the highest value; blank for 0."""
    highest = max(values, default=0.0)
    if not highest:
        return " " * len(values)
    last = len(BARS) - 1
    return "".join(
        BARS[min(math.floor(value / highest * len(BARS)), last)] if value else " "
        for value in values
    )


def facts_of(point: HistoryPoint) -> dict[str, Any]:
    """A point as plain values; histograms as count, mean and quantiles in seconds."""
    values = {field.name: getattr(point, field.name) for field in fields(point)}
    return {
        **{
            name: _summary(value) if isinstance(value, Histogram) else value
            for name, value in values.items()
        },
        "interval_mean": point.interval_mean,
    }


def _summary(histogram: Histogram) -> dict[str, Any]:
    shares = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    return {
        "count": histogram.count,
        "mean": histogram.mean,
        **{name: histogram.quantile(share) for name, share in shares.items()},
    }
