"""Worth: the contract of strategies, and the paces it finds."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
import pickle
import random
from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pollwise.core.outcome import Outcome, Pause
from pollwise.core.strategies.worth import COUNTED_MAX, SAMPLED, Worth
from pollwise.errors import ConfigError
from pollwise.testing.contracts.strategy import LAWS, failed_polls_change_nothing, walk
from tests.core.strategies.histories import histories
from tests.core.strategies.pacing import saw, turns
from tests.core.strategies.worth_replay import Replay, cron, poisson, replay

positive = st.floats(1e-300, 1e300)
lengths = st.floats(1e-3, 1e6)
pairs = st.lists(lengths, min_size=2, max_size=2).map(sorted)
priced = st.builds(
    lambda c, w, pair: Worth(poll_cost=c, wait_cost=w, min_interval=pair[0], max_interval=pair[1]),
    positive, positive, pairs,
)  # fmt: skip
budgets = st.builds(
    lambda factor, pair: Worth.budget(
        polls_per_hour=3601 * factor / pair[1], min_interval=pair[0], max_interval=pair[1]
    ),
    st.floats(1, 1e9), pairs,
)  # fmt: skip
latencies = st.builds(
    lambda wait, pair, key: Worth(min_interval=pair[0], max_interval=pair[1], **{key: wait +
    pair[0]}), st.floats(0, 1e300), pairs, st.sampled_from(["mean_wait", "p95_wait"]),
)  # fmt: skip
unheld = priced | budgets | latencies
held = st.builds(
    lambda strategy, hold: dataclasses.replace(strategy, hold=hold), unheld, st.floats(0, 1e6)
)
recipes = unheld | held


# The contract.


@given(recipes, histories())
@example(Worth(poll_cost=1e308, wait_cost=1e-308), [saw(0, at=n) for n in (0, 1e-6, 9, 1e300)])
@example(Worth(poll_cost=1e-308, wait_cost=1e308), [saw(10**400, 1, at=n) for n in (0, 1, 2, 1e9)])
@example(Worth(poll_cost=1, wait_cost=1), [saw(10**400, None, at=n) for n in (0, 1e-6, 1e-6, 1)])
@example(Worth.latency(mean=1e300), [saw(5, None, at=n) for n in (0, 1e-6, 1, 1e12)])
@example(Worth.budget(polls_per_hour=1e300), [saw(5, None, at=n) for n in (0, 1e-6, 1, 1e12)])
@example(Worth.budget(polls_per_hour=1e-9, max_interval=1e14), [saw(0, at=n) for n in (0, 1, 1e12)])
def test_pauses_keep_within_the_bounds(strategy: Worth, history: list[Outcome]) -> None:
    for pause, _, state in walk(strategy.pacer(), history):
        assert strategy.min_interval <= pause.delay <= strategy.max_interval
        assert pause.hold == strategy.longest_hold == strategy.hold
        assert state["interval"] == pause.delay


@given(unheld, st.floats(0, 1e6), histories())
def test_a_poll_that_is_held_follows_no_later(
    strategy: Worth, hold: float, history: list[Outcome]
) -> None:
    """A hold shortens pauses, and teaches nothing else than what its polls found."""
    pacer, other = strategy.pacer(), dataclasses.replace(strategy, hold=hold).pacer()
    for outcome in history:
        assert other.after(outcome).delay <= pacer.after(outcome).delay
        for key in ("rate", "forecast_rate", "long_run_rate", "usual_interval"):
            assert other.state()[key] == pacer.state()[key]


def test_the_pause_before_a_hold_is_what_the_hold_leaves_of_it() -> None:
    """The price of a poll buys the pause and the holding: T = √(T₀² + g²) - g."""
    bare = Worth(poll_cost=1, wait_cost=0.01, min_interval="1ms", max_interval="1h")
    history = [saw(1, at=40.0 * n) for n in range(200)]
    pacer, held_pacer = bare.pacer(), dataclasses.replace(bare, hold=20.0).pacer()
    alone, before_hold = 0.0, 0.0
    for outcome in history:
        alone, before_hold = pacer.after(outcome).delay, held_pacer.after(outcome).delay
    rate = float(held_pacer.state()["forecast_rate"] or 0.0)
    assert rate == pytest.approx(1 / 40, rel=0.3)
    seconds = (1 - math.exp(-20 * rate)) / rate
    assert before_hold == pytest.approx(math.hypot(alone, seconds) - seconds)
    assert before_hold < 0.9 * alone


@given(recipes, histories())
def test_the_laws_of_all_strategies(strategy: Worth, history: list[Outcome]) -> None:
    for law in (*LAWS, failed_polls_change_nothing):
        law(strategy, history)


@given(recipes, histories())
def test_changes_tell_when_the_interval_doubles_or_halves(
    strategy: Worth, history: list[Outcome]
) -> None:
    pacer = strategy.pacer()
    before = pacer.first().delay
    for outcome in history:
        pause = pacer.after(outcome)
        expected = []
        if pause.delay >= 2 * before:
            expected = [("back-off", before, pause.delay)]
        elif pause.delay <= before / 2:
            expected = [("speed-up", before, pause.delay)]
        assert turns(pause) == expected
        before = pause.delay


def size(thing: Any) -> int:
    """How many numbers there are in a pacer."""
    if isinstance(thing, (list, tuple)):
        return sum(map(size, thing))
    if hasattr(thing, "__dict__"):
        return sum(map(size, vars(thing).values()))
    return 1


def test_memory_does_not_grow() -> None:
    pacer = Worth(poll_cost=1, wait_cost=1).pacer()
    before = size(pacer)
    replay(Worth(poll_cost=1, wait_cost=1), poisson(3.0, 500, seed=1), pacer=pacer)
    assert size(pacer) == before


# A strategy is a value.


@given(recipes)
def test_repr_is_the_call_that_makes_it(strategy: Worth) -> None:
    again = eval(repr(strategy), {"Worth": Worth})
    assert again == strategy
    assert hash(again) == hash(strategy)


@given(recipes)
def test_strategies_can_be_copied(strategy: Worth) -> None:
    again = pickle.loads(pickle.dumps(strategy))
    assert again == copy.deepcopy(strategy) == dataclasses.replace(strategy) == strategy


def test_strategies_cannot_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Worth(poll_cost=1, wait_cost=1).min_interval = 1.0  # type: ignore[misc]


def test_fields_are_the_arguments_of_the_constructor() -> None:
    parameters = inspect.signature(Worth).parameters
    assert Worth.name == "worth"
    assert {field.name for field in dataclasses.fields(Worth)} == set(parameters)


def test_durations_are_read() -> None:
    strategy = Worth(p95_wait="2s", min_interval="20ms", max_interval="1m")
    assert (strategy.p95_wait, strategy.min_interval, strategy.max_interval) == (2.0, 0.02, 60.0)
    assert strategy == Worth.latency(p95=2, min_interval=0.02, max_interval=60)
    assert Worth.latency(mean="1s") == Worth(mean_wait=1)
    assert Worth.budget(polls_per_hour=600) == Worth(polls_per_hour=600.0)
    assert Worth.budget(dollars_per_month=5, price=5e-6) == Worth(dollars_per_month=5, price=5e-6)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, r"poll_cost = None and no other goal; give poll_cost and wait_cost, or polls_per_h"),
        ({"poll_cost": 0, "wait_cost": 1}, "poll_cost = 0 must be above 0"),
        ({"poll_cost": True, "wait_cost": 1}, "poll_cost = True must be above 0"),
        ({"poll_cost": 1, "wait_cost": float("inf")}, "wait_cost = inf must be above 0 and finite"),
        ({"poll_cost": 1}, "poll_cost = 1.0 is only half of a goal; also give wait_cost"),
        ({"price": 1}, "price = 1.0 is only half of a goal; also give dollars_per_month"),
        ({"mean_wait": 1, "p95_wait": 2}, "mean_wait = 1.0 and p95_wait = 2.0 are 2 goals"),
        ({"mean_wait": "soon"}, "mean_wait = 'soon' is not a duration"),
        ({"p95_wait": 0}, "p95_wait = 0 must be above 0"),
        ({"polls_per_hour": -1}, "polls_per_hour = -1 must be above 0"),
        (
            {"polls_per_hour": 30},
            r"polls_per_hour = 30.0 is 30 polls an hour, but max_interval = 60.0",
        ),
        ({"dollars_per_month": 1, "price": 1}, "dollars_per_month = 1.0 is 0.00138889 polls"),
        (
            {"mean_wait": 1, "min_interval": 3},
            r"mean_wait = 1.0 cannot be reached with min_interval = 3.0; .* 2 ",
        ),
        (
            {"p95_wait": 1, "min_interval": 2},
            r"p95_wait = 1.0 cannot be reached with min_interval = 2.0",
        ),
        (
            {"p95_wait": 1, "min_interval": 2, "max_interval": 1},
            "min_interval = 2 is above max_interval = 1",
        ),
    ],
)
def test_contradictions_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Worth(**arguments)


def test_a_goal_is_refused_by_the_name_that_was_given() -> None:
    with pytest.raises(ConfigError, match=r"Worth\.latency needs a goal; give mean or p95"):
        Worth.latency()
    with pytest.raises(ConfigError, match=r"Worth\.budget needs a goal; give polls_per_hour"):
        Worth.budget()
    with pytest.raises(ConfigError, match=r"^p95 = '2 sec' is not a duration"):
        Worth.latency(p95="2 sec")
    with pytest.raises(ConfigError, match=r"^polls_per_day = '500' must be a number above 0"):
        Worth.budget(polls_per_day=cast("Any", "500"))


# The paces it finds.


def steady(rate: float, price: float) -> float:
    """The best interval for a steady rate."""
    return float((2 * price / rate) ** 0.5)


@pytest.mark.parametrize("stamps", [True, False])
@pytest.mark.parametrize("items", [0.5, 2.0, 8.0])
def test_steady_traffic_is_polled_at_the_best_interval(items: float, stamps: bool) -> None:
    rate, price = 2.0, 2.0 * (items / 2.0) ** 2 / 2  # items per poll at the best interval
    run = replay(Worth(poll_cost=price, wait_cost=1), poisson(rate, 4000, seed=3), stamps=stamps)
    later = run.delays[len(run.delays) // 4 :]
    assert sum(later) / len(later) == pytest.approx(steady(rate, price), rel=0.06)
    best = 2 * price / steady(rate, price) * run.span  # what the best interval costs
    assert price * run.polls + sum(run.waits) < 1.03 * best


def test_it_starts_with_short_pauses() -> None:
    strategy = Worth(poll_cost=10, wait_cost=1, max_interval="10m")
    assert strategy.pacer().first().delay == strategy.min_interval
    run = replay(strategy, [], until=600.0)
    assert run.delays[0] == strategy.min_interval
    spent = 0.0
    for delay in run.delays:  # none is long beside the silence that was seen
        assert delay <= steady(1 / (spent + strategy.min_interval), 10) * 3
        spent += delay
    assert run.delays[-1] > 60
    assert run.polls < 40


def test_a_backlog_at_the_start_is_no_rate() -> None:
    pacer = Worth(poll_cost=1, wait_cost=1).pacer()
    assert pacer.after(saw(5000, None, at=0.0)).delay == 0.01
    assert pacer.state()["long_run_rate"] == 0.0


def test_it_recovers_from_a_guess_thirty_times_too_long() -> None:
    """After an hour at one item a minute, 15 items a second: the pause was 30 times too long."""
    strategy = Worth(poll_cost=1, wait_cost=1, max_interval="10m")
    quiet = poisson(1 / 60, 60, seed=5)
    busy = [quiet[-1] + 0.1 + each for each in poisson(15.0, 3000, seed=6)]
    run = replay(strategy, [*quiet, *busy])
    first = next(n for n, at in enumerate(run.polled) if at > busy[0])
    best = steady(15.0, 1)
    assert run.delays[first - 1] > 15 * best
    assert run.delays[first + 3] < 3 * best  # a few polls later
    tail = run.delays[first + 10 : first + 60]
    assert sum(tail) / len(tail) < 1.5 * best


def test_silence_after_a_burst_is_left_alone() -> None:
    strategy = Worth(poll_cost=1, wait_cost=1)
    arrivals: list[float] = []
    for n in range(12):  # busy for 30 s, silent for two minutes and more
        arrivals += [n * 170 + n * n + each for each in poisson(5.0, 150, seed=n)]
    run = replay(strategy, arrivals)
    calm = [d for at, d in zip(run.polled, run.delays, strict=True) if at > 900 and at % 170 > 140]
    busy = [d for at, d in zip(run.polled, run.delays, strict=True) if at > 900 and d < 1]
    assert max(calm) > 5 * (sum(busy) / len(busy))


def test_batches_at_one_period_are_met() -> None:
    strategy = Worth(poll_cost=3, wait_cost=1)
    arrivals = cron(60.0, 10, 150, seed=2)
    run = replay(strategy, arrivals)
    assert run.state["period"] == pytest.approx(60.0, rel=0.01)
    polls = sum(at > 6000 for at in run.polled)
    assert polls < 8 * 50  # a batch a minute; the interval of the mean rate is 6 s
    late = [w for at, w in zip(sorted(arrivals), run.waits, strict=True) if at > 6000]
    assert sum(late) / len(late) < 2.0


def test_a_batch_of_a_known_period_is_polled_once() -> None:
    """A poll just after each batch: it waits little, though a poll is worth 30 s of its waiting."""
    arrivals = cron(60.0, 10, 150, seed=2)
    run = replay(Worth(poll_cost=300, wait_cost=1, max_interval="10m"), arrivals)
    polls = sum(at > 6000 for at in run.polled)
    assert polls <= 1.2 * 50
    late = [w for at, w in zip(sorted(arrivals), run.waits, strict=True) if at > 6000]
    assert sum(late) / len(late) < 5.0


@pytest.mark.parametrize("width", [6.0, 30.0])
def test_timestamps_do_not_hurt_on_wide_batches(width: float) -> None:
    rng = random.Random(width)
    arrivals = sorted(60.0 * n + width * rng.random() for n in range(1, 120) for _ in range(10))
    strategy = Worth(poll_cost=27, wait_cost=1, max_interval="10m")
    with_stamps, without = (replay(strategy, arrivals, stamps=s).cost(27) for s in (True, False))
    assert with_stamps < 1.05 * without


def test_batches_at_random_cost_little_more_than_with_a_fixed_interval() -> None:
    rng, begins = random.Random(9), poisson(1 / 60, 600, seed=9)
    arrivals = [begin for begin in begins for _ in range(rng.randint(1, 19))]
    interval = 18.0
    price = interval**2 / 2 * len(arrivals) / arrivals[-1]  # for which that is the best one
    run = replay(Worth(poll_cost=price, wait_cost=1, max_interval="10m"), arrivals)
    assert run.cost(price) < 1.1 * Replay.fixed(arrivals, interval).cost(price)


def test_rounded_stamps_cost_little() -> None:
    arrivals = poisson(2.0, 2000, seed=10)
    strategy = Worth(poll_cost=2, wait_cost=1)
    exact, rounded = replay(strategy, arrivals), replay(strategy, arrivals, step=1.0)
    assert rounded.state["period"] is None
    assert rounded.cost(2.0) < 1.05 * exact.cost(2.0)


def test_the_max_interval_holds_though_nothing_comes() -> None:
    run = replay(Worth(poll_cost=1e6, wait_cost=1, max_interval="7s"), [], until=500.0)
    assert max(run.delays) == 7.0


def test_the_min_interval_holds_though_everything_comes() -> None:
    run = replay(Worth(poll_cost=1e-6, wait_cost=1, min_interval="1s"), poisson(50.0, 2000, seed=4))
    assert min(run.delays) == 1.0


# Evidence.


def fed(outcomes: Sequence[Outcome]) -> tuple[Pause, dict[str, Any]]:
    pacer = Worth(poll_cost=1, wait_cost=1).pacer()
    pause = [pacer.after(outcome) for outcome in outcomes][-1]
    return pause, pacer.state()


def test_full_batches_are_counted_over_all_their_time() -> None:
    start = [saw(2, None, at=float(n)) for n in range(20)]
    cut = fed([*start, saw(10, 10, at=20.0), saw(10, 10, at=20.0), saw(3, 10, at=20.5)])
    whole = fed([*start, saw(23, None, at=20.5)])
    assert cut[1]["long_run_rate"] == whole[1]["long_run_rate"]
    assert cut[1]["rate"] == pytest.approx(whole[1]["rate"])


def test_a_full_batch_halves_the_pause() -> None:
    start = [saw(1, None, at=10.0 * n) for n in range(20)]
    before, _ = fed(start)
    after, _ = fed([*start, saw(10, 10, at=200.0)])
    assert after.delay == before.delay / 2
    assert turns(after) == [("speed-up", before.delay, after.delay)]


def test_polls_at_one_moment_are_one() -> None:
    start = [saw(1, None, at=10.0 * n) for n in range(20)]
    twice = fed([*start, saw(3, None, at=190.0), saw(2, None, at=200.0)])
    once = fed([*start, saw(5, None, at=200.0)])
    assert twice[1]["rate"] == once[1]["rate"]


def test_time_passes_though_polls_fail() -> None:
    start = [saw(1, None, at=10.0 * n) for n in range(20)]
    failures = [saw(0, None, at=190.0 + n, failed=True) for n in range(1, 9)]
    assert fed([*start, *failures, saw(2, None, at=200.0)]) == fed([*start, saw(2, None, at=200.0)])


def test_hinted_polls_count_like_any() -> None:
    """Polls at the moment an item comes: each interval ends with one, and the rate is right."""
    rng = random.Random(8)
    pacer = Worth(poll_cost=1, wait_cost=1).pacer()
    at = 0.0
    for _ in range(2000):
        at += rng.expovariate(2.0)
        pacer.after(Outcome(at, 1, 10, (0.0,), hinted=True))
    assert pacer.state()["forecast_rate"] == pytest.approx(2.0, rel=0.25)
    assert pacer.state()["long_run_rate"] == pytest.approx(2.0, rel=0.1)


def test_waits_that_make_no_sense_do_no_harm() -> None:
    start = [saw(2, None, at=float(n)) for n in range(20)]
    odd = Outcome(20.0, 3, None, (1e9, 0.0, 0.5))  # one came back after an hour, as retries do
    pause, state = fed([*start, odd])
    assert 0.1 < pause.delay < 3.0
    assert 1.0 < state["rate"] < 4.0


def test_large_batches_are_sampled() -> None:
    waits = tuple(n / 1000 for n in range(1000))
    start = [saw(1000, None, at=float(n)) for n in range(20)]
    pause, state = fed([*start, Outcome(20.0, 1000, None, waits)])
    even, _ = fed([*start, saw(1000, None, at=20.0)])
    assert pause.delay == pytest.approx(even.delay, rel=0.2)
    assert len(waits) > SAMPLED
    assert COUNTED_MAX > state["rate"] > 0


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 2**32))
def test_bursty_traffic_costs_less_than_the_best_fixed_interval(seed: int) -> None:
    rng = random.Random(seed)
    arrivals: list[float] = []
    at = 0.0
    for _ in range(40):
        at += rng.expovariate(1 / 120)
        lasts = rng.uniform(20, 40)
        arrivals += [at + each for each in poisson(5.0, 5 * int(lasts), seed=rng.random())]
        at = arrivals[-1]
    rate = len(arrivals) / at
    price = 2.0 / rate  # the best interval for the mean rate finds two items
    run = replay(Worth(poll_cost=price, wait_cost=1, max_interval="10m"), arrivals)
    fixed = min(
        Replay.fixed(arrivals, 2.0 / rate * factor).cost(price)
        for factor in (0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0)
    )
    assert run.cost(price) < 0.97 * fixed  # of 250 seeds the worst was 0.91
