"""The contract of a strategy and its pacers.

Each law takes a strategy and the polls of one source, so that it can be tried on any: here on polls
that are drawn by a seed.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
import pickle
import random
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from pollwise.core.outcome import Outcome, Pause
from pollwise.core.strategies.base import Pacer, Strategy
from pollwise.settings.layers import LayerReader
from pollwise.settings.polling import resolve
from pollwise.settings.strategies import ADDED, STRATEGIES, polling_table
from pollwise.testing.conformance.bench import NotCapable, equal, expect
from pollwise.testing.contracts.base import Contract

#: The law takes a strategy and polls; AssertionError says how it is broken.
Law = Callable[[Strategy, Sequence[Outcome]], None]
Step = tuple[Pause, tuple[Any, ...], dict[str, Any]]

_LENGTH = 40
_TABLE = "worker.polling"


def walk(pacer: Pacer, polls: Iterable[Outcome]) -> list[Step]:
    """Each pause with its changes, and the state behind it."""
    steps: list[Step] = [(pacer.first(), (), pacer.state())]
    for outcome in polls:
        pause = pacer.after(outcome)
        steps.append((pause, pause.changes, pacer.state()))
    return steps


def pauses_keep_within_the_bounds(strategy: Strategy, polls: Sequence[Outcome]) -> None:
    """No delay is outside [min_interval, max_interval], and no hold above `longest_hold`."""
    for pause, _, _ in walk(strategy.pacer(), polls):
        delay = strategy.min_interval <= pause.delay <= strategy.max_interval
        expect(delay, f"{strategy!r} answered a delay outside its bounds: {pause!r}")
        hold = 0 <= pause.hold <= strategy.longest_hold
        expect(hold, f"{strategy!r} answered a hold above its longest_hold: {pause!r}")


def pacers_are_deterministic(strategy: Strategy, polls: Sequence[Outcome]) -> None:
    """The same polls lead to the same pauses: a pacer asks no clock and draws no numbers."""
    again = walk(strategy.pacer(), polls)
    equal(walk(strategy.pacer(), polls), again, f"the pauses of {strategy!r} for the same polls")


def pacers_share_nothing(strategy: Strategy, polls: Sequence[Outcome]) -> None:
    """Another pacer of the same strategy, for another source, changes nothing."""
    alone = walk(strategy.pacer(), polls)
    one, other = strategy.pacer(), strategy.pacer()
    expect(one is not other, f"{strategy!r} has one pacer for all sources")
    beside: list[Step] = [(one.first(), (), one.state())]
    for outcome, noise in zip(polls, reversed(polls), strict=True):
        other.after(dataclasses.replace(noise, at=outcome.at))
        pause = one.after(outcome)
        beside.append((pause, pause.changes, one.state()))
    equal(beside, alone, f"the pauses of {strategy!r} beside another pacer")


def failed_polls_change_nothing(strategy: Strategy, polls: Sequence[Outcome]) -> None:
    """A failed poll is not evidence: the pause, its changes and the state stay as they are."""
    pacer = strategy.pacer()
    pause, before = pacer.first(), pacer.state()
    for outcome in polls:
        failure = pacer.after(dataclasses.replace(outcome, failed=True))
        equal(failure, pause, f"the pause of {strategy!r} after a failed poll")
        equal(failure.changes, (), f"the changes that {strategy!r} reports of a failed poll")
        equal(pacer.state(), before, f"the state of {strategy!r} after a failed poll")
        pause = pacer.after(outcome)
        before = pacer.state()
    seen = [outcome for outcome in polls if not outcome.failed]
    equal(walk(strategy.pacer(), seen)[-1][2], before, f"the state of {strategy!r} without them")


def failed_polls_hurry(strategy: Strategy, polls: Sequence[Outcome]) -> None:
    """After a failed poll the next one comes no later than after an empty one."""
    for number, outcome in enumerate(polls):
        so_far = polls[:number]
        failed, empty = (
            walk(strategy.pacer(), [*so_far, dataclasses.replace(outcome, **each)])[-1][0].delay
            for each in ({"failed": True}, {"failed": False, "found": 0, "waits": ()})
        )
        expect(failed <= empty, f"{strategy!r} counts a failed poll as an empty one: {outcome!r}")


def states_are_plain(strategy: Strategy, polls: Sequence[Outcome]) -> None:
    """The state has the same keys at all times, and plain values of its own."""
    pacer = strategy.pacer()
    keys = list(pacer.state())
    for _, _, state in walk(pacer, polls):
        equal(list(state), keys, f"the keys of the state of {strategy!r}")
        plain = all(
            isinstance(key, str) and isinstance(value, (float, int, str, bool, type(None)))
            for key, value in state.items()
        )
        expect(plain, f"the state of {strategy!r} is not plain: {state!r}")
    before = pacer.state()
    pacer.state().clear()
    equal(pacer.state(), before, f"the state of {strategy!r} after its caller changed a copy")


#: What every strategy promises, besides `failed_polls_change_nothing` or `failed_polls_hurry`.
LAWS: Sequence[Law] = (
    pauses_keep_within_the_bounds, pacers_are_deterministic, pacers_share_nothing, states_are_plain,
)  # fmt: skip


class StrategyContract(Contract, ABC):
    """Strategies that are tried on the polls of many sources, drawn by a seed.

    seed: another one draws other polls.
    sources: how many sources are drawn for each strategy.
    hurries: True for a strategy that polls sooner after a failed poll, as `Freshness` does; to all
        others a failed poll is not evidence.
    """

    seed: int = 1
    sources: int = 30
    hurries: bool = False

    @abstractmethod
    def strategies(self) -> Sequence[Strategy]:
        """Strategies with several settings: the defaults, and the ends of what is allowed."""

    async def check_a_strategy_is_a_value(self) -> None:
        """It can be compared, hashed and copied, and cannot be changed."""
        for strategy in self.strategies():
            for again in (copy.deepcopy(strategy), pickle.loads(pickle.dumps(strategy))):  # noqa: S301
                equal(again, strategy, "a copy")
                equal(hash(again), hash(strategy), f"the hash of a copy of {strategy!r}")
            for name in inspect.signature(type(strategy)).parameters:
                try:
                    setattr(strategy, name, getattr(strategy, name))
                except AttributeError:
                    continue
                raise AssertionError(f"{name} of {strategy!r} can be changed")

    async def check_the_bounds_are_in_order(self) -> None:
        """0 <= min_interval <= max_interval, both finite, and `longest_hold` is not negative."""
        for each in self.strategies():
            low, high = each.min_interval, each.max_interval
            expect(0 <= low <= high < math.inf, f"the bounds of {each!r} are {low} and {high}")
            expect(0 <= each.longest_hold < math.inf, f"longest_hold of {each!r}")

    async def check_pauses_keep_within_the_bounds(self) -> None:
        """No delay is outside [min_interval, max_interval], and no hold above `longest_hold`."""
        self._holds(pauses_keep_within_the_bounds)

    async def check_pacers_are_deterministic(self) -> None:
        """The same polls lead to the same pauses: a pacer asks no clock and draws no numbers."""
        self._holds(pacers_are_deterministic)

    async def check_pacers_share_nothing(self) -> None:
        """Another pacer of the same strategy, for another source, changes nothing."""
        self._holds(pacers_share_nothing)

    async def check_failed_polls_are_not_empty_ones(self) -> None:
        """A failed poll changes nothing; with `hurries`, it does not delay the next one."""
        self._holds(failed_polls_hurry if self.hurries else failed_polls_change_nothing)

    async def check_states_are_plain(self) -> None:
        """The state has the same keys at all times, and plain values of its own."""
        self._holds(states_are_plain)

    async def check_settings_can_say_it(self) -> None:
        """The strategy can be written as settings, and is built from them again."""
        for strategy in self.strategies():
            if strategy.name not in STRATEGIES and ADDED.get(strategy.name) is None:
                raise NotCapable(f"no installed package has the strategy {strategy.name!r}")
            table = polling_table(strategy, _TABLE)
            built = resolve(_TABLE, [LayerReader().tree(tomllib.loads(table), "the contract")])
            equal(built.problems, [], f"what is wrong with the settings {table!r}")
            equal(built.strategy, strategy, f"the strategy of the settings {table!r}")

    def _holds(self, law: Law) -> None:
        for strategy in self.strategies():
            rng = random.Random(self.seed)
            for _ in range(self.sources):
                law(strategy, list(drawn_polls(rng)))


def drawn_polls(rng: random.Random) -> Iterator[Outcome]:
    """The polls of one source: quiet or busy, with and without a limit, some of them failed."""
    at = rng.choice([0.0, rng.uniform(-1e6, 1e6)])
    gap, busy = rng.choice([1e-3, 1.0, 60.0, 1e6]), rng.choice([0.0, 0.1, 0.5, 1.0])
    capacity = rng.choice([None, 1, 10, 1000])
    for _ in range(rng.randrange(_LENGTH)):
        at += rng.choice([0.0, rng.expovariate(1 / gap)])
        failed = rng.random() < 0.15
        found = 0
        if not failed and rng.random() < busy:
            found = rng.choice([1, rng.randint(1, 30), capacity or 10**9])
        limit = rng.choice([capacity, capacity, 0 if not found else capacity])
        waits = tuple(rng.uniform(0, 2 * gap) for _ in range(min(found, 3)))
        yield Outcome(at, found, limit, rng.choice([(), waits]), failed, rng.random() < 0.3)
