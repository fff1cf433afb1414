"""The history of a running fleet, kept in every store: uptimes, incidents, percentiles, strips."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from pollwise.alerts.windows import MaintenanceWindow
from pollwise.errors import ConfigError, StoreUnavailable, Unsupported
from pollwise.fleet import Fleet, Reading, Target
from pollwise.fleet.history.as_json import history_json, uptimes_json
from pollwise.fleet.history.values import (
    DAYS_KEPT,
    HOURS_KEPT,
    PERIODS_KEPT,
    Period,
    PollFigures,
    TargetRollup,
    TimeInStates,
)
from pollwise.fleet.history.views import (
    UPTIME_WINDOWS,
    incidents,
    open_history,
    strips,
    target_history,
    uptimes,
    window_of,
)
from pollwise.fleet.stores.base import FleetStore, SavedTarget, SaveExtras
from pollwise.fleet.stores.postgres.store import TABLES, PostgresFleetStore
from pollwise.fleet.stores.sqlite.store import SqliteFleetStore
from pollwise.runtime.clock import VirtualClock
from pollwise.runtime.rollups.histogram import Histogram
from pollwise.storage.postgres.schema import script
from tests.fleet.history.test_tracker import Followed, Poll
from tests.fleet.world import fleet_for, running
from tests.support.servers import Postgres

START = 1_767_225_600.0  # a full day
HOUR, DAY = 3600.0, 86400.0
fleets = (f"history {number}" for number in itertools.count())
Main = Callable[[FleetStore, VirtualClock], Awaitable[None]]


@pytest.fixture(params=["sqlite", "postgres"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., None]:
    """Calls functions one after the other, each with the same store, opened again."""

    def ran(*mains: Main) -> None:
        epoch, name = START, next(fleets)

        async def body(main: Main, clock: VirtualClock) -> float:
            store: FleetStore
            if request.param == "sqlite":
                store = SqliteFleetStore(tmp_path / "fleet.db", clock=clock)
            else:
                server: Postgres = request.getfixturevalue("postgres")
                server.execute(script("pollwise", TABLES))
                store = PostgresFleetStore(server.dsn(), name, clock=clock)
            try:
                await main(store, clock)
            finally:
                await store.close()
            return clock.epoch()

        for main in mains:
            clock = VirtualClock(epoch)
            epoch = clock.run(body(main, clock))

    return ran


class Server:
    """A target that is down at given times, in seconds after START."""

    def __init__(self, clock: VirtualClock, *outages: tuple[float, float]) -> None:
        self.clock = clock
        self.outages = outages

    async def __call__(self, target: Target, context: object) -> Reading:
        await asyncio.sleep(0.1)
        now = self.clock.epoch() - START
        if any(start <= now < end for start, end in self.outages):
            raise OSError("no answer")
        return Reading("42")


def fleet_of(
    clock: VirtualClock, store: FleetStore, *outages: tuple[float, float], every: str = "60s"
) -> Fleet:
    fleet = fleet_for(clock, store=store, lease="1h")
    fleet.add(Target("shop", Server(clock, *outages), every, group="web", dead_after=1000))
    return fleet


async def until(clock: VirtualClock, after: float) -> None:
    await asyncio.sleep(START + after - clock.epoch())


def test_an_outage_of_a_running_fleet(run: Callable[..., None]) -> None:
    """From 23:00 to 00:30, with an outage at midnight."""

    async def main(store: FleetStore, clock: VirtualClock) -> None:
        await until(clock, 23 * HOUR)
        async with running(fleet_of(clock, store, (23.8 * HOUR, 24.1 * HOUR))):
            await until(clock, 24 * HOUR - 1)
            [open_one] = await incidents(store, START, clock.epoch())
            assert open_one.open
            assert open_one.reason == "OSError: no answer"
            await until(clock, 24.5 * HOUR)
        now = clock.epoch()
        found = await target_history(store, "shop", now - DAY, now)
        assert found is not None
        [incident] = found.incidents
        assert incident.ended_at is not None
        assert incident.started_at == open_one.started_at
        assert incident.started_at - START == pytest.approx(23.8 * HOUR, abs=61)
        assert incident.ended_at - START == pytest.approx(24.1 * HOUR, abs=301), "its breaker"
        assert [each.state for each in found.periods] == ["up", "down", "up"]
        assert all(one.ended_at == other.started_at for one, other in pairwise(found.periods))
        assert found.periods[-1].ended_at == now
        assert found.times.down == pytest.approx(incident.lasted, abs=0.01)
        assert found.times.up + found.times.down == pytest.approx(1.5 * HOUR, abs=61)
        assert found.state == "up"
        assert 0.09 < (found.figures.latency.quantile(0.95) or 0) < 0.12
        assert found.figures.value_mean == 42.0
        assert found.figures.failed > 5
        assert [each.at for each in found.points] == [START + 23 * HOUR, START + 24 * HOUR]

        rates = (await uptimes(store, ["shop", "none"], now))["shop"]
        assert rates.state == "up"
        assert rates.since == incident.ended_at
        assert {each.uptime for each in rates.windows.values()} == {found.times.uptime}
        [days] = (await strips(store, ["shop"], now, cells=3)).values()
        assert [each.state for each in days] == ["unknown", "down", "down"]
        [hours] = (await strips(store, ["shop"], now, cells=4, seconds=HOUR)).values()
        assert [each.state for each in hours] == ["unknown", "unknown", "down", "down"]
        assert sum(each.times.down for each in hours) == pytest.approx(incident.lasted, abs=0.01)

        [again] = await incidents(store, START, now, name="shop")
        assert again == incident
        assert await incidents(store, START, now, before=incident.started_at) == []
        plain = history_json(found)
        assert plain["uptime"] == found.times.uptime
        assert plain["latency"]["p95"] == found.figures.latency.quantile(0.95)
        assert uptimes_json(rates)["windows"]["30d"]["uptime"] == found.times.uptime

    run(main)


def test_windows_of_different_lengths(run: Callable[..., None]) -> None:
    """Forty days of polls, with outages on the first day, ten days ago, and three days ago."""

    async def main(store: FleetStore, clock: VirtualClock) -> None:
        world, random = Followed(), Random(5)
        outages = (0.5 * DAY, 30 * DAY, 37 * DAY)
        while (after := world.now - START) < 40 * DAY:
            down = any(start <= after < start + 3 * HOUR for start in outages)
            world.poll(Poll(random.uniform(500, 700), not down, wait=600))
            world.restart()
        assert world.tracker is not None
        saved = SavedTarget("a", more={"history": world.tracker.kept()})
        rows = world.rows
        periods = [row for row in rows if isinstance(row, Period)]
        await store.save(
            [saved], SaveExtras(periods, [r for r in rows if not isinstance(r, Period)])
        )
        now = world.now
        rates = (await uptimes(store, ["a"], now))["a"].windows
        for window, seconds in UPTIME_WINDOWS.items():
            length, begins = window_of(seconds, now)
            lost = sum(p.lasted for p in periods if p.state == "down" and p.started_at >= begins)
            whole = now - max(begins, periods[0].started_at)
            assert rates[window].down == pytest.approx(lost, abs=0.01), window
            assert rates[window].uptime == pytest.approx(1 - lost / whole, abs=1e-9), window
            found = await target_history(store, "a", now - seconds, now)
            assert found is not None
            assert found.times.up == pytest.approx(rates[window].up)
            assert found.times.down == pytest.approx(rates[window].down)
            assert found.since == begins
            assert {each.length for each in found.points} == {length}
        assert [rates[each].down > 0 for each in rates] == [False, True, True, True]
        assert rates["30d"].down > rates["7d"].down
        assert rates["90d"].down > rates["30d"].down

    run(main)


def test_restarts_and_a_stop_for_an_hour(run: Callable[..., None]) -> None:
    """A short stop is no gap; an hour without polls is unknown, also before the next start."""

    async def first(store: FleetStore, clock: VirtualClock) -> None:
        async with running(fleet_of(clock, store)):
            await until(clock, 1000)

    async def soon(store: FleetStore, clock: VirtualClock) -> None:
        await until(clock, 1060)
        async with running(fleet_of(clock, store)):
            await until(clock, 2000)

    async def later(store: FleetStore, clock: VirtualClock) -> None:
        await until(clock, 2000 + HOUR)
        rates = (await uptimes(store, ["shop"], clock.epoch()))["shop"]
        assert rates.state == "unknown"
        assert rates.since == pytest.approx(START + 2000, abs=61)
        async with running(fleet_of(clock, store)):
            await until(clock, 4000 + HOUR)
        now = clock.epoch()
        found = await target_history(store, "shop", START, now)
        assert found is not None
        assert [each.state for each in found.periods] == ["up", "unknown", "up"]
        assert found.periods[1].lasted == pytest.approx(HOUR, abs=61)
        assert found.times.up == pytest.approx(4000, abs=121)
        assert found.times.uptime == 1.0

    run(first, soon, later)


def test_a_pause_and_quiet_hours_are_unknown(run: Callable[..., None]) -> None:
    async def main(store: FleetStore, clock: VirtualClock) -> None:
        fleet = fleet_of(clock, store)
        fleet.add(Target("office", Server(clock), "60s", quiet="00:20-00:40 UTC"))
        async with running(fleet):
            await until(clock, 600)
            fleet.pause("shop")
            await until(clock, 2000)
            fleet.resume("shop")
            await until(clock, 3000)
        for name, (start, end) in {"shop": (600, 2000), "office": (1200, 2400)}.items():
            found = await target_history(store, name, START, clock.epoch())
            assert found is not None
            assert [each.state for each in found.periods] == ["up", "unknown", "up"], name
            assert found.periods[1].started_at - START == pytest.approx(start, abs=61)
            assert found.periods[1].ended_at - START == pytest.approx(end, abs=61)

    run(main)


def test_an_outage_under_maintenance_is_not_down(run: Callable[..., None]) -> None:
    async def main(store: FleetStore, clock: VirtualClock) -> None:
        fleet = fleet_of(clock, store, (600, 2400), (3300, 3900))
        windows = [
            MaintenanceWindow("once", groups=("web",), starts_at=START, ends_at=START + 1500),
            MaintenanceWindow("all", starts_at=START + 3000, ends_at=START + DAY),
        ]
        fleet.maintenance.set_file(windows)
        async with running(fleet):
            await until(clock, 4500)
        found = await target_history(store, "shop", START, clock.epoch())
        assert found is not None
        states = [each.state for each in found.periods]
        assert states == ["up", "maintenance", "down", "up", "maintenance", "up"]
        assert found.periods[2].started_at == START + 1500, "when the window ended"
        [incident] = found.incidents
        assert incident.reason == "OSError: no answer"
        assert found.times.maintenance > 1200
        assert (await uptimes(store, ["shop"], clock.epoch()))["shop"].windows["24h"] == found.times

    run(main)


def some_rollup(name: str, length: str, place: int) -> TargetRollup:
    size = HOUR if length == "hour" else DAY
    figures = PollFigures(3, 1, 0, Histogram.of([0.25, 0.5]))
    return TargetRollup(name, length, START + place * size, TimeInStates(10, 5, 1), figures)  # type: ignore[arg-type]


def test_rows_are_bounded_for_each_target(run: Callable[..., None]) -> None:
    async def main(store: FleetStore, clock: VirtualClock) -> None:
        targets = [SavedTarget("a"), SavedTarget("b")]
        hours = [some_rollup("a", "hour", n) for n in range(HOURS_KEPT + 50)]
        days = [some_rollup("a", "day", n) for n in range(DAYS_KEPT + 50)]
        periods = [
            Period("a", "down", START + n, START + n + 1, "é\0") for n in range(PERIODS_KEPT + 50)
        ]
        others = [some_rollup("b", "hour", 0), some_rollup("b", "day", 0)]
        await store.save(targets, SaveExtras(periods, [*hours, *days, *others]))
        assert await store.rollups(["a"], "hour", 0) == hours[50:]
        assert await store.rollups(["a"], "day", 0) == days[50:]
        kept = await store.periods(["a"], 0, limit=10_000)
        assert [each.started_at for each in kept] == [each.started_at for each in periods[:49:-1]]
        assert "é" in kept[0].reason
        assert await store.rollups(["b"], "hour", 0) == others[:1]
        bare = await store.rollups(["b"], "hour", 0, figures=False)
        assert bare[0].figures.polls == 0
        [times] = await store.spent(["b"], [("hour", START), ("day", START + DAY)], START)
        assert times.spent == (TimeInStates(10, 5, 1), TimeInStates())

        again = some_rollup("b", "hour", 0)
        await store.save([], None)
        await store.save(targets[1:], SaveExtras((), [again, again]))
        assert await store.rollups(["b"], "hour", 0) == [again], "each replaces the one before"

        await store.remove(["a"])
        assert await store.rollups(["a"], "hour", 0) == []
        assert await store.periods(None, 0) == []
        assert await store.rollups(["b"], "day", 0) == others[1:]

    run(main)


def test_what_belongs_to_a_refused_target_is_dropped(postgres: Postgres) -> None:
    async def main(clock: VirtualClock) -> None:
        postgres.execute(script("pollwise", TABLES))
        name = next(fleets)
        old, new = (PostgresFleetStore(postgres.dsn(), name, clock=clock) for _ in range(2))
        [lease] = await old.claim("old", ["a"], 1, 30.0)
        await asyncio.sleep(31)
        [taken] = await new.claim("new", ["a"], 1, 30.0)
        period = Period("a", "down", START, START + 5)
        extras = SaveExtras([period], [some_rollup("a", "hour", 0)])
        assert await old.save([SavedTarget("a", token=lease.token)], extras) == ["a"]
        assert await new.periods(["a"], 0) == []
        assert await new.save([SavedTarget("a", token=taken.token)], extras) == []
        assert await new.periods(["a"], 0) == [period]
        assert len(await new.rollups(["a"], "hour", 0)) == 1
        await old.close()
        await new.close()

    clock = VirtualClock(START)
    clock.run(main(clock))


def test_a_takeover_by_another_node_goes_on_with_the_history(postgres: Postgres) -> None:
    async def main(clock: VirtualClock) -> None:
        postgres.execute(script("pollwise", TABLES))
        name = next(fleets)
        stores = [PostgresFleetStore(postgres.dsn(), name, clock=clock) for _ in range(2)]
        outage = (600, 1800)
        async with running(fleet_of(clock, stores[0], outage)):
            await until(clock, 1200)
        async with running(fleet_of(clock, stores[1], outage)):
            await until(clock, 3000)
        found = await target_history(stores[1], "shop", START, clock.epoch())
        assert found is not None
        assert [each.state for each in found.periods] == ["up", "down", "up"]
        assert found.times.up + found.times.down == pytest.approx(3000, abs=61)
        for store in stores:
            await store.close()

    clock = VirtualClock(START)
    clock.run(main(clock))


class Failing(SqliteFleetStore):
    """A store that cannot be reached at times."""

    broken = False

    async def save(self, batch, extras=None):  # type: ignore[no-untyped-def, misc]
        if self.broken:
            raise StoreUnavailable("no disk")
        return await super().save(batch, extras)


def test_a_store_that_cannot_be_reached_loses_nothing(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        store = Failing(tmp_path / "fleet.db", clock=clock)
        async with running(fleet_of(clock, store, (2400, 3000))):
            await until(clock, 1800)
            store.broken = True
            await until(clock, 2 * HOUR + 60)
            assert await store.periods(None, 0) == []
            store.broken = False
            await until(clock, 2 * HOUR + 600)
        found = await target_history(store, "shop", START, clock.epoch())
        assert found is not None
        assert [each.state for each in found.periods] == ["up", "down", "up"]
        assert len(found.points) == 3
        assert found.times.up + found.times.down == pytest.approx(2 * HOUR + 600, abs=121)
        await store.close()

    clock = VirtualClock(START)
    clock.run(main(clock))


def test_a_target_that_was_never_polled_has_an_empty_history(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        store = SqliteFleetStore(tmp_path / "fleet.db", clock=clock)
        await store.save([SavedTarget("new"), SavedTarget("odd", more={"history": ["?"]})])
        now = clock.epoch()
        for name in ("new", "odd"):
            found = await target_history(store, name, now - DAY, now)
            assert found is not None
            assert (found.state, found.periods, found.points) == (None, [], [])
            assert found.times.uptime is None
        assert await target_history(store, "unknown", now - DAY, now) is None
        both = await uptimes(store, ["new", "odd"], now)
        assert {each.state for each in both.values()} == {None}
        cells = (await strips(store, ["new"], now))["new"]
        assert {each.state for each in cells} == {"unknown"}
        assert len(cells) == 90
        await store.close()

    clock = VirtualClock(START)
    clock.run(main(clock))


def test_periods_that_overlap_or_lack_one_are_put_in_order(tmp_path: Path) -> None:
    """After a clock that was set back, and after lost rows."""

    async def main(clock: VirtualClock) -> None:
        store = SqliteFleetStore(tmp_path / "fleet.db", clock=clock)
        rows = [
            Period("a", "up", START - 900, START - 500),
            Period("a", "down", START - 600, START - 400),
            Period("a", "down", START - 400, START - 300),
            Period("a", "up", START - 200, START - 100),
        ]
        await store.save([SavedTarget("a")], SaveExtras(rows))
        found = await target_history(store, "a", START - DAY, START)
        assert found is not None
        shown = [(p.state, p.started_at - START, p.ended_at - START) for p in found.periods]
        assert shown == [
            ("up", -900, -600), ("down", -600, -300), ("unknown", -300, -200), ("up", -200, -100),
        ]  # fmt: skip
        await store.close()

    clock = VirtualClock(START)
    clock.run(main(clock))


class Watched(SqliteFleetStore):
    """Checks what each transaction left: what a process that is killed then leaves behind."""

    saves = 0

    async def save(self, batch, extras=None):  # type: ignore[no-untyped-def, misc]
        refused = await super().save(batch, extras)
        for each in await self.load():
            opened = open_history(each)
            if opened is not None:
                type(self).saves += 1
                periods = await self.periods([each.name], 0)
                assert not periods or periods[0].ended_at == opened.started_at
                for length, rest in (("hour", opened.hour), ("day", opened.day)):
                    rows = await self.rollups([each.name], length, 0)  # type: ignore[arg-type]
                    assert all(row.at < rest.at for row in rows)
        return refused


def test_each_save_leaves_a_whole_history(tmp_path: Path) -> None:
    async def main(clock: VirtualClock) -> None:
        store = Watched(tmp_path / "fleet.db", clock=clock)
        await until(clock, DAY - 2400)
        outages = [(DAY + n * 600, DAY + n * 600 + 120) for n in range(-4, 3)]
        async with running(fleet_of(clock, store, *outages, every="20s")):
            await until(clock, DAY + 1800)
        assert store.saves > 100
        assert len(await store.periods(None, 0)) >= 8
        assert len(await store.rollups(["shop"], "day", 0)) == 1
        await store.close()

    clock = VirtualClock(START)
    clock.run(main(clock))


def test_rows_of_a_clock_that_was_ahead_do_not_count(run: Callable[..., None]) -> None:
    async def main(store: FleetStore, clock: VirtualClock) -> None:
        rows = [some_rollup("a", "hour", 1), some_rollup("a", "hour", 9_000)]
        wrong = Period("a", "down", START + 300 * DAY, START + 301 * DAY)
        await store.save([SavedTarget("a")], SaveExtras([wrong], rows))
        now = START + 2 * HOUR
        assert (await uptimes(store, ["a"], now))["a"].windows["24h"] == rows[0].times
        assert await incidents(store, START, now) == []

    run(main)


class Plain(FleetStore):
    """A store of somebody else's, without history."""

    name, url = "plain", "plain:"

    async def load(self, names=None):  # type: ignore[no-untyped-def]
        return []

    async def save(self, batch, extras=None):  # type: ignore[no-untyped-def]
        assert extras is None, "it keeps no history, so it gets none"
        assert not any("history" in each.more for each in batch)
        return []

    async def remove(self, names):  # type: ignore[no-untyped-def]
        pass

    async def close(self) -> None:
        pass


