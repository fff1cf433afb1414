"""Failures that several locations confirm: fleets on one Postgres, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from pollwise.errors import ConfigError
from pollwise.fleet import FailureRules, Fleet, FleetRunOptions, Target
from pollwise.fleet.file import read_text
from pollwise.fleet.history.tracker import UP
from pollwise.fleet.locations.values import LocationAnswer
from pollwise.fleet.stores.postgres.store import TABLES, PostgresFleetStore
from pollwise.fleet.stores.sqlite.store import SqliteFleetStore
from pollwise.runtime.clock import VirtualClock
from pollwise.storage.postgres.schema import script
from tests.fleet.world import SAME, fleet_for, now, running
from tests.support.servers import Postgres

names = (f"locations {number}" for number in itertools.count())
PLACES = ("paris", "tokyo", "lima")


class World:
    """Nodes at three places; each sees the target, unless it is down or the place is cut off."""

    def __init__(self, postgres: Postgres, clock: VirtualClock, **plan: Any) -> None:
        postgres.execute(script("pollwise", TABLES))
        self._dsn = postgres.dsn()
        self._name = next(names)
        self._clock = clock
        self._plan = {"interval": "20s", "timeout": "5s", "confirm_from": 2, **plan}
        self.down = False
        self.cut: set[str] = set()
        self.polls: list[tuple[float, str]] = []
        self.fleets: dict[str, Fleet] = {}

    def fleet(self, place: str, **given: Any) -> Fleet:
        async def probe(target: Target, context: object) -> object:
            self.polls.append((now(), place))
            if self.down or place in self.cut:
                raise OSError(f"no way from {place}")
            return SAME

        store = PostgresFleetStore(self._dsn, self._name, clock=self._clock)
        given = {"lease": "6s", "location": place, **given}
        fleet = fleet_for(self._clock, store=store, node=f"node of {place}", **given)
        fleet.add(Target("t", probe, **self._plan))
        self.fleets[place] = fleet
        return fleet

    @asynccontextmanager
    async def nodes(self, *places: str, **given: Any) -> AsyncIterator[None]:
        """The first of them holds the target."""
        async with AsyncExitStack() as stack:
            for place in places:
                fleet = self.fleet(place, **given)
                assert fleet.store is not None
                stack.push_async_callback(fleet.store.close)
                await stack.enter_async_context(running(fleet))
                await asyncio.sleep(1)
            await asyncio.sleep(30)
            assert self.holder == places[0]
            yield

    @property
    def holder(self) -> str:
        [holder] = [place for place, fleet in self.fleets.items() if fleet.is_held("t")]
        return holder

    @property
    def entry(self) -> Any:
        return self.fleets[self.holder]._known("t")

    def polled_from(self, place: str, since: float = 0.0) -> int:
        return sum(at >= since and where == place for at, where in self.polls)


def play(postgres: Postgres, story: Any, **plan: Any) -> None:
    clock = VirtualClock()
    world = World(postgres, clock, **plan)

    async def main() -> None:
        await story(world)

    clock.run(main())


def test_a_real_outage_is_confirmed_and_its_end_is_seen(postgres: Postgres) -> None:
    async def story(world: World) -> None:
        async with world.nodes(*PLACES):
            assert world.polled_from("tokyo") == 0, "healthy targets are polled by their holder"
            world.down = True
            began = now()
            while world.entry.down_since is None:
                await asyncio.sleep(0.5)
                assert now() < began + 60
            assert world.entry.down_since <= began + 20
            state = world.fleets["paris"].target("t")
            assert [(each["location"], each["ok"]) for each in state.locations] == [
                ("lima", False), ("paris", False), ("tokyo", False)
            ]  # fmt: skip
            assert state.locations[0]["error"] == "OSError: no way from lima"
            assert state.living_locations is None
            await asyncio.sleep(120)
            world.down = False
            await asyncio.sleep(300)
            assert world.entry.down_since is None
            assert world.entry.failures == 0

    play(postgres, story)


@pytest.mark.parametrize("rules", [FailureRules(), FailureRules(confirmations=0)])
def test_a_holder_that_is_cut_off_raises_no_alarm(postgres: Postgres, rules: FailureRules) -> None:
    async def story(world: World) -> None:
        async with world.nodes(*PLACES, rules=rules):
            world.cut = {"paris"}
            began = now()
            for _ in range(1200):
                await asyncio.sleep(0.5)
                assert world.entry.down_since is None
                assert world.entry.failures <= 2
                assert not world.entry.dead
            assert world.polled_from("tokyo") > 10, "the others looked for it"
            state = world.fleets["paris"].target("t")
            assert {each["location"]: each["ok"] for each in state.locations} == {
                "paris": False, "tokyo": True, "lima": True
            }  # fmt: skip
            assert state.staleness is not None
            assert state.staleness < 60, "others saw it, so it is not stale"
            assert not state.stale
            # At its usual pace, and once more to have the answers of the others.
            assert world.polled_from("paris", began) <= 2 * 600 / 20 + 5
            world.down = True  # a real outage on top of that
            began = now()
            while world.entry.down_since is None:
                await asyncio.sleep(0.5)
                assert now() < began + 60
            assert world.entry.down_since >= began - 20
            world.down = False  # seen elsewhere only
            while world.entry.down_since is not None:
                await asyncio.sleep(1)
                assert now() < began + 600
            assert world.entry.failing_since is None
            assert world.entry.history.state == UP

    play(postgres, story)


def test_a_place_that_is_cut_off_and_holds_nothing_changes_nothing(postgres: Postgres) -> None:
    async def story(world: World) -> None:
        async with world.nodes(*PLACES):
            world.cut = {"tokyo"}
            await asyncio.sleep(300)
            assert world.entry.failures == 0
            world.cut = {"tokyo", "lima"}
            world.down = True
            began = now()
            while world.entry.down_since is None:
                await asyncio.sleep(0.5)
                assert now() < began + 60

    play(postgres, story)


def test_three_of_three_must_agree(postgres: Postgres) -> None:
    async def story(world: World) -> None:
        async with world.nodes(*PLACES):
            world.cut = {"paris", "tokyo"}
            await asyncio.sleep(300)
            assert world.entry.down_since is None
            world.cut = set(PLACES)
            await asyncio.sleep(60)
            assert world.entry.down_since is not None

    play(postgres, story, confirm_from=3)


def test_fewer_places_than_asked_for_decide_and_this_is_said(postgres: Postgres) -> None:
    async def story(world: World) -> None:
        async with world.nodes("paris"):
            state = world.fleets["paris"].target("t")
            assert state.living_locations == 1
            [problem] = world.fleets["paris"].state().problems
            assert "asks for confirmation from several locations, but only 1 location" in problem
            world.down = True
            await asyncio.sleep(40)
            assert world.entry.down_since is not None

    play(postgres, story)


def test_a_place_that_does_not_answer_cannot_hide_an_outage(postgres: Postgres) -> None:
    async def story(world: World) -> None:
        async with world.nodes("paris", "tokyo"):
            tokyo = world.fleets["tokyo"]

            async def never(*_: object) -> None:
                await asyncio.sleep(10**6)

            tokyo._known("t").probe = never
            assert tokyo.store is not None
            tokyo.store.answer_locations = never  # type: ignore[method-assign, assignment]
            world.down = True
            began = now()
            while world.entry.down_since is None:
                await asyncio.sleep(0.5)
                assert now() < began + 90
            assert now() > began + 15, "it had its time"

    play(postgres, story)


def test_answers_take_tokens_of_the_budget(postgres: Postgres) -> None:
    async def story(world: World) -> None:
        async with world.nodes("paris", "tokyo", budget=10.0):
            tokens = world.fleets["tokyo"]._scheduler.budget.tokens  # type: ignore[union-attr]
            assert tokens.rate == 0.0, "it holds nothing, and answers all the same"
            world.down = True
            await asyncio.sleep(60)
            assert world.entry.down_since is not None
            assert world.polled_from("tokyo") >= 1

    play(postgres, story)


# The store


def test_each_location_is_asked_once_and_old_questions_are_dropped(postgres: Postgres) -> None:
    postgres.execute(script("pollwise", TABLES))
    clock = VirtualClock()

    async def main() -> None:
        name = next(names)
        one, two, three = (PostgresFleetStore(postgres.dsn(), name, clock=clock) for _ in range(3))
        await one.renew("one", 30, "paris")
        await two.renew("two", 30, "tokyo")
        renewal = await three.renew("three", 30, "tokyo")
        assert renewal.locations == {"paris", "tokyo"}
        assert {each.name: each.location for each in await one.nodes()} == {
            "one": "paris", "two": "tokyo", "three": "tokyo"
        }  # fmt: skip
        first = await one.ask_locations(["a", "b"], "paris")
        asked = [*await two.take_asked("tokyo", 1), *await three.take_asked("tokyo", 10)]
        assert sorted(asked) == [("a", first), ("b", first)]
        assert await one.take_asked("paris", 10) == []
        answers = [
            LocationAnswer("a", "tokyo", first, 0.0, False, 0.5, "nul \0 and \ud800"),
            LocationAnswer("b", "tokyo", first, 0.0, True, 0.5, ""),
        ]
        await two.answer_locations(answers)
        await clock.advance(2)
        found = {each.target: each for each in await one.location_answers(["a", "b", "c"])}
        assert found["b"]._replace(age=0.0) == answers[1]
        assert found["b"].age == pytest.approx(2.0)
        assert "\0" not in found["a"].error
        second = await one.ask_locations(["a"], "paris")
        assert second > first
        await clock.advance(120)
        assert await two.take_asked("tokyo", 10) == [], "the node that asked has decided"
        await two.answer_locations([answers[0]._replace(asked_at=second, ok=True)])
        await two.answer_locations([answers[0]])  # late
        [answer] = await one.location_answers(["a"])
        assert (answer.asked_at, answer.ok) == (second, True)
        await clock.advance(2 * 86_400)
        await one.renew("one", 30, "paris")
        await one.ask_locations(["z"], "paris")  # nobody else lives
        assert await one.location_answers(["a", "b"]) == [], "forgotten after a day"
        for store in (one, two, three):
            await store.close()

    clock.run(main())


# What may be given


def test_a_store_that_cannot_be_shared_refuses_it(tmp_path: Any) -> None:
    target = Target("t", "ping", confirm_from=2, options={"address": "a.example"})
    with pytest.raises(ConfigError, match="'t': confirm_from = 2 needs nodes at several locations"):
        Fleet().add(target)
    fleet = Fleet(store=SqliteFleetStore(tmp_path / "fleet.db"))
    with pytest.raises(ConfigError, match="which cannot be shared; use a store on Postgres"):
        fleet.add(target)
    Fleet().add(Target("t", "ping", confirm_from=1, options={"address": "a.example"}))


@pytest.mark.parametrize("wrong", [0, -1, 17, True, 1.5, "two"])
def test_an_invalid_number_of_locations_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"'t': confirm_from = .* must be a whole number from 1"):
        Target("t", "ping", confirm_from=wrong)


@pytest.mark.parametrize("wrong", ["", " ", "x" * 65, "a\nb", 3])
def test_an_invalid_location_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"location = .* must be a printable name"):
        FleetRunOptions(location=wrong)


def test_a_group_asks_for_its_targets() -> None:
    text = """
[group.shop]
type = "ping"
confirm_from = 2

[[target]]
name = "a"
group = "shop"
address = "a.example"
"""
    [target] = read_text(text).targets
    assert target.confirm_from == 2
