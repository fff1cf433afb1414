"""Draw the pictures of README and docs.

pacing.svg: a minute of bursty traffic and when each policy polls. It is measured: the real loop
polls a real queue under the virtual clock. worth.svg: the rule of Worth on three forecasts.
until.svg: what Completion learns of builds by polling them. The others are diagrams (diagrams.py).
Run this after a change of the loop, of a strategy or of architecture.toml; `--check` fails when a
picture is out of date.

    python scripts/picture.py [--check]
"""

from __future__ import annotations

import asyncio
import math
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import svg
from diagrams import draw_architecture, draw_job, draw_pollers, draw_record
from pollwise import Adaptive, Fixed, NewJob, Strategy, poll
from pollwise.lab.replay.fixed import percentile
from pollwise.lab.runs.compare import compare
from pollwise.lab.runs.picture import picture as runs_picture
from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import Events, PollFinished

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "assets"
SECONDS = 60.0
SEED = 1
#: What is compared: a name, a strategy, and whether a put wakes the loop.
POLICIES: tuple[tuple[str, Strategy, bool], ...] = (
    ("Adaptive", Adaptive("100ms", "5s"), False),
    ("with hints", Adaptive("100ms", "5s"), True),
    ("Fixed 500 ms", Fixed("500ms"), False),
    ("Fixed 100 ms", Fixed("100ms"), False),
)

LEFT, RIGHT, WIDTH, HEIGHT = 16, 62, 600, 446
BOLD = 'font-weight="600"'
ABOUT = "Poll interval and polls of four policies over a minute"
ABOUT_WORTH = "Expected waiting over time for three forecasts, up to the price of a poll"


@dataclass
class Replay:
    """When a policy polled, its interval after each poll, and how long each item waited."""

    polls: list[float]
    found: list[bool]
    intervals: list[float]
    waits: list[float]


def traffic(seed: int) -> list[float]:
    """Bursts of a few items a second, then silence."""
    rng = random.Random(seed)
    arrivals, now = [], 3.0
    while now < SECONDS:
        until = now + rng.uniform(3.0, 7.0)
        while now < min(until, SECONDS):
            arrivals.append(now)
            now += rng.expovariate(4.0)
        now = until + rng.uniform(9.0, 16.0)
    return arrivals


