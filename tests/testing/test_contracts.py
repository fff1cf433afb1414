"""The contracts notice what is wrong with a strategy, a probe or a publisher."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pollwise.core.outcome import Outcome, Pause
from pollwise.core.strategies.adaptive import Adaptive, AdaptivePacer
from pollwise.core.strategies.base import Strategy
from pollwise.errors import ConfigError, PublishError, PublishRefused
from pollwise.fleet import probes
from pollwise.fleet.targets import ProbeContext, Reading, Target
from pollwise.outbox.envelope import Message, unique_of
from pollwise.outbox.publishers import Publisher
from pollwise.outbox.records import Record
from pollwise.testing.contracts import (
    Contract,
    Delivered,
    ProbeContract,
    PublisherContract,
    StrategyContract,
)


def broken(contract: Contract) -> set[str]:
    """The checks that fail."""
    return set(contract.exercise().failed)


# Strategies


class Tried(StrategyContract):
    def __init__(self, pacer: Callable[[Adaptive], Any]) -> None:
        class Odd(Adaptive):
            def pacer(self) -> AdaptivePacer:  # type: ignore[override]
                made: AdaptivePacer = pacer(self)
                return made

        self.made = Odd("1s", "1m")

    def strategies(self) -> Sequence[Strategy]:
        return [self.made]


class TooLong(AdaptivePacer):
    def after(self, outcome: Outcome) -> Pause:
        return Pause(super().after(outcome).delay * 1.5)


class Drawn(AdaptivePacer):
    def after(self, outcome: Outcome) -> Pause:
        return Pause(1 + random.random())


class FailedIsEmpty(AdaptivePacer):
    def after(self, outcome: Outcome) -> Pause:
        return super().after(Outcome(outcome.at, outcome.found, outcome.capacity))


class Telling(AdaptivePacer):
    def state(self) -> dict[str, Any]:
        return super().state() | ({"last": object()} if self._empties else {})


class Raising(AdaptivePacer):
    def after(self, outcome: Outcome) -> Pause:
        return Pause(1 + 1 / (outcome.capacity or 0))


SHARED: list[AdaptivePacer] = []


def shared(strategy: Adaptive) -> AdaptivePacer:
    SHARED.append(AdaptivePacer(strategy))
    return SHARED[0]


@pytest.mark.parametrize(
    ("pacer", "check"),
    [
        (TooLong, "pauses_keep_within_the_bounds"),
        (Drawn, "pacers_are_deterministic"),
        (FailedIsEmpty, "failed_polls_are_not_empty_ones"),
        (Telling, "states_are_plain"),
        (Raising, "pauses_keep_within_the_bounds"),
        (shared, "pacers_share_nothing"),
    ],
)
def test_a_wrong_pacer_is_noticed(pacer: Callable[[Adaptive], Any], check: str) -> None:
    assert check in broken(Tried(pacer))


def test_a_right_pacer_breaks_nothing_but_what_a_local_class_must() -> None:
    # It cannot be pickled, and its name is that of another class.
    assert broken(Tried(AdaptivePacer)) == {"a_strategy_is_a_value", "settings_can_say_it"}


def test_a_strategy_that_is_no_value_is_noticed() -> None:
    class Open(StrategyContract):
        def strategies(self) -> Sequence[Strategy]:
            return [Changeable()]

    report = Open().exercise()
    assert "can be changed" in str(report.failed["a_strategy_is_a_value"])
    assert "inf" in str(report.failed["the_bounds_are_in_order"])
    assert "no installed package" in report.skipped["settings_can_say_it"]
    assert not report.ok


class Changeable(Strategy):
    name = "changeable"
    min_interval = 1.0
    max_interval = float("inf")

    def __init__(self, min_interval: float = 1.0) -> None:
        self.min_interval = min_interval

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Changeable)

    def __hash__(self) -> int:
        return 1

    def pacer(self) -> AdaptivePacer:
        return AdaptivePacer(Adaptive())


# Probes


class OddProbe(ProbeContract):
    type = "odd"
    options = {"right": 1}
    failing = {"fails": 1}
    hanging = {"hangs": 1}
    wrong = ({"wrong": 1},)
    secrets = ("hunter2",)
    timeout = 5.0


async def right(target: Target, context: ProbeContext) -> object:
    if "hangs" in target.options:
        await asyncio.Event().wait()
    if "fails" in target.options:
        raise OSError("cannot connect")
    return "right"


def checked(probe: Any, target: Target) -> Any:
    unknown = target.options.keys() - {"right", "fails", "hangs"}
    if unknown:
        raise ConfigError(f"{unknown} are not options")
    return probe


async def silent(target: Target, context: ProbeContext) -> object:
    return "failed" if "fails" in target.options else await right(target, context)


async def leaky(target: Target, context: ProbeContext) -> object:
    if "fails" in target.options:
        raise OSError("cannot connect to app:hunter2@host")
    return await right(target, context)


async def stubborn(target: Target, context: ProbeContext) -> object:
    try:
        return await right(target, context)
    except asyncio.CancelledError:
        return "late"


LEFT: list[Any] = []


async def starting(target: Target, context: ProbeContext) -> object:
    LEFT.append(asyncio.ensure_future(asyncio.Event().wait()))
    return await right(target, context)


NUMBERS = itertools.count()


async def wild(target: Target, context: ProbeContext) -> object:
    return next(NUMBERS)


async def told(target: Target, context: ProbeContext) -> object:
    return Reading("x", facts={"undeclared": 1})


@pytest.mark.parametrize(
    ("make", "checks"),
    [
        (lambda target: checked(right, target), set()),
        (
            lambda target: right,
            {"an_unknown_option_is_refused", "wrong_options_are_refused"},
        ),
        (lambda target: checked(silent, target), {"a_failed_poll_raises"}),
        (lambda target: checked(leaky, target), {"a_failed_poll_raises"}),
        (lambda target: checked(stubborn, target), {"a_poll_that_hangs_is_ended"}),
        (
            lambda target: checked(starting, target),
            {"a_poll_leaves_nothing_behind", "a_poll_that_hangs_is_ended"},
        ),
        (
            lambda target: checked(wild, target),
            {
                "a_failed_poll_raises", "a_poll_that_hangs_is_ended",
                "a_poll_with_the_last_reading", "polls_at_the_same_time",
            },
        ),
    ],
)  # fmt: skip
def test_a_wrong_probe_is_noticed(
    make: Any, checks: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pollwise.testing.contracts.base.ENDS_WITHIN", 0.05)
    monkeypatch.setattr("pollwise.testing.contracts.probe.make_probe", make)
    assert broken(OddProbe()) == checks


def test_a_fact_that_is_not_declared_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pollwise.testing.contracts.probe.make_probe", lambda _: told)
    monkeypatch.setattr("pollwise.testing.contracts.probe.facts_of", lambda _: {"value": "it"})
    report = OddProbe().exercise()
    assert "FACTS lacks the facts ['undeclared']" in str(report.failed["a_poll_returns_a_reading"])
    assert probes.facts_of("odd") is None


# Publishers


class Post:
    """The other side: what arrived there."""

    def __init__(self) -> None:
        self.arrived: list[Delivered] = []


class Plain(Publisher[Post]):
    """Right in all; the classes below are wrong in one thing."""

    down = False

    def __init__(self, post: Post) -> None:
        super().__init__("plain", "post://host", ["hunter2"], {})
        self.post = post

    async def _open(self) -> Post:
        if self.down:
            raise OSError("no answer to app:hunter2")
        return self.post

    async def _send(self, client: Post, record: Record, message: Message) -> None:
        client.arrived.append(Delivered(unique_of(record), message.body))

    async def _close(self, client: Post) -> None: ...

    def _explained(self, error: Exception) -> PublishError:
        return PublishError(f"{self.where}: {self._plain(error)}")


class Swallowing(Plain):
    async def __call__(self, record: Record) -> None:
        if not self.down:
            await super().__call__(record)


class Permanent(Plain):
    def _explained(self, error: Exception) -> PublishError:
        return PublishRefused("never")


class Leaking(Plain):
    def _explained(self, error: Exception) -> PublishError:
        return PublishError(str(error))


class Anonymous(Plain):
    numbers = itertools.count()

    async def _send(self, client: Post, record: Record, message: Message) -> None:
        client.arrived.append(Delivered(str(next(self.numbers)), message.body))


class Late(Plain):
    """Confirms before it sends, and sends the wrong text."""

    async def _send(self, client: Post, record: Record, message: Message) -> None:
        found = Delivered(unique_of(record), b"?")
        LEFT.append(asyncio.get_running_loop().create_task(self.later(client, found)))

    async def later(self, client: Post, found: Delivered) -> None:
        await asyncio.Event().wait()


class Renamed(Plain):
    numbers = itertools.count()

    def __init__(self, post: Post) -> None:
        super().__init__(post)
        self.name = f"plain {next(self.numbers)}"


class PlainContract(PublisherContract):
    secrets = ("hunter2",)

    def __init__(self, kind: type[Plain]) -> None:
        self.kind = kind

    def serving(self) -> Any:
        self.post = Post()
        return super().serving()

    def publisher(self) -> Publisher[Any]:
        return self.kind(self.post)

    def unreachable(self) -> Publisher[Any]:
        made = self.kind(self.post)
        made.down = True
        return made

    async def arrived(self) -> Sequence[Delivered]:
        return self.post.arrived


IDS = {
    "a_confirmed_record_has_arrived", "records_arrive_in_their_order", "records_at_the_same_time",
    "each_attempt_has_the_same_id", "a_cancelled_record_harms_no_other",
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "checks"),
    [
        (Plain, set()),
        (Swallowing, {"an_error_is_raised"}),
        (Permanent, {"an_error_is_raised"}),
        (Leaking, {"an_error_is_raised"}),
        (Anonymous, IDS),
        (
            Late,
            {*IDS, "it_closes_and_opens_again", "a_relay_settles_what_it_published"},
        ),
        (Renamed, {"its_name_stays"}),
    ],
)
def test_a_wrong_publisher_is_noticed(
    kind: type[Plain], checks: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pollwise.testing.contracts.base.ENDS_WITHIN", 0.05)
    assert broken(PlainContract(kind)) == checks


def test_a_check_that_lacks_what_it_needs_is_skipped() -> None:
    class Bare(ProbeContract):
        type = "command"
        options = {"run": "true"}

    report = Bare().exercise()
    assert report.ok
    assert set(report.skipped) == {
        "wrong_options_are_refused", "a_failed_poll_raises", "a_poll_that_hangs_is_ended"
    }  # fmt: skip
