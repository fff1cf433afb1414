"""A new set of targets for a fleet: unchanged ones go on, changed ones keep what was learned."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pollwise.errors import ConfigError
from pollwise.fleet import ProbeContext, Reading, Target
from pollwise.fleet.engine.replacing import same
from pollwise.fleet.stores.sqlite.store import SqliteFleetStore
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.events import TargetAdded, TargetChanged, TargetRemoved
from tests.fleet.world import Watch, fleet_for, running
from tests.support.kit import Seen


def test_targets_are_the_same_by_their_definition_not_by_their_object() -> None:
    async def probe(target: Target, context: ProbeContext) -> str:
        return "x"

    def made(**given: Any) -> Target:
        plan = {"labels": {"a": "b"}, "options": {"url": "http://a"}, "quiet": "22:00-06:00 UTC"}
        return Target("a", "http", **{**plan, **given})

    assert same(made(), made())
    assert same(made(interval="10s"), made(interval=10))
    assert same(made(origin="api"), made(origin="file"))
    others: list[dict[str, Any]] = [
        {"interval": "9s"},
        {"labels": {}},
        {"options": {"url": "http://b"}},
    ]
    for other in others:
        assert not same(made(), made(**other))
    assert same(Target("a", probe), Target("a", probe))
    assert not same(Target("a", probe), Target("a", "http"))


def test_unchanged_targets_keep_their_time_and_changed_ones_are_polled_soon_and_spread() -> None:
    clock, watch, seen = VirtualClock(), Watch(), Seen()
    probe, other = watch.probe(), watch.probe(lambda target: Reading("another"))

    def some(count: int, probe: Any) -> list[Target]:
        return [Target(f"t{n}", probe, max_interval="10m") for n in range(count)]

    async def main() -> None:
        fleet = fleet_for(clock, seen)
        fleet.add(*some(200, probe), Target("gone", probe))
        async with running(fleet):
            await clock.advance(4000)
            before = {name: fleet.target(name) for name in fleet.names()}
            assert sum(each.interval > 100 for each in before.values()) > 150  # all learned
            polls = {name: len(at) for name, at in watch.at.items()}
            began = clock.now()
            changed = fleet.replace(
                [*some(100, other), *some(200, probe)[100:], Target("new", probe)]
            )
            assert (len(changed.added), len(changed.changed), changed.removed) == (
                1, 100, ("gone",),
            )  # fmt: skip
            for n in range(100, 200):
                assert fleet.target(f"t{n}") == before[f"t{n}"]
            assert fleet.target("t5").changes_per_second == before["t5"].changes_per_second
            assert fleet.target("t5").succeeded_at == before["t5"].succeeded_at
            await clock.advance(60)
            first = sorted(watch.at[f"t{n}"][polls[f"t{n}"]] - began for n in range(100))
            assert first[-1] <= 60
            for at in first:  # a herd would be within a second
                assert sum(at <= each < at + 1 for each in first) <= 12
            assert "gone" not in fleet
            assert watch.at["new"]
        assert not seen.of(TargetChanged)  # another thing is polled: its reading did not change
        assert [each.target for each in seen.of(TargetRemoved)] == ["gone"]
        assert len(seen.of(TargetAdded)) == 202
        assert not watch.wrong

    clock.run(main())


def test_a_new_plan_keeps_reading_and_failures_and_never_polls_later() -> None:
    clock, watch = VirtualClock(), Watch()
    down = watch.probe(lambda target: ConnectionError("no answer"))
    probe = watch.probe(lambda target: Reading("x", summary="fine"))

    async def main() -> None:
        fleet = fleet_for(clock)
        fleet.add(Target("well", probe), Target("down", down), Target("off", probe))
        async with running(fleet):
            fleet.pause("off")
            await clock.advance(1000)
            failures = fleet.target("down").failures
            due = fleet.target("down").next_at
            count = len(watch.at["well"])
            began = clock.now()
            fleet.replace(
                [
                    Target("well", probe, "5s"),
                    Target("down", down, labels={"a": "b"}),
                    Target("off", probe, labels={"a": "b"}),
                ]
            )
            assert fleet.target("well").summary == "fine"
            assert (fleet.target("down").failures, fleet.target("down").next_at) == (failures, due)
            assert fleet.target("off").paused
            await clock.advance(100)
            assert watch.at["well"][count] - began <= 5
            assert 19 <= len(watch.at["well"]) - count <= 21

    clock.run(main())


def test_a_poll_in_progress_of_the_old_definition_counts_for_nothing() -> None:
    clock = VirtualClock()
    began, polled = asyncio.Event(), []

    async def hangs(target: Target, context: ProbeContext) -> str:
        began.set()
        await asyncio.sleep(20)
        return "old"

    async def answers(target: Target, context: ProbeContext) -> str:
        polled.append(context.last)
        return "new"

    async def main() -> None:
        fleet = fleet_for(clock, concurrency=3)
        fleet.add(Target("a", hangs))
        async with running(fleet):
            await began.wait()
            fleet.replace([Target("a", answers)])
            await clock.advance(70)
            assert polled[0] is None
            assert fleet.target("a").failures == 0

    clock.run(main())


def test_one_wrong_target_changes_nothing(tmp_path: Path) -> None:
    clock, watch = VirtualClock(), Watch()

    async def main() -> None:
        fleet = fleet_for(clock)
        fleet.add(Target("a", watch.probe()))
        async with running(fleet):
            wrong: list[Any] = [
                [Target("b", watch.probe()), Target("c", "http")],
                [Target("b", watch.probe()), Target("b", watch.probe())],
                [Target("b", watch.probe()), "c"],
            ]
            for targets in wrong:
                with pytest.raises(ConfigError):
                    fleet.replace(targets)
                assert fleet.names() == ["a"]

    clock.run(main())


def test_before_and_between_runs_a_changed_target_keeps_its_saved_state(tmp_path: Path) -> None:
    clock, watch = VirtualClock(), Watch()

    async def main() -> None:
        store = SqliteFleetStore(tmp_path / "f.db", clock=clock)
        fleet = fleet_for(clock, store=store)
        fleet.replace([Target("a", watch.probe()), Target("b", watch.probe())])
        fleet.pause("a")
        assert fleet.replace([Target("a", watch.probe(), "5s")]).removed == ("b",)
        assert fleet.target("a").paused
        fleet.resume("a")
        async with running(fleet):
            await clock.advance(30)
        fleet.replace([Target("a", watch.probe(), "7s"), Target("c", watch.probe())])
        async with running(fleet):
            await clock.advance(0.01)
            assert fleet.target("a").succeeded_at is not None
            fleet.replace([Target("c", watch.probe())])
        assert [each.name for each in await store.load()] == ["c"]
        await store.close()

    clock.run(main())
