"""Dependencies: one alarm for the router, not thirty for what is behind it."""

from __future__ import annotations

import asyncio

import pytest

from pollwise.errors import ConfigError
from pollwise.fleet import Target
from pollwise.fleet.alerting.parents import WAIT_MAX
from pollwise.runtime.clock import VirtualClock
from tests.fleet.alerting.kit import Noted, Switches, fleet_with, until
from tests.fleet.world import now, running

BEHIND = [f"host {n}" for n in range(30)]


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


def network(probe: Switches, **router: object) -> list[Target]:
    given = {"interval": "1m", "alerts": ["down"], **router}
    hosts = [
        Target(name, probe, "10s", alerts=["down"], behind="router", timeout="5s")
        for name in BEHIND
    ]
    return [*hosts, Target("router", probe, **given)]  # type: ignore[arg-type]


def test_one_alarm_for_the_router_not_thirty(clock: VirtualClock) -> None:
    async def main() -> None:
        channel, probe = Noted(), Switches()
        fleet = fleet_with(clock, channel)
        fleet.add(*network(probe))
        async with running(fleet):
            await until(lambda: len(probe.polls) == 31)
            probe.fail("router", *BEHIND)
            began = now()
            await until(lambda: channel.sent)
            # The router is polled because its hosts fail, not when its minute is over.
            assert now() - began < 40
            await asyncio.sleep(3600)
            assert channel.events == [("router", "opened")]
            probe.restore("router", *BEHIND)
            await until(lambda: channel.of("closed"), 3600)
            await asyncio.sleep(600)
        assert channel.events == [("router", "opened"), ("router", "closed")]

    clock.run(main())


def test_what_still_fails_when_the_router_is_up_is_told(clock: VirtualClock) -> None:
    async def main() -> None:
        channel, probe = Noted(), Switches()
        fleet = fleet_with(clock, channel)
        fleet.add(*network(probe))
        async with running(fleet):
            await until(lambda: len(probe.polls) == 31)
            probe.fail("router", *BEHIND)
            await until(lambda: channel.sent)
            await asyncio.sleep(200)
            probe.restore("router", *BEHIND[1:])
            await until(lambda: channel.of("closed"), 3600)
            up = now()
            await until(lambda: len(channel.of("opened")) == 2)
            assert now() - up < 10  # it is polled at once
            await asyncio.sleep(600)
        assert channel.events == [("router", "opened"), ("router", "closed"), ("host 0", "opened")]

    clock.run(main())


def test_a_host_that_fails_alone_is_told_after_the_router_was_polled(clock: VirtualClock) -> None:
    async def main() -> None:
        channel, probe = Noted(), Switches()
        fleet = fleet_with(clock, channel)
        fleet.add(*network(probe, interval="1h"))
        async with running(fleet):
            await until(lambda: len(probe.polls) == 31)
            polls = probe.polls["router"]
            probe.fail("host 3")
            await until(lambda: channel.sent, 60)
            assert probe.polls["router"] == polls + 1
        assert channel.events == [("host 3", "opened")]

    clock.run(main())


def test_the_wait_for_a_router_that_hangs_is_bounded(clock: VirtualClock) -> None:
    async def main() -> None:
        channel, probe, hangs = Noted(), Switches(), asyncio.Event()

        async def router(target: Target, _: object) -> str:
            await hangs.wait()
            return "up"

        fleet = fleet_with(clock, channel)
        fleet.add(
            Target("host", probe, "10s", alerts=["down"], behind=["router"]),
            Target("router", router, "1h", alerts=["down"], timeout="1h"),
        )
        async with running(fleet):
            probe.fail("host")
            await until(lambda: channel.sent, 300)
            assert now() < WAIT_MAX + 60
            hangs.set()
        assert channel.events == [("host", "opened")]

    clock.run(main())


def test_a_paused_router_holds_nothing_back(clock: VirtualClock) -> None:
    async def main() -> None:
        channel, probe = Noted(), Switches()
        fleet = fleet_with(clock, channel)
        fleet.add(*network(probe))
        async with running(fleet):
            probe.fail("router")
            await until(lambda: channel.sent)
            fleet.pause("router")
            probe.fail("host 1")
            await until(lambda: len(channel.sent) > 1)
        assert channel.events[-1] == ("host 1", "opened")

    clock.run(main())


def test_circles_and_unknown_names_are_refused(clock: VirtualClock) -> None:
    fleet = fleet_with(clock, Noted())

    def behind(name: str, *parents: str) -> Target:
        return Target(name, Switches(), behind=parents)

    with pytest.raises(ConfigError, match=r"'a': behind = 'rooter' is not.*did you mean 'router'"):
        fleet.add(behind("a", "rooter"), behind("router"))
    with pytest.raises(ConfigError, match="behind goes in a circle: 'a' → 'b' → 'c' → 'a'"):
        fleet.add(behind("a", "b"), behind("b", "c"), behind("c", "a"))
    with pytest.raises(ConfigError, match="is the target itself"):
        behind("a", "a")
    with pytest.raises(ConfigError, match="must be the name of a target"):
        Target("a", Switches(), behind=5)  # type: ignore[arg-type]
    assert len(fleet) == 0
    fleet.add(behind("top"), behind("left", "top"), behind("right", "top"))
    fleet.add(behind("bottom", "left", "right"))  # a diamond is no circle
    with pytest.raises(ConfigError, match="behind goes in a circle"):
        fleet.replace([behind("top", "bottom"), behind("left", "top"), behind("bottom", "left")])
    assert len(fleet) == 4
