"""The public status page: what everybody may see, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from pollwise.alerts.windows import MaintenanceWindow
from pollwise.errors import ConfigError
from pollwise.fleet import Target
from pollwise.fleet.stores.sqlite.store import SqliteFleetStore
from pollwise.queues.memory import MemoryQueue
from pollwise.runtime.clock import VIRTUAL_EPOCH, VirtualClock
from pollwise.web import app
from pollwise.web.pages.status.contents import KEPT_FOR
from pollwise.web.pages.status.options import StatusOptions
from tests.fleet.world import fleet_for, running
from tests.web.visiting import HOSTILE, text_of

HOUR = 3600.0
#: How long targets are polled, and when the shop is down: for an hour, and at the end for half one.
POLLED = 5 * HOUR
DOWN = ((HOUR, 2 * HOUR), (4.5 * HOUR, POLLED))
SECRET = "refused by 10.0.0.7"

Visit = Callable[[httpx.AsyncClient, SqliteFleetStore, VirtualClock], Awaitable[None]]


async def poll(store: SqliteFleetStore, clock: VirtualClock) -> None:
    """Poll targets of two groups for a while, one of them with outages."""
    began = clock.now()
    fleet = fleet_for(clock, store=store, name="site")

    async def shop(*_: object) -> str:
        if any(start <= clock.now() - began < end for start, end in DOWN):
            raise ConnectionError(SECRET)
        return "ok"

    async def fine(*_: object) -> str:
        return "ok"

    fleet.add(
        Target("shop", shop, "1m", group="public"),
        Target(f"api {HOSTILE}", fine, "1m", group="public"),
        Target("vault", fine, "1m", group="inside"),
    )
    async with running(fleet):
        await clock.sleep(POLLED)


@pytest.fixture(scope="module")
def polled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The store of a fleet that was polled and then stopped."""
    path = tmp_path_factory.mktemp("polled") / "fleet.db"
    clock = VirtualClock()

    async def main() -> None:
        store = SqliteFleetStore(path, "site", clock=clock)
        await poll(store, clock)
        await store.close()

    clock.run(main())
    return path


@pytest.fixture
def visit(polled: Path) -> Callable[..., None]:
    def visited(main: Visit, **given: object) -> None:
        clock = VirtualClock(VIRTUAL_EPOCH + POLLED + 1)

        async def body() -> None:
            store = SqliteFleetStore(polled, "site", clock=clock)
            options = StatusOptions(**{"groups": ["public"], **given})  # type: ignore[arg-type]
            web = app(fleets=[store], authorise=lambda _: None, status=options, clock=clock)
            transport = httpx.ASGITransport(web)
            async with web, httpx.AsyncClient(transport=transport, base_url="http://x") as client:
                await main(client, store, clock)
            await store.close()

        clock.run(body())

    return visited


def test_everybody_sees_the_chosen_groups_and_nothing_else(visit: Callable[..., None]) -> None:
    async def main(client: httpx.AsyncClient, *_: object) -> None:
        answer = await client.get("/status")
        assert answer.status_code == 200
        assert "set-cookie" not in answer.headers
        assert answer.headers["cache-control"] == f"public, max-age={KEPT_FOR:.0f}"
        assert "<script>alert" not in answer.text
        page = text_of(answer.text[answer.text.index("<main") :])
        assert "Nothing is checked right now" in page  # the fleet was stopped
        assert "shop" in page
        assert "has been down for" in page
        assert "was down for 1 h" in page
        for hidden in ("vault", "inside", SECRET, "sqlite"):
            assert hidden not in answer.text
        # Five hours, of which one and a half were down, as far as polls could tell.
        api, shop = (float(each) for each in re.findall(r"30d (\d+\.\d+) %", page))
        assert api == 100.0
        assert shop == pytest.approx(70.0, abs=2.0)
        for private in ("/", "/fleets/site", "/fleets/site/alerts"):
            assert (await client.get(private)).status_code in (401, 403, 404)

    visit(main)


def test_an_outage_within_maintenance_is_no_incident_before_its_next_poll(
    visit: Callable[..., None],
) -> None:
    async def main(client: httpx.AsyncClient, store: SqliteFleetStore, clock: VirtualClock) -> None:
        now = clock.epoch()
        begins = now - HOUR  # before the shop went down
        window = MaintenanceWindow("w1", groups=("public",), starts_at=begins, ends_at=now + HOUR)
        await store.keep_maintenance(window)
        try:
            text = text_of((await client.get("/status")).text)
            assert "has been down for" not in text
            assert "shop Maintenance" in text
        finally:
            await store.remove_maintenance(window.id)

    visit(main)


