"""Targets go on at the pace that they learned, after a restart of their fleet."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from pollwise.core.strategies.adaptive import Adaptive
from pollwise.core.strategies.base import RestoredPacer
from pollwise.core.strategies.worth import Worth
from pollwise.fleet import Fleet, Target
from pollwise.fleet.stores.base import FleetStore
from pollwise.runtime.clock import VirtualClock
from tests.fleet.engine.test_restart import restarted
from tests.fleet.world import Watch, fleet_for, now, running

PACES = {
    "worth": Worth(poll_cost=5, wait_cost=1, min_interval="1s", max_interval="5m"),
    "adaptive": Adaptive("1s", "5m"),
}


def test_a_restart_forgets_no_pace(tmp_path: Path) -> None:
    watch = Watch()
    learned: dict[str, dict[str, Any]] = {}

    def answer(target: Target) -> object:
        return int(now() // 600)

    def fleet_of(clock: VirtualClock, store: FleetStore) -> Fleet:
        fleet = fleet_for(clock, store=store)
        for name, strategy in PACES.items():
            fleet.add(Target(name, watch.probe(answer), strategy))
        return fleet

    async def first(clock: VirtualClock, store: FleetStore) -> None:
        fleet = fleet_of(clock, store)
        async with running(fleet):
            await asyncio.sleep(7250)
            for name in PACES:
                learned[name] = state_of(fleet, name)
        for saved in await store.load():
            assert len(json.dumps(saved.more["pace"])) < 4096

    async def second(clock: VirtualClock, store: FleetStore) -> None:
        fleet = fleet_of(clock, store)
        async with running(fleet):
            await asyncio.sleep(0.01)
            for name in PACES:
                assert type(pacer_of(fleet, name)) is RestoredPacer
                if name == "adaptive":
                    assert state_of(fleet, name) == learned[name]
            assert state_of(fleet, "worth")["long_run_rate"] == pytest.approx(
                learned["worth"]["long_run_rate"], rel=1e-4
            )
            await asyncio.sleep(900)
            assert state_of(fleet, "worth")["interval"] > 20

    restarted(tmp_path / "fleet.db", first, second)


def test_a_damaged_pace_is_not_used(tmp_path: Path) -> None:
    watch = Watch()

    async def first(clock: VirtualClock, store: FleetStore) -> None:
        fleet = fleet_for(clock, store=store)
        fleet.add(Target("t", watch.probe(lambda _: 1), PACES["adaptive"]))
        async with running(fleet):
            await asyncio.sleep(1000)
        [saved] = await store.load()
        saved.more["pace"]["pacer"]["learned"] = {"_pause": 7}
        await store.save([saved])

    async def second(clock: VirtualClock, store: FleetStore) -> None:
        fleet = fleet_for(clock, store=store)
        fleet.add(Target("t", watch.probe(lambda _: 1), PACES["adaptive"]))
        watch.at.clear()
        async with running(fleet):
            await asyncio.sleep(0.01)
            assert type(pacer_of(fleet, "t")) is not RestoredPacer
            await asyncio.sleep(1000)
            assert len(watch.at["t"]) > 3

    restarted(tmp_path / "fleet.db", first, second)


def pacer_of(fleet: Fleet, name: str) -> object:
    return fleet._run.scheduler.entries[name].pacer  # type: ignore[union-attr]


def state_of(fleet: Fleet, name: str) -> dict[str, Any]:
    pacer = fleet._run.scheduler.entries[name].pacer  # type: ignore[union-attr]
    assert pacer is not None
    return dict(pacer.state())