def test_a_store_without_history_says_so() -> None:
    async def main(clock: VirtualClock) -> None:
        store = Plain()
        async with running(fleet_of(clock, store)):
            await until(clock, HOUR + 60)
        with pytest.raises(Unsupported, match="Plain keeps no history; use a store on SQLite"):
            await uptimes(store, ["shop"], clock.epoch())

    clock = VirtualClock(START)
    clock.run(main(clock))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cells": 0}, "cells = 0 must be from 1 to 200"),
        ({"cells": 201}, "cells = 201 must be"),
        ({"seconds": 1800.0}, "seconds = 1800.0 must be whole days; or whole hours"),
        ({"seconds": HOUR, "cells": 200}, "at most 8 days"),
    ],
)
def test_wrong_strips_are_refused(tmp_path: Path, options: dict[str, float], message: str) -> None:
    async def main() -> None:
        store = SqliteFleetStore(tmp_path / "fleet.db")
        with pytest.raises(ConfigError, match=message):
            await strips(store, ["a"], START, **options)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="1001 targets are above the limit of 1000"):
            await uptimes(store, ["a"] * 1001, START)
        await store.close()

    asyncio.run(main())


def test_hours_of_an_earlier_version_are_read_until_they_are_too_old(postgres: Postgres) -> None:
    """It saves them in `fleet_rollups`, also while nodes of this version run beside it."""
    postgres.execute(script("pollwise", TABLES))
    fleet = next(fleets)
    first = int(START // HOUR)

    async def main(clock: VirtualClock) -> None:
        store = PostgresFleetStore(postgres.dsn(), fleet, clock=clock)

        async def save(*hours: int) -> None:
            rows = [some_rollup("a", "hour", each) for each in hours]
            await store.save([SavedTarget("a")], SaveExtras((), rows))

        async def found() -> list[int]:
            return [int(each.at // HOUR) - first for each in await store.rollups(["a"], "hour", 0)]

        await save(2)
        for hour in (0, 1):
            postgres.execute(
                "SELECT pollwise.fleet_keep_history(%s, '{}', '{a}', '{0}', %s, '{10000}', "
                "'{5000}', '{1000}', '{\"\"}', '{}', '{}', '{}', '{}', '{}', 192, 100, 300)",
                [fleet, [first + hour]],
            )
        assert await found() == [0, 1, 2]
        [times] = await store.spent(["a"], [("hour", START)], START + 3 * HOUR)
        assert times.spent == (TimeInStates(30, 15, 3),)
        await save(HOURS_KEPT)
        assert await found() == [1, 2, HOURS_KEPT]
        await save(1, HOURS_KEPT + 2, HOURS_KEPT + 24)
        assert await found() == [1, HOURS_KEPT, HOURS_KEPT + 2, HOURS_KEPT + 24]
        await store.remove(["a"])
        await store.save([SavedTarget("a")])
        assert await found() == []
        await store.close()

    clock = VirtualClock(START)
    clock.run(main(clock))
