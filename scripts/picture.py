"""Draw the pictures of README and docs.

pacing.svg: a minute of bursty traffic and when each policy looks. Nothing in it is made up: the
real loop polls a real queue under the virtual clock. worth.svg: the rule of Worth on three
forecasts. Run it again after a change of the loop or of a strategy; `--check` fails when a picture
is out of date.

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

from pollwise import Adaptive, Fixed, NewJob, Strategy, poll
from pollwise.lab.replay.fixed import percentile
from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import Events, PollFinished

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "assets"
SECONDS = 60.0
SEED = 1
#: What is compared: a name, a strategy, and whether a put wakes the loop.
POLICIES: tuple[tuple[str, Strategy, bool], ...] = (
    ("Adaptive", Adaptive("100ms", "5s"), False),
    ("… and hints", Adaptive("100ms", "5s"), True),
    ("Fixed 500 ms", Fixed("500ms"), False),
    ("Fixed 100 ms", Fixed("100ms"), False),
)

LEFT, RIGHT, WIDTH, HEIGHT = 112, 208, 960, 410
ABOUT = "Poll interval and polls of four policies over a minute"
ABOUT_WORTH = "Expected waiting over time for three forecasts, up to the price of a poll"
HEAD = (
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
    f'aria-label="{ABOUT}" '
    'font-family="system-ui, sans-serif" font-size="13">'
)
INK, QUIET, BLUE, ORANGE = "#1f2933", "#7b8794", "#2563eb", "#d97706"


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
    return 196 - share * 104


def text(x: float, y: float, words: str, anchor: str = "start", colour: str = INK) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{words}</text>'


def ticks(times: list[float], top: float, bottom: float, colour: str, width: float) -> str:
    path = " ".join(f"M{x_of(t):.1f} {top}V{bottom}" for t in times)
    return f'<path d="{path}" stroke="{colour}" stroke-width="{width}" fill="none"/>'


def staircase(run: Replay) -> str:
    points, before = [], 0.1
    for at, interval in zip(run.polls, run.intervals, strict=True):
        points += [(x_of(at), y_of(before)), (x_of(at), y_of(interval))]
        before = interval
    points.append((x_of(SECONDS), y_of(before)))
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{BLUE}" stroke-width="1.8"/>'


def milliseconds(value: float | None) -> str:
    return "–" if value is None else f"{value * 1000:.0f} ms"


def draw() -> str:
    arrivals = traffic(SEED)
    runs = [(name, replay(strategy, hinted, arrivals)) for name, strategy, hinted in POLICIES]
    parts = [
        HEAD,
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff"/>',
        text(LEFT, 26, "A minute of bursty traffic, and when each policy looks"),
        text(LEFT - 10, 62, "items arrive", "end", QUIET),
        ticks(arrivals, 48, 66, ORANGE, 1.6),
        text(LEFT - 10, 112, "Adaptive’s", "end", QUIET),
        text(LEFT - 10, 128, "interval", "end", QUIET),
    ]
    for value, label in ((0.1, "100 ms"), (1.0, "1 s"), (5.0, "5 s")):
        y = y_of(value)
        parts.append(
            f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#e4e7eb" stroke-width="1"/>'
        )
        parts.append(text(WIDTH - RIGHT + 8, y + 4, label, "start", QUIET))
    parts.append(staircase(runs[0][1]))
    parts.append(text(WIDTH - RIGHT + 8, 226, "polls", "start", QUIET))
    parts.append(text(WIDTH - RIGHT + 62, 226, "wait p50", "start", QUIET))
    parts.append(text(WIDTH - RIGHT + 134, 226, "p95", "start", QUIET))
    for row, (name, run) in enumerate(runs):
        top = 236 + row * 38
        empty = [t for t, found in zip(run.polls, run.found, strict=True) if not found]
        hits = [t for t, found in zip(run.polls, run.found, strict=True) if found]
        parts += [
            text(LEFT - 10, top + 15, name, "end"),
            ticks(empty, top, top + 20, "#9aa5b1", 1.0),
            ticks(hits, top, top + 20, BLUE, 1.6),
            text(WIDTH - RIGHT + 8, top + 15, str(len(run.polls))),
            text(WIDTH - RIGHT + 62, top + 15, milliseconds(percentile(run.waits, 0.5))),
            text(WIDTH - RIGHT + 134, top + 15, milliseconds(percentile(run.waits, 0.95))),
        ]
    parts.append(
        text(
            LEFT,
            HEIGHT - 12,
            "blue: a poll that found something; grey: an empty one; virtual time",
            "start",
            QUIET,
        )
    )
    return "\n".join([*parts, "</svg>", ""])


#: Forecasts: a name, the rate of items s seconds from now, and where its label stands.
FORECASTS: tuple[tuple[str, Callable[[float], float], str], ...] = (
    ("in a burst: 2 items a second", lambda s: 2.0, "#d97706"),
    ("after a burst: 2, fading to 0.1", lambda s: 0.1 + 1.9 * math.exp(-s / 2), "#2563eb"),
    ("in the silence: 0.1 a second", lambda s: 0.1, "#7b8794"),
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
    """Expected waiting grows until it is worth a poll: then look again."""
    left, right, top, bottom = 70.0, 860.0, 40.0, 290.0

    def place(at: float, amount: float) -> tuple[float, float]:
        return left + at / HORIZON * (right - left), bottom - amount / TOP * (bottom - top)

    parts = [
        HEAD.replace(f"0 0 {WIDTH} {HEIGHT}", "0 0 900 350").replace(ABOUT, ABOUT_WORTH),
        '<rect width="900" height="350" rx="8" fill="#ffffff"/>',
        text(left, 24, "Waiting expected since the last poll, in item-seconds"),
        f'<path d="M{left} {top}V{bottom}H{right}" stroke="{QUIET}" fill="none"/>',
    ]
    _, level = place(0, PRICE)
    parts.append(f'<path d="M{left} {level:.1f}H{right}" stroke="{INK}" stroke-dasharray="5 4"/>')
    parts.append(text(right, level - 8, "what one poll is worth", "end"))
    for second in range(0, 16, 3):
        x, _ = place(second, 0)
        parts.append(text(x, bottom + 20, f"{second} s", "middle", QUIET))
    for name, rate, colour in FORECASTS:
        points, due = waiting(rate)
        curve = [place(*point) for point in (*points[::5], points[-1])]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in curve)
        x, y = place(due, PRICE)
        parts += [
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.2"/>',
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}"/>',
            f'<path d="M{x:.1f} {y:.1f}V{bottom}" stroke="{colour}" stroke-dasharray="2 3"/>',
        ]
        line = 58 + 22 * FORECASTS.index((name, rate, colour))
        parts.append(text(left + 270, line, f"{name}: look after {due:.1f} s", "start", colour))
    parts.append(text(left, 338, "seconds after the last poll", "start", QUIET))
    return "\n".join([*parts, "</svg>", ""])


PICTURES: dict[str, Callable[[], str]] = {"pacing.svg": draw, "worth.svg": draw_worth}


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