def replay(strategy: Strategy, hinted: bool, arrivals: list[float]) -> Replay:
    clock = VirtualClock()
    result = Replay([], [], [], [])

    async def main() -> None:
        queue = MemoryQueue(clock=clock)
        events = Events(quiet=True)

        def seen(event: PollFinished) -> None:
            result.polls.append(clock.now())
            result.found.append(bool(event.found))
            result.intervals.append(event.interval)

        events.subscribe(seen, PollFinished)

        async def produce() -> None:
            for arrival in arrivals:
                await clock.sleep(arrival - clock.now())
                await queue.put(NewJob("item"))

        async def consume() -> None:
            async def fetch() -> list[object]:
                return list(await queue.claim("picture", 10, "1h"))

            loop = poll(
                fetch,
                strategy,
                capacity=10,
                hints=queue.hints() if hinted else None,
                clock=clock,
                events=events,
                seed=SEED,
            )
            async for claims in loop:
                now = clock.epoch()
                result.waits.extend(now - claim.job.run_at for claim in claims)

        tasks = [asyncio.create_task(produce()), asyncio.create_task(consume())]
        await clock.advance(SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    clock.run(main())
    return result


def x_of(seconds: float) -> float:
    return LEFT + seconds / SECONDS * (WIDTH - LEFT - RIGHT)


def y_of(interval: float) -> float:
    """A logarithmic axis from 100 ms at the bottom to 5 s at the top."""
    share = math.log(interval / 0.1) / math.log(5.0 / 0.1)
    return 214 - share * 92


def ticks(times: list[float], top: float, bottom: float, colour: str, width: float) -> str:
    path = " ".join(f"M{x_of(t):.1f} {top}V{bottom}" for t in times)
    return svg.line(path, colour, width)


def staircase(run: Replay) -> str:
    points, before = [], 0.1
    for at, interval in zip(run.polls, run.intervals, strict=True):
        points += [(x_of(at), y_of(before)), (x_of(at), y_of(interval))]
        before = interval
    points.append((x_of(SECONDS), y_of(before)))
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return svg.line(f"M{path}", svg.BLUE, 1.8)


def shown(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.1f} s" if value >= 1 else f"{value * 1000:.0f} ms"


def draw() -> str:
    arrivals = traffic(SEED)
    runs = [(name, replay(strategy, hinted, arrivals)) for name, strategy, hinted in POLICIES]
    parts = [
        svg.text(LEFT, 28, "A minute of bursty traffic, and when each policy polls", more=BOLD),
        svg.text(LEFT, 56, "items arrive", colour=svg.QUIET),
        ticks(arrivals, 62, 80, svg.ORANGE, 1.6),
        svg.text(LEFT, 108, "the interval of Adaptive", colour=svg.QUIET),
    ]
    for value, label in ((0.1, "100 ms"), (1.0, "1 s"), (5.0, "5 s")):
        y = y_of(value)
        parts.append(svg.line(f"M{LEFT} {y:.1f}H{WIDTH - RIGHT}", svg.FAINT))
        parts.append(svg.text(WIDTH - RIGHT + 6, y + 4, label, colour=svg.QUIET))
    parts.append(staircase(runs[0][1]))
    for row, (name, run) in enumerate(runs):
        top = 236 + row * 44
        empty = [t for t, found in zip(run.polls, run.found, strict=True) if not found]
        hits = [t for t, found in zip(run.polls, run.found, strict=True) if found]
        waits = [shown(percentile(run.waits, share)) for share in (0.5, 0.95)]
        figures = f"{len(run.polls)} polls; an item waits {waits[0]} (median), {waits[1]} (p95)"
        parts += [
            svg.text(LEFT, top + 14, name, more=BOLD),
            svg.text(LEFT + 118, top + 14, figures),
            ticks(empty, top + 20, top + 34, svg.QUIET, 0.8),
            ticks(hits, top + 20, top + 34, svg.BLUE, 1.6),
        ]
    legend = "blue: the poll found items; grey: it found none; virtual time"
    parts.append(svg.text(LEFT, HEIGHT - 12, legend, colour=svg.QUIET))
    return svg.picture(WIDTH, HEIGHT, ABOUT, parts)


#: Forecasts: a name, the rate of items s seconds from now, and its colour.
FORECASTS: tuple[tuple[str, Callable[[float], float], str], ...] = (
    ("in a burst: 2 items a second", lambda s: 2.0, svg.ORANGE),
    ("after a burst: 2, fading to 0.1", lambda s: 0.1 + 1.9 * math.exp(-s / 2), svg.BLUE),
    ("in the silence: 0.1 a second", lambda s: 0.1, svg.QUIET),
)
PRICE = 9.0
HORIZON, STEP, TOP = 15.0, 0.01, 14.0


def waiting(rate: Callable[[float], float]) -> tuple[list[tuple[float, float]], float]:
    """The waiting expected by each moment, up to the price of a poll; and when it gets there."""
    items = total = now = 0.0
    points = [(0.0, 0.0)]
    while total < PRICE:
        items += rate(now) * STEP
        total += items * STEP
        now += STEP
        points.append((now, total))
    return points, now


def draw_worth() -> str:
    """Expected waiting grows until it is worth a poll: then poll again."""
    left, right, top, bottom = 30.0, 580.0, 48.0, 290.0

    def place(at: float, amount: float) -> tuple[float, float]:
        return left + at / HORIZON * (right - left), bottom - amount / TOP * (bottom - top)

    _, level = place(0, PRICE)
    parts = [
        svg.text(left, 28, "Waiting expected since the last poll, in item-seconds", more=BOLD),
        svg.line(f"M{left} {top}V{bottom}H{right}", svg.QUIET),
        svg.line(f"M{left} {level:.1f}H{right}", svg.INK, dash="5 4"),
        svg.text(right, level - 8, "what one poll is worth", "end"),
    ]
    for second in range(0, 16, 3):
        x, _ = place(second, 0)
        parts.append(svg.text(x, bottom + 20, f"{second} s", "middle", svg.QUIET))
    for row, (name, rate, colour) in enumerate(FORECASTS):
        points, due = waiting(rate)
        curve = [place(*point) for point in (*points[::5], points[-1])]
        x, y = place(due, PRICE)
        said = f"{name}: poll after {due:.1f} s"
        parts += [
            svg.line("M" + " ".join(f"{a:.1f},{b:.1f}" for a, b in curve), colour, 2.2),
            f'<circle class="{colour}" cx="{x:.1f}" cy="{y:.1f}" r="5"/>',
            svg.line(f"M{x:.1f} {y:.1f}V{bottom}", colour, dash="2 3"),
            svg.text(left + 20, 66 + 22 * row, said, colour=colour),
        ]
    parts.append(svg.text(left, 338, "seconds after the last poll", colour=svg.QUIET))
    return svg.picture(WIDTH, 350, ABOUT_WORTH, parts)


def draw_until() -> str:
    """What Completion learns of 150 builds by polling, and when it polls the next one."""
    rng = random.Random(11)
    took = [
        rng.uniform(8.0, 20.0) if rng.random() < 0.2 else rng.lognormvariate(5.0, 0.12)
        for _ in range(150)
    ]
    facts = compare({"builds": took}, [], 3.0, 1.0).facts()
    return runs_picture(facts).decode()


PICTURES: dict[str, Callable[[], str]] = {
    "pacing.svg": draw,
    "worth.svg": draw_worth,
    "until.svg": draw_until,
    "pollers.svg": draw_pollers,
    "architecture.svg": draw_architecture,
    "job-states.svg": draw_job,
    "record-states.svg": draw_record,
}


def main(arguments: list[str]) -> int:
    FOLDER.mkdir(parents=True, exist_ok=True)
    stale = []
    for name, picture in PICTURES.items():
        path, drawn = FOLDER / name, picture()
        if path.exists() and path.read_text("utf-8") == drawn:
            continue
        stale.append(name)
        if "--check" not in arguments:
            path.write_text(drawn, "utf-8")
    if stale and "--check" in arguments:
        print(f"out of date: {', '.join(stale)}; run scripts/picture.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