def test_an_outage_that_is_open_when_a_maintenance_begins_stays_an_incident(
    tmp_path: Path,
) -> None:
    """Before the next poll, after it, and after the window."""
    clock = VirtualClock()

    async def main() -> None:
        store = SqliteFleetStore(tmp_path / "fleet.db", "site", clock=clock)
        fleet, broken = fleet_for(clock, store=store, name="site"), False

        async def shop(*_: object) -> str:
            if broken:
                raise ConnectionError(SECRET)
            return "ok"

        fleet.add(Target("shop", shop, "1m", group="public"))
        options = StatusOptions(["public"])
        web = app(fleets=[store], authorise=lambda _: None, status=options, clock=clock)
        transport = httpx.ASGITransport(web)

        async with web, httpx.AsyncClient(transport=transport, base_url="http://x") as client:

            async def see() -> str:
                await clock.sleep(2 * KEPT_FOR)
                return text_of((await client.get("/status")).text)

            async with running(fleet):
                await clock.sleep(HOUR)
                broken = True
                await clock.sleep(HOUR)
                now = clock.epoch()
                window = MaintenanceWindow("w1", ("shop",), starts_at=now, ends_at=now + 2 * HOUR)
                await store.keep_maintenance(window)
                for _ in range(2):
                    text = await see()
                    assert "shop has been down for" in text
                    assert "is under maintenance now" in text
                    assert "No incident in the last 90 days" in text
                    await clock.sleep(HOUR)
                await clock.sleep(HOUR)
                text = await see()
                assert "shop has been down for" in text
                assert "under maintenance" not in text
                broken = False
                await clock.sleep(HOUR)
                text = await see()
                assert "has been down for" not in text
                assert "was down for" in text
        await store.close()

    clock.run(main())


def test_reasons_are_shown_only_if_asked_for(visit: Callable[..., None]) -> None:
    async def main(client: httpx.AsyncClient, *_: object) -> None:
        assert SECRET in (await client.get("/status")).text

    visit(main, reasons=True)


def test_many_visitors_cost_the_store_no_more_than_one(visit: Callable[..., None]) -> None:
    async def main(client: httpx.AsyncClient, store: SqliteFleetStore, clock: VirtualClock) -> None:
        asked = 0
        page = store.page

        async def counted(*given: object) -> object:
            nonlocal asked
            asked += 1
            return await page(*given)  # type: ignore[arg-type]

        store.page = counted  # type: ignore[misc, assignment]
        first = await client.get("/status")
        for _ in range(50):
            same = await client.get("/status", headers={"if-none-match": first.headers["etag"]})
            assert same.status_code == 304
            assert not same.content
        assert asked == 1
        await clock.sleep(KEPT_FOR)
        await client.get("/status")
        assert asked == 2

    visit(main)


def test_there_is_no_status_page_by_default(tmp_path: Path) -> None:
    clock = VirtualClock()

    async def main() -> None:
        store = SqliteFleetStore(tmp_path / "fleet.db", clock=clock)
        web = app(fleets=[store], authorise=lambda _: None, clock=clock)
        transport = httpx.ASGITransport(web)
        async with web, httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            assert (await client.get("/status")).status_code == 401
        await store.close()

    clock.run(main())


def test_bad_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="needs the groups"):
        StatusOptions([])
    with pytest.raises(ConfigError, match="list of names"):
        StatusOptions("shop")
    with pytest.raises(ConfigError, match="1 to 120 characters"):
        StatusOptions(["shop"], title=" ")
    with pytest.raises(ConfigError, match="no fleet is given"):
        app(MemoryQueue(), authorise=lambda _: None, status=StatusOptions(["shop"]))


def test_planned_maintenance_is_announced(visit: Callable[..., None]) -> None:
    async def main(client: httpx.AsyncClient, store: SqliteFleetStore, clock: VirtualClock) -> None:
        now = clock.epoch()
        for window in (
            MaintenanceWindow("m1", ("shop",), ends_at=now + 605, note=f"moving {HOSTILE}"),
            MaintenanceWindow("m2", (), ("public",), None, now + 86405, now + 90005),
            MaintenanceWindow("m3", ("vault",), ends_at=now + 605, note="hidden"),
            MaintenanceWindow("m4", (), ("public",), None, now + 8 * 86400, now + 9 * 86400, "far"),
        ):
            await store.keep_maintenance(window)
        answer = await client.get("/status")
        page = text_of(answer.text[answer.text.index("<main") :])
        assert "shop under way, ends in 10 min moving" in page
        assert "public in 1 d , for 1 h" in page
        assert "hidden" not in page
        assert "far" not in page
        for each in await store.maintenance():
            await store.remove_maintenance(each.id)

    visit(main)
