"""Shared by the tests of Worth: seeded traffic, and a plain replay of it."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from pollwise.core.outcome import Outcome, Plain
from pollwise.core.strategies.base import Pacer, Strategy


@dataclass
class Replay:
    """When a replay polled, the pause before each poll, and how long items waited."""

    polled: list[float] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    state: dict[str, Plain] = field(default_factory=dict)

    @property
    def polls(self) -> int:
        return len(self.polled)

    @property
    def span(self) -> float:
        return self.polled[-1]

    def cost(self, price: float) -> float:
        return price * self.polls + sum(self.waits)

    def p95(self) -> float:
        return sorted(self.waits)[int(0.95 * len(self.waits))]

    @classmethod
    def fixed(cls, arrivals: Sequence[float], interval: float) -> Replay:
        polls = math.ceil(arrivals[-1] / interval)
        polled = [interval * n for n in range(1, polls + 1)]
        return cls(polled, [interval] * polls, [-at % interval for at in arrivals])


def replay(
    strategy: Strategy,
    arrivals: Sequence[float],
    *,
    stamps: bool = True,
    step: float = 0.0,
    until: float | None = None,
    pacer: Pacer | None = None,
) -> Replay:
    """Poll until the last item was found, or until a time. A poll takes no time and finds all.

    step: stamps are rounded down to multiples of it; the waits of the replay are the true ones.
    """
    pacer = pacer or strategy.pacer()
    run = Replay()
    at, n = 0.0, 0
    delay = pacer.first().delay
    pacer.after(Outcome(0.0, 0))
    while n < len(arrivals) if until is None else at < until:
        at += delay
        run.polled.append(at)
        run.delays.append(delay)
        begin = n
        while n < len(arrivals) and arrivals[n] <= at:
            n += 1
        waits = tuple(at - each for each in arrivals[begin:n])
        run.waits += waits
        if step:
            waits = tuple(at - each // step * step for each in arrivals[begin:n])
        delay = pacer.after(Outcome(at, n - begin, None, waits if stamps else ())).delay
    run.state = pacer.state()
    return run


def poisson(rate: float, count: int, seed: float) -> list[float]:
    rng = random.Random(seed)
    at, arrivals = 0.0, []
    for _ in range(count):
        at += rng.expovariate(rate)
        arrivals.append(at)
    return arrivals


def cron(period: float, size: int, count: int, seed: float) -> list[float]:
    """Batches of about `size`, each within half a second, at an exact period."""
    rng = random.Random(seed)
    return [
        period * n + each
        for n in range(1, count + 1)
        for each in sorted(rng.uniform(0, 0.5) for _ in range(rng.randint(size // 2, 2 * size)))
    ]
