"""The metrics of a fleet: by type and group, or by target, and gone with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from pollwise.errors import ProbeRefused
from pollwise.fleet import FailureRules, Target
from pollwise.fleet.counting import breakers_of, tallied
from pollwise.observe.fleet_metrics import FleetMetrics
from pollwise.observe.metrics import METRICS
from pollwise.observe.prometheus import PrometheusSink
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import FleetCounted, TargetPolled, TargetPolling, TargetStateChanged
from tests.fleet.world import PACED, SAME, Watch, flaky, fleet_for, now, running
from tests.support.kit import Seen, virtually


def value(sink: PrometheusSink, name: str, **labels: str) -> float | None:
    found: float | None = sink.registry.get_sample_value(name, labels)
    return found


def of_fleets(sink: PrometheusSink) -> set[str]:
    return {
        sample.name
        for family in sink.registry.collect()
        for sample in family.samples
        if sample.name.startswith("pollwise_fleet")
    }


def sink_at(clock_now: Callable[[], float], *, by_target: bool = False) -> PrometheusSink:
    """A sink whose ages are by the virtual clock."""
    sink = PrometheusSink(by_target=by_target)
    metrics = FleetMetrics(sink.instruments, clock_now, by_target=by_target)
    sink._react |= metrics.react
    return sink


def test_the_names_of_the_design() -> None:
    labels = {metric.name: metric.labels for metric in METRICS}
    assert labels["pollwise_fleet_poll_total"] == ("type", "group", "target", "result")
    assert labels["pollwise_fleet_poll_duration_seconds"] == ("type", "group", "target")
    assert labels["pollwise_fleet_poll_staleness_seconds"] == ("type", "group", "target")
    assert labels["pollwise_fleet_due"] == ("type", "group")
    assert labels["pollwise_fleet_queue_depth"] == ()
    assert labels["pollwise_fleet_inflight"] == ("type",)


def test_by_target_a_target_that_is_gone_takes_its_label_sets_along() -> None:
    async def main(clock: VirtualClock) -> None:
        seen, sink = Seen(), sink_at(now, by_target=True)
        sink.subscribe(seen.events)
        assert of_fleets(sink) == set()
        watch, right = Watch(), False

        def answer(target: Target) -> object:
            return SAME if target.name == "well" or right else ProbeRefused("no")

        rules = FailureRules(confirmations=0, recheck=1800.0)
        fleet = fleet_for(clock, seen, rules=rules)
        fleet.add(Target("well", watch.probe(answer, takes=1.0), "10s"))
        fleet.add(Target("ill", watch.probe(answer), **PACED, type="http", group="g"))
        well = {"type": "function", "group": "", "target": "well"}
        ill = {"type": "http", "group": "g", "target": "ill"}
        async with running(fleet):
            await asyncio.sleep(100)
            assert value(sink, "pollwise_fleet_poll_total", **well, result="unchanged") in (9, 10)
            assert value(sink, "pollwise_fleet_poll_total", **ill, result="failed") == 1
            assert value(sink, "pollwise_fleet_poll_duration_seconds_sum", **well) in (9, 10)
            age = value(sink, "pollwise_fleet_poll_staleness_seconds", **well)
            assert age is not None
            assert age <= 10
            assert value(sink, "pollwise_fleet_staleness_score", **well) == age / 10
            assert value(sink, "pollwise_fleet_poll_staleness_seconds", **ill) == 100.0
            assert value(sink, "pollwise_fleet_staleness_score", **ill) == 1.0
            assert value(sink, "pollwise_fleet_dead_targets", type="http", group="g") == 1
            assert value(sink, "pollwise_fleet_breaker_state", **ill) == 2
            assert value(sink, "pollwise_fleet_queue_depth") in (1, 2)
            right = True
            fleet.retry("ill")
            await asyncio.sleep(11)
            assert value(sink, "pollwise_fleet_dead_targets", type="http", group="g") == 0
            assert value(sink, "pollwise_fleet_breaker_state", **ill) == 0
            while not fleet.target("well").polling:
                await asyncio.sleep(0.1)
            assert value(sink, "pollwise_fleet_inflight", type="function") == 1
            fleet.remove("well")  # while it is being polled
            await asyncio.sleep(30)
            gone = [
                sample
                for family in sink.registry.collect()
                for sample in family.samples
                if sample.labels.get("target") == "well"
            ]
            assert gone == []
            assert value(sink, "pollwise_fleet_inflight", type="function") == 0
        assert of_fleets(sink) == set()

    virtually(main)


def test_by_group_the_metrics_agree_with_the_state_of_the_fleet() -> None:
    """Down, stale, due and breakers by type and group: the sums are those of the API."""

    async def main(clock: VirtualClock) -> None:
        seen, sink, watch = Seen(), sink_at(now), Watch()
        sink.subscribe(seen.events)
        random = Random(3)
        fleet = fleet_for(clock, seen, rules=FailureRules(dead_after=5))
        answers = {"well": flaky(random, 1.0), "shaky": flaky(random, 0.5), "ill": flaky(random, 0)}
        for group, answer in answers.items():
            for n in range(20):
                fleet.add(Target(f"{group}{n}", watch.probe(answer), **PACED, group=group))
        fleet.add(Target("paused", watch.probe(), "10s"))
        every = ("", *answers)

        def total(name: str, groups: tuple[str, ...] = every, **more: str) -> float:
            labels = [{"type": "function", "group": group, **more} for group in groups]
            return sum(value(sink, f"pollwise_fleet_{name}", **each) or 0 for each in labels)

        async with running(fleet):
            fleet.pause("paused")
            whole = fleet.state()
            for _ in range(30):
                await asyncio.sleep(10)
                event = seen.of(FleetCounted)[-1]
                sink(replace(event, tallies=await tallied(fleet._scheduler, clock)))
                whole = fleet.state()
                assert total("targets") == whole.targets == 61
                assert total("stale_targets") == whole.stale
                assert total("dead_targets") == whole.dead
                assert total("due") == whole.due
                assert total("overdue") == whole.overdue == 0
                assert total("paused_targets") == whole.paused == 1
                down = sum(each.down_since is not None for each in whole.target_list)
                assert total("down_targets") == down
                for state, count in breakers_of(whole.states).items():
                    assert total("breakers", state=state) == count
            assert whole.dead >= 20
            oldest = max(
                each.staleness or 0.0 for each in whole.target_list if each.group == "shaky"
            )
            assert total("poll_staleness_seconds", ("shaky",)) == oldest
            assert total("staleness_score", ("well",)) <= 1.0
            assert total("staleness_score", ("ill",)) == 1.0
            assert total("never_targets", ("ill",)) == 20
            ill = {"type": "function", "group": "ill"}
            assert value(sink, "pollwise_fleet_poll_staleness_seconds", **ill) is None
            polls = total("poll_total", ("well",), result="unchanged")
            assert polls == sum(len(watch.at[f"well{n}"]) for n in range(20))
            assert total("poll_duration_seconds_count", ("well",)) == polls
            for n in range(20):
                fleet.remove(f"ill{n}")
            await asyncio.sleep(20)
            assert value(sink, "pollwise_fleet_targets", **ill) is None
        assert of_fleets(sink) == set()

    virtually(main)


def test_a_scrape_by_group_does_not_grow_with_the_targets() -> None:
    """20,000 targets in 20 groups are 60 kB and 10 ms; by target, 66 MB and 6 s."""

    def scrape(count: int, *, by_target: bool = False) -> int:
        sink = PrometheusSink(by_target=by_target)
        for n in range(count):
            facts = ("f", f"target number {n}", "http")
            group = f"g{n % 5}"
            sink(TargetPolling(*facts, 0.0, group=group))
            sink(TargetPolled(*facts, "unchanged", 0.1, 10.0, count, 0, 300.0, group=group))
        return len(sink.exposed()[0])

    assert scrape(2000) == pytest.approx(scrape(20), rel=0.1)
    assert scrape(2000) < 60_000
    assert scrape(200, by_target=True) > 200 * 1500


def test_a_breaker_that_lets_a_poll_through_is_half_open_everywhere() -> None:
    async def main(clock: VirtualClock) -> None:
        seen, sink, watch = Seen(), sink_at(now, by_target=True), Watch()
        sink.subscribe(seen.events)
        fleet = fleet_for(clock, seen)
        fleet.add(Target("ill", watch.probe(lambda _: OSError(), takes=5.0), "10s"))
        labels = {"type": "function", "group": "", "target": "ill"}
        numbers = {"closed": 0, "half-open": 1, "open": 2}
        async with running(fleet):
            shown = set()
            for _ in range(600):
                await asyncio.sleep(0.5)
                [breaker] = [n for n, c in breakers_of(fleet.state().states).items() if c]
                state = value(sink, "pollwise_fleet_breaker_state", **labels)
                assert (state or 0) == numbers[breaker]
                shown.add(breaker)
            assert shown == set(numbers)
            of_group = {"type": "function", "group": ""}
            total = "pollwise_fleet_breaker_change_total"
            opened = value(sink, total, **of_group, state="open") or 0
            tried = value(sink, total, **of_group, state="half-open") or 0
            assert opened >= 2
            assert opened - tried in (0, 1)
            assert value(sink, total, **of_group, state="closed") == 0
        changes = [event.state for event in seen.of(TargetStateChanged)]
        assert changes[:5] == ["confirming", "open", "half-open", "open", "half-open"]

    virtually(main)


def test_planned_and_due_polls_are_counted_separately() -> None:
    async def main(clock: VirtualClock) -> None:
        seen, sink, watch = Seen(), PrometheusSink(), Watch()
        sink.subscribe(seen.events)
        # One place, and polls that take longer than ten targets can wait for.
        fleet = fleet_for(clock, seen, concurrency=1)
        fleet.add(*(Target(f"t{n}", watch.probe(takes=5.0), "10s") for n in range(10)))
        fleet.add(Target("later", watch.probe(), "1h"), Target("paused", watch.probe(), "10s"))
        async with running(fleet):
            fleet.pause("paused")
            await asyncio.sleep(100)
            whole = fleet.state()
            assert whole.queue_depth == 10  # but for the one in flight, and the paused one
            assert 5 <= whole.due <= 9
            assert value(sink, "pollwise_fleet_queue_depth") in (10, 11)
            due = value(sink, "pollwise_fleet_due", type="function", group="")
            assert 5 <= (due or 0) <= 10

    virtually(main)
