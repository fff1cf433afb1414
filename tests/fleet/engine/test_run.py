"""The real run of a fleet, in virtual time: places, deadlines, failures, orders."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from pollwise.alerts.values import Notice
from pollwise.core.strategies.fixed import Fixed
from pollwise.core.strategies.freshness import Freshness
from pollwise.errors import ConfigError, ProbeRefused
from pollwise.fleet import (
    FailureRules,
    Fleet,
    FleetRunOptions,
    ProbeContext,
    Reading,
    Target,
)
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import (
    FleetStopped,
    NoticeFailed,
    TargetChanged,
    TargetDead,
    TargetFailed,
    TargetPolled,
    TargetRecovered,
    TargetStuck,
)
from tests.fleet.world import PACED, SAME, Watch, fleet_for, now, running
from tests.support.kit import Seen, virtually


def test_each_target_is_polled_at_its_pace() -> None:
    async def main(clock: VirtualClock) -> None:
        watch, values = Watch(), iter(range(10**9))
        fleet = fleet_for(clock)
        fleet.add(Target("quiet", watch.probe()))
        fleet.add(Target("busy", watch.probe(lambda _: str(next(values)))))
        async with running(fleet):
            await asyncio.sleep(4 * 3600)
        assert len(watch.at["busy"]) > 10 * len(watch.at["quiet"])
        gaps = [b - a for a, b in pairwise(watch.at["quiet"])]
        assert max(gaps) <= 300.0
        assert not watch.wrong

    virtually(main)


def test_a_fixed_interval_is_honoured_exactly_for_a_day() -> None:
    """No jitter, no drift: though polls take their time, and are many."""

    async def main(clock: VirtualClock) -> None:
        watch = Watch()
        fleet = fleet_for(clock)
        for n in range(20):
            fleet.add(Target(f"t{n}", watch.probe(takes=0.7 * (n % 3)), f"{7 + n}.3s"))
        async with running(fleet):
            await asyncio.sleep(86_400)
        for n in range(20):
            interval, polls = 7.3 + n, watch.at[f"t{n}"]
            assert len(polls) in (int(86_400 / interval), int(86_400 / interval) + 1)
            for place, at in enumerate(polls):
                assert abs(at - polls[0] - place * interval) < 1e-6

    virtually(main)


@pytest.mark.parametrize(
    "error",
    [
        OSError("down"), ValueError(), SystemExit(3), KeyboardInterrupt(), GeneratorExit(),
        asyncio.CancelledError(), StopAsyncIteration(), StopIteration(), BaseException("odd"),
        BaseExceptionGroup("both", [SystemExit(), OSError()]), MemoryError(), TimeoutError(),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_a_probe_that_raises_anything_fails_alone(error: BaseException) -> None:
    async def main(clock: VirtualClock) -> None:
        watch, seen = Watch(), Seen()
        fleet = fleet_for(clock, seen, concurrency=2)
        fleet.add(Target("well", watch.probe(), "10s"))

        async def raising(target: Target, context: ProbeContext) -> None:
            await asyncio.sleep(0)
            raise error

        async def at_once(target: Target, context: ProbeContext) -> None:
            raise error

        fleet.add(Target("ill", raising), Target("worse", at_once))
        async with running(fleet) as run:
            await asyncio.sleep(7200)
            assert not run.done()
            for name in ("ill", "worse"):
                state = fleet.target(name)
                assert state.state == "dead"
                assert state.failures >= 8
                assert state.error is not None
            assert fleet.state().dead == 2
        assert len(watch.at["well"]) == 720
        assert not asyncio.current_task().cancelling()  # type: ignore[union-attr]

    virtually(main)


def test_a_probe_that_cancels_its_own_task_fails_alone() -> None:
    async def main(clock: VirtualClock) -> None:
        async def cancels(target: Target, context: ProbeContext) -> Reading:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(1)
            return SAME

        async def nothing(target: Target, context: ProbeContext) -> int:
            return 7

        fleet = fleet_for(clock, concurrency=1)
        fleet.add(Target("cancels", cancels), Target("seven", nothing))
        async with running(fleet):
            await asyncio.sleep(3600)
            assert fleet.target("cancels").state == "dead"
            assert fleet.target("seven").state == "closed"

    virtually(main)


def test_a_plain_function_or_nonsense_as_a_probe_fails_alone() -> None:
    async def main(clock: VirtualClock) -> None:
        async def circular(target: Target, context: ProbeContext) -> object:
            itself: list[object] = []
            itself.append(itself)
            return itself

        fleet = fleet_for(clock)
        fleet.add(Target("circular", circular))
        async with running(fleet):
            await asyncio.sleep(60)
            assert "Circular" in (fleet.target("circular").error or "")

    virtually(main)


def test_a_target_that_hangs_is_cancelled_at_its_deadline() -> None:
    async def main(clock: VirtualClock) -> None:
        watch, seen = Watch(), Seen()

        async def hangs(target: Target, context: ProbeContext) -> None:
            assert context.deadline == now() + 3.0
            await asyncio.sleep(10**6)

        fleet = fleet_for(clock, seen, concurrency=1)
        fleet.add(Target("hangs", hangs, "10s", timeout="3s"))
        fleet.add(Target("well", watch.probe(), "10s"))
        async with running(fleet):
            await asyncio.sleep(600)
            assert "no answer within the timeout of 3s" in (fleet.target("hangs").error or "")
        assert len(watch.at["well"]) >= 55, "one place, and yet the other has its turn"
        assert all(e.took == 3.0 for e in seen.of(TargetPolled) if e.target == "hangs")

    virtually(main)


def test_a_timeout_does_not_affect_the_next_poll_of_its_slot() -> None:
    """A task that stays marked as cancelled misleads the timeouts and groups of later probes."""

    async def main(clock: VirtualClock) -> None:
        marks: list[int] = []

        async def hangs(target: Target, context: ProbeContext) -> None:
            await asyncio.sleep(10**6)

        async def looks(target: Target, context: ProbeContext) -> None:
            task = asyncio.current_task()
            assert task is not None
            marks.append(task.cancelling())

        fleet = fleet_for(clock, concurrency=1)
        fleet.add(Target("hangs", hangs, "10s", timeout="3s"), Target("looks", looks, "10s"))
        async with running(fleet):
            await asyncio.sleep(100)
            assert fleet.target("hangs").failures > 1
        assert set(marks) == {0}

    virtually(main)


def test_a_probe_that_ignores_its_cancellation_loses_its_place_and_is_not_polled_twice() -> None:
    async def main(clock: VirtualClock) -> None:
        watch, seen = Watch(), Seen()
        begun = []

        async def ignores(target: Target, context: ProbeContext) -> Reading:
            begun.append(now())
            until = now() + 100.0
            while now() < until:
                try:
                    await asyncio.sleep(until - now())
                except asyncio.CancelledError:
                    continue
            return SAME

        fleet = fleet_for(clock, seen, concurrency=1)
        fleet.add(Target("ignores", ignores, "10s", timeout="3s"))
        fleet.add(Target("well", watch.probe(), "10s"))
        async with running(fleet):
            await asyncio.sleep(60)
            assert fleet.state().stuck == 1
            assert fleet.state().problems
            assert fleet.target("ignores").error is not None
            assert len(watch.at["well"]) >= 4
            await asyncio.sleep(60)
            assert fleet.state().stuck == 0
            assert fleet.target("ignores").failures == 1
        assert {event.took for event in seen.of(TargetStuck)} == {8.0}
        assert all(b - a >= 100 for a, b in pairwise(begun))

    virtually(main)


def test_places_are_bounded_and_so_are_those_of_a_host() -> None:
    async def main(clock: VirtualClock) -> None:
        watch, at_host = Watch(), Watch()
        fleet = fleet_for(clock, concurrency=10, per_host=3)
        for n in range(50):
            fleet.add(Target(f"h{n}", at_host.probe(takes=2.0), "20s", host="h"))
            fleet.add(Target(f"t{n}", watch.probe(takes=0.1), "20s"))
        async with running(fleet):
            await asyncio.sleep(600)
            whole = fleet.state()
        assert at_host.most == 3
        assert whole.queue_depth <= 100
        polls = [len(each) for each in at_host.at.values()]
        assert sum(polls) >= 0.95 * 3 / 2.0 * 600, "the host is busy all the time"
        assert max(polls) - min(polls) <= 2, "who waits longest goes first"
        assert min(len(each) for each in watch.at.values()) >= 29, "the others do not wait for it"
        assert not watch.wrong + at_host.wrong

    virtually(main)


def test_a_hundred_thousand_targets_start_without_a_spike() -> None:
    async def main(clock: VirtualClock) -> None:
        count, under_way, most = 0, 0, 0

        async def probe(target: Target, context: ProbeContext) -> Reading:
            nonlocal count, under_way, most
            count += 1
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0.004)
            under_way -= 1
            return SAME

        fleet = fleet_for(clock, concurrency=64)
        fleet.add(*[Target(f"t{n}", probe) for n in range(100_000)])
        async with running(fleet):
            for second in range(3):
                before = count
                await asyncio.sleep(1.0)
                assert 9_000 < count - before < 11_000, f"not even in second {second}"
            assert 30 < most <= 64

    virtually(main)


# Failing, dying and coming back


def outage(begins: float, ends: float) -> Watch:
    class Outage(Watch):
        def answer(self, target: Target) -> object:
            return OSError("down") if begins <= now() < ends else SAME

    return Outage()


@pytest.mark.parametrize("length", [3.0, 8.0, 14.0, 30.0, 45.0, 70.0])
def test_a_recovery_is_seen_within_the_half_open_delay(length: float) -> None:
    async def main(clock: VirtualClock) -> None:
        seen = Seen()
        watch = outage(1000.0, 1000.0 + length)
        fleet = fleet_for(clock, seen, strategy=Freshness("10s", "5s", "20s"))
        fleet.add(Target("t", watch.probe(watch.answer)))  # type: ignore[attr-defined]
        async with running(fleet):
            await asyncio.sleep(1400)
            failures = seen.of(TargetFailed)
            if failures:
                over = failures[-1]
                allowed = {1: 5.0, 2: 5.0, 3: 30.0, 4: 60.0}[over.failures]
                seen_at = next(at for at in watch.at["t"] if at >= 1000.0 + length)
                assert seen_at - (1000.0 + length) <= allowed
                assert fleet.target("t").state == "closed"
                assert len(seen.of(TargetRecovered)) == 1

    virtually(main)


def test_a_failure_is_confirmed_sooner_and_an_outage_ends_in_the_dead_targets() -> None:
    async def main(clock: VirtualClock) -> None:
        seen = Seen()
        watch = outage(1000.0, 1000.0 + 3600.0)
        fleet = fleet_for(clock, seen, rules=FailureRules(dead_after=5, recheck=1800.0))
        paced: Any = dict.fromkeys(("base_interval", "min_interval", "max_interval"), "60s")
        fleet.add(Target("t", watch.probe(watch.answer), **paced))  # type: ignore[attr-defined]
        async with running(fleet):
            await asyncio.sleep(1000 + 1300)
            down = [at for at in watch.at["t"] if at >= 1000]
            gaps = [b - a for a, b in pairwise(down)]
            assert gaps[:2] == [5.0, 5.0]
            assert 24 <= gaps[2] <= 30
            assert 48 <= gaps[3] <= 60
            assert len(down) == 5
            state = fleet.target("t")
            assert state.state == "dead"
            assert fleet.state().dead_targets == ["t"]
            dead = seen.of(TargetDead)
            assert [(e.permanent, e.delay) for e in dead] == [(False, 1800.0)]
            await asyncio.sleep(3600 + 1800)
            # Rechecked after half an hour, for real, and back by itself at its normal interval.
            assert fleet.target("t").state == "closed"
            assert fleet.state().dead == 0
        rechecks = [at for at in watch.at["t"] if at > down[-1]]
        assert rechecks[0] - down[-1] == pytest.approx(1800.0)
        assert rechecks[1] - rechecks[0] == pytest.approx(1800.0)
        later = [b - a for a, b in pairwise(rechecks[2:])]
        assert later
        assert all(gap == pytest.approx(60.0) for gap in later)

    virtually(main)


def test_a_permanent_failure_is_dead_once_confirmed_and_orders_bring_it_back() -> None:
    async def main(clock: VirtualClock) -> None:
        right = False
        watch, seen = Watch(), Seen()

        def answer(_: Target) -> object:
            return SAME if right else ProbeRefused("401: not allowed")

        fleet = fleet_for(clock, seen)
        fleet.add(Target("t", watch.probe(answer), **PACED))
        async with running(fleet):
            await asyncio.sleep(60)
            assert len(watch.at["t"]) == 3, "confirmed twice, within seconds"
            assert fleet.target("t").permanent
            fleet.retry("t")
            await asyncio.sleep(1)
            assert len(watch.at["t"]) == 4
            assert fleet.target("t").state == "dead"
            right = True
            fleet.retry("t")
            await asyncio.sleep(1)
            assert fleet.target("t").state == "closed"
            right = False
            await asyncio.sleep(25)
            assert fleet.target("t").state == "dead"
            right = True
            fleet.close_breaker("t")
            assert fleet.target("t").state == "closed"
            assert fleet.target("t").failures == 0
            await asyncio.sleep(25)
            assert fleet.target("t").succeeded_at is not None
            assert len(watch.at["t"]) >= 5

    virtually(main)


# Orders


def test_pause_resume_and_poll_now() -> None:
    async def main(clock: VirtualClock) -> None:
        watch = Watch()
        fleet = fleet_for(clock)
        fleet.add(Target("t", watch.probe(takes=1.0), "10s"), Target("u", watch.probe(), "1h"))
        fleet.pause("t")
        async with running(fleet):
            await asyncio.sleep(100)
            assert watch.at["t"] == []
            assert fleet.target("t").next_at is None
            fleet.poll_now("t")
            await asyncio.sleep(100)
            assert len(watch.at["t"]) == 1
            assert fleet.target("t").paused
            fleet.resume("t")
            await asyncio.sleep(100)
            assert len(watch.at["t"]) == 12, "at once, and then on its grid"
            polls = len(watch.at["u"])
            fleet.poll_now("u")
            fleet.poll_now("u")
            await asyncio.sleep(0.5)
            assert len(watch.at["u"]) == polls + 1
            with pytest.raises(ConfigError, match="no target 'v'"):
                fleet.pause("v")
        with pytest.raises(ConfigError, match="is not running"):
            fleet.poll_now("t")

    virtually(main)


def test_a_target_may_be_added_and_removed_while_running() -> None:
    async def main(clock: VirtualClock) -> None:
        watch, slow = Watch(), Watch()
        fleet = fleet_for(clock)
        fleet.add(Target("slow", slow.probe(takes=20.0), "30s"))
        async with running(fleet):
            while not slow.under_way:
                await asyncio.sleep(0.1)
            fleet.remove("slow")
            fleet.add(Target("slow", slow.probe(), "1s"), Target("new", watch.probe(), "10s"))
            await asyncio.sleep(60)
            assert len(watch.at["new"]) == 6
            assert len(slow.at["slow"]) > 50
            fleet.remove("slow")
            polls = len(slow.at["slow"])
            await asyncio.sleep(60)
            assert len(slow.at["slow"]) == polls
            assert not slow.wrong
            assert [each.name for each in fleet.state().target_list] == ["new"]

    virtually(main)


def test_the_result_of_a_removed_target_is_dropped() -> None:
    async def main(clock: VirtualClock) -> None:
        seen = Seen()
        told: list[Notice] = []

        async def stubborn(target: Target, context: ProbeContext) -> str:
            try:
                await asyncio.sleep(5)
            except asyncio.CancelledError:
                await asyncio.sleep(1)
            return str(now())

        fleet = fleet_for(clock, seen)
        fleet.on_change(told.append)
        fleet.add(Target("t", stubborn, "6s"))
        async with running(fleet):
            while not (fleet.target("t").polling and fleet.target("t").succeeded_at):
                await asyncio.sleep(0.1)
            fleet.remove("t")
            await asyncio.sleep(30)
            assert fleet.state().in_flight == 0
        assert [event.result for event in seen.of(TargetPolled)][-1] == "dropped"
        assert told == []

    virtually(main)


# Changes


def test_changes_come_in_order_and_a_broken_function_affects_no_other() -> None:
    async def main(clock: VirtualClock) -> None:
        seen, values = Seen(), iter("aabbc" + "c" * 1000)
        watch = Watch()
        told: list[str] = []
        fleet = fleet_for(clock, seen)

        @fleet.on_change
        def broken(notice: Notice) -> None:
            raise ValueError("broken")

        @fleet.on_change
        async def hangs(notice: Notice) -> None:
            await asyncio.sleep(10**6)

        @fleet.on_change
        async def tell(notice: Notice) -> None:
            before, after = notice.payload["before"], notice.payload["after"]
            told.append(f"{before['value']}->{after['value']}")

        fleet.add(Target("t", watch.probe(lambda _: Reading(next(values), summary="well")), "10s"))
        async with running(fleet):
            await asyncio.sleep(300)
            assert fleet.target("t").state == "closed"
            assert fleet.target("t").summary == "well"
            assert fleet.target("t").changed_at is not None
        assert told == ["a->b", "b->c"]
        failed = {event.channel.split(".")[-1] for event in seen.of(NoticeFailed)}
        assert failed == {"broken", "hangs"}
        assert len(seen.of(TargetChanged)) == 2
        assert not watch.wrong

    virtually(main)


# Starting and stopping


def test_a_stop_finishes_polls_in_progress_within_the_grace() -> None:
    async def main(clock: VirtualClock) -> None:
        for takes, cancelled in ((5.0, 0), (50.0, 1)):
            seen, watch = Seen(), Watch()
            fleet = fleet_for(clock, seen, grace="10s")
            fleet.add(Target("t", watch.probe(takes=takes), "1s", timeout="100s"))
            run = asyncio.ensure_future(fleet.run())
            while not watch.under_way:
                await asyncio.sleep(0.1)
            before = now()
            fleet.stop()
            await run
            assert now() - before == pytest.approx(min(takes, 10.0), abs=0.2)
            assert [event.cancelled for event in seen.of(FleetStopped)] == [cancelled]
            assert not watch.under_way
            assert fleet.target("t").failures == 0

    virtually(main)


def test_cancelling_a_run_ends_everything() -> None:
    async def main(clock: VirtualClock) -> None:
        watch = Watch()
        fleet = fleet_for(clock)
        fleet.add(*[Target(f"t{n}", watch.probe(takes=50.0), "1s") for n in range(5)])
        run = asyncio.ensure_future(fleet.run())
        await asyncio.sleep(10)
        assert len(watch.under_way) == 5
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert not watch.under_way
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert all(each.failures == 0 for each in fleet.state().target_list)

    virtually(main)


def test_cancelling_all_tasks_at_once_is_not_a_failure() -> None:
    """As `asyncio.run` does when it is interrupted."""
    watch, seen = Watch(), Seen()

    async def main(clock: VirtualClock) -> None:
        fleet = fleet_for(clock, seen)
        fleet.add(Target("t", watch.probe(takes=50.0), "1s", timeout="100s"))
        run = asyncio.ensure_future(fleet.run())
        await asyncio.sleep(10)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.wait([run])

    virtually(main)
    assert seen.of(TargetFailed) == []


def test_a_fleet_runs_again_and_goes_on_where_it_was() -> None:
    async def main(clock: VirtualClock) -> None:
        watch = Watch()
        fleet = fleet_for(clock)
        fleet.add(Target("t", watch.probe(), "100s"), Target("p", watch.probe(), "10s"))
        began = clock.now()
        async with running(fleet):
            await asyncio.sleep(250)
            with pytest.raises(ConfigError, match="already running"):
                await fleet.run()
        fleet.pause("p")
        polls = len(watch.at["p"])
        async with running(fleet):
            await asyncio.sleep(250)
        assert len(watch.at["p"]) == polls
        gaps = [b - a for a, b in pairwise(watch.at["t"])]
        assert watch.at["t"][0] - began <= 60
        assert gaps[0] <= 100.0
        assert gaps[1:] == pytest.approx([100.0] * (len(gaps) - 1))

    virtually(main)


def test_a_fleet_without_targets_sleeps() -> None:
    async def main(clock: VirtualClock) -> None:
        fleet = fleet_for(clock)
        async with running(fleet):
            await asyncio.sleep(3600)
            assert fleet.state().targets == 0
            assert fleet.state().staleness is None

    virtually(main)


def test_asyncio_run_blocks_until_the_fleet_stops() -> None:
    fleet = Fleet(FleetRunOptions(strategy=Fixed("10ms"), seed=1, signals=False))
    polled = []

    @fleet.probe("t")
    async def probe(target: Target, context: ProbeContext) -> str:
        polled.append(target.name)
        fleet.stop()
        return "x"

    asyncio.run(fleet.run())
    assert polled == ["t"]
