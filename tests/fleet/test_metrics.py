"""The metrics of a fleet: by the names of the design, and gone with their target."""

from __future__ import annotations

import asyncio

from pollwise.errors import ProbeRefused
from pollwise.fleet import Target
from pollwise.observe.fleet_metrics import FleetMetrics
from pollwise.observe.metrics import METRICS
from pollwise.observe.prometheus import PrometheusSink
from pollwise.runtime.clock import VirtualClock
from tests.fleet.world import SAME, Watch, fleet_for, now, running
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


def test_the_names_of_the_design() -> None:
    labels = {metric.name: metric.labels for metric in METRICS}
    assert labels["pollwise_fleet_poll_total"] == ("type", "target", "result")
    assert labels["pollwise_fleet_poll_duration_seconds"] == ("type", "target")
    assert labels["pollwise_fleet_poll_staleness_seconds"] == ("type", "target")
    assert labels["pollwise_fleet_queue_depth"] == labels["pollwise_fleet_due"] == ()
    assert labels["pollwise_fleet_inflight"] == ("type",)


def test_a_fleet_is_counted_and_a_target_that_is_gone_takes_its_label_sets_along() -> None:
    async def main(clock: VirtualClock) -> None:
        seen, sink = Seen(), PrometheusSink()
        metrics = FleetMetrics(sink._metrics, sink.registry, now)
        sink._react |= metrics.react
        sink.subscribe(seen.events)
        assert of_fleets(sink) == set()
        watch, right = Watch(), False

        def answer(target: Target) -> object:
            return SAME if target.name == "well" or right else ProbeRefused("no")

        fleet = fleet_for(clock, seen)
        fleet.add(Target("well", watch.probe(answer, takes=1.0), "10s"))
        fleet.add(Target("ill", watch.probe(answer), "10s", type="http"))
        async with running(fleet):
            await asyncio.sleep(100)
            well, ill = {"type": "function", "target": "well"}, {"type": "http", "target": "ill"}
            assert value(sink, "pollwise_fleet_poll_total", **well, result="unchanged") in (9, 10)
            assert value(sink, "pollwise_fleet_poll_total", **ill, result="failed") == 3
            assert value(sink, "pollwise_fleet_poll_duration_seconds_sum", **well) in (9, 10)
            age = value(sink, "pollwise_fleet_poll_staleness_seconds", **well)
            assert age is not None
            assert age <= 10
            assert value(sink, "pollwise_fleet_poll_staleness_seconds", **ill) == 100.0
            assert value(sink, "pollwise_fleet_dead_targets") == 1
            assert value(sink, "pollwise_fleet_breaker_state", **ill) == 2
            assert value(sink, "pollwise_fleet_queue_depth") in (1, 2)
            assert value(sink, "pollwise_fleet_due") == 0
            right = True
            fleet.retry("ill")
            await asyncio.sleep(1)
            assert value(sink, "pollwise_fleet_dead_targets") == 0
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
            assert 5 <= (value(sink, "pollwise_fleet_due") or 0) <= 9

    virtually(main)
