"""The page of a fleet switches adaptive polling, and shows what waits and what is oldest."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pollwise.core.strategies.fixed import Fixed
from pollwise.fleet import Fleet, Target
from pollwise.fleet.control import Control
from pollwise.fleet.stores.sqlite.store import SqliteFleetStore
from pollwise.runtime.clock import VirtualClock
from pollwise.settings import load
from tests.fleet.world import fleet_for, running
from tests.web.test_fleet import NOW, run, target  # noqa: F401 - run is a fixture
from tests.web.viewers import Somebody
from tests.web.visiting import HOSTILE, Visitor

PAGE = "/fleets/pages"


def test_adaptive_polling_is_switched_for_a_group_and_kept(run: Callable[..., None]) -> None:  # noqa: F811
    async def main(visitor: Visitor, store: SqliteFleetStore) -> None:
        await store.save([target("shop"), target("mail", group=f"post {HOSTILE}")])
        assert "as in the nodes’ settings" in await visitor.main(PAGE)
        answer = await visitor.post(PAGE, "adaptive", group="api", adaptive="off")
        assert answer.status_code == 303, answer.text
        assert await store.settings() == {"fleet.groups.api.polling.enabled": False}
        assert "group api: off. The polling nodes apply it" in await visitor.get(PAGE)
        await visitor.post(PAGE, "adaptive", group=f"post {HOSTILE}", adaptive="on")
        await visitor.post(PAGE, "adaptive", group="", adaptive="off")
        await visitor.post(PAGE, "adaptive", group="api", adaptive="default")
        assert await store.settings() == {
            f"fleet.groups.post {HOSTILE}.polling.enabled": True,
            "fleet.polling.enabled": False,
        }
        [back, *_, first] = await store.list_audit(10)
        assert (first.who, first.action) == ("web: local", "polling.change")
        assert (first.what, first.detail) == ("group 'api'", "enabled = false")
        assert (back.what, back.detail) == ("group 'api'", "enabled = null")

    run(main)


@pytest.mark.parametrize(
    "fields", [{"group": "nobody", "adaptive": "on"}, {"group": "api"}, {"adaptive": "perhaps"}]
)
def test_what_is_wrong_changes_nothing(run: Callable[..., None], fields: dict[str, str]) -> None:  # noqa: F811
    async def main(visitor: Visitor, store: SqliteFleetStore) -> None:
        await store.save([target("shop")])
        answer = await visitor.post(PAGE, "adaptive", **fields)
        assert answer.status_code == 303
        assert 'class="notice bad"' in await visitor.get(PAGE)
        assert await store.settings() == {}

    run(main)


def test_only_operators_switch_it(run: Callable[..., None]) -> None:  # noqa: F811
    async def main(visitor: Visitor, store: SqliteFleetStore) -> None:
        await store.save([target("shop")])
        assert 'name="adaptive"' not in await visitor.get(PAGE)
        assert "Adaptive polling" in await visitor.main(PAGE)
        answer = await visitor.post(PAGE, "adaptive", group="api", adaptive="off")
        assert answer.status_code == 403
        assert await store.settings() == {}

    run(main, Somebody("read"))


def test_a_running_node_applies_what_the_page_keeps(run: Callable[..., None]) -> None:  # noqa: F811
    async def main(visitor: Visitor, store: SqliteFleetStore) -> None:
        clock = store.clock
        assert isinstance(clock, VirtualClock)
        fleet = fleet_for(clock, store=store, name="pages")
        fleet.add(Target("shop", _fine, group="api"), Target("mail", _fine, group="post"))
        control = Control(fleet, lambda kept, where: load(None, {}, stored=kept, stored_in=where))
        await control.start()
        async with running(fleet):
            await clock.sleep(60)
            await visitor.post(PAGE, "adaptive", group="api", adaptive="off")
            await clock.sleep(10)
            assert isinstance(fleet.paces["api"].of(fleet.definition("shop")), Fixed)
            assert "post" not in fleet.paces

    run(main)


def test_a_fleet_of_this_process_is_switched_until_it_ends() -> None:
    clock = VirtualClock(NOW)

    async def main() -> None:
        fleet = fleet_for(clock, name="pages")
        fleet.add(Target("shop", _fine, group="api"), Target("mail", _fine, group="post"))
        visitor = Visitor(clock=clock)
        visitor.sources.add_fleet(fleet)
        async with running(fleet):
            await clock.sleep(60)
            page = await visitor.main(PAGE)
            assert "A change lasts until this process ends" in page
            assert "Queue depth 2 Running polls 0" in page
            await visitor.post(PAGE, "adaptive", group="api", adaptive="off")
            assert [_is_fixed(fleet, name) for name in ("shop", "mail")] == [True, False]
            assert "It lasts until this process ends" in await visitor.get(PAGE)
            await visitor.post(PAGE, "adaptive", group="api", adaptive="default")
            assert list(fleet.paces) == [None]
            await visitor.post(PAGE, "adaptive", group="", adaptive="off")
            assert [_is_fixed(fleet, name) for name in ("shop", "mail")] == [True, True]

    clock.run(main())


def test_the_page_shows_the_queue_and_the_oldest_reading(run: Callable[..., None]) -> None:  # noqa: F811
    async def main(visitor: Visitor, store: SqliteFleetStore) -> None:
        old = target(f"old {HOSTILE}", "open", max_interval=3600.0)
        await store.save([target("shop"), old])
        page = await visitor.main(PAGE)
        assert "Queue depth 2 Running polls – Oldest reading 15 min score 0.25" in page

    run(main)


def _is_fixed(fleet: Fleet, name: str) -> bool:
    target = fleet.definition(name)
    paces = fleet.paces
    return isinstance(paces.get(target.group, paces[None]).of(target), Fixed)


async def _fine(*_: object) -> str:
    return "ok"
