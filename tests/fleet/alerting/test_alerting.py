"""Alerts of a running fleet: they open in time, once, and close with how long it lasted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import count, pairwise
from pathlib import Path

import pytest

from pollwise.alerts.rules import AlertRule
from pollwise.alerts.settings import Alerts
from pollwise.alerts.values import AlertFilter, Notice
from pollwise.alerts.windows import MaintenanceWindow
from pollwise.core.breaker import Breaker
from pollwise.core.strategies.freshness import Freshness
from pollwise.errors import ChannelError, ConfigError, StoreUnavailable
from pollwise.fleet import Fleet, Reading, Target
from pollwise.fleet.engine.failures import FailureRules
from pollwise.fleet.stores.sqlite.store import SqliteFleetStore
from pollwise.runtime.clock import VIRTUAL_EPOCH, VirtualClock
from pollwise.runtime.events import (
    AlertClosed,
    AlertOpened,
    NoticeFailed,
    NoticeSent,
    TargetBreakerOpened,
)
from tests.fleet.alerting.kit import Noted, Switches, fleet_with, until
from tests.fleet.world import SetClock, now, running
from tests.support.kit import Seen


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


def target(name: str, probe: Switches, *alerts: AlertRule | str, **plan: object) -> Target:
    return Target(name, probe, **{"interval": "10s", "alerts": alerts, **plan})  # type: ignore[arg-type]


def test_an_outage_is_told_once_and_so_is_its_end(clock: VirtualClock) -> None:
    async def main() -> None:
        seen, channel, probe = Seen(), Noted(), Switches()
        fleet = fleet_with(clock, channel, seen=seen)
        fleet.add(target("api", probe, "down", group="web", labels={"team": "a"}))
        async with running(fleet):
            await asyncio.sleep(60)
            assert not channel.sent
            probe.fail("api")
            failed = now()
            await until(lambda: channel.sent)
            await asyncio.sleep(300)
            [opened] = channel.of("opened")
            assert opened.payload["summary"] == "ConnectionError: no answer"
            assert opened.payload["group"] == "web"
            assert opened.payload["labels"] == {"team": "a"}
            assert "api is down" in opened.payload["text"]
            # What the last success found is not what is found now.
            assert (opened.payload["facts"], opened.payload["after"]) == ({}, None)
            [alert] = (await fleet.list_alerts(AlertFilter("open"))).alerts
            assert alert.id == opened.alert
            assert failed <= alert.since - clock.epoch() + now() <= failed + 11
            probe.restore("api")
            await until(lambda: len(channel.sent) > 1)
            await asyncio.sleep(300)
        assert channel.events == [("api", "opened"), ("api", "closed")]
        [closed] = channel.of("closed")
        [ended] = (await fleet.list_alerts(AlertFilter())).alerts
        assert ended.state == "closed"
        assert ended.summary == "ConnectionError: no answer"
        assert closed.payload["lasted"] == ended.lasted
        assert closed.payload["after"]["value"] == "fine"
        assert len(seen.of(AlertOpened)) == len(seen.of(AlertClosed)) == 1
        assert len(seen.of(NoticeSent)) == 2

    clock.run(main())


def test_a_breaker_that_opens_is_told_once_and_so_is_its_end(clock: VirtualClock) -> None:
    """It is logged once, too, however often its breaker lets a poll through in vain."""

    async def main() -> None:
        seen, channel, probe = Seen(), Noted(), Switches()
        rules = FailureRules(breaker=Breaker(5, "30s", "5m"), dead_after=12)
        fleet = fleet_with(clock, channel, seen=seen, rules=rules)
        fleet.add(target("api", probe, "down", "breaker open", interval=Freshness()))
        async with running(fleet):
            await until(lambda: probe.polls)
            probe.fail("api")
            await until(lambda: channel.sent)
            assert [each.payload["when"] for each in channel.of("opened")] == ["down"]
            assert not seen.of(TargetBreakerOpened)
            await until(lambda: fleet.target("api").state == "dead", 7200.0)
            [_, opened] = channel.of("opened")
            assert opened.payload["when"] == "breaker open"
            assert "api: alert: breaker open" in opened.payload["text"]
            assert opened.payload["summary"] == "ConnectionError: no answer"
            [told] = seen.of(TargetBreakerOpened)
            assert (told.failures, told.error) == (5, "ConnectionError: no answer")
            assert told.level == logging.WARNING
            probe.restore("api")
            await until(lambda: len(channel.of("closed")) == 2, 7200.0)

    clock.run(main())


def test_it_opens_when_it_has_held_for_long_enough(clock: VirtualClock) -> None:
    async def main() -> None:
        channel, probe = Noted(), Switches()
        fleet = fleet_with(clock, channel)
        rule = AlertRule("value > 5", lasting="5m")
        fleet.add(target("depth", probe, rule, interval="4m"))
        async with running(fleet):
            await until(lambda: "depth" in probe.polls)
            probe.answers["depth"] = Reading("6")
            await until(lambda: probe.polls["depth"] > 1)
            began = now()
            await until(lambda: channel.sent)
            # Polled when the time ends, although its interval is longer.
            assert 300 <= now() - began <= 302
            [notice] = channel.of("opened")
            assert notice.payload["summary"] == "value is 6 (> 5)"

    clock.run(main())


def test_flapping_below_its_time_opens_nothing(clock: VirtualClock) -> None:
    async def main() -> None:
        channel, probe = Noted(), Switches()
        fleet = fleet_with(clock, channel)
        rules = [
            AlertRule("value == bad", lasting="1m"),
            AlertRule("value == bad", confirmations=4),
        ]
        fleet.add(target("api", probe, *rules[:1]), target("db", probe, rules[1]))

        def flap() -> Callable[[object], Reading]:
            turns = count()
            return lambda _: Reading("bad" if next(turns) % 4 else "good")

        probe.answers |= {"api": flap(), "db": flap()}
        async with running(fleet):
            await asyncio.sleep(3600)
        assert not channel.sent

    clock.run(main())


def test_it_is_repeated_only_if_asked_and_until_somebody_knows(clock: VirtualClock) -> None:
    async def main() -> None:
        channel, probe = Noted(), Switches()
        fleet = fleet_with(clock, channel)
        rules = [AlertRule("down", repeat="10m")]
        fleet.add(target("api", probe, *rules), target("db", probe, "down"))
        probe.fail("api", "db")
        async with running(fleet):
            await until(lambda: len(channel.of("repeated")) == 2, 3000)
            times = [at for at, notice in channel.sent if notice.target == "api"]
            gaps = [b - a for a, b in pairwise(times)]
            assert all(600 <= gap <= 612 for gap in gaps)
            [known] = await fleet.acknowledge([channel.of("repeated")[0].alert], "ann", "on it")
            assert known.note == "on it"
            await asyncio.sleep(3600)
            assert len(channel.of("repeated")) == 2
            probe.restore("api", "db")
            await until(lambda: len(channel.of("closed")) == 2, 3600)
        assert {notice.target for notice in channel.of("repeated")} == {"api"}

    clock.run(main())


def test_a_stale_target_is_noticed_between_polls(clock: VirtualClock) -> None:
    async def main() -> None:
        channel, probe = Noted(), Switches()
        fleet = fleet_with(clock, channel)
        fleet.add(
            target("api", probe, "stale 7m", interval="1h"),
            target("paused", probe, "stale 7m", interval="1h"),
        )
        async with running(fleet):
            await until(lambda: len(probe.polls) == 2, 3700)
            began = now()
            fleet.pause("paused")
            await until(lambda: channel.sent, 3600)
            assert 350 <= now() - began <= 425
            fleet.poll_now("api")
            await until(lambda: channel.of("closed"))
            await asyncio.sleep(1000)
        assert channel.events[:2] == [("api", "opened"), ("api", "closed")]
        assert not any(name == "paused" for name, _ in channel.events)

    clock.run(main())


def test_a_change_is_told_to_its_channel_and_to_functions(clock: VirtualClock) -> None:
    async def main() -> None:
        channel, probe = Noted(), Switches()
        heard: list[Notice] = []
        fleet = fleet_with(clock, channel)

        @fleet.on_change
        async def listen(notice: Notice) -> None:
            heard.append(notice)

        probe.answers["page"] = Reading("1", summary="one")
        fleet.add(target("page", probe, "changed"), target("other", probe))
        async with running(fleet):
            await until(lambda: len(probe.polls) == 2)
            probe.answers["page"] = Reading("2", facts={"size": 5}, summary="two", diff="-a\n+b")
            await until(lambda: channel.sent)
            probe.answers["other"] = Reading("else")
            await until(lambda: len(heard) == 2)
            await asyncio.sleep(100)
        [(_, notice)] = channel.sent
        assert (notice.event, notice.alert) == ("changed", "")
        assert notice.payload["before"]["value"] == "1"
        assert notice.payload["after"]["facts"] == {"size": 5}
        assert notice.payload["diff"] == "-a\n+b"
        assert notice.payload["text"] == "page changed · -a"
        assert [each.target for each in heard] == ["page", "other"]
        with pytest.raises(ConfigError, match="cannot be called"):
            fleet.on_change(5)  # type: ignore[type-var]

    clock.run(main())


def test_removing_a_rule_or_a_target_closes_its_alert(clock: VirtualClock) -> None:
    async def main() -> None:
        channel, probe = Noted(), Switches()
        fleet = fleet_with(clock, channel)
        fleet.add(target("api", probe, "down"), target("db", probe, "down"))
        probe.fail("api", "db")
        async with running(fleet):
            await until(lambda: len(channel.of("opened")) == 2)
            fleet.replace([target("api", probe, "stale 1h")])
            await until(lambda: len(channel.of("closed")) == 2)
            assert not (await fleet.list_alerts(AlertFilter("open"))).alerts

    clock.run(main())


@pytest.mark.parametrize("stored", [False, True])
def test_other_channels_are_used_from_now_on_and_nothing_is_lost(
    clock: VirtualClock, tmp_path: Path, stored: bool
) -> None:
    async def main() -> None:
        before, after, probe = Noted(), Noted(), Switches()
        before.error = ChannelError("channel 'ops' is down")
        store = SqliteFleetStore(tmp_path / "fleet.db", clock=clock) if stored else None
        fleet = fleet_with(clock, before, store=store)
        names = [f"t{n}" for n in range(10)]
        fleet.add(*(target(name, probe, "down") for name in names))
        async with running(fleet):
            await until(lambda: len(probe.polls) == 10)
            probe.fail(*names[:5])
            await until(lambda: before.refused >= 5)
            probe.fail(*names[5:])
            await fleet.use_alerts(Alerts([after], to="ops"))
            await until(lambda: len(after.of("opened")) == 10)
            probe.restore(*names)
            await until(lambda: len(after.of("closed")) == 10, 1200)
        assert not before.sent
        assert len({notice.id for _, notice in after.sent}) == len(after.sent) == 20
        if store is not None:
            await store.close()

    clock.run(main())


def test_quiet_hours_delay_an_opening_and_drop_it_if_it_is_over() -> None:
    clock = SetClock(20 * 3600.0)  # 20:00 UTC

    async def main() -> None:
        channel, probe = Noted(quiet="21:00-06:00"), Switches()
        loud = Noted("loud", quiet="21:00-06:00", quiet_except=["critical"])
        fleet = fleet_with(clock, channel, loud)
        rule = AlertRule("down", severity="critical")
        fleet.add(target("short", probe, rule), target("long", probe, rule))
        async with running(fleet):
            await asyncio.sleep(2 * 3600)
            probe.fail("short", "long")
            await until(lambda: len(loud.of("opened")) == 2)
            probe.restore("short")
            await until(lambda: loud.of("closed"), 3600)
            assert not channel.sent
            await asyncio.sleep(9 * 3600)
        assert channel.events == [("long", "opened")]
        [(_, notice)] = channel.sent
        assert notice.not_before == 86400 + 6 * 3600

    clock.run(main())


def test_maintenance_holds_alerts_back_until_it_ends(clock: VirtualClock) -> None:
    async def main() -> None:
        channel, probe = Noted(), Switches()
        fleet = fleet_with(clock, channel)
        began = VIRTUAL_EPOCH
        window = MaintenanceWindow("w", ("m1", "m2"), starts_at=began, ends_at=began + 1000.0)
        fleet.maintenance.set_file([window])
        fleet.add(*(target(name, probe, "down", "changed") for name in ("m1", "m2", "x")))
        async with running(fleet):
            await until(lambda: len(probe.polls) == 3)
            probe.fail("m1", "m2", "x")
            await asyncio.sleep(500)
            probe.answers["m2"] = Reading("other")
            assert channel.events == [("x", "opened")]
            await asyncio.sleep(490)
            assert channel.events == [("x", "opened")]
            await asyncio.sleep(60)
        assert channel.events == [("x", "opened"), ("m1", "opened")]

    clock.run(main())


def test_a_channel_that_is_down_for_an_hour_loses_nothing(clock: VirtualClock) -> None:
    async def main() -> None:
        seen, channel, other, probe = Seen(), Noted(), Noted("mail"), Switches()
        fleet = fleet_with(clock, channel, other, seen=seen)
        names = [f"t{n}" for n in range(20)]
        fleet.add(*(target(name, probe, "down") for name in names))
        channel.error = ChannelError("channel 'ops' is down")
        async with running(fleet):
            probe.fail(*names)
            await until(lambda: len(other.of("opened")) == 20)
            probe.restore(*names)
            await until(lambda: len(other.of("closed")) == 20, 3600)
            await asyncio.sleep(3600)
            assert not channel.sent
            assert channel.refused < 200  # the breaker keeps it from being tried all the time
            channel.error = None
            await until(lambda: len(channel.sent) == 40, 1200)
            await asyncio.sleep(600)
            assert fleet.state().problems == []
        assert len({notice.id for _, notice in channel.sent}) == len(channel.sent) == 40
        for name in names:
            assert [e for n, e in channel.events if n == name] == ["opened", "closed"]
        assert seen.of(NoticeFailed)

    clock.run(main())


def test_a_restart_sends_nothing_twice(clock: VirtualClock, tmp_path: Path) -> None:
    async def main() -> None:
        channel, probe = Noted(), Switches()

        def fleet() -> Fleet:
            store = SqliteFleetStore(tmp_path / "fleet.db", clock=clock)
            made = fleet_with(clock, channel, store=store)
            made.add(
                target("api", probe, "down", AlertRule("down", lasting="10m", repeat="1h")),
            )
            return made

        async def run_for(seconds: float) -> None:
            made = fleet()
            async with running(made):
                await asyncio.sleep(seconds)
            assert made.store is not None
            await made.store.close()

        await run_for(30)
        probe.fail("api")
        for _ in range(6):
            await run_for(200)
        assert [(n.event, n.payload["when"]) for _, n in channel.sent] == [("opened", "down")] * 2
        probe.restore("api")
        for _ in range(4):
            await run_for(400)
        assert [event for _, event in channel.events] == ["opened"] * 2 + ["closed"] * 2

    clock.run(main())


def test_a_notice_that_cannot_be_sent_is_a_problem(clock: VirtualClock) -> None:
    async def main() -> None:
        channel, probe = Noted(), Switches()
        channel.error = ChannelError("there is no such room", permanent=True)
        fleet = fleet_with(clock, channel)
        fleet.add(target("api", probe, "down"))
        probe.fail("api")
        async with running(fleet):
            await until(lambda: fleet.state().problems)
            assert "1 notice(s) of alerts could not be sent" in fleet.state().problems[0]
            outbox = fleet._running_alerts._in_memory  # type: ignore[union-attr]
            assert outbox is not None
            channel.error = None
            [dead] = await outbox.records("dead")
            await outbox.retry([dead.record.id])
            await until(lambda: channel.sent)
            await until(lambda: not fleet.state().problems)

    clock.run(main())


def test_wrong_rules_are_refused_before_anything_changes(clock: VirtualClock) -> None:
    fleet = fleet_with(clock, Noted())
    with pytest.raises(ConfigError, match="there is no channel 'opps'; did you mean 'ops'"):
        fleet.add(Target("a", Switches(), alerts=[AlertRule("down", to="opps")]))
    with pytest.raises(
        ConfigError, match=r"target 'a': when = 'statsu == 5'.*did you mean 'status'"
    ):
        fleet.add(Target("a", "http", options={"url": "http://x"}, alerts=["statsu == 5"]))
    sqs = {"url": "sqs://jobs?region=eu-west-1"}  # it does not know how long jobs have waited
    with pytest.raises(ConfigError, match="these readings have no field 'oldest'"):
        fleet.add(Target("a", "queue", options=sqs, alerts=["oldest > 5m"]))
    with pytest.raises(ConfigError, match="target 'a': when = 'sown' is not a condition"):
        Target("a", Switches(), alerts=["sown"])
    with pytest.raises(ConfigError, match="there is no channel 'x'"):
        Alerts([Noted()], to="x")
    with pytest.raises(ConfigError, match="two channels are named 'ops'"):
        Alerts([Noted(), Noted()])
    assert len(fleet) == 0


def test_a_crash_while_a_target_is_removed_loses_no_end(
    clock: VirtualClock, tmp_path: Path
) -> None:
    async def main() -> None:
        channel, probe = Noted(), Switches()
        store = SqliteFleetStore(tmp_path / "fleet.db", clock=clock)
        removals = 0

        async def remove(names: Sequence[str]) -> None:
            nonlocal removals
            removals += 1
            raise StoreUnavailable("killed before the removal")

        store.remove = remove  # type: ignore[method-assign, misc]
        fleet = fleet_with(clock, channel, store=store)
        fleet.add(target("api", probe, "down"))
        probe.fail("api")
        async with running(fleet):
            await until(lambda: channel.sent)
            fleet.remove("api")
            await until(lambda: removals)
            assert not (await store.alerts(AlertFilter("open"))).alerts
            await until(lambda: len(channel.sent) > 1)
        assert channel.events == [("api", "opened"), ("api", "closed")]
        await store.close()

    clock.run(main())


def test_the_alert_of_a_target_that_is_gone_after_a_restart_is_closed(
    clock: VirtualClock, tmp_path: Path
) -> None:
    async def main() -> None:
        channel, probe = Noted(), Switches()
        probe.fail("api", "db")

        async def run(*names: str, sent: int) -> None:
            store = SqliteFleetStore(tmp_path / "fleet.db", clock=clock)
            fleet = fleet_with(clock, channel, store=store)
            fleet.add(*[target(each, probe, "down") for each in names])
            async with running(fleet):
                await until(lambda: len(channel.sent) >= sent)
                await asyncio.sleep(1)
            opened = (await store.alerts(AlertFilter("open"))).alerts
            assert sorted(each.target for each in opened) == sorted(names)
            await store.close()

        await run("api", "db", sent=2)
        await run("db", sent=3)
        assert channel.events[2:] == [("api", "closed")]
        [closed] = channel.of("closed")
        assert closed.payload["summary"] == "its target was removed"
        await run("db", "api", sent=4)  # it is told again
        assert channel.events[3:] == [("api", "opened")]

    clock.run(main())
